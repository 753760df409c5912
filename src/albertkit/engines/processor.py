"""What the processor multiplies by itself."""

import torch


def native_bf16(device: torch.device) -> bool:
    """Whether bfloat16 is multiplied by the hardware: on a CPU AVX512-BF16 or AMX. Emulated it is slower than fp32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(False)
    return device.type == "cpu" and has("avx512_bf16", "amx_bf16")


def has(*names: str) -> bool:
    """Whether the CPU has one of these instruction sets, by torch's names."""
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(capabilities.get(name) for name in names)
