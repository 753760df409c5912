"""One table of parameter names: transformers, TensorFlow 1 (google-research/albert), TensorFlow 2 (Model Garden).

A row is a parameter. `{g}` and `{i}` stand for group and inner group; the Model Garden's encoder has one of each. Names of
TensorFlow 2 are those of the variables, as the object graph in a checkpoint gives them, not the checkpoint's keys.

Sources: `modeling.py`, `squad_utils.py` and `race_utils.py` of google-research/albert;
`official/nlp/modeling/networks/albert_encoder.py` of tensorflow/models 2.2 to 2.11, and the checkpoints they write.
"""

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np
from numpy.typing import NDArray


class TensorLayout(Enum):
    """Layouts of TensorFlow for what torch holds as [out, in] or [out]; N heads of width D, H = N·D."""

    AS_IS = auto()  # as torch does
    TRANSPOSED = auto()  # [in, out]
    TO_HEADS = auto()  # [in, out]; Model Garden: [in, N, D]
    HEADS_BIAS = auto()  # [out]; Model Garden: [N, D]
    FROM_HEADS = auto()  # [in, out]; Model Garden: [N, D, out]


@dataclass(frozen=True)
class ParameterRow:
    """A parameter.

    Attributes:
        name: transformers' name, with "albert." before the encoder's parameters.
        tf1: google-research/albert's name.
        tf2: The Model Garden's names, newest first; none for what its converters do not keep.
        layout: In both of TensorFlow's files.
    """

    name: str
    tf1: str
    tf2: tuple[str, ...]
    layout: TensorLayout


# How many dimensions a variable may have; the last says that its heads are split. And which dimension then counts them.
_RANKS = {
    TensorLayout.AS_IS: (1, 2), TensorLayout.TRANSPOSED: (2,), TensorLayout.TO_HEADS: (2, 3), TensorLayout.HEADS_BIAS: (1, 2),
    TensorLayout.FROM_HEADS: (2, 3),
}  # fmt: skip
_HEAD_DIMENSION = {TensorLayout.TO_HEADS: 1, TensorLayout.HEADS_BIAS: 0, TensorLayout.FROM_HEADS: 0}

_AS_IS, _TRANSPOSED = TensorLayout.AS_IS, TensorLayout.TRANSPOSED
_TO_HEADS = TensorLayout.TO_HEADS
_HEADS_BIAS = TensorLayout.HEADS_BIAS
_FROM_HEADS = TensorLayout.FROM_HEADS

MAPPING_IN = "albert.encoder.embedding_hidden_mapping_in."  # absent from TensorFlow's files when E = H

