"""Threads that compute one batch together, inside compiled code.

Between two barriers of a layer lie 50 to 500 microseconds. Python's own means wake a sleeper at each, which costs as much again,
so the threads of a team enter the compiled loop once a call and wait for each other there by spinning on a counter.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from albertkit.engines.arithmetic import loops

_ARRIVED, _ROUND, _ABANDONED = 0, 8, 16  # places of a barrier's numbers, a cache line apart
_SPINS = 20_000  # about a millisecond: longer than any step of a layer, unless another process has the core


# --- in compiled code -------------------------------------------------------------------------------------------------


@intrinsic
def add_atomic(context, array, place, value):
    """Add to array[place], int64, whatever other threads do, and return what was there."""

    def generate(context, builder, signature, arguments):
        return builder.atomic_rmw("add", _place(context, builder, signature, arguments), arguments[2], "seq_cst")

    return types.int64(array, types.int64, types.int64), generate


@intrinsic
def _read(context, array, place):
    """Return array[place], int64, as other threads left it; everything that they wrote before is visible."""

    def generate(context, builder, signature, arguments):
        return builder.load_atomic(_place(context, builder, signature, arguments), "acquire", 8)

    return types.int64(array, types.int64), generate


@intrinsic
def _pause(context):
    """Tell the processor that this loop waits."""

    def generate(context, builder, signature, arguments):
        function = ir.FunctionType(ir.VoidType(), [])
        builder.call(cgutils.get_or_insert_function(builder.module, function, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _yield_processor(context):
    """POSIX sched_yield."""

    def generate(context, builder, signature, arguments):
        function = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, function, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), generate


def _place(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(array.data, [arguments[1]])


@loops
def wait_for_all(barrier, members):
    """Wait at a barrier until all members are there; what they wrote before is visible afterwards. False: one will never come."""
    if members == 1:
        return True
    number = _read(barrier, _ROUND)
    if add_atomic(barrier, _ARRIVED, 1) == members - 1:
        barrier[_ARRIVED] = 0
        add_atomic(barrier, _ROUND, 1)
        return True
    spins = 0
    while _read(barrier, _ROUND) == number:
        spins += 1
        if spins < _SPINS:
            _pause()
        elif _read(barrier, _ABANDONED):
            return False
        else:
            _yield_processor()
    return True


def new_barrier() -> np.ndarray:
    """Return the counters of a barrier, int64; every task needs its own."""
    return np.zeros(24, np.int64)


# --- in Python --------------------------------------------------------------------------------------------------------


class ThreadTeam:
    """Threads that wait for a task. One task at a time: its members wait for each other, so all must have a thread."""

    def __init__(self) -> None:
        self._free, self._size, self._process = Lock(), 0, 0
        self._executor: ThreadPoolExecutor | None = None

    def run(self, task: Callable[[int, int], None], members: int, barrier: np.ndarray) -> None:
        """Call task(member, members) for every member, this thread being the first; alone if the others are busy.

        The task releases the GIL, and stops when `wait_for_all` returns False at this barrier.
        """
        if members == 1 or not self._free.acquire(blocking=False):
            return task(0, 1)
        try:
            others = self._others(members - 1)
            running = [others.submit(task, member, members) for member in range(1, members)]
            task(0, members)
            for one in running:
                one.result()
        except BaseException:  # Ctrl-C among them: the others would wait for ever
            barrier[_ABANDONED] = 1
            raise
        finally:
            self._free.release()

    def _others(self, size: int) -> ThreadPoolExecutor:
        if self._executor is None or self._size < size or self._process != os.getpid():  # a fork has no threads
            self._executor, self._size, self._process = ThreadPoolExecutor(size, "albertkit-team"), size, os.getpid()
        return self._executor
