"""What a build shows on stderr while it works: a bar on a terminal, a plain line every ten seconds in a pipe."""

import sys
import time
from typing import Any

_LINE_SECONDS = 10.0


class BuildProgress:
    """Shows how far a build is; a context manager.

    Args:
        total_bytes: Size of all inputs as stored; 0 if unknown.
        enabled: Whether to show anything.
    """

    def __init__(self, total_bytes: int, enabled: bool) -> None:
        self._total = total_bytes
        self._enabled = enabled
        self._bar: Any = None
        self._task: Any = None
        self._began = self._last = time.monotonic()
        self._text = 0

    def __enter__(self) -> "BuildProgress":
        if self._enabled and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:.0f} %"),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("reading", total=self._total or None)
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, message: str) -> None:
        """A line that stays."""
        if self._bar is not None:
            self._bar.console.print(message, markup=False, highlight=False)  # paths may hold brackets
        elif self._enabled:
            print(message, file=sys.stderr, flush=True)

    def update(self, stored_bytes: int, text_bytes: int, documents: int, machines: str = "") -> None:
        """Show the state.

        Args:
            stored_bytes: Of the inputs, read so far.
            text_bytes: Of text, handled since the start of this run.
            documents: Written so far.
            machines: Who works on it.
        """
        if not self._enabled:
            return
        now = time.monotonic()
        rate = text_bytes / 1e6 / max(now - self._began, 1e-9)
        description = f"{documents:,} documents, {rate:.1f} MB/s{f' ({machines})' * bool(machines)}"
        if self._bar is not None:
            self._bar.update(self._task, completed=stored_bytes, description=description)
        elif now - self._last >= _LINE_SECONDS:
            self._last = now
            share = f"{min(stored_bytes / self._total, 1):.0%} " if self._total else ""
            print(f"{share}{description}", file=sys.stderr, flush=True)