# What all names of a part begin with, then its rows: transformers, TensorFlow 1, TensorFlow 2.
_PARTS: tuple[tuple[tuple[str, str, str], tuple[tuple[Any, ...], ...]], ...] = (
    (("albert.embeddings.", "bert/embeddings/", ""), (
        ("word_embeddings.weight", "word_embeddings", "word_embeddings/embeddings", _AS_IS),
        ("position_embeddings.weight", "position_embeddings", "position_embedding/embeddings", _AS_IS),
        ("token_type_embeddings.weight", "token_type_embeddings", "type_embeddings/embeddings", _AS_IS),
        ("LayerNorm.weight", "LayerNorm/gamma", "embeddings/layer_norm/gamma", _AS_IS),
        ("LayerNorm.bias", "LayerNorm/beta", "embeddings/layer_norm/beta", _AS_IS),
    )),
    ((MAPPING_IN, "bert/encoder/embedding_hidden_mapping_in/", "embedding_projection/"), (
        ("weight", "kernel", "kernel", _TRANSPOSED),
        ("bias", "bias", "bias", _AS_IS),
    )),
    (("albert.encoder.albert_layer_groups.{g}.albert_layers.{i}.",
      "bert/encoder/transformer/group_{g}/inner_group_{i}/", "transformer/"), (
        ("attention.query.weight", "attention_1/self/query/kernel", "self_attention/query/kernel", _TO_HEADS),
        ("attention.query.bias", "attention_1/self/query/bias", "self_attention/query/bias", _HEADS_BIAS),
        ("attention.key.weight", "attention_1/self/key/kernel", "self_attention/key/kernel", _TO_HEADS),
        ("attention.key.bias", "attention_1/self/key/bias", "self_attention/key/bias", _HEADS_BIAS),
        ("attention.value.weight", "attention_1/self/value/kernel", "self_attention/value/kernel", _TO_HEADS),
        ("attention.value.bias", "attention_1/self/value/bias", "self_attention/value/bias", _HEADS_BIAS),
        ("attention.dense.weight", "attention_1/output/dense/kernel",
         "self_attention/attention_output/kernel self_attention_output/kernel", _FROM_HEADS),
        ("attention.dense.bias", "attention_1/output/dense/bias",
         "self_attention/attention_output/bias self_attention_output/bias", _AS_IS),
        ("attention.LayerNorm.weight", "LayerNorm/gamma", "self_attention_layer_norm/gamma", _AS_IS),
        ("attention.LayerNorm.bias", "LayerNorm/beta", "self_attention_layer_norm/beta", _AS_IS),
        ("ffn.weight", "ffn_1/intermediate/dense/kernel", "intermediate/kernel", _TRANSPOSED),
        ("ffn.bias", "ffn_1/intermediate/dense/bias", "intermediate/bias", _AS_IS),
        ("ffn_output.weight", "ffn_1/intermediate/output/dense/kernel", "output/kernel", _TRANSPOSED),
        ("ffn_output.bias", "ffn_1/intermediate/output/dense/bias", "output/bias", _AS_IS),
        ("full_layer_layer_norm.weight", "LayerNorm_1/gamma", "output_layer_norm/gamma", _AS_IS),
        ("full_layer_layer_norm.bias", "LayerNorm_1/beta", "output_layer_norm/beta", _AS_IS),
    )),
    (("albert.pooler.", "bert/pooler/dense/", "pooler_transform/"), (
        ("weight", "kernel", "kernel", _TRANSPOSED),
        ("bias", "bias", "bias", _AS_IS),
    )),
    (("predictions.", "cls/predictions/", "bert/cls/predictions/"), (
        ("dense.weight", "transform/dense/kernel", "transform/dense/kernel", _TRANSPOSED),
        ("dense.bias", "transform/dense/bias", "transform/dense/bias", _AS_IS),
        ("LayerNorm.weight", "transform/LayerNorm/gamma", "transform/LayerNorm/gamma", _AS_IS),
        ("LayerNorm.bias", "transform/LayerNorm/beta", "transform/LayerNorm/beta", _AS_IS),
        ("bias", "output_bias", "output_bias/bias", _AS_IS),
    )),
    (("sop_classifier.classifier.", "cls/seq_relationship/", ""), (
        ("weight", "output_weights", "", _AS_IS),
        ("bias", "output_bias", "", _AS_IS),
    )),
    (("classifier.", "", ""), (  # GLUE, [labels, H], and RACE, [1, H]
        ("weight", "output_weights", "", _AS_IS),
        ("bias", "output_bias", "", _AS_IS),
    )),
    (("qa_outputs.", "cls/squad/", ""), (
        ("weight", "output_weights", "", _AS_IS),
        ("bias", "output_bias", "", _AS_IS),
    )),
    (("start_logits.dense.", "start_logits/dense/", ""), (
        ("weight", "kernel", "", _TRANSPOSED),
        ("bias", "bias", "", _AS_IS),
    )),
    (("end_logits.", "end_logits/", ""), (
        ("dense_0.weight", "dense_0/kernel", "", _TRANSPOSED),
        ("dense_0.bias", "dense_0/bias", "", _AS_IS),
        ("LayerNorm.weight", "LayerNorm/gamma", "", _AS_IS),
        ("LayerNorm.bias", "LayerNorm/beta", "", _AS_IS),
        ("dense_1.weight", "dense_1/kernel", "", _TRANSPOSED),
        ("dense_1.bias", "dense_1/bias", "", _AS_IS),
    )),
    (("answer_class.", "answer_class/", ""), (
        ("dense_0.weight", "dense_0/kernel", "", _TRANSPOSED),
        ("dense_0.bias", "dense_0/bias", "", _AS_IS),
        ("dense_1.weight", "dense_1/kernel", "", _TRANSPOSED),
    )),
)  # fmt: skip

ROWS = tuple(
    ParameterRow(ours + name, theirs + tf1, tuple(garden + variable for variable in tf2.split()), layout)
    for (ours, theirs, garden), rows in _PARTS
    for name, tf1, tf2, layout in rows
)

_BY_NAME = {row.name: row for row in ROWS}
_BY_VARIABLE = {variable: row for row in ROWS for variable in (row.tf1, *row.tf2)}
_BLOCK = re.compile(r"albert_layer_groups\.(\d+)\.albert_layers\.(\d+)\.")
_TF1_BLOCK = re.compile(r"group_(\d+)/inner_group_(\d+)/")
_HUB_MODULE = re.compile(r"^module(_\d+)?/")  # a graph that holds a TF-Hub module puts its scope first

