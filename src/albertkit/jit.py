"""The decorator of all compiled loops, threads to run them in, and LLVM's functions that numba has no name for."""

import logging
import os
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, config, event
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import NativeLowering

from albertkit.loop_cache import LoopCache, loop_cache

logger = logging.getLogger(__name__)


class _Compiling(event.Listener):
    """Log once a process that loops are compiled: nothing else is heard of it for 10 to 30 seconds.

    As a warning, which Python prints wherever no log is set up. Loops that the cache on the disk
    holds cause no event, whoever compiles them.
    """

    _logged = False

    def on_start(self, event: event.Event) -> None:
        """Log the first one."""
        if not _Compiling._logged:
            _Compiling._logged = True
            logger.warning(
                "compiling loops for this processor, once: 1 to 30 s of a core (beforehand: albertkit doctor --warm)"
            )

    def on_end(self, event: event.Event) -> None:
        """Log nothing."""


event.register("numba:compile", _Compiling())


def compiled(
    function: Callable[..., Any], fastmath: bool | set[str] = False, forceinline: bool = False
) -> Any:
    """Compile with numba: no GIL, cached on disk where there is a folder to write to.

    Args:
        function: With loops.
        fastmath: What the compiler may assume of floating point, LLVM's names.
        forceinline: Whether it is a part of other loops, to be written out in each of them.
    """
    if config.DISABLE_JIT:  # type: ignore[attr-defined]  # from the environment
        return function
    options = {
        "nopython": True,
        "nogil": True,
        "error_model": "numpy",
        "fastmath": fastmath,
        "forceinline": forceinline,
    }
    loop: Any = _LoopWithInlinedPart(function, targetoptions=options)
    if forceinline:  # what is taken in is never read from the disk
        return loop
    try:
        loop._cache = loop_cache(function)
    except (RuntimeError, OSError):  # no folder can be written; the package lies in a zip file
        warnings.warn(
            "no folder to cache compiled loops in (set NUMBA_CACHE_DIR): they are compiled at every start"
        )
    return loop


# Of what a loop over words does for each: written out in the loop. As calls, English text to ids
# takes 1.14 times as long (51 for 58 MB/s), WordPiece's 1.06 times.
inlined = partial(compiled, forceinline=True)


class _LoopWithInlinedPart(CPUDispatcher):
    """A loop that Python calls, and loops that call it take in as a `_PartLibrary`.

    numba optimizes a loop and makes its machine code before another one takes it in, and so again
    at each level of calls: six times for the engine's products, in which compiling for `predict`
    took 2.3 times as long.

    A part may raise errors of constant messages only, and neither print nor call itself.
    """

    _cache: Any  # numba's, on the disk

    def __init__(
        self,
        function: Callable[..., Any],
        locals: dict[str, Any] | None = None,
        targetoptions: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(function, locals, targetoptions)
        options = {**(targetoptions or {}), "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        self._part = _InlinedPart(function, targetoptions=options, pipeline_class=_PartCompiler)

    def is_compiled(self, *arguments: Any) -> bool:
        """Return whether a call can begin at once: its code is in memory or on the disk, or cannot be kept there."""
        types = tuple(map(self.typeof_pyval, arguments))
        return types in self.overloads or not (
            isinstance(self._cache, LoopCache) and self._cache.lacks(types, self.targetctx)
        )

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Compile the part for arguments of these types; numba asks when a loop calls this one."""
        return self._part.get_call_template(args, kws)

    def get_overload(self, sig: Any) -> Any:
        """Return the key of the part in numba's context."""
        return self._part.get_overload(sig)


class _InlinedPart(CPUDispatcher):
    def add_overload(self, cres: Any) -> None:
        """Keep what was compiled; numba would look for the function that Python calls."""
        self.overloads[tuple(cres.signature.args)] = cres


class _PartLibrary(JITCodeLibrary):
    """Code without machine code, optimized only as far as makes it small for those who take it in."""

    def _optimize_final_module(self) -> None:
        level = self._codegen._opt_level
        passes, builder = self._codegen._module_pass_manager(
            loop_vectorize=False, slp_vectorize=False, opt=level, cost="cheap"
        )
        passes.run(self._final_module, builder)

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(NativeLowering):
    _name = "part_lowering"

    def run_pass(self, state: Any) -> bool:
        """Translate into LLVM's language."""
        state.library = _PartLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        state.cr = state.cr._replace(cfunc=object())  # a key in place of a function
        state.targetctx.insert_user_function(state.cr.cfunc, state.cr.fndesc, [state.library])
        return True


class _PartCompiler(CompilerBase):
    def define_pipelines(self) -> list[PassManager]:
        """Return numba's passes, the last but one replaced."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        replaced = [
            (_PartLowering if step is NativeLowering else step, text)
            for step, text in passes.passes
        ]
        passes.passes = replaced
        passes.finalize()
        return [passes]


class HelperThreads:
    """Threads that help the calling one with compiled loops.

    Attributes:
        free: Held by a caller that wants the threads for itself.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._reset_after_fork()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset_after_fork)

    def _reset_after_fork(self) -> None:
        """Begin anew: a fork has none of the threads, and would find the lock as it was."""
        self.free = Lock()
        self._size = 0
        self._executor: ThreadPoolExecutor | None = None

    def submit(self, num_threads: int, work: Callable[..., None], *arguments: Any) -> Future[None]:
        """Let one of at least `num_threads` threads call work(*arguments)."""
        if self._executor is None or self._size < num_threads:
            self._executor = ThreadPoolExecutor(num_threads, self._name)
            self._size = num_threads
        return self._executor.submit(work, *arguments)


@numba.njit(inline="always")
def from_bfloat16(bits):  # type: ignore[no-untyped-def]
    """Convert bfloat16's bits, uint16, to float32, in compiled code."""
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


def call_llvm(
    builder: Any, name: str, arguments: list[Any], result: Any = None, **options: Any
) -> Any:
    """Emit a call of one of LLVM's functions, which returns nothing by default; options are those of `builder.call`."""
    kind = ir.FunctionType(result or ir.VoidType(), [argument.type for argument in arguments])
    return builder.call(
        cgutils.get_or_insert_function(builder.module, kind, name),
        arguments,
        **options,
    )


def int64_constant(number: int) -> ir.Constant:
    """Return a whole number as LLVM's int64."""
    return ir.Constant(ir.IntType(64), number)


def prefetch(builder: Any, pointer: Any, second_cache: bool) -> None:
    """Emit the fetching of a line of memory into the second cache, or into the first."""
    read_access, locality, data_cache = (
        ir.Constant(ir.IntType(32), value) for value in (0, 2 if second_cache else 3, 1)
    )
    call_llvm(builder, "llvm.prefetch.p0", [pointer, read_access, locality, data_cache])


def call_once_emitted(
    builder: Any,
    name: str,
    emit: Callable[..., Any],
    arguments: list[Any],
    return_type: type[ir.Type] = ir.VoidType,
) -> Any:
    """Emit a call of a function that a module has once: inlined, its loops would be in every caller.

    Args:
        builder: Of the caller.
        name: The function's; its code must follow from it.
        emit: Called at first use with a builder within the function and its arguments; returns what
            the function shall.
        arguments: Of the call.
        return_type: The class of the type of the result.
    """
    module = builder.module
    if name not in module.globals:
        kind = ir.FunctionType(return_type(), [argument.type for argument in arguments])
        function = ir.Function(module, kind, name)
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")
        body = ir.IRBuilder(function.append_basic_block("entry"))
        result = emit(body, *function.args)
        body.ret_void() if result is None else body.ret(result)
    return builder.call(module.globals[name], arguments)
