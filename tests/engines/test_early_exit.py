"""Sequences that leave after different layers, against the states of every layer in transformers."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch.testing import assert_close

from albertkit.engines import early_exit, load_engine
from albertkit.engines.cpu import engine as fused
from albertkit.engines.early_exit import Exits, entropy_share, exit_early
from albertkit.engines.engine import ModelEngine
from albertkit.model import PackedBatch

from .conftest import packed

LAYERS = 4
CLASSES = 3
UNREACHED = 100  # layers of patience


@pytest.fixture
def batch():
    """Sequences enough to wait for others, in no order of length."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(5, 300, length).tolist() for length in rng.integers(2, 64, 60)]
    return PackedBatch.from_sequences(rows)


@pytest.fixture
def model(make_model):
    return make_model()


def some_exits(model, patience=0, threshold=0.0):
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(LAYERS, CLASSES, model.config.hidden_size, generator=random)
    return Exits(
        weight.numpy(), torch.randn(LAYERS, CLASSES, generator=random).numpy(), patience, threshold
    )


@pytest.fixture
def logits_of_every_layer(model, batch, tmp_path):
    """What classifiers say after each layer, of states that transformers computed: [N, L, C]."""
    model.save_pretrained(tmp_path / "model")
    peer = transformers.AlbertModel.from_pretrained(tmp_path / "model").eval()
    exits = some_exits(model)
    logits = []
    with torch.no_grad():
        for ids in batch.input_ids.split(batch.lengths):
            hidden = peer(ids[None], output_hidden_states=True).hidden_states[1:]
            pooled = peer.pooler_activation(
                peer.pooler(torch.stack([states[0, 0] for states in hidden]))
            )
            logits.append(torch.einsum("lh,lch->lc", pooled, torch.from_numpy(exits.weight)))
    return torch.stack(logits) + torch.from_numpy(exits.bias)


def layers_by_hand(logits, exits):
    """The layer after which each sequence leaves, from the logits of all: [N, L, C]."""
    exit_layers = []
    for rows in logits:
        labels = rows.argmax(1).tolist()
        shares = torch.distributions.Categorical(logits=rows).entropy() / np.log(CLASSES)
        agreed = [
            all(labels[layer - back] == labels[layer] for back in range(exits.patience + 1))
            and layer >= exits.patience
            for layer in range(LAYERS)
        ]
        leaves = agreed if exits.patience else (shares < exits.threshold).tolist()
        exit_layers.append([*leaves[:-1], True].index(True) + 1)
    return exit_layers


def with_threads(threads, call):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return call()
    finally:
        torch.set_num_threads(before)


