"""Similarity and retrieval of vectors: correlations with human scores, how often a text finds its own; a bag of tokens."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from albertkit.tasks.metrics import (
    bootstrap_intervals,
    regression_scorer,
    regression_scores,
)
from albertkit.tokenizer.ragged import RaggedIds

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
CORRELATIONS = ("pearson", "spearman")
_PAIRS_PER_BLOCK = 4096  # pairs computed at once
# Spread of every component, as a share of the mean length, below which a model says nothing
_SAME_VECTORS = 1e-5
_SAME_SIMILARITIES = 1e-6  # spread of a similarity: fp32 has 6e-8 near 1, so this is rounding


def similarities(first_vectors: np.ndarray, second_vectors: np.ndarray) -> dict[str, np.ndarray]:
    """Return the similarity of each pair of vectors [E, D], fp32 [E] of each of `SIMILARITIES`; larger is more alike.

    Euclidean and Manhattan are distances with a minus; a vector of zeros has cosine 0 with any
    other.

    Source: sentence-transformers, `util/similarity.py`. Its arithmetic is kept, fp32 with unit
    vectors rounded before they are multiplied: in fp64 pairs that tie in truth also tie here, and
    among 300 pairs of integer vectors that moved Spearman's figure by 1e-4 from everybody else's.
    """
    blocks: dict[str, list[Tensor]] = {name: [] for name in SIMILARITIES}
    for start in range(0, len(first_vectors), _PAIRS_PER_BLOCK):
        first, second = (
            torch.from_numpy(side[start : start + _PAIRS_PER_BLOCK].astype(np.float32))
            for side in (first_vectors, second_vectors)
        )
        blocks["cosine"].append((F.normalize(first, dim=1) * F.normalize(second, dim=1)).sum(-1))
        blocks["dot"].append((first * second).sum(-1))
        blocks["euclidean"].append(-((first - second) ** 2).sum(-1).sqrt())
        blocks["manhattan"].append(-(first - second).abs().sum(-1))
    return {name: torch.cat(parts).numpy() for name, parts in blocks.items()}


def similarity_correlations(
    a: np.ndarray, b: np.ndarray, human_scores: np.ndarray
) -> dict[str, float | None]:
    """Return correlations of the similarities of vectors [E, D] with human scores [E].

    They are `pearson_cosine`, `spearman_cosine` and so on for each of `SIMILARITIES`, then
    `pearson_max` and `spearman_max`; None where the vectors, the similarities or the labels are
    constant; `constant_input_findings` says which.

    Source: sentence-transformers, `EmbeddingSimilarityEvaluator`, whose figures these are.
    """
    is_constant = _are_both_constant(a, b)
    by_similarity = {
        name: correlation_scores(human_scores, None if is_constant else values)
        for name, values in similarities(a, b).items()
    }
    scores = {
        f"{kind}_{name}": by_kind[kind]
        for name, by_kind in by_similarity.items()
        for kind in CORRELATIONS
    }
    for kind in CORRELATIONS:
        values = [by_kind[kind] for by_kind in by_similarity.values()]
        scores[f"{kind}_max"] = max((value for value in values if value is not None), default=None)
    return scores


def correlation_scores(labels: np.ndarray, values: np.ndarray | None) -> dict[str, float | None]:
    """Return `pearson` and `spearman` of one similarity; equal values share the mean of their ranks. None where not defined."""
    if values is None or _is_constant(values) or len(labels) < 2:
        return dict.fromkeys(CORRELATIONS)
    scores = regression_scores(labels, values)
    return {kind: scores[kind] if math.isfinite(scores[kind]) else None for kind in CORRELATIONS}


def correlation_intervals(
    labels: np.ndarray,
    values: np.ndarray,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """Return 95 % intervals of `correlation_scores`, by bootstrap over the pairs; only where they are defined."""
    defined = [
        kind for kind, value in correlation_scores(labels, values).items() if value is not None
    ]
    if not defined:
        return {}
    intervals = bootstrap_intervals(regression_scorer(labels, values), len(labels), seed=seed)
    return {kind: intervals[kind] for kind in defined if all(map(math.isfinite, intervals[kind]))}


def f1_scores(
    are_alike: np.ndarray, similarities_of_pairs: np.ndarray, official_threshold: float
) -> dict[str, float]:
    """Return F1 of calling pairs alike (bool [E]) whose similarity [E] reaches a threshold.

    `official` is with the one given; `best` with the one, `best_threshold`, that gives most on
    these very pairs, because cosines of many models are all high: it is an upper bound.

    Source: KLUE's `klue_sts_f1`; sentence-transformers' `BinaryClassificationEvaluator`.
    """
    from sklearn.metrics import f1_score, precision_recall_curve

    precision, recall, thresholds = precision_recall_curve(are_alike, similarities_of_pairs)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    best = int(np.argmax(f1[:-1]))
    official = f1_score(are_alike, similarities_of_pairs >= official_threshold, zero_division=0.0)
    return {
        "official": float(official),
        "best": float(f1[best]),
        "best_threshold": float(thresholds[best]),
    }


def constant_input_findings(
    a: np.ndarray, b: np.ndarray, labels: np.ndarray | None = None
) -> list[str]:
    """List constant inputs, for which a correlation is undefined; usually there is none."""
    findings = []
    if len(a) < 2:
        return ["one pair: there is nothing to compare"]
    if labels is not None and np.ptp(labels) == 0:
        findings.append(
            f"all {len(labels):,} pairs have the score {labels[0]:g}: nothing correlates with a constant"
        )
    if _are_both_constant(a, b):
        findings.append("the vectors are constant, the same for every text: they say nothing")
    elif alike := [name for name, values in similarities(a, b).items() if _is_constant(values)]:
        findings.append(f"every pair has the same similarity: {', '.join(alike)}")
    return findings


def mean_random_cosine(vectors: np.ndarray) -> float | None:
    """Return the mean cosine over all pairs of different rows of [E, D]: near 0 where vectors use their space, near 1 where all
    are alike; None for fewer than two rows.

    The sum of all products is the squared length of the sum of the unit vectors, so that no pair
    need be drawn.

    Source: Ethayarajh 2019, "How Contextual are Contextualized Word Representations?", section 4.1.
    """
    if len(vectors) < 2:
        return None
    units = normalize_vectors(vectors)
    total = units.sum(0, dtype=np.float64)
    with_themselves = np.square(units, dtype=np.float64).sum()
    return float((total @ total - with_themselves) / (len(units) * (len(units) - 1)))


def normalize_vectors(vectors: np.ndarray) -> np.ndarray:
    """Return rows divided by their lengths, fp32; a row of zeros stays."""
    lengths = np.linalg.norm(vectors.astype(np.float32, copy=False), axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32, copy=False)


def row_by_row_cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the cosine of each row with the same row of the other side, both [E, D]: fp32 [E]."""
    # Not in fp64, which makes more true ties than sentence-transformers has: Spearman would move by
    # 1e-4.
    return (normalize_vectors(a) * normalize_vectors(b)).sum(1)


