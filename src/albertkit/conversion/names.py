"""One table of parameter names: transformers, TensorFlow 1 (google-research/albert), TensorFlow 2 (Model Garden).

A row is a parameter. `{g}` and `{i}` stand for group and inner group; the Model Garden's encoder
has one of each. Names of TensorFlow 2 are those of the variables, as the object graph in a
checkpoint gives them, not the checkpoint's keys.

Sources: `modeling.py`, `squad_utils.py` and `race_utils.py` of google-research/albert;
`official/nlp/modeling/networks/albert_encoder.py` of tensorflow/models 2.2 to 2.11, and the
checkpoints they write.
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


# How many dimensions a variable may have; the last says that its heads are split. And which
# dimension then counts them.
_RANKS = {
    TensorLayout.AS_IS: (1, 2),
    TensorLayout.TRANSPOSED: (2,),
    TensorLayout.TO_HEADS: (2, 3),
    TensorLayout.HEADS_BIAS: (1, 2),
    TensorLayout.FROM_HEADS: (2, 3),
}
_HEAD_DIMENSION = {TensorLayout.TO_HEADS: 1, TensorLayout.HEADS_BIAS: 0, TensorLayout.FROM_HEADS: 0}

_AS_IS = TensorLayout.AS_IS
# Absent from TensorFlow's files when E = H
MAPPING_IN = "albert.encoder.embedding_hidden_mapping_in."

# What the parameters of a module are called in transformers, TensorFlow 1 and TensorFlow 2, behind
# the module's own name.
_BIAS = (("bias", "bias", "bias", _AS_IS),)
_KERNEL = (("weight", "kernel", "kernel", TensorLayout.TRANSPOSED),)
_DENSE = _KERNEL + _BIAS
_TO_HEADS = (
    ("weight", "kernel", "kernel", TensorLayout.TO_HEADS),
    ("bias", "bias", "bias", TensorLayout.HEADS_BIAS),
)
_FROM_HEADS = (("weight", "kernel", "kernel", TensorLayout.FROM_HEADS), *_BIAS)
_NORM = (("weight", "gamma", "gamma", _AS_IS), ("bias", "beta", "beta", _AS_IS))
_TABLE = (("weight", "", "embeddings", _AS_IS),)
_OUTPUT = (("weight", "output_weights", "", _AS_IS), ("bias", "output_bias", "", _AS_IS))

# Of a part of the model what all names begin with, then its modules; two names of TensorFlow 2 have
# a blank between them.
_PARTS: tuple[tuple[tuple[str, str, str | None], tuple[tuple[Any, ...], ...]], ...] = (
    (
        ("albert.embeddings.", "bert/embeddings/", ""),
        (
            ("word_embeddings.", "word_embeddings", "word_embeddings/", _TABLE),
            ("position_embeddings.", "position_embeddings", "position_embedding/", _TABLE),
            ("token_type_embeddings.", "token_type_embeddings", "type_embeddings/", _TABLE),
            ("LayerNorm.", "LayerNorm/", "embeddings/layer_norm/", _NORM),
        ),
    ),
    (
        (MAPPING_IN, "bert/encoder/embedding_hidden_mapping_in/", "embedding_projection/"),
        (("", "", "", _DENSE),),
    ),
    (
        (
            "albert.encoder.albert_layer_groups.{g}.albert_layers.{i}.",
            "bert/encoder/transformer/group_{g}/inner_group_{i}/",
            "transformer/",
        ),
        (
            ("attention.query.", "attention_1/self/query/", "self_attention/query/", _TO_HEADS),
            ("attention.key.", "attention_1/self/key/", "self_attention/key/", _TO_HEADS),
            ("attention.value.", "attention_1/self/value/", "self_attention/value/", _TO_HEADS),
            (
                "attention.dense.",
                "attention_1/output/dense/",
                "self_attention/attention_output/ self_attention_output/",
                _FROM_HEADS,
            ),
            ("attention.LayerNorm.", "LayerNorm/", "self_attention_layer_norm/", _NORM),
            ("ffn.", "ffn_1/intermediate/dense/", "intermediate/", _DENSE),
            ("ffn_output.", "ffn_1/intermediate/output/dense/", "output/", _DENSE),
            ("full_layer_layer_norm.", "LayerNorm_1/", "output_layer_norm/", _NORM),
        ),
    ),
    (("albert.pooler.", "bert/pooler/dense/", "pooler_transform/"), (("", "", "", _DENSE),)),
    (
        ("predictions.", "cls/predictions/", "bert/cls/predictions/"),
        (
            ("dense.", "transform/dense/", "transform/dense/", _DENSE),
            ("LayerNorm.", "transform/LayerNorm/", "transform/LayerNorm/", _NORM),
            ("", "output_", "output_bias/", _BIAS),
        ),
    ),
    (
        ("", "", None),
        (  # heads that the Model Garden's converters do not keep
            ("sop_classifier.classifier.", "cls/seq_relationship/", "", _OUTPUT),
            ("classifier.", "", "", _OUTPUT),  # GLUE, [labels, H], and RACE, [1, H]
            ("qa_outputs.", "cls/squad/", "", _OUTPUT),
            ("start_logits.dense.", "start_logits/dense/", "", _DENSE),
            ("end_logits.dense_0.", "end_logits/dense_0/", "", _DENSE),
            ("end_logits.LayerNorm.", "end_logits/LayerNorm/", "", _NORM),
            ("end_logits.dense_1.", "end_logits/dense_1/", "", _DENSE),
            ("answer_class.dense_0.", "answer_class/dense_0/", "", _DENSE),
            ("answer_class.dense_1.", "answer_class/dense_1/", "", _KERNEL),
        ),
    ),
)

ROWS = tuple(
    ParameterRow(
        ours + module + name,
        theirs + tf1_module + tf1,
        ()
        if garden is None
        else tuple(garden + tf2_module + tf2 for tf2_module in tf2_modules.split(" ")),
        layout,
    )
    for (ours, theirs, garden), modules in _PARTS
    for module, tf1_module, tf2_modules, parameters in modules
    for name, tf1, tf2, layout in parameters
)

_BY_NAME = {row.name: row for row in ROWS}
_BY_VARIABLE = {variable: row for row in ROWS for variable in (row.tf1, *row.tf2)}
_BLOCK = re.compile(r"albert_layer_groups\.(\d+)\.albert_layers\.(\d+)\.")
_TF1_BLOCK = re.compile(r"group_(\d+)/inner_group_(\d+)/")
# A graph that holds a TF-Hub module puts its scope first
_HUB_MODULE = re.compile(r"^module(_\d+)?/")

# What an optimizer or a saver leaves beside the weights. Google's LAMB and AdamW both call their
# slots adam_m and adam_v.
_SLOT = re.compile(
    r"(?:^|/)(adam_m|adam_v|Adam|Adam_1|beta1_power|beta2_power|global_step|save_counter)(?:/\.ATTRIBUTES/.*)?$"
)
_TF2_OPTIMIZER = re.compile(r"(?:^|/)_?optimizer/|/\.OPTIMIZER_SLOT/")


def parameter_name_and_layout(variable: str) -> tuple[str, TensorLayout] | None:
    """Return transformers' name of a variable of TensorFlow 1 or 2, and its layout; None for one that is not in the table."""
    pattern, (group, inner) = _placeholder_name_and_group_numbers(
        _HUB_MODULE.sub("", variable),
        _TF1_BLOCK,
        "group_{g}/inner_group_{i}/",
    )
    row = _BY_VARIABLE.get(pattern)
    return None if row is None else (row.name.format(g=group, i=inner), row.layout)


