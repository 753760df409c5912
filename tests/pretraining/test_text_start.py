"""A start from text: counts as a plain loop finds them, vectors as a full decomposition gives them, heads that look where
they should, and a first evaluation that is better than token frequencies."""

from collections import Counter
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from small_store import SETTINGS, differing, weights, write_config

from albertkit.corpus import cooccurrence
from albertkit.corpus.cooccurrence import (
    WINDOW,
    Documents,
    cooccurrence_vectors,
    count_pairs,
    documents_without,
)
from albertkit.model import AlbertForPreTraining, PackedBatch
from albertkit.model.attention import attention_probabilities
from albertkit.pretraining.objective import Unigram
from albertkit.pretraining.text_start import start_from_text, token_dimensions

FROM_TEXT = replace(SETTINGS, initial_weights="text", optimizer="adamw", held_out=0.2)


@pytest.fixture(scope="module")
def settings(tmp_path_factory, store):
    shape = dict(embedding_size=32, hidden_size=64, num_attention_heads=2, intermediate_size=64)
    return replace(
        FROM_TEXT,
        config=write_config(tmp_path_factory.mktemp("text-start"), store.vocab_size, **shape),
    )


def expected_pairs(store, left_out, every=1):
    pairs = Counter()
    number = 0
    for shard in range(store.num_shards):
        for document, out in enumerate(left_out[shard]):
            tokens = np.concatenate(store.document(number)).tolist()
            number += 1
            for i, token in enumerate(tokens if not out and document % every == 0 else ()):
                for distance in range(1, WINDOW + 1):
                    for j in (i - distance, i + distance):
                        if 0 <= j < len(tokens):
                            pairs[token, tokens[j]] += 12 // distance
    return pairs


@pytest.mark.parametrize("every", [1, 3])
def test_pairs_are_those_of_a_plain_loop_with_any_threads(store, monkeypatch, every):
    monkeypatch.setattr(cooccurrence, "_MAX_TOKENS", store.num_tokens // every + 1)
    left_out = store.held_out(0.3, 0)
    contexts = np.arange(store.vocab_size)[::-1].copy()
    threads = torch.get_num_threads()
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            pairs = count_pairs(documents_without(store, left_out), store.vocab_size, contexts)
            expected = np.zeros_like(pairs)
            for (token, context), count in expected_pairs(store, left_out, every).items():
                expected[token, store.vocab_size - 1 - context] = count
            np.testing.assert_array_equal(pairs, expected)
    finally:
        torch.set_num_threads(threads)


def test_vectors_are_those_of_the_whole_decomposition(store):
    left_out = store.held_out(0.3, 0)
    counts = Unigram.of_store(store, left_out).counts
    pairs = np.zeros((store.vocab_size, store.vocab_size))
    for pair, count in expected_pairs(store, left_out).items():
        pairs[pair] = count
    share = pairs.sum(0) ** 0.75 / (pairs.sum(0) ** 0.75).sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        information = np.nan_to_num(
            np.maximum(0, np.log(pairs / pairs.sum(1, keepdims=True) / share)), nan=0, neginf=0
        )
    left_vectors, values, _ = np.linalg.svd(information)
    # With so many nothing of the projection is random
    expected = left_vectors[:, :40] * values[:40] ** 0.5
    has_pairs = information.any(1)
    expected *= 0.1 / expected[has_pairs].std(ddof=1)
    vectors = cooccurrence_vectors(documents_without(store, left_out), counts, 40, seed=0).numpy()
    np.testing.assert_allclose(
        vectors @ vectors.T, expected @ expected.T, atol=2e-3 * (expected @ expected.T).max()
    )
    assert (vectors[~has_pairs] == 0).all()
    repeated = cooccurrence_vectors(documents_without(store, left_out), counts, 40, seed=0).numpy()
    assert repeated.tobytes() == vectors.tobytes()


def test_heads_look_at_their_neighbours(store, settings):
    config = settings.model_config(store.vocab_size)
    model = AlbertForPreTraining(config).eval()
    vectors = torch.zeros(store.vocab_size, token_dimensions(config))
    start_from_text(model, vectors, torch.zeros(store.vocab_size), first_id=2)
    batch = replace(
        PackedBatch.from_sequences([[2] + [4] * 11]), token_type_ids=(torch.arange(12) > 6).long()
    )
    layer, prepared = model.albert.encoder.layers(torch.float32)[0]
    with torch.no_grad():
        hidden = model.albert.encoder.embedding_hidden_mapping_in(model.albert.embeddings(batch))
        (shares,) = attention_probabilities(prepared.qkv(hidden), batch, layer.num_heads)
    for head, offset in enumerate((-1, 1)):
        inner = torch.arange(2, 11)
        assert (shares[head].argmax(1)[inner] == inner + offset).all()
    first = (of_head[0, 1:7].sum() for of_head in shares)
    second = (of_head[0, 7:].sum() for of_head in shares)
    # Of [CLS]: a head a segment
    assert [a > 5 * b for a, b in zip(first, second, strict=True)] == [True, False]
    assert shares[1, 0, 7:].sum() > 5 * shares[1, 0, 1:7].sum()


def test_it_is_better_than_frequencies_before_the_first_update(train):
    losses = {}
    for initial in ("random", "text"):
        scores = train(initial, initial_weights=initial, steps=1, lr=1e-9).scores
        losses[initial] = scores["masked_lm_loss"] - scores["unigram_loss"]
    assert losses["text"] < min(0, losses["random"]) - 0.05, losses


def test_it_is_part_of_a_run(monkeypatch, train):
    """Interrupted before the first checkpoint it is computed again, afterwards it is not; the bits are the same."""
    unbroken = train("whole", steps=4)
    monkeypatch.setattr("albertkit.training.loop.save_state", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        train(steps=4, save_every=2)
    monkeypatch.undo()
    resumed = train(resume=True, steps=4, save_every=2)
    assert not differing(weights(unbroken.model), weights(resumed.model))


def test_what_cannot_start_from_text_is_refused(store, tmp_path, slug_of, train):
    wide = dict(embedding_size=64, hidden_size=32, num_attention_heads=1)
    for values in (wide, {"embedding_size": 2}, {"type_vocab_size": 1}):
        assert (
            slug_of(train, config=write_config(tmp_path, store.vocab_size, **values), steps=1)
            == "bad-value"
        )
    model = train("trained", initial_weights="random", steps=1).model
    assert slug_of(train, start=model, config=None, steps=1) == "bad-value"


def test_text_in_which_nothing_co_occurs_starts_from_random_weights():
    documents = Documents(np.full(6, 5, np.uint16), np.array([0]), np.array([6]))
    counts = np.zeros(40, np.int64)
    counts[5] = 6
    assert not cooccurrence_vectors([documents], counts, 8, 0).any()
