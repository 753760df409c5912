"""The encoder as a graph: transformers' inputs, padded rows, the arithmetic of `model/encoder.py`.

B rows of S places, T = B·S tokens, E embedding, H hidden, A heads of width D, L passes. Tokens stay [T, H] all the way, and are
laid out in rows only where they look at each other.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from onnx import TensorProto
from torch import nn

from albertkit.config import AlbertConfig
from albertkit.export.graph import Graph
from albertkit.model import AlbertModel
from albertkit.model.encoder import AlbertLayer

_PADDING = float(np.finfo(np.float32).min)  # added to the score of a place that is padding


@dataclass(frozen=True)
class Rows:
    """The input, and what every part of the graph asks of it.

    Attributes:
        ids: int64 [B, S].
        types: int64 [B, S].
        mask: bool [B, S], False at padding.
        shape: int64 [2]: B, S.
        width: int64 [1]: S.
        starts: int64 [B] into the T tokens: where each row begins.
        first: int64 [B] into the T tokens: the first real one of each row.
    """

    ids: str
    types: str
    mask: str
    shape: str
    width: str
    starts: str
    first: str

    def lay_out(self, g: Graph, values: str, *sizes: int) -> str:
        """[T, ...] to [B, S, *sizes]."""
        return g.add("Reshape", values, g.add("Concat", self.shape, g.ints(*sizes), axis=0) if sizes else self.shape)


def read_rows(g: Graph, *more: str) -> Rows:
    """transformers' three inputs, [batch, sequence]; of more axes between them all but the last are rows."""
    g.part = "input"
    ids, mask, types = (
        g.input(name, "batch", *more, "sequence") for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    if more:
        shape = g.add("Concat", g.ints(-1), g.add("Shape", ids, start=-1), axis=0)
        ids, mask, types = (g.add("Reshape", values, shape) for values in (ids, mask, types))
    mask = g.add("Cast", mask, to=TensorProto.BOOL)
    shape, width = g.add("Shape", ids), g.add("Shape", ids, start=1)
    count = g.add("Squeeze", g.add("Shape", ids, end=1))
    starts = g.add("Mul", g.add("Range", g.scalar(0, np.int64), count, g.scalar(1, np.int64)), width)
    place = g.add("ArgMax", g.add("Cast", mask, to=TensorProto.INT32), axis=1, keepdims=0)
    return Rows(ids, types, mask, shape, width, starts, g.add("Add", starts, place))


def encode(g: Graph, albert: AlbertModel, rows: Rows, first_only: bool = False) -> str:
    """States [T, H]; or [B, H] of the first tokens, when nobody looks at the others of the last pass."""
    g.part = "embeddings"
    config, tables = albert.config, albert.embeddings
    places = g.add("Slice", g.parameter(tables.position_embeddings.weight), g.ints(0), rows.width)
    segments = g.add("Gather", g.parameter(tables.token_type_embeddings.weight), rows.types)
    embedded = g.add("Add", g.add("Add", g.embedding(rows.ids, tables.word_embeddings), places), segments)
    embedded = g.add("Reshape", g.layer_norm(embedded, tables.LayerNorm), g.ints(-1, config.embedding_size))
    hidden = g.linear(embedded, albert.encoder.embedding_hidden_mapping_in)
    hide = g.add("Where", rows.mask, g.scalar(0.0), g.scalar(_PADDING))
    hide = g.add("Unsqueeze", hide, g.ints(1, 2))  # [B, 1, 1, S]
    blocks = [block for block, _ in albert.encoder.passes(torch.float32)]
    for number, block in enumerate(blocks, start=1):
        g.part = f"pass_{number}"
        wanted = rows.first if first_only and number == len(blocks) else None
        hidden = _pass(g, config, block, hidden, hide, rows, wanted)
    return hidden


def _pass(
    g: Graph, config: AlbertConfig, block: AlbertLayer, hidden: str, hide: str, rows: Rows, wanted: str | None
) -> str:
    """One post-norm block: [T, H] to [T, H], or to the rows that are wanted."""
    attention = block.attention

    def heads(layer: nn.Linear, *order: int) -> str:
        """[B, A, S, D] in the order of axes that is asked for."""
        laid_out = rows.lay_out(g, g.linear(hidden, layer), config.num_attention_heads, config.head_size)
        return g.add("Transpose", laid_out, perm=order)

    scores = g.add("MatMul", heads(attention.query, 0, 2, 1, 3), heads(attention.key, 0, 2, 3, 1))
    scores = g.add("Mul", scores, g.scalar(1 / math.sqrt(config.head_size)))
    shares = g.add("Softmax", g.add("Add", scores, hide), axis=-1)
    context = g.add("Transpose", g.add("MatMul", shares, heads(attention.value, 0, 2, 1, 3)), perm=(0, 2, 1, 3))
    context = g.add("Reshape", context, g.ints(-1, config.hidden_size))
    if wanted is not None:
        context, hidden = g.add("Gather", context, wanted), g.add("Gather", hidden, wanted)
    hidden = g.layer_norm(g.add("Add", hidden, g.linear(context, attention.dense)), attention.LayerNorm)
    inner = g.activation(g.linear(hidden, block.ffn), config.hidden_act)
    return g.layer_norm(g.add("Add", hidden, g.linear(inner, block.ffn_output)), block.full_layer_layer_norm)


def pooled(g: Graph, albert: AlbertModel, first: str) -> str:
    """The pooler on the states of the first tokens: [B, H]."""
    g.part = "pooler"
    assert albert.pooler is not None
    return g.add("Tanh", g.linear(first, albert.pooler))
