"""Row `start`: seconds until a command says something, and until it ends, on inputs so small that starting is all it does.

Cold: nothing was compiled for this processor before, as after an installation. Warm: the same
command again.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.output.sections import Result, Section, TableSection
from benchmarks.harness import progress, scratch_folder
from benchmarks.moving_shapes import make_clips

# In this order: a command uses what one before it has made. `RUN` and so on are folders that they
# leave.
COMMANDS = """
doctor
tokenizer train text.txt --out TOKENIZER --vocab-size 44
tokenizer encode text.txt --tokenizer TOKENIZER
corpus build text.txt --tokenizer TOKENIZER --out STORE
corpus inspect STORE --length 32
pretrain STORE --out RUN --config-file run.toml
evaluate RUN STORE
inspect RUN
report RUN
init --tokenizer TOKENIZER --config config.json --out EMPTY
tokenizer extend TOKENIZER korean.txt --model RUN --max-new 24 --out GROWN
convert RUN TF1 --to tf1
compare-precision RUN
predict RUN --text [MASK]
finetune classify RUN classes.tsv --text text --label label --out CLASSIFIER --steps 2 --batch-size 8
predict CLASSIFIER classes.tsv --out predictions.jsonl
evaluate CLASSIFIER classes.tsv
score classify predictions.jsonl classes.tsv --label label
embed train scores RUN pairs.tsv --text text --pair pair --label score --out ENCODER --steps 2 --batch-size 8
embed encode ENCODER lines.txt --out vectors.npy
embed distill RUN lines.txt --teacher vectors.npy --out STUDENT --steps 2 --batch-size 8
embed evaluate ENCODER scores=pairs.tsv --text text --pair pair --label score
export onnx CLASSIFIER --out ONNX
caption prepare SHAPES --out CLIPS --frames 4 --size 64
caption train RUN CLIPS --out CAPTIONER --steps 2
caption predict CAPTIONER SHAPES/videos --out captions.jsonl
caption score captions.jsonl SHAPES/train.jsonl SHAPES/dev.jsonl SHAPES/test.jsonl
serve RUN --port 0
quickstart --out QUICKSTART --minutes 0.1
"""
LISTENING = "listening"


@dataclass(frozen=True)
class Started(Result):
    """Seconds by command: until the first byte of either stream, and until the end; of `serve` until it listens."""

    rows: list[tuple[str, float, float, float, float]]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        names = ("command", "cold_first", "cold_end", "warm_first", "warm_end")
        return {"rows": [dict(zip(names, row, strict=True)) for row in self.rows]}

    def sections(self) -> list[Section]:
        """Return a table."""
        columns = ["command", "cold: first output, s", "end, s", "warm: first output, s", "end, s"]
        rows = [[name, *(f"{seconds:.1f}" for seconds in times)] for name, *times in self.rows]
        return [TableSection(columns, rows)]


def start() -> Iterator[Started]:
    """Seconds until each command says something, with nothing compiled and with everything compiled."""
    commands = [line.split() for line in COMMANDS.strip().splitlines()]
    cold: dict[str, tuple[float, float]] = {}
    warm: dict[str, tuple[float, float]] = {}
    with scratch_folder() as cache:
        for seconds in (cold, warm):
            with scratch_folder() as folder:
                write_inputs(folder)
                for command in commands:
                    seconds[" ".join(command)] = run(command, folder, cache)
                    progress(f"{' '.join(command)}: {seconds[' '.join(command)][0]:.1f} s")
    yield Started([(name, *cold[name], *warm[name]) for name in cold])


def run(command: list[str], folder: Path, cache: Path) -> tuple[float, float]:
    """Run a command; return the seconds until it says something, and until it ends."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONUNBUFFERED": "1"}
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "albertkit", *command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    select.select([process.stdout], [], [])
    first, output = time.perf_counter() - began, b""
    while part := os.read(process.stdout.fileno(), 1 << 16):
        output += part
        if command[0] == "serve" and LISTENING.encode() in output:
            process.send_signal(signal.SIGTERM)
            break
    ended = time.perf_counter() - began
    process.communicate()
    # 1: a small random model is not the same in int8
    if process.returncode not in (0, 1, 128 + signal.SIGTERM):
        raise SystemExit(f"{' '.join(command)}: {output.decode(errors='replace')}")
    return first, ended


def write_inputs(folder: Path) -> None:
    """Write lines of random words, a table of classes, one of scored pairs, videos, a configuration and settings."""
    draws = np.random.default_rng(0)
    words = "the quick brown fox jumps over a lazy dog while seven old wizards brew strong potions near calm rivers".split()

    def sentence() -> str:
        return " ".join(draws.choice(words, draws.integers(4, 12)))

    lines = [f"{sentence()}.{chr(10) * (number % 8 == 7)}" for number in range(400)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    (folder / "lines.txt").write_text("\n".join(line.strip() for line in lines) + "\n")
    (folder / "korean.txt").write_text(
        "서울에서 온 마법사가 강을 건너 숲으로 갔다.\n" * 50, encoding="utf-8"
    )
    classes = [f"{sentence()}\t{'ab'[number % 2]}" for number in range(64)]
    (folder / "classes.tsv").write_text("\n".join(["text\tlabel", *classes]) + "\n")
    pairs = [f"{sentence()}\t{sentence()}\t{draws.integers(6)}" for _ in range(64)]
    (folder / "pairs.tsv").write_text("\n".join(["text\tpair\tscore", *pairs]) + "\n")
    config = dict(
        vocab_size=44, embedding_size=16, hidden_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    (folder / "config.json").write_text(json.dumps(config))
    settings = 'config = "config.json"\nlength = 32\nbatch_tokens = 256\nsteps = 2\nwarmup_steps = 1\nheld_out = 0.2\n'
    (folder / "run.toml").write_text(settings)
    make_clips(folder / "SHAPES", 20)
