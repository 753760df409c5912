"""Rows for new tokens: embeddings made of what the old ones hold, and biases of the masked-LM head.

V tokens, E embedding.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from albertkit.tokenizer.digit_comma import SPACE
from albertkit.tokenizer.extend import UnigramPieces
from albertkit.tokenizer.sentencepiece_model import read_facts
from albertkit.tokenizer.sentencepiece_tokenizer import SentencePieceTokenizer

ROWS = ("subword-mean", "mean", "normal", "zero")
_NOISE = 0.1  # of the old rows' standard deviation: rows that are exactly the mean would all be the same


class RowMaker:
    """Makes embeddings for the tokens that `new` has after those of `old`; `old_VE` float32 are the embeddings of the
    old ones.
    """

    def __init__(
        self, old_VE: Tensor, old: SentencePieceTokenizer, new: SentencePieceTokenizer, generator: torch.Generator
    ) -> None:
        self._old_VE = old_VE
        self._pieces = UnigramPieces(read_facts(old.model), old.unk_id)
        self._unknown = old.unk_id
        self._new = [new.id_to_piece(number) for number in range(old.vocab_size, new.vocab_size)]
        self._generator = generator

    def make(self, how: str, std: float) -> Tensor:
        """Return rows for the new tokens, float32 [new tokens, E].

        "subword-mean": the mean of the rows of the tokens that the old vocabulary cut it into, unknown ones left out; where only
        unknown ones are left, as "mean". "mean": the mean of all old tokens and a tenth of their standard deviation in noise.
        "normal": as at the start of a training, of standard deviation `std`. "zero".
        """
        shape = (len(self._new), self._old_VE.shape[1])
        if how == "zero":
            return torch.zeros(shape)
        noise = torch.randn(shape, generator=self._generator)
        if how == "normal":
            return noise.clamp_(-2, 2) * std
        ordinary_VE = self._old_VE[list(self._pieces.ids.values())]
        rows = ordinary_VE.mean(0) + noise * (_NOISE * ordinary_VE.std(0))
        if how == "subword-mean":
            for place, piece in enumerate(self._new):
                if ids := self._known(piece):
                    rows[place] = self._old_VE[ids].mean(0)
        return rows

    def taken_over(self, rows: Tensor, donor_VE: Tensor, donor: SentencePieceTokenizer) -> int:
        """Replace the rows of tokens that another model has by that model's; return how many were replaced."""
        places = [(place, donor.piece_to_id(piece)) for place, piece in enumerate(self._new)]
        known = [(place, number) for place, number in places if number != donor.unk_id]
        for place, number in known:
            rows[place] = donor_VE[number]
        return len(known)

    def _known(self, piece: str) -> list[int]:
        """Return the old tokens in a new one. Beside an unknown one, the space before it says nothing of the token."""
        _, ids = self._pieces.best(piece)
        known = [number for number in ids if number != self._unknown]
        return known if len(known) == len(ids) or known != [self._pieces.ids.get(SPACE)] else []


def new_biases(bias_V: Tensor, scores: Sequence[float], ordinary: Sequence[int], frequencies: np.ndarray) -> Tensor:
    """Return biases of the masked-LM head for new tokens, float32 [new tokens], within the range of the old ones.

    A trained bias goes with the logarithm of a token's frequency, but neither its slope nor its level is that of the
    logarithm itself. The old tokens' scores are such logarithms, so a line through their biases says both. `ordinary` are the
    ids of the old tokens that are no special ones, `frequencies` the share of each new token in its text.
    """
    old = bias_V[list(ordinary)].double().numpy()
    slope, level = np.polyfit(np.array(scores)[list(ordinary)], old, 1)
    return torch.tensor(np.clip(level + slope * np.log(frequencies), old.min(), old.max()), dtype=torch.float32)
