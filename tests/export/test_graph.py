"""Graphs in ONNX Runtime against the models they were made of, at sizes that nothing was made for."""

import hashlib
from collections import Counter

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import numpy_helper

from albertkit.config import AlbertConfig
from albertkit.errors import CheckpointError
from albertkit.export.classes import build_model
from albertkit.export.graph import QuantizedGraph
from albertkit.export.onnx import build_onnx, count_products
from albertkit.model import (
    AlbertForBeamQuestionAnswering,
    AlbertForMultipleChoice,
    AlbertForPreTraining,
    AlbertForTokenClassification,
    AlbertModel,
)

SMALL = dict(embedding_size=32, intermediate_size=128, initializer_range=0.15)


@pytest.fixture(scope="module")
def make_model(tiny_model):
    """`make_model` of a vocabulary of 56: the worst cosines of int8 are measured with these random numbers."""
    return lambda model_class, **changes: tiny_model(
        model_class, **{**SMALL, "vocab_size": 56, **changes}
    )


SIZES = [(1, 1), (1, 3), (2, 4), (5, 23), (3, 64)]
OF_TOKENS = ("last_hidden_state", "prediction_logits")
CONFIGURATIONS = [
    {}, {"num_hidden_groups": 2, "inner_group_num": 2}, {"hidden_act": "gelu"}, {"hidden_act": "relu"},
    {"num_hidden_groups": 3, "parameter_sharing": "attention"}, {"num_hidden_groups": 3, "parameter_sharing": "ffn"},
    {"embedding_size": 64}, {"num_attention_heads": 1}, {"num_hidden_layers": 1}, {"type_vocab_size": 1},
]  # fmt: skip


def session_of(model):
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def padded(model, rows, width, seed=0):
    """Rows of different lengths; of multiple choice three for each."""
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, 3, width) if isinstance(model, AlbertForMultipleChoice) else (rows, width)
    lengths = torch.randint(1, width + 1, shape[:-1], generator=generator)
    lengths.flatten()[0] = width
    return {
        "input_ids": torch.randint(0, model.config.vocab_size, shape, generator=generator),
        "attention_mask": (torch.arange(width) < lengths[..., None]).long(),
        "token_type_ids": torch.randint(
            0, model.config.type_vocab_size, shape, generator=generator
        ),
    }


def run(session, inputs):
    names = [output.name for output in session.get_outputs()]
    outputs = session.run(names, {name: values.numpy() for name, values in inputs.items()})
    return dict(zip(names, map(torch.from_numpy, outputs), strict=True))


def difference(session, model, inputs):
    """The largest of all outputs, at real tokens; places of beams must be the same."""
    with torch.no_grad():
        expected = model(**inputs)
    outputs = run(session, inputs)
    assert outputs.keys() == expected.keys()
    largest = 0.0
    for name, values in expected.items():
        assert outputs[name].shape == values.shape
        assert outputs[name].dtype == values.dtype
        of_tokens = name in OF_TOKENS or (name == "logits" and values.dim() == 3)
        tokens = inputs["attention_mask"].bool() if of_tokens else ...
        if values.is_floating_point():
            allowed = values[tokens] > -1e29
            largest = max(
                largest, float((outputs[name][tokens] - values[tokens])[allowed].abs().max())
            )
            assert torch.equal(outputs[name][tokens] > -1e29, allowed)
        elif "end" not in name:
            assert torch.equal(outputs[name], values)
    return largest


def test_every_class(make_model, model_class):
    model = make_model(model_class)
    exported = build_onnx(model)
    onnx.checker.check_model(exported, full_check=True)
    session = session_of(exported)
    for number, (rows, width) in enumerate(SIZES):
        assert difference(session, model, padded(model, rows, width, number)) < 1e-5


@pytest.mark.parametrize("changes", CONFIGURATIONS, ids=str)
def test_every_configuration(make_model, changes):
    model = make_model(AlbertForPreTraining, **changes)
    assert difference(session_of(build_onnx(model)), model, padded(model, 4, 19)) < 1e-5


def test_a_mask_with_holes_and_padding_at_the_left(make_model):
    model = make_model(AlbertForPreTraining)
    inputs = padded(model, 3, 12)
    inputs["attention_mask"] = torch.tensor([[0] * 4 + [1] * 8, [1, 0, 1] * 4, [0, 1] * 6])
    assert difference(session_of(build_onnx(model)), model, inputs) < 1e-5


def test_where_no_answer_may_lie(make_model):
    model = make_model(AlbertForBeamQuestionAnswering)
    inputs = padded(model, 4, 19)
    inputs["p_mask"] = (torch.arange(19) % 3 > 0).long().expand(4, -1).contiguous()
    session = session_of(build_onnx(model))
    assert difference(session, model, inputs) < 1e-5
    assert int((run(session, inputs)["start_top_index"][:, 0] % 3).max()) == 0
    assert [graph_input.name for graph_input in session.get_inputs()] == [
        "input_ids",
        "attention_mask",
        "token_type_ids",
    ]


def test_axes_are_named(make_model):
    session = session_of(build_onnx(make_model(AlbertForTokenClassification, num_labels=5)))
    assert {tuple(graph_input.shape) for graph_input in session.get_inputs()} == {
        ("batch", "sequence")
    }
    assert {graph_input.type for graph_input in session.get_inputs()} == {"tensor(int64)"}
    assert session.get_outputs()[0].shape == ["batch", "sequence", 5]


