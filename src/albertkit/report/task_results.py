"""How the results of a task are shown in a terminal and kept: one dictionary of plain values.

A result is its scores by name, and beside them, where the task has them (`Task.details`):

- intervals: score to low and high, 95 %, by bootstrap over the examples
- classes, or types of entities: rows of name, precision, recall, f1, support
- confusion: names of the classes, and counts[i][j]: how often class i was predicted as class j
- pairs: [label, prediction] of a regression
- notes: lines for a person
- heading: what the scores are of: task, number of examples, file, step
"""

import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from albertkit.errors import MissingExtraError
from albertkit.files import write_json
from albertkit.report.task_plots import plot_confusion, plot_regression

if TYPE_CHECKING:
    from rich.table import Table

Results = Mapping[str, Any]

MOST_CLASSES = 12  # a wider matrix does not fit into a terminal; the most frequent mistakes are listed instead
MOST_MISTAKES = 10
NAME_WIDTH = 12


def print_results(results: Results, metric: str | None = None, out: TextIO | None = None) -> None:
    """Print the results of a task: scores with their intervals, classes, confusion matrix, notes.

    Args:
        results: Of a task.
        metric: The score that counts; shown first.
        out: Where to; standard output by default.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(file=out or sys.stdout, highlight=False)
    if results.get("heading"):
        console.print(Text(results["heading"], "dim"), soft_wrap=True)
    console.print(_score_table(results, metric))
    for key, heading in (("classes", "class"), ("types", "type")):
        if results.get(key):
            console.print()
            console.print(_class_table(results[key], heading))
    confusion = results.get("confusion")
    if confusion:
        console.print()
        small = len(confusion["names"]) <= MOST_CLASSES
        console.print(_confusion_table(confusion) if small else _mistake_table(confusion))
    for note in results.get("notes", ()):
        console.print()
        console.print(Text(f"! {note}", "yellow"), soft_wrap=True)


def save_results(results: Results, folder: str | os.PathLike[str], title: str = "") -> list[Path]:
    """Write `results.json`, and with the extra `report` a picture: `confusion.png`, or `regression.png`.

    Args:
        results: Of a task.
        folder: Made if missing.
        title: Of the picture.

    Returns:
        The files written. Without the extra there is no picture and no error.
    """
    folder = Path(folder)
    write_json(folder / "results.json", for_json(results))
    written = [folder / "results.json"]
    try:
        if results.get("confusion"):
            written.append(plot_confusion(**results["confusion"], out=folder / "confusion.png", title=title))
        if results.get("pairs"):
            written.append(plot_regression(results["pairs"], out=folder / "regression.png", title=title))
    except MissingExtraError:
        pass
    return written


def for_json(value: Any) -> Any:
    """The same value without what JSON lacks: a number that is not finite is None."""
    if isinstance(value, Mapping):
        return {name: for_json(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [for_json(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _score_table(results: Results, metric: str | None) -> "Table":
    intervals = results.get("intervals", {})
    names = [name for name, value in results.items() if isinstance(value, int | float) and not isinstance(value, bool)]
    names.sort(key=lambda name: name != metric)
    table = _table("")
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("95 % interval", style="dim", no_wrap=True)
    for name in names:
        interval = " to ".join(map(_number, intervals[name])) if name in intervals else ""
        table.add_row(name.replace("_", " "), _number(results[name]), interval, style="bold" if name == metric else "")
    return table


def _class_table(rows: list[dict[str, Any]], heading: str) -> "Table":
    table = _table(heading)
    for heading in ("precision", "recall", "f1", "examples"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        scores = [_number(row[name]) for name in ("precision", "recall", "f1")]
        table.add_row(row["name"], *scores, f"{row['support']:,}")
    return table


def _confusion_table(confusion: dict[str, Any]) -> "Table":
    """Labels down, predictions across; what is right is bold, what never happens a dot. Long names go by numbers."""
    from rich.text import Text

    names = heads = confusion["names"]
    if max(map(len, names)) > NAME_WIDTH:
        heads = [str(number) for number in range(1, len(names) + 1)]
        names = [f"{number:>2} {name}" for number, name in enumerate(names, 1)]
    table = _table("label ↓  predicted →")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for row, (name, counts) in enumerate(zip(names, confusion["counts"], strict=True)):
        cells = [
            Text(f"{count:,}" if count else "·", "bold green" if column == row else "" if count else "dim")
            for column, count in enumerate(counts)
        ]
        table.add_row(name, *cells)
    return table


def _mistake_table(confusion: dict[str, Any]) -> "Table":
    names = confusion["names"]
    mistakes = [
        (count, names[row], names[column])
        for row, counts in enumerate(confusion["counts"])
        for column, count in enumerate(counts)
        if count and row != column
    ]
    table = _table("most frequent mistakes")
    table.add_column("predicted as")
    table.add_column("times", justify="right")
    for count, label, prediction in sorted(mistakes, key=lambda mistake: -mistake[0])[:MOST_MISTAKES]:
        table.add_row(label, prediction, f"{count:,}")
    return table


def _table(heading: str) -> "Table":
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(heading, overflow="ellipsis", no_wrap=True)
    return table


def _number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4f}" if math.isfinite(value) else "undefined"
