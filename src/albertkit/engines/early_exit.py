"""Early exit: sequences leave after as many layers as they need, and others take their places.

All layers have the same weights, so sequences at different layers share one matrix product: a pool of tokens is kept full, each
step applies the layer to all of it, sequences that are sure leave, and waiting ones enter at layer 1. No other network can do
that; here it costs nothing, because every row of an int8 product has a scale of its own.
Source of the idea: Bae et al. 2025, Relaxed Recursive Transformers, section 3.8.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from albertkit.data.packing import PackedBatch
from albertkit.engines.engine import Engine

# Tokens that advance at once. The engine's threads share a step, and what Python does between steps is spread over many tokens:
# 12 layers of H 256 in int8 on two cores, patience:2 on MRPC, beside all layers: 1.82x with 1,024, 2.04x with 2,048, 2.29x with
# 4,096; a pool of 512 for each thread 1.71x.
POOL = 4096

# Which sequences may leave, bool [n]: given the number of layers that each of n sequences has had, int64 [n], their numbers in
# the batch, int64 [n], and the states of their first tokens, fp32 [n, H].
Decide = Callable[[Tensor, Tensor, Tensor], Tensor]


class Exited(NamedTuple):
    """Sequences that left early: states of their first tokens, and how many layers they had."""

    states: Tensor  # fp32 [N, H]
    layers: Tensor  # int64 [N]


@torch.inference_mode()
def encode_until(engine: Engine, batch: PackedBatch, num_layers: int, decide: Decide) -> Exited:
    """Run each of N sequences until it may leave, at the latest after `num_layers` layers."""
    waiting = _Waiting(engine.begin(batch), np.array(batch.lengths))
    exited = Exited(
        waiting.hidden.new_empty(batch.num_sequences, waiting.hidden.shape[1]), torch.zeros_like(batch.starts)
    )
    pool = _Pool(engine, num_layers, decide, exited)
    while pool.refill(waiting):
        pool.step()
    return exited


class _Waiting:
    """Sequences that wait, the longest first: those of like length attend together."""

    def __init__(self, hidden: Tensor, lengths: np.ndarray) -> None:
        self.numbers = np.argsort(-lengths, kind="stable")
        self.lengths = lengths[self.numbers]
        self.ends = np.append(0, np.cumsum(self.lengths))
        starts = (np.cumsum(lengths) - lengths)[self.numbers]
        rows = np.repeat(starts - self.ends[:-1], self.lengths) + np.arange(self.ends[-1])
        self.hidden = hidden.index_select(0, torch.from_numpy(rows).to(hidden.device))
        self._next = 0

    def take(self, room: int, at_least: int) -> slice:
        """Take the next ones that fit together, or at least so many."""
        first = self._next
        fitting = int(np.searchsorted(self.ends, self.ends[first] + max(room, 0), side="right")) - 1
        self._next = min(max(fitting, first + at_least), len(self.numbers))
        return slice(first, self._next)


class _Pool:
    """The sequences that advance together."""

    def __init__(self, engine: Engine, num_layers: int, decide: Decide, exited: Exited) -> None:
        self.engine, self.num_layers, self.decide, self.exited = engine, num_layers, decide, exited
        self.numbers, self.lengths, self.layers = (np.zeros(0, np.int64) for _ in range(3))
        self.hidden = exited.states[:0]

    def refill(self, waiting: _Waiting) -> bool:
        """Let waiting sequences in while there is room; return whether there is anything to do."""
        some = waiting.take(POOL - len(self.hidden), at_least=0 if len(self.numbers) else 1)
        if some.start < some.stop:
            new = waiting.hidden[waiting.ends[some.start] : waiting.ends[some.stop]]
            self.hidden = torch.cat([self.hidden, new])
            self.numbers = np.append(self.numbers, waiting.numbers[some])
            self.lengths = np.append(self.lengths, waiting.lengths[some])
            self.layers = np.append(self.layers, np.zeros(some.stop - some.start, np.int64))
        return len(self.numbers) > 0

    def step(self) -> None:
        """Apply the layer once; sequences that may leave do."""
        self.hidden = self.engine.step(self.hidden, self.lengths)
        self.layers += 1
        starts = torch.from_numpy(np.cumsum(self.lengths) - self.lengths)
        first = self.hidden.index_select(0, starts.to(self.hidden.device))
        layers, numbers = torch.from_numpy(self.layers), torch.from_numpy(self.numbers)
        leaving = self.decide(layers, numbers, first).cpu() | (layers == self.num_layers)
        if not leaving.any():
            return
        gone = numbers[leaving]
        self.exited.states[gone] = first[leaving]
        self.exited.layers[gone] = layers[leaving].to(self.exited.layers.device)
        stay = ~leaving.numpy()
        kept = torch.from_numpy(np.flatnonzero(np.repeat(stay, self.lengths)))
        self.hidden = self.hidden.index_select(0, kept.to(self.hidden.device))
        self.numbers, self.lengths, self.layers = self.numbers[stay], self.lengths[stay], self.layers[stay]
