"""What stands behind a batch changes nothing, and on CUDA (`pytest -m gpu`) a graph computes what the model does."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
from torch.testing import assert_close

from albertkit.engines import load_engine
from albertkit.engines.cuda_graphs import MAX_GRAPHS, GraphEngine, Shape, fill_buffers
from albertkit.engines.engine import ModelEngine
from albertkit.model import PackedBatch
from tests.engines.conftest import PIECES, packed

LENGTHS = (
    (1,),
    (64,),
    (63,),
    (128,),
    (5, 17, 16, 33),
    (64, 64, 64, 64),
    (1,) * 65,
    (130, 2, 7),
    (200, 200, 17, 1, 1),
)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_padding_behind_a_batch_changes_nothing(make_model, lengths):
    model = make_model(max_position_embeddings=256)
    batch = packed(lengths)
    positions = torch.tensor([0, sum(lengths) - 1, 0])
    shape = Shape.fixed_shape_for(batch, positions)
    assert shape.tokens >= batch.num_tokens
    assert shape.sequences >= batch.num_sequences
    assert shape.positions == 4
    all_states_shape = Shape.fixed_shape_for(batch, None)
    assert all_states_shape.positions is None
    assert all_states_shape.longest >= batch.longest
    ids, types = (torch.randint(0, limit, (shape.tokens,)) for limit in (PIECES, 2))
    offsets = torch.full((shape.sequences + 1,), shape.tokens)
    buffer_lengths = list(lengths)
    if shape.sequences > len(buffer_lengths):
        buffer_lengths += [0] * (shape.sequences - len(buffer_lengths) - 1) + [
            shape.tokens - sum(buffer_lengths)
        ]
    buffers = PackedBatch(ids, types, ids.clone() % 256, offsets, tuple(buffer_lengths))
    fill_buffers(batch, buffers)
    assert buffers.offsets.diff().tolist() == buffer_lengths
    unique_offsets = buffers.offsets.unique()  # on the CPU no sequence may be empty
    nonempty = PackedBatch(
        ids, types, buffers.position_ids, unique_offsets, tuple(unique_offsets.diff().tolist())
    )
    with torch.no_grad():
        expected = model.encode(batch)
        output = model.encode(nonempty)
    assert output.pooled is not None
    assert expected.pooled is not None
    assert_close(output.hidden[: batch.num_tokens], expected.hidden, atol=1e-5, rtol=0)
    assert_close(output.pooled[: len(lengths)], expected.pooled, atol=1e-5, rtol=0)


def test_changed_and_replaced_weights_are_noticed(make_model, monkeypatch):
    """On the CPU, where nothing is recorded: a batch of no shape, because the model reads few tokens."""
    monkeypatch.setattr(torch.cuda, "Event", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    model = make_model()
    batch = packed((5, 17))
    engine = GraphEngine(model, "fp32")
    plain = ModelEngine(model, "fp32")
    linear = model.encoder.albert_layer_groups[0].albert_layers[0].ffn
    replaced = torch.nn.Parameter(linear.weight.detach() * 0.9)

    def change():
        with torch.no_grad():
            linear.weight *= 1.1

    for alter in (lambda: None, change, lambda: setattr(linear, "weight", replaced)):
        alter()
        assert torch.equal(engine.encode(batch).hidden, plain.encode(batch).hidden)


@pytest.fixture
def on_cuda(make_model):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return make_model(max_position_embeddings=256).to("cuda")


def check(engine, plain, lengths, seed=1):
    batch = packed(lengths, seed).to("cuda")
    for positions in (None, batch.starts, torch.tensor([sum(lengths) - 1, 0, 0], device="cuda")):
        output, expected = (encoder.encode(batch, positions) for encoder in (engine, plain))
        assert output.hidden.shape == expected.hidden.shape
        assert output.hidden.dtype == expected.hidden.dtype
        atol = 1e-4 if engine.precision == "fp32" else 0.1
        assert_close(output.hidden, expected.hidden, atol=atol, rtol=0)
        assert_close(output.pooled, expected.pooled, atol=atol, rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["fp32", "bf16"])
def test_a_graph_computes_what_the_model_does(on_cuda, kind):
    engine = load_engine(on_cuda, kind)
    plain = ModelEngine(on_cuda, kind)
    assert isinstance(engine, GraphEngine)
    assert not engine.notes
    for seed in range(4):  # as it is, recorded, replayed twice
        for lengths in (*LENGTHS, (256,) * 32):
            check(engine, plain, lengths, seed)
    assert sum(graph is not None for graph in engine._graphs.values()) >= 20


@pytest.mark.gpu
def test_a_result_stays_when_the_next_batch_runs(on_cuda):
    engine = load_engine(on_cuda, "bf16")
    batch = packed((30, 40)).to("cuda")
    results = [engine.encode(batch).hidden for _ in range(3)]
    copied = results[2].clone()
    engine.encode(packed((31, 41), seed=2).to("cuda"))
    assert torch.equal(results[2], copied)
    assert torch.equal(results[1], copied)


@pytest.mark.gpu
def test_changed_weights_are_used(on_cuda):
    engine = load_engine(on_cuda, "bf16")
    plain = ModelEngine(on_cuda, "bf16")
    for _ in range(3):
        check(engine, plain, (30, 40))
    with torch.no_grad():
        for parameter in on_cuda.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    for _ in range(3):
        check(engine, plain, (30, 40))


@pytest.mark.gpu
def test_several_threads_and_more_shapes_than_are_kept(on_cuda):
    engine = load_engine(on_cuda, "bf16")
    plain = ModelEngine(on_cuda, "bf16")

    def work(number):
        with torch.cuda.stream(torch.cuda.Stream()) if number % 2 else nullcontext():
            for count in range(1, 40):
                check(engine, plain, (3 * number + 1,) * count, seed=count)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))
    assert len(engine._graphs) <= MAX_GRAPHS


@pytest.mark.gpu
def test_what_cannot_be_recorded_is_launched_one_by_one(on_cuda, caplog):
    class Waiting(torch.nn.Linear):
        def forward(self, input):
            output = super().forward(input.to(self.weight.dtype)).to(input.dtype)
            output.sum().item()
            return output

    on_cuda.encoder.albert_layer_groups[0].albert_layers[0].ffn.__class__ = Waiting
    engine = load_engine(on_cuda, "bf16")
    plain = ModelEngine(on_cuda, "bf16")
    for _ in range(3):
        check(engine, plain, (30, 40))
    assert caplog.text.count("one by one") == 1
