"""Models in rows, data sets in columns: as text, Markdown and HTML.

Figures are those of `report.embedding_results`, of several models on the same files.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from albertkit.errors import ConfigError
from albertkit.files import atomic_file
from albertkit.report.card import cell
from albertkit.report.templates import environment

Figures = Mapping[str, Any]

SUFFIXES = (".md", ".html")
CAPTION = (
    "Times 100. Data with scores: Spearman's correlation of the cosine with the scores, and its 95 % interval by bootstrap. F1 "
    "of klue-sts: pairs of 3.0 or more, found by cosine x 5 of 3.0 or more; best F1: by the threshold that gives most on these "
    "pairs. Pairs: how often the nearest text is a text's own, there and back. A bag of pieces is TF-IDF over the pieces of a "
    "model's tokenizer, without any learning."
)


class EmbeddingTable(NamedTuple):
    """A table.

    Attributes:
        columns: Headings, that of the models first.
        rows: Cells of each row, the name first.
        files: What each data set is.
    """

    columns: list[str]
    rows: list[list[str]]
    files: str


def embedding_table(results: Sequence[Figures], intervals: bool = True) -> EmbeddingTable:
    """Make the table of several models that were measured on the same files; a row a model, then a bag of pieces each.

    Args:
        results: Of each model: model, files.
        intervals: Whether to show those of correlations.
    """
    files: Mapping[str, Figures] = results[0]["files"]
    kinds = [figures["kind"] for figures in files.values()]
    short = {name: one["kind"] if kinds.count(one["kind"]) == 1 else name for name, one in files.items()}
    columns = ["model", *(f"{short[name]}, {what}" for name, figures in files.items() for what in _measures(figures))]
    rows = [[one["model"], *_cells(one["files"], lambda figures: figures, intervals)] for one in results]
    bags: dict[tuple[str, ...], str] = {}
    for one in results:
        cells = _cells(one["files"], lambda figures: figures["bag_of_pieces"] or {}, intervals)
        if any(cells):
            bags.setdefault(tuple(cells), one["model"])
    several = len(bags) > 1
    rows += [[f"bag of pieces ({model})" if several else "bag of pieces", *cells] for cells, model in bags.items()]
    listed = (f"{short[name]}: `{Path(one['path']).name}`, {one['pairs']:,} pairs" for name, one in files.items())
    return EmbeddingTable(columns, rows, "; ".join(listed) + ".")


def print_embedding_table(table: EmbeddingTable, out: TextIO | None = None) -> None:
    """Print a table on standard output."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for number, column in enumerate(table.columns):
        shown.add_column(column, justify="right" if number else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*row)
    console = Console(file=out or sys.stdout, highlight=False, markup=False)
    console.print(shown)
    console.print(f"{table.files} {CAPTION}", style="dim")


def check_table_file(file: str | os.PathLike[str]) -> Path:
    """Return the path of a table to write.

    Raises:
        ConfigError: bad-argument for another ending than .md or .html.
    """
    path = Path(file)
    if path.suffix not in SUFFIXES:
        raise ConfigError(
            "bad-argument", f"`{path}` ends in neither {' nor '.join(SUFFIXES)}", f"--table {path.with_suffix('.md')}"
        )
    return path


def write_embedding_table(table: EmbeddingTable, file: str | os.PathLike[str]) -> Path:
    """Write a table as Markdown or as an HTML page, by the ending of the file."""
    path = check_table_file(file)
    if path.suffix == ".html":
        text = (
            environment()
            .get_template("embedding_table.html.j2")
            .render(table=table, caption=f"{table.files} {CAPTION}")
        )
    else:
        lines = [table.columns, ["---", *["--:"] * (len(table.columns) - 1)]]
        lines += [[cell(value) for value in row] for row in table.rows]
        text = "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{table.files} {CAPTION}\n"
    with atomic_file(path, "w") as stream:
        stream.write(text)
    return path


def _measures(figures: Figures) -> list[str]:
    if "retrieval" in figures:
        return ["there", "back"]
    return ["Spearman", "F1", "best F1"] if "f1" in figures else ["Spearman"]


def _cells(files: Mapping[str, Figures], of: Any, intervals: bool) -> list[str]:
    cells = []
    for figures in files.values():
        own = of(figures)
        for measure in _measures(figures):
            cells.append(_value(own, measure, intervals) if own else "")
    return cells


def _value(own: Figures, measure: str, intervals: bool) -> str:
    if measure in ("F1", "best F1"):
        return f"{100 * own['f1']['official' if measure == 'F1' else 'best']:.1f}"
    if measure != "Spearman":
        return f"{100 * own['retrieval']['forward' if measure == 'there' else 'backward']:.1f}"
    value, interval = own["scores"]["spearman_cosine"], own["intervals"].get("spearman_cosine")
    if value is None:
        return "undefined"
    return f"{100 * value:.1f}" + (
        f" ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})" if interval and intervals else ""
    )
