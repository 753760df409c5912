"""A model on features: packed batches of sequences of like length, the outputs in the order of the features."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from albertkit.data.features import Features, LabelledBatch
from albertkit.data.stream import cut_by_tokens
from albertkit.frame.progress import Progress
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tasks.task import Task
from albertkit.training.distributed import World


def run_model(
    model: PretrainedAlbert,
    task: Task,
    features: Features,
    batch_tokens: int,
    world: World | None = None,
    progress: bool = False,
) -> list[Any]:
    """Return what the model says of every sequence, in the order of the features.

    Sequences are sorted by length: those of one length attend together, and a batch of short ones holds many.
    """
    return run_batches(partial(task.outputs, model), features, batch_tokens, model.device, world, progress)


@torch.inference_mode()
def run_batches(
    outputs_of: Callable[[LabelledBatch], list[Any]],
    features: Features,
    batch_tokens: int,
    device: torch.device,
    world: World | None = None,
    progress: bool = False,
) -> list[Any]:
    """Run like `run_model`, with any function from a batch to an output a sequence; `progress` is shown on stderr."""
    outputs: list[Any] = [None] * features.num_sequences
    order = np.argsort(features.lengths, kind="stable")
    runs = cut_by_tokens(features.lengths[order], batch_tokens, order)
    rank, size = (world.rank, world.size) if world else (0, 1)
    done = 0
    with Progress("evaluating", features.num_sequences, "sequences", progress) as shown:
        for run in runs[rank::size]:
            batch = features.batch(run).to(device)
            for sequence, output in zip(run.tolist(), outputs_of(batch), strict=True):
                outputs[sequence] = output
            done += len(run)
            shown.update(done)
    if world:
        outputs = [
            next((o for o in all_of if o is not None), None) for all_of in zip(*world.gather(outputs), strict=True)
        ]
    return outputs
