"""Show the progress of long work on stderr: a bar on a terminal, a plain line every ten seconds in a pipe."""

import sys
import time
from typing import Any

_LINE_SECONDS = 10.0


class EncodeProgress:
    """Shows how far work is; a context manager.

    Args:
        total: Texts.
        enabled: Whether to show anything.
        name: What is done.
        things: What is counted.
    """

    def __init__(self, total: int, enabled: bool, name: str = "encoding", things: str = "texts") -> None:
        self._total, self._enabled = total, enabled
        self._name, self._things = name, things
        self._prefix = "" if name == "encoding" else f"{name}: "
        self._rate = "sentences" if name == "encoding" else things
        self._bar: Any = None
        self._task: Any = None
        self._before = 0

    def start(self, done: int) -> None:
        """Begin to measure.

        Args:
            done: Texts that an earlier call has done.
        """
        self._before, self._began = done, time.monotonic()
        self._last = self._began
        if not self._enabled:
            return
        if done:
            print(
                f"{self._prefix}going on after {done:,} of {self._total:,} {self._things}", file=sys.stderr, flush=True
            )
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self._name, total=self._total, completed=done)
            self._bar.start()

    def update(self, done: int) -> None:
        """Show the state.

        Args:
            done: Texts done, in this call and before.
        """
        now = time.monotonic()
        rate = (done - self._before) / max(now - self._began, 1e-9)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=f"{self._prefix}{rate:,.0f} {self._rate}/s")
        elif self._enabled and now - self._last >= _LINE_SECONDS:
            self._last = now
            line = f"{self._prefix}{done:,} of {self._total:,} {self._things}, {rate:,.0f} {self._rate}/s"
            print(line, file=sys.stderr, flush=True)

    def __enter__(self) -> "EncodeProgress":
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.stop()
