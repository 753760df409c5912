"""BLEU, CIDEr-D and ROUGE-L; n-grams are counted once for the first two.

C candidates, R references, I = C items: a candidate and its references. Captions are numbered through: candidates 0 to C - 1,
then the references of the first item, of the second, and so on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

_BETA = 1.2  # recall weighs more than precision


def rouge_l(candidate: str, references: Sequence[str]) -> float:
    """Compute F of the longest common subsequence: the best precision over the references with the best recall over them.

    The two may come from different references; so the original.
    """
    words = candidate.split(" ")
    places: dict[str, int] = {}  # word -> bits of its places in the candidate
    for place, word in enumerate(words):
        places[word] = places.get(word, 0) | 1 << place
    precision = recall = 0.0
    for reference in references:
        reference_words = reference.split(" ")
        common = _longest_common_subsequence(places, len(words), reference_words)
        precision = max(precision, common / len(words))
        recall = max(recall, common / len(reference_words))
    if not precision:
        return 0.0
    return (1 + _BETA**2) * precision * recall / (recall + _BETA**2 * precision)


def _longest_common_subsequence(places: dict[str, int], length: int, words: Sequence[str]) -> int:
    """Return its length, a row of the table at once in the bits of a whole number (Crochemore et al. 2001): 0 where it grows."""
    row = (1 << length) - 1
    for word in words:
        same = row & places.get(word, 0)
        row = (row + same) | (row - same)
    return length - (row & (1 << length) - 1).bit_count()


MAX_SIZE = 4  # BLEU-4 and CIDEr count 1-grams to 4-grams


class NgramRows(NamedTuple):
    """Which n-grams of one size stand in which caption, and how often."""

    caption: np.ndarray  # int64 [rows], ascending
    ngram: np.ndarray  # int64 [rows], a number for each different n-gram from 0 to `num_ngrams` - 1
    times: np.ndarray  # int64 [rows], at least 1
    num_ngrams: int


@dataclass(frozen=True)
class NgramCounts:
    """The n-grams of all candidates and references."""

    item: np.ndarray  # int64 [C + R], to which item a caption belongs
    lengths: np.ndarray  # int64 [C + R], words of each caption
    num_items: int  # I
    sizes: tuple[NgramRows, ...]  # for each size from 1 to `MAX_SIZE`

    @classmethod
    def of(cls, candidates: Sequence[str], references: Sequence[Sequence[str]]) -> "NgramCounts":
        """Count the n-grams of captions."""
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
        """Return a number for each row's pair of item and n-gram, int64 [rows]; equal in candidate and references."""
        return self.item[rows.caption] * rows.num_ngrams + rows.ngram


def lookup(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the values of the wanted keys, 0 where there is none; `keys` ascend and differ."""
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


# They keep a caption without a common n-gram from being exactly 0 / 0; single items without a common 4-gram score about 1e-5.
_TINY, _SMALL = 1e-15, 1e-9


def bleu(counts: NgramCounts) -> tuple[np.ndarray, np.ndarray]:
    """Return BLEU of the corpus and of each item."""
    items = counts.num_items
    candidate_lengths = counts.lengths[:items]
    reference_lengths = _closest_lengths(counts)
    right, guessed = [], []
    for size, rows in enumerate(counts.sizes, start=1):
        keys, of_candidate = counts.keys(rows), rows.caption < items
        in_references, which = np.unique(keys[~of_candidate], return_inverse=True)
        most = np.zeros(len(in_references), np.int64)
        np.maximum.at(most, which, rows.times[~of_candidate])
        clipped = np.minimum(rows.times[of_candidate], lookup(in_references, most, keys[of_candidate]))
        right.append(np.bincount(rows.caption[of_candidate], clipped, items))
        guessed.append(np.maximum(candidate_lengths - size + 1, 0))
    each = _bleu(np.array(right), np.array(guessed), candidate_lengths, reference_lengths)
    corpus = _bleu(np.sum(right, 1), np.sum(guessed, 1), candidate_lengths.sum(), reference_lengths.sum())
    return corpus, each


def _bleu(right: np.ndarray, guessed: np.ndarray, length: np.ndarray, reference_length: np.ndarray) -> np.ndarray:
    """Compute BLEU from n-grams that are right and that were guessed, [4] or [4, I], and lengths of a corpus or of I items."""
    sizes = np.arange(1, len(right) + 1).reshape(-1, *[1] * (right.ndim - 1))
    precisions = np.cumprod((right + _TINY) / (guessed + _SMALL), axis=0) ** (1 / sizes)
    ratio = (length + _TINY) / (reference_length + _SMALL)
    return precisions * np.exp(np.minimum(1 - 1 / ratio, 0))


def _closest_lengths(counts: NgramCounts) -> np.ndarray:
    """Return the length of the reference nearest in length to the candidate, of two equally near the shorter, int64 [I]."""
    items, of_item, lengths = counts.num_items, counts.item[counts.num_items :], counts.lengths[counts.num_items :]
    distance = np.abs(lengths - counts.lengths[of_item])
    order = np.lexsort((lengths, distance, of_item))
    return lengths[order[np.searchsorted(of_item[order], np.arange(items))]]


_SIGMA = 6.0  # of the penalty on differing lengths, in words
_SCALE = 10.0


def cider(counts: NgramCounts) -> np.ndarray:
    """Compute CIDEr-D of each item; that of the corpus is the mean.

    N-grams weigh by how few of the items' references have them, so the score of an item depends on the other items, and
    that of a single item is 0.

    Returns:
        float64 [I], from 0 to 10.
    """
    items = counts.num_items
    of_item = counts.item[items:]
    similarity = np.mean([_similarity(counts, rows) for rows in counts.sizes], axis=0)
    # The original's length of a caption is the number of its 2-grams.
    lengths = np.maximum(counts.lengths - 1, 0)
    penalty = np.exp(-((lengths[of_item] - lengths[items:]) ** 2) / (2 * _SIGMA**2))
    return _SCALE * np.bincount(of_item, similarity * penalty, items) / np.bincount(of_item, minlength=items)


def _similarity(counts: NgramCounts, rows: NgramRows) -> np.ndarray:
    """Return the clipped cosine of each reference with its candidate, float64 [R], for n-grams of one size."""
    items, keys, of_candidate = counts.num_items, counts.keys(rows), rows.caption < counts.num_items
    items_with = np.bincount(np.unique(keys[~of_candidate]) % max(rows.num_ngrams, 1), minlength=rows.num_ngrams)
    weights = rows.times * (np.log(items) - np.log(np.maximum(items_with, 1)))[rows.ngram]
    norms = np.sqrt(np.bincount(rows.caption, weights**2, len(counts.item)))
    in_reference = weights[~of_candidate]
    in_candidate = lookup(keys[of_candidate], weights[of_candidate], keys[~of_candidate])
    products = np.minimum(in_candidate, in_reference) * in_reference
    dots = np.bincount(rows.caption[~of_candidate], products, len(counts.item))[items:]
    lengths = norms[counts.item[items:]] * norms[items:]
    return np.divide(dots, lengths, out=np.zeros(len(dots)), where=lengths > 0)
