"""Finding the other half of a pair among all halves, as in search and in translation.

E pairs of vectors of D numbers.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from albertkit.embeddings.evaluation.similarity import unit_vectors

_BLOCK = 1024  # queries compared at once with all candidates
_TIE = 1e-6  # cosines closer than this are equal: products of fp32 unit vectors are known to no more


def retrieval_accuracy(
    a: np.ndarray, b: np.ndarray, texts: Sequence[str] | None = None, pairs: Sequence[str] | None = None
) -> dict[str, float]:
    """The share of rows whose nearest row on the other side, by cosine, is their own.

    Args:
        a: fp32 [E, D], vectors of the first texts.
        b: fp32 [E, D], of the second ones; row for row they belong together.
        texts: The E first texts. With them an equal text is no rival: to find it is right.
        pairs: The E second texts.

    Returns:
        `forward`, from a to b, and `backward`. Where k rivals tie with a row's own, it counts 1 / (k + 1): constant vectors
        score 1 / E.
    """
    figures = retrieval_figures(unit_vectors(a), unit_vectors(b), texts, pairs)
    return {"forward": figures["forward"], "backward": figures["backward"]}


def retrieval_figures(
    a: Any, b: Any, texts: Sequence[str] | None = None, pairs: Sequence[str] | None = None
) -> dict[str, float]:
    """`retrieval_accuracy` of unit vectors, numpy's or scipy's sparse ones, and the mean reciprocal ranks.

    Returns:
        `forward`, `backward`, `forward_mrr`, `backward_mrr`. Rivals that tie with a row's own stand half before it.
    """
    figures = {}
    for name, queries, candidates, names in (("forward", a, b, pairs), ("backward", b, a, texts)):
        nearer, tied = _rivals(queries, candidates, names)
        figures[name] = float(np.mean((nearer == 0) / (1 + tied)))
        figures[f"{name}_mrr"] = float(np.mean(1 / (1 + nearer + tied / 2)))
    return {name: figures[name] for name in ("forward", "backward", "forward_mrr", "backward_mrr")}


def _rivals(queries: Any, candidates: Any, names: Sequence[str] | None) -> tuple[np.ndarray, np.ndarray]:
    """How many candidates are nearer to a query than its own, and how many are as near; int64 [E] each."""
    own = np.arange(queries.shape[0])
    if names is not None:
        _, first, own = np.unique(np.asarray(names, object), return_index=True, return_inverse=True)
        candidates = candidates[first]
    nearer, tied = np.empty(len(own), np.int64), np.empty(len(own), np.int64)
    for start in range(0, len(own), _BLOCK):
        rows = slice(start, min(start + _BLOCK, len(own)))
        cosines = queries[rows] @ candidates.T
        cosines = cosines if isinstance(cosines, np.ndarray) else cosines.toarray()
        mine = cosines[np.arange(len(cosines)), own[rows]][:, None]
        nearer[rows] = (cosines > mine + _TIE).sum(1)
        tied[rows] = (np.abs(cosines - mine) <= _TIE).sum(1) - 1
    return nearer, tied
