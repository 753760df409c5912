"""Find out what the processor multiplies in hardware."""

from functools import cache
from pathlib import Path

import torch

# What the fused engine's loops are written in, by precision.
FUSED_INSTRUCTIONS = {
    "fp32": ("avx512_dq",),
    "bf16": ("avx512_bf16", "avx512_dq"),
    "int8": ("avx512_vnni", "avx512_dq"),
}


def native_bf16(device: torch.device) -> bool:
    """Return whether bfloat16 is multiplied by the hardware: on a CPU AVX512-BF16 or AMX. Emulated it is slower than fp32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(False)
    return device.type == "cpu" and has("avx512_bf16", "amx_bf16")


def faster_bf16(device: torch.device) -> bool:
    """Return whether it is also multiplied faster than fp32, which Intel's AVX512-BF16 is not.

    Products in GFLOP/s a core, bf16 and fp32: AMD Zen 4 211 and 96, Zen 5 454 and 228; Intel Emerald Rapids whose AMX the
    hypervisor hides 79 and 155.
    """
    return native_bf16(device) and (device.type != "cpu" or has("amx_bf16") or not _intel())


def has(*names: str) -> bool:
    """Return whether the CPU has one of these instruction sets, by torch's names."""
    known = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else _llvm_knows()
    return any(known.get(name) for name in names)


@cache
def _llvm_knows() -> dict[str, bool]:
    """Return the same from numba's compiler, for torch 2.9, which tells of few."""
    from llvmlite.binding import get_host_cpu_features

    found = get_host_cpu_features()
    return {name.replace("-", "_").replace("avx512", "avx512_"): on for name, on in found.items()}


@cache
def _intel(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    try:
        return "GenuineIntel" in cpuinfo.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):  # not Linux
        return False
