"""The decorator of all compiled loops, threads to run them in, and LLVM's functions that numba has no name for."""

import logging
import os
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, event

from albertkit.loop_cache import loop_cache

logger = logging.getLogger(__name__)


class _Compiling(event.Listener):
    """Log once a process that loops are compiled: nothing else is heard of it for 10 to 50 seconds.

    As a warning, which Python prints wherever no log is set up. Loops that the cache on the disk holds cause no event,
    whoever compiles them.
    """

    _logged = False

    def on_start(self, event: event.Event) -> None:
        """Log the first one."""
        if not _Compiling._logged:
            _Compiling._logged = True
            logger.warning("compiling loops for this processor, once: 10 to 50 s (beforehand: albertkit doctor --warm)")

    def on_end(self, event: event.Event) -> None:
        """Log nothing."""


event.register("numba:compile", _Compiling())


def compiled(function: Callable[..., Any], fastmath: bool | set[str] = False) -> Any:
    """Compile with numba: no GIL, cached on disk where there is a folder to write to.

    Args:
        function: With loops.
        fastmath: What the compiler may assume of floating point, LLVM's names.
    """
    loop: Any = numba.njit(nogil=True, error_model="numpy", fastmath=fastmath)(function)
    try:
        loop._cache = loop_cache(function)
    except (RuntimeError, OSError):  # no folder can be written; the package lies in a zip file
        warnings.warn("no folder to cache compiled loops in (set NUMBA_CACHE_DIR): they are compiled at every start")
    return loop


class Helpers:
    """Threads that help the calling one with compiled loops.

    Attributes:
        free: Held by a caller that wants the threads for itself.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Begin anew: a fork has none of the threads, and would find the lock as it was."""
        self.free = Lock()
        self._size = 0
        self._executor: ThreadPoolExecutor | None = None

    def submit(self, size: int, work: Callable[..., None], *arguments: Any) -> Future[None]:
        """Let one of at least `size` threads call work(*arguments)."""
        if self._executor is None or self._size < size:
            self._executor = ThreadPoolExecutor(size, self._name)
            self._size = size
        return self._executor.submit(work, *arguments)


@numba.njit(inline="always")
def from_bfloat16(bits):  # type: ignore[no-untyped-def]
    """Convert bfloat16's bits, uint16, to float32, in compiled code."""
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


def call_llvm(builder: Any, name: str, arguments: list[Any], result: Any = None, **options: Any) -> Any:
    """Emit a call of one of LLVM's functions, which returns nothing by default; options are those of `builder.call`."""
    kind = ir.FunctionType(result or ir.VoidType(), [argument.type for argument in arguments])
    return builder.call(
        cgutils.get_or_insert_function(builder.module, kind, name),
        arguments,
        **options,
    )


def prefetch(builder: Any, pointer: Any, second_cache: bool) -> None:
    """Emit the fetching of a line of memory into the second cache, or into the first."""
    read_access, locality, data_cache = (
        ir.Constant(ir.IntType(32), value) for value in (0, 2 if second_cache else 3, 1)
    )
    call_llvm(builder, "llvm.prefetch.p0", [pointer, read_access, locality, data_cache])


def call_shared(
    builder: Any,
    name: str,
    emit: Callable[..., Any],
    arguments: list[Any],
    returns: type[ir.Type] = ir.VoidType,
) -> Any:
    """Emit a call of a function that a module has once: inlined, its loops would be in every caller.

    Args:
        builder: Of the caller.
        name: The function's; its code must follow from it.
        emit: Called at first use with a builder within the function and its arguments; returns what the function shall.
        arguments: Of the call.
        returns: The class of the type of the result.
    """
    module = builder.module
    if name not in module.globals:
        kind = ir.FunctionType(returns(), [argument.type for argument in arguments])
        function = ir.Function(module, kind, name)
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")
        body = ir.IRBuilder(function.append_basic_block("entry"))
        result = emit(body, *function.args)
        body.ret_void() if result is None else body.ret(result)
    return builder.call(module.globals[name], arguments)
