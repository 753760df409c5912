"""Engines in forked processes (gunicorn --preload, Celery, multiprocessing).

torch computes with OpenMP, whose threads a fork does not have and waits for without end. So engines pack weights on the calling
thread alone, and a fork of a process that has such threads computes on one: it answers, where torch alone would hang.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

_TASKS = Path("/proc/self/task")  # the threads of this process, on Linux
_packing = threading.RLock()
_has_native_threads = False


@contextmanager
def without_torch_threads() -> Iterator[None]:
    """Let torch compute on the calling thread alone, for one caller at a time."""
    with _packing:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def _count_threads() -> None:
    """Note before a fork whether there are threads that Python did not start: OpenMP's, or another library's."""
    global _has_native_threads
    _has_native_threads = not _TASKS.is_dir() or len(os.listdir(_TASKS)) > threading.active_count()


def _after_fork() -> None:
    global _packing
    _packing = threading.RLock()
    if _has_native_threads:
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_count_threads, after_in_child=_after_fork)
