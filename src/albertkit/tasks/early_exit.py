"""Early exits of a classifier: a head after every layer, learned with the model; when to believe it, and what it gains.

L layers, N sequences, C classes, H hidden. Sources: Zhou et al. 2020, PABEE, section 3 (patience,
the weighted loss); Xin et al. 2020, DeeBERT, section 3 (entropy).
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from albertkit.batches.features import LabelledBatch
from albertkit.batches.packed import PackedBatch
from albertkit.command import takes
from albertkit.engines import load_engine, model_on_engine
from albertkit.engines.early_exit import Exits, exit_early, pooler_output
from albertkit.engines.engine import Engine
from albertkit.errors import CheckpointError, ConfigError
from albertkit.model import AlbertForSequenceClassification
from albertkit.model.files import load_matching_tensors, read_tensor_file, write_tensors
from albertkit.model.padded import Trace
from albertkit.output.sections import Result, Section, TableSection
from albertkit.tables.bad_rows import BadRows
from albertkit.tables.records import as_files
from albertkit.tasks.data import find_split_file, read_split
from albertkit.tasks.distillation import copy_with_packed_logits
from albertkit.tasks.models import load_task_model, run_batches, task_folder
from albertkit.tasks.options import EarlyExitOptions
from albertkit.tasks.task import Task
from albertkit.training.loop import LossPart

EXITS = "exits.safetensors"  # beside the weights
_ALL = "all layers"


def has_exits(folder: str | Path) -> bool:
    """Return whether a model was trained for early exit."""
    return (Path(folder) / EXITS).exists()


class ExitHeads(nn.Module):
    """Apply a linear layer after each layer but the last, to the pooler's output there; the last has the model's own head."""

    def __init__(self, num_layers: int, hidden_size: int, num_labels: int) -> None:
        super().__init__()
        # The deviation of ALBERT's other weights
        self.weight = nn.Parameter(torch.randn(num_layers - 1, num_labels, hidden_size) * 0.02)
        self.bias = nn.Parameter(torch.zeros(num_layers - 1, num_labels))

    def forward(self, pooled: Tensor, layers: Tensor) -> Tensor:
        """Return logits [N, C] of pooled states [N, H] after 1 to L-1 layers each, int64 [N]."""
        heads = layers - 1
        return (self.weight[heads] @ pooled[:, :, None].float()).squeeze(2) + self.bias[heads]

    def save(self, folder: Path) -> None:
        """Write them beside the weights."""
        tensors = {
            name: tensor.detach().cpu().contiguous() for name, tensor in self.named_parameters()
        }
        write_tensors(folder / EXITS, tensors)

    @classmethod
    def load(cls, folder: Path, model: AlbertForSequenceClassification) -> "ExitHeads":
        """Load those beside the weights of a model."""
        if not has_exits(folder):
            raise CheckpointError(
                "wrong-model",
                f"the model in `{folder}` was trained without exits",
                "fine-tune it with --exits",
            )
        heads = cls(
            check_exits_and_count_layers(model), model.config.hidden_size, model.config.num_labels
        )
        tensors = read_tensor_file(folder / EXITS)
        heads.load_state_dict(
            load_matching_tensors(heads, {}, tensors, (), str(folder / EXITS)).tensors
        )
        return heads.eval()


def check_exits_and_count_layers(model: AlbertForSequenceClassification) -> int:
    """Return the number of layers; a model of several groups has no early exits."""
    config = model.config
    if config.num_hidden_groups * config.inner_group_num != 1 or config.num_hidden_layers < 2:
        raise ConfigError(
            "bad-value",
            f"{config.num_hidden_layers} layers of {config.num_hidden_groups} groups of {config.inner_group_num} "
            "have no early exits",
            "they are for one layer run at least twice",
        )
    return config.num_hidden_layers


class ExitLosses(nn.Module):
    """The loss of a classifier with exits: the mean over the layers, the j-th weighing j.

    As the loop's model this module has the model's parameters and the exits'.
    """

    def __init__(self, model: Any, task: Task, class_weights: Tensor | None = None) -> None:
        super().__init__()
        if task.kind != "classification":
            raise ConfigError(
                "bad-value",
                f"a {task.kind} has no early exits",
                "they are for one class a text",
            )
        self.model = model
        self.task = task
        self.class_weights = class_weights
        self.exits = ExitHeads(
            check_exits_and_count_layers(model), model.config.hidden_size, model.config.num_labels
        ).to(model.device)

    def count_targets(self, batch: LabelledBatch) -> dict[str, int]:
        """Count the targets of the task's loss."""
        return self.task.count_targets(batch)

    def losses(self, batch: LabelledBatch) -> dict[str, LossPart]:
        """Return the weighted loss of a batch; `correct` counts the last layer's."""
        counts = self.count_targets(batch)
        trace = Trace(True, False)
        last = self.model.packed_logits(batch.packed, trace)
        states = trace.hidden_states
        assert states is not None
        total = len(states) * (len(states) - 1) / 2
        sums: dict[str, Tensor] = {}
        for number, hidden in enumerate(states[1:], start=1):
            if number == len(states) - 1:
                logits = last
            else:
                pooled = pooler_output(self.model.albert, hidden[batch.packed.starts])
                layers = torch.full((len(pooled),), number, device=pooled.device)
                logits = self.exits(self.model.dropout(pooled), layers)
            layer_losses = self.task.losses(
                copy_with_packed_logits(self.model, logits), batch, self.class_weights
            )
            for name, loss in layer_losses.items():
                # As in PABEE: later layers, which more texts reach, weigh more.
                sums[name] = sums.get(name, 0) + loss.loss_sum * (number / total)
        return {
            name: LossPart(sums[name], counts[name], loss.correct)
            for name, loss in layer_losses.items()
        }


