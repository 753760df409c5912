"""The command `pretrain`: train, or estimate what it would take."""

import dataclasses
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import KW_ONLY, asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from albertkit.command import takes
from albertkit.model import PackedBatch
from albertkit.output.sections import FactList, Result, Section
from albertkit.pretraining.objective import num_layers_at, set_num_layers
from albertkit.pretraining.options import PretrainCommandOptions, PretrainOptions
from albertkit.pretraining.preparation import PreparedRun, prepare_run
from albertkit.pretraining.run import PretrainResult, pretrain
from albertkit.pretraining.settings import PretrainSettings
from albertkit.training.launch import check_whether_to_resume
from albertkit.training.optimizers import clip_gradients, make_optimizer
from albertkit.training.processes import join_world
from albertkit.training.run import Run

TIMED_STEPS = 3
# Seconds that measuring should take; base with 16,384 tokens takes 82 s for one update on two cores
LIMIT = 30.0
_MOMENTS = 1000  # of a run, at which its number of layers is looked up


@dataclass(frozen=True)
class Estimate(Result):
    """Estimate of a run.

    Attributes:
        parameters: Number of parameters, heads included.
        training_state_mb: Weights, gradients, optimizer moments and, if asked for, the moving
            average; MB of 10^6 bytes.
        activations_mb: Tensors kept for the backward pass of one micro-batch, as measured.
        disk_mb: Checkpoints and models of the run, at most.
        steps: Updates.
        tokens_per_step: Real tokens of an update, as measured.
        steps_per_epoch: Updates in a pass over the training documents.
        epochs: Passes in the whole run.
        tokens_used: Share of the training text that is in an example of the first epoch.
        held_out_predictions: Masked tokens that it is evaluated on; None for records.
        seconds_per_step: Median of three timed steps; the mean over the run where the number of
            layers grows.
        tokens_per_second: Real tokens a second.
        hours: The whole run, evaluations and checkpoints left out.
        timed_tokens: Tokens of the updates that were timed: fewer than `tokens_per_step` where an
            update takes long.
    """

    parameters: int
    training_state_mb: float
    activations_mb: float
    disk_mb: float
    steps: int
    tokens_per_step: int
    steps_per_epoch: int
    epochs: float
    tokens_used: float
    held_out_predictions: int | None
    seconds_per_step: float
    tokens_per_second: float
    hours: float
    timed_tokens: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values with three digits."""
        return {
            k: float(f"{v:.3g}") if isinstance(v, float) else v for k, v in asdict(self).items()
        }

    def sections(self) -> list[Section]:
        """Return the same values for the reader."""
        return [FactList(self.to_dict())]


@dataclass(frozen=True)
class EstimateOptions(PretrainOptions):
    """Estimate what a run would take; nothing is written. Options of the run as for `pretrain`.

    Attributes:
        out: Folder that the run is to have, to check that too. Default: not checked.
        note: Called with each line that is known before anything is timed.
        limit: Seconds that measuring should take: where three updates take longer, a part of one is
            timed.
    """

    out: str | Path | None = None  # type: ignore[assignment]
    _: KW_ONLY
    note: Callable[[str], None] = lambda line: None
    limit: float = LIMIT


@dataclass(frozen=True)
class _Timing:
    """Seconds of an update of so many tokens, and the tokens of those that were timed."""

    seconds: float
    tokens: int
    timed: int


@takes(EstimateOptions)
def estimate(options: EstimateOptions) -> Estimate:
    """Prepare a run without writing anything, and measure the time and memory of a few updates."""
    world = join_world(options.settings.device)
    run: Run[PretrainSettings] | None = None
    if options.out is not None:
        folder = Path(options.out)
        run = Run(
            folder, options.settings, "", world, check_whether_to_resume(folder, options.resume)
        )
    prepared = prepare_run(options, world, run)
    settings = prepared.settings
    model = prepared.model
    stream = prepared.stream
    for line in prepared.notes:
        options.note(line)
    options.note(
        f"parameters: {prepared.parameters:,}; weights, gradients and moments: {prepared.memory_bytes / 1e6:,.0f} MB"
    )
    options.note(f"timing updates, for at most about {options.limit:.0f} seconds")

    ends = time.perf_counter() + options.limit
    layers = model.config.num_hidden_layers
    moments_by_layers = Counter(
        num_layers_at(k / _MOMENTS, settings, layers) for k in range(_MOMENTS)
    )
    seconds = tokens = 0.0
    timed_tokens = 0
    for index, (num_layers, moments) in enumerate(moments_by_layers.items()):
        set_num_layers(model, num_layers)
        seconds_left = max(ends - time.perf_counter(), 0.0) / (len(moments_by_layers) - index)
        timing = _time_updates(prepared, lambda: next(stream), 0.75 * seconds_left)
        seconds += timing.seconds * moments / _MOMENTS
        tokens += timing.tokens * moments / _MOMENTS
        timed_tokens = max(timed_tokens, timing.timed)
    set_num_layers(model, None)
    first = next(stream)[0].to(prepared.world.device)
    share = min(1.0, timed_tokens / max(first.num_tokens, 1))
    part = _first_sequences(first, max(1, int(share * first.num_sequences)))
    activations = _activation_bytes(prepared, part) * first.num_tokens / part.num_tokens

    steps = max(1, int(60 * settings.minutes / seconds)) if settings.minutes else settings.steps
    assert steps is not None  # the settings are resolved
    steps_per_epoch = stream.estimate_global_batches()
    return Estimate(
        parameters=prepared.parameters,
        training_state_mb=prepared.memory_bytes / 1e6,
        activations_mb=activations / 1e6,
        disk_mb=prepared.disk_bytes / 1e6,
        steps=steps,
        tokens_per_step=round(tokens),
        steps_per_epoch=steps_per_epoch,
        epochs=steps / steps_per_epoch,
        tokens_used=prepared.source.tokens_used(stream),
        held_out_predictions=prepared.held_out.size[1] or None,
        seconds_per_step=seconds,
        tokens_per_second=tokens / seconds,
        hours=steps * seconds / 3600,
        timed_tokens=timed_tokens,
    )


def _time_updates(
    prepared: PreparedRun,
    draw: Callable[[], list[PackedBatch]],
    limit: float,
) -> _Timing:
    """Time three updates, or as much of one as fits into some seconds: the rest is in proportion to its tokens."""
    micro_batches = draw()
    count = sum(batch.num_tokens for batch in micro_batches)
    part = [_first_sequences(micro_batches[0], 1)]
    _time_one_update(prepared, part)  # warms up
    seconds, tokens = _time_one_update(prepared, part)
    if seconds / tokens * count * (TIMED_STEPS + 1) <= limit:
        timed = [_time_one_update(prepared, draw()) for _ in range(TIMED_STEPS + 1)][1:]
        median_seconds, count = sorted(timed)[TIMED_STEPS // 2]
        return _Timing(median_seconds, count, count)
    fits = int((micro_batches[0].offsets[1:] * seconds / tokens <= limit / 4).sum())
    if fits > 1:
        part = [_first_sequences(micro_batches[0], fits)]
        seconds, tokens = min(_time_one_update(prepared, part) for _ in range(2))
    return _Timing(seconds * count / tokens, count, tokens)


def _first_sequences(batch: PackedBatch, number: int) -> PackedBatch:
    if number >= batch.num_sequences:
        return batch
    end = int(batch.offsets[number])
    masks = int((batch.masked_positions < end).sum()) if batch.masked_positions is not None else 0
    order = batch.sentence_order_labels
    positions = batch.masked_positions
    labels = batch.masked_labels
    return dataclasses.replace(
        batch,
        input_ids=batch.input_ids[:end],
        token_type_ids=batch.token_type_ids[:end],
        position_ids=batch.position_ids[:end],
        offsets=batch.offsets[: number + 1],
        lengths=batch.lengths[:number],
        masked_positions=None if positions is None else positions[:masks],
        masked_labels=None if labels is None else labels[:masks],
        sentence_order_labels=None if order is None else order[:number],
    )


def _activation_bytes(prepared: PreparedRun, batch: PackedBatch) -> int:
    """Count the bytes that autograd keeps between forward and backward, each storage once, parameters left out."""
    model = prepared.trained
    # Of new rows, the frozen ones too
    parameters = [*model.parameters(), *prepared.model.parameters()]
    parameter_storages = {p.untyped_storage().data_ptr() for p in parameters}
    saved_bytes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameter_storages:
            saved_bytes[storage.data_ptr()] = storage.nbytes()
        return tensor

    model.train()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        parts = prepared.objective.losses(batch)
    torch.stack([part.total for part in parts.values()]).sum().backward()
    model.zero_grad(set_to_none=True)
    return sum(saved_bytes.values())


def _time_one_update(prepared: PreparedRun, micro_batches: list[PackedBatch]) -> tuple[float, int]:
    """Return the seconds and tokens of one whole update, with a learning rate of zero."""
    model = prepared.trained
    device = prepared.world.device
    optimizer = make_optimizer(prepared.loop.optimizer, [*model.named_parameters()], lr=0.0)
    started = time.perf_counter()
    model.train()
    for batch in micro_batches:
        parts = prepared.objective.losses(batch.to(device))
        torch.stack([part.total / max(part.count, 1) for part in parts.values()]).sum().backward()
    # Reads the norm, so it waits for the device
    clip_gradients(model.parameters(), prepared.loop.clip_norm)
    optimizer.step()
    model.zero_grad(set_to_none=True)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started, sum(batch.num_tokens for batch in micro_batches)


def run_pretrain(options: PretrainCommandOptions) -> PretrainResult | Estimate:
    """Run `albertkit pretrain`."""
    if not options.dry_run:
        return pretrain(options)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    values = {
        field.name: getattr(options, field.name) for field in dataclasses.fields(PretrainOptions)
    }
    with console.status("measuring …") if console.is_terminal else nullcontext():
        return estimate(EstimateOptions(**values, note=partial(console.print, markup=False)))
