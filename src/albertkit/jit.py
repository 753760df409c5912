"""The decorator of all compiled loops."""

import logging
import warnings
from collections.abc import Callable
from typing import Any

import numba
from numba.core import event

logger = logging.getLogger(__name__)


class _Compiling(event.Listener):
    """Log once a process that loops are compiled: nothing else is heard of it for 10 to 30 seconds.

    As a warning, which Python prints wherever no log is set up. Loops that the cache on the disk holds cause no event,
    whoever compiles them.
    """

    _logged = False

    def on_start(self, event: event.Event) -> None:
        """Log the first one."""
        if not _Compiling._logged:
            _Compiling._logged = True
            logger.warning("compiling loops for this processor, once: 10 to 30 s (beforehand: albertkit doctor --warm)")

    def on_end(self, event: event.Event) -> None:
        """Log nothing."""


event.register("numba:compile", _Compiling())


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
