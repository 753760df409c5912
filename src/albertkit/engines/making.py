"""Which engine a model gets on this machine."""

import torch

from albertkit.engines.engine import PRECISIONS, Engine, ModelEngine, Precision
from albertkit.errors import ConfigError
from albertkit.model.pretrained import PretrainedAlbert


def make_engine(model: PretrainedAlbert, precision: Precision = "auto") -> Engine:
    """Make a model's encoder ready to run fast.

    Args:
        model: Any of the public classes; its encoder is used, and its pooler where it has one.
        precision: "fp32"; "bf16"; "int8"; or "auto": bf16 where the processor multiplies it natively, else fp32. int8 is
            never chosen by itself.

    Returns:
        An engine; `notes` say what it fell back from.

    Raises:
        ConfigError: bad-precision.
    """
    if precision not in PRECISIONS:
        known = ", ".join(PRECISIONS)
        raise ConfigError("bad-precision", f"there is no precision `{precision}`", f"use one of {known}")
    encoder = model.encoder_model
    notes: tuple[str, ...] = ()
    if precision == "auto":
        precision = "bf16" if _native_bf16(encoder.device) else "fp32"
    if precision == "int8":
        precision, notes = "bf16", ("int8 is not there yet",)
    return ModelEngine(encoder, precision, notes)


def _native_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(False)
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
