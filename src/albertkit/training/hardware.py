"""Abilities of a machine: which precision to use, and the peak a utilisation is measured against."""

import importlib.util
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from albertkit.engines.processor import faster_bf16
from albertkit.errors import ConfigError, MissingExtraError
from albertkit.model.attention import varlen_fault
from albertkit.model.pretrained import PretrainedAlbert

PRECISIONS = ("auto", "fp32", "bf16")

# Dense bf16 in TFLOP/s. The vendors' data sheets print most of them "with sparsity", which is twice as much. NVIDIA: HGX B200
# and B300, GB200 and GB300 NVL72, H200, H100 (SXM, PCIe, NVL), GH200, H20, A100, A30, A10, L40S, L40, L4, RTX 6000 Ada; the white
# papers of Ada and Blackwell for RTX (sums in fp32). A10G: AWS G5. AMD: MI300X, MI325X. The first in a device's name wins.
_BF16_PEAKS = {
    "GB300": 2500, "GB200": 2500, "B300": 2250, "B200": 2250, "GH200": 989, "H200 NVL": 835, "H200": 989, "H100 PCIe": 756,
    "H100 NVL": 835, "H100": 989, "H800": 989, "H20": 148, "A100": 312, "A800": 312, "A30": 165, "A10G": 70, "A10": 125,
    "L40S": 362, "L40": 181, "L4": 121, "RTX 6000 Ada": 364, "RTX 5090": 209, "RTX 4090": 165, "MI325X": 1307, "MI300X": 1307,
}  # fmt: skip


def choose_precision(precision: str, device: torch.device) -> torch.dtype:
    """Return the type to compute in, "auto" being bf16 where a device multiplies it faster; parameters always stay in fp32."""
    if precision not in PRECISIONS:
        raise ConfigError("unknown-name", f"there is no precision `{precision}`", f"use one of {', '.join(PRECISIONS)}")
    if precision == "auto":
        return torch.bfloat16 if faster_bf16(device) else torch.float32
    return torch.bfloat16 if precision == "bf16" else torch.float32


def choose_compiled(wanted: str, device: torch.device) -> bool:
    """Return whether to fuse what a layer does between its matrix products: "on", "off", or "auto" for on CUDA, where those
    operations wait for memory and their launches for the host."""
    missing = _lacking_compiler(device)
    if wanted == "on" and missing:
        raise MissingExtraError(
            "not-installed", f"torch.compile needs {missing} for {device.type}", "use --compile off"
        )
    return wanted == "on" or (wanted == "auto" and device.type == "cuda" and not missing)


def _lacking_compiler(device: torch.device) -> str:
    """Return what torch.compile lacks; empty if nothing. Triton, too, compiles its launchers with a C compiler."""
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "triton"
    names = ("CC", "cc", "gcc", "clang") if device.type == "cuda" else ("CXX", "g++", "clang++")
    found = os.environ.get(names[0]) or any(map(shutil.which, names[1:]))
    return "" if found else "a C compiler" if device.type == "cuda" else "a C++ compiler"


def describe(model: PretrainedAlbert, device: torch.device) -> str:
    """Return a line about the type a model computes in, and how."""
    dtype = str(model.compute_dtype).removeprefix("torch.")
    line = f"precision: {dtype} on {device}"
    if device.type == "cuda":
        fault = varlen_fault(device)
        if model.config.attention_probs_dropout_prob:
            fault = fault or "it knows no dropout"
        if dtype == "float32":
            fault = fault or "it knows half precision only"
        attention = f"padded, torch's packed attention cannot be used: {fault}" if fault else "packed"
        line += f" ({torch.cuda.get_device_name(device)}); attention: {attention}"
    return f"{line}; layers compiled" if model.compiled else line


def peak_flops(device: torch.device) -> float | None:
    """Return the device's dense bf16 peak in FLOP/s if its data sheet is known; else None (CPUs: clocks vary too much)."""
    return bf16_peak(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def bf16_peak(name: str) -> float | None:
    """Return the dense bf16 FLOP/s in the data sheet of a GPU, by the name that its driver reports; None for an unknown one."""
    known = (1e12 * tflops for part, tflops in _BF16_PEAKS.items() if re.search(rf"\b{part}\b", name))
    return next(known, None)


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """Make a GPU's results repeatable within this context, as a CPU's are anyway.

    Attention's gradient and sums by index otherwise add in the order in which threads come. Memory that is written anyway
    need not be filled first. cuBLAS must know a workspace before its first product in this process:
    `albertkit.model` does that when it is imported. Where it came too late, torch would refuse every product: a warning, and
    results that are not to the bit.
    """
    if device.type != "cuda":
        yield
        return
    memory: Any = torch.utils.deterministic  # a module with a property, which type checkers do not know
    before = torch.are_deterministic_algorithms_enabled(), memory.fill_uninitialized_memory
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False
    try:
        if not _multiplies(device):
            torch.use_deterministic_algorithms(before[0], warn_only=warn_only)
            warnings.warn(
                "this training will not repeat itself to the bit: cuBLAS was used before albertkit was imported; "
                "set CUBLAS_WORKSPACE_CONFIG=:4096:8 before Python starts",
                stacklevel=3,
            )
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=warn_only)
        memory.fill_uninitialized_memory = before[1]


def _multiplies(device: torch.device) -> bool:
    """Return whether torch does not refuse a product as one that might not repeat itself."""
    try:
        one = torch.ones(8, 8, device=device)
        torch.mm(one, one)
    except RuntimeError as error:
        if "CUBLAS_WORKSPACE_CONFIG" not in str(error):
            raise
        return False
    return True
