"""Neighbours against plain formulas, and pairs that are unique whichever text is first."""

from collections import Counter

import numpy as np
import pytest
from numpy.testing import assert_allclose

from albertkit.embeddings import augment
from albertkit.embeddings.augment import (
    NO_NEIGHBOUR,
    bm25_neighbours,
    pair_neighbours,
    random_neighbours,
    semantic_neighbours,
)
from albertkit.tokenizer.ragged import concatenate_ids


@pytest.fixture(scope="module")
def rows():
    """80 texts of 0 to 14 tokens, common ones and rare ones."""
    random = np.random.default_rng(0)
    return [
        np.minimum(random.zipf(1.6, random.integers(0, 15)), 60).astype(np.int32) for _ in range(80)
    ]


def bm25(rows, k1=1.5, b=0.75):
    """Robertson's formula with Lucene's idf, as text books have it, a pair at a time."""
    counts = [Counter(row.tolist()) for row in rows]
    document_frequency = Counter(token for count in counts for token in count)
    mean = np.mean([len(row) for row in rows])

    def score(query, text):
        total = 0.0
        for token in query.tolist():
            idf = np.log(
                1
                + (len(rows) - document_frequency[token] + 0.5) / (document_frequency[token] + 0.5)
            )
            often = counts[text][token]
            total += idf * often / (often + k1 * (1 - b + b * len(rows[text]) / mean))
        return total

    return np.array([[score(query, text) for text in range(len(rows))] for query in rows])


def chosen_and_best(rows, k, scores):
    """Of each text the scores of the neighbours chosen, and the k best scores of others."""
    nearest = bm25_neighbours(concatenate_ids(rows), k)
    chosen = [
        [scores[n, m] if m != NO_NEIGHBOUR else 0.0 for m in row] for n, row in enumerate(nearest)
    ]
    best = []
    for n in range(len(rows)):
        other_scores = np.delete(scores[n], n)
        best.append(sorted(other_scores, reverse=True)[:k])
    return nearest, np.array(chosen), np.array(best)


def test_bm25_neighbours_have_the_best_scores_by_the_formula(rows):
    nearest, chosen, best = chosen_and_best(rows, 4, bm25(rows))
    assert_allclose(chosen, best, rtol=1e-5, atol=1e-6)
    assert not (nearest == np.arange(len(rows))[:, None]).any()
    _, chosen, best = chosen_and_best(rows, 4, bm25(rows, k1=4.0))
    assert np.abs(chosen - best).max() > 1e-3  # another constant is noticed
    empty = [n for n, row in enumerate(rows) if not len(row)]
    assert empty
    assert (nearest[empty] == NO_NEIGHBOUR).all()


@pytest.mark.slow  # it compiles
def test_the_compiled_search_of_many_texts_finds_the_same(rows, monkeypatch):
    monkeypatch.setattr(augment, "_MIN_COMPILED_TEXTS", 10)
    _, chosen, best = chosen_and_best(rows, 4, bm25(rows))
    assert_allclose(chosen, best, rtol=1e-5, atol=1e-6)


def test_texts_without_a_common_token_are_no_neighbours():
    nearest = bm25_neighbours(
        concatenate_ids([np.array(row, np.int32) for row in ([5, 6], [6, 7], [8], [9])]), 2
    )
    assert nearest.tolist() == [
        [1, NO_NEIGHBOUR],
        [0, NO_NEIGHBOUR],
        [NO_NEIGHBOUR] * 2,
        [NO_NEIGHBOUR] * 2,
    ]


def test_semantic_neighbours_are_those_of_brute_force():
    random = np.random.default_rng(0)
    vectors = random.standard_normal((700, 12)).astype(np.float32) * random.uniform(
        0.1, 9, (700, 1)
    ).astype(np.float32)
    nearest = semantic_neighbours(vectors, 5)
    units = vectors.astype(np.float64) / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = units @ units.T
    np.fill_diagonal(cosines, -2)
    assert (nearest == np.argsort(-cosines, axis=1)[:, :5]).all()
    lengths_count = vectors @ vectors.T
    np.fill_diagonal(lengths_count, -np.inf)
    # The dot product has others
    assert (nearest != np.argsort(-lengths_count, axis=1)[:, :5]).any()


def test_random_neighbours_are_others_and_all_of_them():
    neighbours = random_neighbours(50, 40, seed=1)
    assert not (neighbours == np.arange(50)[:, None]).any()
    assert set(neighbours.ravel()) == set(range(50))
    assert (neighbours == random_neighbours(50, 40, seed=1)).all()
    assert (neighbours != random_neighbours(50, 40, seed=2)).any()


def test_pairs_are_unique_in_either_order_under_their_lowest_rank():
    """Acceptance test 9."""
    random = np.random.default_rng(3)
    nearest = random.integers(-1, 40, (40, 6))
    pairs = pair_neighbours(nearest)
    keys = [
        frozenset(pair) for pair in zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)
    ]
    expected = {}
    for (first, rank), second in np.ndenumerate(nearest):
        if second != NO_NEIGHBOUR and second != first:
            key = frozenset((first, int(second)))
            expected[key] = min(expected.get(key, (99,)), (rank + 1, first))
    assert len(keys) == len(set(keys)) == len(expected)
    for key, *rank_and_first in zip(keys, pairs.rank, pairs.first, strict=True):
        assert expected[key] == tuple(rank_and_first)
    assert all(first != second for first, second in map(tuple, keys))


def test_a_text_that_is_not_among_its_own_neighbours_keeps_the_best():
    neighbours = augment.neighbours_without_itself(
        np.array([[4, 0, 2], [3, 2, 5]]), np.array([0, 1]), 2
    )
    assert neighbours.tolist() == [[4, 2], [3, 2]]
