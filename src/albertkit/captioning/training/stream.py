"""Endless batches of captions whose place is two integers."""

from typing import Any

import numpy as np

from albertkit.captioning.training.batch import CaptionBatch
from albertkit.captioning.training.rows import CaptionRows
from albertkit.errors import ConfigError
from albertkit.training.resuming import check_same_stream


class CaptionStream:
    """Rows in an order drawn anew for each epoch; an update is `batch_size` rows, the last of an epoch what is left.

    If that is less than there are processes, some get an empty batch.

    Args:
        rows: Of the training captions.
        batch_size: Rows an update, over all processes.
        micro_batch: Most rows computed at once.
        seed: Of the order.
        rank: Of this process.
        world_size: Processes.

    Raises:
        ConfigError: bad-settings if an update has fewer rows than there are processes.
    """

    def __init__(
        self, rows: CaptionRows, batch_size: int, micro_batch: int, seed: int, rank: int = 0, world_size: int = 1
    ) -> None:
        if min(batch_size, len(rows)) < world_size:
            raise ConfigError(
                "bad-settings", f"{min(batch_size, len(rows))} captions an update cannot be shared by {world_size} processes",
                f"use --batch-size {world_size} or more, and as many captions",
            )  # fmt: skip
        self._rows, self._batch_size, self._micro_batch, self._seed = rows, batch_size, micro_batch, seed
        self._rank, self._world_size = rank, world_size
        self._epoch = self._cursor = self._update = 0
        self._order: tuple[int, np.ndarray] | None = None

    def __next__(self) -> list[CaptionBatch]:
        if self._cursor >= len(self._rows):
            self._epoch, self._cursor = self._epoch + 1, 0
        if self._order is None or self._order[0] != self._epoch:
            order = np.random.default_rng([self._seed, self._epoch]).permutation(len(self._rows))
            self._order = self._epoch, order
        taken = self._order[1][self._cursor : self._cursor + self._batch_size]
        self._cursor += len(taken)
        own = taken[self._rank :: self._world_size]
        pieces = [own[start : start + self._micro_batch] for start in range(0, len(own), self._micro_batch)]
        batches = [self._rows.batch(piece, self._epoch, self._update) for piece in pieces or [own]]
        self._update += 1
        return batches

    def state(self) -> dict[str, Any]:
        """Where the next update starts, and what must be the same again."""
        place = {"epoch": self._epoch, "cursor": self._cursor, "update": self._update}
        return {**place, "seed": self._seed, "captions": len(self._rows)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go where `state` was taken.

        Raises:
            ConfigError: resume-mismatch if the state belongs to other captions or another seed.
        """
        check_same_stream(state, {"seed": self._seed, "captions": len(self._rows)})
        self._epoch, self._cursor, self._update = (int(state[name]) for name in ("epoch", "cursor", "update"))
