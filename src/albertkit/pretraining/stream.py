"""Batches of a token store: for training, segments and masks anew in every epoch; for evaluation, one pass."""

from collections.abc import Iterator, Sequence

import numpy as np

from albertkit.errors import DataError
from albertkit.model.packing import PackedBatch
from albertkit.pretraining.assembly import Assembler
from albertkit.pretraining.epoch_stream import EpochStream, check_budget, rows_that_fit
from albertkit.pretraining.examples import EpochPlan, ExampleSettings, Store, blocks_of, plan_epoch
from albertkit.pretraining.masking import MaskSettings


class BatchStream(EpochStream):
    """Training batches of a store, drawn and masked anew in every epoch.

    Args:
        store: The token store.
        included: One bool array [documents] a shard: the documents to train on.
        examples: How documents become examples.
        masks: What is masked.
        seed: Any whole number. Everything random follows from it, the epoch and the place of an example in it.
        batch_tokens, accumulation, rank, world_size, processes, batch_size: As for `EpochStream`.

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
        processes: int | None = None,
        batch_size: int | None = None,
    ) -> None:
        self.settings, self.seed = examples or ExampleSettings(), seed
        check_budget(batch_tokens, self.settings.max_length)
        documents = int(sum(np.count_nonzero(flags) for flags in included))
        super().__init__(
            {"seed": seed, "documents": documents},
            batch_tokens=batch_tokens, accumulation=accumulation, rank=rank, world_size=world_size,
            processes=processes, batch_size=batch_size,
        )  # fmt: skip
        self._store, self._included = store, included
        self._assembler = Assembler(store, masks or MaskSettings(), seed)

    def num_blocks(self, epoch: int = 0) -> int:
        """Parts that an epoch is planned in: 1 unless the store is large."""
        return len(blocks_of(self._store, self.settings, self.seed, epoch))

    def _draw(self, epoch: int, block: int) -> tuple[EpochPlan, np.ndarray]:
        plan = plan_epoch(self._store, self._included, self.settings, self.seed, epoch, block=block)
        return plan, plan.lengths().astype(np.uint16)

    def _pack(self, plan: EpochPlan, indices: np.ndarray, epoch: int) -> PackedBatch:
        return self._assembler.batch(plan, indices, epoch)


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
        check_budget(batch_tokens, settings.max_length)
        self._batch_tokens = batch_tokens
        try:
            self.plan = plan_epoch(store, held_out, settings, seed, epoch=0, shuffle=False)
        except DataError as error:
            raise DataError(
                "nothing-to-evaluate", _why_nothing(held_out, error),
                "hold out a larger share of the documents, for example --held-out 0.1, or use a larger corpus",
            ) from None  # fmt: skip
        self._indices = np.arange(rank, len(self.plan.examples), world_size)

    @property
    def num_examples(self) -> int:
        """Examples this process gives out in one pass."""
        return len(self._indices)

    @property
    def size(self) -> tuple[int, int]:
        """Examples and masked pieces of one pass, of all processes."""
        return len(self.plan.examples), int(self._assembler.masks.budgets(self.plan.lengths()).sum())

    def __iter__(self) -> Iterator[PackedBatch]:
        lengths = self.plan.lengths(self._indices).astype(np.uint16)
        cursor = 0
        while rows := rows_that_fit(lengths, cursor, 1, self._batch_tokens):
            yield self._assembler.batch(self.plan, self._indices[cursor : cursor + rows], epoch=0)
            cursor += rows


def _why_nothing(held_out: Sequence[np.ndarray], error: DataError) -> str:
    if not any(map(np.any, held_out)):
        return f"none of the {sum(map(len, held_out)):,} documents is held out to evaluate on"
    return f"no held-out document can be evaluated on: {error.message}"
