"""BLEU-1 to BLEU-4 (Papineni et al. 2002) with pycocoevalcap's constants: `bleu/bleu_scorer.py`, reference length "closest"."""

import numpy as np

from albertkit.captioning.metrics.ngrams import NgramCounts, lookup

# They keep a caption without a common n-gram from being exactly 0 / 0; single items without a common 4-gram score about 1e-5.
_TINY, _SMALL = 1e-15, 1e-9


def bleu(counts: NgramCounts) -> tuple[np.ndarray, np.ndarray]:
    """BLEU of the corpus and of each item.

    Args:
        counts: Of the candidates and references.

    Returns:
        float64 [4], BLEU-1 to BLEU-4 of the corpus (counts are added up before they are divided, so this is not the mean),
        and float64 [4, I], of the items.
    """
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
    """[4] or [4, I] of n-grams that are right and that were guessed, and lengths of one corpus or of I items."""
    sizes = np.arange(1, len(right) + 1).reshape(-1, *[1] * (right.ndim - 1))
    precisions = np.cumprod((right + _TINY) / (guessed + _SMALL), axis=0) ** (1 / sizes)
    ratio = (length + _TINY) / (reference_length + _SMALL)
    return precisions * np.exp(np.minimum(1 - 1 / ratio, 0))


def _closest_lengths(counts: NgramCounts) -> np.ndarray:
    """The length of the reference that is nearest in length to the candidate, of two equally near the shorter, int64 [I]."""
    items, of_item, lengths = counts.num_items, counts.item[counts.num_items :], counts.lengths[counts.num_items :]
    distance = np.abs(lengths - counts.lengths[of_item])
    order = np.lexsort((lengths, distance, of_item))
    return lengths[order[np.searchsorted(of_item[order], np.arange(items))]]
