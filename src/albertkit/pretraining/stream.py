"""The stream of training batches: endless, shuffled, the same for any number of processes, resumable to the bit."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from albertkit.errors import ConfigError, DataError
from albertkit.model.packing import PackedBatch
from albertkit.pretraining.assembly import Assembler
from albertkit.pretraining.examples import EpochPlan, ExampleSettings, Store, plan_epoch
from albertkit.pretraining.masking import MaskSettings
from albertkit.tokenizer.compiled import compiled


@compiled
def _rows_that_fit(lengths: np.ndarray, first: int, world_size: int, budget: int) -> int:
    """How many rows of `world_size` examples, from `first` on, every process can take within its token budget.

    Args:
        lengths: uint16 [N], of the examples in order; process r takes number r of each row.
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


def _check_budget(batch_tokens: int, settings: ExampleSettings) -> None:
    if batch_tokens < settings.max_length:
        raise ConfigError(
            "batch-too-small",
            f"batch_tokens is {batch_tokens:,}, but an example may have {settings.max_length:,} tokens",
            f"use at least --batch-tokens {settings.max_length}, or a smaller --length",
        )


class _Place(NamedTuple):
    """Where a stream stands: the next example of an epoch, counted over all processes."""

    epoch: int
    cursor: int


class BatchStream:
    """Iterates over global batches; each is this process's list of `accumulation` micro-batches.

    The examples of an epoch are put in one random order. A micro-batch takes as many of the next examples as fit in
    `batch_tokens` (process r of W takes every W-th, from r on, and all processes take equally many, so that they stay
    in step). A global batch does not reach into the next epoch: the last one of an epoch may have fewer and smaller
    micro-batches. Of an epoch's order, the last N mod W examples are left out, none with one process; the order is
    another in every epoch.

    The next batch is prepared on a thread while this one is used (the compiled loops run without the GIL).

    Args:
        store: The token store.
        included: One bool array [documents] a shard: the documents to train on.
        examples: How documents become examples.
        masks: What is masked.
        seed: Any whole number. Everything random follows from it, the epoch and the place of an example in it.
        batch_tokens: Most tokens in a micro-batch, specials counted.
        accumulation: Micro-batches in a global batch.
        rank: Number of this process.
        world_size: Number of processes.

    Raises:
        ConfigError: batch-too-small, if the longest example may exceed `batch_tokens`.
        DataError: no-examples, when the first batch is asked for and no document can be used.
    """

    def __init__(
        self,
        store: Store,
        included: Sequence[np.ndarray],
        examples: ExampleSettings | None = None,
        masks: MaskSettings | None = None,
        *,
        seed: int = 0,
        batch_tokens: int = 16384,
        accumulation: int = 1,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.settings = examples or ExampleSettings()
        _check_budget(batch_tokens, self.settings)
        if accumulation < 1 or not 0 <= rank < world_size:
            raise ConfigError("bad-value", f"accumulation {accumulation}, rank {rank}, world_size {world_size}")
        self._store, self._included = store, included
        self._num_documents = int(sum(np.count_nonzero(flags) for flags in included))
        self.seed, self.batch_tokens, self.accumulation = seed, batch_tokens, accumulation
        self.rank, self.world_size = rank, world_size
        self._assembler = Assembler(store, masks or MaskSettings(), seed)
        self._planned: tuple[int, EpochPlan, np.ndarray] | None = None  # epoch, plan, lengths
        self._place = _Place(0, 0)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batch-stream")
        self._next: Future[tuple[list[PackedBatch], _Place]] | None = None

    def __iter__(self) -> "BatchStream":
        return self

    def __next__(self) -> list[PackedBatch]:
        pending = self._next or self._thread.submit(self._make, self._place)
        self._next = None
        batch, self._place = pending.result()
        self._next = self._thread.submit(self._make, self._place)
        return batch

    def state(self) -> dict[str, int]:
        """Where the next batch starts: epoch, cursor (examples of the epoch given out, over all processes); and the
        seed and the number of documents, which must be the same again.

        The state fits any number of processes and any batch size: a run may go on with others, and no example is lost
        or repeated.
        """
        return {
            "epoch": self._place.epoch,
            "cursor": self._place.cursor,
            "seed": self.seed,
            "documents": self._num_documents,
        }

    def restore(self, state: dict[str, int]) -> None:
        """Go where `state` was taken: the next batch is, to the bit, the one that came next then.

        Raises:
            ConfigError: resume-mismatch, if the state belongs to another seed or other documents.
        """
        own = self.state()
        for name in ("seed", "documents"):
            if state[name] != own[name]:
                raise ConfigError(
                    "resume-mismatch",
                    f"{name} of the saved stream: {state[name]}; of this one: {own[name]}",
                    "resume with the store and the settings that the run was started with",
                )
        if self._next is not None:
            self._next.exception()  # wait: the thread may be planning
            self._next = None
        self._place = _Place(int(state["epoch"]), int(state["cursor"]))

    def plan(self, epoch: int = 0) -> EpochPlan:
        """The examples of an epoch in their order, and how many documents could not be used."""
        return self._thread.submit(self._plan, epoch).result()[0]

    def batches_in_epoch(self, epoch: int = 0) -> int:
        """Number of global batches in an epoch; it differs a little from one epoch to the next."""
        _, lengths = self._thread.submit(self._plan, epoch).result()
        micro_batches, cursor = 0, 0
        while rows := _rows_that_fit(lengths, cursor, self.world_size, self.batch_tokens):
            cursor += rows * self.world_size
            micro_batches += 1
        return -(-micro_batches // self.accumulation)

    def _plan(self, epoch: int) -> tuple[EpochPlan, np.ndarray]:
        if self._planned is None or self._planned[0] != epoch:
            self._planned = None  # never two plans in memory
            plan = plan_epoch(self._store, self._included, self.settings, self.seed, epoch)
            if len(plan.examples) < self.world_size:
                raise DataError(
                    "no-examples",
                    f"{len(plan.examples):,} examples are not enough for {self.world_size} processes",
                    "add text, or use fewer processes",
                )
            self._planned = epoch, plan, plan.lengths().astype(np.uint16)
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
            rows = _rows_that_fit(lengths, cursor, self.world_size, self.batch_tokens)
            if not rows:
                break
            indices = cursor + self.rank + self.world_size * np.arange(rows)
            batches.append(self._assembler.batch(plan, indices, epoch))
            cursor += rows * self.world_size
        return batches, _Place(epoch, cursor)


class EvaluationStream:
    """One pass over held-out documents, in order; every iteration gives the same batches.

    Args:
        store: The token store.
        held_out: One bool array [documents] a shard: the documents to evaluate on.
        examples: How documents become examples.
        masks: What is masked.
        seed: Fixed, so that evaluations compare.
        batch_tokens: Most tokens in a batch.
        rank: Number of this process; it takes every `world_size`-th example. Processes may get differently many.
        world_size: Number of processes.

    Raises:
        ConfigError: batch-too-small, if the longest example may exceed `batch_tokens`.
        DataError: nothing-to-evaluate, if no held-out document can be used.
    """

    def __init__(
        self,
        store: Store,
        held_out: Sequence[np.ndarray],
        examples: ExampleSettings | None = None,
        masks: MaskSettings | None = None,
        *,
        seed: int = 0,
        batch_tokens: int = 16384,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        settings = examples or ExampleSettings()
        self._assembler = Assembler(store, masks or MaskSettings(), seed)
        _check_budget(batch_tokens, settings)
        self._batch_tokens = batch_tokens
        try:
            self.plan = plan_epoch(store, held_out, settings, seed, epoch=0, shuffle=False)
        except DataError as error:
            raise DataError(
                "nothing-to-evaluate", f"no held-out document can be evaluated on: {error.message}",
                "hold out a larger share of documents with --held-out, or use a larger corpus",
            ) from None  # fmt: skip
        self._indices = np.arange(rank, len(self.plan.examples), world_size)

    @property
    def num_examples(self) -> int:
        """Examples this process gives out in one pass."""
        return len(self._indices)

    def __iter__(self) -> Iterator[PackedBatch]:
        lengths = self.plan.lengths(self._indices).astype(np.uint16)
        cursor = 0
        while rows := _rows_that_fit(lengths, cursor, 1, self._batch_tokens):
            yield self._assembler.batch(self.plan, self._indices[cursor : cursor + rows], epoch=0)
            cursor += rows
