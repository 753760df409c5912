"""Rows: us and named peers on the same work, in one run, interleaved round by round.

On a shared machine the speed drifts by tens of percent within a minute. So each round runs every contender once
(A B C A B C …), and a ratio is the median of the ratios *within* rounds, in which the drift cancels, not the
ratio of two medians, in which it does not.
"""

import importlib.metadata
import importlib.util
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError


@dataclass(frozen=True)
class Contender:
    """Somebody who does the row's work.

    Attributes:
        name: As it is shown.
        run: Does the work once. Returns None to be timed from outside, or the seconds it took if it knows better (a
            subprocess that leaves its imports out).
        work: Units of work that `run` does (MB, tokens).
        warm_up: Whether a first run is worth throwing away; False for a process of its own, which starts cold every time.
    """

    name: str
    run: Callable[[], float | None]
    work: float
    warm_up: bool = True


@dataclass(frozen=True)
class Peer:
    """A peer library that may not be installed.

    Attributes:
        name: As it is shown.
        module: What must be importable.
        install: The command that brings it.
    """

    name: str
    module: str
    install: str

    @property
    def installed(self) -> bool:
        """Whether the module can be imported here."""
        return importlib.util.find_spec(self.module) is not None


@dataclass
class Row:
    """One line of results. `to_json` gives the documented keys.

    Attributes:
        row: What was measured.
        unit: Unit of `ours`, `peers`, `best` and `peak`; more is better.
        ours: Our median over the rounds.
        peers: Each peer's median.
        ratio: Ours over each peer, larger is better: median of the ratios within rounds.
        peak: What the machine could do in the same unit, measured in the same run; None where no limit is meaningful.
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
        """The row as plain values, floats to four significant digits."""
        return {key: _rounded(value) for key, value in vars(self).items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value


def interleave(
    contenders: Sequence[Contender],
    rounds: int,
    clock: Callable[[], float] = perf_counter,
    say: Callable[[str], None] | None = None,
) -> dict[str, list[float]]:
    """Time everybody once a round, in the order given, after one warm-up of each.

    Args:
        contenders: Who takes part. Names must differ.
        rounds: Timed rounds, at least 1.
        clock: Seconds; exchanged in tests.
        say: Called with a line of progress after the warm-up and each round.

    Returns:
        Seconds of each round, by name.

    Raises:
        ConfigError: bad-rounds.
    """
    if rounds < 1:
        raise ConfigError("bad-rounds", f"--rounds is {rounds}, it must be at least 1", "leave it out for the default")
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for number in range(rounds + 1):  # round 0 warms up: caches, compiled loops, thread pools
        for contender in contenders:
            if number == 0 and not contender.warm_up:
                continue
            start = clock()
            own = contender.run()
            taken = clock() - start if own is None else own
            if number:
                seconds[contender.name].append(taken)
        if say:
            say("warmed up" if number == 0 else f"round {number} of {rounds}")
    return seconds


def compare(
    row: str, unit: str, ours: Contender, peers: Sequence[Contender], seconds: dict[str, list[float]], **others: Any
) -> Row:
    """Make a row of measured seconds.

    Args:
        row: What was measured.
        unit: Unit of work a second, for example "MB/s".
        ours: Us.
        peers: Those to compare with.
        seconds: Of `interleave`, which may hold more contenders than this row shows.
        **others: Further fields of `Row`.
    """
    own_rates = [ours.work / taken for taken in seconds[ours.name]]
    result = Row(row, unit, median(own_rates), {}, {}, rounds=len(own_rates), **others)
    for label, contender in [("ours", ours), *((peer.name, peer) for peer in peers)]:
        times = seconds[contender.name]
        rates = [contender.work / taken for taken in times]
        result.best[label] = max(rates)
        result.spread[label] = (max(times) - min(times)) / median(times)
        if contender is not ours:
            result.peers[label] = median(rates)
            result.ratio[label] = median(own / rate for own, rate in zip(own_rates, rates, strict=True))
    return result


@contextmanager
def using_threads(threads: int) -> Iterator[None]:
    """Let torch compute with so many threads, and afterwards with as many as before; 0 for all cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads or os.cpu_count() or 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def size_of(config: AlbertConfig) -> str:
    """A model's size as rows show it."""
    return f"H {config.hidden_size}, {config.num_hidden_layers} layers"


def missing(peers: Sequence[Peer]) -> dict[str, str]:
    """Install lines of the peers that are not installed."""
    return {peer.name: peer.install for peer in peers if not peer.installed}


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python, albertkit, the machine, and the packages named (those installed)."""
    found = {"python": platform.python_version(), "machine": _processor(), "cores": str(os.cpu_count())}
    for package in ("albertkit", *packages):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as stream:
            return next(line.split(":", 1)[1].strip() for line in stream if line.startswith("model name"))
    except (OSError, StopIteration):  # not Linux, or a processor without a name
        return platform.processor() or platform.machine()


def progress(line: str) -> None:
    """Say how far we are, on stderr, so that stdout holds results only."""
    print(line, file=sys.stderr, flush=True)
