"""Peers in processes of their own, run by other interpreters where they need one: our side of `peer_programs/protocol.py`."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.harness import progress

SETTLE = 0.05  # seconds after a run: thread pools spin for some milliseconds before they sleep
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "PYTHONWARNINGS": "ignore",
    "TQDM_DISABLE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


@dataclass(frozen=True)
class Program:
    """A program of `peer_programs`.

    Attributes:
        name: Of its file.
        variable: Environment variable that names an interpreter for it; this one where it is not
            set.
        install: How to get what it needs.
    """

    name: str
    variable: str = ""
    install: str = ""


@dataclass
class PeerProcess:
    """A process that holds models of peers.

    Attributes:
        process: The process.
        scratch: Folder of its log and arrays.
        program: What runs in it.
        about: What it said when it was ready: `ready`, `failed`, `versions`, …
    """

    process: "subprocess.Popen[str]"
    scratch: Path
    program: Program
    about: dict[str, Any]

    @property
    def ready(self) -> list[str]:
        """Names of the settings that work there."""
        return self.about["ready"]

    def failed(self, prefix: str = "") -> dict[str, str]:
        """Return the name of every other setting, and what is missing for it."""
        return {
            f"{prefix}{name}": f"{reason}; {self.program.install}"
            for name, reason in self.about["failed"].items()
        }

    def ask(self, name: str, work: str = "", calls: int = 1, **more: str) -> dict[str, Any]:
        """Let it run a setting; the process times itself."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: `_read` says so
            self.process.stdin.write(
                json.dumps({"run": name, "work": work, "calls": calls, **more}) + "\n"
            )
            self.process.stdin.flush()
        answer = self.read()
        if "error" in answer:
            raise SystemExit(f"{name}: {answer['error']}; {self.program.install}")
        return answer

    def seconds(self, name: str, work: str = "", calls: int = 1) -> float:
        """Run a setting, and return the median of its seconds."""
        return median(self.ask(name, work, calls)["seconds"])

    def array(self, name: str, work: str = "") -> np.ndarray:
        """Return what a setting computes, as fp32."""
        self.ask(name, work, file=str(self.scratch / "array.npy"))
        return np.load(self.scratch / "array.npy")

    def processor_seconds(self) -> float:
        """Return the processor time it has used; 0 where the system does not say."""
        try:
            fields = (
                Path(f"/proc/{self.process.pid}/stat")
                .read_text(encoding="utf-8")
                .rpartition(")")[2]
                .split()
            )
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def read(self) -> dict[str, Any]:
        """Return its next answer."""
        assert self.process.stdout is not None
        if line := self.process.stdout.readline():
            return json.loads(line)
        status = self.process.wait()
        log = (
            (self.scratch / "peer.log")
            .read_text(encoding="utf-8", errors="replace")
            .strip()
            .splitlines()
        )
        raise SystemExit(
            f"the peer ended with exit status {status}: {log[-1][:300] if log else 'no message'}; {self.program.install}"
        )


@contextmanager
def open_peer(
    program: Program, job: dict[str, Any], scratch: Path, python: str | None = None
) -> Iterator[PeerProcess]:
    """Start a program with a job, to which `threads` and `scratch` are added, and wait until it is ready."""
    python = python or os.environ.get(program.variable) or sys.executable
    threads = torch.get_num_threads()
    module, root = f"benchmarks.peer_programs.{program.name}", str(Path(__file__).parent.parent)
    arguments = [
        python,
        "-m",
        module,
        json.dumps({**job, "threads": threads, "scratch": str(scratch)}),
    ]
    paths = (root, os.environ.get("PYTHONPATH"))
    limits = dict.fromkeys(("OMP_NUM_THREADS", "RAYON_NUM_THREADS"), str(threads))
    with open(scratch / "peer.log", "w", encoding="utf-8") as log:
        try:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                env={
                    **os.environ,
                    **limits,
                    **QUIET,
                    "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                },
            )
        except OSError as error:
            raise SystemExit(f"`{python}` cannot be run: {error.strerror}") from None
        peer = PeerProcess(process, scratch, program, {})
        try:
            peer.about = peer.read()
            while "making" in peer.about:
                progress(f"{program.name}: {peer.about['making']}")
                peer.about = peer.read()
            yield peer
        finally:
            process.kill()
            process.communicate()


class IdleMeter:
    """Runs contenders by their own clocks, and measures whether the process that waits is idle."""

    def __init__(self, peer: PeerProcess) -> None:
        self._peer = peer
        self._seconds = {"peers while ours runs": [0.0, 0.0], "ours while peers run": [0.0, 0.0]}

    def ours(self, work: Callable[[], Any], calls: int = 1) -> Callable[[], float]:
        """Return a run of ours: the median seconds of several calls."""

        def run() -> float:
            times, before, busy = [], time.perf_counter(), self._peer.processor_seconds()
            for _ in range(calls):
                start = time.perf_counter()
                work()
                times.append(time.perf_counter() - start)
            time.sleep(SETTLE)
            self._note("peers while ours runs", self._peer.processor_seconds() - busy, before)
            return median(times)

        return run

    def theirs(self, name: str, work: str, calls: int = 1) -> Callable[[], float]:
        """Return a run of a peer's: likewise, by the clock of its process."""

        def run() -> float:
            before, busy = time.perf_counter(), time.process_time()
            times = self._peer.seconds(name, work, calls)
            self._note("ours while peers run", time.process_time() - busy, before)
            return times

        return run

    def _note(self, process_name: str, busy: float, since: float) -> None:
        self._seconds[process_name][0] += busy
        self._seconds[process_name][1] += time.perf_counter() - since

    def shares(self) -> dict[str, float]:
        """Return processor seconds a second; near 0 on an idle machine."""
        return {
            process_name: busy / total
            for process_name, (busy, total) in self._seconds.items()
            if total
        }
