"""Retrieval against plain counting, and the bag of tokens against scikit-learn's own reading of the same tokens."""

import numpy as np
import pytest

from albertkit.embeddings import metrics as retrieval
from albertkit.embeddings.metrics import bag_of_tokens, pair_cosines, retrieval_figures, unit_vectors
from albertkit.tokenizer.ragged import ragged


@pytest.fixture(scope="module")
def sides():
    random = np.random.default_rng(0)
    a = random.standard_normal((70, 6)).astype(np.float32)
    return a, (a + 0.9 * random.standard_normal(a.shape)).astype(np.float32)


def counted(a, b):
    """Share of rows whose largest cosine is on the diagonal, and the mean of 1 / rank, by sorting."""
    cosines = unit_vectors(a) @ unit_vectors(b).T
    ranks = [list(np.argsort(-row)).index(n) + 1 for n, row in enumerate(cosines)]
    return np.mean(np.array(ranks) == 1), np.mean(1 / np.array(ranks))


def test_figures_are_those_of_sorting(sides, monkeypatch):
    monkeypatch.setattr(retrieval, "_BLOCK", 16)  # several blocks, the last one shorter
    a, b = sides
    figures = retrieval_figures(unit_vectors(a), unit_vectors(b))
    forward, backward = counted(a, b), counted(b, a)
    assert 0.2 < forward[0] < 0.9
    assert figures == pytest.approx(
        {"forward": forward[0], "backward": backward[0], "forward_mrr": forward[1], "backward_mrr": backward[1]}
    )
    assert figures["forward"] != pytest.approx(counted(a[::-1], b)[0])  # other rows would be noticed


def test_an_equal_text_is_no_rival(sides):
    """Three pairs with one second text: without the texts each finds its own in one of three cases."""
    b = unit_vectors(np.repeat(sides[1][:1], 3, axis=0))
    assert retrieval_figures(b, b)["forward"] == pytest.approx(1 / 3)
    assert retrieval_figures(b, b, list("abc"), list("xxx"))["forward"] == 1
    assert retrieval_figures(b, b, list("abc"), list("xxx"))["backward"] == pytest.approx(1 / 3)


def test_constant_vectors_score_as_guessing():
    ones = unit_vectors(np.ones((20, 4), np.float32))
    figures = retrieval_figures(ones, ones)
    assert (figures["forward"], figures["backward"]) == pytest.approx((1 / 20, 1 / 20))


def test_the_bag_of_tokens_is_tfidf():
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.metrics.pairwise import cosine_similarity

    random = np.random.default_rng(0)
    rows = [random.integers(0, 12, random.integers(1, 9)).astype(np.int32) for _ in range(30)]
    own = bag_of_tokens(ragged(rows))
    texts = [" ".join(map(str, row)) for row in rows]
    theirs = TfidfVectorizer(token_pattern=r"\S+").fit_transform(texts)
    np.testing.assert_allclose((own @ own.T).toarray(), (theirs @ theirs.T).toarray(), atol=1e-12)
    a, b = own[:15], own[15:]
    np.testing.assert_allclose(pair_cosines(a, b), np.diag(cosine_similarity(a, b)), atol=1e-12)
    once = TfidfVectorizer(token_pattern=r"\S+", binary=True).fit_transform(texts)
    assert np.abs((own @ own.T - once @ once.T).toarray()).max() > 1e-3  # counts matter here


def test_a_text_without_a_token_is_like_no_other():
    bags = bag_of_tokens(ragged([np.array([3, 4], np.int32), np.array([], np.int32)]))
    assert pair_cosines(bags[:1], bags[1:]).tolist() == [0]
    assert retrieval_figures(bags, bags)["forward"] == 0.75  # the empty one ties with the other
