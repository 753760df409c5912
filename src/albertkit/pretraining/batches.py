"""Endless, shuffled training batches: the same for any number of processes, prepared ahead, resumable to the bit; and the
held-out batches of a store, one pass."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypedDict, Unpack

import numpy as np
import torch

from albertkit.batches.features import check_same_stream
from albertkit.batches.packed import PackedBatch
from albertkit.errors import ConfigError, DataError
from albertkit.jit import compiled
from albertkit.pretraining.examples import (
    LABELS,
    SINGLE,
    EpochPlan,
    ExampleSettings,
    Store,
    foreign_id_error,
    plan_epoch,
    shards_of_blocks,
    without_memmap,
)
from albertkit.pretraining.masking import MaskSettings, mask_sequences, mask_tables
from albertkit.pretraining.randomness import MASKS, make_key


@compiled
def _write_token_layout(
    examples: np.ndarray,
    offsets: np.ndarray,
    cls_id: int,
    sep_id: int,
    input_ids: np.ndarray,
    token_type_ids: np.ndarray,
    position_ids: np.ndarray,
) -> None:
    """Write [CLS], [SEP], segment ids (0 up to and including the first [SEP], then 1) and positions of N packed sequences."""
    for n in range(len(examples)):
        base = offsets[n]
        end = offsets[n + 1]
        middle = base + 2 + np.int64(examples[n].a_length)
        input_ids[base] = cls_id
        input_ids[middle - 1] = sep_id
        input_ids[end - 1] = sep_id
        token_type_ids[base:middle] = 0
        token_type_ids[middle:end] = 1
        for i in range(base, end):
            position_ids[i] = i - base


@compiled
def _copy_segments(
    tokens: np.ndarray, shard: int, examples: np.ndarray, offsets: np.ndarray, input_ids: np.ndarray
) -> None:
    """Copy the segments that lie in one shard to their places."""
    for n in range(len(examples)):
        example = examples[n]
        start = offsets[n] + 1
        length = np.int64(example.a_length)
        if example.a_shard == shard:
            first = np.int64(example.a_start)
            for i in range(length):
                input_ids[start + i] = tokens[first + i]
        if example.b_shard == shard and example.kind != SINGLE:
            start += length + 1
            first = np.int64(example.b_start)
            for i in range(np.int64(example.b_length)):
                input_ids[start + i] = tokens[first + i]


@dataclass(frozen=True)
class Assembled:
    """A packed batch as it was before masking, and how it was masked; for readers and for tests.

    Attributes:
        batch: The packed batch.
        original_ids: int64 [T], before masking.
        ngrams: int32 [rows, 6], one row an n-gram drawn: sequence, drawn, accepted, units, tokens,
            across_sep (`masking`).
    """

    batch: PackedBatch
    original_ids: np.ndarray
    ngrams: np.ndarray


class Assembler:
    """Makes packed batches of examples of one store, masked with a seed."""

    def __init__(self, store: Store, masks: MaskSettings, seed: int) -> None:
        tokenizer = store.tokenizer()
        self.masks = masks
        self.seed = seed
        self._cls_id = int(tokenizer.cls_id)
        self._sep_id = int(tokenizer.sep_id)
        self._vocab_size = int(tokenizer.vocab_size)
        self._tables = mask_tables(tokenizer, masks)
        self._tokens = [without_memmap(store.tokens[k]) for k in range(store.num_shards)]

    def batch(self, plan: EpochPlan, indices: np.ndarray, epoch: int) -> PackedBatch:
        """Return the packed batch of the examples at some places in the plan, int64 [N].

        An example's masks depend on its place alone, not on its company.
        """
        return self._assemble(plan, indices, epoch, log_capacity=0).batch

    def batch_with_drawn_masks(self, plan: EpochPlan, indices: np.ndarray, epoch: int) -> Assembled:
        """Return the same batch, with the ids before masking and every n-gram drawn."""
        return self._assemble(plan, indices, epoch, log_capacity=int(plan.lengths(indices).sum()))

    def _assemble(
        self,
        plan: EpochPlan,
        indices: np.ndarray,
        epoch: int,
        log_capacity: int,
    ) -> Assembled:
        examples = plan.examples[indices]
        lengths = plan.lengths(indices)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        input_ids, token_type_ids, position_ids = (
            np.empty(offsets[-1], np.int64) for _ in range(3)
        )
        _write_token_layout(
            examples,
            offsets,
            self._cls_id,
            self._sep_id,
            input_ids,
            token_type_ids,
            position_ids,
        )
        for shard in np.unique(np.concatenate([examples["a_shard"], examples["b_shard"]])):
            _copy_segments(self._tokens[shard], int(shard), examples, offsets, input_ids)
        # The masking loops look ids up unchecked
        if (largest := int(input_ids.max(initial=0))) >= self._vocab_size:
            raise foreign_id_error(largest, self._vocab_size)
        original_ids = input_ids.copy() if log_capacity else input_ids

        budgets = self.masks.num_predictions_of(lengths)
        # One more: the loop writes every token there, and goes on after those that are chosen.
        positions, labels = (np.empty(budgets.sum() + 1, np.int64) for _ in range(2))
        log = np.empty((log_capacity, 6), np.int32)
        count, logged = mask_sequences(
            input_ids,
            offsets,
            examples,
            indices + plan.first,
            budgets,
            self._tables,
            make_key(self.seed, MASKS, epoch),
            positions,
            labels,
            log,
        )
        batch = PackedBatch(
            input_ids=torch.from_numpy(input_ids),
            token_type_ids=torch.from_numpy(token_type_ids),
            position_ids=torch.from_numpy(position_ids),
            offsets=torch.from_numpy(offsets),
            lengths=tuple(lengths.tolist()),
            masked_positions=torch.from_numpy(positions[:count])
            if self.masks.masked_lm_prob
            else None,
            masked_labels=torch.from_numpy(labels[:count]) if self.masks.masked_lm_prob else None,
            sentence_order_labels=torch.from_numpy(LABELS[examples["kind"]])
            if plan.has_pairs
            else None,
        )
        return Assembled(batch, original_ids, log[:logged])


@compiled
def rows_that_fit(lengths: np.ndarray, first: int, world_size: int, budget: int) -> int:
    """Return how many rows of `world_size` examples, from `first` on, every process can take within its token budget.

    The last row of an epoch may be short: then only the first processes have an example of it.
    `lengths` is unsigned [N], of the examples in order; process r takes number r of each row.
    """
    used_tokens = np.zeros(world_size, np.int64)
    rows = 0
    while first < len(lengths):
        for rank in range(min(world_size, len(lengths) - first)):
            used_tokens[rank] += lengths[first + rank]
            if used_tokens[rank] > budget:
                return rows
        rows += 1
        first += world_size
    return rows


def check_longest_fits(batch_tokens: int, longest: int) -> None:
    """Make sure that a batch can hold the longest example."""
    if batch_tokens < longest:
        raise ConfigError(
            "bad-value",
            f"batch_tokens is {batch_tokens:,}, but an example may have {longest:,} tokens",
            f"use at least --batch-tokens {longest}, or a smaller --length",
        )


class Batching(TypedDict, total=False):
    """Rules by which examples become batches: keyword arguments of every training stream.

    batch_tokens: Most tokens in a micro-batch, specials counted; 16,384.
    accumulation: Micro-batches in a global batch; 1.
    rank: Number of this process; 0.
    world_size: W, number of processes; 1.
    processes: P, those that a global batch is made for. Default: `world_size`.
    batch_size: Most examples in a micro-batch. Default: as many as fit.
    """

    batch_tokens: int
    accumulation: int
    rank: int
    world_size: int
    processes: int | None
    batch_size: int | None


class StreamPosition(NamedTuple):
    """Position of a stream: the next example of a block of an epoch, counted over all processes."""

    epoch: int
    block: int
    cursor: int


class EpochStream(ABC):
    """Iterates over global batches; each is this process's list of micro-batches.

    A global batch is `accumulation` times P micro-batches, for P processes. The examples of an
    epoch are put in one random order, and P micro-batches take as many of the next ones as fit in
    `batch_tokens` each: number p every P-th, from p on, and all equally many. A global batch does
    not reach into the next epoch: the last one of an epoch may have fewer and smaller
    micro-batches, and of its last N mod P examples some get none. Every example of an epoch is
    given out once.

    With as many processes as that, each has its own micro-batches. Another number W of them deals
    them out in turn, so that the global batch is the same: a run may go on with fewer processes, or
    more. One that has nothing to do gets an empty batch.

    An epoch may come in several blocks, one after the other; a global batch does not reach into the
    next one either.

    The next batch is prepared on a thread while this one is used (the compiled loops run without
    the GIL), and the next block of several is planned while this one lasts.

    Where the examples come from is said by `draw` and `pack`.

    Args:
        data: What the state must find again when it is restored: name to number, the seed among
            them.
        longest: Most tokens of an example.
        how: See `Batching`.
    """

    def __init__(
        self,
        data: dict[str, int],
        longest: int,
        *,
        batch_tokens: int = 16_384,
        accumulation: int = 1,
        rank: int = 0,
        world_size: int = 1,
        processes: int | None = None,
        batch_size: int | None = None,
    ) -> None:
        check_longest_fits(batch_tokens, longest)
        self.processes = world_size if processes is None else processes
        if min(accumulation, self.processes) < 1 or not 0 <= rank < world_size:
            raise ConfigError(
                "bad-value",
                f"accumulation {accumulation}, processes {self.processes}, rank {rank}, world_size {world_size}",
                "accumulation and processes are 1 or more, the rank is from 0 to below world_size",
            )
        self._data = data
        self.batch_tokens = batch_tokens
        self.batch_size = batch_size
        self.accumulation = accumulation
        self.rank = rank
        self.world_size = world_size
        # (epoch, block), plan, lengths
        self._planned: tuple[tuple[int, int], Any, np.ndarray] | None = None
        self._position = StreamPosition(0, 0, 0)
        # One thread, so that no plan needs a lock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batch-stream")
        self._next: Future[tuple[list[PackedBatch], StreamPosition]] | None = None
        # On a thread of its own: a block takes about 8 s to plan, and the next batch must not wait
        # for it.
        self._planner = ThreadPoolExecutor(1, thread_name_prefix="block-planner")
        self._ahead: tuple[tuple[int, int], Future[tuple[Any, np.ndarray]]] | None = None

    def num_blocks(self, epoch: int = 0) -> int:
        """Return the number of parts that an epoch comes in."""
        return 1

    @abstractmethod
    def draw(self, epoch: int, block: int) -> tuple[Any, np.ndarray]:
        """Return the examples of a block in their order, in whatever form `pack` wants them, and their lengths [N]."""

    @abstractmethod
    def pack(self, plan: Any, plan_indices: np.ndarray, epoch: int) -> PackedBatch:
        """Return the packed batch of the examples at some places of a plan."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[PackedBatch]:
        pending = self._next or self._thread.submit(
            self._global_batch_and_next_position, self._position
        )
        self._next = None
        batch, self._position = pending.result()
        self._next = self._thread.submit(self._global_batch_and_next_position, self._position)
        return batch

    def state(self) -> dict[str, int]:
        """Return where the next batch starts: epoch, block, cursor (examples of the block given out, over all processes); and
        the seed and the size of the data, which must be the same again.

        The state fits any number of processes and any batch size: a run may go on with others, and
        no example is lost or repeated.
        """
        return {**self._position._asdict(), **self._data}

    def restore(self, state: dict[str, int]) -> None:
        """Go where `state` was taken: the next batch is, to the bit, the one that came next then."""
        check_same_stream(state, self._data)
        if self._next is not None:
            self._next.exception()  # wait: the thread may be planning
            self._next = None
        self._position = StreamPosition(
            int(state["epoch"]),
            # (Of an older version there is none.)
            int(state.get("block", 0)),
            int(state["cursor"]),
        )

    def plan(self, epoch: int = 0, block: int = 0) -> Any:
        """Return the examples of a block of an epoch in their order."""
        # On the stream's thread, the only one that touches the plan.
        return self._thread.submit(self._plan_and_lengths, epoch, block).result()[0]

    def estimate_global_batches(self, epoch: int = 0) -> int:
        """Return the number of global batches of an epoch, for several blocks an estimate; epochs differ a little."""
        _, lengths = self._thread.submit(self._plan_and_lengths, epoch, 0).result()
        micro_batches = 0
        cursor = 0
        while rows := self._rows(lengths, cursor):
            cursor += rows * self.processes
            micro_batches += 1
        return -(-micro_batches // self.accumulation) * self.num_blocks(epoch)

    def _rows(self, lengths: np.ndarray, cursor: int) -> int:
        """Return the rows of examples, one for each of P processes, that P micro-batches take from a place on."""
        rows = int(rows_that_fit(lengths, cursor, self.processes, self.batch_tokens))
        return rows if self.batch_size is None else min(rows, self.batch_size)

    def _plan_and_lengths(self, epoch: int, block: int) -> tuple[Any, np.ndarray]:
        if self._planned is None or self._planned[0] != (epoch, block):
            self._planned = None  # never two plans in memory, but where one is made ahead
            ahead = self._ahead
            self._ahead = None
            if ahead and ahead[0] == (epoch, block):
                plan, lengths = ahead[1].result()
            else:
                plan, lengths = self.draw(epoch, block)
            if len(lengths) < self.world_size:
                raise DataError(
                    "too-little-data",
                    f"{len(lengths):,} examples are not enough for {self.world_size} processes",
                    "add text, or use fewer processes",
                )
            self._planned = (epoch, block), plan, lengths
            if self.num_blocks(epoch) > 1:
                following = self._block_after(epoch, block)
                self._ahead = following, self._planner.submit(self.draw, *following)
        return self._planned[1:]

    def _block_after(self, epoch: int, block: int) -> tuple[int, int]:
        """Return the block after a block."""
        return (epoch, block + 1) if block + 1 < self.num_blocks(epoch) else (epoch + 1, 0)

    def _global_batch_and_next_position(
        self, position: StreamPosition
    ) -> tuple[list[PackedBatch], StreamPosition]:
        """Return the global batch at a place, and the place after it."""
        epoch, block, cursor = position
        plan, lengths = self._plan_and_lengths(epoch, block)
        if cursor >= len(lengths):
            (epoch, block), cursor = self._block_after(epoch, block), 0
            plan, lengths = self._plan_and_lengths(epoch, block)
        index_lists = []
        for round_ in range(self.accumulation):
            rows = self._rows(lengths, cursor)
            last = min(cursor + rows * self.processes, len(lengths))
            for number in range(self.processes if rows else 0):
                if (round_ * self.processes + number) % self.world_size == self.rank:
                    index_lists.append(np.arange(cursor + number, last, self.processes))
            cursor = last
        # An empty one where there is nothing to do: all processes make the same collective calls.
        batches = [self.pack(plan, indices, epoch) for indices in index_lists or [np.arange(0)]]
        return batches, StreamPosition(epoch, block, cursor)


class BatchStream(EpochStream):
    """Training batches of a store, drawn and masked again in every epoch.

    Args:
        store: The token store.
        included: One bool array [documents] a shard: the documents to train on.
        examples: How documents become examples.
        masks: What is masked.
        seed: Any whole number. Everything random follows from it, the epoch and the place of an
            example in it.
        how: See `Batching`.
    """

    def __init__(
        self,
        store: Store,
        included: Sequence[np.ndarray],
        examples: ExampleSettings | None = None,
        masks: MaskSettings | None = None,
        *,
        seed: int = 0,
        **how: Unpack[Batching],
    ) -> None:
        self.settings = examples or ExampleSettings()
        self.seed = seed
        documents = int(sum(np.count_nonzero(flags) for flags in included))
        super().__init__({"seed": seed, "documents": documents}, self.settings.max_length, **how)
        self._store = store
        self._included = included
        self._assembler = Assembler(store, masks or MaskSettings(), seed)

    def num_blocks(self, epoch: int = 0) -> int:
        """Return the number of parts that an epoch is planned in: 1 unless the store is large."""
        return len(shards_of_blocks(self._store, self.settings, self.seed, epoch))

    def draw(self, epoch: int, block: int) -> tuple[EpochPlan, np.ndarray]:
        plan = plan_epoch(self._store, self._included, self.settings, self.seed, epoch, block=block)
        # 2 bytes an example: a block has some 29 million.
        return plan, plan.lengths().astype(np.uint16)

    def pack(self, plan: EpochPlan, plan_indices: np.ndarray, epoch: int) -> PackedBatch:
        return self._assembler.batch(plan, plan_indices, epoch)


class EvaluationStream:
    """One pass over held-out documents, in order; every iteration gives the same batches.

    Args:
        store: The token store.
        held_out: One bool array [documents] a shard: the documents to evaluate on.
        examples: How documents become examples.
        masks: What is masked.
        seed: Fixed, so that evaluations compare.
        batch_tokens: Most tokens in a batch.
        rank: Number of this process; it takes every `world_size`-th example. Processes may get
            differently many.
        world_size: Number of processes.
    """

    def __init__(
        self,
        store: Store,
        held_out: Sequence[np.ndarray],
        examples: ExampleSettings | None = None,
        masks: MaskSettings | None = None,
        *,
        seed: int = 0,
        batch_tokens: int = 16_384,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        settings = examples or ExampleSettings()
        self._assembler = Assembler(store, masks or MaskSettings(), seed)
        check_longest_fits(batch_tokens, settings.max_length)
        self._batch_tokens = batch_tokens
        try:
            self.plan = plan_epoch(store, held_out, settings, seed, epoch=0, shuffle=False)
        except DataError as error:
            raise _no_evaluation_error(held_out, error) from None
        self._indices = np.arange(rank, len(self.plan.examples), world_size)

    @property
    def size(self) -> tuple[int, int]:
        """Examples and masked tokens of one pass, of all processes."""
        return len(self.plan.examples), int(
            self._assembler.masks.num_predictions_of(self.plan.lengths()).sum()
        )

    def __iter__(self) -> Iterator[PackedBatch]:
        # `rows_that_fit` is compiled for lengths of one type, that of training.
        lengths = self.plan.lengths(self._indices).astype(np.uint16)
        cursor = 0
        while rows := rows_that_fit(lengths, cursor, 1, self._batch_tokens):
            yield self._assembler.batch(self.plan, self._indices[cursor : cursor + rows], epoch=0)
            cursor += rows


def _no_evaluation_error(held_out: Sequence[np.ndarray], error: DataError) -> DataError:
    documents = sum(map(len, held_out))
    num_held_out = sum(int(np.count_nonzero(included)) for included in held_out)
    fact = f"no held-out document can be evaluated on: {error.message}"
    if not num_held_out:
        fact = f"none of the {documents:,} documents is held out to evaluate on"
    if documents < 2:
        hint = "build a store of more documents; in a text file an empty line ends a document"
    elif num_held_out >= documents / 4:
        hint = "build a store of more documents, or of longer ones"
    else:
        # Twice the share that was held out
        share = max(0.1, math.ceil(20 * num_held_out / documents) / 10)
        hint = (
            f"hold out more than {num_held_out:,} of {documents:,} documents, for example --held-out {share:g}, "
            "or use a larger corpus"
        )
    return DataError("too-little-data", fact, hint)
