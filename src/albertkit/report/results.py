"""The four numbers of ALBERT's pretraining, beside what a model without any learning would score."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from albertkit.errors import ConfigError
from albertkit.report.metrics import RunMetrics, number_or_nan

Z_95 = NormalDist().inv_cdf(0.975)


def wilson_interval(correct: int, total: int) -> tuple[float, float]:
    """The 95 % interval for a share (Wilson, 1927, without continuity correction).

    Unlike the textbook p ± 1.96·s.e. it stays inside [0, 1] and is not empty at 0 or `total` right answers.

    Args:
        correct: Right answers.
        total: Answers; (0, 1) comes back where there are none.

    Raises:
        ConfigError: bad-counts unless 0 <= correct <= total.
    """
    if not 0 <= correct <= total:
        raise ConfigError(
            "bad-counts", f"{correct} right answers of {total} is impossible", "count both on the same data"
        )
    if total == 0:
        return 0.0, 1.0
    share, shrink = correct / total, Z_95**2 / total
    centre = (share + shrink / 2) / (1 + shrink)
    half = Z_95 / (1 + shrink) * math.sqrt(share * (1 - share) / total + shrink / (4 * total))
    # At the ends the formula gives exactly 0 or 1, but rounding leaves 1e-17.
    return (0.0 if correct == 0 else centre - half), (1.0 if correct == total else centre + half)


@dataclass(frozen=True)
class Measure:
    """One of the four numbers, as text ready to be shown and as a number.

    Attributes:
        key: The name in `metrics.jsonl`.
        name: For people.
        number: Nats, or a share.
        baseline: The same for a model without learning; NaN where none is known.
        baseline_name: Which one that is.
        interval: 95 % interval of a share; None for losses and where the number of predictions is not known.
    """

    key: str
    name: str
    number: float
    baseline: float
    baseline_name: str
    interval: tuple[float, float] | None = None

    @property
    def value_text(self) -> str:
        """The number: nats with three decimals, a share in per cent with one."""
        return self._text(self.number)

    @property
    def baseline_text(self) -> str:
        """The baseline, likewise; empty where none is known."""
        return self._text(self.baseline)

    @property
    def interval_text(self) -> str:
        """Low to high; empty without an interval."""
        return f"{percent(self.interval[0])} to {percent(self.interval[1])}" if self.interval else ""

    def _text(self, number: float) -> str:
        return nats(number) if self.key.endswith("_loss") else percent(number)


# (task, name, key and name of the loss's baseline, key and name of the accuracy's baseline)
_TASKS = (
    ("masked_lm", "Masked-LM", "unigram_loss", "unigram", "most_frequent_accuracy", "most frequent piece"),
    ("sentence_order", "Sentence-order", "", "coin toss", "", "coin toss"),
)


def measures(results: Mapping[str, Any], baselines: Mapping[str, Any] | None = None) -> list[Measure]:
    """Rows for the numbers that were measured.

    Args:
        results: `masked_lm_loss` (nats), `masked_lm_accuracy` (share), `sentence_order_loss`,
            `sentence_order_accuracy`; any may be absent. With `masked_lm_count` and `sentence_order_count` (predictions
            made) the accuracies get their 95 % interval; `masked_lm_correct` and `sentence_order_correct` are taken
            where given.
        baselines: `unigram_loss` (nats) and `most_frequent_accuracy` (share), if known. A coin's are known anyway.
    """
    baselines = baselines or {}
    rows = []
    for task, name, loss_key, loss_name, accuracy_key, accuracy_name in _TASKS:
        coin = task == "sentence_order"
        loss, accuracy = (number_or_nan(results.get(f"{task}_{what}")) for what in ("loss", "accuracy"))
        if math.isfinite(loss):
            baseline = math.log(2) if coin else number_or_nan(baselines.get(loss_key))
            rows.append(Measure(f"{task}_loss", f"{name} loss", loss, baseline, loss_name))
        if math.isfinite(accuracy):
            baseline = 0.5 if coin else number_or_nan(baselines.get(accuracy_key))
            interval = _interval(results, task)
            rows.append(Measure(f"{task}_accuracy", f"{name} accuracy", accuracy, baseline, accuracy_name, interval))
    return rows


def _interval(results: Mapping[str, Any], task: str) -> tuple[float, float] | None:
    total = results.get(f"{task}_count")
    if not total:
        return None
    correct = results.get(f"{task}_correct")
    if correct is None:
        correct = round(results[f"{task}_accuracy"] * total)
    return wilson_interval(int(correct), int(total))


def times_more_probable(masked_lm_loss: Any, unigram_loss: Any) -> float | None:
    """How many times more probable the model makes a hidden piece than its bare frequency does (geometric mean).

    Args:
        masked_lm_loss: Nats.
        unigram_loss: Nats, on the same pieces.

    Returns:
        exp(unigram - model); below 1 if the model is worse; None if either is not known.
    """
    gain = number_or_nan(unigram_loss) - number_or_nan(masked_lm_loss)
    return math.exp(min(gain, 700.0)) if math.isfinite(gain) else None


def training_extent(metrics: RunMetrics) -> str:
    """How much training a run has done, as text: steps, tokens, time; as far as they were recorded."""
    step = metrics.last_step
    parts = [f"{step:,} step{'s' * (step != 1)}"]
    last = metrics.steps[-1] if metrics.steps else {}
    if math.isfinite(tokens := number_or_nan(last.get("tokens"))):
        parts.append(f"{count_text(tokens)} tokens")
    if math.isfinite(seconds := number_or_nan(last.get("seconds"))):
        parts.append(duration_text(seconds))
    return " · ".join(parts)


def nats(value: float) -> str:
    """A loss with three decimals; empty for NaN."""
    return f"{value:.3f}" if math.isfinite(value) else ""


def percent(share: float) -> str:
    """A share in per cent with one decimal; empty for NaN."""
    return f"{100 * share:.1f}%" if math.isfinite(share) else ""


def count_text(value: float) -> str:
    """A large count for reading: 813,810 and whatever else is below a million exact, then 11.8 M, 1.2 B."""
    for size, unit in ((1e9, "B"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:,.0f}"


def duration_text(seconds: float) -> str:
    """A time span for reading: 42 s, 4 min 12 s, 3 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def value_text(value: Any) -> str:
    """A setting as text: exact, with yes and no for truth values and a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(value_text(item) for item in value)
    return str(value)


def flatten(values: Mapping[str, Any] | None, prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted names, as TOML would write them."""
    flat: dict[str, Any] = {}
    for key, value in (values or {}).items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
