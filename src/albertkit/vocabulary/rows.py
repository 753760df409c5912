"""Rows for new tokens: embeddings made of what the old ones hold, and biases of the masked-LM head.

V tokens, E embedding.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from albertkit.corpus.cooccurrence import Documents, cooccurrence_vectors
from albertkit.errors import DataError
from albertkit.tokenizer.digit_comma import SPACE
from albertkit.tokenizer.extend import UnigramPieces
from albertkit.tokenizer.sentencepiece_model import read_facts
from albertkit.tokenizer.sentencepiece_tokenizer import SentencePieceTokenizer

_NOISE = 0.1  # of the old rows' standard deviation: rows that are exactly the mean would all be the same
_FREQUENT = 20  # occurrences of an old token that vectors are turned by


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
        self._tokenizer = new
        self._new = [new.id_to_piece(number) for number in range(old.vocab_size, new.vocab_size)]
        self._generator = generator

    def make(self, how: str, std: float, texts: Sequence[str] = ()) -> Tensor:
        """Return rows for the new tokens, float32 [new tokens, E].

        "subword-mean": the mean of the rows of the tokens that the old vocabulary cut it into, unknown ones left out; where only
        unknown ones are left, as "mean". "mean": the mean of all old tokens and a tenth of their standard deviation in noise.
        "normal": as at the start of a training, of standard deviation `std`. "zero". "cooccurrence": from the tokens that stand
        beside it in `texts`; where there are none, as "subword-mean".
        """
        shape = (len(self._new), self._old_VE.shape[1])
        if how == "zero":
            return torch.zeros(shape)
        noise = torch.randn(shape, generator=self._generator)
        if how == "normal":
            return noise.clamp_(-2, 2) * std
        ordinary_VE = self._old_VE[list(self._pieces.ids.values())]
        rows = ordinary_VE.mean(0) + noise * (_NOISE * ordinary_VE.std(0))
        if how in ("subword-mean", "cooccurrence"):
            for place, piece in enumerate(self._new):
                if ids := self._known(piece):
                    rows[place] = self._old_VE[ids].mean(0)
        if how == "cooccurrence":
            vectors = self._aligned(texts)
            occurring = vectors.any(1)
            rows[occurring] = vectors[occurring]
        return rows

    def _aligned(self, texts: Sequence[str]) -> Tensor:
        """Return vectors of co-occurrence of the new tokens, turned to where old tokens have their rows; 0 without neighbours.

        Both sets of vectors are known up to a rotation only: it is the one that brings the old tokens of the text nearest to
        their rows (Schönemann 1966), after which their lengths are made the same, too.
        """
        width = self._old_VE.shape[1]
        encoded = self._tokenizer.encode_batch(texts)
        counts = np.bincount(encoded.ids, minlength=self._tokenizer.vocab_size)
        shared = [number for number in self._pieces.ids.values() if counts[number] >= _FREQUENT]
        if len(shared) < width:
            raise DataError(
                "too-little-data",
                f"only {len(shared):,} of the old tokens occur {_FREQUENT} times in the text: too few to align {width} numbers",
                "add text in the language of the old tokens to the files, or use --rows subword-mean",
            )
        documents = Documents(encoded.ids, encoded.offsets[:-1], encoded.offsets[1:])
        seed = int(torch.randint(2**31, (), generator=self._generator))
        vectors = cooccurrence_vectors([documents], counts, width, seed)
        here, there = vectors[shared], self._old_VE[shared]
        left, _, right = torch.linalg.svd((here - here.mean(0)).T @ (there - there.mean(0)))
        scale = (there - there.mean(0)).norm() / (here - here.mean(0)).norm()
        new = vectors[len(vectors) - len(self._new) :]
        turned = scale * (new - here.mean(0)) @ left @ right + there.mean(0)
        return torch.where(new.any(1, keepdim=True), turned, 0.0)

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
