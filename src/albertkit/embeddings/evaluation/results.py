"""The figures of sentence embeddings: shown as sections and as a table of several models, kept as JSON and CSV."""

import csv
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from albertkit.embeddings.metrics import SIMILARITIES
from albertkit.errors import ConfigError
from albertkit.files import atomic_file, write_json
from albertkit.frame.rendering import to_markdown, to_page
from albertkit.frame.result import Result
from albertkit.frame.section import Section, Table, Text

Figures = Mapping[str, Any]

BASELINE = "bag of tokens"
# Columns as sentence-transformers' evaluator and the notebooks of the Korean models write them.
CSV_COLUMNS = [
    f"{name}_{kind}" for name in ("cosine", "euclidean", "manhattan", "dot") for kind in ("pearson", "spearman")
]


@dataclass(frozen=True)
class EmbeddingEvaluation(Result):
    """Result of `evaluate_embeddings`.

    Attributes:
        model: As it was given.
        description: What it is, in words.
        dimension: D.
        files: Name to figures: `kind`, `path`, `pairs` (how many), `left_out` (rows), `scores` (correlations by name, of four
            similarities) or `retrieval` (there and back), `intervals`, `f1` (of klue-sts), `groups`, `dimensions` (the same of
            leading numbers alone), `bag_of_tokens` (the baseline), `mean_random_cosine`, `texts` (different ones), `truncated`
            (of these), `sentences_per_second`, `notes`. What is not defined is None.
    """

    model: str
    description: str
    dimension: int
    files: dict[str, dict[str, Any]]

    def sections(self) -> list[Section]:
        """Return a table for each file, with the baseline as a row."""
        sections: list[Section] = [Text(f"{self.model}: {self.description}, {self.dimension:,} numbers")]
        for name, figures in self.files.items():
            table = _retrieval_table if "retrieval" in figures else _correlation_table
            random = figures["mean_random_cosine"]
            note = f"{figures['sentences_per_second']:,.0f} sentences a second"
            if random is not None:
                note = f"two random texts have a cosine of {random:.3f} on average; {note}"
            sections.append(table(figures, f"{name}: {figures['pairs']:,} pairs", note))
            if f1 := figures.get("f1"):
                threshold = f"at the best threshold, {f1['best_threshold']:.3f}: {f1['best']:.4f}"
                sections.append(Text(f"F1 where cosine x 5 reaches 3.0: {f1['official']:.4f}; {threshold}"))
            sections += [Text(note, tone="warning") for note in figures["notes"]]
        return sections

    def save(self, folder: Path) -> None:
        """Write `results.json` and, of files with scores, `similarity.csv`, into a folder that is made if missing."""
        write_json(folder / "results.json", self.to_dict())
        scored = {name: figures for name, figures in self.files.items() if "scores" in figures}
        if not scored:
            return
        with atomic_file(folder / "similarity.csv", "w") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(["file", "dimension", *CSV_COLUMNS])
            for name, figures in scored.items():
                shorter = {d: cut["scores"] for d, cut in figures["dimensions"].items()}
                for dimension, scores in {self.dimension: figures["scores"], **shorter}.items():
                    values = [scores["_".join(reversed(column.split("_")))] for column in CSV_COLUMNS]
                    writer.writerow([name, dimension, *("" if value is None else value for value in values)])


