"""Which engine a model gets on this machine."""

from pathlib import Path

from torch import nn

from albertkit.checkpoints.classes import load_model
from albertkit.engines.engine import PRECISIONS, Engine, ModelEngine, Precision
from albertkit.engines.processor import faster_bf16, native_bf16
from albertkit.errors import ConfigError
from albertkit.model.albert import AlbertModel
from albertkit.model.pretrained import PretrainedAlbert

_PARTS = {
    **dict.fromkeys(("query", "key", "value", "dense", "ffn", "ffn_output"), nn.Linear),
    **dict.fromkeys(("LayerNorm", "full_layer_layer_norm"), nn.LayerNorm),
}  # of a block, whose parameters are packed


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
    encoder = (model if isinstance(model, PretrainedAlbert) else load_model(model)).encoder_model
    if precision == "fp32":
        return ModelEngine(encoder, "fp32")
    notes = []
    if precision == "int8":
        reason = _unfit(encoder) or _lacking("int8") or _lacking("bf16")
        if not reason:
            return _packed(encoder, "int8")
        notes.append(f"not int8: {reason}")
    wanted = faster_bf16 if precision == "auto" else native_bf16
    if not wanted(encoder.device):
        if precision == "bf16":
            notes.append("not bf16: the processor does not multiply it natively, fp32 is faster")
        return ModelEngine(encoder, "fp32", tuple(notes))
    if reason := _unfit(encoder) or _lacking("bf16"):
        return ModelEngine(encoder, "bf16", (*notes, f"the model itself, without packed weights: {reason}"))
    return _packed(encoder, "bf16", tuple(notes))


def _lacking(precision: str) -> str:
    from albertkit.engines.operators import lacking  # brings numba, 0.4 s

    return lacking(precision)


def _packed(model: AlbertModel, precision: Precision, notes: tuple[str, ...] = ()) -> Engine:
    from albertkit.engines.packed import PackedEngine

    return PackedEngine(model, precision, notes)


def _unfit(model: AlbertModel) -> str:
    """Why a model's weights cannot be packed; empty if they can."""
    if model.device.type != "cpu":
        return f"the model is on {model.device.type}"
    if str(model.dtype) != "torch.float32":
        return f"the parameters are {str(model.dtype).removeprefix('torch.')}"
    for name, module in model.encoder.named_modules():
        wanted = _PARTS.get(name.rpartition(".")[2])
        if wanted and type(module) is not wanted:  # LoRA, a parametrization: the weight alone is not what it computes
            return f"`{name}` is a {type(module).__name__}"
        if module._forward_hooks or module._forward_pre_hooks:
            return f"`{name}` has hooks"
    return ""
