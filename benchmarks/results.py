"""`make results`: every row on this machine, one command after the other, and one page of the results.

Each command is a process of its own and writes its rows to a file as soon as they are measured, so
that a run that is killed goes on where it was, and a command that fails leaves the others alone.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from albertkit.files import atomic_file, write_json
from benchmarks.harness import HEADINGS, Row, progress, versions
from benchmarks.inputs import Words

# Row to its options: rounds and sizes meant to fit all of it into an hour, and which of --text,
# --tokenizer and --data it takes.
TEXT = ("text", "tokenizer")
MEASUREMENTS: dict[str, tuple[str, Sequence[str]]] = {
    "tokenize": ("--rounds 5", TEXT),
    "data": ("--rounds 3", TEXT),
    "pretrain": ("--rounds 3", TEXT),
    "finetune": ("--rounds 2", (*TEXT, "data")),
    "embed": ("--rounds 3", TEXT),
    "caption": ("--rounds 3", ()),
    "latency": ("--rounds 5", ()),
    "encode": ("--rounds 3 --sentences 128", TEXT),
    "accelerate": ("--rounds 5", TEXT),
    "accelerate-training": ("--rounds 2", (*TEXT, "data")),
    "serve": ("--rounds 3 --sentences 1024", TEXT),
    "quality": ("--recipe recipes/wiki-quality-cpu.toml", TEXT),
}
# The race for a loss takes half an hour by itself, and needs text and tokenizer: the recipe's model
# has a vocabulary.
APART = "quality"
HEAD = """# Measured

Written by `make results`: every row with its command. *ours / theirs* is the median of the ratios within rounds, everybody
having run once a round; more is better everywhere. *Spread* is (slowest - fastest) / median over the rounds.
"""


def measure_all(
    *,
    out: Path,
    only: Words = (),
    text: Words = (),
    tokenizer: Path | None = None,
    data: Path | None = None,
    again: bool = False,
) -> None:
    """Run the rows one after the other, and write a page of the results. Killed? The same command goes on.

    Args:
        out: Folder of the results: NAME.json of each row, and `measured.md`.
        only: Names of rows. Default: all but quality, which takes half an hour by itself.
        text: Files, globs or folders of text. Default: the built-in English text.
        tokenizer: Folder with one `*.model`. Default: one trained on the text on the spot.
        data: Folder with MRPC/ and SST-2/, for fine-tuning. Default: sentences of the text.
        again: Measure also what the folder holds already.
    """
    if unknown := set(only) - MEASUREMENTS.keys():
        raise SystemExit(f"no such rows: {', '.join(unknown)}; there are {', '.join(MEASUREMENTS)}")
    inputs = {
        "text": list(text),
        "tokenizer": [str(tokenizer)] * bool(tokenizer),
        "data": [str(data)] * bool(data),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, (options, takes) in MEASUREMENTS.items():
        file = out / f"{name}.json"
        if name not in only if only else name == APART:
            continue
        if (
            file.exists()
            and not again
            and not json.loads(file.read_text(encoding="utf-8"))["failed"]
        ):
            progress(f"{name}: measured before, see `{file}`")
            continue
        if name == APART and not (text and tokenizer):
            progress(f"{name}: left out, it needs --text and --tokenizer")
            continue
        flags = [word for flag in takes if inputs[flag] for word in (f"--{flag}", *inputs[flag])]
        write_json(file, _measure(name, [name, *options.split(), *flags]))
        _write_page(out)
    # A run that was killed may have measured everything and not written it
    measured = _write_page(out)
    print(out / "measured.md")
    if any(result["failed"] for result in measured):
        raise SystemExit(1)


def _measure(name: str, arguments: list[str]) -> dict[str, Any]:
    """Run a command; return what is kept of it."""
    command = " ".join(["python -m benchmarks", *arguments])
    progress(f"{name}: {command}")
    started = time.monotonic()
    process = run([sys.executable, "-m", "benchmarks", *arguments, "--json"])
    return {
        "name": name,
        "command": command,
        "rows": [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")],
        "failed": "" if process.returncode == 0 else f"exit status {process.returncode}",
        "seconds": round(time.monotonic() - started, 1),
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "commit": _commit(),
    }


def run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run a command; its stderr goes on to ours."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)


def _commit() -> str:
    """Return the commit of the checkout this code lies in, marked where files differ from it; else the version."""
    command = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=10",
        "--match",
        "",
    ]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return f"version {versions()['albertkit']}"


# --- the page -------------------------------------------------------------------------------------


def _write_page(out: Path) -> list[dict[str, Any]]:
    """Write the page of all that the folder holds, and return that."""
    files = [file for name in MEASUREMENTS if (file := out / f"{name}.json").exists()]
    results = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    with atomic_file(out / "measured.md", "w") as stream:
        stream.write(HEAD + "".join("\n".join(_section(result)) + "\n" for result in results))
    return results


def _section(result: dict[str, Any]) -> Iterator[str]:
    yield from ("", f"## {result['name']}", "", f"`{result['command']}`", "")
    rows = [Row(**row) for row in result["rows"]]
    # Processor and versions are the same for all rows of a command.
    packages = {name: version for row in rows for name, version in row.versions.items()}
    machine, cores = packages.pop("machine", "an unknown processor"), packages.pop("cores", "?")
    described = f", {cores} cores of {machine}; " + ", ".join(
        f"{name} {version}" for name, version in packages.items()
    )
    yield f"{result['when']} UTC, {result['seconds'] / 60:.1f} minutes, commit {result['commit']}{described if rows else ''}."
    if result["failed"]:
        yield from ("", f"**Failed**: {result['failed']}.")
    for row in rows:
        yield from ("", f"**{_plain(row.row)}** ({row.unit}, {row.rounds} rounds)", "")
        lacking = [(name, f"took no part: {why}", "", "", "") for name, why in row.missing.items()]
        for cells in (HEADINGS, ["---"] * 5, *row.cells(), *lacking):
            yield f"| {' | '.join(map(_plain, cells))} |"
        if row.equal is not None:
            yield from ("", f"Equal: {'yes' if row.equal else '**NO**'}. {_plain(row.compared)}")
        if row.note:
            yield from ("", _plain(row.note))


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
