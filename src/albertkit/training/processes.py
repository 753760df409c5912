"""The processes of a training: rendezvous, collectives, rows that they compute together, and what their devices can do."""

import atexit
import importlib.util
import io
import os
import re
import shutil
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore

from albertkit.engines.engine import is_bf16_faster
from albertkit.errors import ConfigError, MachineError, MissingExtraError
from albertkit.job import Job
from albertkit.model.attention import varlen_attention_problem
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.training.launch import name_this_start, warn_of_shared_store, world_size

# How long processes wait for one another: the first writes checkpoints and cards while the others
# wait, and at the start each plans its own examples. A process that has died is noticed at once;
# this is for one that hangs. A cable that is out tells TCP nothing: two hosts were silent for 7
# minutes and then went on in the same processes.
TIMEOUT = timedelta(minutes=30)

Value = TypeVar("Value")
PART_ITEMS = 1024  # whose rows are written at once


@dataclass(frozen=True)
class World:
    """This process among all.

    Attributes:
        rank: Number of this process, from 0.
        size: Number of processes.
        device: Where this process computes.
    """

    rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """True for the one process that writes files and speaks."""
        return self.rank == 0

    def sum_gradients(self, parameters: Iterable[Tensor], flag: bool) -> Tensor | float:
        """Replace every gradient by its sum over all processes: one reduction, for which the host does not wait.

        A process may lack a gradient that others have (it had no example that needs the parameter).

        Returns:
            In how many processes the flag is set; with several, fp32 [1 + P]: that, and how many
            had a gradient of each parameter. Where none had one, the gradient is now zero and
            should be none.
        """
        if self.size == 1:
            return float(flag)
        parameters = list(parameters)
        # One flat buffer, no DistributedDataParallel: the gradient of a shared layer is complete
        # only at the end of the backward pass, so there is nothing to overlap, and they are 12
        # million numbers, not 110. The flags keep a parameter without any gradient from being
        # decayed.
        has_gradient = self.to_device(
            [flag, *(p.grad is not None for p in parameters)], torch.float32
        )
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = self.sum(torch.cat([*(g.detach().reshape(-1) for g in gradients), has_gradient]))
        *totals, holders = flat.split([*(p.numel() for p in parameters), len(has_gradient)])
        for parameter, gradient, total in zip(parameters, gradients, totals, strict=True):
            parameter.grad = gradient.detach().copy_(total.view_as(gradient))
        return holders

    def sum(self, values: Tensor) -> Tensor:
        """Sum a tensor over all processes, element by element, in place."""
        if self.size > 1:
            with _collective_errors():
                dist.all_reduce(values)
        return values

    def totals(self, numbers: Sequence[float]) -> Sequence[Tensor | float]:
        """Sum numbers of the host over all processes: plain numbers if this is the only one, else 0-d on the device.

        The host does not wait for the device; `to_host` does.
        """
        return (
            numbers if self.size == 1 else self.sum(self.to_device(numbers, torch.float64)).unbind()
        )

    def to_host(self, *values: Tensor | float) -> list[float]:
        """Return numbers of the device, of any shape, and of the host, as one list on the host: one transfer."""
        tensors = [value.double().flatten() for value in values if isinstance(value, Tensor)]
        transferred = iter(torch.cat(tensors).tolist() if tensors else ())
        numbers: list[float] = []
        for value in values:
            numbers += islice(transferred, value.numel()) if isinstance(value, Tensor) else [value]
        return numbers

    def to_device(self, numbers: Sequence[float], dtype: torch.dtype) -> Tensor:
        """Put numbers of the host on the device; neither waits for the other."""
        values = torch.tensor(numbers, dtype=dtype)
        pinned = values.pin_memory() if self.device.type == "cuda" else values
        return pinned.to(self.device, non_blocking=True)

    def gather(self, value: Value) -> list[Value]:
        """Return what each process has, by rank, in all of them; any value that can be pickled."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with _collective_errors():
            dist.all_gather_object(values, value)
        return values

    def first(self, value: Value) -> Value:
        """Return what the first process has, in all of them: decisions that must agree are its own."""
        return self.gather(value)[0]

    def barrier(self) -> None:
        """Wait until all processes are here."""
        if self.size > 1:
            with _collective_errors():
                dist.barrier()


@contextmanager
def _collective_errors() -> Iterator[None]:
    """State what a collective says of a process that is gone (gloo, NCCL: RuntimeError) as one of our errors."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        first_line = str(error).strip().partition("\n")[0].partition(" This is typically")[0]
        fact = f"another process of this training has ended, or does not answer ({first_line})"
        causes = (
            "look for its last lines, the kernel's out-of-memory killer, a network that is down"
        )
        hint = f"{causes}; --resume goes on from the newest checkpoint"
        raise MachineError("worker-died", fact, hint) from error


