"""The training loop: one for every objective, flat, in the order things happen."""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from albertkit.errors import MachineError
from albertkit.files import write_json
from albertkit.model.files import PROVENANCE
from albertkit.training.checkpoints import (
    ExportedWeights,
    TrainingState,
    load_state,
    remove_old_checkpoints,
    save_best,
    save_state,
)
from albertkit.training.launch import StopRequest, stop_signal_name
from albertkit.training.monitor import Display
from albertkit.training.optimizers import clip_gradients, gradient_norm, make_optimizer
from albertkit.training.pace import ClockPace, Plan, TrainingProgress
from albertkit.training.processes import World, bf16_peak_flops
from albertkit.training.settings import EpochSettings, LoopOptions


def learning_rate(
    step: int,
    *,
    peak: float,
    total_steps: int = 1,
    progress: float | None = None,
    warmup_steps: int = 0,
    warmup_share: float = 0.0,
    schedule: str = "polynomial",
    end_lr: float = 0.0,
    power: float = 1.0,
) -> float:
    """Return the learning rate of update `step`, counted from 0, as Google's and Model Garden's optimization.py compute it.

    Args:
        step: Number of updates made before this one.
        peak: Rate that the warm-up aims at.
        total_steps: Steps after which the rate is `end_lr` (polynomial, cosine).
        progress: Share of the decay that is done, 0 to 1. Default: `step / total_steps`.
        warmup_steps: Length of the linear warm-up; 0 for none.
        warmup_share: Share of the decay in which a warm-up ends at the latest: the learning rate
            rises with the updates made or with `progress`, whichever is further. 0 for no such
            bound; without `warmup_steps` it alone is the warm-up.
        schedule: "polynomial", "cosine" or "constant".
        end_lr: Where the decay ends; Model Garden's `end_lr`.
        power: Exponent of the polynomial decay.

    Returns:
        The learning rate as a float.
    """
    if progress is None:
        progress = min(step, total_steps) / total_steps
    if warmup_share:
        risen = max(step / warmup_steps if warmup_steps else 0.0, progress / warmup_share)
        if risen < 1:
            return peak * risen
    elif step < warmup_steps:
        return peak * step / warmup_steps
    if schedule == "constant":
        return peak
    # The decay runs from step 0, not from the end of the warm-up, so with the paper's settings the
    # rate drops from 0.00176 to 0.001716 where the warm-up ends. The first update of a warm-up has
    # rate 0.
    remaining = (
        0.5 * (1 + math.cos(math.pi * progress))
        if schedule == "cosine"
        else (1 - progress) ** power
    )
    return end_lr + (peak - end_lr) * remaining


class MicroBatch(Protocol):
    """A micro-batch: a `PackedBatch`, or one with labels beside it."""

    @property
    def num_tokens(self) -> int:
        """Real tokens; 0 of an empty one."""

    def to(self, device: torch.device, non_blocking: bool = False) -> Self:
        """Return the batch on a device."""

    def pin_memory(self) -> Self:
        """Return the batch in page-locked memory."""


AnyBatch = TypeVar("AnyBatch", bound=MicroBatch)
StreamBatch = TypeVar("StreamBatch", bound=MicroBatch, covariant=True)


class Stream(Protocol[StreamBatch]):
    """Endless batches whose position is a few integers.

    Each process gets its own micro-batches of an update, at least one; at the end of an epoch that
    may be an empty one.
    """

    def __next__(self) -> Sequence[StreamBatch]: ...

    def state(self) -> dict[str, Any]:
        """Return where the next batches start: a few plain values, saved with every checkpoint."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go where `state` was taken."""


