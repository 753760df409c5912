"""The batch stream: budgets, coverage, resumption, independence of workers; and the masks in the batches."""

from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import MemoryStore, toy_tokenizer

from albertkit.errors import ConfigError, DataError
from albertkit.pretraining import examples
from albertkit.pretraining.batches import BatchStream, EvaluationStream
from albertkit.pretraining.examples import ExampleSettings
from albertkit.pretraining.masking import MaskSettings


def random_store(num_documents=60, seed=0, vocab_size=100, **how):
    draw = np.random.default_rng(seed)
    documents = [
        [
            draw.integers(5, vocab_size, draw.integers(1, 20)).tolist()
            for _ in range(draw.integers(1, 12))
        ]
        for _ in range(num_documents)
    ]
    return MemoryStore(documents, model=toy_tokenizer(vocab_size), **how)


def stream_of(store, **how):
    how = dict(examples=ExampleSettings(max_length=32), batch_tokens=128, seed=4) | how
    return BatchStream(store, store.all_documents(), **how)


def sequences(batch):
    """Each sequence of a packed batch with its targets, as plain numbers."""
    masked = dict(zip(batch.masked_positions.tolist(), batch.masked_labels.tolist(), strict=True))
    for n, (first, end) in enumerate(
        zip(batch.offsets[:-1].tolist(), batch.offsets[1:].tolist(), strict=True)
    ):
        targets = tuple((p - first, masked[p]) for p in range(first, end) if p in masked)
        yield (
            tuple(batch.input_ids[first:end].tolist()),
            targets,
            int(batch.sentence_order_labels[n]),
        )


def first_epoch(stream):
    """The global batches of epoch 0."""
    batches = []
    while True:
        batch = next(stream)
        if stream.state()["epoch"] > 0:
            return batches
        batches.append(batch)


def all_sequences(updates):
    return [s for batches in updates for batch in batches for s in sequences(batch)]


def equal(left, right):
    pairs = [(value, getattr(right, name)) for name, value in vars(left).items()]
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


