"""Threads that compute one batch together, inside compiled code, on cores that other processes use, too.

Work is a row of phases, each of some tasks, which any thread may take. Between two phases of a layer lie 50 to 500 microseconds:
Python's own means wake a sleeper in as much, so the threads of a team enter the compiled loop once a call and meet there. The
system may take a core away from any of them for milliseconds, so nobody waits for a thread that does not run: a task that is
begun and not done is done again by whoever has nothing else to do. That is safe, since a thread writes to memory of its own,
equal work gives equal bits, and of two results the first counts.
"""

from collections.abc import Callable
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from albertkit.engines.arithmetic import within
from albertkit.jit import Helpers, call_llvm

FIRST_PATIENCE = 10_000_000  # cycles: some milliseconds, longer than any task
# A member that has nothing to do waits this part of the time that a task takes it, and then helps. One text of 128 tokens in int8
# beside one busy process: 69 ms with a quarter, 73 with the whole.
PATIENCE = 4


class TaskProgress(NamedTuple):
    """How far the tasks of all phases are; the threads of a team share it."""

    taken: np.ndarray  # int64 [phases, tasks]: how many threads took it without being asked to help
    done: np.ndarray  # int64 [phases, tasks]: the member whose result counts, from 1; 0: none yet
    finished: np.ndarray  # int64 [phases]: how many tasks are done
    spent: np.ndarray  # int64 [M, 8]: cycles of each member in tasks of kinds 0 and 1, and in all; a cache line each


def new_progress(phases: int, tasks: int, members: int) -> TaskProgress:
    """Return the progress of phases with at most so many tasks each."""
    taken, done = np.zeros((2, phases, tasks), np.int64)
    return TaskProgress(taken, done, np.zeros(phases, np.int64), np.zeros((members, 8), np.int64))


# --- in compiled code -------------------------------------------------------------------------------------------------


@intrinsic
def _add(context, array, place, value):
    """Add to array[place], int64, whatever other threads do, and return what was there."""

    def generate(context, builder, signature, arguments):
        return builder.atomic_rmw("add", _place(context, builder, signature, arguments), arguments[2], "seq_cst")

    return types.int64(array, types.int64, types.int64), generate


@intrinsic
def _set_first(context, array, place, value):
    """Set array[place], int64, where it is 0, and return whether it was; what this thread wrote before becomes visible."""

    def generate(context, builder, signature, arguments):
        where, nothing = _place(context, builder, signature, arguments), ir.Constant(ir.IntType(64), 0)
        found = builder.cmpxchg(where, nothing, arguments[2], "seq_cst", "seq_cst")
        return builder.extract_value(found, 1)

    return types.boolean(array, types.int64, types.int64), generate


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
        call_llvm(builder, "llvm.x86.sse2.pause", [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def cycles(context):
    """Return the processor's clock, int64."""

    def generate(context, builder, signature, arguments):
        return call_llvm(builder, "llvm.readcyclecounter", [], ir.IntType(64))

    return types.int64(), generate


def _place(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(array.data, [arguments[1]])


@within
def take(progress, phase, tasks, member, members, patience):
    """Return a task of a phase for this member to do, or -1 when all are done and the next phase may begin.

    Members begin with a share each, and go on with what others have left. When all are taken, wait for those that others are
    at, so many cycles long, and then do one of them, too.
    """
    first = tasks * member // members
    taken, done = progress.taken[phase], progress.done[phase]
    for n in range(first, first + tasks):
        task = n if n < tasks else n - tasks
        if _read(taken, task) == 0 and _add(taken, task, 1) == 0:
            return task
    began = cycles()
    while _read(progress.finished, phase) < tasks:
        if cycles() - began > patience:
            for n in range(first, first + tasks):
                task = n if n < tasks else n - tasks
                if _read(done, task) == 0:
                    return task
        _pause()
    return -1


@within
def is_done(done, task):
    """Return whether somebody has done a task, given its phase's progress.done."""
    return _read(done, task) > 0


@within
def finish(progress, phase, task, member, began, kind):
    """Say that a task is done and this member's result counts, unless another was first; return the cycles since `began`.

    They are added to the member's `progress.spent` of the kind.
    """
    if _set_first(progress.done[phase], task, member + 1):
        _add(progress.finished, phase, 1)
    taken = cycles() - began
    progress.spent[member, kind] += taken
    return taken


# --- in Python --------------------------------------------------------------------------------------------------------


class ThreadTeam:
    """Threads that wait for work, one call at a time."""

    def __init__(self) -> None:
        self._helpers = Helpers("albertkit-team")

    def run(self, work: Callable[[int, int], None], members: int, left: Callable[[], None]) -> None:
        """Call work(member, members) for every member, this thread being the first; alone if the others are busy.

        Returns when this thread's call does, and all is done then: another may still be in its own, or not have begun.

        Args:
            work: Releases the GIL, and returns when all of it is done, by whichever members.
            members: How many at most.
            left: Called once, when no member is in `work` any more.
        """
        if members > 1 and not self._helpers.free.acquire(blocking=False):
            members = 1
        inside, counting = members, Lock()

        def enter(member: int) -> None:
            nonlocal inside
            try:
                work(member, members)
            finally:
                with counting:
                    inside -= 1
                    last = not inside
                if last:
                    left()

        try:
            for member in range(1, members):
                try:
                    self._helpers.submit(members - 1, enter, member)
                except RuntimeError:  # no thread can be started, or the main thread has ended: those who came do all
                    with counting:
                        inside -= members - member
                    break
            enter(0)
        finally:
            if members > 1:
                self._helpers.free.release()
