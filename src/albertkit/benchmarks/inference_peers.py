"""The process of inference's peers, and whether the process that waits is idle. `latency_peer.py` runs in it."""

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

from albertkit.benchmarks.harness import progress
from albertkit.errors import DataError
from albertkit.model import AlbertModel

PYTHON = "ALBERTKIT_INFERENCE_PEERS_PYTHON"
INSTALL = (
    "python -m venv PEERS && PEERS/bin/pip install 'torch==2.13.0' transformers onnx onnxscript onnxruntime openvino nncf; "
    f"then {PYTHON}=PEERS/bin/python"
)
SETTLE = 0.05  # seconds after a run: thread pools spin for some milliseconds before they sleep


@dataclass(frozen=True)
class Work:
    """What everybody computes.

    Attributes:
        sequences: Lists of ids.
        batch: Sequences at once.
        by_length: Peers sort by length first; the order of results is that of the sequences.
        prepared: There is one batch, laid out before the clock starts.
    """

    sequences: list[list[int]]
    batch: int
    by_length: bool = False
    prepared: bool = True


@dataclass
class Peers:
    """A process that holds the peers' models; see `latency_peer.py`.

    Attributes:
        ready: Names of the settings that work there.
        failed: Name of every other setting to what is missing for it, and how to get it.
        threads: Of each setting, as its library says.
        remarks: Name to `trials` (by work) and `products`.
        versions: Of its packages.
        scratch: Folder for states.
        process: The process.
        log: What it wrote to stderr.
    """

    ready: list[str]
    failed: dict[str, str]
    threads: dict[str, int]
    remarks: dict[str, dict[str, Any]]
    versions: dict[str, str]
    scratch: Path
    process: "subprocess.Popen[str]"
    log: Path

    def seconds(self, name: str, work: str, calls: int) -> list[float]:
        """Compute a work so many times at a setting; the process times itself."""
        return self._ask({"run": name, "work": work, "calls": calls})["seconds"]

    def states(self, name: str, work: str) -> np.ndarray:
        """fp32, as the work wants them."""
        file = self.scratch / "states.npy"
        self._ask({"states": name, "work": work, "file": str(file)})
        return np.load(file)

    def notes(self, kind: str) -> dict[str, Any]:
        """Name to its remark of a kind, of those that have one."""
        return {name: remarks[kind] for name, remarks in self.remarks.items() if kind in remarks}

    def processor_seconds(self) -> float:
        """Processor time it has used; 0 where the system does not say."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: `_answer` says so
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
        answer = _answer(self.process, self.log)
        if "error" in answer:
            who = question.get("run") or question.get("states")
            raise DataError("peer-failed", f"{who}: {answer['error']}", INSTALL)
        return answer


@contextmanager
def open_peers(
    python: str | None, model: AlbertModel, works: dict[str, Work], scratch: Path, first_only: bool = False
) -> Iterator[Peers]:
    """Start the peers' process and let it make every setting it can for every work.

    Args:
        python: Interpreter. Default: what `ALBERTKIT_INFERENCE_PEERS_PYTHON` names, or this one.
        model: What all compute.
        works: Name to work.
        scratch: Empty folder for exports.
        first_only: The states of first tokens are wanted, not those of all.

    Raises:
        DataError: not-found if the interpreter cannot be run; peer-failed with the last line it wrote.
    """
    python = python or os.environ.get(PYTHON) or sys.executable
    folder, log, threads = scratch / "model", scratch / "peers.log", torch.get_num_threads()
    model.save_pretrained(folder)
    (scratch / "works.json").write_text(
        json.dumps({name: vars(work) for name, work in works.items()}), encoding="utf-8"
    )
    job = {
        "folder": str(folder), "works": str(scratch / "works.json"), "threads": threads, "settle": SETTLE,
        "scratch": str(scratch), "first_only": first_only,
    }  # fmt: skip
    script = Path(__file__).with_name("latency_peer.py")
    quiet = {"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", "TQDM_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment = {**os.environ, **quiet, "OMP_NUM_THREADS": str(threads)}
    with open(log, "w", encoding="utf-8") as stream:
        try:
            process = subprocess.Popen(
                [python, str(script), json.dumps(job)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream, text=True,
                encoding="utf-8", env=environment,
            )  # fmt: skip
        except OSError as error:
            raise DataError("not-found", f"`{python}` cannot be run: {error.strerror}", "name an interpreter") from None
        try:
            answer = _answer(process, log)
            while "making" in answer:
                progress(f"peers: {answer['making']}")
                answer = _answer(process, log)
            failed = {name: f"{reason}; {INSTALL}" for name, reason in answer["failed"].items()}
            yield Peers(
                answer["ready"], failed, answer["threads"], answer["notes"], answer["versions"], scratch, process, log
            )
        finally:
            process.kill()
            process.communicate()


def _answer(process: "subprocess.Popen[str]", log: Path) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        status = process.wait()
        said = next(reversed(log.read_text(encoding="utf-8", errors="replace").split("\n")[-2:-1]), "")
        raise DataError("peer-failed", f"the peers' process ended with exit status {status}: {said[:300]}", INSTALL)
    return json.loads(line)


class IdleMeter:
    """Runs contenders by their own clocks, and measures whether the process that waits is idle.

    Args:
        peers: The other process.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._seconds = {"peers while ours runs": [0.0, 0.0], "ours while peers run": [0.0, 0.0]}

    def ours(self, work: Callable[[], Any], calls: int = 1) -> Callable[[], float]:
        """A run of ours: the median seconds of several calls."""

        def run() -> float:
            taken, before, busy = [], time.perf_counter(), self._peers.processor_seconds()
            for _ in range(calls):
                start = time.perf_counter()
                work()
                taken.append(time.perf_counter() - start)
            time.sleep(SETTLE)
            self._note("peers while ours runs", self._peers.processor_seconds() - busy, before)
            return median(taken)

        return run

    def theirs(self, name: str, work: str, calls: int = 1) -> Callable[[], float]:
        """A run of a peer's: likewise, by the clock of its process."""

        def run() -> float:
            before, busy = time.perf_counter(), time.process_time()
            taken = median(self._peers.seconds(name, work, calls))
            self._note("ours while peers run", time.process_time() - busy, before)
            return taken

        return run

    def _note(self, who: str, busy: float, since: float) -> None:
        self._seconds[who][0] += busy
        self._seconds[who][1] += time.perf_counter() - since

    def shares(self) -> dict[str, float]:
        """Processor seconds a second; near 0 if nobody disturbs."""
        return {who: busy / total for who, (busy, total) in self._seconds.items() if total}