def is_same(left, right):
    return len(left) == len(right) and all(equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize("pair_task", ["sop", "nsp", "none"])
def test_batches_are_well_formed(dtype, pair_task):
    store = random_store(num_shards=3, dtype=dtype)
    how = dict(
        examples=ExampleSettings(max_length=32, pair_task=pair_task),
        masks=MaskSettings(whole_word=False),
    )
    for batches in first_epoch(stream_of(store, accumulation=3, **how)):
        assert 1 <= len(batches) <= 3
        for batch in batches:
            assert batch.num_tokens <= 128
            assert batch.offsets.diff().tolist() == list(batch.lengths)
            assert max(batch.lengths) <= 32
            assert batch.position_ids.tolist() == [
                i for length in batch.lengths for i in range(length)
            ]
            original = batch.input_ids.clone()
            original[batch.masked_positions] = batch.masked_labels
            special = torch.isin(original, torch.tensor([2, 3]))
            assert not special[batch.masked_positions].any()
            assert (original[batch.offsets[:-1]] == 2).all()
            assert (original[batch.offsets[1:] - 1] == 3).all()
            segments = 1 if pair_task == "none" else 2
            assert special.sum() == (segments + 1) * batch.num_sequences
            for first, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
                until = int((original[first:end] == 3).nonzero()[0]) + 1
                assert batch.token_type_ids[first:end].tolist() == [0] * until + [1] * (
                    int(end - first) - until
                )
            assert (batch.masked_positions.diff() > 0).all()
            expected_counts = [max(1, round(0.15 * length)) for length in batch.lengths]
            assert batch.masked_positions.numel() == sum(expected_counts)
            replaced = batch.input_ids[batch.masked_positions]
            assert ((replaced == 4) | (replaced > 4)).all()
            if pair_task == "none":
                assert batch.sentence_order_labels is None
            else:
                assert set(batch.sentence_order_labels.tolist()) <= {0, 1}


def test_a_pass_covers_every_example_once_however_it_is_divided():
    store = random_store(num_documents=80)
    alone = all_sequences(first_epoch(stream_of(store)))
    assert len(alone) > 100
    for world_size, accumulation, batch_tokens in (
        (2, 1, 128),
        (3, 2, 64),
        (1, 4, 32),
        (5, 1, 500),
    ):
        divided = []
        steps = set()
        for rank in range(world_size):
            stream = stream_of(
                store,
                rank=rank,
                world_size=world_size,
                accumulation=accumulation,
                batch_tokens=batch_tokens,
            )
            batches = first_epoch(stream)
            steps.add(tuple(len(batch) for batch in batches))
            divided += all_sequences(batches)
        assert len(steps) == 1  # all processes take the same number of steps and micro-batches
        assert sorted(divided) == sorted(alone)


@pytest.mark.parametrize(("processes", "accumulation"), [(2, 1), (3, 2), (4, 3)])
def test_another_number_of_processes_computes_the_same_micro_batches(processes, accumulation):
    """A global batch is made for P processes: however many there are, its micro-batches are the same, in turn."""
    store = random_store(num_documents=40)

    def epoch(rank, world_size):
        how = dict(
            rank=rank,
            world_size=world_size,
            processes=processes,
            accumulation=accumulation,
            batch_tokens=64,
        )
        return first_epoch(stream_of(store, **how))

    expected = [epoch(rank, processes) for rank in range(processes)]
    for world_size in range(1, processes * accumulation + 2):
        dealt = [epoch(rank, world_size) for rank in range(world_size)]
        assert len({len(batches) for batches in dealt}) == 1
        for update in range(len(dealt[0])):
            num_batches = sum(len(batches[update]) for batches in expected)
            expected_batches = [
                expected[n % processes][update][n // processes] for n in range(num_batches)
            ]
            for number, batch in enumerate(expected_batches):
                assert equal(batch, dealt[number % world_size][update][number // world_size])
            idle = [dealt[rank][update] for rank in range(len(expected_batches), world_size)]
            assert all(len(batches) == 1 and not batches[0].num_tokens for batches in idle)


@pytest.fixture
def in_blocks(monkeypatch):
    """A store that is planned in several blocks, as one of more than 8e9 tokens."""
    monkeypatch.setattr(examples, "BLOCK_SEQUENCES", 30)
    return random_store(num_documents=80, num_shards=9)


def test_blocks_of_an_epoch_hold_every_example_once(in_blocks, monkeypatch):
    stream = stream_of(in_blocks)
    assert 3 <= stream.num_blocks() < 9
    blocks = [examples.shards_of_blocks(in_blocks, stream.settings, 4, epoch) for epoch in range(2)]
    assert sorted(np.concatenate(blocks[0])) == list(range(9))
    assert [b.tolist() for b in blocks[0]] != [b.tolist() for b in blocks[1]]
    divided = []
    for rank in range(2):
        divided += all_sequences(first_epoch(stream_of(in_blocks, rank=rank, world_size=2)))
    monkeypatch.setattr(examples, "BLOCK_SEQUENCES", 1 << 24)
    at_once = all_sequences(first_epoch(stream_of(in_blocks)))
    plain = [[i for i in unmasked(s) if i >= 5] for s in divided]
    assert sorted(plain) == sorted([i for i in unmasked(s) if i >= 5] for s in at_once)
    # No two blocks draw the same masks
    assert len({labels for _, labels, _ in divided}) > 0.9 * len(divided)


def unmasked(sequence):
    ids, targets, _ = sequence
    return [dict(targets).get(index, i) for index, i in enumerate(ids)]


@pytest.mark.parametrize("at", [1, 9, 20])
def test_restoring_within_a_block_continues_to_the_bit(in_blocks, at):
    through = stream_of(in_blocks)
    for _ in range(at):
        next(through)
    state = through.state()
    expected = list(islice(through, 60))
    assert through.state()["epoch"] > 0
    fresh = stream_of(in_blocks)
    fresh.restore(state)
    assert all(is_same(a, b) for a, b in zip(expected, islice(fresh, 60), strict=True))


def test_micro_batches_are_filled_greedily():
    stream = stream_of(random_store())
    batches = [batch for (batch,) in first_epoch(stream)]
    for batch, following in pairwise(batches):
        assert batch.num_tokens + following.lengths[0] > 128
    assert stream.estimate_global_batches(0) == len(batches)
    assert len(stream.plan(0).examples) == sum(batch.num_sequences for batch in batches)


@pytest.mark.parametrize("at", [0, 1, 7, 40])
def test_restoring_continues_to_the_bit(at):
    store = random_store(num_documents=20)
    through = stream_of(store, accumulation=2)
    for _ in range(at):
        next(through)
    state = through.state()
    assert all(type(value) is int for value in state.values())
    expected = list(islice(through, 30))  # into the next epochs
    assert through.state()["epoch"] > state["epoch"]
    fresh = stream_of(store, accumulation=2)
    next(fresh)
    fresh.restore(state)
    assert fresh.state() == state
    assert all(is_same(a, b) for a, b in zip(expected, islice(fresh, 30), strict=True))
    through.restore(state)  # the same stream, with a batch prepared ahead
    assert is_same(next(through), expected[0])


def test_a_run_can_go_on_with_more_processes():
    store = random_store(num_documents=60)
    everything = sorted(all_sequences(first_epoch(stream_of(store))))
    stream = stream_of(store)
    examples = all_sequences(islice(stream, 5))
    state = stream.state()
    for rank in range(2):
        half = stream_of(store, rank=rank, world_size=2, batch_tokens=96)
        half.restore(state)
        examples += all_sequences(first_epoch(half))
    assert sorted(examples) == everything


def test_epochs_are_masked_and_cut_anew():
    store = random_store(num_documents=10)
    stream = stream_of(store)
    first = set(all_sequences(first_epoch(stream)))
    second = set(all_sequences(islice(stream, 5)))
    assert len(first & second) < 0.1 * len(second)


def test_what_is_not_included_never_appears():
    store = MemoryStore([[[10 + d] * 4] * 5 for d in range(40)])
    held_out = [np.arange(40) % 4 == 0]
    masks = MaskSettings(whole_word=False)
    how = ExampleSettings(max_length=16, sop_pairs="google")
    train = BatchStream(store, [~held_out[0]], how, masks, batch_tokens=64)
    labels = {
        label
        for batches in islice(train, 60)
        for batch in batches
        for label in batch.masked_labels.tolist()
    }
    assert labels == {10 + d for d in range(40) if d % 4}
    evaluation = EvaluationStream(store, held_out, how, masks, batch_tokens=64)
    assert {i for b in evaluation for i in b.masked_labels.tolist()} == {
        10 + d for d in range(0, 40, 4)
    }


def test_evaluation_repeats_itself_and_loses_nothing():
    store = random_store()
    how = dict(examples=ExampleSettings(max_length=32), batch_tokens=128)
    evaluation = EvaluationStream(store, store.all_documents(), **how)
    batches = list(evaluation)
    assert all(equal(a, b) for a, b in zip(batches, evaluation, strict=True))
    assert all(batch.num_tokens <= 128 for batch in batches)
    alone = all_sequences([batches])
    assert len(alone) == len(evaluation.plan.examples)
    ranks = [
        EvaluationStream(store, store.all_documents(), rank=rank, world_size=3, **how)
        for rank in range(3)
    ]
    divided = all_sequences(ranks)
    assert sorted(divided) == sorted(alone)


@settings(max_examples=60)
@given(
    st.integers(5, 80), st.integers(1, 30) | st.none(), st.integers(1, 6), st.booleans(), st.booleans(),
    st.floats(0.01, 0.9), st.integers(0, 1000),
)  # fmt: skip
def test_masks_keep_to_the_budget(max_length, cap, max_ngram, shorter, whole_word, share, seed):
    store = random_store(num_documents=8, seed=seed)
    masks = MaskSettings(
        masked_lm_prob=share,
        max_predictions=cap,
        max_ngram=max_ngram,
        favor_shorter_ngram=shorter,
        whole_word=whole_word,
    )
    how = ExampleSettings(max_length=max_length)
    for batch in EvaluationStream(
        store, store.all_documents(), how, masks, seed=seed, batch_tokens=400
    ):
        sequence = torch.repeat_interleave(
            torch.arange(batch.num_sequences), torch.tensor(batch.lengths)
        )
        counts = torch.bincount(sequence[batch.masked_positions], minlength=batch.num_sequences)
        budgets = [min(cap or 10**9, max(1, round(length * share))) for length in batch.lengths]
        assert (counts <= torch.tensor(budgets)).all()
        assert len(set(batch.masked_positions.tolist())) == batch.masked_positions.numel()
        original = batch.input_ids.clone()
        original[batch.masked_positions] = batch.masked_labels
        assert not torch.isin(batch.masked_labels, torch.tensor([2, 3])).any()
        changed = batch.input_ids != original
        assert (batch.input_ids[changed] >= 4).all()  # [MASK] or an ordinary piece


def test_impossible_streams_are_refused(slug_of):
    store = random_store()
    assert slug_of(stream_of, store, batch_tokens=31) == "bad-value"
    with pytest.raises(ConfigError):
        stream_of(store, rank=2, world_size=2)
    for different in (stream_of(store, seed=2), stream_of(random_store(num_documents=61))):
        assert slug_of(stream_of(store).restore, different.state()) == "changed"
    lonely = MemoryStore([[[7, 8, 9]]] * 5)
    with pytest.raises(DataError, match="one sentence"):
        next(stream_of(lonely))
    with pytest.raises(DataError, match="processes"):
        next(stream_of(MemoryStore([[[7, 8], [9]]]), world_size=4))
    for wrong in (
        dict(masked_lm_prob=-0.1),
        dict(masked_lm_prob=1),
        dict(max_ngram=0),
        dict(max_predictions=0),
    ):
        with pytest.raises(ConfigError):
            MaskSettings(**wrong)
