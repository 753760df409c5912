"""Features of examples: sequences of ids in flat arrays, and the labelled batches that are packed from them.

M sequences of T tokens in all, of E examples. A batch has N sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from albertkit.batches import MovableBatch
from albertkit.batches.packed import PackedBatch
from albertkit.errors import ConfigError


def tokens_for_text(length: int, special_tokens: int) -> int:
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
            firsts.append(min(first, len(row)))
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


def truncated_tokens(features: Features) -> list[tuple[int, int]]:
    """Return the number of each example that did not fit, and how many of its tokens were left out."""
    left_out = np.zeros(0, np.int64) if features.left_out is None else features.left_out
    return [(int(number), int(left_out[number])) for number in np.flatnonzero(left_out)]
