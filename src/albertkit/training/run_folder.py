"""The folder of a run: one process writes to it, and only where nothing of another kind lies."""

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from albertkit.errors import CheckpointError
from albertkit.files import only_writer

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# What may lie in the folder of a run before there is one: what the parts of a command wrote before they were killed, the
# runs of several seeds, and logs that a shell writes there. Any `*.txt` would let a run into a folder of data, such as MRPC's.
_BEFORE_A_RUN = (".*", "start", "teacher", "seed-*", "retry-*", "*.log", "*.out", "*.err", "*log*.txt", "std*.txt")


def alone_in_run(train: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let a training, whose argument `out` is the folder of a run, be the only process that writes there.

    Under `torchrun` only the first process takes the lock, so that the others of the same command are not kept out.

    Raises:
        MachineError: in-use.
    """
    signature = inspect.signature(train)

    @functools.wraps(train)
    def locked(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        out = signature.bind(*arguments, **options).arguments["out"]
        with only_writer(out, enabled=os.environ.get("RANK", "0") == "0"):
            return train(*arguments, **options)

    return locked


def check_no_stranger(run: Path) -> None:
    """Refuse to begin a run in a folder that holds something else: its files could be written over.

    Raises:
        CheckpointError: folder-not-empty.
    """
    found = sorted(file.name for file in run.glob("*") if not any(map(file.match, _BEFORE_A_RUN)))
    if found:
        raise CheckpointError(
            "folder-not-empty", f"`{run}` holds other files and no run: {', '.join(found[:5])}{' …' * (len(found) > 5)}",
            "choose a new folder for --out",
        )  # fmt: skip
