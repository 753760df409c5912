"""Threads that compute one batch together, inside compiled code, on cores that other processes use, too.

Work is a row of phases, each of some tasks, which any thread may take. Between two phases of a
layer lie 50 to 500 microseconds: Python's own means wake a sleeper in as much, so the threads of a
team enter the compiled loop once a call and meet there. The system may take a core away from any of
them for milliseconds, so nobody waits for a thread that does not run: a task that is begun and not
done is done again by whoever has nothing else to do. That is safe, since a thread writes to memory
of its own, equal work gives equal bits, and of two results the first counts.
"""

from collections.abc import Callable
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from albertkit.engines.arithmetic import within
from albertkit.jit import HelperThreads, call_llvm

FIRST_PATIENCE = 10_000_000  # cycles: some milliseconds, longer than any task
# A member that has nothing to do waits this part of the time that a task takes it, and then helps.
# One text of 128 tokens in int8 beside one busy process: 69 ms with a quarter, 73 with the whole.
PATIENCE = 4


class TaskProgress(NamedTuple):
    """How far the tasks of all phases are; the threads of a team share it."""

    # int64 [phases, tasks]: how many threads took it without being asked to help
    claims: np.ndarray
    # int64 [phases, tasks]: the member whose result counts, from 1; 0: none yet
    winners: np.ndarray
    finished: np.ndarray  # int64 [phases]: how many tasks are done
    # int64 [M, 8]: cycles of each member in tasks of rows, of attention, and in all; a cache line each
    spent: np.ndarray


def new_progress(phases: int, tasks: int, members: int) -> TaskProgress:
    """Return the progress of phases with at most so many tasks each."""
    claims, winners = np.zeros((2, phases, tasks), np.int64)
    return TaskProgress(
        claims, winners, np.zeros(phases, np.int64), np.zeros((members, 8), np.int64)
    )


# --- in compiled code -----------------------------------------------------------------------------


@intrinsic
def _add(context, array, index, value):
    """Add to array[index], int64, whatever other threads do, and return the number before."""

    def generate(context, builder, signature, arguments):
        return builder.atomic_rmw(
            "add", _element_pointer(context, builder, signature, arguments), arguments[2], "seq_cst"
        )

    return types.int64(array, types.int64, types.int64), generate


@intrinsic
def _set_first(context, array, index, value):
    """Set array[index], int64, where it is 0, and return whether it was; what this thread wrote before becomes visible."""

    def generate(context, builder, signature, arguments):
        pointer, nothing = (
            _element_pointer(context, builder, signature, arguments),
            ir.Constant(ir.IntType(64), 0),
        )
        exchange = builder.cmpxchg(pointer, nothing, arguments[2], "seq_cst", "seq_cst")
        return builder.extract_value(exchange, 1)

    return types.boolean(array, types.int64, types.int64), generate


@intrinsic
def _load_shared(context, array, index):
    """Return array[index], int64, as other threads left it; everything that they wrote before is visible."""

    def generate(context, builder, signature, arguments):
        return builder.load_atomic(
            _element_pointer(context, builder, signature, arguments), "acquire", 8
        )

    return types.int64(array, types.int64), generate


@intrinsic
def _pause(context):
    """Tell the processor that this loop waits."""

    def generate(context, builder, signature, arguments):
        call_llvm(builder, "llvm.x86.sse2.pause", [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def read_cycle_counter(context):
    """Return the processor's clock, int64."""

    def generate(context, builder, signature, arguments):
        return call_llvm(builder, "llvm.readcyclecounter", [], ir.IntType(64))

    return types.int64(), generate


def _element_pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(array.data, [arguments[1]])


@within
def take_task(progress, phase, tasks, member, members, patience):
    """Return a task of a phase for this member to do, or -1 when all are done and the next phase may begin.

    Members begin with a share each, and go on with what others have left. When all are taken, wait
    for those that others are at, so many cycles long, and then do one of them, too.
    """
    first = tasks * member // members
    claims, winners = progress.claims[phase], progress.winners[phase]
    for n in range(first, first + tasks):
        task = n if n < tasks else n - tasks
        if _load_shared(claims, task) == 0 and _add(claims, task, 1) == 0:
            return task
    began = read_cycle_counter()
    while _load_shared(progress.finished, phase) < tasks:
        if read_cycle_counter() - began > patience:
            for n in range(first, first + tasks):
                task = n if n < tasks else n - tasks
                if _load_shared(winners, task) == 0:
                    return task
        _pause()
    return -1


@within
def is_done(winners, task):
    """Return whether a member has done a task, given its phase's progress.winners."""
    return _load_shared(winners, task) > 0


@within
def finish_task(progress, phase, task, member, began, is_attention):
    """Mark a task as done by this member, unless another was first; return the cycles since `began`.

    The cycles are added to the member's `progress.spent` on attention (1) or rows (0).
    """
    if _set_first(progress.winners[phase], task, member + 1):
        _add(progress.finished, phase, 1)
    duration = read_cycle_counter() - began
    progress.spent[member, is_attention] += duration
    return duration


# --- in Python ------------------------------------------------------------------------------------


class ThreadTeam:
    """Threads that wait for work, one call at a time."""

    def __init__(self) -> None:
        self._helpers = HelperThreads("albertkit-team")

    def run(
        self, work: Callable[[int, int], None], members: int, on_finish: Callable[[], None]
    ) -> None:
        """Call work(member, members) for every member, this thread being the first; alone if the others are busy.

        Returns when this thread's call does, and all is done then: another may still be in its own,
        or not have begun.

        Args:
            work: Releases the GIL, and returns when all of it is done, by whichever members.
            members: How many at most.
            on_finish: Called once, when no member is in `work` any more.
        """
        if members > 1 and not self._helpers.free.acquire(blocking=False):
            members = 1
        num_active, counting = members, Lock()

        def enter(member: int) -> None:
            nonlocal num_active
            try:
                work(member, members)
            finally:
                with counting:
                    num_active -= 1
                    last = not num_active
                if last:
                    on_finish()

        try:
            for member in range(1, members):
                try:
                    self._helpers.submit(members - 1, enter, member)
                except (
                    RuntimeError
                ):  # no thread can be started, or the main thread has ended: those who came do all
                    with counting:
                        num_active -= members - member
                    break
            enter(0)
        finally:
            if members > 1:
                self._helpers.free.release()
