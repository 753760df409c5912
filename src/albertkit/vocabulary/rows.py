"""Rows for new pieces: embeddings made of what the old ones hold, and biases of the masked-LM head.

V pieces, E embedding.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from albertkit.tokenizer.digit_comma import SPACE
from albertkit.tokenizer.segmentation import UnigramPieces
from albertkit.tokenizer.sentencepiece_model import read_facts
from albertkit.tokenizer.sentencepiece_tokenizer import SentencePieceTokenizer

ROWS = ("subword-mean", "mean", "normal", "zero")
_NOISE = 0.1  # of the old rows' standard deviation: rows that are exactly the mean would all be the same


class RowMaker:
    """Makes embeddings for the pieces that a vocabulary got.

    Args:
        old_VE: The embeddings of the old pieces, float32.
        old: The old vocabulary.
        new: The new one: the old pieces, then more.
        generator: Draws what is random.
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
        """Rows for the new pieces.

        Args:
            how: "subword-mean": the mean of the rows of the pieces that the old vocabulary cut it into, unknown ones left out;
                where only unknown ones are left, as "mean". "mean": the mean of all old pieces and a tenth of their
                standard deviation in noise. "normal": as at the start of a training. "zero".
            std: Standard deviation for "normal".

        Returns:
            float32 [new pieces, E].
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
        """Replace the rows of pieces that another model has by that model's.

        Args:
            rows: From `make`; changed.
            donor_VE: The other model's embeddings.
            donor: Its vocabulary.

        Returns:
            How many were replaced.
        """
        places = [(place, donor.piece_to_id(piece)) for place, piece in enumerate(self._new)]
        known = [(place, number) for place, number in places if number != donor.unk_id]
        for place, number in known:
            rows[place] = donor_VE[number]
        return len(known)

    def _known(self, piece: str) -> list[int]:
        """The old pieces in a new one. Beside an unknown one, the space before it says nothing of the piece."""
        _, ids = self._pieces.best(piece)
        known = [number for number in ids if number != self._unknown]
        return known if len(known) == len(ids) or known != [self._pieces.ids.get(SPACE)] else []


def new_biases(bias_V: Tensor, scores: Sequence[float], ordinary: Sequence[int], frequencies: np.ndarray) -> Tensor:
    """Biases of the masked-LM head for new pieces: what old pieces as frequent have.

    A trained bias goes with the logarithm of a piece's frequency, but neither its slope nor its level is that of the
    logarithm itself. The old pieces' scores are such logarithms, so a line through their biases says both.

    Args:
        bias_V: The old biases, float32.
        scores: Of the old pieces.
        ordinary: Ids of the old pieces that are no special ones.
        frequencies: Share of each new piece in its text.

    Returns:
        float32 [new pieces], within the range of the old ones.
    """
    old = bias_V[list(ordinary)].double().numpy()
    slope, level = np.polyfit(np.array(scores)[list(ordinary)], old, 1)
    return torch.tensor(np.clip(level + slope * np.log(frequencies), old.min(), old.max()), dtype=torch.float32)
