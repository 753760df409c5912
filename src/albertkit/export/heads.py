"""Every class of model as an ONNX model, with transformers' names of outputs.

B rows of S places, T = B·S tokens, H hidden, C labels, V vocabulary; K starts, M ends of each.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from albertkit.config import AlbertConfig
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.pooling import Projection, check_pooling
from albertkit.errors import CheckpointError
from albertkit.export.graph import Graph, Output
from albertkit.export.network import Rows, encode, pooled, read_rows
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
from albertkit.model.pretrained import PretrainedAlbert

_FORBIDDEN = -1e30  # the logit of a place where no answer may lie, as in `model/beam.py`


def build(graph: Graph, model: PretrainedAlbert | SentenceEncoder) -> onnx.ModelProto:
    """The ONNX model of any class.

    Args:
        graph: Empty, made with the model's parameters.
        model: Of a public class of `model/`, or a `SentenceEncoder`.

    Raises:
        CheckpointError: not-expressible for a class or a pooling that is not written here.
    """
    if type(model) not in _CLASSES:
        known = ", ".join(kind.__name__ for kind in _CLASSES)
        raise CheckpointError("not-expressible", f"a {type(model).__name__} is not exported", f"these are: {known}")
    return graph.model(_CLASSES[type(model)](graph, model), type(model).__name__)


def _encoder(g: Graph, model: AlbertModel) -> dict[str, Output]:
    rows, size = read_rows(g), model.config.hidden_size
    hidden = encode(g, model, rows)
    outputs = {"last_hidden_state": Output(rows.lay_out(g, hidden, size), ("batch", "sequence", size))}
    if model.pooler is not None:
        outputs["pooler_output"] = Output(pooled(g, model, g.add("Gather", hidden, rows.first)), ("batch", size))
    return outputs


def _sentence_encoder(g: Graph, model: SentenceEncoder) -> dict[str, Output]:
    pooling = check_pooling(model.pooling)
    if pooling not in (("mean",), ("cls",)) or (model.prompt and not model.include_prompt):
        what = " and ".join(pooling) + " pooling" + (" without the prompt" if model.prompt else "")
        raise CheckpointError("not-expressible", f"the vectors are made by {what}", "mean and cls pooling are exported")
    rows, size = read_rows(g), model.config.hidden_size
    hidden = encode(g, model.albert, rows)
    states = rows.lay_out(g, hidden, size)
    g.part = "pooling"
    if pooling == ("cls",):
        vectors = g.add("Gather", hidden, rows.first)
    else:
        real = g.add("Unsqueeze", g.add("Cast", rows.mask, to=TensorProto.FLOAT), g.ints(1))  # [B, 1, S]
        total = g.add("Squeeze", g.add("MatMul", real, states), g.ints(1))
        vectors = g.add("Div", total, g.add("ReduceSum", real, g.ints(2), keepdims=0))
    if model.projection is not None:
        vectors = _projected(g, model.projection, vectors)
    if model.normalize:
        length = g.add("ReduceL2", vectors, g.ints(1))
        vectors = g.add("Div", vectors, g.add("Max", length, g.scalar(1e-12)))
    return {
        "last_hidden_state": Output(states, ("batch", "sequence", size)),
        "sentence_embedding": Output(vectors, ("batch", model.dimension)),
    }


def _projected(g: Graph, projection: Projection, vectors: str) -> str:
    found = g.linear(vectors, projection.linear)
    return g.add("Tanh", found) if projection.activation_name == "tanh" else found


def _pretraining(g: Graph, model: AlbertForPreTraining) -> dict[str, Output]:
    rows = read_rows(g)
    hidden = encode(g, model.albert, rows)
    summary = pooled(g, model.albert, g.add("Gather", hidden, rows.first))
    return {
        "prediction_logits": _pieces(g, model.config, model.predictions, hidden, rows),
        "sop_logits": Output(g.exact_linear(summary, model.sop_classifier.classifier), ("batch", 2)),
    }


def _masked_lm(g: Graph, model: AlbertForMaskedLM) -> dict[str, Output]:
    rows = read_rows(g)
    return {"logits": _pieces(g, model.config, model.predictions, encode(g, model.albert, rows), rows)}


def _pieces(g: Graph, config: AlbertConfig, head: MaskedLMHead, hidden: str, rows: Rows) -> Output:
    g.part = "predictions"
    inner = g.layer_norm(g.activation(g.linear(hidden, head.dense), config.hidden_act), head.LayerNorm)
    logits = g.decoder(inner, head.decoder.weight, head.bias)
    return Output(rows.lay_out(g, logits, config.vocab_size), ("batch", "sequence", config.vocab_size))


def _sequences(g: Graph, model: AlbertForSequenceClassification) -> dict[str, Output]:
    summary = pooled(g, model.albert, encode(g, model.albert, read_rows(g), first_only=True))
    return {"logits": Output(g.exact_linear(summary, model.classifier), ("batch", model.config.num_labels))}


def _choices(g: Graph, model: AlbertForMultipleChoice) -> dict[str, Output]:
    summary = pooled(g, model.albert, encode(g, model.albert, read_rows(g, "choice"), first_only=True))
    shape = g.add("Shape", "input_ids", end=2)
    return {"logits": Output(g.add("Reshape", g.exact_linear(summary, model.classifier), shape), ("batch", "choice"))}


def _tokens(g: Graph, model: AlbertForTokenClassification) -> dict[str, Output]:
    rows, labels = read_rows(g), model.config.num_labels
    logits = g.exact_linear(encode(g, model.albert, rows), model.classifier)
    return {"logits": Output(rows.lay_out(g, logits, labels), ("batch", "sequence", labels))}


def _spans(g: Graph, model: AlbertForQuestionAnswering) -> dict[str, Output]:
    rows = read_rows(g)
    logits = g.exact_linear(encode(g, model.albert, rows), model.qa_outputs)
    start, end = g.add_several("Split", 2, logits, axis=1, num_outputs=2)
    return {
        "start_logits": Output(rows.lay_out(g, start), ("batch", "sequence")),
        "end_logits": Output(rows.lay_out(g, end), ("batch", "sequence")),
    }


def _beams(g: Graph, model: AlbertForBeamQuestionAnswering) -> dict[str, Output]:
    """`p_mask` may be given, too: 1 where no answer may lie."""
    rows, size = read_rows(g), model.config.hidden_size
    g.store(g.input("p_mask", "rows_of_p_mask", "places_of_p_mask"), np.zeros((1, 1), np.int64))
    hidden = encode(g, model.albert, rows)
    g.part = "beams"
    # zeros at padding, as in `model/beam.py`: of a short text not all starts are at real tokens
    real = g.add("Unsqueeze", rows.mask, g.ints(2))
    states = g.add("Where", real, rows.lay_out(g, hidden, size), g.scalar(0.0))
    hidden = g.add("Reshape", states, g.ints(-1, size))
    allowed = g.add("And", rows.mask, g.add("Equal", "p_mask", g.scalar(0, np.int64)))
    starts = _log_probs(g, rows.lay_out(g, g.exact_linear(hidden, model.start_logits.dense)), allowed)
    start_top, start_index = _best(g, starts, rows, model.start_n_top)
    ends = _end_logits(g, model, hidden, start_index, rows)
    ends = _log_probs(g, ends, g.add("Unsqueeze", allowed, g.ints(1)))
    end_top, end_index = (g.add("Reshape", found, g.ints(0, -1)) for found in _best(g, ends, rows, model.end_n_top))
    answer = model.answer_class
    expected = g.add("MatMul", g.add("Unsqueeze", g.add("Exp", starts), g.ints(1)), states)
    pair = g.add("Concat", g.add("Squeeze", expected, g.ints(1)), g.add("Gather", hidden, rows.first), axis=1)
    cls_logits = g.exact_linear(g.add("Tanh", g.linear(pair, answer.dense_0)), answer.dense_1)
    return {
        "start_top_log_probs": Output(start_top, ("batch", "starts")),
        "start_top_index": Output(start_index, ("batch", "starts"), TensorProto.INT64),
        "end_top_log_probs": Output(end_top, ("batch", "ends")),
        "end_top_index": Output(end_index, ("batch", "ends"), TensorProto.INT64),
        "cls_logits": Output(g.add("Squeeze", cls_logits, g.ints(1)), ("batch",)),
    }


def _end_logits(g: Graph, model: AlbertForBeamQuestionAnswering, hidden: str, start_index: str, rows: Rows) -> str:
    """Logits [B, K, S]. The layer that reads a state beside the state at a start is two products: K times less to do."""
    head, size = model.end_logits, model.config.hidden_size
    of_states = rows.lay_out(g, g.linear(hidden, head.dense_0, slice(size)), 1, size)  # [B, S, 1, H]
    chosen = g.add("Gather", hidden, g.add("Add", g.add("Unsqueeze", rows.starts, g.ints(1)), start_index))  # [B, K, H]
    of_starts = g.linear(g.add("Reshape", chosen, g.ints(-1, size)), head.dense_0, slice(size, None))
    of_starts = g.add("Unsqueeze", g.add("Reshape", of_starts, g.add("Shape", chosen)), g.ints(1))  # [B, 1, K, H]
    inner = g.layer_norm(g.add("Tanh", g.add("Add", of_states, of_starts)), head.LayerNorm)
    logits = g.exact_linear(g.add("Reshape", inner, g.ints(-1, size)), head.dense_1)
    return g.add("Transpose", g.add("Reshape", logits, g.add("Shape", inner, end=3)), perm=(0, 2, 1))


def _log_probs(g: Graph, logits: str, allowed: str) -> str:
    """Over the last axis, where allowed."""
    return g.add("LogSoftmax", g.add("Where", allowed, logits, g.scalar(_FORBIDDEN)), axis=-1)


def _best(g: Graph, log_probs: str, rows: Rows, count: int) -> list[str]:
    """The likeliest and their places, at most as many as there are; of equals the first."""
    return g.add_several("TopK", 2, log_probs, g.add("Min", rows.width, g.ints(count)), axis=-1)


_CLASSES: dict[type, Callable[[Graph, Any], dict[str, Output]]] = {
    AlbertModel: _encoder,
    SentenceEncoder: _sentence_encoder,
    AlbertForPreTraining: _pretraining,
    AlbertForMaskedLM: _masked_lm,
    AlbertForSequenceClassification: _sequences,
    AlbertForMultipleChoice: _choices,
    AlbertForTokenClassification: _tokens,
    AlbertForQuestionAnswering: _spans,
    AlbertForBeamQuestionAnswering: _beams,
}
