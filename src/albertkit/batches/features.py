"""Features of examples: sequences of ids in flat arrays, the batches that are packed from them, and streams of updates:
every epoch in another order, an update at a time, at a place that is two integers.

M sequences of T tokens in all, of E examples. A batch has N sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from albertkit.batches import MovableBatch
from albertkit.batches.packed import PackedBatch
from albertkit.errors import ConfigError, DataError


def tokens_left_for_text(length: int, special_tokens: int) -> int:
    """Return how many tokens of text a sequence has room for."""
    if length <= special_tokens:
        raise ConfigError(
            "bad-value",
            f"length {length} has no room for a token",
            "use --length 64 or more",
        )
    return length - special_tokens


@dataclass(frozen=True, eq=False)
class Features:
    """Sequences of ids with what belongs to them.

    An example has one sequence, or several that stand together: the windows of a long text, the
    choices of a question.

    Attributes:
        input_ids: int32 [T], special tokens included.
        token_type_ids: uint8 [T].
        offsets: int64 [M+1]; sequence m is `offsets[m]:offsets[m+1]`.
        examples: int64 [M], ascending: the example (its place in the list) of each sequence.
        per_sequence: Name to array [M, ...]: labels, among others.
        per_token: Name to array [T, ...]: labels of tokens, among others.
        left_out: int64 [E], tokens of each example that did not fit and are in no sequence; None
            where nothing can be cut.
    """

    input_ids: np.ndarray
    token_type_ids: np.ndarray
    offsets: np.ndarray
    examples: np.ndarray
    per_sequence: Mapping[str, np.ndarray] = field(default_factory=dict)
    per_token: Mapping[str, np.ndarray] = field(default_factory=dict)
    left_out: np.ndarray | None = None

    @classmethod
    def from_sequences(
        cls,
        sequences: Iterable[tuple[Sequence[int] | np.ndarray, int]],
        examples: Sequence[int] | np.ndarray,
        per_sequence: Mapping[str, np.ndarray] | None = None,
        per_token: Mapping[str, np.ndarray] | None = None,
        left_out: np.ndarray | None = None,
    ) -> Features:
        """Make features from M pairs: ids with special tokens, and how many of them are of type 0; the others are of type 1."""
        ids = []
        firsts = []
        for row, first in sequences:
            ids.append(np.asarray(row, np.int32))
            firsts.append(min(first, len(row)))  # a row that was cut may end in its first text
        lengths = np.array([len(row) for row in ids], np.int64)
        offsets, positions = _offsets_and_positions(lengths)
        types = (positions >= np.repeat(np.array(firsts, np.int64), lengths)).astype(np.uint8)
        flat = np.concatenate(ids) if ids else np.zeros(0, np.int32)
        return cls(
            flat,
            types,
            offsets,
            np.asarray(examples, np.int64),
            per_sequence or {},
            per_token or {},
            left_out,
        )

    @classmethod
    def concatenated(cls, parts: Sequence[Features]) -> Features:
        """Join several features, at least one, with the same names; examples are numbered on.

        `left_out` is not kept: it says something of whole requests, not of what is computed.
        """
        examples = []
        tokens = []
        num_examples = 0
        num_tokens = 0
        for part in parts:
            examples.append(part.examples + num_examples)
            tokens.append(part.offsets[1:] + num_tokens)
            # Their numbers ascend: the last one counts them.
            num_examples += int(part.examples[-1]) + 1 if part.num_sequences else 0
            num_tokens += int(part.offsets[-1])
        first = parts[0]
        return cls(
            np.concatenate([part.input_ids for part in parts]),
            np.concatenate([part.token_type_ids for part in parts]),
            np.concatenate([np.zeros(1, np.int64), *tokens]),
            np.concatenate(examples),
            {
                name: np.concatenate([part.per_sequence[name] for part in parts])
                for name in first.per_sequence
            },
            {
                name: np.concatenate([part.per_token[name] for part in parts])
                for name in first.per_token
            },
        )

    @property
    def num_sequences(self) -> int:
        """Return the number of sequences."""
        return len(self.offsets) - 1

    @property
    def num_truncated(self) -> int:
        """Return the number of examples that lost tokens."""
        return 0 if self.left_out is None else int(np.count_nonzero(self.left_out))

    def num_unknown(self, unknown_id: int) -> int:
        """Return the number of tokens that stand for what the tokenizer does not know."""
        return int(np.count_nonzero(self.input_ids == unknown_id))

    @property
    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each sequence, int64 [M]."""
        return np.diff(self.offsets)

    def sequence_bounds(self, num_examples: int) -> np.ndarray:
        """Return bounds, int64 [E+1]: sequences `[e]:[e+1]` are those of example e."""
        return np.searchsorted(self.examples, np.arange(num_examples + 1))

    def batch(self, sequences: np.ndarray) -> LabelledBatch:
        """Return the packed batch of the sequences with these numbers, int64 [N], in the order given."""
        lengths = self.lengths[sequences]
        offsets, positions = _offsets_and_positions(lengths)
        tokens = np.repeat(self.offsets[sequences], lengths) + positions
        packed = PackedBatch(
            # Widened for the batch alone: held for all examples, int64 would take more than three
            # times the memory of int32 and uint8.
            input_ids=torch.from_numpy(self.input_ids[tokens].astype(np.int64)),
            token_type_ids=torch.from_numpy(self.token_type_ids[tokens].astype(np.int64)),
            position_ids=torch.from_numpy(positions.astype(np.int64)),
            offsets=torch.from_numpy(offsets),
            lengths=tuple(lengths.tolist()),
        )
        return LabelledBatch(
            packed=packed,
            sequences=sequences,
            examples=torch.from_numpy(self.examples[sequences]),
            per_sequence={
                name: torch.from_numpy(values[sequences])
                for name, values in self.per_sequence.items()
            },
            per_token={
                name: torch.from_numpy(values[tokens]) for name, values in self.per_token.items()
            },
        )


