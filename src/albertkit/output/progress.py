"""Show how far long work is on stderr: a bar on a terminal, a plain line every ten seconds in a pipe."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from albertkit.printable import escape_line, print_note


@contextmanager
def quiet_transformers(keep_warnings: bool = False) -> Iterator[None]:
    """Hide transformers' progress bars and, unless `keep_warnings`, its warnings of unused heads and long texts."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    bars_enabled = logging.is_progress_bar_enabled()
    if not keep_warnings:
        logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars_enabled:
            logging.enable_progress_bar()


_LINE_SECONDS = 10.0


class ProgressBar:
    """Shows how far work is; a context manager.

    Args:
        title: What is done, for example "encoding".
        total: How much there is to do; 0 if unknown.
        unit: What is counted, for example "texts"; "bytes" are shown as a percentage only.
        enabled: Whether to show anything.
    """

    def __init__(self, title: str, total: int, unit: str, enabled: bool = True) -> None:
        self.title = title
        self.total = total
        self.unit = unit
        self.enabled = enabled
        self.completed = self._before = 0
        self._began = self._last = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        if self.enabled and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
            )

            count = (
                TextColumn("{task.percentage:.0f} %")
                if self.unit == "bytes"
                else MofNCompleteColumn()
            )
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                count,
                TimeRemainingColumn(),
            )
            # Transient: the bar goes, and the result of the command stays.
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(
                self.title,
                total=self.total or None,
                completed=self.completed,
            )
            self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, message: str) -> None:
        """Print a line that stays."""
        if self._bar is not None:
            # Paths may hold brackets
            self._bar.console.print(escape_line(message), markup=False, highlight=False)
        elif self.enabled:
            print_note(message)

    def resume(self, completed: int) -> None:
        """Say how much an earlier call has done, if anything, and measure the rate from there."""
        # What an earlier call has done took none of this one's time.
        self.completed = self._before = completed
        self._began = time.monotonic()
        if completed:
            self.say(f"{self.title}: going on after {completed:,} of {self.total:,} {self.unit}")

    def update(self, completed: int, detail: str = "") -> None:
        """Show the state.

        Args:
            completed: How much is done, by this call and earlier ones.
            detail: What to show in place of the rate.
        """
        self.completed = completed
        if not self.enabled:
            return
        now = time.monotonic()
        rate = (completed - self._before) / max(now - self._began, 1e-9)
        state = detail or f"{rate:,.0f} {self.unit}/s"
        if self._bar is not None:
            self._bar.update(self._task, completed=completed, description=f"{self.title}: {state}")
        elif now - self._last >= _LINE_SECONDS:
            self._last = now
            total = f" of {self.total:,}" if self.total else ""
            count = "" if self.unit == "bytes" else f"{completed:,}{total} {self.unit}, "
            share = f"{min(completed / self.total, 1):.0%}, " if self.total and not count else ""
            print_note(f"{self.title}: {count}{share}{state}")
