"""Similarities and their correlations against sentence-transformers' figures."""

import json

import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr

from albertkit.embeddings import metrics as similarity
from albertkit.embeddings.metrics import (
    SIMILARITIES,
    constants,
    correlation_intervals,
    mean_random_cosine,
    similarities,
    similarity_scores,
)

CASES = [
    "main", "integer_vectors_with_ties", "first_20", "one_zero_vector", "constant_embeddings", "constant_labels",
    "main_truncate_dim_8",
]  # fmt: skip


@pytest.fixture(scope="module")
def sts(golden):
    return np.load(golden / "sts" / "similarity_inputs.npz")


@pytest.fixture(scope="module")
def expected(golden):
    return json.loads((golden / "sts" / "similarity_metrics.json").read_text())["results"]


def case_of(sts, name):
    base, _, dimension = name.partition("_truncate_dim_")
    cut = slice(int(dimension) if dimension else None)
    return sts[f"{base}_a"][:, cut], sts[f"{base}_b"][:, cut], sts[f"{base}_score"]


def distance(scores, expected):
    """The largest difference; infinite where one side is defined and the other is not."""
    assert list(scores) == list(expected)
    pairs = [(scores[name], expected[name]) for name in expected]
    if any((ours is None) != (theirs is None) for ours, theirs in pairs):
        return np.inf
    return max((abs(ours - theirs) for ours, theirs in pairs if ours is not None), default=0.0)


def test_all_cases_are_there(expected):
    assert sorted(expected) == sorted(CASES)


@pytest.mark.parametrize("name", CASES)
def test_scores_are_those_of_sentence_transformers(sts, expected, name):
    assert distance(similarity_scores(*case_of(sts, name)), expected[name]) < 1e-6


def test_similarities_are_those_of_sentence_transformers(sts):
    found = similarities(sts["main_a"], sts["main_b"])
    for name in SIMILARITIES:
        np.testing.assert_allclose(found[name], sts[f"main_pairwise_{name}"], rtol=1e-6, atol=1e-6)


def test_the_comparison_notices_a_swapped_pair_of_labels(sts, expected):
    a, b, labels = case_of(sts, "main")
    labels = labels.copy()
    labels[[0, 1]] = labels[[1, 0]]
    assert distance(similarity_scores(a, b, labels), expected["main"]) > 1e-6


def test_the_comparison_notices_ties_that_are_not_averaged(sts, expected, monkeypatch):
    def ordinal(labels, values):
        ranks = [rankdata(side, "ordinal") for side in (labels, values)]
        return {"pearson": float(np.corrcoef(labels, values)[0, 1]), "spearman": float(np.corrcoef(*ranks)[0, 1])}

    monkeypatch.setattr(similarity, "regression_scores", ordinal)
    name = "integer_vectors_with_ties"
    assert distance(similarity_scores(*case_of(sts, name)), expected[name]) > 1e-6


def test_the_comparison_notices_distances_without_their_minus(sts, expected, monkeypatch):
    true = similarity.similarities
    monkeypatch.setattr(similarity, "similarities", lambda a, b: {k: abs(v) for k, v in true(a, b).items()})
    assert distance(similarity_scores(*case_of(sts, "main")), expected["main"]) > 1e-6


def test_a_zero_vector_has_cosine_zero():
    zero, other = np.zeros((1, 3), np.float32), np.array([[1, 2, 3]], np.float32)
    assert similarities(zero, other)["cosine"] == 0
    assert similarities(zero, zero)["cosine"] == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [("constant_embeddings", "vectors are constant"), ("constant_labels", "pairs have the score"), ("main", "")],
)
def test_constants_are_named(sts, name, words):
    found = constants(*case_of(sts, name))
    assert words in found[0] if words else found == []


def test_vectors_that_are_constant_but_for_rounding_are_constant(sts):
    """A collapsed model's vectors differ in their last bits: figures of that noise would be figures of nothing."""
    a, b, labels = case_of(sts, "constant_embeddings")
    random = np.random.default_rng(0)
    a, b = (side * (1 + 1e-6 * random.standard_normal(side.shape)).astype(np.float32) for side in (a, b))
    assert np.ptp(similarities(a, b)["dot"]) > 0
    assert set(similarity_scores(a, b, labels).values()) == {None}


def test_one_number_of_a_vector_has_a_constant_cosine_and_other_similarities():
    random = np.random.default_rng(0)
    a, b = (random.uniform(1, 2, (50, 1)).astype(np.float32) for _ in range(2))
    labels = random.uniform(0, 5, 50)
    scores = similarity_scores(a, b, labels)
    assert scores["spearman_cosine"] is None
    assert scores["spearman_dot"] == pytest.approx(spearmanr(a * b, labels)[0])
    assert constants(a, b, labels) == ["every pair has the same similarity: cosine"]


def test_the_interval_of_a_correlation_covers_it_and_shrinks_with_more_pairs(sts):
    a, b, labels = case_of(sts, "main")
    cosines = similarities(a, b)["cosine"]
    few, many = (correlation_intervals(labels[:n], cosines[:n])["spearman"] for n in (40, 300))
    assert many[0] < spearmanr(labels, cosines)[0] < many[1]
    assert many[1] - many[0] < few[1] - few[0]
    assert correlation_intervals(np.ones(40), cosines[:40]) == {}


def test_mean_random_cosine_is_the_mean_over_all_pairs():
    vectors = np.random.default_rng(0).normal(0.3, 1, (40, 8)).astype(np.float32)
    vectors[7] = 0
    units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    pairs = [units[i] @ units[j] for i in range(40) for j in range(40) if i != j]
    assert mean_random_cosine(vectors) == pytest.approx(np.mean(pairs), abs=1e-6)
    assert mean_random_cosine(np.ones((5, 3), np.float32)) == pytest.approx(1)
    assert mean_random_cosine(vectors[:1]) is None