def join_world(device: str = "auto") -> World:
    """Join the other processes if `torchrun` started us, until this process ends; for names of devices see `find_device`."""
    size = world_size()
    rank = int(os.environ.get("RANK", "0"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    chosen = find_device(device, local_rank)
    on_gpu = chosen.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(chosen)
    if size > 1 and not dist.is_initialized():
        warn_of_shared_store()
        with _collective_errors():
            store = open_store_of_this_start(rank, size, TIMEOUT)
            dist.init_process_group(
                "nccl" if on_gpu else "gloo",
                timeout=TIMEOUT,
                device_id=chosen if on_gpu else None,
                store=store,
                rank=rank if store else -1,
                world_size=size if store else -1,
            )
        atexit.register(leave_world)
    return World(rank, size, chosen)


def leave_world() -> None:
    """Leave the other processes; this happens by itself when a process ends."""
    if dist.is_initialized():
        dist.destroy_process_group()


def find_device(device: str = "auto", local_rank: int = 0) -> torch.device:
    """Return the device of a name: "auto" (a GPU if there is one), "cpu", "cuda" (this process's own) or "cuda:N"."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    name = f"cuda:{local_rank}" if device == "cuda" else device
    gpus = torch.cuda.device_count()
    names = ["cpu", *(f"cuda:{n}" for n in range(gpus))]
    if name not in names:
        devices = f"{gpus} CUDA devices" if gpus else "no CUDA device that torch can use"
        raise ConfigError(
            "no-device", f"device `{name}`: this machine has {devices}", f"use {' or '.join(names)}"
        )
    return torch.device(name)


_PAUSE = 0.05  # seconds between two looks at who has come


def open_store_of_this_start(rank: int, size: int, timeout: timedelta) -> Store | None:
    """Return the store of this start; None where torchrun keeps none, and torch makes one itself."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        wait_for_workers=False,
        timeout=timeout,
    )
    name = agree_on_start_name(store, rank, size, timeout)
    name_this_start(name)
    return PrefixStore(f"albertkit/{name}", store)


def agree_on_start_name(store: Store, rank: int, size: int, timeout: timedelta) -> str:
    """Agree on a name for this start with the other processes, whatever earlier starts left in the store they share."""
    # The agent of torch 2.13 keeps one store for all starts: without a name, new processes read the
    # addresses of dead ones, and the first attempt after a restart often died in connectFullMesh.
    # The count of restarts is no name, each machine has its own.
    own_name = uuid.uuid4().hex
    if rank:
        store.set(f"albertkit/hello/{rank}", own_name)
        answer = f"albertkit/welcome/{own_name}"
        store.wait([answer], timeout)
        name = store.get(answer).decode()
        store.add(f"albertkit/met/{name}", 1)
        return name
    answered: dict[int, str] = {}
    deadline = time.monotonic() + timeout.total_seconds()
    while store.add(f"albertkit/met/{own_name}", 0) < size - 1:
        for peer in range(1, size):
            if store.check([f"albertkit/hello/{peer}"]):
                hello = store.get(f"albertkit/hello/{peer}").decode()
                if answered.get(peer) != hello:  # not yet answered, or it was a dead process's
                    answered[peer] = hello
                    store.set(f"albertkit/welcome/{hello}", own_name)
        if time.monotonic() > deadline:
            missing = size - 1 - store.add(f"albertkit/met/{own_name}", 0)
            raise RuntimeError(f"{missing} of {size} processes did not come within {timeout}")
        time.sleep(_PAUSE)
    return own_name


# Dense bf16 in TFLOP/s. The vendors' data sheets print most of them "with sparsity", which is twice
# as much. NVIDIA: HGX B200 and B300, GB200 and GB300 NVL72, H200, H100 (SXM, PCIe, NVL), GH200,
# H20, A100, A30, A10, L40S, L40, L4, RTX 6000 Ada; the white papers of Ada and Blackwell for RTX
# (sums in fp32). A10G: AWS G5. AMD: MI300X, MI325X. The first in a device's name wins.
_BF16_PEAKS = {
    "GB300": 2500, "GB200": 2500, "B300": 2250, "B200": 2250, "GH200": 989, "H200 NVL": 835, "H200": 989, "H100 PCIe": 756,
    "H100 NVL": 835, "H100": 989, "H800": 989, "H20": 148, "A100": 312, "A800": 312, "A30": 165, "A10G": 70, "A10": 125,
    "L40S": 362, "L40": 181, "L4": 121, "RTX 6000 Ada": 364, "RTX 5090": 209, "RTX 4090": 165, "MI325X": 1307, "MI300X": 1307,
}  # fmt: skip


def choose_precision(precision: str, device: torch.device) -> torch.dtype:
    """Return the type to compute in, "auto" being bf16 where a device multiplies it faster; parameters always stay in fp32."""
    if precision == "auto":
        return torch.bfloat16 if is_bf16_faster(device) else torch.float32
    return torch.bfloat16 if precision == "bf16" else torch.float32


def should_compile(compile_option: Literal["auto", "on", "off"], device: torch.device) -> bool:
    """Return whether to fuse what a layer does between its matrix products: "on", "off", or "auto" for on CUDA, where those
    operations wait for memory and their launches for the host."""
    names = ("CC", "cc", "gcc", "clang") if device.type == "cuda" else ("CXX", "g++", "clang++")
    missing = ""
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        missing = "triton"
    elif not (os.environ.get(names[0]) or any(map(shutil.which, names[1:]))):
        # Triton, too, compiles its launchers with a C compiler.
        missing = "a C compiler" if device.type == "cuda" else "a C++ compiler"
    if compile_option == "on" and missing:
        raise MissingExtraError(
            "not-installed", f"torch.compile needs {missing} for {device.type}", "use --compile off"
        )
    return compile_option == "on" or (
        compile_option == "auto" and device.type == "cuda" and not missing
    )


def describe_precision(model: PretrainedAlbert, device: torch.device) -> str:
    """Return a line about the type a model computes in, and how."""
    dtype = str(model.compute_dtype).removeprefix("torch.")
    line = f"precision: {dtype} on {device}"
    if device.type == "cuda":
        fault = varlen_attention_problem(device)
        if model.config.attention_probs_dropout_prob:
            fault = fault or "it knows no dropout"
        if dtype == "float32":
            fault = fault or "it knows half precision only"
        attention = (
            f"padded, torch's packed attention cannot be used: {fault}" if fault else "packed"
        )
        line += f" ({torch.cuda.get_device_name(device)}); attention: {attention}"
    return f"{line}; layers compiled" if model.compiled else line


def bf16_peak_flops(device: torch.device) -> float | None:
    """Return the device's dense bf16 peak in FLOP/s if its data sheet is known; else None (CPUs: clocks vary too much)."""
    return bf16_peak_of_gpu(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def bf16_peak_of_gpu(gpu_name: str) -> float | None:
    """Return the dense bf16 FLOP/s in the data sheet of a GPU, by the name that its driver reports; None for an unknown one."""
    peaks = (
        1e12 * tflops for part, tflops in _BF16_PEAKS.items() if re.search(rf"\b{part}\b", gpu_name)
    )
    return next(peaks, None)


@contextmanager
def make_results_repeatable(device: torch.device) -> Iterator[None]:
    """Make a GPU's results repeatable within this context, as a CPU's are anyway.

    Attention's gradient and sums by index otherwise add in the order in which threads come. Memory
    that is written anyway need not be filled first. cuBLAS must know a workspace before its first
    product in this process: `albertkit.model` does that when it is imported. Where it came too
    late, torch would refuse every product: a warning, and results that are not to the bit.
    """
    if device.type != "cuda":
        yield
        return
    # A module with a property, which type checkers do not know
    memory: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), memory.fill_uninitialized_memory
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    # `warn_only` would leave flash attention's atomics. Where launches are the bound it costs
    # nothing (59.4 and 60.2 ms).
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False
    try:
        if not can_multiply_repeatably(device):
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


def can_multiply_repeatably(device: torch.device) -> bool:
    """Return whether torch does not refuse a product as one that might not repeat itself."""
    try:
        matrix = torch.ones(8, 8, device=device)
        torch.mm(matrix, matrix)
    except RuntimeError as error:
        if "CUBLAS_WORKSPACE_CONFIG" not in str(error):
            raise
        return False
    return True


def npy_header(shape: tuple[int, int], dtype: np.dtype) -> bytes:
    """Return the first bytes of a `.npy` file."""
    header = io.BytesIO()
    facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, facts)
    return header.getvalue()