# What an optimizer or a saver leaves beside the weights. Google's LAMB and AdamW both call their slots adam_m and adam_v.
_SLOT = re.compile(
    r"(?:^|/)(adam_m|adam_v|Adam|Adam_1|beta1_power|beta2_power|global_step|save_counter)(?:/\.ATTRIBUTES/.*)?$"
)
_TF2_OPTIMIZER = re.compile(r"(?:^|/)_?optimizer/|/\.OPTIMIZER_SLOT/")


def parameter_of_variable(variable: str) -> tuple[str, TensorLayout] | None:
    """Return transformers' name of a variable of TensorFlow 1 or 2, and its layout; None for one that is not in the table."""
    pattern, (group, inner) = _without_numbers(_HUB_MODULE.sub("", variable), _TF1_BLOCK, "group_{g}/inner_group_{i}/")
    row = _BY_VARIABLE.get(pattern)
    return None if row is None else (row.name.format(g=group, i=inner), row.layout)


def tf1_variable(name: str) -> tuple[str, TensorLayout] | None:
    """Return TensorFlow 1's name of a parameter, and its layout; None for one that is not in the table."""
    pattern, (group, inner) = _without_numbers(name, _BLOCK, "albert_layer_groups.{g}.albert_layers.{i}.")
    row = _BY_NAME.get(pattern)
    return None if row is None else (row.tf1.format(g=group, i=inner), row.layout)


def row_of(name: str) -> ParameterRow:
    """Return the row of a parameter that the table is known to have."""
    return _BY_NAME[_without_numbers(name, _BLOCK, "albert_layer_groups.{g}.albert_layers.{i}.")[0]]


def _without_numbers(name: str, block: re.Pattern[str], placeholders: str) -> tuple[str, tuple[str, str]]:
    """Return a name as the table has it, and the numbers of its group and inner group; 0 for the Model Garden's one block."""
    match = block.search(name)
    if match is None:
        return name.replace("{", "{{"), ("0", "0")  # braces in a file's name are no placeholders
    return block.sub(placeholders, name, count=1), (match[1], match[2])


def optimizer_slot(key: str) -> str | None:
    """Return what kind of an optimizer's or a saver's variable a checkpoint's key names; None if it names none."""
    slot = _SLOT.search(key)
    if slot:
        return slot[1]
    return "optimizer" if _TF2_OPTIMIZER.search(key) else None


def from_tensorflow(values: NDArray[Any], layout: TensorLayout) -> NDArray[Any]:
    """Return a variable as torch lays it out, [out, in] or [out]."""
    match layout:
        case TensorLayout.TRANSPOSED:
            return values.T
        case TensorLayout.TO_HEADS:
            return values.reshape(len(values), -1).T
        case TensorLayout.FROM_HEADS:
            return values.reshape(-1, values.shape[-1]).T
        case TensorLayout.HEADS_BIAS:
            return values.reshape(-1)
    return values


def to_tf1(values: NDArray[Any], layout: TensorLayout) -> NDArray[Any]:
    """Return a parameter as TensorFlow 1 lays it out, in memory of its own order."""
    return values if layout in (TensorLayout.AS_IS, TensorLayout.HEADS_BIAS) else np.ascontiguousarray(values.T)


def to_tf2(values: NDArray[Any], layout: TensorLayout, num_heads: int) -> NDArray[Any]:
    """Return a parameter as the Model Garden lays it out: as TensorFlow 1, its heads split."""
    values = to_tf1(values, layout)
    match layout:
        case TensorLayout.TO_HEADS:
            return values.reshape(len(values), num_heads, -1)
        case TensorLayout.FROM_HEADS:
            return values.reshape(num_heads, -1, values.shape[-1])
        case TensorLayout.HEADS_BIAS:
            return values.reshape(num_heads, -1)
    return values


def well_shaped(shape: tuple[int, ...], layout: TensorLayout) -> bool:
    """Return whether a variable's shape can be laid out as torch does; sizes are checked elsewhere."""
    return len(shape) in _RANKS[layout] and 0 not in shape


def heads_of(shape: tuple[int, ...], layout: TensorLayout) -> int | None:
    """Return how many attention heads a well-shaped variable shows; None if it leaves no trace of them."""
    dimension = _HEAD_DIMENSION.get(layout)
    return None if dimension is None or len(shape) < _RANKS[layout][-1] else shape[dimension]
