"""`model.compiled`: the part of a pass that can be fused, compiled once for batches of all shapes, computes what the model does.

Default tests trace forward and backward (`aot_eager`); the slow one goes through the whole
compiler.
"""

from functools import cache

import pytest
import torch
from small_models import gradients, sequences
from torch.testing import assert_close

from albertkit.model import AlbertForPreTraining, AlbertModel, attention, layers

SHAPES = ((9, 1, 17), (5, 5), (3, 20, 7, 8), (11, 12, 2, 3, 4, 9), (24, 2))


@pytest.fixture(autouse=True)
def counters(monkeypatch):
    """What a fresh compiler counts."""
    compiler = cache(lambda: torch.compile(layers.AlbertLayer.after_attention, backend="aot_eager"))
    monkeypatch.setattr(layers, "compile_after_attention", compiler)
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    yield counters
    torch._dynamo.reset()


def step(model, batch, compiled):
    model.compiled = compiled
    losses = model.pretraining_losses(batch)
    loss = losses.masked_lm.mean() + losses.sentence_order.mean()
    return loss.detach(), gradients(model, loss)


def check(model, atol):
    for lengths in SHAPES:
        (loss, gradients), (expected, expected_gradients) = (
            step(model, sequences(lengths), on) for on in (True, False)
        )
        assert_close(loss, expected, atol=atol, rtol=1e-5)
        assert_close(gradients, expected_gradients, atol=atol, rtol=1e-3)


@pytest.mark.parametrize("recompute", [False, True])
def test_all_passes_and_batches_share_one_graph(make_class, counters, recompute):
    model = make_class(AlbertForPreTraining, num_hidden_layers=3).train()
    model.gradient_checkpointing = recompute
    check(model, atol=1e-6)
    assert counters["stats"]["unique_graphs"] == 1
    model.eval()
    model.compiled = True
    for lengths in SHAPES:
        with torch.inference_mode():
            model.pretraining_losses(sequences(lengths))
    assert counters["stats"]["unique_graphs"] == 2  # training, and inference
    assert not counters["graph_break"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "atol"),
    [
        (torch.float32, 1e-5),
        (torch.bfloat16, 0.05),
    ],
)
def test_fused_kernels_compute_the_same(make_class, monkeypatch, counters, dtype, atol):
    monkeypatch.setattr(
        layers,
        "compile_after_attention",
        cache(lambda: torch.compile(layers.AlbertLayer.after_attention)),
    )
    model = make_class(AlbertForPreTraining, num_hidden_layers=3).train()
    model.compute_dtype = dtype
    check(model, atol)
    assert counters["stats"]["unique_graphs"] == 1


def test_a_whole_model_is_compiled_with_packed_attention(make_class, monkeypatch):
    """As on CUDA: without values, on the device `meta`, forward and backward."""
    monkeypatch.setattr(attention, "_VARLEN_DEVICES", ("cuda", "meta"))
    config = dict(num_hidden_layers=2, hidden_size=32, num_attention_heads=2)
    model = make_class(AlbertModel, **config).to("meta").train()
    model.compute_dtype = torch.bfloat16
    graphs = []

    def keep(graph, example):
        graphs.append(graph)
        return graph

    compiled = torch.compile(model.encode, fullgraph=True, backend=keep)
    for lengths in SHAPES:
        hidden, pooled = compiled(sequences(lengths).to("meta"))
        assert len(hidden) == sum(lengths)
        assert len(pooled) == len(lengths)
        (hidden.sum() + pooled.sum()).backward()
    assert len(graphs) <= 2
    assert sum("varlen_attn" in str(node.target) for node in graphs[-1].graph.nodes) == 2
