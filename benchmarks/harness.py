"""Rows: us and named peers on the same work, in one run, interleaved round by round.

On a shared machine the speed drifts by tens of percent within a minute. So each round runs every
contender once (A B C A B C …), and a ratio is the median of the ratios *within* rounds, in which
the drift cancels, not the ratio of two medians, in which it does not.
"""

import copy
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from albertkit.config import AlbertConfig
from albertkit.report.doctor import machine_facts
from albertkit.training.processes import choose_precision

CPU = torch.device("cpu")
MATMUL = {"cpu": 2048, "cuda": 8192}  # width of the square matrices that measure the peak
HEADINGS = ("who", "median", "best", "spread", "ours / theirs")
# Of base, whatever the tokenizer: the prediction head's share of the work depends on it
VOCABULARY = 30_000


@dataclass(frozen=True)
class Contender:
    """Somebody who does the row's work.

    Attributes:
        name: As it is shown.
        run: Does the work once. Returns None to be timed from outside, or the seconds it took if it
            knows better (a process of its own that leaves its imports out).
        work: Units of work that `run` does (MB, tokens).
        warm_up: Whether a first run is worth throwing away; False for what starts a process every
            time.
    """

    name: str
    run: Callable[[], Any]
    work: float
    warm_up: bool = True


@dataclass(frozen=True)
class Peer:
    """A peer library that may not be installed: its name, what must be importable, and the command that brings it."""

    name: str
    module: str
    install: str

    @property
    def installed(self) -> bool:
        """Return whether the module can be imported here."""
        return importlib.util.find_spec(self.module) is not None

    @property
    def missing(self) -> dict[str, str]:
        """The install line by name, empty where it is installed."""
        return {} if self.installed else {self.name: self.install}


@dataclass
class Row:
    """One line of results. `to_json` gives the documented keys.

    Attributes:
        row: What was measured.
        unit: Unit of `ours`, `peers`, `best` and `peak`; more is better.
        ours: Our median over the rounds.
        peers: Each peer's median.
        ratio: Ours over each peer, larger is better: median of the ratios within rounds.
        peak: What the machine could do in the same unit, measured in the same run; None where no
            limit is meaningful.
        equal: Whether the outputs that must agree do; None if nothing was compared.
        compared: The sentence saying what was compared, and how.
        missing: Peers that took no part: name to what is missing and how to install it.
        versions: Versions of everything that took part.
        best: Everybody's best round, "ours" among them.
        spread: Everybody's (slowest - fastest) / median of seconds, over the rounds.
        rounds: Timed rounds, after one warm-up of each contender.
        note: What a reader must know to judge the row fairly.
        details: More figures of the row.
    """

    row: str
    unit: str
    ours: float
    peers: dict[str, float]
    ratio: dict[str, float]
    peak: float | None = None
    equal: bool | None = None
    compared: str = ""
    missing: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)
    spread: dict[str, float] = field(default_factory=dict)
    rounds: int = 0
    note: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, floats to four significant digits."""
        return {key: _rounded(value) for key, value in vars(self).items()}

    def cells(self) -> list[tuple[str, str, str, str, str]]:
        """Return the cells of a table: who, median, best round, spread, ours over theirs."""
        cells = []
        for label, value in {"ours": self.ours, **self.peers}.items():
            best, spread = number_text(self.best[label]), f"{self.spread[label]:.0%}"
            name, ratio = (
                ("albertkit", "") if label == "ours" else (label, f"{self.ratio[label]:.2f}x")
            )
            cells.append((name, number_text(value), best, spread, ratio))
        if self.peak is not None:
            reached = f"{self.ours / self.peak:.0%} reached"
            cells.append(("machine's measured peak", number_text(self.peak), "", "", reached))
        return cells

    def print(self) -> None:
        """Print a table for the terminal."""
        console = Console()
        title = escape(f"{self.row}   [{self.unit}, {self.rounds} rounds]")
        table = Table("who", title=title, title_justify="left", title_style="bold")
        for heading in HEADINGS[1:]:
            table.add_column(heading, justify="right")
        for cells in self.cells():
            table.add_row(*map(escape, cells))
        console.print(table)
        remarks = [self.note] if self.note else []
        if self.equal is not None:
            remarks.insert(0, f"equal: {'yes' if self.equal else 'NO'}. {self.compared}")
        remarks += [f"{key}: {value}" for key, value in self.to_json()["details"].items()]
        remarks += [f"missing: {name}; {line}" for name, line in self.missing.items()]
        for remark in remarks:
            console.print(escape(remark), style="dim", highlight=False)
        console.print()


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value


def number_text(value: float) -> str:
    """Return a number as tables show it: whole from 100, three digits below."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def interleave(
    contenders: Sequence[Contender], rounds: int, clock: Callable[[], float] = perf_counter
) -> dict[str, list[float]]:
    """Time every program once a round, in the order given, after one warm-up of each; return the seconds by name."""
    if rounds < 1:
        raise SystemExit(f"--rounds is {rounds}, it must be at least 1")
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for number in range(rounds + 1):  # round 0 warms up: caches, compiled loops, thread pools
        for contender in contenders:
            if number == 0 and not contender.warm_up:
                continue
            start = clock()
            measured = contender.run()
            elapsed = measured if isinstance(measured, float) else clock() - start
            if number:
                seconds[contender.name].append(elapsed)
        progress("warmed up" if number == 0 else f"round {number} of {rounds}")
    return seconds