class Feed(Generic[AnyBatch]):
    """A stream's batches on the device where they are computed, copied ahead to a CUDA device; itself a stream of the same."""

    def __init__(
        self, stream: Stream[AnyBatch], device: torch.device, copies: "CudaCopies | None" = None
    ) -> None:
        self._stream, self._device = stream, device
        self._copies = copies or (CudaCopies(device) if device.type == "cuda" else None)
        self._ahead: tuple[list[AnyBatch], Callable[[], None]] | None = None
        self._before: dict[str, Any] = {}  # the stream's state before the batches that are ahead
        self._current: list[AnyBatch] = []  # held until `allow_reuse` is called

    def __next__(self) -> list[AnyBatch]:
        """Return the next update's micro-batches, on the device."""
        if self._copies is None:
            return [batch.to(self._device) for batch in next(self._stream)]
        self.send_next()
        assert self._ahead is not None
        (self._current, arrive), self._ahead = self._ahead, None
        self._copies.allow_reuse()
        arrive()
        return self._current

    def send_next(self) -> None:
        """Begin to copy the next update's batches, if they are copied ahead and that has not begun."""
        if self._copies is not None and self._ahead is None:
            self._before = self._stream.state()
            self._ahead = self._copies.send(next(self._stream))

    def state(self) -> dict[str, Any]:
        """Return where the batches that `next` gives start."""
        return self._stream.state() if self._ahead is None else self._before

    def restore(self, state: dict[str, Any]) -> None:
        """Go where `state` was taken."""
        self._ahead = None
        self._stream.restore(state)


