"""Threads that work on one piece of text together, inside compiled code.

Between two barriers of a pass lie 50 to 500 microseconds. Python's own means wake a sleeper at each, which costs as much again,
so the members of a team enter the compiled loop once a call and meet there by spinning on a counter.
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

_ARRIVED, _ROUND, _ABANDONED = 0, 8, 16  # places of a meeting's numbers, a cache line apart
_SPINS = 20_000  # about a millisecond: longer than any step of a pass, unless somebody else has the core


# --- in compiled code -------------------------------------------------------------------------------------------------


@intrinsic
def add_atomic(context, array, place, value):  # type: ignore[no-untyped-def]
    """array[place] += value, int64, whatever other threads do; what was there."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.atomic_rmw("add", _place(context, builder, signature, arguments), arguments[2], "seq_cst")

    return types.int64(array, types.int64, types.int64), generate


@intrinsic
def _read(context, array, place):  # type: ignore[no-untyped-def]
    """array[place], int64, as other threads left it, and everything that they wrote before."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.load_atomic(_place(context, builder, signature, arguments), "acquire", 8)

    return types.int64(array, types.int64), generate


@intrinsic
def _pause(context):  # type: ignore[no-untyped-def]
    """Tell the processor that this is a loop that waits."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        function = ir.FunctionType(ir.VoidType(), [])
        builder.call(cgutils.get_or_insert_function(builder.module, function, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _let_others_run(context):  # type: ignore[no-untyped-def]
    """POSIX sched_yield."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        function = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, function, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), generate


def _place(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(array.data, [arguments[1]])


@loops
def meet(meeting, members):  # type: ignore[no-untyped-def]
    """Wait until all members are here; what they wrote before is seen afterwards. False: one will never come.

    Args:
        meeting: From `new_meeting`.
        members: Of the team.
    """
    if members == 1:
        return True
    number = _read(meeting, _ROUND)
    if add_atomic(meeting, _ARRIVED, 1) == members - 1:
        meeting[_ARRIVED] = 0
        add_atomic(meeting, _ROUND, 1)
        return True
    spins = 0
    while _read(meeting, _ROUND) == number:
        spins += 1
        if spins < _SPINS:
            _pause()
        elif _read(meeting, _ABANDONED):
            return False
        else:
            _let_others_run()
    return True


def new_meeting() -> np.ndarray:
    """What `meet` counts on, int64: one for every piece of work."""
    return np.zeros(24, np.int64)


# --- in Python --------------------------------------------------------------------------------------------------------


class Team:
    """Threads that wait for work. One piece of work at a time: its members wait for each other, so all must have a thread."""

    def __init__(self) -> None:
        self._free, self._size, self._process = Lock(), 0, 0
        self._executor: ThreadPoolExecutor | None = None

    def work(self, task: Callable[[int, int], None], members: int, meeting: np.ndarray) -> None:
        """Call task(member, members) for every member, this thread being the first; alone if the others are busy.

        Args:
            task: Releases the GIL, and stops when `meet` answers False.
            members: 1 or more.
            meeting: Where they meet.
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
            meeting[_ABANDONED] = 1
            raise
        finally:
            self._free.release()

    def _others(self, size: int) -> ThreadPoolExecutor:
        if self._executor is None or self._size < size or self._process != os.getpid():  # a fork has no threads
            self._executor, self._size, self._process = ThreadPoolExecutor(size, "albertkit-team"), size, os.getpid()
        return self._executor
