"""Ctrl-C, SIGTERM and SIGHUP during a training: save after the current update, stop, end with the signal's status.

Loads no torch.
"""

import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import Any

from albertkit.training.launch import launched

_last = signal.SIGTERM  # the signal that stopped a training of this process last


def stop_signals() -> list[signal.Signals]:
    """Return the signals that ask a process to end: SIGTERM, and SIGHUP of a terminal that closes, unless `nohup` ignores it."""
    hangup: Any = getattr(signal, "SIGHUP", None)  # not on Windows
    is_heard = hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN
    return [signal.SIGTERM, hangup] if is_heard else [signal.SIGTERM]


class StopRequest:
    """The stop signals and SIGINT ask the loop to save and stop after the current update; a second one stops at once.

    Not SIGHUP, of which the kernel and the shell send one each. Not under torchrun: it may come from torchrun and from what stops
    torchrun, and torchrun itself kills who takes too long.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        global _last
        if number == getattr(signal, "SIGHUP", None):
            sys.stdout, sys.stderr = _LostOutput(sys.stdout), _LostOutput(sys.stderr)
        elif self.requested and not launched():
            raise KeyboardInterrupt
        self.requested, _last = True, signal.Signals(number)

    def __enter__(self) -> "StopRequest":
        for number in (*stop_signals(), signal.SIGINT):
            with suppress(ValueError):  # not in the main thread (a notebook's worker): it gets no signals
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)


def stop_again() -> None:
    """Send this process the signal again that stopped its training, now that the training handles it no more."""
    signal.raise_signal(_last)
    raise KeyboardInterrupt  # who started this process may have it ignore the signal, as a script's `command &` does


def exit_status() -> int:
    """Exit status of a command whose training was stopped: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP."""
    return 128 + _last


def stopped_by() -> str:
    """Name the signal that stopped the training."""
    return "Ctrl-C" if _last == signal.SIGINT else _last.name


class _LostOutput:
    """A stream whose terminal, or the `tee` behind it, is perhaps gone: what cannot be written is dropped, no error."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()