class CudaCopies:
    """Copies from page-locked memory on a CUDA stream of their own.

    The copies' memory belongs to that stream: torch may give it to the next copies as soon as a
    batch is let go, which the device may still be reading. So every copy waits for what was asked
    of the device when the last batches were let go.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._last_use = torch.cuda.Event()
        self.allow_reuse()

    def send(self, batches: Sequence[AnyBatch]) -> tuple[list[AnyBatch], Callable[[], None]]:
        """Begin to copy; what is computed after the function returned was called finds the copies complete."""
        self._stream.wait_event(self._last_use)
        with torch.cuda.stream(self._stream):
            # Copies out of ordinary memory keep the host waiting.
            sent = [batch.pin_memory().to(self._device, non_blocking=True) for batch in batches]
            arrived = torch.cuda.Event()
            arrived.record()
        return sent, lambda: torch.cuda.current_stream(self._device).wait_event(arrived)

    def allow_reuse(self) -> None:
        """Note that nothing after the work asked of the device so far reads copies that were let go."""
        self._last_use.record(torch.cuda.current_stream(self._device))


MAX_SKIPPED = 5  # consecutive updates without a finite gradient before the run is given up


@dataclass
class LossPart:
    """One loss of a micro-batch.

    Attributes:
        total: Sum over its targets, 0-d, fp32, with gradient.
        count: Number of targets.
        correct: Number of right predictions, 0-d; None where the loss is not a classification.
    """

    total: Tensor
    count: int
    correct: Tensor | None = None


def zero_losses(counts: dict[str, int], device: torch.device) -> dict[str, LossPart]:
    """Return what an empty micro-batch adds to the losses of the others: nothing."""
    return {name: LossPart(torch.zeros((), device=device), 0) for name in counts}


LossBatch = TypeVar("LossBatch", bound=MicroBatch, contravariant=True)


class Objective(Protocol[LossBatch]):
    """The task to learn: losses of a micro-batch, whose means are added, and what is known of it beforehand."""

    def count_targets(self, batch: LossBatch) -> dict[str, int]:
        """Count the targets of each loss, on the host, before anything is computed."""

    def losses(self, batch: LossBatch) -> dict[str, LossPart]:
        """Compute the same losses; zeros for an empty batch (`zero_losses`)."""

    def flops(self, batch: LossBatch) -> float:
        """Return the floating-point operations of a training step on this micro-batch."""


@dataclass(frozen=True, kw_only=True)
class LoopSettings(LoopOptions):
    """Settings of the loop, every default a number, and what only some kinds of training have.

    Attributes:
        weight_decay: Of every parameter that is decayed.
        warmup_share: Of a training by the clock, which warms up in no more of its time than this.
        patience: Evaluations in a row without a better one that end the training; 0: none do.
        start_weights: Share of the weights that the training starts from in those that are
            evaluated and exported.
        lr_factors: Factors of the learning rate by beginnings of parameters' names.
        processes: Processes that micro-batches are numbered for, in turn. Default: as many as there
            are.
    """

    lr: float = 0.0
    warmup_steps: int = 0
    eval_every: int | None = 0  # None: where the plans of a training by the clock say so
    save_every: int | None = 0
    weight_decay: float = 0.01
    warmup_share: float = 0.0
    patience: int = 0
    start_weights: float = 0.0
    lr_factors: dict[str, float] = field(default_factory=dict)
    processes: int | None = None

    @classmethod
    def of(cls, options: LoopOptions, **overrides: Any) -> "LoopSettings":
        """Copy the loop's fields from resolved settings."""
        shared = {f.name: getattr(options, f.name) for f in dataclasses.fields(LoopOptions)}
        return cls(
            **shared | dict(lr=options.lr or 0.0, warmup_steps=options.warmup_steps or 0),
            **overrides,
        )

    @classmethod
    def over_epochs(cls, settings: EpochSettings, **overrides: Any) -> "LoopSettings":
        """Copy the loop's fields from resolved settings of a training over epochs, with AdamW and bias correction."""
        steps = settings.steps or 1
        every = settings.eval_every or steps
        values = {name: getattr(settings, name) for name in ("warmup_steps", "seed", "patience")}
        values |= dict(
            # Of checkpoints the newest alone; `best/` lies beside them.
            steps=steps,
            lr=settings.lr or 0.0,
            optimizer="adamw",
            bias_correction=True,
            keep=1,
        )
        return cls(
            log_every=max(1, min(10, steps // 50)),
            eval_every=every,
            save_every=every,
            **values,
            **overrides,
        )


@dataclass(kw_only=True)
class TrainingRecipe(Generic[AnyBatch]):
    """The model to train, and how it is evaluated and saved.

    Attributes:
        model: Its parameters are trained; on the process's device, in fp32.
        objective: The losses.
        stream: Gives lists of micro-batches; its state is saved with every checkpoint.
        loop: How to train.
        evaluate: Called in all processes; returns metrics.
        select: The metric that decides which model is best; larger is better.
        smaller: A smaller value of that metric is better.
        save: Writes the model's files into a folder.
        provenance: What the model was made from; saved with its files.
        describe: Writes the card of the best model from its metrics.
        before_update: Called with the share of the training that is done; what it changes must
            follow from that number alone.
        doubts: What is wrong with a model of these metrics after so many updates, in words.
        notes: Lines for the user, printed when the training begins.
        seconds_before: Seconds of the training's time that were spent before its first update.
        repeatable: On a GPU, compute the same bits again; costs speed.
    """

    model: nn.Module
    objective: Objective[AnyBatch]
    stream: Stream[AnyBatch]
    loop: LoopSettings
    evaluate: Callable[[], dict[str, float]]
    select: str
    smaller: bool = False
    save: Callable[[Path], None]
    provenance: dict[str, Any] = field(default_factory=dict)
    describe: Callable[[Path, dict[str, float]], None] | None = None
    before_update: Callable[[float], None] | None = None
    doubts: Callable[[int, dict[str, float]], Sequence[str]] = lambda step, metrics: ()
    notes: Sequence[str] = ()
    seconds_before: float = 0.0
    repeatable: bool = True

    def save_with_provenance(self, folder: Path) -> None:
        """Write the model's files and what it was made from."""
        self.save(folder)
        if self.provenance:
            write_json(folder / PROVENANCE, self.provenance)


@dataclass
class TrainingResult:
    """End of a training.

    Attributes:
        state: Where it stands.
        finished: False if a signal stopped it.
        stopped: Whether a signal came with the last update: the training is finished, what follows
            is not wanted.
        evaluation: The last evaluation.
    """

    state: TrainingState
    finished: bool
    stopped: bool = False
    evaluation: dict[str, float] = field(default_factory=dict)


class Meter:
    """Sums over the updates since the last log line, kept on the device until they are read."""

    def __init__(self) -> None:
        self.tokens = 0
        self.flops = 0.0
        self.seconds = 0.0
        self.totals: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}
        self.classified: set[str] = set()  # losses that have a right and a wrong

    def add(self, parts: dict[str, LossPart]) -> None:
        """Add the losses of a micro-batch; the host does not wait for the device."""
        for name, part in parts.items():
            correct = part.correct if part.correct is not None else torch.zeros_like(part.total)
            sums = torch.stack([part.total.detach().double(), correct.double()])
            self.totals[name] = self.totals[name] + sums if name in self.totals else sums
            self.counts[name] = self.counts.get(name, 0) + part.count
            if part.correct is not None:
                self.classified.add(name)

    def averages(self, world: World) -> dict[str, float]:
        """Return mean losses and accuracies over all processes: one reduction."""
        record = {}
        names = sorted(self.totals)  # the same order in all processes
        sums = torch.stack([self.totals[name] for name in names])
        counts = world.to_device([self.counts[name] for name in names], torch.float64)
        numbers = world.to_host(world.sum(torch.cat([sums, counts[:, None]], dim=1)))
        for name, loss, correct, total in zip(
            names, numbers[::3], numbers[1::3], numbers[2::3], strict=True
        ):
            record[f"{name}_loss"] = loss / max(total, 1)
            if name in self.classified:
                record[f"{name}_accuracy"] = correct / max(total, 1)
        return record


def train(
    recipe: TrainingRecipe[AnyBatch],
    run: Path,
    world: World,
    display: Display,
    *,
    resume: bool = False,
) -> TrainingResult:
    """Train until `steps` updates are made, the time is up, patience ends or a signal asks to stop.

    The loss of an update is the mean over all its targets: over micro-batches and processes, sums
    are added and divided by the common count, so accumulation and several processes give the
    gradient of one big batch.

    Args:
        recipe: What to train.
        run: Folder of the run.
        world: The processes.
        display: Shows and records what happens.
        resume: Continue from the run's newest checkpoint, to the same bits on the same machine with
            the same threads.
    """
    model = recipe.model
    objective = recipe.objective
    settings = recipe.loop
    select = recipe.select
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer = make_optimizer(
        settings.optimizer,
        parameters.items(),
        settings.lr,
        weight_decay=settings.weight_decay,
        bias_correction=settings.bias_correction,
        lr_factors=settings.lr_factors,
    )
    exported = ExportedWeights(parameters, settings.ema_decay, settings.start_weights)
    feed = Feed(recipe.stream, world.device)
    before = recipe.seconds_before
    state = TrainingState(threads=torch.get_num_threads(), seconds=before, clock=before)
    if resume and (saved := load_state(run)):
        state = _restore_state(saved, parameters, optimizer, exported, feed, display)
    _check_same_step(state, run, world, display)
    if resume and world.is_main:
        remove_old_checkpoints(run, settings.keep)  # one that a failing disk has left
    pace = choose_pace(settings, state)
    result = TrainingResult(state, finished=False)

    def save() -> None:
        state.stream, state.clock = feed.state(), pace.seconds_used()
        if isinstance(pace, ClockPace):
            state.plans = [asdict(plan) for plan in pace.plans]
        if world.is_main:
            tensors: dict[str, Tensor] = {f"parameters/{n}": p for n, p in parameters.items()}
            tensors |= {f"optimizer/{n}": t for n, t in optimizer.tensors().items()}
            tensors |= {f"average/{n}": t for n, t in exported.averages.items()}
            save_state(run, state, tensors, recipe.save_with_provenance, settings.keep)
        world.barrier()

    def save_and_describe(folder: Path) -> None:
        recipe.save_with_provenance(folder)
        if recipe.describe:
            recipe.describe(folder, result.evaluation)

    def evaluate_now() -> None:
        with exported.applied():
            model.eval()
            # What follows from it must be the same in all processes
            evaluation = world.first(recipe.evaluate())
            model.train()
            value = evaluation[select]
            result.evaluation = {select: value, **evaluation}  # what counts is shown first
            if math.isnan(value):  # a correlation with constant predictions: worse than any number
                value = -math.inf
            elif recipe.smaller:
                value = -value
            state.without_better += 1
            if state.best is None or value > state.best:
                state.best = value
                state.best_step = state.step
                state.without_better = 0
                if world.is_main:
                    save_best(run, save_and_describe, state.step, select, evaluation[select])
        display.evaluation(state.step, result.evaluation)
        for line in recipe.doubts(state.step, result.evaluation):
            display.note(line)

    def out_of_patience() -> bool:
        return 0 < settings.patience <= state.without_better

    model.train()
    meter, skipped_in_a_row = Meter(), 0
    with StopRequest() as stop, display:
        while not pace.is_over(state.step) and not out_of_patience():
            started = time.perf_counter()

            # One update.
            if recipe.before_update:
                recipe.before_update(pace.progress(state.step))
            micro_batches = next(feed)
            lr = learning_rate(
                state.step,
                peak=settings.lr,
                progress=pace.progress(state.step),
                warmup_steps=settings.warmup_steps,
                warmup_share=settings.warmup_share,
                schedule=settings.schedule,
                end_lr=settings.end_lr,
                power=settings.poly_power,
            )
            wants_plan = world.is_main and pace.wants_plan(state.step)
            counts, all_tokens, planning = _total_targets_tokens_and_flags(
                objective, micro_batches, world, wants_plan
            )
            for number, batch in enumerate(micro_batches):
                # Dropout depends on the place in the run alone, so a resumed run draws the same.
                # torch takes 63 bits: without the modulo it refused seeds above 277,000, such as
                # dates.
                among = number * world.size + world.rank
                turn, process = divmod(among, settings.processes or world.size)
                dropout_seed = (
                    (settings.seed * 1_000_003 + state.step) * 1_009 + turn
                ) * 65_537 + process
                # `torch.manual_seed` takes 0.5 ms where there is no GPU.
                torch.default_generator.manual_seed(dropout_seed % (1 << 63))
                if world.device.type == "cuda":
                    torch.cuda.manual_seed(dropout_seed % (1 << 63))
                parts = objective.losses(batch)
                loss = torch.stack([p.total / counts[n] for n, p in parts.items()]).sum()
                if batch.num_tokens:  # the losses of an empty one have no graph
                    loss.backward()
                    meter.flops += objective.flops(batch)
                meter.add(parts)
            summed = world.sum_gradients(parameters.values(), stop.requested)
            feed.send_next()
            # The one place in an update where the host waits for the device.
            norm, tokens, planned, stops, *holders = world.to_host(
                gradient_norm(parameters.values()), all_tokens, planning, summed
            )
            for parameter, holder in zip(parameters.values(), holders, strict=False):
                # In no process: the optimizer leaves the parameter alone, as it does with one
                # process
                if not holder:
                    parameter.grad = None
            if math.isfinite(norm):
                clip_gradients(parameters.values(), settings.clip_norm, norm)
                optimizer.set_learning_rate(lr)
                optimizer.step()
                skipped_in_a_row = 0
            else:
                state.skipped += 1
                skipped_in_a_row += 1
                display.note(f"step {state.step + 1}: gradient norm is {norm}, update skipped")
                if skipped_in_a_row == MAX_SKIPPED:
                    raise _skipped_updates_error(state.step + 1, lr, run)
            optimizer.zero_grad(set_to_none=True)
            exported.update()
            state.step += 1
            state.tokens += int(tokens)
            meter.tokens += int(tokens)
            seconds = time.perf_counter() - started
            meter.seconds += seconds
            state.seconds += seconds

            # What a user wants to know, and what must not be lost.
            plan = _agree_on_plan(pace, state.step, bool(planned), world, display)
            evaluating = plan is not None and plan.evaluate
            last = pace.is_over(state.step)
            if state.step % settings.log_every == 0 or last:
                peak = bf16_peak_flops(world.device)
                record = {
                    **meter.averages(world),
                    "learning_rate": lr,
                    "grad_norm": norm,
                    "tokens_per_second": meter.tokens / meter.seconds,
                    "tokens": state.tokens,
                    "seconds": round(state.seconds, 3),
                }
                record["loss"] = sum(v for k, v in record.items() if k.endswith("_loss"))
                if peak:
                    record["mfu"] = meter.flops / meter.seconds / peak
                display.update(state.step, pace.total_steps, record, pace.seconds_left())
                meter = Meter()
            if (
                (settings.eval_every and state.step % settings.eval_every == 0)
                or evaluating
                or last
            ):
                with pace.pause(state.step):
                    evaluate_now()
            if out_of_patience():
                display.note(
                    f"stopped early at step {state.step}: {state.without_better} evaluations without a better {select}"
                )
                last = True
            stopping = stops > 0 if world.size > 1 else stop.requested
            saving = evaluating and settings.save_every is None
            if (
                (settings.save_every and state.step % settings.save_every == 0)
                or saving
                or last
                or stopping
            ):
                with pace.pause(state.step):
                    save()
            result.stopped = stopping
            if stopping and not last:
                display.note(
                    f"stopped by {stop_signal_name()} after step {state.step}; everything is saved, --resume goes on from there"
                )
                return result
        if not result.evaluation:  # resumed where it had already ended
            evaluate_now()
    exported.apply()
    result.finished = True
    return result


def _total_targets_tokens_and_flags(
    objective: Objective[AnyBatch], micro_batches: Sequence[AnyBatch], world: World, flag: bool
) -> tuple[dict[str, Tensor | float], Tensor | float, Tensor | float]:
    """Count the targets of each loss, at least 1, tokens in the whole update, and set flags, over all processes."""
    counts: dict[str, int] = {}
    for batch in micro_batches:
        for name, count in objective.count_targets(batch).items():
            counts[name] = counts.get(name, 0) + count
    num_tokens = sum(batch.num_tokens for batch in micro_batches)
    tokens, flags, *totals = world.totals([num_tokens, float(flag), *counts.values()])
    at_least_one = [
        total.clamp(min=1) if isinstance(total, Tensor) else max(total, 1) for total in totals
    ]
    return dict(zip(counts, at_least_one, strict=True)), tokens, flags


def choose_pace(settings: LoopSettings, state: TrainingState) -> TrainingProgress:
    """Return the pace: by the number of updates or by the clock."""
    if settings.minutes is not None:
        plans = [Plan(**plan) for plan in state.plans]
        return ClockPace(
            60 * settings.minutes, plans, state.clock, settings.steps, settings.eval_every
        )
    assert settings.steps is not None
    return TrainingProgress(settings.steps)


def _agree_on_plan(
    pace: TrainingProgress, step: int, is_due: bool, world: World, display: Display
) -> Plan | None:
    """Plan again what is left, if it is time to: the first process decides for all."""
    if not (is_due or pace.must_plan(step)):
        return None
    plan = world.first(pace.plan(step) if world.is_main else None)
    assert plan is not None
    news = pace.adopt(plan)
    display.plan(asdict(plan), news)
    return plan


@torch.no_grad()
def _restore_state(
    saved: tuple[TrainingState, dict[str, Tensor]],
    parameters: dict[str, nn.Parameter],
    optimizer: Any,
    exported: ExportedWeights,
    stream: Stream[Any],
    display: Display,
) -> TrainingState:
    """Put parameters, moments, averages and the stream back to where the checkpoint was written."""
    state, tensors = saved

    def under(prefix: str) -> dict[str, Tensor]:
        return {
            name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)
        }

    for name, tensor in under("parameters/").items():
        parameters[name].copy_(tensor)
    optimizer.restore(under("optimizer/"), state.step - state.skipped)
    for name, tensor in under("average/").items():
        exported.averages[name].copy_(tensor)
    stream.restore(state.stream)
    display.note(f"resumed at step {state.step}")
    if state.threads != torch.get_num_threads():
        display.note(
            f"the checkpoint was computed with {state.threads} threads, now there are {torch.get_num_threads()}: "
            "results will be close but not bit-identical"
        )
        state.threads = torch.get_num_threads()
    return state


def _check_same_step(state: TrainingState, run: Path, world: World, display: Display) -> None:
    """Make sure that all processes begin at the same step, and say where another number of them makes other bits."""
    steps = world.gather(state.step)
    if len(set(steps)) > 1:
        differing_rank = next(rank for rank, step in enumerate(steps) if step != steps[0])
        raise MachineError(
            "machines-differ",
            f"process 0 finds step {steps[0]} in `{run}`, process {differing_rank} step {steps[differing_rank]}",
            "put --out on a filesystem that all machines share",
        )
    if state.processes not in (0, world.size):
        display.note(
            f"the number of processes changed from {state.processes} to {world.size}: the order of the data is the same, "
            "results will be close but may not be bit-identical"
        )
    state.processes = world.size


def _skipped_updates_error(step: int, lr: float, run: Path) -> MachineError:
    checkpoints_note = (
        f"; the checkpoints in `{run / 'checkpoints'}` are intact"
        if (run / "checkpoints").exists()
        else ""
    )
    return MachineError(
        "not-finite",
        f"{MAX_SKIPPED} updates in a row had no finite gradient, up to step {step} with learning rate {lr:.3g}",
        f"start again with a lower --lr or a longer --warmup-steps{checkpoints_note}",
    )
