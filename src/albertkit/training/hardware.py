"""What a machine can do: which precision to use, and the peak a utilisation is measured against."""

import torch

from albertkit.engines.processor import native_bf16
from albertkit.errors import ConfigError

PRECISIONS = ("auto", "fp32", "bf16")

# Dense bf16 FLOP/s without sparsity, from the vendors' data sheets. Longer names first: the first that occurs wins.
_BF16_PEAKS = (
    ("GB200", 2.5e15), ("B200", 2.25e15), ("H200", 989e12), ("H100 PCIe", 756e12), ("H100 NVL", 835e12), ("H100", 989e12),
    ("A100", 312e12), ("L40S", 362e12), ("L4", 121e12), ("A10G", 70e12), ("A10", 125e12), ("RTX 4090", 165e12),
)  # fmt: skip


def choose_precision(precision: str, device: torch.device) -> torch.dtype:
    """The type to compute in; parameters and optimizer state always stay in fp32.

    Args:
        precision: "fp32", "bf16", or "auto": bf16 where the hardware multiplies it natively, else fp32.
        device: Where it is computed.

    Raises:
        ConfigError: bad-precision.
    """
    if precision not in PRECISIONS:
        raise ConfigError(
            "bad-precision", f"there is no precision `{precision}`", f"use one of {', '.join(PRECISIONS)}"
        )
    if precision == "auto":
        return torch.bfloat16 if native_bf16(device) else torch.float32
    return torch.bfloat16 if precision == "bf16" else torch.float32


def peak_flops(device: torch.device) -> float | None:
    """Dense bf16 peak of the device in FLOP/s if its data sheet is known; None otherwise (CPUs: clocks vary too much)."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in _BF16_PEAKS if part in name), None)
