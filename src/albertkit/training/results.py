"""The results of a training or an evaluation: kept in `results.json`, shown as sections.

Results are one dictionary of plain values: the scores by name, and with them, where the task has
them (`Task.details`):

- intervals: score to low and high, 95 %, by bootstrap over the examples
- classes, or types of entities: rows of name, precision, recall, f1, support
- positive_class: what f1, precision and recall are of, where there are two classes
- confusion: names of the classes, and counts[i][j]: how often class i was predicted as class j
- pairs: [label, prediction] of a regression
- notes: warnings
- heading: what the scores are of: task, number of examples, file, step
"""

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from albertkit.errors import MissingExtraError
from albertkit.files import write_json
from albertkit.output.plots import plot_confusion, plot_regression, scatter_svgs
from albertkit.output.sections import (
    Cell,
    Figure,
    Paragraph,
    Section,
    TableSection,
    Tone,
    to_json_value,
)

# A wider matrix cannot be read; the most frequent mistakes are listed instead
MAX_CLASSES_SHOWN = 12
MAX_MISTAKES_SHOWN = 10
MAX_NAME_WIDTH = 12
_SCORES_OF_A_CLASS = {"f1", "precision", "recall", "accuracy_and_f1"}  # if there are two classes
# Numbers of `results.json` that are no scores.
_NO_SCORES = {"value", "steps", "seconds_of_updates", "collapsed", "model", "examples", "best_step"}


@dataclass(frozen=True)
class ClassScores:
    """Scores of one class, or of one type of entity; None where they are not defined."""

    name: str = ""
    precision: float | None = None
    recall: float | None = None
    f1: float | None = None
    support: int | None = None


