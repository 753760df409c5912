"""Row `memory`: the most memory that commands take on a model of base's size, compared with transformers' programs.

The memory of a program is that of all its processes; a page that several share is counted once.
"""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.model import AlbertForPreTraining
from albertkit.output.sections import Paragraph, Result, Section, TableSection
from benchmarks.embedding import open_encoder
from benchmarks.harness import TIMING, Timing, progress, scratch_folder
from benchmarks.inputs import TEXT, Inputs, Text
from benchmarks.serving import open_service

EVERY = 0.1  # seconds between two looks at a program's memory
MB = 1e6
SENTENCES = 500
PEER_PROGRAM = Path(__file__).parent / "peer_programs" / "memory.py"
# Command, and what does the same with transformers or sentence-transformers:
# `peer_programs/memory.py`.
COMMANDS = {
    "pretrain": "pretrain store --out RUN --size base --length 512 --batch-tokens 4096 --steps 2 --held-out 0.2",
    "finetune": "finetune classify MODEL classes.tsv --text text --label label --out CLASSIFIER --steps 2 --batch-size 32",
    "embed encode": "embed encode ENCODER lines.txt --out vectors.npy",
    "serve": "",
}
PEERS = {
    "pretrain": "transformers' Trainer, bf16, batch 8",
    "finetune": "the same as run_glue sets it, fp32, padded to 128, batch 32",
    "embed encode": "sentence-transformers, fp32",
    "serve": "the same in one process, without a service",
}


@dataclass(frozen=True)
class Memory(Result):
    """Most memory of a command and of its peer, in MB of 10^6 bytes; seconds until a service answers."""

    rows: list[tuple[str, float, str, float]]
    first_answer: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        names = ("command", "megabytes", "peer", "peer_megabytes")
        return {
            "rows": [dict(zip(names, row, strict=True)) for row in self.rows],
            "first_answer": self.first_answer,
        }

    def sections(self) -> list[Section]:
        """Return a table."""
        columns = ["command", "MB", "peer", "its MB", "peer / ours"]
        rows = [
            [name, f"{own_megabytes:,.0f}", peer, f"{its:,.0f}", f"{its / own_megabytes:.2f}x"]
            for name, own_megabytes, peer, its in self.rows
        ]
        return [
            TableSection(columns, rows),
            Paragraph(
                f"The service gave its first answer {self.first_answer:.1f} s after its start."
            ),
        ]


def memory(*, text: Text = TEXT, timing: Timing = TIMING) -> Iterator[Memory]:
    """Most memory that `pretrain`, `finetune`, `embed encode` and `serve` take, compared with transformers."""
    rows = []
    with text.open(1.0) as inputs, scratch_folder() as folder:
        encoder = _write_inputs(inputs, timing, folder)
        for name, command in COMMANDS.items():
            if name == "serve":
                own_megabytes, first_answer = _memory_of_service(encoder, inputs)
            else:
                own_megabytes = most_memory(
                    [sys.executable, "-m", "albertkit", *command.split()], folder
                )
            its = most_memory(
                [sys.executable, str(PEER_PROGRAM), name.split()[-1], str(folder)], folder
            )
            progress(f"{name}: {own_megabytes:,.0f} MB, its peer {its:,.0f} MB")
            rows.append((name, own_megabytes, PEERS[name], its))
    yield Memory(rows, first_answer)


def _write_inputs(inputs: Inputs, timing: Timing, folder: Path) -> SentenceEncoder:
    """Write a store, a checkpoint, a sentence encoder, a table of two classes and lines."""
    inputs.build_store(folder)
    lines = inputs.lines_evenly(SENTENCES)
    (folder / "lines.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    classes = [
        f"{line.replace(chr(9), ' ')}\t{'ab'[number % 2]}" for number, line in enumerate(lines)
    ]
    (folder / "classes.tsv").write_text(
        "\n".join(["text\tlabel", *classes]) + "\n", encoding="utf-8"
    )
    torch.manual_seed(0)
    model = AlbertForPreTraining(timing.model_config())
    model.save_pretrained(folder / "MODEL", inputs.open_tokenizer(model.config.vocab_size))
    encoder = open_encoder(None, inputs, timing)
    encoder.save_pretrained(folder / "ENCODER")
    return encoder


def most_memory(command: list[str], folder: Path) -> float:
    """Run a program; return the most memory that it and its processes took together, in MB."""
    with open(folder / "log", "w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        peak = _watch(process.pid, lambda: process.poll() is not None)
    if process.returncode:
        log_text = (folder / "log").read_text(encoding="utf-8", errors="replace")
        raise SystemExit(f"{' '.join(command)}: {log_text[-2000:]}")
    return peak


def _watch(pid: int, ended: Callable[[], bool]) -> float:
    """Return the most memory of a process and all below it until `ended` says so, in MB."""
    peak, root = 0.0, psutil.Process(pid)
    while not ended():
        current = 0
        try:
            for process in [root, *root.children(recursive=True)]:
                current += process.memory_full_info().pss
        except psutil.Error:  # one has just ended
            pass
        peak = max(peak, current / MB)
        time.sleep(EVERY)
    return peak


def _memory_of_service(encoder: SentenceEncoder, inputs: Inputs) -> tuple[float, float]:
    """Return the memory of a service that answers 64 texts, in MB, and the seconds from its start to its first answer."""
    began = time.monotonic()
    with open_service(encoder, "auto") as service:
        address = f"http://{service.host}:{service.port}/v1/embeddings"

        def ask(texts: list[str]) -> None:
            body = json.dumps({"model": "bench", "input": texts, "truncate": True}).encode()
            request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                answer.read()

        ask(["one layer, run twelve times"])
        seconds = time.monotonic() - began
        ask(inputs.lines_evenly(64))
        looks = iter(range(20))
        return _watch(service.pid, lambda: next(looks, None) is None), seconds
