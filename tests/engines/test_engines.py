"""Engines against the model they were made of, and against what transformers printed for its tiny models."""

import copy
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from albertkit.config import AlbertConfig
from albertkit.embeddings.folder import pool_hidden_states
from albertkit.engines import engine as processor
from albertkit.engines import load_engine
from albertkit.engines.cpu import engine as fused
from albertkit.engines.cpu.engine import FusedEngine
from albertkit.engines.engine import ModelEngine
from albertkit.errors import ConfigError
from albertkit.model import AlbertModel, PackedBatch

from .conftest import packed

WORST = {"bf16": 0.9999, "int8": 0.999}  # cosine of a token's state to fp32
GOLDEN = (
    "masked_lm", "multiple_choice", "pretraining_g1", "pretraining_g2_inner2", "question_answering", "seqcls_3class",
    "seqcls_multilabel", "seqcls_regression", "token_cls",
)  # fmt: skip


def worst_cosine(states, expected):
    return float(F.cosine_similarity(states.float(), expected.detach().float(), dim=-1).min())


@torch.no_grad()
def in_fp32(model: AlbertModel, batch: PackedBatch) -> Tensor:
    return model.encode(batch).hidden


# --- numbers of others ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("requested", ["fp32", "bf16", "int8"])
def test_the_last_states_that_transformers_printed(golden, name, requested):
    folder = golden / "hf" / name
    model = AlbertModel.from_pretrained(folder, allow_missing=("pooler",))
    inputs = {key: torch.from_numpy(array) for key, array in np.load(folder / "inputs.npz").items()}
    ids, mask, types = (
        inputs[key].flatten(0, -2) for key in ("input_ids", "attention_mask", "token_type_ids")
    )
    expected = torch.from_numpy(np.load(folder / "outputs.npz")["hidden_states"][-1])
    expected = expected.reshape(*mask.shape, -1)[mask.bool()]
    engine = load_engine(model, requested)
    if engine.precision != requested:
        pytest.skip("; ".join(engine.notes))
    states = engine.encode(PackedBatch.from_padded(ids, mask, types)).hidden
    if requested == "fp32":
        assert_close(states, expected, atol=3e-5, rtol=0)
    else:  # 32 numbers a state, weights far from those of a trained model: int8 is at its worst here
        assert worst_cosine(states, expected) > {"bf16": 0.9995, "int8": 0.995}[requested]


# --- the model's own ------------------------------------------------------------------------------


def test_fp32_is_the_model(make_model, batch):
    model = make_model(hidden_dropout_prob=0.5).train()
    output = load_engine(model, "fp32").encode(batch)
    assert model.training  # as it was, and yet nothing was dropped
    expected = model.eval().encode(batch)
    assert_close(output.hidden, expected.hidden, atol=1e-5, rtol=0)
    assert_close(output.pooled, expected.pooled, atol=1e-5, rtol=0)
    assert not output.hidden.requires_grad


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_hidden_groups": 2, "inner_group_num": 2},
        {"hidden_act": "gelu"},
        {"hidden_act": "relu"},
        {"num_hidden_groups": 4, "parameter_sharing": "ffn"},
        {"num_attention_heads": 8},
        {"intermediate_size": 200},
    ],
    ids=str,
)
def test_every_configuration(make_model, batch, precision, changes):
    model = make_model(**changes)
    engine = load_engine(model, precision)
    assert isinstance(engine, FusedEngine)
    assert engine.precision == precision
    assert engine.notes == ()
    output = engine.encode(batch)
    expected = in_fp32(model, batch)
    assert output.hidden.dtype == torch.float32
    assert worst_cosine(output.hidden, expected) > WORST[precision]
    assert (
        worst_cosine(output.pooled, torch.tanh(model.pooler(expected[batch.starts])))
        > WORST[precision]
    )


def test_an_engine_may_keep_the_weights_that_it_packed(make_model, batch, precision):
    model = make_model()
    engine = load_engine(model, precision)
    engine.follows_weights = False
    with torch.no_grad():  # one row of one matrix
        model.encoder.albert_layer_groups[0].albert_layers[0].attention.value.weight[3] *= -4
    assert worst_cosine(engine.encode(batch).hidden, in_fp32(model, batch)) < WORST[precision]


def test_positions_of_the_last_layer(make_model, batch, precision):
    engine = load_engine(make_model(), precision)
    everywhere = engine.encode(batch)
    for positions in (torch.tensor([150, 3, 3, 40]), batch.offsets[1:] - 1, batch.offsets[:0]):
        output = engine.encode(batch, positions)
        assert_close(output.hidden, everywhere.hidden[positions], atol=1e-5, rtol=0)
        assert_close(output.pooled, everywhere.pooled, atol=1e-5, rtol=0)


def test_a_text_has_the_same_vector_alone_and_in_company(make_model, batch, precision):
    engine = load_engine(make_model(), precision)
    together = engine.encode(batch).hidden.split(batch.lengths)
    for start, length, states in zip(batch.starts.tolist(), batch.lengths, together, strict=True):
        alone = PackedBatch.from_sequences([batch.input_ids[start : start + length].tolist()])
        # every row has its own scale: only the order of additions within a product may differ,
        # which can move a number to the neighbouring step of bf16 or int8
        assert worst_cosine(engine.encode(alone).hidden, states) > 0.99995


def test_a_copy_packs_its_own_weights(make_model, batch, precision):
    engine = load_engine(make_model(), precision)
    expected = engine.encode(batch).hidden
    for duplicate in (copy.deepcopy(engine), pickle.loads(pickle.dumps(engine))):
        assert torch.equal(duplicate.encode(batch).hidden, expected)


