"""The baseline that every figure is shown beside: texts as bags of pieces, counted and weighted, without any learning."""

from typing import TYPE_CHECKING

import numpy as np

from albertkit.tokenizer.ragged import RaggedIds

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


def bag_of_pieces(ids: RaggedIds) -> "csr_matrix":
    """TF-IDF vectors of texts over a tokenizer's pieces, of length 1; scikit-learn's, with its defaults.

    Pieces suit every language that the tokenizer suits: Korean words seldom repeat with their particles, their pieces do.

    Args:
        ids: Of E texts, without special tokens. How rare a piece is, is counted on these texts themselves.

    Returns:
        fp64 [E, pieces that occur]. A text without a piece is zeros.
    """
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import TfidfTransformer

    pieces, places = np.unique(ids.ids, return_inverse=True)
    counts = csr_matrix((np.ones(len(places)), places, ids.offsets), shape=(ids.num_texts, len(pieces)))
    counts.sum_duplicates()
    return TfidfTransformer().fit_transform(counts)


def pair_cosines(a: "csr_matrix", b: "csr_matrix") -> np.ndarray:
    """Cosine of each pair of rows of length 1, fp64 [E]."""
    return np.asarray(a.multiply(b).sum(1)).ravel()
