"""Build every class of model as an ONNX graph: transformers' inputs and outputs, the arithmetic of `model/layers.py`.

B rows of S places, T = B·S tokens, E embedding, H hidden, A heads of width D, C labels, V
vocabulary; K starts, M ends of each. Tokens stay [T, H] all the way, and are laid out in rows only
where they attend to each other.
"""

import math
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto
from torch import nn

from albertkit.config import AlbertConfig
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.folder import check_pooling
from albertkit.errors import CheckpointError
from albertkit.export.graph import OnnxGraph, Output, TensorName
from albertkit.model import (
    AlbertForBeamQuestionAnswering,
    AlbertForMaskedLM,
    AlbertForMultipleChoice,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    AlbertModel,
)
from albertkit.model.heads import MaskedLMHead
from albertkit.model.layers import AlbertLayer
from albertkit.model.pretrained import PretrainedAlbert

# The logit of a place where no answer may lie, as in `model/beam_question_answering.py`
_FORBIDDEN_LOGIT = -1e30
_PADDING_SCORE = float(np.finfo(np.float32).min)  # added to the score of a place that is padding


def build_model(graph: OnnxGraph, model: PretrainedAlbert | SentenceEncoder) -> onnx.ModelProto:
    """Build the ONNX model of any class, given an empty graph with the model's parameters."""
    model_classes = [*_add_outputs.registry][1:]  # the first is that of any object
    if type(model) not in model_classes:
        class_names = ", ".join(model_class.__name__ for model_class in model_classes)
        raise CheckpointError(
            "not-expressible",
            f"a {type(model).__name__} is not exported",
            f"these are: {class_names}",
        )
    return graph.finish_model(_add_outputs(model, graph), type(model).__name__)


@singledispatch
def _add_outputs(model: Any, g: OnnxGraph) -> dict[str, Output]:
    """Add what a class of model computes to the graph; return its outputs by name."""
    raise NotImplementedError


# --- encoder --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """Name the input, and values that every part of the graph needs.

    Attributes:
        ids: int64 [B, S].
        types: int64 [B, S].
        mask: bool [B, S], False at padding.
        shape: int64 [2]: B, S.
        width: int64 [1]: S.
        starts: int64 [B] into the T tokens: where each row begins.
        first: int64 [B] into the T tokens: the first real one of each row.
    """

    ids: TensorName
    types: TensorName
    mask: TensorName
    shape: TensorName
    width: TensorName
    starts: TensorName
    first: TensorName

    def lay_out(self, g: OnnxGraph, values: TensorName, *sizes: int) -> TensorName:
        """Reshape [T, ...] to [B, S, *sizes]."""
        shape = self.shape
        if sizes:
            shape = g.add_node("Concat", shape, g.store_ints(*sizes), axis=0)
        return g.add_node("Reshape", values, shape)


def read_rows(g: OnnxGraph, *further_axes: str) -> Rows:
    """Return transformers' three inputs, [batch, sequence]; of more axes between them all but the last are rows."""
    g.part = "input"
    axes = ("batch", *further_axes, "sequence")
    ids = g.add_input("input_ids", *axes)
    mask = g.add_input("attention_mask", *axes)
    types = g.add_input("token_type_ids", *axes)
    if further_axes:
        shape = g.add_node("Concat", g.store_ints(-1), g.add_node("Shape", ids, start=-1), axis=0)
        ids, mask, types = (g.add_node("Reshape", values, shape) for values in (ids, mask, types))
    mask = g.add_node("Cast", mask, to=TensorProto.BOOL)
    shape = g.add_node("Shape", ids)
    width = g.add_node("Shape", ids, start=1)
    count = g.add_node("Squeeze", g.add_node("Shape", ids, end=1))
    starts = g.add_node(
        "Mul",
        g.add_node("Range", g.store_scalar(0, np.int64), count, g.store_scalar(1, np.int64)),
        width,
    )
    position = g.add_node(
        "ArgMax", g.add_node("Cast", mask, to=TensorProto.INT32), axis=1, keepdims=0
    )
    return Rows(ids, types, mask, shape, width, starts, g.add_node("Add", starts, position))


