"""Segments: what must hold for every document, length and seed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import MemoryStore

from albertkit.errors import ConfigError, DataError
from albertkit.pretraining.examples import (
    EXAMPLE,
    IN_ORDER,
    RANDOM,
    SINGLE,
    SWAPPED,
    ExampleSettings,
    count_covered_tokens,
    format_used_share,
    plan_epoch,
    tokens_used,
    truncated_front_and_kept_lengths,
)
from albertkit.pretraining.randomness import make_key


def numbered(lengths, **how):
    """A store whose tokens count up from 5, so that a token tells where it comes from."""
    token = 5
    documents = []
    for sentences in lengths:
        documents.append([])
        for n in sentences:
            documents[-1].append(list(range(token, token + n)))
            token += n
    return MemoryStore(documents, dtype=np.uint32, **how)


def spans(store, plan):
    """For each example: kind, A's tokens, B's tokens."""
    for example in plan.examples:
        a = store.tokens[example["a_shard"]][example["a_start"] :][: example["a_length"]]
        b = store.tokens[example["b_shard"]][example["b_start"] :][: example["b_length"]]
        yield int(example["kind"]), a.tolist(), b.tolist()


def planned(store, how, seed=0, epoch=0):
    """The plan of an epoch of all documents."""
    return plan_epoch(store, store.all_documents(), how, seed, epoch)


def origin(store):
    """token -> (document, sentence)"""
    origins = {}
    for d, document in enumerate(store.documents):
        for s, sentence in enumerate(document):
            origins |= dict.fromkeys(sentence, (d, s))
    return origins


corpora = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=8), min_size=1, max_size=6)
settings_class_of = st.builds(
    ExampleSettings,
    max_length=st.integers(5, 60),
    short_seq_prob=st.sampled_from([0.0, 0.1, 1.0]),
    pair_task=st.sampled_from(["sop", "nsp", "none"]),
    sop_pairs=st.sampled_from(["pure", "google"]),
)


@settings(max_examples=300)
@given(corpora, settings_class_of, st.integers(-5, 5), st.integers(1, 3), st.data())
def test_every_example_is_sound(lengths, how, seed, num_shards, data):
    store = numbered(lengths, num_shards=num_shards)
    flags = data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    included = np.split(
        np.array(flags), np.cumsum([len(o) - 1 for o in store.document_offsets])[:-1]
    )
    pure = how.pair_task == "sop" and how.sop_pairs == "pure"
    usable = [len(d) > 1 or not pure for d, flag in zip(lengths, flags, strict=True) if flag]
    if not any(usable):
        with pytest.raises(DataError, match=r"\[too-little-data\]"):
            plan_epoch(store, included, how, seed, 0)
        return
    plan = plan_epoch(store, included, how, seed, 0)
    assert plan.skipped_documents == usable.count(False)
    assert plan.lengths().max() <= how.max_length
    origins = origin(store)
    for kind, a, b in spans(store, plan):
        assert a == list(range(a[0], a[-1] + 1))  # consecutive, not empty
        documents = {origins[token][0] for token in a + b}
        assert all(flags[d] for d in documents)
        if kind == SINGLE:
            assert how.pair_task == "none"
            assert b == []
            continue
        assert b == list(range(b[0], b[-1] + 1))
        if kind == RANDOM:
            assert not pure
            continue
        assert len(documents) == 1
        first, second = (b, a) if kind == SWAPPED else (a, b)
        assert first[-1] < second[0]
        assert kind == IN_ORDER or how.pair_task == "sop"
        # Nothing was cut: the segments touch, between two sentences
        if len(a) + len(b) + 3 < how.max_length:
            assert first[-1] + 1 == second[0]
        assert origins[first[-1]][1] < origins[second[0]][1]


@settings(max_examples=100)
@given(corpora, settings_class_of, st.integers(0, 5))
def test_sharding_and_order_of_work_change_nothing(lengths, how, seed):
    def plan(num_shards):
        store = numbered(lengths, num_shards=num_shards)
        return list(spans(store, planned(store, how, seed, 1)))

    if how.pair_task != "sop" or how.sop_pairs != "pure" or any(len(d) > 1 for d in lengths):
        assert plan(1) == plan(min(3, len(lengths)))


@settings(max_examples=300)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(2, 200), st.integers(0, 1000))
def test_truncation_ends_where_the_original_loop_ends(a_length, b_length, max_tokens, seed):
    a_front, a_kept, b_front, b_kept = truncated_front_and_kept_lengths(
        a_length, b_length, max_tokens, make_key(seed, 1, 0), 0
    )
    a, b = a_length, b_length
    while a + b > max_tokens:  # truncate_seq_pair of create_pretraining_data.py
        if a > b:
            a -= 1
        else:
            b -= 1
    assert a_kept == a
    assert b_kept == b
    assert 0 <= a_front <= a_length - a_kept
    assert 0 <= b_front <= b_length - b_kept


def test_without_short_targets_every_sentence_is_used_once():
    store = numbered([[7] * 50, [3] * 9, [30] * 4])
    how = ExampleSettings(max_length=512, short_seq_prob=0.0)
    plan = planned(store, how)
    used = sorted(token for _, a, b in spans(store, plan) for token in a + b)
    assert used == list(range(5, 5 + len(store.tokens[0])))


def test_a_lone_last_sentence_takes_its_predecessor_again():
    store = numbered([[10, 10, 10]])
    # 15 tokens: two sentences fill a chunk, the third is alone
    how = ExampleSettings(max_length=18, short_seq_prob=0.0)
    plan = planned(store, how)
    assert sorted(sorted({(t - 5) // 10 for t in a + b}) for _, a, b in spans(store, plan)) == [
        [0, 1],
        [1, 2],
    ]


def test_sentences_longer_than_the_limit():
    store = numbered([[100_000, 70_000, 3, 90_000]])
    for sop_pairs in ("pure", "google"):
        plan = planned(store, ExampleSettings(max_length=128, sop_pairs=sop_pairs))
        assert set(plan.lengths()) == {128}


def test_google_pairs_one_sentence_chunks_with_other_documents():
    store = numbered([[20], [20], [20]], num_shards=3)
    plan = planned(store, ExampleSettings(max_length=64, sop_pairs="google"))
    origins = origin(store)
    assert {kind for kind, _, _ in spans(store, plan)} == {RANDOM}
    assert all(origins[a[0]][0] != origins[b[0]][0] for _, a, b in spans(store, plan))


def test_epochs_and_seeds_differ_and_repeat(novels):
    def plan(seed, epoch):
        return planned(novels, ExampleSettings(max_length=128), seed, epoch).examples

    assert np.array_equal(plan(1, 0), plan(1, 0))
    assert not np.array_equal(plan(1, 0)[:100], plan(1, 1)[:100])
    assert not np.array_equal(plan(1, 0)[:100], plan(2, 0)[:100])


def test_seen_tokens_counts_each_token_once():
    examples = np.zeros(200, EXAMPLE)
    draw = np.random.default_rng(0)
    tokens = set()
    for example in examples:
        for segment in "ab":
            shard, start, length = (int(draw.integers(n)) for n in (3, 400, 20))
            example[f"{segment}_shard"] = shard
            example[f"{segment}_start"] = start
            example[f"{segment}_length"] = length
            tokens.update((shard, start + k) for k in range(length))
    assert count_covered_tokens(examples) == len(tokens)
    assert count_covered_tokens(examples[:0]) == 0


def test_an_example_takes_twenty_bytes():
    assert EXAMPLE.itemsize == 20


@pytest.mark.parametrize(
    "wrong",
    [
        dict(pair_task="sopp"),
        dict(sop_pairs="both"),
        dict(max_length=4),
        dict(short_seq_prob=1.5),
    ],
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError) as caught:
        ExampleSettings(**wrong)
    assert caught.value.slug == "bad-value"
    assert caught.value.hint


# --- how much of a text an epoch shows ------------------------------------------------------------


@settings(max_examples=200)
@given(
    st.lists(st.lists(st.integers(1, 300), min_size=1, max_size=8), min_size=1, max_size=4),
    st.integers(5, 60),
    st.integers(0, 9),
)
def test_without_pairs_every_token_is_in_exactly_one_example(lengths, longest, epoch):
    """Also of a document a line, of which cut examples would show next to nothing."""
    store = numbered(lengths)
    how = ExampleSettings(max_length=longest, pair_task="none")
    plan = planned(store, how, 3, epoch)
    tokens = [token for _, a, _ in spans(store, plan) for token in a]
    assert sorted(tokens) == sorted(
        token for document in store.documents for sentence in document for token in sentence
    )
    assert tokens_used(store, plan, store.all_documents()) == 1.0


def test_long_sentences_are_cut_elsewhere_in_every_epoch():
    store = numbered([[1000]])
    how = ExampleSettings(max_length=102, pair_task="none", short_seq_prob=0.0)
    cuts = [
        tuple(sorted(a[0] for _, a, _ in spans(store, planned(store, how, 3, epoch))))
        for epoch in range(8)
    ]
    assert len(set(cuts)) > 4
    lengths = [len(a) for _, a, _ in spans(store, planned(store, how, 3))]
    # All but the first and the last are full
    assert sorted(lengths)[2:] == [100] * (len(lengths) - 2)


def test_the_share_of_tokens_that_an_epoch_shows_is_counted():
    store = numbered([[100, 100, 100], [3, 4], [50]], num_shards=2)
    plan = planned(store, ExampleSettings(max_length=43, short_seq_prob=0.0), 1)
    tokens = {token for _, a, b in spans(store, plan) for token in a + b}
    total = sum(len(sentence) for document in store.documents for sentence in document)
    assert tokens_used(store, plan, store.all_documents()) == pytest.approx(len(tokens) / total)
    assert len(tokens) / total < 0.5
    assert "--sentences split" in format_used_share(len(tokens) / total)
    assert format_used_share(0.89) == "89%"
    assert format_used_share(0.016).startswith("1.6%.")
