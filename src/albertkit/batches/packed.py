"""Packed batches: the one shape that flows through the model. Real tokens only, no padding.

Shapes: N sequences of S tokens at most, T real tokens in all, P predictions; B = N rows of a padded
batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain

import torch
from torch import Tensor

from albertkit.batches import MovableBatch
from albertkit.errors import ConfigError, DataError
from albertkit.tables import IGNORED


@dataclass(frozen=True, eq=False)
class PackedBatch(MovableBatch):
    """`T` real tokens of `N` sequences, one after the other.

    Attributes:
        input_ids: int64 [T].
        token_type_ids: int64 [T], the segment of each token.
        position_ids: int64 [T], the place of each token in its sequence; for padded input its place
            in the padded row.
        offsets: int64 [N+1], on the same device: sequence n is `offsets[n]:offsets[n+1]`.
        lengths: N ints, the same information on the host, so that nothing waits for the device to
            know it.
        masked_positions: int64 [P] into the T tokens, or None when there are no targets.
        masked_labels: int64 [P], the token that was at each masked position.
        sentence_order_labels: int64 [N]; 0 original order, 1 swapped, -100 where there is none.
        longest: Tokens of the longest sequence. A compiled model reads this and not `lengths`,
            which would make it compile again for every batch.
    """

    input_ids: Tensor
    token_type_ids: Tensor
    position_ids: Tensor
    offsets: Tensor
    lengths: tuple[int, ...]
    masked_positions: Tensor | None = None
    masked_labels: Tensor | None = None
    sentence_order_labels: Tensor | None = None
    longest: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "longest", max(self.lengths, default=0))

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens in the batch, T."""
        return self.input_ids.shape[0]

    @property
    def num_sequences(self) -> int:
        """Return the number of sequences in the batch, N."""
        return len(self.lengths)

    @property
    def mean_length(self) -> float:
        """Return the length of the sequence that a token is in, on average over the tokens."""
        return sum(n * n for n in self.lengths) / self.num_tokens

    def masked_targets(self) -> tuple[Tensor, Tensor]:
        """Return `masked_positions` and `masked_labels`, both empty where there are none."""
        if self.masked_positions is None or self.masked_labels is None:
            # int64 on the device of the batch, as they would be if there were any
            return self.offsets[:0], self.offsets[:0]
        return self.masked_positions, self.masked_labels

    @property
    def starts(self) -> Tensor:
        """Return the place of the first token of each sequence, int64 [N]."""
        return self.offsets[:-1]

    @property
    def device(self) -> torch.device:
        """Return the device of the tensors."""
        return self.input_ids.device

    # --- from and to other shapes -----------------------------------------------------------------

    @classmethod
    def from_sequences(
        cls,
        input_ids: Sequence[Sequence[int]],
        token_type_ids: Sequence[Sequence[int]] | None = None,
        masked_positions: Sequence[Sequence[int]] | None = None,
        masked_labels: Sequence[Sequence[int]] | None = None,
        sentence_order_labels: Sequence[int] | None = None,
    ) -> "PackedBatch":
        """Pack sequences of any lengths.

        Args:
            input_ids: The ids of each sequence, special tokens included; none empty.
            token_type_ids: Segment of each token, in the same form. Default: all 0.
            masked_positions: For each sequence the positions in it that are to be predicted.
            masked_labels: The tokens that were there, in the same form.
            sentence_order_labels: One a sequence, -100 for none.
        """
        lengths = tuple(map(len, input_ids))
        if not lengths or 0 in lengths:
            raise DataError(
                "empty",
                f"sequence {lengths.index(0)} has no token" if lengths else "there is no sequence",
                "leave empty texts out, or add the special tokens",
            )
        starts = [0, *accumulate(lengths)]
        types = (
            chain.from_iterable(token_type_ids) if token_type_ids is not None else [0] * starts[-1]
        )
        positions = None
        if masked_positions is not None:
            # `starts` has one more: the end of the last sequence.
            by_sequence = zip(starts, masked_positions, strict=False)
            positions = _int64(
                start + position for start, masked in by_sequence for position in masked
            )
        return cls(
            input_ids=_int64(chain.from_iterable(input_ids)),
            token_type_ids=_int64(types),
            position_ids=_int64(chain.from_iterable(map(range, lengths))),
            offsets=_int64(starts),
            lengths=lengths,
            masked_positions=positions,
            masked_labels=None
            if masked_labels is None
            else _int64(chain.from_iterable(masked_labels)),
            sentence_order_labels=None
            if sentence_order_labels is None
            else _int64(sentence_order_labels),
        )

    @classmethod
    def from_padded(
        cls,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        sentence_order_labels: Tensor | None = None,
    ) -> "PackedBatch":
        """Take the real tokens out of a padded batch. The mask may have holes; tokens keep their padded position.

        Args:
            input_ids: int64 [B, S].
            attention_mask: [B, S], 0 at padding. Default: no padding.
            token_type_ids: int64 [B, S]. Default: all 0.
            position_ids: int64 [S] or [B, S]. Default: 0 to S-1.
            labels: int64 [B, S], -100 where nothing is to be predicted; labels at padding are
                ignored.
            sentence_order_labels: int64 [B].
        """
        check_padded_shapes(
            input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids, labels=labels
        )
        rows, width = input_ids.shape
        device = input_ids.device
        is_token = (
            torch.ones_like(input_ids, dtype=torch.bool)
            if attention_mask is None
            else attention_mask != 0
        )
        # Without a mask the host need not wait for the device to know them.
        lengths = (width,) * rows if attention_mask is None else tuple(is_token.sum(1).tolist())
        if not lengths or 0 in lengths:
            raise DataError(
                "empty",
                f"row {lengths.index(0)} is all padding" if lengths else "there is no row",
                "leave empty rows out of the batch",
            )
        if position_ids is None:
            # Tokens behind a hole in the mask keep their padded place, as in transformers.
            position_ids = torch.arange(width, device=device)
        masked_positions = masked_labels = None
        if labels is not None:
            packed_labels = labels[is_token]
            masked_positions = (packed_labels != IGNORED).nonzero().squeeze(1)
            masked_labels = packed_labels[masked_positions]
        return cls(
            input_ids=input_ids[is_token],
            token_type_ids=torch.zeros_like(input_ids[is_token])
            if token_type_ids is None
            else token_type_ids[is_token],
            position_ids=position_ids.expand(rows, width)[is_token],
            offsets=torch.tensor([0, *accumulate(lengths)], device=device),
            lengths=lengths,
            masked_positions=masked_positions,
            masked_labels=masked_labels,
            sentence_order_labels=None
            if sentence_order_labels is None
            else sentence_order_labels.reshape(-1),
        )

    def padding_mask(self) -> Tensor:
        """Return True, bool [N, S], at real tokens when each sequence stands at the left of a row of the longest length."""
        lengths = self.offsets.diff()
        return torch.arange(self.longest, device=self.device) < lengths[:, None]

    def padded_positions(self) -> Tensor:
        """Return where each token stands in those rows, flattened, int64 [T]; no shape depends on a value."""
        token = torch.arange(len(self.input_ids), device=self.device)
        # `repeat_interleave` would have a shape that depends on values: a GPU waits for it, and a
        # compiled graph breaks there.
        row = torch.searchsorted(self.offsets[1:], token, right=True)
        return row * self.longest + token - self.offsets[row]

    def unpack(self, values: Tensor) -> Tensor:
        """Lay packed values [T, ...] out in rows of the longest length: [N, longest, ...]; padding is zero."""
        rows = len(self.offsets) - 1
        feature_shape = values.shape[1:]
        padded = values.new_zeros(rows * self.longest, *feature_shape).index_copy(
            0,
            self.padded_positions(),
            values,
        )
        return padded.view(rows, self.longest, *feature_shape)


def check_padded_shapes(input_ids: Tensor, **tensors: Tensor | None) -> None:
    """Refuse a padded batch that is no matrix, and tensors with values for its places that have another shape."""
    if input_ids.dim() != 2:
        raise ConfigError(
            "bad-value",
            f"input_ids has shape {list(input_ids.shape)}, expected [batch, length]",
        )
    for name, tensor in tensors.items():
        if tensor is not None and tensor.shape != input_ids.shape:
            raise ConfigError(
                "bad-value",
                f"{name} has shape {list(tensor.shape)}, input_ids has {list(input_ids.shape)}",
            )


def unpack(values: Tensor, mask: Tensor) -> Tensor:
    """Lay packed values [T, ...] out at the non-zero places of a mask [B, S]; the rest is zero. Differentiable."""
    padded = values.new_zeros(*mask.shape, *values.shape[1:])
    return padded.index_put(tuple((mask != 0).nonzero(as_tuple=True)), values)


def _int64(numbers) -> Tensor:  # type: ignore[no-untyped-def]
    return torch.tensor(list(numbers), dtype=torch.int64)