def encode(
    g: OnnxGraph,
    albert: AlbertModel,
    rows: Rows,
    first_only: bool = False,
) -> TensorName:
    """Return states [T, H]; or [B, H] of the first tokens, when the others of the last layer are not needed."""
    g.part = "embeddings"
    config = albert.config
    tables = albert.embeddings
    positions = g.add_node(
        "Slice",
        g.store_parameter(tables.position_embeddings.weight),
        g.store_ints(0),
        rows.width,
    )
    segments = g.add_node(
        "Gather", g.store_parameter(tables.token_type_embeddings.weight), rows.types
    )
    embedded = g.embedding(rows.ids, tables.word_embeddings)
    embedded = g.add_node("Add", g.add_node("Add", embedded, positions), segments)
    embedded = g.reshape(g.layer_norm(embedded, tables.LayerNorm), -1, config.embedding_size)
    hidden = g.linear(embedded, albert.encoder.embedding_hidden_mapping_in)
    padding_scores = g.add_node(
        "Where", rows.mask, g.store_scalar(0.0), g.store_scalar(_PADDING_SCORE)
    )
    padding_scores = g.unsqueeze(padding_scores, 1, 2)  # [B, 1, 1, S]
    blocks = [block for block, _ in albert.encoder.layers(torch.float32)]
    for number, block in enumerate(blocks, start=1):
        g.part = f"layer_{number}"
        output_rows = rows.first if first_only and number == len(blocks) else None
        hidden = _add_layer(g, config, block, hidden, padding_scores, rows, output_rows)
    return hidden


def _add_layer(
    g: OnnxGraph,
    config: AlbertConfig,
    block: AlbertLayer,
    hidden: TensorName,
    padding_scores: TensorName,
    rows: Rows,
    output_rows: TensorName | None,
) -> TensorName:
    """Apply one post-norm block: [T, H] to [T, H], or to the `output_rows` alone."""
    attention = block.attention

    def heads(layer: nn.Linear, *order: int) -> TensorName:
        """Return [B, A, S, D], its axes in `order`."""
        laid_out = rows.lay_out(
            g,
            g.linear(hidden, layer),
            config.num_attention_heads,
            config.head_size,
        )
        return g.add_node("Transpose", laid_out, perm=order)

    queries = heads(attention.query, 0, 2, 1, 3)
    keys = heads(attention.key, 0, 2, 3, 1)
    scores = g.add_node("MatMul", queries, keys)
    scores = g.add_node("Mul", scores, g.store_scalar(1 / math.sqrt(config.head_size)))
    scores = g.add_node("Add", scores, padding_scores)
    shares = g.add_node("Softmax", scores, axis=-1)
    values = heads(attention.value, 0, 2, 1, 3)
    context = g.add_node("MatMul", shares, values)
    context = g.add_node("Transpose", context, perm=(0, 2, 1, 3))
    context = g.reshape(context, -1, config.hidden_size)
    if output_rows is not None:
        context = g.add_node("Gather", context, output_rows)
        hidden = g.add_node("Gather", hidden, output_rows)
    hidden = g.add_node("Add", hidden, g.linear(context, attention.dense))
    hidden = g.layer_norm(hidden, attention.LayerNorm)
    inner = g.activation(g.linear(hidden, block.ffn), config.hidden_act)
    output = g.add_node("Add", hidden, g.linear(inner, block.ffn_output))
    return g.layer_norm(output, block.full_layer_layer_norm)


def add_pooler(g: OnnxGraph, albert: AlbertModel, first: TensorName) -> TensorName:
    """Apply the pooler to the states of the first tokens: [B, H]."""
    g.part = "pooler"
    assert albert.pooler is not None
    return g.add_node("Tanh", g.linear(first, albert.pooler))


# --- classes --------------------------------------------------------------------------------------


@_add_outputs.register
def _add_encoder_outputs(model: AlbertModel, g: OnnxGraph) -> dict[str, Output]:
    rows = read_rows(g)
    size = model.config.hidden_size
    hidden = encode(g, model, rows)
    states = rows.lay_out(g, hidden, size)
    outputs = {"last_hidden_state": Output(states, ("batch", "sequence", size))}
    if model.pooler is not None:
        pooled = add_pooler(g, model, g.add_node("Gather", hidden, rows.first))
        outputs["pooler_output"] = Output(pooled, ("batch", size))
    return outputs


