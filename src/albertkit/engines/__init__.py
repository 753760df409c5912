"""Engines: one set of weights made ready once, and run as fast as the machine can."""

import copy
from functools import partial
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from albertkit.batches.packed import PackedBatch
from albertkit.conversion.classes import load_model
from albertkit.engines.cuda_graphs import GraphEngine
from albertkit.engines.engine import (
    Engine,
    ModelEngine,
    Precision,
    check_precision,
    has_native_bf16,
    is_bf16_faster,
    reason_not_to_pack,
)
from albertkit.engines.onnx import OnnxEngine, OnnxModel
from albertkit.model.padded import PackedOutput, Trace
from albertkit.model.pretrained import AlbertModel, PretrainedAlbert, without_torch_threads

__all__ = ["Engine", "load_engine", "model_on_engine"]
Model = TypeVar("Model", bound=PretrainedAlbert)


def load_engine(model: PretrainedAlbert | str | Path, precision: Precision = "auto") -> Engine:
    """Make a model's encoder ready to run fast.

    Args:
        model: Any of the public classes, or a checkpoint folder; its encoder is used, and its
            pooler where it has one.
        precision: "fp32"; "bf16"; "int8", which needs no calibration: every row has its own scale;
            or "auto": bf16 where the processor multiplies it faster than fp32. int8 is never chosen
            by itself.

    Returns:
        An engine; `precision` is the one it computes in, `notes` are its fallbacks.

    Raises:
        ConfigError: unknown-name. CheckpointError, DataError: from loading a folder.
    """
    check_precision(precision)
    if isinstance(model, OnnxModel):
        return OnnxEngine(model, precision)
    encoder = (model if isinstance(model, PretrainedAlbert) else load_model(model)).encoder_model
    notes: tuple[str, ...] = ()
    if precision == "int8":
        engine, reason = _make_fused_engine(encoder, "int8")
        if engine:
            return engine
        notes = (f"not int8: {reason}",)
    supports_bf16 = is_bf16_faster if precision == "auto" else has_native_bf16
    kind: Precision = "bf16" if precision != "fp32" and supports_bf16(encoder.device) else "fp32"
    if precision == "bf16" and kind == "fp32":
        notes += ("not bf16: the processor does not multiply it natively, fp32 is faster",)
    if encoder.device.type == "cuda":
        return GraphEngine(encoder, kind, notes)
    engine, reason = _make_fused_engine(encoder, kind, notes)
    if engine:
        return engine
    if kind == "bf16":
        notes += (f"the model itself, without packed weights: {reason}",)
    return ModelEngine(encoder, kind, notes)


def model_on_engine(model: Model, engine: Engine) -> Model:
    """Return the same heads over the engine's encoder, for `packed_logits` and `encode`; the model itself is left as it is.

    Args:
        model: Any class, in evaluation mode.
        engine: The engine of its encoder.
    """
    if isinstance(engine, OnnxEngine):
        return model  # it runs as a whole
    albert = copy.copy(model.encoder_model)
    albert.encode = partial(_encode_on_engine, model.encoder_model, engine)  # type: ignore[method-assign]
    if isinstance(model, AlbertModel):
        return albert  # type: ignore[return-value]
    attached = copy.copy(model)
    attached._modules = {**model._modules, "albert": albert}
    return attached


def _encode_on_engine(
    albert: AlbertModel,
    engine: Engine,
    batch: PackedBatch,
    trace: Trace | None = None,
    positions: Tensor | None = None,
) -> PackedOutput:
    """Encode like `AlbertModel.encode`; states of every layer are the model's own."""
    return (
        engine.encode(batch, positions) if trace is None else albert.encode(batch, trace, positions)
    )


def _make_fused_engine(
    model: AlbertModel, precision: Precision, notes: tuple[str, ...] = ()
) -> tuple[Engine | None, str]:
    """Return the engine with packed weights, or why there is none."""
    if reason := reason_not_to_pack(model):
        return None, reason
    from albertkit.engines.cpu import engine as fused  # brings numba, 0.4 s

    with without_torch_threads():
        reason = fused.model_problem(model, precision) or fused.precision_problem(precision)
    return (None, reason) if reason else (fused.FusedEngine(model, precision, notes), "")