def _are_both_constant(a: np.ndarray, b: np.ndarray) -> bool:
    for side in (a, b):
        mean_length = np.linalg.norm(side, axis=1).mean()
        if not np.ptp(side, axis=0).max() <= _SAME_VECTORS * mean_length:  # True for NaN, too
            return False
    return True


def _is_constant(values: np.ndarray) -> bool:
    return bool(np.ptp(values) <= _SAME_SIMILARITIES * np.abs(values).max())


# Against 100,000 candidates their cosines are 410 MB.
_QUERIES_PER_BLOCK = 1024  # queries compared at once with all candidates
# Cosines closer than this are equal: products of fp32 unit vectors are known to no more
_TIE = 1e-6


def retrieval_scores(
    a: Any, b: Any, texts: Sequence[str] | None = None, pairs: Sequence[str] | None = None
) -> dict[str, float]:
    """Return the share of rows of [E, D] whose nearest row on the other side is their own, and the mean reciprocal ranks.

    The rows are unit vectors, numpy's or scipy's sparse ones. `forward` and `forward_mrr` are from
    a to b, `backward` and `backward_mrr` from b to a. With the texts of both sides an equal text is
    no rival: to find it is right. Where k rivals tie with a row's own, it counts 1 / (k + 1), and
    half of them stand before it: constant vectors score 1 / E.
    """
    shares = {}
    ranks = {}
    for name, queries, candidates, names in (("forward", a, b, pairs), ("backward", b, a, texts)):
        partners = np.arange(queries.shape[0])
        if names is not None:  # equal texts are one candidate
            _, first, partners = np.unique(
                np.asarray(names, object),
                return_index=True,
                return_inverse=True,
            )
            candidates = candidates[first]
        # Candidates that are nearer to a query than its own, and those that are as near
        nearer = np.empty(len(partners), np.int64)
        tied = np.empty(len(partners), np.int64)
        for start in range(0, len(partners), _QUERIES_PER_BLOCK):
            rows = slice(start, min(start + _QUERIES_PER_BLOCK, len(partners)))
            cosines = queries[rows] @ candidates.T
            cosines = cosines if isinstance(cosines, np.ndarray) else cosines.toarray()
            to_partner = cosines[np.arange(len(cosines)), partners[rows]][:, None]
            nearer[rows] = (cosines > to_partner + _TIE).sum(1)
            tied[rows] = (np.abs(cosines - to_partner) <= _TIE).sum(1) - 1
        shares[name] = float(np.mean((nearer == 0) / (1 + tied)))
        ranks[f"{name}_mrr"] = float(np.mean(1 / (1 + nearer + tied / 2)))
    return shares | ranks


# --- the baseline ---------------------------------------------------------------------------------


def tfidf_vectors(ids: RaggedIds) -> "csr_matrix":
    """Return the TF-IDF vectors of E texts over their tokens, each of length 1: csr fp64 [E, different tokens].

    They are scikit-learn's with its defaults; a text without a token is zeros. Tokens suit every
    language that the tokenizer suits: Korean words seldom repeat with their particles, their tokens
    do.
    """
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import TfidfTransformer

    tokens, columns = np.unique(ids.ids, return_inverse=True)
    counts = csr_matrix(
        (np.ones(len(columns)), columns, ids.offsets),
        shape=(ids.num_texts, len(tokens)),
    )
    # A token that comes again in a text has an entry of its own so far.
    counts.sum_duplicates()
    return TfidfTransformer().fit_transform(counts)


def pair_cosines(a: "csr_matrix", b: "csr_matrix") -> np.ndarray:
    """Return the cosine of each pair of rows of length 1, fp64 [E]."""
    return np.asarray(a.multiply(b).sum(1)).ravel()
