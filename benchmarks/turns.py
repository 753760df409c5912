"""Programs that take turns on the same cores, so that all see the same machine, and how long each of them ran.

Only one runs at any moment; the others are stopped by a signal, with all their threads. A program's
time at a moment is how much of its turns lies between its start and that moment.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import progress


@dataclass
class Runner:
    """A program that takes turns.

    Attributes:
        name: As it is shown.
        process: It.
        log: File of what it writes.
        turn: Seconds of a turn.
        slices: Begin and end of its turns so far, in seconds of `time.time`, which files are dated
            by.
    """

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path
    turn: float
    slices: list[tuple[float, float]] = field(default_factory=list)

    @classmethod
    def start(cls, name: str, log: Path, turn: float, command: Sequence[str]) -> "Runner":
        """Start a program; it is stopped after its first turn."""
        with open(log, "wb") as stream:
            return cls(name, subprocess.Popen(command, stdout=stream, stderr=stream), log, turn)

    def set_up(self, ready_file: Path) -> None:
        """Let it run until it has written a file, then stop it."""
        self._run_until(ready_file.exists)
        if self.process.poll() is not None and not ready_file.exists():
            raise self.failed()

    def take_turn(self) -> bool:
        """Let it run for a turn, then stop it; return whether it has more to do."""
        end = time.monotonic() + self.turn
        self._run_until(lambda: time.monotonic() >= end)
        if self.process.poll():
            raise self.failed()
        return self.process.returncode is None

    def _run_until(self, enough: Callable[[], bool]) -> None:
        begin = time.time()
        self._signal(signal.SIGCONT)
        while self.process.poll() is None and not enough():
            time.sleep(0.01)
        self._signal(signal.SIGSTOP)
        self.slices.append((begin, time.time()))

    def active(self, start: float, moment: float) -> float:
        """Return the seconds of its turns between two moments."""
        return sum(max(0.0, min(end, moment) - max(begin, start)) for begin, end in self.slices)

    def end(self) -> None:
        """End the program if it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def failed(self) -> SystemExit:
        """Return the error of a program that ended before its end."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [
            "no message"
        ]
        return SystemExit(f"{self.name} ended with status {self.process.poll()}: {lines[-1]}")

    def _signal(self, number: int) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, number)


def take_turns(runners: Sequence[Runner]) -> None:
    """Let programs run in turns until all have ended."""
    last_message = time.monotonic()
    running = list(runners)
    while running:
        running = [runner for runner in running if runner.take_turn()]
        if time.monotonic() - last_message > 60:
            last_message = time.monotonic()
            progress(
                ", ".join(
                    f"{runner.name}: {sum(e - b for b, e in runner.slices):,.0f} s"
                    for runner in runners
                )
            )
