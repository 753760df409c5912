"""Endless, shuffled batches: the same for any number of processes, prepared ahead, resumable to the bit."""

from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Self

import numpy as np

from albertkit.errors import ConfigError, DataError
from albertkit.model.packing import PackedBatch
from albertkit.tokenizer.compiled import compiled
from albertkit.training.resuming import check_same_stream


@compiled
def rows_that_fit(lengths: np.ndarray, first: int, world_size: int, budget: int) -> int:
    """How many rows of `world_size` examples, from `first` on, every process can take within its token budget.

    The last row of an epoch may be short: then only the first processes have an example of it.

    Args:
        lengths: unsigned [N], of the examples in order; process r takes number r of each row.
        first: The first example of the first row.
        world_size: Number of processes.
        budget: Tokens a process may take.
    """
    taken = np.zeros(world_size, np.int64)
    rows = 0
    while first < len(lengths):
        for rank in range(min(world_size, len(lengths) - first)):
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
    """Where a stream stands: the next example of a block of an epoch, counted over all processes."""

    epoch: int
    block: int
    cursor: int


class EpochStream(ABC):
    """Iterates over global batches; each is this process's list of micro-batches.

    A global batch is `accumulation` times P micro-batches, for P processes. The examples of an epoch are put in one random
    order, and P micro-batches take as many of the next ones as fit in `batch_tokens` each: number p every P-th, from p on, and
    all equally many. A global batch does not reach into the next epoch: the last one of an epoch may have fewer and smaller
    micro-batches, and of its last N mod P examples some get none. Every example of an epoch is given out once.

    With as many processes as that, each has its own micro-batches. Another number W of them deals them out in turn, so that
    the global batch is the same: a run may go on with fewer processes, or more. One that has nothing to do gets an empty batch.

    An epoch may come in several blocks, one after the other; a global batch does not reach into the next one either.

    The next batch is prepared on a thread while this one is used (the compiled loops run without the GIL), and the next block of
    several is planned while this one lasts.

    Where the examples come from is said by `_draw` and `_pack`.

    Args:
        data: What the state must find again when it is restored: name to number, the seed among them.
        batch_tokens: Most tokens in a micro-batch, specials counted.
        accumulation: Micro-batches in a global batch.
        rank: Number of this process.
        world_size: W, number of processes.
        processes: P, those that a global batch is made for. Default: `world_size`.
        batch_size: Most examples in a micro-batch. Default: as many as fit.

    Raises:
        ConfigError: bad-value.
    """

    def __init__(
        self,
        data: dict[str, int],
        *,
        batch_tokens: int,
        accumulation: int,
        rank: int,
        world_size: int,
        processes: int | None = None,
        batch_size: int | None = None,
    ) -> None:
        self.processes = world_size if processes is None else processes
        if min(accumulation, self.processes) < 1 or not 0 <= rank < world_size:
            raise ConfigError(
                "bad-value",
                f"accumulation {accumulation}, processes {self.processes}, rank {rank}, world_size {world_size}",
                "accumulation and processes are 1 or more, the rank is from 0 to below world_size",
            )
        self._data = data
        self.batch_tokens, self.batch_size, self.accumulation = batch_tokens, batch_size, accumulation
        self.rank, self.world_size = rank, world_size
        self._planned: tuple[tuple[int, int], Any, np.ndarray] | None = None  # (epoch, block), plan, lengths
        self._place = _Place(0, 0, 0)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batch-stream")
        self._next: Future[tuple[list[PackedBatch], _Place]] | None = None
        self._planner = ThreadPoolExecutor(1, thread_name_prefix="block-planner")
        self._ahead: tuple[tuple[int, int], Future[tuple[Any, np.ndarray]]] | None = None

    def num_blocks(self, epoch: int = 0) -> int:
        """Parts that an epoch comes in."""
        return 1

    @abstractmethod
    def _draw(self, epoch: int, block: int) -> tuple[Any, np.ndarray]:
        """The examples of a block in their order, in whatever form `_pack` wants them, and their lengths [N]."""

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
        """Where the next batch starts: epoch, block, cursor (examples of the block given out, over all processes); and
        the seed and the size of the data, which must be the same again.

        The state fits any number of processes and any batch size: a run may go on with others, and no example is lost
        or repeated.
        """
        return {**self._place._asdict(), **self._data}

    def restore(self, state: dict[str, int]) -> None:
        """Go where `state` was taken: the next batch is, to the bit, the one that came next then.

        Raises:
            ConfigError: resume-mismatch, if the state belongs to another seed or other data.
        """
        check_same_stream(state, self._data)
        if self._next is not None:
            self._next.exception()  # wait: the thread may be planning
            self._next = None
        self._place = _Place(int(state["epoch"]), int(state.get("block", 0)), int(state["cursor"]))

    def plan(self, epoch: int = 0, block: int = 0) -> Any:
        """The examples of a block of an epoch in their order."""
        return self._thread.submit(self._plan, epoch, block).result()[0]

    def batches_in_epoch(self, epoch: int = 0) -> int:
        """Number of global batches in an epoch, which may differ a little from one epoch to the next; of several blocks about."""
        _, lengths = self._thread.submit(self._plan, epoch, 0).result()
        micro_batches, cursor = 0, 0
        while rows := self._rows(lengths, cursor):
            cursor += rows * self.processes
            micro_batches += 1
        return -(-micro_batches // self.accumulation) * self.num_blocks(epoch)

    def _rows(self, lengths: np.ndarray, cursor: int) -> int:
        """Rows of examples, one for each of P processes, that P micro-batches take from a place on."""
        rows = int(rows_that_fit(lengths, cursor, self.processes, self.batch_tokens))
        return rows if self.batch_size is None else min(rows, self.batch_size)

    def _plan(self, epoch: int, block: int) -> tuple[Any, np.ndarray]:
        if self._planned is None or self._planned[0] != (epoch, block):
            self._planned = None  # never two plans in memory, but where one is made ahead
            ahead, self._ahead = self._ahead, None
            plan, lengths = ahead[1].result() if ahead and ahead[0] == (epoch, block) else self._draw(epoch, block)
            if len(lengths) < self.world_size:
                raise DataError(
                    "no-examples",
                    f"{len(lengths):,} examples are not enough for {self.world_size} processes",
                    "add text, or use fewer processes",
                )
            self._planned = (epoch, block), plan, lengths
            if self.num_blocks(epoch) > 1:
                following = self._after(epoch, block)
                self._ahead = following, self._planner.submit(self._draw, *following)
        return self._planned[1:]

    def _after(self, epoch: int, block: int) -> tuple[int, int]:
        """The block after a block."""
        return (epoch, block + 1) if block + 1 < self.num_blocks(epoch) else (epoch + 1, 0)

    def _make(self, place: _Place) -> tuple[list[PackedBatch], _Place]:
        """The global batch at a place, and the place after it."""
        epoch, block, cursor = place
        plan, lengths = self._plan(epoch, block)
        if cursor >= len(lengths):
            (epoch, block), cursor = self._after(epoch, block), 0
            plan, lengths = self._plan(epoch, block)
        own = []
        for round_ in range(self.accumulation):
            rows = self._rows(lengths, cursor)
            last = min(cursor + rows * self.processes, len(lengths))
            for number in range(self.processes if rows else 0):
                if (round_ * self.processes + number) % self.world_size == self.rank:
                    own.append(np.arange(cursor + number, last, self.processes))
            cursor = last
        batches = [self._pack(plan, indices, epoch) for indices in own or [np.arange(0)]]
        return batches, _Place(epoch, block, cursor)
