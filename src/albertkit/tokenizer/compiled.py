"""The decorator of all compiled loops."""

import warnings
from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any], fastmath: bool | set[str] = False) -> Any:
    """Compile with numba: no GIL, cached on disk where there is a folder to write to.

    The cache of a function is valid as long as its own file is unchanged, so loops that call each other across files go
    stale together: after a change in the one that is called, touch the files of its callers.

    Args:
        function: With loops.
        fastmath: What the compiler may assume of floating point, LLVM's names.
    """
    try:
        return numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=fastmath)(function)
    except RuntimeError:  # numba found no writable folder for the cache
        warnings.warn("no folder to cache compiled loops in (set NUMBA_CACHE_DIR): they are compiled at every start")
        return numba.njit(nogil=True, error_model="numpy", fastmath=fastmath)(function)
