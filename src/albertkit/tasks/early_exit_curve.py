"""Measure early exit: every rule on labelled examples, compared with all layers, in one run."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from albertkit.data.bad_rows import BadRows
from albertkit.data.features import LabelledBatch
from albertkit.data.given import as_files
from albertkit.engines import load_engine, on_engine
from albertkit.errors import ConfigError
from albertkit.frame.command import takes
from albertkit.frame.result import Result
from albertkit.frame.section import Section, Table
from albertkit.tasks.data import file_of, read_split
from albertkit.tasks.early_exit import EarlyExit, ExitHeads, ExitRule, default_rules
from albertkit.tasks.loading import load_task_model, task_folder
from albertkit.tasks.options import EarlyExitOptions
from albertkit.tasks.prediction import run_batches

_ALL = "all layers"


@dataclass(frozen=True)
class ExitPoint:
    """A rule, or all layers.

    Attributes:
        rule: As `ExitRule.parse` reads it; "all layers" for none.
        value: The task's metric.
        layers: Mean layers of a text.
        speed: Examples a second, compared with all layers: median of the ratios within rounds.
        histogram: Texts that exited after each layer, [L].
    """

    rule: str
    value: float
    layers: float
    speed: float
    histogram: list[int]


@dataclass(frozen=True)
class ExitCurve(Result):
    """All rules on one file.

    Attributes:
        task: Its name.
        metric: Name of `value`.
        examples: Texts.
        precision: Computed in.
        points: All layers first.
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

    def sections(self) -> list[Section]:
        """Return a table of the rules and which of them is recommended."""
        full = self.points[0].value
        rows = [
            (
                point.rule,
                f"{point.value:.4f}",
                f"{point.value - full:+.4f}",
                f"{point.layers:.2f}",
                f"{point.speed:.2f}x",
                " ".join(map(str, point.histogram)),
            )
            for point in self.points
        ]
        best = next((number for number, point in enumerate(self.points) if point.rule == self.best), None)
        if best is None:
            note = f"every rule loses more than {self.allowed:g}"
        elif self.points[best].speed <= 1:
            note = f"no rule that loses at most {self.allowed:g} is faster than all layers: leave early exit off"
        else:
            note = f"fastest that loses at most {self.allowed:g}: {self.best}"
        columns = ("exit at", self.metric, "change", "layers", "speed", "exited after layer 1, 2, …")
        title = f"{self.task}, {self.examples:,} examples, {self.precision}"
        return [Table(columns, rows, title, note, best)]


@takes(EarlyExitOptions)
def exit_curve(options: EarlyExitOptions) -> ExitCurve:
    """Measure accuracy and speed of early exit; see `EarlyExitOptions`.

    Raises:
        ConfigError: bad-value for fewer than one round. CheckpointError: wrong-model. DataError: what reading raises.
    """
    if options.rounds < 1:
        raise ConfigError("bad-value", f"rounds is {options.rounds}, it must be at least 1", "leave it out for 3")
    rules = [ExitRule.parse(text) for text in map(str, options.rule)]
    task, loaded, tokenizer = load_task_model(options.model)
    with as_files(options.data) as given:
        examples = read_split(task, *file_of(task, given, options.split), BadRows())
    exits = ExitHeads.load(task_folder(options.model), loaded)  # type: ignore[arg-type]
    features = task.features(examples, tokenizer, labelled=False)
    engine = load_engine(loaded, options.precision)
    full = on_engine(loaded, engine)
    whole = loaded.config.num_hidden_layers

    def all_layers(batch: LabelledBatch) -> list[Any]:
        return [(logits, whole) for logits in task.outputs(full, batch)]

    runs: dict[str, Callable[[Any], list[Any]]] = {_ALL: all_layers}
    for rule in rules or default_rules(whole):
        early = EarlyExit(loaded, exits, engine, rule)  # type: ignore[arg-type]
        runs[str(rule)] = partial(_run_early, early)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    outputs: dict[str, list[Any]] = {}
    for number in range(options.rounds + 1):  # round 0 warms up
        for name, run in runs.items():
            start = perf_counter()
            outputs[name] = run_batches(run, features, options.batch_tokens, loaded.device)
            if number:
                seconds[name].append(perf_counter() - start)

    def point(name: str) -> ExitPoint:
        logits, layers = zip(*outputs[name], strict=True)
        value = task.score(examples, task.predictions(examples, features, logits))[task.metric]
        ratios = [all_of / own for all_of, own in zip(seconds[_ALL], seconds[name], strict=True)]
        counts = np.bincount(np.array(layers), minlength=whole + 1)[1:]
        return ExitPoint(name, value, float(np.mean(layers)), median(ratios), counts.tolist())

    points = [point(name) for name in runs]
    good = [p for p in points[1:] if p.value >= points[0].value - options.allowed]
    best = max(good, key=lambda point: point.speed, default=None)
    rule_name = best.rule if best else None
    return ExitCurve(task.name, task.metric, len(examples), engine.precision, points, rule_name, options.allowed)


def _run_early(early: EarlyExit, batch: LabelledBatch) -> list[Any]:
    logits, layers = early.logits(batch)
    return list(zip(logits.numpy(), layers.tolist(), strict=True))