@_add_outputs.register
def _add_sentence_encoder_outputs(model: SentenceEncoder, g: OnnxGraph) -> dict[str, Output]:
    pooling = check_pooling(model.pooling)
    if pooling not in (("mean",), ("cls",)) or (model.prompt and not model.include_prompt):
        method = f"{' and '.join(pooling)} pooling"
        if model.prompt:
            method += " without the prompt"
        raise CheckpointError(
            "not-expressible",
            f"the vectors are made by {method}",
            "mean and cls pooling are exported",
        )
    rows = read_rows(g)
    size = model.config.hidden_size
    hidden = encode(g, model.albert, rows)
    states = rows.lay_out(g, hidden, size)
    g.part = "pooling"
    if pooling == ("cls",):
        vectors = g.add_node("Gather", hidden, rows.first)
    else:
        real = g.unsqueeze(g.add_node("Cast", rows.mask, to=TensorProto.FLOAT), 1)  # [B, 1, S]
        total = g.squeeze(g.add_node("MatMul", real, states), 1)
        count = g.add_node("ReduceSum", real, g.store_ints(2), keepdims=0)
        vectors = g.add_node("Div", total, count)
    if model.projection is not None:
        vectors = g.linear(vectors, model.projection.linear)
        if model.projection.activation_name == "tanh":
            vectors = g.add_node("Tanh", vectors)
    if model.normalize:
        length = g.add_node("ReduceL2", vectors, g.store_ints(1))
        vectors = g.add_node("Div", vectors, g.add_node("Max", length, g.store_scalar(1e-12)))
    return {
        "last_hidden_state": Output(states, ("batch", "sequence", size)),
        "sentence_embedding": Output(vectors, ("batch", model.dimension)),
    }


@_add_outputs.register
def _add_pretraining_outputs(model: AlbertForPreTraining, g: OnnxGraph) -> dict[str, Output]:
    # transformers' two outputs: a third, `logits`, would double the largest array of every call.
    rows = read_rows(g)
    hidden = encode(g, model.albert, rows)
    summary = add_pooler(g, model.albert, g.add_node("Gather", hidden, rows.first))
    return {
        "prediction_logits": _token_logits(g, model.config, model.predictions, hidden, rows),
        "sop_logits": Output(
            g.exact_linear(summary, model.sop_classifier.classifier), ("batch", 2)
        ),
    }


@_add_outputs.register
def _add_masked_lm_outputs(model: AlbertForMaskedLM, g: OnnxGraph) -> dict[str, Output]:
    rows = read_rows(g)
    hidden = encode(g, model.albert, rows)
    return {"logits": _token_logits(g, model.config, model.predictions, hidden, rows)}


def _token_logits(
    g: OnnxGraph,
    config: AlbertConfig,
    head: MaskedLMHead,
    hidden: TensorName,
    rows: Rows,
) -> Output:
    g.part = "predictions"
    inner = g.activation(g.linear(hidden, head.dense), config.hidden_act)
    inner = g.layer_norm(inner, head.LayerNorm)
    logits = g.decoder(inner, head.decoder.weight, head.bias)
    return Output(
        rows.lay_out(g, logits, config.vocab_size), ("batch", "sequence", config.vocab_size)
    )


@_add_outputs.register
def _add_sequences_outputs(
    model: AlbertForSequenceClassification, g: OnnxGraph
) -> dict[str, Output]:
    first = encode(g, model.albert, read_rows(g), first_only=True)
    logits = g.exact_linear(add_pooler(g, model.albert, first), model.classifier)
    return {"logits": Output(logits, ("batch", model.config.num_labels))}


@_add_outputs.register
def _add_choices_outputs(model: AlbertForMultipleChoice, g: OnnxGraph) -> dict[str, Output]:
    first = encode(g, model.albert, read_rows(g, "choice"), first_only=True)
    summary = add_pooler(g, model.albert, first)
    shape = g.add_node("Shape", "input_ids", end=2)
    logits = g.add_node("Reshape", g.exact_linear(summary, model.classifier), shape)
    return {"logits": Output(logits, ("batch", "choice"))}


@_add_outputs.register
def _add_tokens_outputs(model: AlbertForTokenClassification, g: OnnxGraph) -> dict[str, Output]:
    rows = read_rows(g)
    labels = model.config.num_labels
    logits = g.exact_linear(encode(g, model.albert, rows), model.classifier)
    return {"logits": Output(rows.lay_out(g, logits, labels), ("batch", "sequence", labels))}


@_add_outputs.register
def _add_spans_outputs(model: AlbertForQuestionAnswering, g: OnnxGraph) -> dict[str, Output]:
    rows = read_rows(g)
    logits = g.exact_linear(encode(g, model.albert, rows), model.qa_outputs)
    start, end = g.add_node_with_outputs("Split", 2, logits, axis=1, num_outputs=2)
    return {
        "start_logits": Output(rows.lay_out(g, start), ("batch", "sequence")),
        "end_logits": Output(rows.lay_out(g, end), ("batch", "sequence")),
    }