@dataclass(frozen=True)
class ExitRule:
    """When to leave."""

    # patience: after `threshold` layers in a row that said the same as the one before; entropy: as
    # soon as the entropy of the probabilities, in shares of its maximum, is below `threshold`
    by: Literal["patience", "entropy"]
    threshold: float  # layers, or a share

    @classmethod
    def parse(cls, text: str) -> "ExitRule":
        """Read `patience:3` or `entropy:0.2`."""
        by, _, number = str(text).partition(":")
        try:
            threshold = float(number)
        except ValueError:
            threshold = -1.0
        if by == "patience" and threshold >= 1 and threshold == int(threshold):
            return cls("patience", threshold)
        if by == "entropy" and 0 < threshold < 1:
            return cls("entropy", threshold)
        raise ConfigError(
            "bad-value",
            f"`{text}` is not a rule for early exit",
            "for example patience:3 or entropy:0.2",
        )

    def __str__(self) -> str:
        return f"{self.by}:{self.threshold:g}"


def engine_exits(model: AlbertForSequenceClassification, heads: ExitHeads, rule: ExitRule) -> Exits:
    """Return the classifiers after every layer, the last the model's own, and the rule, as an engine takes them."""
    last = model.classifier
    weight, bias = (
        torch.cat([inner.detach().float().cpu(), outer.detach().float().cpu()[None]]).numpy()
        for inner, outer in ((heads.weight, last.weight), (heads.bias, last.bias))
    )
    if rule.by == "patience":
        return Exits(weight, bias, int(rule.threshold), 0.0)
    return Exits(weight, bias, 0, rule.threshold)


def with_early_exit(
    model: AlbertForSequenceClassification, engine: Engine, folder: Path, rule: ExitRule
) -> AlbertForSequenceClassification:
    """Return the same classifier, whose `packed_logits` runs as few layers as a rule asks for.

    Args:
        model: In evaluation mode; it is left as it is.
        engine: Of its encoder.
        folder: Of the model, with its exits.
        rule: When to leave.

    Raises:
        CheckpointError: wrong-model for a model that was trained without exits; what reading them
            raises.
    """
    exits = engine_exits(model, ExitHeads.load(folder, model), rule)

    def packed_logits(batch: PackedBatch, trace: Trace | None = None) -> Tensor:
        # One call: to stay to the end costs at most 2 %; a pool of 4,096 tokens between Python and
        # single layers cost 33 to 47.
        return (
            exit_early(engine, batch, exits).logits
            if trace is None
            else model.packed_logits(batch, trace)
        )

    # It shares all modules: the method alone is another.
    leaving = copy.copy(model)
    leaving.packed_logits = packed_logits  # type: ignore[method-assign]
    return leaving


