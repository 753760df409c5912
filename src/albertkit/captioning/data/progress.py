"""What preparing shows on stderr: a bar on a terminal, a plain line every ten seconds in a pipe."""

import sys
import time
from typing import Any

_LINE_SECONDS = 10.0


class PrepareProgress:
    """Shows how far the clips are; a context manager.

    Args:
        what: What is done, for example "preparing".
        total: Clips.
        enabled: Whether to show anything.
    """

    def __init__(self, what: str, total: int, enabled: bool) -> None:
        self._what, self._total, self._enabled = what, total, enabled
        self._done = self._failed = 0
        self._last = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def update(self, done: int, failed: int) -> None:
        """Count clips.

        Args:
            done: More of them, those that failed included.
            failed: Of these.
        """
        self._done, self._failed, now = self._done + done, self._failed + failed, time.monotonic()
        text = f"{self._what}, {self._failed:,} skipped" if self._failed else self._what
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, description=text)
        elif self._enabled and now - self._last >= _LINE_SECONDS:
            self._last = now
            print(f"{text}: {self._done:,} of {self._total:,} clips", file=sys.stderr, flush=True)

    def __enter__(self) -> "PrepareProgress":
        if self._enabled and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self._what, total=self._total)
            self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.stop()
