"""Several processes under `torchrun`: who we are, and sums over all of us.

Gradients are summed once a step in one flat buffer. A wrapper that overlaps communication with the backward pass
would gain nothing: a shared layer's gradient is complete only when the backward pass ends, and ALBERT-base has 12 million
gradients where BERT-base has 110.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist

from albertkit.errors import ConfigError


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

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace every gradient by its sum over all processes."""
        if self.size == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([g.reshape(-1) for g in gradients])
        dist.all_reduce(flat)
        for gradient, total in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(total.view_as(gradient))

    def sum(self, values: Tensor) -> Tensor:
        """The element-wise sum of a tensor over all processes."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def any(self, flag: bool) -> bool:
        """True if the flag is set in any process."""
        if self.size == 1:
            return flag
        return bool(self.sum(torch.tensor(float(flag), device=self.device)) > 0)

    def barrier(self) -> None:
        """Wait until all processes are here."""
        if self.size > 1:
            dist.barrier()


def join_world(device: str = "auto") -> World:
    """Join the other processes if `torchrun` started us.

    Args:
        device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N".

    Raises:
        ConfigError: bad-device.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = _checked(f"cuda:{local_rank}" if device == "cuda" else device)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if size > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    return World(rank, size, chosen)


def _checked(name: str) -> torch.device:
    """The device of this name, if it is there."""
    gpus = torch.cuda.device_count()
    known = ["cpu", *(f"cuda:{n}" for n in range(gpus))]
    if name not in known:
        there = f"{gpus} CUDA devices" if gpus else "no CUDA device that torch can use"
        raise ConfigError("bad-device", f"device `{name}`: this machine has {there}", f"use {' or '.join(known)}")
    return torch.device(name)
