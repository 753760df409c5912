"""A model on features: packed batches of sequences of like length, the outputs in the order of the features."""

from typing import Any

import numpy as np
import torch
from torch import distributed as dist

from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tasks.features import Features
from albertkit.tasks.stream import cut_by_tokens
from albertkit.tasks.task import Task
from albertkit.training.distributed import World


@torch.inference_mode()
def run_model(
    model: PretrainedAlbert, task: Task, features: Features, batch_tokens: int, world: World | None = None
) -> list[Any]:
    """What the model says of every sequence.

    Sequences are sorted by length: those of one length attend together, and a batch of short ones holds many.

    Args:
        model: In evaluation mode.
        task: Its task. Sequences that compete need not be in one batch: they meet in `task.predictions`.
        features: M sequences.
        batch_tokens: Most tokens computed at once; a longer sequence is computed alone.
        world: Several processes share the work, and every one gets all outputs.

    Returns:
        M outputs, in the order of the features.
    """
    outputs: list[Any] = [None] * features.num_sequences
    order = np.argsort(features.lengths, kind="stable")
    runs = cut_by_tokens(features.lengths[order], batch_tokens, order)
    rank, size = (world.rank, world.size) if world else (0, 1)
    for run in runs[rank::size]:
        batch = features.batch(run).to(model.device)
        for sequence, output in zip(run.tolist(), task.outputs(model, batch), strict=True):
            outputs[sequence] = output
    if size > 1:
        gathered: list[Any] = [None] * size
        dist.all_gather_object(gathered, outputs)
        outputs = [next((o for o in column if o is not None), None) for column in zip(*gathered, strict=True)]
    return outputs