def missing_exits_notes(folder: str | Path, rule: str | None) -> list[str]:
    """Say that a model runs all layers in spite of a rule."""
    return (
        [] if rule is None or has_exits(folder) else ["trained without exits: all layers are run"]
    )


def check_exits(folders: Iterable[str], rule: str) -> None:
    """Refuse a rule that none of some models can follow."""
    ExitRule.parse(rule)
    if not any(map(has_exits, folders)):
        raise CheckpointError(
            "wrong-model",
            f"{', '.join(f'`{folder}`' for folder in folders)}: trained without exits",
            "leave out --exits, or train with them: albertkit finetune … --exits",
        )


def default_exit_rules(num_layers: int) -> Sequence[ExitRule]:
    """Return rules worth trying on a model of L layers."""
    # With six layers only patience:1 pays. Entropy pays where the model is sure (SST-2), never on
    # MRPC.
    patience = [ExitRule("patience", float(n)) for n in range(1, num_layers - 1)]
    return [
        *patience,
        *(ExitRule("entropy", share) for share in (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7)),
    ]


# --- measured -------------------------------------------------------------------------------------


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
        best = next(
            (number for number, point in enumerate(self.points) if point.rule == self.best), None
        )
        if best is None:
            note = f"every rule loses more than {self.allowed:g}"
        elif self.points[best].speed <= 1:
            note = f"no rule that loses at most {self.allowed:g} is faster than all layers: leave early exit off"
        else:
            note = f"fastest that loses at most {self.allowed:g}: {self.best}"
        columns = (
            "exit at",
            self.metric,
            "change",
            "layers",
            "speed",
            "exited after layer 1, 2, …",
        )
        title = f"{self.task}, {self.examples:,} examples, {self.precision}"
        return [TableSection(columns, rows, title, note, best)]


@takes(EarlyExitOptions)
def exit_curve(options: EarlyExitOptions) -> ExitCurve:
    """Measure accuracy and speed of early exit; see `EarlyExitOptions`.

    Raises:
        ConfigError: bad-value. CheckpointError: wrong-model. DataError: what reading raises.
    """
    rules = [ExitRule.parse(text) for text in map(str, options.rule)]
    task, loaded, tokenizer = load_task_model(options.model)
    with as_files(options.data) as files:
        examples = read_split(task, *find_split_file(task, files, options.split), BadRows())
    heads = ExitHeads.load(task_folder(options.model), loaded)  # type: ignore[arg-type]
    features = task.features(examples, tokenizer, labelled=False)
    engine = load_engine(loaded, options.precision)
    full = model_on_engine(loaded, engine)
    num_hidden_layers = loaded.config.num_hidden_layers

    def all_layers(batch: LabelledBatch) -> list[Any]:
        return [(logits, num_hidden_layers) for logits in task.outputs(full, batch)]

    def leave_by(exits: Exits, batch: LabelledBatch) -> list[Any]:
        exited = exit_early(engine, batch.packed, exits)
        return list(zip(exited.logits.numpy(), exited.layers.tolist(), strict=True))

    runs: dict[str, Callable[[Any], list[Any]]] = {_ALL: all_layers}
    for rule in rules or default_exit_rules(num_hidden_layers):
        runs[str(rule)] = partial(leave_by, engine_exits(loaded, heads, rule))  # type: ignore[arg-type]
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
        ratios = [
            full_seconds / rule_seconds
            for full_seconds, rule_seconds in zip(seconds[_ALL], seconds[name], strict=True)
        ]
        counts = np.bincount(np.array(layers), minlength=num_hidden_layers + 1)[1:]
        return ExitPoint(name, value, float(np.mean(layers)), median(ratios), counts.tolist())

    points = [point(name) for name in runs]
    good = [p for p in points[1:] if p.value >= points[0].value - options.allowed]
    best = max(good, key=lambda point: point.speed, default=None)
    rule_name = best.rule if best else None
    return ExitCurve(
        task.name,
        task.metric,
        len(examples),
        engine.precision,
        points,
        rule_name,
        options.allowed,
    )
