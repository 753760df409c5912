"""Which engine a model gets on this machine."""

from pathlib import Path

from torch import nn

from albertkit.checkpoints.classes import load_model
from albertkit.engines.engine import PRECISIONS, Engine, ModelEngine, Precision
from albertkit.engines.processor import faster_bf16, has, native_bf16
from albertkit.errors import ConfigError
from albertkit.model.albert import AlbertModel
from albertkit.model.pretrained import PretrainedAlbert

_PARTS = {
    **dict.fromkeys(
        ("query", "key", "value", "dense", "ffn", "ffn_output", "embedding_hidden_mapping_in", "pooler"), nn.Linear
    ),
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
        ConfigError: bad-precision. CheckpointError, DataError: what loading a folder raises.
    """
    if precision not in PRECISIONS:
        known = ", ".join(PRECISIONS)
        raise ConfigError("bad-precision", f"there is no precision `{precision}`", f"use one of {known}")
    from albertkit.engines.onnx_model import OnnxModel, onnx_engine

    if isinstance(model, OnnxModel):
        return onnx_engine(model, precision)
    encoder = (model if isinstance(model, PretrainedAlbert) else load_model(model)).encoder_model
    notes: list[str] = []
    if precision == "int8":
        engine, reason = _packed(encoder, "int8", ())
        if engine:
            return engine
        notes.append(f"not int8: {reason}")
    wanted = faster_bf16 if precision == "auto" else native_bf16
    if precision == "fp32" or not wanted(encoder.device):
        if precision == "bf16":
            notes.append("not bf16: the processor does not multiply it natively, fp32 is faster")
        return _packed(encoder, "fp32", tuple(notes))[0] or ModelEngine(encoder, "fp32", tuple(notes))
    engine, reason = _packed(encoder, "bf16", tuple(notes))
    return engine or ModelEngine(encoder, "bf16", (*notes, f"the model itself, without packed weights: {reason}"))


def _packed(model: AlbertModel, precision: Precision, notes: tuple[str, ...]) -> tuple[Engine | None, str]:
    """The fastest engine with packed weights, or why there is none."""
    if reason := _unfit(model):
        return None, reason
    from albertkit.engines import fused, operators, products  # bring numba, 0.4 s

    not_fused = fused.unfit(model, precision) or fused.lacking(precision)
    faster_products = precision != "fp32" and has(f"amx_{precision}")  # oneDNN uses it
    if not not_fused and not faster_products:
        return fused.FusedEngine(model, precision, notes), ""
    if precision == "fp32":
        return None, not_fused
    reason = operators.lacking(precision) or operators.lacking("bf16")
    if not reason:
        return products.ProductEngine(model, precision, notes), ""
    return (None, reason) if not_fused else (fused.FusedEngine(model, precision, notes), "")


def _unfit(model: AlbertModel) -> str:
    """Why a model's weights cannot be packed; empty if they can."""
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