def compute_rows(
    file: Path,
    key: Mapping[str, Any],
    num_items: int,
    rows_of: Callable[[int, int], np.ndarray],
    world: World,
    title: str,
) -> np.ndarray:
    """Return rows of W numbers, a memory map of a `.npy` file.

    Several processes share the work. Each writes parts of its own, and the first joins them. What
    was made from another key is replaced.

    Args:
        file: The file, alone in its folder.
        key: What the rows are made from, see `Job`.
        num_items: At least 1.
        rows_of: Computes the rows, fp32 [R, W], of the items from one number up to another.
        world: The processes.
        title: Of the progress, which is shown on stderr.
    """
    folder = file.parent
    parts = [f"part-{number:05d}.npy" for number in range(-(-num_items // PART_ITEMS))]
    own_parts = parts[world.rank :: world.size]
    with ExitStack() as stack:
        if world.is_main:
            job = Job(folder, key, overwrite=True, title=title, total=len(own_parts), progress=True)
            stack.enter_context(job)
        world.barrier()
        if not world.is_main:
            job = stack.enter_context(Job(folder, key, rank=world.rank))
        if not job.is_done(file.name):
            for name in job.missing(own_parts):
                first = parts.index(name) * PART_ITEMS
                rows = rows_of(first, min(first + PART_ITEMS, num_items))
                with job.part(name) as stream:  # `np.save` may say nothing when the disk is full
                    stream.write(npy_header(rows.shape, rows.dtype) + rows.tobytes())
        world.barrier()
        if world.is_main and not job.is_done(file.name):
            shapes = [np.load(folder / name, mmap_mode="r").shape for name in parts]
            with job.part(file.name) as stream:
                stream.write(
                    npy_header((sum(shape[0] for shape in shapes), shapes[0][1]), np.dtype("<f4"))
                )
                for name in parts:
                    stream.write(np.ascontiguousarray(np.load(folder / name), "<f4").tobytes())
            job.discard(*parts)
            job.commit()
        world.barrier()
    return np.load(file, mmap_mode="r")
