"""How figures of sentence embeddings are shown in a terminal and kept: a table a file, and one CSV of all.

The figures of a file are plain values:

- scores: `pearson_cosine`, `spearman_dot`, …; None where a correlation is not defined
- intervals: low and high, 95 %, of the cosine ones
- retrieval: `forward`, `backward`, `forward_mrr`, `backward_mrr`, in place of scores
- dimensions: number to the same again, with vectors cut to so many numbers
- f1: `official`, `best`, `best_threshold`, of data sets with a binary label
- groups: name to `pairs` and `scores`
- bag_of_pieces: scores or retrieval and intervals of the baseline, or None
- mean_random_cosine, sentences_per_second, notes
"""

import csv
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from albertkit.files import atomic_file, write_json

if TYPE_CHECKING:
    from rich.table import Table

Figures = Mapping[str, Any]

SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
BASELINE = "bag of pieces"
# Columns as sentence-transformers' evaluator and the notebooks of the Korean models write them.
CSV_COLUMNS = [
    f"{name}_{kind}" for name in ("cosine", "euclidean", "manhattan", "dot") for kind in ("pearson", "spearman")
]


def print_embedding_results(results: Figures, out: TextIO | None = None) -> None:
    """Print what a model scores: a table for each file, with the baseline as a row.

    Args:
        results: model, description, dimension and files.
        out: Where to; standard output by default.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(file=out or sys.stdout, highlight=False)
    console.print(
        Text(f"{results['model']}: {results['description']}, {results['dimension']:,} numbers"), soft_wrap=True
    )
    for name, figures in results["files"].items():
        console.print()
        console.print(Text(f"{name}: {figures['pairs']:,} pairs", "bold"), soft_wrap=True)
        console.print(_retrieval_table(figures) if "retrieval" in figures else _correlation_table(figures))
        if f1 := figures.get("f1"):
            line = f"F1 where cosine x 5 reaches 3.0: {f1['official']:.4f}; at the best threshold, "
            line += f"{f1['best_threshold']:.3f}: {f1['best']:.4f}"
            console.print(Text(line), soft_wrap=True)
        random = figures["mean_random_cosine"]
        spread = "" if random is None else f"two random texts have a cosine of {random:.3f} on average; "
        console.print(f"{spread}{figures['sentences_per_second']:,.0f} sentences a second", style="dim", soft_wrap=True)
        for note in figures["notes"]:
            console.print(Text(f"! {note}", "yellow"), soft_wrap=True)


def save_embedding_results(results: Figures, folder: str | os.PathLike[str]) -> list[Path]:
    """Write `results.json` and, of files with scores, `similarity.csv`.

    Args:
        results: As for `print_embedding_results`.
        folder: Made if missing.

    Returns:
        The files written.
    """
    written = [Path(folder) / "results.json"]
    write_json(written[0], results)
    scored = {name: figures for name, figures in results["files"].items() if "scores" in figures}
    if scored:
        written.append(Path(folder) / "similarity.csv")
        with atomic_file(written[1], "w") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(["file", "dimension", *CSV_COLUMNS])
            for name, figures in scored.items():
                for dimension, scores in _by_dimension(results["dimension"], figures):
                    values = [scores["_".join(reversed(column.split("_")))] for column in CSV_COLUMNS]
                    writer.writerow([name, dimension, *("" if value is None else value for value in values)])
    return written


def save_all_embedding_results(results: Sequence[Figures], folder: str | os.PathLike[str]) -> list[Path]:
    """Write the results of one model into a folder, or those of several into a folder each, named after the models."""
    if len(results) == 1:
        return save_embedding_results(results[0], folder)
    names = [re.sub(r"[^\w.-]+", "-", str(one["model"])).strip("-.") or "model" for one in results]
    written = []
    for number, (name, one) in enumerate(zip(names, results, strict=True), 1):
        own = name if names.count(name) == 1 else f"{number}-{name}"
        written += save_embedding_results(one, Path(folder) / own)
    return written


def print_augmentation(report: Figures, out: TextIO | None = None) -> None:
    """Print what silver pairs were made: their scores by band, before and after balancing.

    Args:
        report: written, pairs, texts, candidates, gold_removed, bands, clipped, dev, notes.
        out: Where to; standard output by default.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(file=out or sys.stdout, highlight=False, soft_wrap=True)
    dev = report["dev"]
    agreed = f"Spearman {_number(dev['spearman'])}, Pearson {_number(dev['pearson'])}"
    console.print(f"scores beside gold: {agreed} on {dev['pairs']:,} gold dev pairs")
    found = ", ".join(f"{name} {count:,}" for name, count in report["candidates"].items())
    removed, clipped = report["gold_removed"], report["clipped"]
    console.print(f"different pairs of {report['texts']:,} texts: {found}; {removed:,} of them gold, removed")
    console.print()
    table = _table("score", "found", "kept")
    for band in report["bands"]:
        table.add_row(f"{band['from']:g} to {band['to']:g}", f"{band['before']:,}", f"{band['after']:,}")
    console.print(table)
    console.print()
    if clipped:
        console.print(f"scores beyond the gold scale, set to its end: {clipped:,}")
    for note in report["notes"]:
        console.print(Text(note, "dim"))
    console.print(Text(f"{report['pairs']:,} silver pairs: {report['written'][0]}"))


def _by_dimension(dimension: int, figures: Figures) -> Iterator[tuple[int | str, Mapping[str, float | None]]]:
    yield dimension, figures["scores"]
    for shorter, cut in figures["dimensions"].items():
        yield shorter, cut["scores"]


def _correlation_table(figures: Figures) -> "Table":
    table = _table("", "pearson", "95 % interval", "spearman", "95 % interval")

    def row(name: str, own: Figures, similarity: str = "cosine", style: str = "") -> None:
        cells = []
        for kind in ("pearson", "spearman"):
            key = f"{kind}_{similarity}"
            cells += [_number(own["scores"][key]), _interval(own.get("intervals", {}).get(key))]
        table.add_row(name, *cells, style=style)

    for similarity in SIMILARITIES:
        row(similarity, figures, similarity, "bold" if similarity == "cosine" else "")
    for dimension, cut in figures["dimensions"].items():
        row(f"cosine, first {dimension} numbers", cut)
    if figures["bag_of_pieces"]:
        row(BASELINE, figures["bag_of_pieces"])
    for group, own in figures["groups"].items():
        row(f"in {group} ({own['pairs']:,})", own, style="dim")
    return table


def _retrieval_table(figures: Figures) -> "Table":
    table = _table("nearest is its own", "forward", "mean 1/rank", "backward", "mean 1/rank")

    def row(name: str, own: Figures, style: str = "") -> None:
        found = own["retrieval"]
        cells = []
        for way in ("forward", "backward"):
            cells += [f"{found[way]:.1%}", _number(found[f"{way}_mrr"])]
        table.add_row(name, *cells, style=style)

    row("this model", figures, "bold")
    for dimension, cut in figures["dimensions"].items():
        row(f"first {dimension} numbers", cut)
    if figures["bag_of_pieces"]:
        row(BASELINE, figures["bag_of_pieces"])
    return table


def _table(name: str, *headings: str) -> "Table":
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(name, overflow="ellipsis", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"


def _interval(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"