def compare(
    row: str,
    unit: str,
    ours: Contender,
    peers: Sequence[Contender],
    seconds: dict[str, list[float]],
    **fields: Any,
) -> Row:
    """Return a row of the seconds of `interleave`, which may hold more contenders than this row shows.

    Args:
        row: What was measured.
        unit: Unit of work a second, for example "MB/s".
        ours: Us.
        peers: Those to compare with.
        seconds: By name.
        **others: Further fields of `Row`.
    """
    own_rates = [ours.work / elapsed for elapsed in seconds[ours.name]]
    result = Row(row, unit, median(own_rates), {}, {}, rounds=len(own_rates), **fields)
    for label, contender in [("ours", ours), *((peer.name, peer) for peer in peers)]:
        times = seconds[contender.name]
        rates = [contender.work / elapsed for elapsed in times]
        result.best[label] = max(rates)
        result.spread[label] = (max(times) - min(times)) / median(times)
        if contender is not ours:
            result.peers[label] = median(rates)
            result.ratio[label] = median(
                own_rate / rate for own_rate, rate in zip(own_rates, rates, strict=True)
            )
    return result


def measure(
    title: str,
    unit: str,
    ours: Mapping[str, Contender],
    peers: Sequence[Contender],
    rounds: int,
    peaks: Mapping[str, Contender] | None = None,
    gflop: float = 1.0,
    **fields: Any,
) -> tuple[dict[str, Row], dict[str, float]]:
    """Interleave all programs; return a row for each of ours by name, and the machine's best GFLOP/s by name.

    Args:
        title: Of the rows, with `{}` for the name of ours.
        unit: As `compare`.
        ours: Us in several forms.
        peers: Those to compare with.
        rounds: Timed rounds.
        peaks: Name to what measures the machine in GFLOP/s; a form of ours of that name gets the
            peak.
        gflop: Operations of a unit of work.
        **others: Further fields of each row.
    """
    everybody = {
        program.name: program for program in (*(peaks or {}).values(), *ours.values(), *peers)
    }
    progress(f"{title.replace('{}', ' and '.join(ours))}, {torch.get_num_threads()} threads")
    seconds = interleave(list(everybody.values()), rounds)
    best = {name: peak.work / min(seconds[peak.name]) for name, peak in (peaks or {}).items()}
    rows = {}
    for name, contender in ours.items():
        rows[name] = compare(
            title.replace("{}", name), unit, contender, peers, seconds, **copy.deepcopy(fields)
        )
        rows[name].peak = best[name] / gflop if name in best else None
    return rows, best


@Parameter(name="*")
@dataclass(frozen=True)
class Timing:
    """Options that every row has.

    Attributes:
        rounds: Timed rounds; each runs every program once. Default: the row's own.
        threads: Threads for each program. Default: all cores.
        config: Configuration file of a model to measure in place of the row's own.
    """

    rounds: int | None = None
    threads: int = 0
    config: Path | None = None

    def model_config(self, size: str = "base") -> AlbertConfig:
        """Return the configuration to measure."""
        return (
            AlbertConfig.from_pretrained(self.config)
            if self.config
            else AlbertConfig.from_size(size, vocab_size=VOCABULARY)
        )


TIMING = Timing()


@contextmanager
def using_threads(threads: int) -> Iterator[None]:
    """Let torch compute with so many threads, and afterwards with as many as before; 0 for all cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or os.cpu_count() or 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def busy_neighbours(count: int) -> Iterator[None]:
    """Keep so many processes computing all the while, as other people's on a shared machine."""
    if count < 0:
        raise SystemExit(f"--busy is {count}, it must be at least 0")
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a folder that is removed afterwards."""
    with TemporaryDirectory(prefix="albertkit-bench-") as folder:
        yield Path(folder)


def precisions() -> dict[str, torch.dtype]:
    """Return what we are measured in: bf16 where this machine multiplies it faster, and fp32."""
    faster = choose_precision("auto", torch.device("cpu")) is torch.bfloat16
    return ({"bf16": torch.bfloat16} if faster else {}) | {"fp32": torch.float32}


def matmul_peak(dtype: torch.dtype, device: torch.device = CPU) -> Contender:
    """Measure the machine's peak in GFLOP/s: products of large square matrices."""
    width, times = MATMUL[device.type], 3 if device.type == "cpu" else 10
    left, right = (torch.randn(width, width, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)

    def run() -> None:
        for _ in range(times):
            torch.matmul(left, right, out=out)

    return Contender(f"matmul {dtype}", waiting(run, device), times * 2 * width**3 / 1e9)


def describe_peak(precision: str, device: torch.device = CPU) -> str:
    """Return what `matmul_peak` multiplies, for the terminal."""
    return f"{precision} matmul of {MATMUL[device.type]} x {MATMUL[device.type]}"


def waiting(run: Callable[[], Any], device: torch.device) -> Callable[[], None]:
    """Return the same run, over when the device has done what it was asked."""

    def complete() -> None:
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return complete


def device_name(device: torch.device) -> str:
    """Return a device's name as rows show it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def size_of(config: AlbertConfig) -> str:
    """Return a model's size as rows show it."""
    return f"H {config.hidden_size}, {config.num_hidden_layers} layers"


def versions(*packages: str) -> dict[str, str]:
    """Return versions of Python, albertkit, the machine, and the packages named (those installed)."""
    values = {
        "python": platform.python_version(),
        "machine": machine_facts()["cpu"],
        "cores": str(os.cpu_count()),
    }
    for package in ("albertkit", *packages):
        try:
            values[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return values


def progress(line: str) -> None:
    """Report progress on stderr, so that stdout holds results only."""
    print(line, file=sys.stderr, flush=True)
