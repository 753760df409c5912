"""Which texts to pair: neighbours by common tokens, by meaning, by chance.

E different texts, k neighbours of each.
"""

from typing import NamedTuple

import numpy as np

from albertkit.embeddings.metrics import unit_vectors
from albertkit.errors import MissingExtraError
from albertkit.tokenizer.ragged import RaggedIds

NOBODY = -1  # where a text has fewer than k neighbours
# From here on bm25s' compiled search is the faster one: 8,000 texts of 12 tokens take 2 s, but compiling takes 15 to 40; the
# plain one takes 51.
_MANY_TEXTS = 8_000


class Candidates(NamedTuple):
    """Holds C different pairs of texts, whichever is first; int64 [C] each."""

    first: np.ndarray  # number of the first text
    second: np.ndarray
    rank: np.ndarray  # among the neighbours of the first text, from 1

    def take(self, rows: np.ndarray) -> "Candidates":
        """Return some of them, by numbers or by a mask."""
        return Candidates(*(values[rows] for values in self))

    def keys(self, num_texts: int) -> np.ndarray:
        """Return a number for each pair, the same whichever text is first: int64 [C]."""
        return pair_keys(self.first, self.second, num_texts)


def pair_keys(first: np.ndarray, second: np.ndarray, num_texts: int) -> np.ndarray:
    """Return a number for each pair of numbers below `num_texts`, the same in either order."""
    return np.minimum(first, second) * num_texts + np.maximum(first, second)


def bm25_neighbours(ids: RaggedIds, k: int) -> np.ndarray:
    """Return for each of E texts the k with the highest BM25 score of its tokens, best first, int64 [E, k].

    `NOBODY` stands where no further text shares a token. The package bm25s computes it (Lucene's form, k1 1.5, b 0.75). Tokens do
    for Korean what words do for English: particles and endings are tokens of their own.
    """
    try:
        from bm25s import BM25
    except ImportError:
        raise MissingExtraError.of("bm25s", "embed", "sampling by BM25") from None
    tokens, indices = np.unique(ids.ids, return_inverse=True)
    rows = [indices[start:end].tolist() for start, end in zip(ids.offsets[:-1], ids.offsets[1:], strict=True)]
    with_tokens = [number for number, row in enumerate(rows) if row]
    nearest = np.full((len(rows), k), NOBODY, np.int64)
    if not with_tokens:
        return nearest
    index = BM25(backend="numba" if len(rows) > _MANY_TEXTS else "numpy")
    index.index((rows, {str(number): number for number in range(len(tokens))}), show_progress=False)
    queries = [rows[number] for number in with_tokens]
    documents, scores = index.retrieve(queries, k=k + 1, show_progress=False, n_threads=-1)  # one more: the text itself
    nearest[with_tokens] = _without_itself(np.where(scores > 0, documents, NOBODY), np.array(with_tokens), k)
    return nearest


def semantic_neighbours(vectors: np.ndarray, k: int) -> np.ndarray:
    """Return for each text the k with the highest cosine of vectors [E, D], best first, int64 [E, k].

    scikit-learn compares block by block and keeps only the k.
    """
    from sklearn.neighbors import NearestNeighbors

    # The nearest of unit vectors by Euclidean distance are the nearest by cosine. Without an argument a text is not its own.
    nearest = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(unit_vectors(vectors)).kneighbors()[1]
    return nearest.astype(np.int64)


def random_neighbours(num_texts: int, k: int, seed: int) -> np.ndarray:
    """Draw k others for each text; the same one may come twice: int64 [E, k]."""
    others = np.random.default_rng(seed).integers(0, num_texts - 1, (num_texts, k))
    return others + (others >= np.arange(num_texts)[:, None])


def pair_up(nearest: np.ndarray) -> Candidates:
    """Return the pairs of texts and their neighbours, int64 [E, k], in the order of first texts and ranks.

    The same two texts are one pair, under the lowest rank that found them.
    """
    first, rank = np.indices(nearest.shape)
    pairs = Candidates(first.ravel(), nearest.ravel(), rank.ravel() + 1)
    pairs = pairs.take((pairs.second != NOBODY) & (pairs.first != pairs.second))
    best_first = pairs.take(np.lexsort((pairs.first, pairs.rank)))
    unique = best_first.take(np.unique(best_first.keys(len(nearest)), return_index=True)[1])
    return unique.take(np.lexsort((unique.rank, unique.first)))


def _without_itself(neighbours: np.ndarray, texts: np.ndarray, k: int) -> np.ndarray:
    """Return those k of k + 1 neighbours each that are not the text itself, in their order."""
    is_itself = neighbours == texts[:, None]
    is_itself[~is_itself.any(1), -1] = True  # a text that is not among its own neighbours loses the last
    return neighbours[~is_itself].reshape(len(neighbours), k)