def check(engine, batch, exits, logits, threads=1):
    exited = with_threads(threads, lambda: exit_early(engine, batch, exits))
    expected = layers_by_hand(logits, exits)
    assert exited.layers.tolist() == expected
    indices = torch.arange(len(expected)), torch.tensor(expected) - 1
    assert_close(exited.logits, logits[indices], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "rule",
    [
        {"patience": 1},
        {"patience": 2},
        {"threshold": 0.4},
        {"threshold": 0.8},
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_sequences_leave_by_the_rule(model, batch, logits_of_every_layer, rule, threads):
    exits = some_exits(model, **rule)
    assert len(set(layers_by_hand(logits_of_every_layer, exits))) > 1
    check(load_engine(model, "fp32"), batch, exits, logits_of_every_layer, threads)


@pytest.mark.parametrize(
    "rule",
    [
        {"patience": 1},
        {"threshold": 0.4},
    ],
)
def test_the_model_itself_does_the_same(model, batch, logits_of_every_layer, rule):
    check(ModelEngine(model, "fp32"), batch, some_exits(model, **rule), logits_of_every_layer)


def test_packed_weights(model, batch, logits_of_every_layer, precision):
    exited = exit_early(load_engine(model, precision), batch, some_exits(model, patience=1))
    expected = logits_of_every_layer[torch.arange(batch.num_sequences), exited.layers - 1]
    assert (
        F.cosine_similarity(exited.logits, expected, dim=1).min()
        > {"bf16": 0.999, "int8": 0.99}[precision]
    )


def test_nobody_leaves_early(model, batch, precision):
    engine = load_engine(model, precision)
    exits = some_exits(model, patience=UNREACHED)
    exited = exit_early(engine, batch, exits)
    assert set(exited.layers.tolist()) == {LAYERS}
    pooled = engine.encode(batch, positions=batch.starts).pooled
    expected = pooled @ torch.from_numpy(exits.weight[-1]).T + torch.from_numpy(exits.bias[-1])
    assert_close(exited.logits, expected, atol=2e-5, rtol=1e-5)


def test_all_leave_at_once(model, batch, logits_of_every_layer):
    exited = exit_early(load_engine(model, "fp32"), batch, some_exits(model, threshold=2.0))
    assert set(exited.layers.tolist()) == {1}
    assert_close(exited.logits, logits_of_every_layer[:, 0], atol=1e-4, rtol=1e-4)


@pytest.fixture(params=["fp32", "bf16", "int8"])
def kind(request):
    if reason := fused.precision_problem(request.param):
        pytest.skip(reason)
    return request.param


def test_bits_depend_on_neither_threads_nor_company(model, batch, kind):
    engine = load_engine(model, kind)
    exits = some_exits(model, patience=1)
    expected = with_threads(1, lambda: exit_early(engine, batch, exits))
    ids = [part.tolist() for part in batch.input_ids.split(batch.lengths)]
    reversed_batch = PackedBatch.from_sequences(ids[::-1])
    for threads in (2, 5):
        exited = with_threads(threads, lambda: exit_early(engine, batch, exits))
        assert torch.equal(exited.layers, expected.layers)
        assert torch.equal(exited.logits, expected.logits)
    for threads in (1, 2):
        exited = with_threads(threads, lambda: exit_early(engine, reversed_batch, exits))
        assert torch.equal(exited.layers.flip(0), expected.layers)
        assert torch.equal(exited.logits.flip(0), expected.logits)


def test_a_sequence_longer_than_the_room_and_one_alone(make_model):
    model = make_model(max_position_embeddings=700)
    engine = load_engine(model, "fp32")
    exits = some_exits(model, threshold=0.5)
    rows = [[7] * 600, [8] * 3, [9] * 600]
    together = exit_early(engine, PackedBatch.from_sequences(rows), exits)
    alone = [exit_early(engine, PackedBatch.from_sequences([row]), exits) for row in rows]
    assert together.layers.tolist() == [int(exited.layers) for exited in alone]
    assert torch.equal(together.logits, torch.cat([exited.logits for exited in alone]))


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 96, "intermediate_size": 200},
        {"num_attention_heads": 16, "hidden_act": "relu"},
    ],
    ids=str,
)
def test_shapes_that_are_not_round(make_model, batch, kind, changes):
    model = make_model(**changes)
    exits = some_exits(model, patience=1)
    exited, plain = (
        exit_early(engine, batch, exits)
        for engine in (load_engine(model, kind), ModelEngine(model, "fp32"))
    )
    agreed = exited.layers == plain.layers
    assert agreed.float().mean() > {"fp32": 0.999, "bf16": 0.9, "int8": 0.8}[kind]
    assert F.cosine_similarity(exited.logits[agreed], plain.logits[agreed], dim=1).min() > 0.98


def test_a_feed_forward_block_in_halves(make_model, kind, monkeypatch):
    """With few rows, two threads divide the block; the bits are those of one thread."""
    model = make_model(intermediate_size=1600)
    halves = []
    plan = early_exit.new_member_state
    monkeypatch.setattr(
        early_exit, "new_member_state", lambda *sizes: halves.append(plan(*sizes)) or halves[-1]
    )
    engine = load_engine(model, kind)
    exits = some_exits(model, patience=1)
    batch = packed((17, 5, 2, 30, 9, 12))
    single, shared = (with_threads(n, lambda: exit_early(engine, batch, exits)) for n in (1, 2))
    assert all(map(torch.equal, single, shared))
    assert [state.halves.any() for state in halves][:2] == [False, True]


def test_several_callers_at_once(model, kind):
    engine = load_engine(model, kind)
    exits = some_exits(model, patience=1)
    batches = [packed((3 + n, 64, 20), seed=n) for n in range(8)]
    expected = [exit_early(engine, batch, exits) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda batch: exit_early(engine, batch, exits), batches * 3)
        assert all(
            all(map(torch.equal, result, reference))
            for result, reference in zip(results, expected * 3, strict=True)
        )


def test_one_member_does_what_others_have_taken(model, batch, kind, monkeypatch):
    engine = load_engine(model, kind)
    exits = some_exits(model, patience=1)
    expected = exit_early(engine, batch, exits)
    compiled = early_exit.run_until_sure

    def alone(call, *arguments):  # the others are never there
        if call.member == 0:
            compiled(call, *arguments)

    monkeypatch.setattr(early_exit, "run_until_sure", alone)
    exited = with_threads(3, lambda: exit_early(engine, batch, exits))
    assert all(map(torch.equal, exited, expected))


def test_entropy_of_one_certain_class_is_none():
    assert entropy_share(np.array([200.0, 0.0, -200.0], np.float32)) == 0
    assert entropy_share(np.zeros(3, np.float32)) == pytest.approx(1)
    assert entropy_share(np.zeros(1, np.float32)) == 0
