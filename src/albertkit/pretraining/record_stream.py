"""Batches of existing records: their order is drawn anew in every epoch, all else is as it was written.

How long a record is without its padding is known only when it is read, so batches are counted in padded tokens: each takes
`batch_tokens // S` records of S padded tokens.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from albertkit.errors import DataError
from albertkit.model.packing import PackedBatch
from albertkit.pretraining.epoch_stream import EpochStream, check_budget
from albertkit.pretraining.randomness import ORDER, make_key, shuffle_rows
from albertkit.pretraining.records import TrainingRecords


class RecordStream(EpochStream):
    """Training batches of existing records, in another order every epoch.

    Args:
        records: The records.
        included: bool [records]: those to train on.
        seed: Of the order.
        batch_tokens, accumulation, rank, world_size, processes, batch_size: As for `EpochStream`.

    Raises:
        ConfigError: batch-too-small.
    """

    def __init__(
        self,
        records: TrainingRecords,
        included: NDArray[np.bool_],
        *,
        seed: int = 0,
        batch_tokens: int = 16384,
        accumulation: int = 1,
        rank: int = 0,
        world_size: int = 1,
        processes: int | None = None,
        batch_size: int | None = None,
    ) -> None:
        check_budget(batch_tokens, records.length)
        self._records, self._numbers, self._seed = records, np.flatnonzero(included).astype(np.uint32), seed
        super().__init__(
            {"seed": seed, "records": len(self._numbers)},
            batch_tokens=batch_tokens, accumulation=accumulation, rank=rank, world_size=world_size,
            processes=processes, batch_size=batch_size,
        )  # fmt: skip

    def _draw(self, epoch: int, block: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        order = self._numbers[:, None].copy()
        shuffle_rows(order, make_key(self._seed, ORDER, epoch))
        return order[:, 0], np.full(len(order), self._records.length, np.uint32)

    def _pack(self, plan: NDArray[np.uint32], indices: NDArray[Any], epoch: int) -> PackedBatch:
        return self._records.batch(plan[indices])


class RecordEvaluation:
    """One pass over held-out records, in order; every iteration gives the same batches.

    Args:
        records: The records.
        held_out: bool [records]: those to evaluate on.
        batch_tokens: Most tokens in a batch, padding counted.
        rank: Number of this process; it takes every `world_size`-th record.
        world_size: Number of processes.

    Raises:
        DataError: nothing-to-evaluate.
    """

    def __init__(
        self, records: TrainingRecords, held_out: NDArray[np.bool_], *, batch_tokens: int, rank: int, world_size: int
    ) -> None:
        if not held_out.any():
            raise DataError(
                "nothing-to-evaluate", f"none of the {len(records):,} records is held out",
                "hold out a larger share with --held-out, or use more records",
            )  # fmt: skip
        self._records = records
        self.size = int(np.count_nonzero(held_out)), 0  # examples; how many pieces are masked in them is not known
        self._numbers = np.flatnonzero(held_out)[rank::world_size]
        self._rows = batch_tokens // records.length

    def __iter__(self) -> Iterator[PackedBatch]:
        for first in range(0, len(self._numbers), self._rows):
            yield self._records.batch(self._numbers[first : first + self._rows])
