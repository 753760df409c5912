"""Base class of engines, and the engine that works everywhere: the model itself."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from math import prod
from pathlib import Path
from subprocess import Popen
from typing import get_args

import numpy as np
import torch
from torch import Tensor, nn

from albertkit.batches.packed import PackedBatch
from albertkit.command import Precision
from albertkit.errors import ConfigError
from albertkit.jit import compiled
from albertkit.model.layers import layer_problem
from albertkit.model.padded import PackedOutput
from albertkit.model.pretrained import AlbertModel, PretrainedAlbert

# Instruction sets of the fused engine's loops, by precision.
FUSED_INSTRUCTIONS = {
    "fp32": ("avx512_dq",),
    "bf16": ("avx512_bf16", "avx512_dq"),
    "int8": ("avx512_vnni", "avx512_dq"),
}


def has_native_bf16(device: torch.device) -> bool:
    """Return whether bfloat16 is multiplied by the hardware: on a CPU AVX512-BF16 or AMX. Emulated it is slower than fp32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(False)
    return device.type == "cpu" and has_instructions("avx512_bf16", "amx_bf16")


def is_bf16_faster(device: torch.device) -> bool:
    """Return whether it is also multiplied faster than fp32, which Intel's AVX512-BF16 is not.

    Products in GFLOP/s a core, bf16 and fp32: AMD Zen 4 211 and 96, Zen 5 454 and 228; Intel
    Emerald Rapids whose AMX the hypervisor hides 79 and 155.
    """
    return has_native_bf16(device) and (
        device.type != "cpu" or has_instructions("amx_bf16") or not is_intel()
    )


def has_instructions(*names: str) -> bool:
    """Return whether the CPU has one of these instruction sets, by torch's names."""
    if hasattr(torch.cpu, "get_capabilities"):
        capabilities = torch.cpu.get_capabilities()
    else:  # torch 2.9: numba's compiler says the same
        from llvmlite.binding import get_host_cpu_features

        capabilities = {
            name.replace("-", "_").replace("avx512", "avx512_"): has_it
            for name, has_it in get_host_cpu_features().items()
        }
    return any(capabilities.get(name) for name in names)


@cache
def is_intel(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    try:
        return "GenuineIntel" in cpuinfo.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):  # not Linux
        return False


PRECISIONS: tuple[Precision, ...] = get_args(Precision)

_LINEAR = (
    "query",
    "key",
    "value",
    "dense",
    "ffn",
    "ffn_output",
    "embedding_hidden_mapping_in",
    "pooler",
)
_PARTS = {
    **dict.fromkeys(_LINEAR, nn.Linear),
    **dict.fromkeys(("LayerNorm", "full_layer_layer_norm"), nn.LayerNorm),
    **dict.fromkeys(
        ("word_embeddings", "position_embeddings", "token_type_embeddings"), nn.Embedding
    ),
    "dropout": nn.Dropout,
}  # of an encoder, whose parameters are packed


def check_precision(precision: str) -> None:
    """Raise an error for an unknown precision."""
    if precision not in PRECISIONS:
        names = ", ".join(PRECISIONS)
        raise ConfigError(
            "unknown-name", f"there is no precision `{precision}`", f"use one of {names}"
        )


class Engine(ABC):
    """An encoder made ready once, for inference.

    Attributes:
        precision: "fp32", "bf16" or "int8": the numbers it computes in.
        notes: Fallbacks and their reasons; empty when the requested precision is used.
        follows_weights: Look before each batch whether the model's weights have changed, and then
            pack them again. A process in which nobody else has the model saves a millisecond a
            batch without.
        compiler: A process that compiles the loops; while it runs, the model itself computes.
    """

    def __init__(self, precision: Precision, notes: tuple[str, ...] = ()) -> None:
        self.precision, self.notes = precision, notes
        self.follows_weights = True
        self.compiler: Popen | None = None

    def lacks_loops(self) -> bool:
        """Return whether the first batch would have to wait for a compiler, 10 to 30 s."""
        return False

    @abstractmethod
    def encode(self, batch: PackedBatch, positions: Tensor | None = None) -> PackedOutput:
        """Run a packed batch, without gradient and dropout.

        Args:
            batch: T tokens of N sequences, on the model's device.
            positions: int64 [Q] into the T tokens, when only these states are wanted.

        Returns:
            hidden [T, H] or [Q, H], and pooled [N, H] or None, as `AlbertModel.encode`.
        """


@contextmanager
def evaluation_mode(model: PretrainedAlbert) -> Iterator[None]:
    """Switch dropout off within the block."""
    training = model.training
    if training:  # a model that serves is not touched: others compute with it at the same time
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()


