"""Read what a run wrote about itself: `metrics.jsonl`, one JSON object a line."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any

from albertkit.errors import ConfigError, DataError, near_path
from albertkit.frame.values import count_text, duration_text

METRICS_FILE = "metrics.jsonl"
Z_95 = NormalDist().inv_cdf(0.975)


@dataclass
class RunMetrics:
    """The history of a run, as it stands after every resume.

    Attributes:
        steps: Training records in order of step, one a step.
        evaluations: Evaluation records in order of step, one a step.
        unreadable_lines: Lines that a killed process left incomplete; they are skipped.
        superseded: Training records that a resumed run took over.
    """

    steps: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    unreadable_lines: int = 0
    superseded: int = 0

    @classmethod
    def from_records(cls, records: Iterable[dict[str, Any]]) -> "RunMetrics":
        """Order records as written: where steps repeat, the later record wins."""
        metrics = cls()
        for record in records:
            metrics.add(record)
        metrics.evaluations.sort(key=lambda record: record["step"])
        return metrics

    def add(self, record: Any) -> None:
        """Take one record; records of other events are ignored, what is no record is counted.

        A training step that is not after the last one means that the run was resumed from a checkpoint before it: every
        later record belongs to work that was thrown away, even if the resumed run never got as far.
        """
        step = record.get("step") if isinstance(record, dict) else None
        event = record.get("event") if isinstance(record, dict) else None
        if event not in (None, "step", "eval"):
            return
        if event is None or not isinstance(step, int):
            self.unreadable_lines += 1
        elif event == "step":
            if self.steps and self.steps[-1]["step"] >= step:
                while self.steps and self.steps[-1]["step"] >= step:
                    self.steps.pop()
                    self.superseded += 1
                self.evaluations = [other for other in self.evaluations if other["step"] <= step]
            self.steps.append(record)
        else:
            self.evaluations = [other for other in self.evaluations if other["step"] != step]
            self.evaluations.append(record)

    @property
    def last_step(self) -> int:
        """The last step that anything was recorded for; 0 if nothing was."""
        return max((record["step"] for record in (*self.steps[-1:], *self.evaluations[-1:])), default=0)

    @property
    def extent(self) -> str:
        """Extent of the training so far: steps, tokens, time; as far as they were recorded."""
        step = self.last_step
        parts = ["1 step" if step == 1 else f"{step:,} steps"]
        last = self.steps[-1] if self.steps else {}
        if math.isfinite(tokens := number_or_nan(last.get("tokens"))):
            parts.append(f"{count_text(tokens)} tokens")
        if math.isfinite(seconds := number_or_nan(last.get("seconds"))):
            parts.append(duration_text(seconds))
        return " · ".join(parts)

    def series(self, event: str, *names: str) -> tuple[list[int], list[float]]:
        """Return steps and values of a quantity of the event "step" or "eval", NaN where it is not a number.

        The first of the names that a record has is taken.
        """
        steps, values = [], []
        for record in self.steps if event == "step" else self.evaluations:
            name = next((name for name in names if name in record), None)
            if name is not None:
                steps.append(record["step"])
                values.append(number_or_nan(record[name]))
        return steps, values


def number_or_nan(value: Any) -> float:
    """Return a finite number as a float, anything else (None, a text, an infinity) as NaN."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return math.nan
    return float(value)


def read_metrics(path: str | Path) -> RunMetrics:
    """Read the metrics of a run from its folder, or its `metrics.jsonl`; incomplete lines of a killed process are counted."""
    file = Path(path)
    if file.is_dir():
        file = file / METRICS_FILE
    if not file.is_file():
        hint = near_path(path, "name the folder that `albertkit pretrain --out` made")
        raise DataError("not-found", f"no metrics at `{file}`", hint)
    torn = 0
    records = []
    with open(file, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not line.strip():
                continue
            try:
                records.append(json.loads(line))
            except (ValueError, RecursionError):
                torn += 1
                records += _record_behind(line)
    metrics = RunMetrics.from_records(records)
    metrics.unreadable_lines += torn
    if metrics.unreadable_lines and not metrics.steps and not metrics.evaluations:
        raise DataError(
            "bad-file",
            f"none of the {metrics.unreadable_lines:,} lines of `{file}` is a metrics record",
            "name the `metrics.jsonl` of a run",
        )
    return metrics


def _record_behind(line: str) -> list[Any]:
    """Return the whole record, if there is one, that a resumed process appended to the torn line of a killed one."""
    start = line.rfind('{"event"')
    try:
        return [json.loads(line[start:])] if start > 0 else []
    except (ValueError, RecursionError):
        return []


def wilson_interval(correct: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval for a share of right answers (Wilson, 1927, without continuity correction); (0, 1) of none.

    Unlike the textbook p ± 1.96·s.e. it stays inside [0, 1] and is not empty at 0 or `total` right answers.
    """
    if not 0 <= correct <= total:
        raise ConfigError(
            "bad-value", f"{correct} right answers of {total} is impossible", "count both on the same data"
        )
    if total == 0:
        return 0.0, 1.0
    share, shrink = correct / total, Z_95**2 / total
    centre = (share + shrink / 2) / (1 + shrink)
    half = Z_95 / (1 + shrink) * math.sqrt(share * (1 - share) / total + shrink / (4 * total))
    # At the ends the formula gives exactly 0 or 1, but rounding leaves 1e-17.
    return (0.0 if correct == 0 else centre - half), (1.0 if correct == total else centre + half)