@dataclass(frozen=True)
class EmbeddingEvaluations(Result):
    """Figures of one model, or of several on the same files."""

    models: tuple[EmbeddingEvaluation, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures of the only model, or those of all as `models`."""
        models = [evaluation.to_dict() for evaluation in self.models]
        return models[0] if len(models) == 1 else {"models": models}

    def sections(self) -> list[Section]:
        """Return a table for each file, of several models under one that compares them."""
        comparison = [embedding_table(self.models, intervals=False)] if len(self.models) > 1 else []
        return [*comparison, *(section for evaluation in self.models for section in evaluation.sections())]

    def save(self, folder: Path) -> None:
        """Write the results of one model into a folder, those of several into a folder each, named after the models."""
        if len(self.models) == 1:
            return self.models[0].save(folder)
        names = [re.sub(r"[^\w.-]+", "-", evaluation.model).strip("-.") or "model" for evaluation in self.models]
        for number, (name, evaluation) in enumerate(zip(names, self.models, strict=True), 1):
            evaluation.save(folder / (name if names.count(name) == 1 else f"{number}-{name}"))


def _correlation_table(figures: Figures, title: str, note: str) -> Table:
    def row(name: str, row_figures: Figures, similarity: str = "cosine") -> list[Any]:
        cells: list[Any] = [name]
        for kind in ("pearson", "spearman"):
            key = f"{kind}_{similarity}"
            cells += [_number(row_figures["scores"][key]), _interval(row_figures.get("intervals", {}).get(key))]
        return cells

    rows = [row(similarity, figures, similarity) for similarity in SIMILARITIES]
    rows += [row(f"cosine, first {dimension} numbers", cut) for dimension, cut in figures["dimensions"].items()]
    rows += [row(BASELINE, figures["bag_of_tokens"])] if figures["bag_of_tokens"] else []
    for group, group_figures in figures["groups"].items():
        rows.append(row(f"in {group} ({group_figures['pairs']:,})", group_figures))
    columns = ["", "pearson", "95% interval", "spearman", "95% interval"]
    return Table(columns, rows, title, note, strong=list(SIMILARITIES).index("cosine"))


def _retrieval_table(figures: Figures, title: str, note: str) -> Table:
    def row(name: str, row_figures: Figures) -> list[Any]:
        retrieval, cells = row_figures["retrieval"], [name]
        for direction in ("forward", "backward"):
            cells += [f"{retrieval[direction]:.1%}", _number(retrieval[f"{direction}_mrr"])]
        return cells

    rows = [row("this model", figures)]
    rows += [row(f"first {dimension} numbers", cut) for dimension, cut in figures["dimensions"].items()]
    rows += [row(BASELINE, figures["bag_of_tokens"])] if figures["bag_of_tokens"] else []
    return Table(
        ["nearest is its own", "forward", "mean 1/rank", "backward", "mean 1/rank"], rows, title, note, strong=0
    )


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"


def _interval(interval: Sequence[float] | None) -> str | None:
    return None if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"


# --- several models ---------------------------------------------------------------------------------------------------------

SUFFIXES = (".md", ".html")
CAPTION = (
    "Times 100. Data with scores: Spearman's correlation of the cosine with the scores, and its 95% interval by bootstrap. F1 "
    "of klue-sts: pairs of 3.0 or more, found by cosine x 5 of 3.0 or more; best F1: by the threshold that gives most on these "
    "pairs. Pairs: how often the nearest text is a text's own, there and back. A bag of tokens is TF-IDF over the tokens of a "
    "model's tokenizer, without any learning."
)


def embedding_table(results: Sequence[EmbeddingEvaluation], intervals: bool = True) -> Table:
    """Make the table of several models that were measured on the same files; a row a model, then a bag of tokens each."""
    files: Mapping[str, Figures] = results[0].files
    kinds = [figures["kind"] for figures in files.values()]
    short_names = dict(zip(files, kinds, strict=True))
    short_names |= {name: name for name, kind in short_names.items() if kinds.count(kind) > 1}
    measures = {name: list(_cells(figures, intervals)) for name, figures in files.items()}
    columns = ["model", *(f"{short_names[name]}, {measure}" for name in files for measure in measures[name])]
    rows = []
    bags: dict[tuple[str, ...], str] = {}
    for evaluation in results:
        cells, bag_cells = list[str](), list[str]()
        for name, figures in evaluation.files.items():
            cells += _cells(figures, intervals).values()
            if figures["bag_of_tokens"]:
                bag_cells += _cells(figures["bag_of_tokens"], intervals).values()
            else:
                bag_cells += [""] * len(measures[name])
        rows.append([evaluation.model, *cells])
        if any(bag_cells):
            bags.setdefault(tuple(bag_cells), evaluation.model)
    rows += [[f"{BASELINE} ({model})" if len(bags) > 1 else BASELINE, *cells] for cells, model in bags.items()]
    data_sets = [
        f"{short_names[name]}: {Path(figures['path']).name}, {figures['pairs']:,} pairs"
        for name, figures in files.items()
    ]
    return Table(columns, rows, "Sentence embeddings compared", f"{'; '.join(data_sets)}. {CAPTION}")


def _cells(figures: Figures, intervals: bool) -> dict[str, str]:
    """Return the cells of one file by the name of the measure."""
    if "retrieval" in figures:
        directions = {"there": "forward", "back": "backward"}
        return {name: f"{100 * figures['retrieval'][direction]:.1f}" for name, direction in directions.items()}
    value, interval = figures["scores"]["spearman_cosine"], figures["intervals"].get("spearman_cosine")
    cells = {"Spearman": "undefined" if value is None else f"{100 * value:.1f}"}
    if value is not None and interval and intervals:
        cells["Spearman"] += f" ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"
    if "f1" in figures:
        cells |= {name: f"{100 * figures['f1'][key]:.1f}" for name, key in (("F1", "official"), ("best F1", "best"))}
    return cells


def check_table_file(file: str | os.PathLike[str]) -> Path:
    """Return the path of a table to write, if it ends as one."""
    path = Path(file)
    if path.suffix not in SUFFIXES:
        raise ConfigError(
            "bad-value", f"`{path}` ends in neither {' nor '.join(SUFFIXES)}", f"--table {path.with_suffix('.md')}"
        )
    return path


def write_embedding_table(table: Table, file: str | os.PathLike[str]) -> Path:
    """Write a table as Markdown or as an HTML page, by the ending of the file."""
    path = check_table_file(file)
    plain = replace(table, title="")
    text = to_page(table.title, [plain]) if path.suffix == ".html" else to_markdown([plain])
    with atomic_file(path, "w") as stream:
        stream.write(text)
    return path
