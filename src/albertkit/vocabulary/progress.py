"""What `albertkit tokenizer train` shows on stderr while it works: a line that changes on a terminal, plain lines in a pipe."""

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

_LINE_SECONDS = 10.0


class TrainingProgress:
    """Shows that text is read, then that a tokenizer is trained on it, and for how long; a context manager.

    Args:
        enabled: Whether to show anything.
    """

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._terminal = enabled and sys.stderr.isatty()
        self._status: Any = None
        self._stage = "reading text"
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._ticking = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> "TrainingProgress":
        if self._terminal:
            from rich.console import Console

            self._status = Console(stderr=True, highlight=False).status(self._stage)
            self._status.start()
        if self._enabled:
            self._ticking.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        if self._enabled:
            self._ticking.join()
        if self._status is not None:
            self._status.stop()

    def reading(self, lines: Iterable[str]) -> Iterator[str]:
        """Pass lines on and count them; the training begins when they end."""
        number = size = 0
        for number, line in enumerate(lines, 1):
            size += len(line)
            self._stage = f"reading text: {number:,} lines"
            yield line
        self._stage = f"read {number:,} lines, {size:,} characters; training"
        if self._enabled and not self._terminal:
            print(self._stage, file=sys.stderr, flush=True)

    def _tick(self) -> None:
        while not self._ended.wait(1.0 if self._terminal else _LINE_SECONDS):
            message = f"{self._stage}, {time.monotonic() - self._began:.0f} s"
            if self._status is not None:
                self._status.update(message)
            else:
                print(message, file=sys.stderr, flush=True)
