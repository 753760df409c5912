"""Early exit: sequences leave after as many passes as they need, and others take their places.

All passes are the same layer, so sequences that have had different numbers of them share one matrix product: a pool of tokens
is kept full, each step takes everybody in it one pass further, those that are sure go, and waiting ones come in at pass 1.
No other network can do that; here it costs nothing, because every row of an int8 product has a scale of its own.
Source of the idea: Bae et al. 2025, Relaxed Recursive Transformers, section 3.8.
"""

from collections.abc import Callable
from threading import Lock
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from albertkit.engines.engine import Engine, on_threads
from albertkit.model.packing import PackedBatch

POOL = 512  # tokens a thread advances at once, as PIECE of the packed engine

# Told how many passes each of n sequences has had, int64 [n], which of the batch's sequences they are, int64 [n], and the
# states of their first tokens, fp32 [n, H]; answers which of them may leave, bool [n]. Called by several threads, never for
# the same sequence at once.
Decide = Callable[[Tensor, Tensor, Tensor], Tensor]


class Left(NamedTuple):
    """Where sequences left.

    Attributes:
        states: fp32 [N, H], of each first token after the last pass that was made.
        passes: int64 [N], how many were made.
    """

    states: Tensor
    passes: Tensor


@torch.inference_mode()
def encode_until(engine: Engine, batch: PackedBatch, num_passes: int, decide: Decide) -> Left:
    """Run each sequence until it may leave.

    Args:
        engine: Of a model whose passes are all the same layer.
        batch: N sequences, on the model's device.
        num_passes: Most passes of a sequence, L; after these it leaves in any case.
        decide: Which may leave; after the last pass its answer does not matter.
    """
    waiting = _Waiting(engine.begin(batch), np.array(batch.lengths))
    left = Left(waiting.hidden.new_empty(batch.num_sequences, waiting.hidden.shape[1]), torch.zeros_like(batch.starts))
    threads = min(torch.get_num_threads(), -(-batch.num_tokens // POOL)) if batch.device.type == "cpu" else 1

    def run(_: int) -> None:
        with torch.inference_mode():
            pool = _Pool(engine, num_passes, decide, left)
            while pool.refill(waiting):
                pool.step()

    on_threads(run, range(threads), threads)
    return left


class _Waiting:
    """Sequences that have had no pass, the longest first: those of like length attend together, and pools run dry at once."""

    def __init__(self, hidden: Tensor, lengths: np.ndarray) -> None:
        self.numbers = np.argsort(-lengths, kind="stable")
        self.lengths = lengths[self.numbers]
        self.ends = np.append(0, np.cumsum(self.lengths))
        starts = (np.cumsum(lengths) - lengths)[self.numbers]
        rows = np.repeat(starts - self.ends[:-1], self.lengths) + np.arange(self.ends[-1])
        self.hidden = hidden.index_select(0, torch.from_numpy(rows).to(hidden.device))
        self._next, self._lock = 0, Lock()

    def take(self, room: int, at_least: int) -> slice:
        """The next ones that have room together, or at least so many."""
        with self._lock:
            first = self._next
            fitting = int(np.searchsorted(self.ends, self.ends[first] + max(room, 0), side="right")) - 1
            self._next = min(max(fitting, first + at_least), len(self.numbers))
            return slice(first, self._next)


class _Pool:
    """The sequences that one thread advances together."""

    def __init__(self, engine: Engine, num_passes: int, decide: Decide, left: Left) -> None:
        self.engine, self.num_passes, self.decide, self.left = engine, num_passes, decide, left
        self.numbers, self.lengths, self.passes = (np.zeros(0, np.int64) for _ in range(3))
        self.hidden = left.states[:0]

    def refill(self, waiting: _Waiting) -> bool:
        """Let waiting sequences in while there is room; whether there is anything to do."""
        some = waiting.take(POOL - len(self.hidden), at_least=0 if len(self.numbers) else 1)
        if some.start < some.stop:
            new = waiting.hidden[waiting.ends[some.start] : waiting.ends[some.stop]]
            self.hidden = torch.cat([self.hidden, new])
            self.numbers = np.append(self.numbers, waiting.numbers[some])
            self.lengths = np.append(self.lengths, waiting.lengths[some])
            self.passes = np.append(self.passes, np.zeros(some.stop - some.start, np.int64))
        return len(self.numbers) > 0

    def step(self) -> None:
        """Everybody one pass further; those that may leave do."""
        self.hidden = self.engine.step(self.hidden, self.lengths)
        self.passes += 1
        starts = torch.from_numpy(np.cumsum(self.lengths) - self.lengths)
        first = self.hidden.index_select(0, starts.to(self.hidden.device))
        passes, numbers = torch.from_numpy(self.passes), torch.from_numpy(self.numbers)
        leaving = self.decide(passes, numbers, first).cpu() | (passes == self.num_passes)
        if not leaving.any():
            return
        gone = numbers[leaving]
        self.left.states[gone], self.left.passes[gone] = first[leaving], passes[leaving].to(self.left.passes.device)
        stay = ~leaving.numpy()
        kept = torch.from_numpy(np.flatnonzero(np.repeat(stay, self.lengths)))
        self.hidden = self.hidden.index_select(0, kept.to(self.hidden.device))
        self.numbers, self.lengths, self.passes = self.numbers[stay], self.lengths[stay], self.passes[stay]
