"""N-grams of captions, counted once for BLEU and CIDEr.

C candidates, R references, I = C items: a candidate and its references. Captions are numbered through: candidates 0 to C - 1,
then the references of the first item, of the second, and so on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

MAX_SIZE = 4  # BLEU-4 and CIDEr count 1-grams to 4-grams


class NgramRows(NamedTuple):
    """Which n-grams of one size stand in which caption, and how often.

    Attributes:
        caption: int64 [rows], ascending.
        ngram: int64 [rows], a number for each different n-gram from 0 to `num_ngrams` - 1.
        times: int64 [rows], how often: at least 1.
        num_ngrams: How many different ones there are.
    """

    caption: np.ndarray
    ngram: np.ndarray
    times: np.ndarray
    num_ngrams: int


@dataclass(frozen=True)
class NgramCounts:
    """The n-grams of all candidates and references.

    Attributes:
        item: int64 [C + R], to which item a caption belongs.
        lengths: int64 [C + R], words of each caption.
        num_items: I.
        sizes: For each size from 1 to `MAX_SIZE` its rows.
    """

    item: np.ndarray
    lengths: np.ndarray
    num_items: int
    sizes: tuple[NgramRows, ...]

    @classmethod
    def of(cls, candidates: Sequence[str], references: Sequence[Sequence[str]]) -> "NgramCounts":
        """Count.

        Args:
            candidates: Tokenised captions, words with white space between them.
            references: For each candidate at least one.
        """
        captions = [*candidates, *(reference for group in references for reference in group)]
        words = [caption.split() for caption in captions]
        item = np.arange(len(candidates))
        return cls(
            item=np.concatenate([item, np.repeat(item, [len(group) for group in references])]),
            lengths=np.array([len(caption) for caption in words], np.int64),
            num_items=len(candidates),
            sizes=tuple(_count(words)),
        )

    def keys(self, rows: NgramRows) -> np.ndarray:
        """A number for each row's pair of item and n-gram, int64 [rows]; equal in candidate and references."""
        return self.item[rows.caption] * rows.num_ngrams + rows.ngram


def lookup(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The values of the wanted keys, 0 where there is none; `keys` ascend and differ."""
    if not len(keys):
        return np.zeros(len(wanted), values.dtype)
    place = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)


def _count(words: Sequence[Sequence[str]]) -> list[NgramRows]:
    vocabulary: dict[str, int] = {}
    word_ids = np.array(
        [vocabulary.setdefault(word, len(vocabulary)) for caption in words for word in caption], np.int64
    )
    caption_of = np.repeat(np.arange(len(words)), [len(caption) for caption in words])
    starts, ngrams, rows = np.arange(len(word_ids)), word_ids, []
    for size in range(1, MAX_SIZE + 1):
        if size > 1:  # an n-gram is the shorter one at its start and one more word of the same caption
            ends = starts + size - 1
            whole = ends < len(word_ids)
            whole[whole] = caption_of[ends[whole]] == caption_of[starts[whole]]
            starts, ends = starts[whole], ends[whole]
            ngrams = np.unique(ngrams[whole] * len(vocabulary) + word_ids[ends], return_inverse=True)[1]
        num_ngrams = int(ngrams.max(initial=-1)) + 1
        pairs, counts = np.unique(caption_of[starts] * num_ngrams + ngrams, return_counts=True)
        rows.append(NgramRows(*np.divmod(pairs, max(num_ngrams, 1)), counts, num_ngrams))
    return rows
