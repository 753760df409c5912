"""The results of a task as a page shows them: texts and shares, made from whatever `results.json` holds."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from albertkit.errors import MissingExtraError
from albertkit.report.curves import scatter_svg
from albertkit.report.run_folder import numbers

MOST_CLASSES = 15  # a wider matrix cannot be read; the most frequent mistakes are listed instead
MOST_MISTAKES = 10
# Beside the scores; None is no text.
_NO_SCORES = {"value", "steps", "seconds_of_updates", "collapsed", "model", "examples", "best_step"}


@dataclass
class TaskScores:
    """Scores of a task.

    Attributes:
        rows: Of each score its name, text and 95 % interval as text; the one that chose the model first.
        seeds: Of each seed its name and value, as text.
        classes: Rows of name, precision, recall, f1 and support, as text.
        confusion: Names, and rows of (text, share of the label's examples); or None.
        mistakes: Label, prediction and how often, where there are too many classes for a matrix.
        scatter: Pictures of predictions over labels, wide and narrow; or empty.
        notes: Lines for a person.
    """

    rows: list[tuple[str, str, str]] = field(default_factory=list)
    seeds: list[tuple[str, str]] = field(default_factory=list)
    classes: list[dict[str, str]] = field(default_factory=list)
    confusion: dict[str, Any] | None = None
    mistakes: list[tuple[str, str, str]] = field(default_factory=list)
    scatter: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def intervals(self) -> bool:
        """Whether any score has one."""
        return any(interval for _, _, interval in self.rows)

    @property
    def headline(self) -> list[tuple[str, str, str]]:
        """The score that chose the model, and two more, of those with an interval if there are such."""
        others = [row for row in self.rows[1:] if row[2] or not self.intervals]
        return [*self.rows[:1], *others[:2]]


def task_scores(results: Mapping[str, Any], seeds: Mapping[str, float | None]) -> TaskScores:
    """What there is in the results of a task; what has an unknown shape is left out.

    Args:
        results: Of `results.json`.
        seeds: Name of each seed to its value.
    """
    scores = TaskScores(rows=_rows(results))
    scores.seeds = [(name, "unfinished" if value is None else number(value)) for name, value in seeds.items()]
    for key in ("classes", "types"):
        scores.classes += [_class(row) for row in _dicts(results.get(key))]
    _add_confusion(scores, results.get("confusion"))
    scores.scatter = _scatter(results.get("pairs"))
    if results.get("collapsed"):
        scores.notes.append(f"Nothing learned: {results['collapsed']}")
    scores.notes += [f"Nothing learned: {line}" for line in _texts(results.get("constant"))]
    scores.notes += [f"Begun again: {line}" for line in _texts(results.get("retries"))]
    return scores


def number(value: float, whole: bool = False) -> str:
    """Four decimals, two of what is out of a hundred; counts whole."""
    if math.isnan(value):
        return "undefined"
    return f"{value:,.0f}" if whole else f"{value:.{2 if abs(value) >= 10 else 4}f}"


def _rows(results: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The metric that chose the model first; names that differ in case alone are one score, written twice."""
    metric = results.get("metric")
    intervals = results.get("intervals")
    found = {name: value for name, value in numbers(dict(results)).items() if name not in _NO_SCORES}
    found = {name: value for name, value in found.items() if name == name.lower() or name.lower() not in found}
    names = sorted(found, key=lambda name: name != metric)
    return [
        (name.replace("_", " "), number(found[name], type(results[name]) is int), _interval(intervals, name))
        for name in names
    ]


def _interval(intervals: Any, name: str) -> str:
    pair = intervals.get(name) if isinstance(intervals, Mapping) else None
    if not (isinstance(pair, list) and len(pair) == 2):
        return ""
    low, high = (numbers({"end": end}).get("end", math.nan) for end in pair)
    return "" if math.isnan(low + high) else f"{number(low)} to {number(high)}"


def _class(row: Mapping[str, Any]) -> dict[str, str]:
    known = numbers(dict(row))
    shown = {name: number(known[name]) if name in known else "" for name in ("precision", "recall", "f1")}
    support = known.get("support", math.nan)
    return {"name": str(row.get("name", "")), **shown, "support": "" if math.isnan(support) else f"{support:,.0f}"}


def _add_confusion(scores: TaskScores, confusion: Any) -> None:
    names = _texts(confusion.get("names")) if isinstance(confusion, Mapping) else []
    counts: Any = confusion.get("counts") if names else None
    if not _is_table(counts, len(names)):
        return
    if len(names) > MOST_CLASSES:
        wrong = [
            (count, names[row], names[column])
            for row, line in enumerate(counts)
            for column, count in enumerate(line)
            if count and row != column
        ]
        wrong.sort(key=lambda mistake: -mistake[0])
        scores.mistakes = [(label, said, f"{count:,}") for count, label, said in wrong[:MOST_MISTAKES]]
        return
    rows = [[(f"{count:,}", f"{count / max(sum(line), 1):.3f}") for count in line] for line in counts]
    scores.confusion = {"names": names, "rows": list(zip(names, rows, strict=True))}


def _is_table(counts: Any, size: int) -> bool:
    """Whether these are `size` rows of as many counts."""
    return (
        isinstance(counts, list)
        and len(counts) == size
        and all(isinstance(line, list) and len(line) == size for line in counts)
        and all(type(count) is int and 0 <= count < 10**15 for line in counts for count in line)
    )


def _scatter(pairs: Any) -> list[str]:
    """Both pictures; none without matplotlib, which the curve above has said."""
    if not isinstance(pairs, list):
        return []
    known = [
        [numbers({"n": value}).get("n", math.nan) for value in pair]
        for pair in pairs
        if isinstance(pair, list) and len(pair) == 2
    ]
    finite = [pair for pair in known if abs(sum(pair)) < 1e12]
    if not finite:
        return []
    try:
        return [scatter_svg(finite), scatter_svg(finite, narrow=True)]
    except MissingExtraError:
        return []


def _dicts(rows: Any) -> list[Mapping[str, Any]]:
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _texts(lines: Any) -> list[str]:
    return [str(line) for line in lines] if isinstance(lines, list) else []
