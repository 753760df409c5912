"""Training batches of features: every epoch in another order, an update at a time, at a place that is two integers."""

from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np

from albertkit.batches.features import Features, LabelledBatch
from albertkit.errors import ConfigError, DataError


class EpochOrder:
    """Numbers of the examples of one update after the other; every epoch has another random order.

    An update has `batch_size` examples, the last one of an epoch those that are left.

    Args:
        name: Plural of what is counted, for messages and for the saved state.
        count: Number of examples.
        batch_size: Examples of an update, over all processes.
        seed: Of the orders.
        world_size: Number of processes.
    """

    def __init__(self, name: str, count: int, batch_size: int, seed: int, world_size: int) -> None:
        if batch_size < world_size:
            raise ConfigError(
                "bad-value",
                f"an update of {batch_size} {name} cannot be shared by {world_size} processes",
                f"use --batch-size {world_size} or more",
            )
        if count < world_size:
            raise DataError(
                "too-little-data",
                f"{count} training {name} for {world_size} processes",
                "add some",
            )
        self._made_from = {"seed": seed, name: count}
        self._count = count
        self._batch_size = batch_size
        self._seed = seed
        self.epoch = self._cursor = 0
        self._order: tuple[int, np.ndarray] | None = None

    @property
    def update(self) -> int:
        """Number of updates before the next one."""
        per_epoch = -(-self._count // self._batch_size)
        return self.epoch * per_epoch + -(-self._cursor // self._batch_size)

    def __next__(self) -> np.ndarray:
        if self._cursor >= self._count:
            self.epoch += 1
            self._cursor = 0
        if self._order is None or self._order[0] != self.epoch:
            # From the numbers alone: a resumed run need not draw the epochs before it again.
            generator = np.random.default_rng([self._seed, self.epoch])
            self._order = self.epoch, generator.permutation(self._count)
        examples = self._order[1][self._cursor : self._cursor + self._batch_size]
        self._cursor += len(examples)
        return examples

    def state(self) -> dict[str, Any]:
        """Return where the next update starts, and what must be the same on resume."""
        return {"epoch": self.epoch, "cursor": self._cursor, **self._made_from}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""
        check_same_stream(state, self._made_from)
        self.epoch = int(state["epoch"])
        self._cursor = int(state["cursor"])


class OrderedStream:
    """Base of the streams that draw their updates from an `EpochOrder`; its place is theirs."""

    def __init__(self, order: EpochOrder) -> None:
        self._order = order

    def state(self) -> dict[str, Any]:
        """Return where the next update starts, and what must be the same on resume."""
        return self._order.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""
        self._order.restore(state)


class ExampleStream(OrderedStream):
    """Endless updates, each a list of micro-batches; `training.loop.Stream`.

    The examples of an epoch are put in a random order. An update takes the next `batch_size` of
    them with all their sequences, whatever their lengths: published settings mean that. Within an
    update the sequences are sorted by length, so that those of one length meet (they attend
    together), dealt to the processes, and cut into micro-batches of at most `batch_tokens`. The
    last update of an epoch may have fewer examples, and if those are fewer than the processes, some
    get an empty batch.

    Args:
        features: Labelled.
        grouped: Whether all sequences of an example must be in one micro-batch, because they
            compete.
        batch_size: Examples of an update, over all processes.
        batch_tokens: Most tokens of a micro-batch; what is longer and cannot be cut makes one
            alone.
        seed: Of the orders.
        rank: Number of this process.
        world_size: Number of processes.
    """

    def __init__(
        self,
        features: Features,
        grouped: bool = False,
        *,
        batch_size: int,
        batch_tokens: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        bounds = np.append(
            np.unique(features.examples, return_index=True)[1],
            features.num_sequences,
        )
        self._features = features
        self._bounds = bounds
        self._grouped = grouped
        self._lengths = np.diff(features.offsets[bounds])
        self._batch_tokens = batch_tokens
        self._rank = rank
        self._world_size = world_size
        super().__init__(EpochOrder("examples", len(self._lengths), batch_size, seed, world_size))

    def __next__(self) -> list[LabelledBatch]:
        examples = next(self._order)
        # Stable: examples of one length keep the random order, on every machine the same.
        update = examples[np.argsort(self._lengths[examples], kind="stable")]
        # Every W-th of the sorted ones, so that no process has the long ones alone and lets the
        # others wait.
        examples = update[self._rank :: self._world_size]
        if self._grouped:
            runs = [
                self._sequences(run)
                for run in cut_by_tokens(self._lengths[examples], self._batch_tokens, examples)
            ]
        else:
            sequences = self._sequences(examples)
            runs = [
                sequences[run]
                for run in runs_by_length(self._features.lengths[sequences], self._batch_tokens)
            ]
        batches = [self._features.batch(run) for run in runs or [np.zeros(0, np.int64)]]
        return [replace(batch, update_examples=update) for batch in batches]

    def _sequences(self, examples: np.ndarray) -> np.ndarray:
        sequences = [np.arange(self._bounds[e], self._bounds[e + 1]) for e in examples]
        return np.concatenate(sequences) if sequences else np.zeros(0, np.int64)


def runs_by_length(lengths: np.ndarray, budget: int) -> list[np.ndarray]:
    """Return the numbers of sequences, the shortest first, cut into runs of at most so many tokens."""
    order = np.argsort(lengths, kind="stable")
    return cut_by_tokens(lengths[order], budget, order)


def cut_by_tokens(lengths: np.ndarray, budget: int, values: np.ndarray) -> list[np.ndarray]:
    """Cut values [N] into runs whose lengths, int64 [N], add up to at most a budget; a longer one makes a run alone."""
    if not isinstance(budget, Integral) or budget < 1:
        raise ConfigError(
            "bad-value",
            f"batch_tokens is {budget!r}, it must be a whole number, at least 1",
            "leave it out",
        )
    runs = []
    start = 0
    num_tokens = 0
    for index, length in enumerate(lengths.tolist()):
        if index > start and num_tokens + length > budget:
            runs.append(values[start:index])
            start = index
            num_tokens = 0
        num_tokens += length
    return [*runs, values[start:]] if start < len(values) else runs


def check_same_stream(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Refuse a saved stream of other data or another seed."""
    for name, value in current.items():
        if saved.get(name) != value:
            raise ConfigError(
                "changed",
                f"{name} of the saved stream: {saved.get(name)}; of this one: {value}",
                "resume with the data and the settings that the run was started with",
            )
