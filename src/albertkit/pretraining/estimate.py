"""What a run would take, from a few steps of it: memory as measured, time as timed."""

import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from albertkit.corpus import TokenStore
from albertkit.model import AlbertForPreTraining, PackedBatch
from albertkit.pretraining.depth import check_depth, passes_at, set_depth
from albertkit.pretraining.objective import PretrainingObjective
from albertkit.pretraining.run import loop_settings, prepare
from albertkit.pretraining.settings import PretrainSettings
from albertkit.pretraining.sources import open_source
from albertkit.pretraining.start import continue_model, draw
from albertkit.training.distributed import World, join_world
from albertkit.training.loop import LoopSettings
from albertkit.training.optimizers import clip_gradients, make_optimizer
from albertkit.training.pace import read_plans

TIMED_STEPS = 3
_MOMENTS = 1000  # of a run, at which its depth is looked up


@dataclass(frozen=True)
class Estimate:
    """What a run would take.

    Attributes:
        parameters: Number of parameters, heads included.
        weights_mb: Parameters, gradients, optimizer moments and, if asked for, the moving average; MB of 10^6 bytes.
        activations_mb: Tensors kept for the backward pass of one micro-batch, as measured.
        steps: Updates.
        tokens_per_step: Real tokens of an update, as measured.
        steps_per_epoch: Updates in a pass over the training documents.
        epochs: Passes in the whole run.
        seconds_per_step: Median of three timed steps; the mean over the run where its depth grows.
        tokens_per_second: Real tokens a second.
        hours: The whole run, evaluations and checkpoints left out.
    """

    parameters: int
    weights_mb: float
    activations_mb: float
    steps: int
    tokens_per_step: int
    steps_per_epoch: int
    epochs: float
    seconds_per_step: float
    tokens_per_second: float
    hours: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, figures worth giving."""
        return {k: float(f"{v:.3g}") if isinstance(v, float) else v for k, v in asdict(self).items()}


def estimate(
    store: str | Path | TokenStore,
    settings: PretrainSettings,
    tokenizer: str | Path | None = None,
    start: str | Path | None = None,
) -> Estimate:
    """Make a model, measure the memory of one step and the time of three; nothing is written.

    Args:
        store: A token store or its folder, or records, as for `pretrain`.
        settings: As for `pretrain`.
        tokenizer: As for `pretrain`.
        start: As for `pretrain`. What `train_only` would save is not counted.

    Raises:
        AlbertKitError: What `pretrain` raises for a new run.
    """
    world = join_world(settings.device)
    source = open_source(store, settings, tokenizer)
    settings, _ = source.settings.resolve(world.size, continued=start is not None)
    stream = source.training(World(0, 1, world.device))
    began = continue_model(start, source.tokenizer, settings) if start else draw(settings, source.tokenizer.vocab_size)
    model = prepare(began.model, settings, world)
    parameters = sum(p.numel() for p in model.parameters())
    check_depth(settings, model.config)
    activations = _activation_bytes(model, next(stream)[0].to(world.device))
    loop = loop_settings(settings)
    passes = Counter(passes_at(k / _MOMENTS, settings, model.config.num_hidden_layers) for k in range(_MOMENTS))
    seconds = tokens = 0.0
    for depth, moments in passes.items():
        set_depth(model, depth)
        timed = [_timed_step(model, loop, next(stream)) for _ in range(TIMED_STEPS + 1)][1:]  # the first one warms up
        taken, count = sorted(timed)[TIMED_STEPS // 2]
        seconds, tokens = seconds + taken * moments / _MOMENTS, tokens + count * moments / _MOMENTS
    steps = max(1, int(60 * settings.minutes / seconds)) if settings.minutes else settings.steps
    if settings.plan is not None:
        steps = read_plans(settings.plan)[-1].total_steps
    assert steps is not None  # the settings are resolved
    return Estimate(
        parameters=parameters,
        weights_mb=4 * parameters * (5 if settings.ema_decay else 4) / 1e6,
        activations_mb=activations / 1e6,
        steps=steps,
        tokens_per_step=round(tokens),
        steps_per_epoch=(per_epoch := stream.batches_in_epoch()),
        epochs=steps / per_epoch,
        seconds_per_step=seconds,
        tokens_per_second=tokens / seconds,
        hours=steps * seconds / 3600,
    )


def _activation_bytes(model: AlbertForPreTraining, batch: PackedBatch) -> int:
    """Bytes that autograd keeps between forward and backward, each storage once, parameters left out."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    model.train()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        parts = PretrainingObjective(model).losses(batch)
    torch.stack([part.total for part in parts.values()]).sum().backward()
    model.zero_grad(set_to_none=True)
    return sum(kept.values())


def _timed_step(
    model: AlbertForPreTraining, settings: LoopSettings, micro_batches: list[PackedBatch]
) -> tuple[float, int]:
    """Seconds and tokens of one whole update, with a learning rate of zero."""
    device = next(model.parameters()).device
    optimizer = make_optimizer(settings.optimizer, model.named_parameters(), lr=0.0)
    started = time.perf_counter()
    objective = PretrainingObjective(model)
    for batch in micro_batches:
        parts = objective.losses(batch.to(device))
        torch.stack([part.total / max(part.count, 1) for part in parts.values()]).sum().backward()
    clip_gradients(model.parameters(), settings.clip_norm)  # reads the norm, so it waits for the device
    optimizer.step()
    model.zero_grad(set_to_none=True)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started, sum(batch.num_tokens for batch in micro_batches)
