"""CIDEr-D (Vedantam et al. 2015, section 6), which captioning papers report as CIDEr: pycocoevalcap's `cider/cider_scorer.py`."""

import numpy as np

from albertkit.captioning.metrics.ngrams import NgramCounts, NgramRows, lookup

_SIGMA = 6.0  # of the penalty on differing lengths, in words
_SCALE = 10.0


def cider(counts: NgramCounts) -> np.ndarray:
    """CIDEr-D of each item; that of the corpus is the mean.

    N-grams weigh by how few of the items' references have them, so the score of an item depends on the other items, and
    that of a single item is 0.

    Args:
        counts: Of the candidates and references.

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
    """Clipped cosine of each reference with its candidate, float64 [R], for n-grams of one size."""
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