@dataclass(frozen=True, eq=False)
class LabelledBatch(MovableBatch):
    """A packed batch with what belongs to its N sequences and T tokens.

    Attributes:
        packed: What the model sees.
        sequences: int64 [N] on the host, their numbers in the features.
        examples: int64 [N], the example of each sequence; sequences of one example stand together.
        per_sequence: Name to tensor [N, ...].
        per_token: Name to tensor [T, ...].
        update_examples: int64, the examples of the whole update in the order of one process;
            process r of W has numbers r, r + W, … of them. None where the batch is not of a stream.
    """

    packed: PackedBatch
    sequences: np.ndarray
    examples: Tensor
    per_sequence: dict[str, Tensor]
    per_token: dict[str, Tensor]
    update_examples: np.ndarray | None = None

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens in the batch."""
        return self.packed.num_tokens


def _offsets_and_positions(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where each sequence begins, int64 [N+1], and the place of each token in its sequence, int64 [T]."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return offsets, np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)


def truncated_examples(features: Features) -> list[tuple[int, int]]:
    """Return the number of each example that did not fit, and how many of its tokens were left out."""
    left_out = np.zeros(0, np.int64) if features.left_out is None else features.left_out
    return [(int(number), int(left_out[number])) for number in np.flatnonzero(left_out)]


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
        # Saved with the place: with another seed or other data it would be a place in another
        # order.
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
            # They ascend, so an example begins where its number first occurs.
            np.unique(features.examples, return_index=True)[1],
            features.num_sequences,
        )
        self._features = features
        self._bounds = bounds
        self._grouped = grouped
        # An example is as long as all its sequences: they are in one update.
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
                self._sequences_of_examples(run)
                for run in cut_into_batches(self._lengths[examples], self._batch_tokens, examples)
            ]
        else:
            sequences = self._sequences_of_examples(examples)
            runs = [
                sequences[run]
                for run in batch_by_length(self._features.lengths[sequences], self._batch_tokens)
            ]
        # A process without an example gets an empty batch: all must make the same collective calls.
        batches = [self._features.batch(run) for run in runs or [np.zeros(0, np.int64)]]
        return [replace(batch, update_examples=update) for batch in batches]

    def _sequences_of_examples(self, examples: np.ndarray) -> np.ndarray:
        sequences = [np.arange(self._bounds[e], self._bounds[e + 1]) for e in examples]
        return np.concatenate(sequences) if sequences else np.zeros(0, np.int64)


def batch_by_length(lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
    """Return the numbers of sequences, the shortest first, cut into batches of at most so many tokens."""
    order = np.argsort(lengths, kind="stable")
    return cut_into_batches(lengths[order], max_tokens, order)


def cut_into_batches(
    lengths: np.ndarray, max_tokens: int, sequences: np.ndarray
) -> list[np.ndarray]:
    """Cut sequences [N] into batches whose lengths, int64 [N], add up to at most `max_tokens`; a longer one makes one alone."""
    # NumPy's whole numbers are `Integral`, too.
    if not isinstance(max_tokens, Integral) or max_tokens < 1:
        raise ConfigError(
            "bad-value",
            f"batch_tokens is {max_tokens!r}, it must be a whole number, at least 1",
            "leave it out",
        )
    runs = []
    start = 0
    num_tokens = 0
    for index, length in enumerate(lengths.tolist()):
        if index > start and num_tokens + length > max_tokens:
            runs.append(sequences[start:index])
            start = index
            num_tokens = 0
        num_tokens += length
    return [*runs, sequences[start:]] if start < len(sequences) else runs


def check_same_stream(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Refuse a saved stream of other data or another seed."""
    for name, value in current.items():
        if saved.get(name) != value:
            raise ConfigError(
                "changed",
                f"{name} of the saved stream: {saved.get(name)}; of this one: {value}",
                "resume with the data and the settings that the run was started with",
            )
