"""Similarities against sentence-transformers' figures, retrieval against plain counting, bags of tokens against scikit-learn."""

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import spearmanr

from albertkit.embeddings import metrics
from albertkit.embeddings.metrics import (
    SIMILARITIES,
    constant_input_findings,
    correlation_intervals,
    mean_random_cosine,
    normalize_vectors,
    pair_cosines,
    retrieval_scores,
    similarities,
    similarity_correlations,
    tfidf_vectors,
)
from albertkit.tokenizer.ragged import concatenate_ids

CASES = [
    "main", "integer_vectors_with_ties", "first_20", "one_zero_vector", "constant_embeddings", "constant_labels",
    "main_truncate_dim_8",
]  # fmt: skip


@pytest.fixture(scope="module")
def sts(golden):
    return np.load(golden / "sts/similarity_inputs.npz")


@pytest.fixture(scope="module")
def expected(golden):
    return json.loads((golden / "sts/similarity_metrics.json").read_text())["results"]


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
    assert distance(similarity_correlations(*case_of(sts, name)), expected[name]) < 1e-6


def test_similarities_are_those_of_sentence_transformers(sts):
    values = similarities(sts["main_a"], sts["main_b"])
    for name in SIMILARITIES:
        assert_allclose(values[name], sts[f"main_pairwise_{name}"], rtol=1e-6, atol=1e-6)


def test_a_zero_vector_has_cosine_zero():
    zero = np.zeros((1, 3), np.float32)
    vector = np.array([[1, 2, 3]], np.float32)
    assert similarities(zero, vector)["cosine"] == 0
    assert similarities(zero, zero)["cosine"] == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("constant_embeddings", "vectors are constant"),
        ("constant_labels", "pairs have the score"),
        ("main", ""),
    ],
)
def test_constants_are_named(sts, name, words):
    notes = constant_input_findings(*case_of(sts, name))
    assert words in notes[0] if words else notes == []


def test_vectors_that_are_constant_but_for_rounding_are_constant(sts):
    """A collapsed model's vectors differ in their last bits: figures of that noise would be figures of nothing."""
    a, b, labels = case_of(sts, "constant_embeddings")
    random = np.random.default_rng(0)
    a, b = (
        side * (1 + 1e-6 * random.standard_normal(side.shape)).astype(np.float32) for side in (a, b)
    )
    assert np.ptp(similarities(a, b)["dot"]) > 0
    assert set(similarity_correlations(a, b, labels).values()) == {None}


def test_one_number_of_a_vector_has_a_constant_cosine_and_other_similarities():
    random = np.random.default_rng(0)
    a, b = (random.uniform(1, 2, (50, 1)).astype(np.float32) for _ in range(2))
    labels = random.uniform(0, 5, 50)
    scores = similarity_correlations(a, b, labels)
    assert scores["spearman_cosine"] is None
    assert scores["spearman_dot"] == pytest.approx(spearmanr(a * b, labels)[0])
    assert constant_input_findings(a, b, labels) == ["every pair has the same similarity: cosine"]


def test_the_interval_of_a_correlation_covers_it_and_shrinks_with_more_pairs(sts):
    a, b, labels = case_of(sts, "main")
    cosines = similarities(a, b)["cosine"]
    of_40, of_300 = (correlation_intervals(labels[:n], cosines[:n])["spearman"] for n in (40, 300))
    assert of_300[0] < spearmanr(labels, cosines)[0] < of_300[1]
    assert of_300[1] - of_300[0] < of_40[1] - of_40[0]
    assert correlation_intervals(np.ones(40), cosines[:40]) == {}


def test_mean_random_cosine_is_the_mean_over_all_pairs():
    vectors = np.random.default_rng(0).normal(0.3, 1, (40, 8)).astype(np.float32)
    vectors[7] = 0
    units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    pairs = [units[i] @ units[j] for i in range(40) for j in range(40) if i != j]
    assert mean_random_cosine(vectors) == pytest.approx(np.mean(pairs), abs=1e-6)
    assert mean_random_cosine(np.ones((5, 3), np.float32)) == pytest.approx(1)
    assert mean_random_cosine(vectors[:1]) is None


# --- retrieval and the bag of tokens --------------------------------------------------------------


@pytest.fixture(scope="module")
def sides():
    random = np.random.default_rng(0)
    a = random.standard_normal((70, 6)).astype(np.float32)
    return a, (a + 0.9 * random.standard_normal(a.shape)).astype(np.float32)


def counted(a, b):
    """Share of rows whose largest cosine is on the diagonal, and the mean of 1 / rank, by sorting."""
    cosines = normalize_vectors(a) @ normalize_vectors(b).T
    ranks = [list(np.argsort(-row)).index(n) + 1 for n, row in enumerate(cosines)]
    return np.mean(np.array(ranks) == 1), np.mean(1 / np.array(ranks))


def test_figures_are_those_of_sorting(sides, monkeypatch):
    monkeypatch.setattr(metrics, "_QUERIES_PER_BLOCK", 16)  # several blocks, the last one shorter
    a, b = sides
    figures = retrieval_scores(normalize_vectors(a), normalize_vectors(b))
    forward = counted(a, b)
    backward = counted(b, a)
    assert 0.2 < forward[0] < 0.9
    assert figures == pytest.approx(
        {
            "forward": forward[0],
            "backward": backward[0],
            "forward_mrr": forward[1],
            "backward_mrr": backward[1],
        }
    )
    # Other rows would be noticed
    assert figures["forward"] != pytest.approx(counted(a[::-1], b)[0])


def test_an_equal_text_is_no_rival(sides):
    """Three pairs with one second text: without the texts each finds its own in one of three cases."""
    b = normalize_vectors(np.repeat(sides[1][:1], 3, axis=0))
    assert retrieval_scores(b, b)["forward"] == pytest.approx(1 / 3)
    assert retrieval_scores(b, b, list("abc"), list("xxx"))["forward"] == 1
    assert retrieval_scores(b, b, list("abc"), list("xxx"))["backward"] == pytest.approx(1 / 3)


def test_constant_vectors_score_as_guessing():
    constant = normalize_vectors(np.ones((20, 4), np.float32))
    figures = retrieval_scores(constant, constant)
    assert (figures["forward"], figures["backward"]) == pytest.approx((1 / 20, 1 / 20))


def test_the_bag_of_tokens_is_tfidf():
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.metrics.pairwise import cosine_similarity

    random = np.random.default_rng(0)
    rows = [random.integers(0, 12, random.integers(1, 9)).astype(np.int32) for _ in range(30)]
    bags = tfidf_vectors(concatenate_ids(rows))
    texts = [" ".join(map(str, row)) for row in rows]
    theirs = TfidfVectorizer(token_pattern=r"\S+").fit_transform(texts)
    assert_allclose((bags @ bags.T).toarray(), (theirs @ theirs.T).toarray(), atol=1e-12)
    a, b = bags[:15], bags[15:]
    assert_allclose(pair_cosines(a, b), np.diag(cosine_similarity(a, b)), atol=1e-12)
    once = TfidfVectorizer(token_pattern=r"\S+", binary=True).fit_transform(texts)
    assert np.abs((bags @ bags.T - once @ once.T).toarray()).max() > 1e-3  # counts matter here


def test_a_text_without_a_token_is_like_no_other():
    bags = tfidf_vectors(concatenate_ids([np.array([3, 4], np.int32), np.array([], np.int32)]))
    assert pair_cosines(bags[:1], bags[1:]).tolist() == [0]
    assert retrieval_scores(bags, bags)["forward"] == 0.75  # the empty one ties with the other