def test_a_class_that_is_not_exported(make_model):
    class Other(AlbertModel):
        pass

    with pytest.raises(CheckpointError, match=r"error\[not-expressible\]: a Other is not exported"):
        build_onnx(make_model(Other))


# --- what is stored -------------------------------------------------------------------------------


def contents(model):
    """How often each content of a hundred numbers or more is stored."""
    arrays = [numpy_helper.to_array(stored) for stored in model.graph.initializer]
    return Counter(
        hashlib.sha256(array.tobytes()).hexdigest() for array in arrays if array.size >= 100
    )


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        *CONFIGURATIONS[4:6],
        {"num_hidden_layers": 6, "num_hidden_groups": 2},
    ],
    ids=str,
)
def test_every_matrix_is_stored_once(make_model, precision, changes):
    model = make_model(AlbertForPreTraining, **changes)
    exported = build_onnx(model, precision)
    assert set(contents(exported).values()) == {1}
    numbers = sum(int(np.prod(stored.dims)) for stored in exported.graph.initializer)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    scales = model.config.vocab_size + sum(len(p) for p in model.parameters() if p.dim() == 2)
    assert num_parameters <= numbers <= num_parameters + 60 + scales * (precision == "int8")
    if precision == "fp32":  # under the names that they have in the checkpoint
        assert {name for name, _ in model.named_parameters()} <= {
            stored.name for stored in exported.graph.initializer
        }


def test_base_is_small_and_its_matrices_are_int8(tmp_path):
    model = AlbertForPreTraining(AlbertConfig.from_size("base")).eval()
    exact = build_onnx(model)
    small = build_onnx(model, "int8")
    assert exact.ByteSize() < 50e6
    assert small.ByteSize() < 13e6
    # 72 in the passes, into them, pooler and the two of the head; beside them the sentence order,
    # and attention itself
    assert count_products(small) == {"MatMulInteger": 76, "Gemm": 1, "MatMul": 24}
    assert count_products(exact) == {"Gemm": 77, "MatMul": 24}
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(small.SerializeToString(), options, providers=["CPUExecutionProvider"])
    # As ONNX Runtime runs it
    assert count_products(onnx.load(tmp_path / "optimized.onnx"))["MatMulInteger"] == 76


# --- int8 -----------------------------------------------------------------------------------------


def worst_cosine(session, model, inputs):
    with torch.no_grad():
        expected = model(**inputs)
    outputs = run(session, inputs)
    real = inputs["attention_mask"].bool()
    worst = 1.0
    for name, values in expected.items():
        if values.is_floating_point():
            tokens = real if name in OF_TOKENS or (name == "logits" and values.dim() == 3) else ...
            rows = [v[tokens].clamp(min=-100).float() for v in (outputs[name], values)]
            if rows[0].shape[-1] < 3:
                rows = [v.flatten()[None] for v in rows]
            worst = min(worst, float(torch.cosine_similarity(*rows, dim=-1).min()))
    return worst


def test_every_class_in_int8(make_model, model_class):
    model = make_model(model_class)
    exported = build_onnx(model, "int8")
    onnx.checker.check_model(exported, full_check=True)
    assert worst_cosine(session_of(exported), model, padded(model, 5, 23)) > 0.99


@pytest.mark.parametrize("changes", CONFIGURATIONS, ids=str)
def test_every_configuration_in_int8(make_model, changes):
    model = make_model(AlbertModel, **changes)
    session = session_of(build_onnx(model, "int8"))
    inputs = padded(model, 4, 19)
    assert worst_cosine(session, model, inputs) > 0.998
    with torch.no_grad():  # a row of one matrix
        model.encoder.albert_layer_groups[0].albert_layers[0].attention.value.weight[3] *= -4
    assert worst_cosine(session, model, inputs) < 0.998


class OneScale(QuantizedGraph):
    """As ONNX Runtime's own quantiser: one scale for all rows."""

    def quantize_rows(self, values):
        if values not in self._quantized:
            rows, scale, zero_point = self.add_node_with_outputs("DynamicQuantizeLinear", 3, values)
            self._quantized[values] = rows, scale, zero_point
        return self._quantized[values]


@pytest.mark.parametrize("graph", [QuantizedGraph, OneScale])
def test_a_text_is_the_same_alone_and_in_company(make_model, graph):
    model = make_model(AlbertModel)
    session = session_of(build_model(graph(dict(model.named_parameters())), model))
    inputs = padded(model, 6, 20)
    together = run(session, inputs)["pooler_output"]
    alone = torch.cat(
        [
            run(session, {name: values[n : n + 1, :length] for name, values in inputs.items()})[
                "pooler_output"
            ]
            for n, length in enumerate(inputs["attention_mask"].sum(1).tolist())
        ]
    )
    largest = float((together - alone).abs().max())
    # a number at the edge of two steps may fall to either side, because softmax adds in another
    # order
    assert largest < 1e-3 if graph is QuantizedGraph else largest > 2e-3


def test_a_row_of_zeros(make_model):
    model = make_model(AlbertModel)
    with torch.no_grad():
        model.embeddings.LayerNorm.weight.zero_()
        model.embeddings.LayerNorm.bias.zero_()
    inputs = padded(model, 2, 5)
    assert worst_cosine(session_of(build_onnx(model, "int8")), model, inputs) > 0.99
