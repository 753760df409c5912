"""Which engine a model gets on this machine, and its heads over that engine."""

import copy
from functools import partial
from pathlib import Path
from typing import TypeVar

from torch import Tensor, nn

from albertkit.conversion.classes import load_model
from albertkit.data.packing import PackedBatch
from albertkit.engines.cuda_graphs import GraphEngine
from albertkit.engines.engine import Engine, ModelEngine, Precision, check_precision
from albertkit.engines.onnx_model import OnnxEngine, OnnxModel, onnx_engine
from albertkit.engines.processor import faster_bf16, native_bf16
from albertkit.model.outputs import PackedOutput
from albertkit.model.padded import Trace
from albertkit.model.pretrained import AlbertModel, PretrainedAlbert

Model = TypeVar("Model", bound=PretrainedAlbert)

_LINEAR = ("query", "key", "value", "dense", "ffn", "ffn_output", "embedding_hidden_mapping_in", "pooler")
_PARTS = {
    **dict.fromkeys(_LINEAR, nn.Linear),
    **dict.fromkeys(("LayerNorm", "full_layer_layer_norm"), nn.LayerNorm),
    **dict.fromkeys(("word_embeddings", "position_embeddings", "token_type_embeddings"), nn.Embedding),
}  # of an encoder, whose parameters are packed


def load_engine(model: PretrainedAlbert | str | Path, precision: Precision = "auto") -> Engine:
    """Make a model's encoder ready to run fast.

    Args:
        model: Any of the public classes, or a checkpoint folder; its encoder is used, and its pooler where it has one.
        precision: "fp32"; "bf16"; "int8", which needs no calibration: every row has its own scale; or "auto": bf16 where
            the processor multiplies it faster than fp32. int8 is never chosen by itself.

    Returns:
        An engine; `precision` says what it computes in and `notes` what it fell back from.

    Raises:
        ConfigError: unknown-name. CheckpointError, DataError: what loading a folder raises.
    """
    check_precision(precision)
    if isinstance(model, OnnxModel):
        return onnx_engine(model, precision)
    encoder = (model if isinstance(model, PretrainedAlbert) else load_model(model)).encoder_model
    notes: tuple[str, ...] = ()
    if precision == "int8":
        engine, reason = _fused(encoder, "int8")
        if engine:
            return engine
        notes = (f"not int8: {reason}",)
    wanted = faster_bf16 if precision == "auto" else native_bf16
    kind: Precision = "bf16" if precision != "fp32" and wanted(encoder.device) else "fp32"
    if precision == "bf16" and kind == "fp32":
        notes += ("not bf16: the processor does not multiply it natively, fp32 is faster",)
    if encoder.device.type == "cuda":
        return GraphEngine(encoder, kind, notes)
    engine, reason = _fused(encoder, kind, notes)
    if engine:
        return engine
    if kind == "bf16":
        notes += (f"the model itself, without packed weights: {reason}",)
    return ModelEngine(encoder, kind, notes)


def on_engine(model: Model, engine: Engine) -> Model:
    """Return the same heads over the engine's encoder, for `packed_logits` and `encode`; the model itself is left as it is.

    Args:
        model: Any class, in evaluation mode.
        engine: The engine of its encoder.
    """
    if isinstance(engine, OnnxEngine):
        return model  # it runs as a whole
    albert = copy.copy(model.encoder_model)
    albert.encode = partial(_encode, model.encoder_model, engine)  # type: ignore[method-assign]
    if isinstance(model, AlbertModel):
        return albert  # type: ignore[return-value]
    attached = copy.copy(model)
    attached._modules = {**model._modules, "albert": albert}
    return attached


def _encode(
    albert: AlbertModel, engine: Engine, batch: PackedBatch, trace: Trace | None = None, positions: Tensor | None = None
) -> PackedOutput:
    """Encode like `AlbertModel.encode`; states of every layer are the model's own."""
    return engine.encode(batch, positions) if trace is None else albert.encode(batch, trace, positions)


def _fused(model: AlbertModel, precision: Precision, notes: tuple[str, ...] = ()) -> tuple[Engine | None, str]:
    """Return the engine with packed weights, or why there is none."""
    if reason := _unfit(model):
        return None, reason
    from albertkit.engines import fused  # brings numba, 0.4 s

    reason = fused.unfit(model, precision) or fused.lacking(precision)
    return (None, reason) if reason else (fused.FusedEngine(model, precision, notes), "")


def _unfit(model: AlbertModel) -> str:
    """Say why a model's weights cannot be packed; empty if they can."""
    if model.device.type != "cpu":
        return f"the model is on {model.device.type}"
    if str(model.dtype) != "torch.float32":
        return f"the parameters are {str(model.dtype).removeprefix('torch.')}"
    for name, module in model.named_modules():
        wanted = _PARTS.get(name.rpartition(".")[2])
        if wanted and type(module) is not wanted:  # LoRA, a parametrization: the weight alone is not what it computes
            return f"`{name}` is a {type(module).__name__}"
        if module._forward_hooks or module._forward_pre_hooks:
            return f"`{name}` has hooks"
    return ""
