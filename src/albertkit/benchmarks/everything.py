"""`albertkit bench all`: every row on this machine, one command after the other, and one page of what came out.

Each command is a process of its own and writes its rows to a file as soon as they are measured, so that a run that is
killed goes on where it was, and a command that fails leaves the others alone. The race for a loss takes half an hour by itself
and is run only where it is named.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from albertkit.benchmarks.harness import progress, versions
from albertkit.benchmarks.measured_page import render
from albertkit.errors import ConfigError, near_miss
from albertkit.files import atomic_file, read_json, write_json

PAGE = "measured.md"


@dataclass(frozen=True)
class Measurement:
    """A command of `albertkit bench` and how it is run here.

    Attributes:
        name: Of the command.
        takes: What it is given of "text", "tokenizer" and "data".
        needs: Those that it cannot do without: its model has a vocabulary of its own.
        apart: Run only where it is named: half an hour by itself.
        options: Beside that: rounds and sizes meant to fit all of it into an hour.
    """

    name: str
    takes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    apart: bool = False


MEASUREMENTS = (
    Measurement("tokenize", ("text", "tokenizer"), ("--rounds", "5")),
    Measurement("data", ("text", "tokenizer"), ("--rounds", "3")),
    Measurement("pretrain", ("text", "tokenizer"), ("--rounds", "3")),
    Measurement("finetune", ("text", "tokenizer", "data"), ("--rounds", "2")),
    Measurement("embed", ("text", "tokenizer"), ("--rounds", "3")),
    Measurement("caption", (), ("--rounds", "3")),
    Measurement("latency", (), ("--rounds", "5")),
    Measurement("encode", ("text", "tokenizer"), ("--rounds", "3", "--sentences", "128")),
    Measurement("serve", ("text", "tokenizer"), ("--rounds", "3", "--sentences", "1024")),
    Measurement(
        "quality", ("text", "tokenizer"), ("--recipe", "recipes/wiki-quality-cpu.toml"),
        needs=("text", "tokenizer"), apart=True,
    ),
)  # fmt: skip


@dataclass
class Measured:
    """What one command gave.

    Attributes:
        name: Of the command.
        command: As it was run.
        rows: Of `Row.to_json`.
        failed: Its exit status, if it failed; else empty.
        seconds: It took.
        when: UTC, to the minute.
        commit: Of the checkout that albertkit was run from; its version where there is none.
    """

    name: str
    command: str
    rows: list[dict[str, Any]]
    failed: str
    seconds: float
    when: str
    commit: str


def measure_everything(
    out: Path,
    given: Mapping[str, Sequence[str]],
    only: Sequence[str] = (),
    again: bool = False,
    run: Callable[[list[str]], subprocess.CompletedProcess[str]] | None = None,
) -> list[Measured]:
    """Run the commands, keep their rows in `out/NAME.json`, and write `out/measured.md` after each.

    Args:
        out: Folder of the results.
        given: Values for the flags "text", "tokenizer" and "data"; a command gets those that it takes.
        only: Names of commands. Default: all that are not measured apart.
        again: Measure also what the folder holds already.
        run: Runs a command line; exchanged in tests.

    Returns:
        All that the folder holds now, in the order of `MEASUREMENTS`.

    Raises:
        ConfigError: bad-benchmark. DataError: broken-file.
    """
    known = [measurement.name for measurement in MEASUREMENTS]
    for name in only:
        if name not in known:
            raise ConfigError("bad-benchmark", f"there is no benchmark `{name}`", near_miss(name, known))
    out.mkdir(parents=True, exist_ok=True)
    for measurement in MEASUREMENTS:
        file = out / f"{measurement.name}.json"
        if measurement.name not in only if only else measurement.apart:
            continue
        if file.exists() and not again and not read_json(file, "results")["failed"]:
            progress(f"{measurement.name}: measured before, see `{file}`")
            continue
        if lacking := [f"--{flag}" for flag in measurement.needs if not given.get(flag)]:
            progress(f"{measurement.name}: left out, it needs {' and '.join(lacking)}")
            continue
        write_json(file, asdict(_measure(measurement, given, run or _run)))
        _write_page(out)
    return _write_page(out)  # a run that was killed may have measured everything and not written it


def _measure(
    measurement: Measurement,
    given: Mapping[str, Sequence[str]],
    run: Callable[[list[str]], subprocess.CompletedProcess[str]],
) -> Measured:
    arguments = ["bench", measurement.name, *measurement.options]
    for flag in measurement.takes:
        if given.get(flag):
            arguments += [f"--{flag}", *given[flag]]
    progress(f"{measurement.name}: albertkit {' '.join(arguments)}")
    started = time.monotonic()
    done = run([sys.executable, "-m", "albertkit.cli", *arguments, "--json"])
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    failed = "" if done.returncode == 0 else f"exit status {done.returncode}"
    return Measured(
        measurement.name, " ".join(["albertkit", *arguments]), rows, failed, round(time.monotonic() - started, 1),
        datetime.now(UTC).strftime("%Y-%m-%d %H:%M"), commit(),
    )  # fmt: skip


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command; what it says meanwhile goes on to our stderr."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)


def commit() -> str:
    """The commit of the checkout this code lies in, marked where files differ from it; else the version."""
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=10", "--match", ""],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return f"version {versions()['albertkit']}"
    return found.stdout.strip()


def _write_page(out: Path) -> list[Measured]:
    """Write the page of all that the folder holds, and return that."""
    files = [out / f"{measurement.name}.json" for measurement in MEASUREMENTS]
    found = [Measured(**read_json(file, "results")) for file in files if file.exists()]
    with atomic_file(out / PAGE, "w") as stream:
        stream.write(render([asdict(measured) for measured in found]))
    return found
