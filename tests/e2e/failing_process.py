"""`albertkit` as torchrun starts it, but the process with rank 1 fails at its third update: FAULT is data, memory or bug.

python failing_process.py FAULT ARGUMENTS...
"""

import os
import sys

import torch

from albertkit.cli import main
from albertkit.errors import DataError
from albertkit.pretraining.objective import PretrainingObjective

FAULTS = {
    "data": DataError("corrupt", "shard 3 cannot be read", "copy the store again"),
    "memory": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "bug": ZeroDivisionError("somebody divided"),
}

losses = PretrainingObjective.losses
num_calls = 0


def failing(self, batch):
    global num_calls
    num_calls += 1
    if num_calls == 3 and os.environ["RANK"] == "1":
        raise FAULTS[sys.argv[1]]
    return losses(self, batch)


PretrainingObjective.losses = failing
main(sys.argv[2:])