def tf1_variable_name_and_layout(name: str) -> tuple[str, TensorLayout] | None:
    """Return TensorFlow 1's name of a parameter, and its layout; None for one that is not in the table."""
    pattern, (group, inner) = _placeholder_name_and_group_numbers(
        name,
        _BLOCK,
        "albert_layer_groups.{g}.albert_layers.{i}.",
    )
    row = _BY_NAME.get(pattern)
    return None if row is None else (row.tf1.format(g=group, i=inner), row.layout)


def row_of_parameter(name: str) -> ParameterRow:
    """Return the row of a parameter that the table is known to have."""
    return _BY_NAME[
        _placeholder_name_and_group_numbers(
            name, _BLOCK, "albert_layer_groups.{g}.albert_layers.{i}."
        )[0]
    ]


def _placeholder_name_and_group_numbers(
    name: str,
    block: re.Pattern[str],
    placeholders: str,
) -> tuple[str, tuple[str, str]]:
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
    return (
        values
        if layout in (TensorLayout.AS_IS, TensorLayout.HEADS_BIAS)
        else np.ascontiguousarray(values.T)
    )


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


def has_rank_of_layout(shape: tuple[int, ...], layout: TensorLayout) -> bool:
    """Return whether a variable's shape can be laid out as torch does; sizes are checked elsewhere."""
    return len(shape) in _RANKS[layout] and 0 not in shape


def num_heads_from_shape(shape: tuple[int, ...], layout: TensorLayout) -> int | None:
    """Return how many attention heads a well-shaped variable shows; None if it leaves no trace of them."""
    dimension = _HEAD_DIMENSION.get(layout)
    return None if dimension is None or len(shape) < _RANKS[layout][-1] else shape[dimension]
