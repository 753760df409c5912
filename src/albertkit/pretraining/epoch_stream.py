"""Endless, shuffled batches: the same for any number of processes, prepared ahead, resumable to the bit."""

from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Self

import numpy as np

from albertkit.errors import ConfigError, DataError
from albertkit.model.packing import PackedBatch
from albertkit.tokenizer.compiled import compiled


@compiled
def rows_that_fit(lengths: np.ndarray, first: int, world_size: int, budget: int) -> int:
    """How many rows of `world_size` examples, from `first` on, every process can take within its token budget.

    Args:
        lengths: unsigned [N], of the examples in order; process r takes number r of each row.
        first: The first example of the first row.
        world_size: Number of processes.
        budget: Tokens a process may take.
    """
    taken = np.zeros(world_size, np.int64)
    rows = 0
    while first + world_size <= len(lengths):
        for rank in range(world_size):
            taken[rank] += lengths[first + rank]
            if taken[rank] > budget:
                return rows
        rows += 1
        first += world_size
    return rows


def check_budget(batch_tokens: int, longest: int) -> None:
    """Make sure that a batch can hold the longest example.

    Raises:
        ConfigError: batch-too-small.
    """
    if batch_tokens < longest:
        raise ConfigError(
            "batch-too-small",
            f"batch_tokens is {batch_tokens:,}, but an example may have {longest:,} tokens",
            f"use at least --batch-tokens {longest}, or a smaller --length",
        )


class _Place(NamedTuple):
    """Where a stream stands: the next example of an epoch, counted over all processes."""

    epoch: int
    cursor: int


class EpochStream(ABC):
    """Iterates over global batches; each is this process's list of `accumulation` micro-batches.

    The examples of an epoch are put in one random order. A micro-batch takes as many of the next examples as fit in
    `batch_tokens` (process r of W takes every W-th, from r on, and all processes take equally many, so that they stay
    in step). A global batch does not reach into the next epoch: the last one of an epoch may have fewer and smaller
    micro-batches. Of an epoch's order, the last N mod W examples are left out, none with one process; the order is
    another in every epoch.

    The next batch is prepared on a thread while this one is used (the compiled loops run without the GIL).

    Where the examples come from is said by `_draw` and `_pack`.

    Args:
        data: What the state must find again when it is restored: name to number, the seed among them.
        batch_tokens: Most tokens in a micro-batch, specials counted.
        accumulation: Micro-batches in a global batch.
        rank: Number of this process.
        world_size: Number of processes.

    Raises:
        ConfigError: bad-value.
    """

    def __init__(
        self, data: dict[str, int], *, batch_tokens: int, accumulation: int, rank: int, world_size: int
    ) -> None:
        if accumulation < 1 or not 0 <= rank < world_size:
            raise ConfigError("bad-value", f"accumulation {accumulation}, rank {rank}, world_size {world_size}")
        self._data = data
        self.batch_tokens, self.accumulation = batch_tokens, accumulation
        self.rank, self.world_size = rank, world_size
        self._planned: tuple[int, Any, np.ndarray] | None = None  # epoch, plan, lengths
        self._place = _Place(0, 0)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batch-stream")
        self._next: Future[tuple[list[PackedBatch], _Place]] | None = None

    @abstractmethod
    def _draw(self, epoch: int) -> tuple[Any, np.ndarray]:
        """The examples of an epoch in their order, in whatever form `_pack` wants them, and their lengths [N]."""

    @abstractmethod
    def _pack(self, plan: Any, indices: np.ndarray, epoch: int) -> PackedBatch:
        """The packed batch of the examples at some places of a plan."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[PackedBatch]:
        pending = self._next or self._thread.submit(self._make, self._place)
        self._next = None
        batch, self._place = pending.result()
        self._next = self._thread.submit(self._make, self._place)
        return batch

    def state(self) -> dict[str, int]:
        """Where the next batch starts: epoch, cursor (examples of the epoch given out, over all processes); and the
        seed and the size of the data, which must be the same again.

        The state fits any number of processes and any batch size: a run may go on with others, and no example is lost
        or repeated.
        """
        return {"epoch": self._place.epoch, "cursor": self._place.cursor, **self._data}

    def restore(self, state: dict[str, int]) -> None:
        """Go where `state` was taken: the next batch is, to the bit, the one that came next then.

        Raises:
            ConfigError: resume-mismatch, if the state belongs to another seed or other data.
        """
        for name, own in self._data.items():
            if state.get(name) != own:
                raise ConfigError(
                    "resume-mismatch",
                    f"{name} of the saved stream: {state.get(name)}; of this one: {own}",
                    "resume with the data and the settings that the run was started with",
                )
        if self._next is not None:
            self._next.exception()  # wait: the thread may be planning
            self._next = None
        self._place = _Place(int(state["epoch"]), int(state["cursor"]))

    def plan(self, epoch: int = 0) -> Any:
        """The examples of an epoch in their order."""
        return self._thread.submit(self._plan, epoch).result()[0]

    def batches_in_epoch(self, epoch: int = 0) -> int:
        """Number of global batches in an epoch; it may differ a little from one epoch to the next."""
        _, lengths = self._thread.submit(self._plan, epoch).result()
        micro_batches, cursor = 0, 0
        while rows := rows_that_fit(lengths, cursor, self.world_size, self.batch_tokens):
            cursor += rows * self.world_size
            micro_batches += 1
        return -(-micro_batches // self.accumulation)

    def _plan(self, epoch: int) -> tuple[Any, np.ndarray]:
        if self._planned is None or self._planned[0] != epoch:
            self._planned = None  # never two plans in memory
            plan, lengths = self._draw(epoch)
            if len(lengths) < self.world_size:
                raise DataError(
                    "no-examples",
                    f"{len(lengths):,} examples are not enough for {self.world_size} processes",
                    "add text, or use fewer processes",
                )
            self._planned = epoch, plan, lengths
        return self._planned[1:]

    def _make(self, place: _Place) -> tuple[list[PackedBatch], _Place]:
        """The global batch at a place, and the place after it."""
        epoch, cursor = place
        plan, lengths = self._plan(epoch)
        if cursor + self.world_size > len(lengths):
            epoch, cursor = epoch + 1, 0
            plan, lengths = self._plan(epoch)
        batches = []
        for _ in range(self.accumulation):
            rows = rows_that_fit(lengths, cursor, self.world_size, self.batch_tokens)
            if not rows:
                break
            indices = cursor + self.rank + self.world_size * np.arange(rows)
            batches.append(self._pack(plan, indices, epoch))
            cursor += rows * self.world_size
        return batches, _Place(epoch, cursor)