def test_threads_and_chunks_change_nothing(make_model, precision):
    batch = PackedBatch.from_sequences([[5 + n % 200] * (1 + n % 60) for n in range(60)])
    engine = load_engine(make_model(), precision)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = engine.encode(batch)
        torch.set_num_threads(3)
        shared = engine.encode(batch)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert worst_cosine(shared.hidden, alone.hidden) > 0.99995


def test_int8_of_base_as_it_is_used(precision):
    torch.manual_seed(0)
    config = AlbertConfig.from_size(
        "base", vocab_size=300, num_hidden_layers=3, max_position_embeddings=64
    )
    model = AlbertModel(config).eval()
    batch = PackedBatch.from_sequences([[2, *range(5 + n, 20 + 2 * n), 3] for n in range(6)])
    expected = in_fp32(model, batch)
    states = load_engine(model, precision).encode(batch).hidden
    assert (
        worst_cosine(
            pool_hidden_states(states, batch, "mean"), pool_hidden_states(expected, batch, "mean")
        )
        > 0.9995
    )
    assert worst_cosine(states, expected) > 0.9995


def test_outliers_of_trained_models_are_kept(make_model, batch, precision):
    if precision != "int8":
        pytest.skip("only int8 treats them apart")
    model = make_model()
    layer = model.encoder.albert_layer_groups[0].albert_layers[0]
    with torch.no_grad():  # two channels of the feed-forward far above the rest
        layer.ffn.bias[[7, 300]] += 20
        layer.ffn_output.weight[:, [7, 300]] *= 0.05
    engine = load_engine(model, "int8")
    expected = in_fp32(model, batch)
    assert worst_cosine(engine.encode(batch).hidden, expected) > 0.999
    engine.layers[0][0].outer_rows[:] = 0
    assert worst_cosine(engine.encode(batch).hidden, expected) < 0.99


# --- what is not there ----------------------------------------------------------------------------


def test_an_unknown_precision_is_named(make_model):
    with pytest.raises(ConfigError, match=r"\[unknown-name\].*fp8"):
        load_engine(make_model(), "fp8")  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_weights_that_are_no_numbers_stay_so(make_model, precision):
    """The largest of several scores would pass over them."""
    model = make_model()
    with torch.no_grad():
        model.encoder.albert_layer_groups[0].albert_layers[0].attention.query.weight.fill_(
            float("nan")
        )
    engine = load_engine(model, precision)
    assert isinstance(engine, ModelEngine)
    assert (
        "not finite" in " ".join(engine.notes)
        or fused.precision_problem(precision)
        or precision == "fp32"
    )
    assert engine.encode(packed((5, 3))).hidden.isnan().all()


def test_an_older_torch_does_not_hide_what_the_processor_has(monkeypatch):
    """torch 2.9 has no `get_capabilities`: every engine was left out there, with a note that the processor lacks it."""
    names = ("avx2", "avx512_dq", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")
    expected = [processor.has_instructions(name) for name in names]
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert [processor.has_instructions(name) for name in names] == expected


def test_auto_is_never_int8(make_model):
    faster = processor.is_bf16_faster(torch.device("cpu"))
    assert load_engine(make_model()).precision == ("bf16" if faster else "fp32")


@pytest.mark.parametrize(
    ("maker", "sets", "faster"),
    [
        ("AuthenticAMD", {"avx512_bf16"}, True),
        ("GenuineIntel", {"avx512_bf16", "amx_bf16"}, True),
        ("GenuineIntel", {"avx512_bf16"}, False),
        ("AuthenticAMD", set(), False),
    ],
)
def test_bf16_counts_where_it_is_faster(maker, sets, faster, tmp_path, monkeypatch):
    """Intel's AVX512-BF16 multiplies at half the rate of fp32."""
    (tmp_path / "cpuinfo").write_text(f"vendor_id\t: {maker}\n")
    intel = processor.is_intel(tmp_path / "cpuinfo")
    monkeypatch.setattr(processor, "is_intel", lambda: intel)
    monkeypatch.setattr(processor, "has_instructions", lambda *names: bool(sets & set(names)))
    assert processor.is_bf16_faster(torch.device("cpu")) is faster


def test_a_processor_without_the_instructions(make_model, monkeypatch):
    monkeypatch.setattr(processor, "has_instructions", lambda *names: False)
    engine = load_engine(make_model(), "int8")
    assert engine.precision == "fp32"
    assert engine.notes == ("not int8: the processor has no avx512_vnni",)
    assert load_engine(make_model(), "bf16").precision == "fp32"


class Wrapped(torch.nn.Module):
    """As PEFT wraps a layer: `weight` is the base layer's, what it computes is not."""

    def __init__(self, base):
        super().__init__()
        self.base_layer = base
        self.weight = base.weight
        self.bias = base.bias

    def forward(self, values):
        return self.base_layer(values) + 0.5 * values


def test_layers_that_are_not_plain_are_run_as_they_are(make_model, batch, precision):
    for note in ("albert_layers.0.ffn` has hooks", "attention.dense` is a Wrapped"):
        model = make_model()
        layer = model.encoder.albert_layer_groups[0].albert_layers[0]
        if "hooks" in note:
            layer.ffn.register_forward_hook(lambda module, args, output: output + 1)
        else:
            layer.attention.dense = Wrapped(layer.attention.dense)
        engine = load_engine(model, precision)
        assert isinstance(engine, ModelEngine)
        assert note in engine.notes[-1]
        assert worst_cosine(engine.encode(batch).hidden, in_fp32(model, batch)) > 0.999