@dataclass(frozen=True)
class Confusion:
    """Counts of examples of each class (a row) that were predicted as each class (a column)."""

    names: list[str] = field(default_factory=list)
    counts: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class Details:
    """The parts of results that are no scores; `albertkit report` reads `results.json` as this, and its numbers as scores."""

    metric: str = ""
    heading: str = ""
    intervals: dict[str, tuple[float | None, float | None]] = field(default_factory=dict)
    positive_class: str = ""
    classes: list[ClassScores] = field(default_factory=list)
    types: list[ClassScores] = field(default_factory=list)
    confusion: Confusion | None = None
    pairs: list[tuple[float | None, float | None]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    collapsed: str | None = None
    constant: list[str] = field(default_factory=list)
    retries: list[str] = field(default_factory=list)
    value: float | None = None


def result_sections(results: Mapping[str, Any], metric: str | None = None) -> list[Section]:
    """Return what is shown of results: scores with their intervals, `metric` first, classes, confusion matrix, notes."""
    sections: list[Section] = (
        [Paragraph(results["heading"], tone="muted")] if results.get("heading") else []
    )
    positive_class = results.get("positive_class") or ""
    table = score_table(
        scores_of(results), results.get("intervals") or {}, metric, positive_class=positive_class
    )
    # What a model that learned nothing reaches
    if "accuracy" in results and (largest := largest_class_and_share(results)):
        table = replace(
            table,
            rows=[
                *table.rows,
                ["largest class", format_score(largest[1]), *[None] * (len(table.columns) - 2)],
            ],
        )
    sections.append(table)
    for key, title in (("classes", "class"), ("types", "type")):
        if results.get(key):
            sections.append(
                class_scores_section([ClassScores(**row) for row in results[key]], title)
            )
    if results.get("confusion"):
        sections.append(confusion_table(Confusion(**results["confusion"])))
    return sections + [Paragraph(note, tone="warning") for note in results.get("notes") or ()]


def largest_class_and_share(results: Mapping[str, Any]) -> tuple[str, float] | None:
    """Return the name of the class that most examples have, and their share; None without classes."""
    rows = [ClassScores(**row) for row in results.get("classes") or ()]
    total = sum(row.support or 0 for row in rows)
    largest = max(rows, key=lambda row: row.support or 0, default=ClassScores())
    return (largest.name, (largest.support or 0) / total) if total else None


def not_better_than_largest_class_note(results: Mapping[str, Any]) -> str:
    """Return a note if the accuracy may be that of a constant answer: its 95% interval reaches the largest class's share."""
    low, _ = (results.get("intervals") or {}).get("accuracy") or (None, None)
    if (
        low is None
        or "accuracy" not in results
        or not (largest := largest_class_and_share(results))
        or low > largest[1]
    ):
        return ""
    name, share = largest
    reached = (
        f"accuracy {format_score(results['accuracy'])}, the largest class {format_score(share)}"
    )
    return f"not clearly better than always answering `{name}`: {reached}"


def scatter_sections(labels_and_predictions: Sequence[Sequence[float | None]]) -> list[Section]:
    """Return the picture of predictions over labels for a page; nothing without numbers or without matplotlib."""
    points = [
        (label, value)
        for label, value in labels_and_predictions
        if label is not None and value is not None
    ]
    points = [pair for pair in points if abs(sum(pair)) < 1e12]
    try:
        svgs = scatter_svgs(points) if points else []
    except MissingExtraError:
        svgs = []
    return [Figure(svgs[0], "Predictions over labels", narrow=svgs[1])] if svgs else []


def scores_of(results: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores in results; names that differ in case alone are one score, written twice."""
    scores = {
        name: math.nan if value is None else value
        for name, value in results.items()
        if name not in _NO_SCORES
        and (value is None or (isinstance(value, int | float) and not isinstance(value, bool)))
    }
    return {
        name: value
        for name, value in scores.items()
        if name == name.lower() or name.lower() not in scores
    }


def score_name(name: str, positive_class: str) -> str:
    """Return a score's name for readers, with the class that it is of."""
    text = name.replace("_", " ")
    return f"{text} ({positive_class})" if positive_class and name in _SCORES_OF_A_CLASS else text


def score_table(
    scores: Mapping[str, float],
    intervals: Mapping[str, Any],
    metric: str | None = None,
    title: str = "",
    positive_class: str = "",
) -> TableSection:
    """Return scores with their 95 % intervals, the one that counts first."""
    # A stable sort: the others stay in their order.
    names = sorted(scores, key=lambda name: name != metric)
    columns = ["", "score", "95% interval"] if intervals else ["", "score"]
    rows = []
    for name in names:
        row: list[str | None] = [score_name(name, positive_class), format_score(scores[name])]
        if intervals:
            row.append(
                " to ".join(map(format_score, intervals[name])) if name in intervals else None
            )
        rows.append(row)
    return TableSection(columns, rows, title, strong=0 if metric in scores else None)


def format_score(value: float | None) -> str:
    """Return a score: four decimals, two if it is out of a hundred; counts whole."""
    if value is None or not math.isfinite(value):
        return "undefined"
    if isinstance(value, int):
        return f"{value:,}"
    decimals = 2 if abs(value) >= 10 else 4
    return f"{value:.{decimals}f}"


def class_scores_section(rows: Sequence[ClassScores], kind: str) -> TableSection:
    """Return precision, recall and F1 of every class, or of every type of entity."""
    cells = [
        [
            row.name,
            format_score(row.precision),
            format_score(row.recall),
            format_score(row.f1),
            row.support,
        ]
        for row in rows
    ]
    return TableSection([kind, "precision", "recall", "f1", "examples"], cells, f"By {kind}")


def confusion_table(confusion: Confusion) -> TableSection:
    """Return labels down, predictions across; of more than `MAX_CLASSES_SHOWN` classes the most frequent mistakes."""
    names, counts = confusion.names, confusion.counts
    if len(names) > MAX_CLASSES_SHOWN:
        wrong = [
            (count, names[row], names[column])
            for row, line in enumerate(counts)
            for column, count in enumerate(line)
            if count and row != column
        ]
        wrong.sort(key=lambda mistake: -mistake[0])
        rows = [[label, predicted, count] for count, label, predicted in wrong[:MAX_MISTAKES_SHOWN]]
        return TableSection(["label", "predicted as", "times"], rows, "Most frequent mistakes")
    heads = labels = list(names)
    if max(map(len, names), default=0) > MAX_NAME_WIDTH:  # long names go by numbers
        heads = [str(index) for index in range(1, len(names) + 1)]
        labels = [f"{index:>2} {name}" for index, name in enumerate(names, 1)]
    rows = []
    for row, (label, line) in enumerate(zip(labels, counts, strict=True)):
        # A class may have no example.
        total = max(sum(line), 1)
        cells = []
        for column, count in enumerate(line):
            tone: Tone = "" if count else "muted"
            cells.append(Cell(count or "·", "strong" if column == row else tone, count / total))
        rows.append([label, *cells])
    legend = "Stronger is a larger share of the label's examples."
    return TableSection(
        ["label ↓  predicted →", *heads], rows, "Labels and predictions", legend=legend
    )


def save_results(
    results: Mapping[str, Any], folder: str | os.PathLike[str], title: str = ""
) -> None:
    """Write `results.json`, and with the extra `report` a picture, `confusion.png` or `regression.png`."""
    folder = Path(folder)
    write_json(folder / "results.json", to_json_value(results))
    with suppress(MissingExtraError):  # pictures are an extra, the numbers are written
        if results.get("confusion"):
            plot_confusion(**results["confusion"], out=folder / "confusion.png", title=title)
        if results.get("pairs"):
            plot_regression(results["pairs"], out=folder / "regression.png", title=title)
