"""Checkpoints of the TensorFlow Model Garden, as `tf.train.Checkpoint` of version 2.11 lays them out.

An encoder is `Checkpoint(encoder=…)`; with the masked-LM head it is what its converter calls a pretrainer, with the table of
words shared by both. Source: `official/nlp/tools/tf2_albert_encoder_checkpoint_converter.py` of tensorflow/models 2.11 and
the checkpoints that it writes.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from albertkit.config import AlbertConfig
from albertkit.conversion import names
from albertkit.conversion.tensorflow.object_graph import Variable
from albertkit.errors import CheckpointError

PREFIX = "bert_model.ckpt"  # as in Google's archives

_BLOCK = "albert.encoder.albert_layer_groups.0.albert_layers.0."
_WORDS = "albert.embeddings.word_embeddings.weight"
# Keras counts the layers with weights: `layer_with_weights-0` and so on. Of each, parameters and their paths in the layer.
_LAYERS: tuple[dict[str, str], ...] = (
    {_WORDS: "embeddings"},
    {"albert.embeddings.position_embeddings.weight": "embeddings"},
    {"albert.embeddings.token_type_embeddings.weight": "embeddings"},
    {"albert.embeddings.LayerNorm.weight": "gamma", "albert.embeddings.LayerNorm.bias": "beta"},
    {f"{names.MAPPING_IN}weight": "kernel", f"{names.MAPPING_IN}bias": "bias"},  # absent where E = H
    {
        f"{_BLOCK}{ours}.{part}": f"{theirs}/{kinds[part]}"
        for kinds, pairs in (
            ({"weight": "kernel", "bias": "bias"}, {
                "attention.query": "_attention_layer/_query_dense", "attention.key": "_attention_layer/_key_dense",
                "attention.value": "_attention_layer/_value_dense", "attention.dense": "_attention_layer/_output_dense",
                "ffn": "_intermediate_dense", "ffn_output": "_output_dense",
            }),
            ({"weight": "gamma", "bias": "beta"}, {
                "attention.LayerNorm": "_attention_layer_norm", "full_layer_layer_norm": "_output_layer_norm",
            }),
        )
        for ours, theirs in pairs.items()
        for part in ("weight", "bias")
    },
    {"albert.pooler.weight": "kernel", "albert.pooler.bias": "bias"},
)  # fmt: skip
_MASKED_LM = {
    "predictions.dense.weight": ("dense", "kernel"), "predictions.dense.bias": ("dense", "bias"),
    "predictions.LayerNorm.weight": ("layer_norm", "gamma"), "predictions.LayerNorm.bias": ("layer_norm", "beta"),
    "predictions.bias": ("output_bias/bias",),
}  # fmt: skip


def check_one_block(config: AlbertConfig) -> None:
    """Make sure that the Model Garden's encoder, which has one block, can hold a model."""
    if config.num_hidden_groups * config.inner_group_num > 1:
        fact = (
            f"the model has {config.num_hidden_groups} groups of {config.inner_group_num} blocks, the Model Garden's encoder "
            "has one block"
        )
        raise CheckpointError("not-expressible", fact, "write TensorFlow 1's checkpoint: --to tf1")


def unknown_heads(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the parameters that the Model Garden's checkpoints have no place for: every head but that of the masked LM."""
    known = {name for layer in _LAYERS for name in layer} | _MASKED_LM.keys()
    return [name for name in tensors if name not in known]


def variables(tensors: Mapping[str, Tensor], config: AlbertConfig) -> tuple[list[Variable], dict[str, NDArray[Any]]]:
    """Return the variables of a checkpoint, and the values of each by its key."""
    placed: list[tuple[str, tuple[str, ...], tuple[tuple[str, ...], ...]]] = []
    layers = [
        layer for layer in _LAYERS if any(name in tensors for name in layer) and not _no_projection(layer, config)
    ]
    pretrainer = any(name in tensors for name in _MASKED_LM)
    for number, layer in enumerate(layers):
        for name, path in layer.items():
            if name in tensors:
                at = (f"layer_with_weights-{number}", *path.split("/"))
                placed.append((name, ("encoder", *at), (("model", "encoder_network", *at),) if pretrainer else ()))
    if pretrainer:
        # The head stores the table of words; that of the encoder is a second path to it.
        words, at_words, others = placed[0]
        placed[0] = (
            words,
            ("masked_lm", "embedding_table"),
            (at_words, *others, ("model", "masked_lm", "embedding_table")),
        )
        for name, at in _MASKED_LM.items():
            if name in tensors:
                ways = (
                    [at, ("bias",)] if name == "predictions.bias" else [at]
                )  # an attribute, and the name of its weight
                paths = [(*parent, *way) for parent in (("masked_lm",), ("model", "masked_lm")) for way in ways]
                placed.append((name, paths[0], tuple(paths[1:])))
    found, values = [], {}
    for name, where, also in placed:
        row = names.row_of(name)
        variable = Variable(where, row.tf2[0], also)
        found.append(variable)
        values[variable.key] = names.to_tf2(tensors[name].numpy(), row.layout, config.num_attention_heads)
    counter = Variable(("save_counter",), "save_counter", ())
    return [*found, counter], {**values, counter.key: np.array(1, np.int64)}


def _no_projection(layer: dict[str, str], config: AlbertConfig) -> bool:
    return f"{names.MAPPING_IN}weight" in layer and config.embedding_size == config.hidden_size