class ModelEngine(Engine):
    """The model itself in one precision. Its weights are cast once a batch, and are always the model's present ones."""

    def __init__(
        self, model: AlbertModel, precision: Precision, notes: tuple[str, ...] = ()
    ) -> None:
        super().__init__(precision, notes)
        self.model = model
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32

    @torch.inference_mode()
    def encode(self, batch: PackedBatch, positions: Tensor | None = None) -> PackedOutput:
        """See `Engine.encode`."""
        model, dtype = self.model, self.model.compute_dtype
        model.compute_dtype = self.dtype
        try:
            with evaluation_mode(model):
                return model.encode(batch, positions=positions)
        finally:
            model.compute_dtype = dtype


def all_modules_by_name(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return all modules with their names, as `named_modules` does, which takes ten times as long."""
    modules = [("", model)]
    for name, module in modules:  # grows meanwhile
        prefix = f"{name}." if name else ""
        modules += [
            (prefix + child, part) for child, part in module._modules.items() if part is not None
        ]
    return modules


def parameter_identities(model: nn.Module) -> list[tuple]:
    """Return what decides a model's outputs but the numbers: its modules, the norms' epsilons, where which parameters lie."""
    identities: list[tuple] = []
    for _, module in all_modules_by_name(model):
        identities.append((id(module), getattr(module, "eps", None)))
        identities += [
            (id(p), p.data_ptr(), p.dtype, p.shape)
            for p in module._parameters.values()
            if p is not None
        ]
    return identities


def reason_not_to_pack(model: AlbertModel) -> str:
    """Return the reason why a model's weights cannot be packed, or an empty string."""
    if model.device.type != "cpu":
        return f"the model is on {model.device.type}"
    for name, module in all_modules_by_name(model):
        for parameter in module._parameters.values():
            if parameter is not None and parameter.dtype != torch.float32:
                return f"the parameters are {str(parameter.dtype).removeprefix('torch.')}"
            if parameter is not None and not parameter.is_contiguous():
                return f"the numbers of `{name}` do not lie one behind the other"
        expected_class = _PARTS.get(name.rpartition(".")[2])
        # LoRA, a parametrization: the weight alone is not what it computes
        if expected_class and (reason := layer_problem(module, expected_class)):
            return f"`{name}` {reason}"
        if module._forward_hooks or module._forward_pre_hooks:
            return f"`{name}` has hooks"
    return ""


_LANES = 32  # sums side by side: two vectors of AVX-512 for each kind of sum


class PackedWeights:
    """The parameters of a model that were packed, and sums over all their numbers.

    Args:
        model: With contiguous fp32 parameters on the CPU.
        shared: Arrays over parameters that an engine reads in place; of these only the address
            counts.
    """

    def __init__(self, model: nn.Module, shared: tuple[np.ndarray, ...]) -> None:
        addresses = {array.ctypes.data for array in shared}
        self._model = model
        # Held, so that no new one gets the identity of an old one
        self._parameters = list(model.parameters())
        # All numbers are summed: torch's version counters miss writes through `.data`, NumPy and
        # DLPack, a sample misses a single number, and `torch.hash_tensor` (7 ms) is an exclusive
        # or, which misses changed signs.
        self._bits_of_parameter = [
            _bits_of_parameter(parameter)
            for parameter in self._parameters
            if parameter.data_ptr() not in addresses
        ]
        self._layout, self._sums = parameter_identities(model), self._current_sums()

    def are_current(self) -> bool:
        """Return whether no parameter was replaced, and no number has changed."""
        return (
            self._layout == parameter_identities(self._model) and self._sums == self._current_sums()
        )

    def _current_sums(self) -> list[int]:
        return [checksum(words) for words in self._bits_of_parameter]


def _bits_of_parameter(parameter: nn.Parameter) -> np.ndarray:
    """Return the numbers' bits, uint32, in memory that the parameter keeps while its address is the same."""
    flat = torch.as_strided(parameter.detach(), (prod(parameter.shape),), (1,))
    return flat.numpy().view(np.uint32)


@compiled
def checksum(words: np.ndarray) -> np.uint64:
    """Return a sum over uint32 words that changes with any word, and with the order of words (as Fletcher's).

    1.2 ms for the 31 MB of base's layer on a core of a Zen 5.
    """
    sums = np.zeros(_LANES, np.uint64)
    sums_of_sums = np.zeros(_LANES, np.uint64)
    aligned = len(words) // _LANES * _LANES
    for start in range(0, aligned, _LANES):
        for lane in range(_LANES):
            sums[lane] += np.uint64(words[start + lane])
            sums_of_sums[lane] += sums[lane]
    for lane in range(len(words) - aligned):
        sums[lane] += np.uint64(words[aligned + lane])
        sums_of_sums[lane] += sums[lane]
    total = np.uint64(len(words))
    for lane in range(_LANES):
        total = (total ^ sums[lane]) * np.uint64(0x9E3779B97F4A7C15)
        total = (total ^ (total >> np.uint64(29)) ^ sums_of_sums[lane]) * np.uint64(
            0xBF58476D1CE4E5B9
        )
    return total ^ (total >> np.uint64(32))
