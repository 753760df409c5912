"""What early exit costs and what it saves: every rule on labelled examples, beside all passes, in one run."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from albertkit.engines import load_engine, on_engine
from albertkit.engines.engine import Precision
from albertkit.errors import ConfigError
from albertkit.tasks.data import file_of, read_split
from albertkit.tasks.exits import EarlyExit, ExitHeads, ExitRule, default_rules
from albertkit.tasks.faults import Faults
from albertkit.tasks.features import Features, LabelledBatch
from albertkit.tasks.given_data import Data, as_files
from albertkit.tasks.loading import load_task_model, task_folder
from albertkit.tasks.prediction import run_batches
from albertkit.tasks.task import Task


@dataclass(frozen=True)
class ExitPoint:
    """A rule, or all passes.

    Attributes:
        rule: As `ExitRule.parse` reads it; "all passes" for none.
        value: The task's metric.
        passes: Mean passes of a text.
        speed: Examples a second, beside all passes: median of the ratios within rounds.
        histogram: Texts that left after each pass, [L].
    """

    rule: str
    value: float
    passes: float
    speed: float
    histogram: list[int]


@dataclass(frozen=True)
class ExitCurve:
    """All rules on one file.

    Attributes:
        task: Its name.
        metric: What `value` is.
        examples: Texts.
        precision: Computed in.
        points: All passes first.
        best: The fastest rule that loses at most `allowed`; None if there is none.
        allowed: In the metric's unit.
    """

    task: str
    metric: str
    examples: int
    precision: str
    points: list[ExitPoint]
    best: str | None
    allowed: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def exit_curve(
    model: str | Path,
    data: Data,
    *,
    split: str = "dev",
    rules: Sequence[ExitRule] | None = None,
    precision: Precision = "auto",
    batch_tokens: int = 8192,
    rounds: int = 3,
    allowed: float = 0.005,
) -> ExitCurve:
    """Measure accuracy and speed of early exit.

    Args:
        model: A folder that `finetune --exits` made.
        data: Labelled examples: a file, or a folder in the task's layout.
        split: Which file of a folder.
        rules: To try. Default: every patience, and entropies from 0.01 to 0.7.
        precision: As `load_engine`.
        batch_tokens: Most tokens handed over at once.
        rounds: Timed rounds, at least 1; each runs everybody once.
        allowed: Most loss of the metric for `best`: 0.005 is half a point.

    Raises:
        ConfigError: bad-value for fewer than one round. CheckpointError: no-task, no-exits. DataError: what reading raises.
    """
    if rounds < 1:
        raise ConfigError("bad-value", f"rounds is {rounds}, it must be at least 1", "leave it out for 3")
    task, loaded, tokenizer = load_task_model(model)
    with as_files(data) as given:
        examples = read_split(task, *file_of(task, given, split), Faults())
    exits = ExitHeads.load(task_folder(model), loaded)  # type: ignore[arg-type]
    features = task.features(examples, tokenizer, labelled=False)
    engine = load_engine(loaded, precision)
    full = on_engine(loaded, engine)
    whole = loaded.config.num_hidden_layers

    def all_passes(batch: LabelledBatch) -> list[Any]:
        return [(logits, whole) for logits in task.outputs(full, batch)]

    runs: dict[str, Callable[[Any], list[Any]]] = {"all passes": all_passes}
    for rule in rules or default_rules(whole):
        early = EarlyExit(loaded, exits, engine, rule)  # type: ignore[arg-type]
        runs[str(rule)] = partial(_run_early, early)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    outputs: dict[str, list[Any]] = {}
    for number in range(rounds + 1):  # round 0 warms up
        for name, run in runs.items():
            start = perf_counter()
            outputs[name] = run_batches(run, features, batch_tokens, loaded.device)
            if number:
                seconds[name].append(perf_counter() - start)
    points = [_point(name, task, examples, features, outputs[name], seconds, whole) for name in runs]
    good = [p for p in points[1:] if p.value >= points[0].value - allowed]
    best = max(good, key=lambda point: point.speed, default=None)
    return ExitCurve(
        task.name, task.metric, len(examples), engine.precision, points, best.rule if best else None, allowed
    )


def _run_early(early: EarlyExit, batch: LabelledBatch) -> list[Any]:
    logits, passes = early.logits(batch)
    return list(zip(logits.numpy(), passes.tolist(), strict=True))


def _point(
    name: str, task: Task, examples: Sequence[Any], features: Features, outputs: list[Any],
    seconds: dict[str, list[float]], whole: int,
) -> ExitPoint:  # fmt: skip
    logits, passes = zip(*outputs, strict=True)
    value = task.score(examples, task.predictions(examples, features, logits))[task.metric]
    ratios = [full / own for full, own in zip(seconds["all passes"], seconds[name], strict=True)]
    counts = np.bincount(np.array(passes), minlength=whole + 1)[1:]
    return ExitPoint(name, value, float(np.mean(passes)), median(ratios), counts.tolist())