@_add_outputs.register
def _add_beams_outputs(model: AlbertForBeamQuestionAnswering, g: OnnxGraph) -> dict[str, Output]:
    """Add the beam head; `p_mask` may be given, too: 1 where no answer may lie."""
    rows = read_rows(g)
    size = model.config.hidden_size
    g.store_initializer(
        g.add_input("p_mask", "rows_of_p_mask", "places_of_p_mask"), np.zeros((1, 1), np.int64)
    )
    hidden = encode(g, model.albert, rows)
    g.part = "beams"
    # zeros at padding, as in `model/beam_question_answering.py`: of a short text not all starts are
    # at real tokens
    real = g.unsqueeze(rows.mask, 2)
    states = g.add_node("Where", real, rows.lay_out(g, hidden, size), g.store_scalar(0.0))
    hidden = g.reshape(states, -1, size)
    allowed = g.add_node(
        "And", rows.mask, g.add_node("Equal", "p_mask", g.store_scalar(0, np.int64))
    )
    start_logits = rows.lay_out(g, g.exact_linear(hidden, model.start_logits.dense))
    starts = _log_probs(g, start_logits, allowed)
    start_top, start_index = _top_values(g, starts, rows, model.start_n_top)
    head = model.end_logits
    # The layer over a state and the state at a start is two products: K times less to do.
    # [B, S, 1, H]
    of_states = rows.lay_out(g, g.linear(hidden, head.dense_0, slice(size)), 1, size)
    start_places = g.add_node("Add", g.unsqueeze(rows.starts, 1), start_index)
    chosen = g.add_node("Gather", hidden, start_places)  # [B, K, H]
    of_starts = g.linear(g.reshape(chosen, -1, size), head.dense_0, slice(size, None))
    of_starts = g.add_node("Reshape", of_starts, g.add_node("Shape", chosen))
    of_starts = g.unsqueeze(of_starts, 1)  # [B, 1, K, H]
    inner = g.add_node("Tanh", g.add_node("Add", of_states, of_starts))
    inner = g.layer_norm(inner, head.LayerNorm)
    logits = g.exact_linear(g.reshape(inner, -1, size), head.dense_1)
    ends = g.add_node("Reshape", logits, g.add_node("Shape", inner, end=3))
    ends = g.add_node("Transpose", ends, perm=(0, 2, 1))  # [B, K, S]
    ends = _log_probs(g, ends, g.unsqueeze(allowed, 1))
    end_top, end_index = _top_values(g, ends, rows, model.end_n_top)
    end_top = g.reshape(end_top, 0, -1)
    end_index = g.reshape(end_index, 0, -1)
    answer = model.answer_class
    expected = g.add_node("MatMul", g.unsqueeze(g.add_node("Exp", starts), 1), states)
    expected = g.squeeze(expected, 1)
    first = g.add_node("Gather", hidden, rows.first)
    pair = g.add_node("Concat", expected, first, axis=1)
    inner = g.add_node("Tanh", g.linear(pair, answer.dense_0))
    cls_logits = g.exact_linear(inner, answer.dense_1)
    return {
        "start_top_log_probs": Output(start_top, ("batch", "starts")),
        "start_top_index": Output(start_index, ("batch", "starts"), TensorProto.INT64),
        "end_top_log_probs": Output(end_top, ("batch", "ends")),
        "end_top_index": Output(end_index, ("batch", "ends"), TensorProto.INT64),
        "cls_logits": Output(g.squeeze(cls_logits, 1), ("batch",)),
    }


def _log_probs(g: OnnxGraph, logits: TensorName, allowed: TensorName) -> TensorName:
    """Return log-probabilities over the last axis, where allowed."""
    logits = g.add_node("Where", allowed, logits, g.store_scalar(_FORBIDDEN_LOGIT))
    return g.add_node("LogSoftmax", logits, axis=-1)


def _top_values(
    g: OnnxGraph,
    log_probs: TensorName,
    rows: Rows,
    count: int,
) -> list[TensorName]:
    """Return the likeliest and their places, at most as many as there are; of equals the first."""
    count_or_width = g.add_node("Min", rows.width, g.store_ints(count))
    return g.add_node_with_outputs("TopK", 2, log_probs, count_or_width, axis=-1)
