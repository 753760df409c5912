"""`albertkit bench serve`: vectors a second over HTTP, beside the same engine on the same texts without a service."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import IO, Any

import numpy as np
import torch

from albertkit.benchmarks.embedding import VOCABULARY, random_encoder, texts_evenly
from albertkit.benchmarks.harness import Contender, Row, compare, interleave, progress, using_threads, versions
from albertkit.benchmarks.inputs import Inputs
from albertkit.config import AlbertConfig
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.engines.engine import Precision
from albertkit.errors import ConfigError, MachineError

OFFLINE = "the engine without a service"
SAME = 0.999  # cosine of a vector to the same text's without a service
_LOADS = (("tiny", (1, 8)), ("base", (64,)))
_PATIENCE = 120  # seconds until the models are loaded
NOTE = (
    "every request asks for the vector of one text, over connections that are kept; clients, front and worker are processes of "
    "one machine and share its cores. Without a service all texts are at hand at once, sorted by length"
)


def serve_rows(
    inputs: Inputs,
    model: Path | None = None,
    sentences: int = 2048,
    clients: Sequence[int] = (),
    rounds: int = 5,
    threads: int = 0,
    precision: Precision = "auto",
    config: AlbertConfig | None = None,
) -> Iterator[Row]:
    """Measure a service under load, over connections that are kept.

    One client at a small model waits for little but the service itself; 64 at base keep it busy.

    Args:
        inputs: Text, and the tokenizer of models with random weights.
        model: Folder of a sentence encoder or a checkpoint. Default: tiny and base with random weights, mean pooling.
        sentences: Taken evenly from the text.
        clients: That ask at the same time, of each row. Default: 1 and 8 at tiny, 64 at base.
        rounds: Timed rounds.
        threads: Of the worker, and without a service; 0 for all cores.
        precision: As `load_engine`.
        config: Of one random model in place of tiny and base, for tests.

    Yields:
        A row in sentences/s.

    Raises:
        ConfigError: bad-value, bad-rounds, vocab-too-large. DataError, CheckpointError: what loading the model raises.
        MachineError: peer-failed.
    """
    if sentences < 1 or min(clients, default=1) < 1:
        raise ConfigError("bad-value", f"{sentences} sentences and {min(clients)} clients", "both must be at least 1")
    texts = texts_evenly(inputs.lines, sentences)
    with using_threads(threads):
        if model is not None or config is not None or clients:
            name = "base" if model is None and config is None else ""
            encoder = SentenceEncoder.from_pretrained(model) if model else random_encoder(inputs, config)
            yield from _rows(inputs, encoder, texts, clients or (64,), rounds, precision, name)
            return
        for name, counts in _LOADS:
            encoder = random_encoder(inputs, AlbertConfig.from_size(name, vocab_size=VOCABULARY))
            yield from _rows(inputs, encoder, texts, counts, rounds, precision, name)


def _rows(
    inputs: Inputs,
    encoder: SentenceEncoder,
    texts: list[str],
    counts: Sequence[int],
    rounds: int,
    precision: Precision,
    name: str,
) -> Iterator[Row]:
    """Rows of one service, one for each number of clients."""
    with TemporaryDirectory(prefix="albertkit-bench-") as scratch:
        encoder.save_pretrained(Path(scratch) / "bench")
        engine = encoder.engine(precision)
        with open_service(Path(scratch) / "bench", precision) as service:
            for clients in counts:
                progress(
                    f"serve {name}: {len(texts):,} sentences, {clients} clients, {torch.get_num_threads()} threads"
                )
                with open_load(service, texts, clients) as load:
                    ours = Contender("albertkit serve", load.seconds, float(len(texts)))
                    offline = Contender(OFFLINE, lambda: _encode(encoder, texts, precision), float(len(texts)))
                    seconds = interleave([ours, offline], rounds, say=progress)
                    served, wanted = np.load(load.vectors), encoder.encode(texts, precision=precision)
                cosines = (served * wanted).sum(1) / (np.linalg.norm(served, axis=1) * np.linalg.norm(wanted, axis=1))
                worst = f"at least {cosines.min():.5f}, within {SAME}"
                several = "1 client" if clients == 1 else f"{clients} clients"
                row = compare(
                    ", ".join(filter(None, ("serve sentences", name, several, engine.precision))), "sentences/s", ours,
                    [offline], seconds, equal=bool(cosines.min() >= SAME),
                    compared=f"cosine of a vector to the same text's without a service: {worst}",
                    versions=versions("torch", "fastapi", "uvicorn"), note="; ".join([NOTE, *engine.notes]),
                )  # fmt: skip
                lengths = encoder.features(texts).lengths
                row.details = {
                    "text": inputs.text_name, "sentences": len(texts), "mean_length": float(lengths.mean()),
                    "longest": int(lengths.max()), "tokens_per_second": row.ours * float(lengths.mean()),
                    "p50_ms": median(load.p50[1:]), "p99_ms": median(load.p99[1:]), **service.batches(),
                }  # fmt: skip
                yield row


def _encode(encoder: SentenceEncoder, texts: list[str], precision: Precision) -> None:
    encoder.encode(texts, precision=precision)


# --- the service ------------------------------------------------------------------------------------------------------


@dataclass
class Service:
    """`albertkit serve` in a process of its own.

    Attributes:
        host, port: Where it listens.
    """

    host: str
    port: int

    def get(self, path: str) -> str:
        """What a path answers.

        Raises:
            OSError: If the service does not answer, or not with 200.
        """
        with urllib.request.urlopen(f"http://{self.host}:{self.port}{path}", timeout=60) as answer:
            return answer.read().decode()

    def tokens(self) -> int:
        """How many tokens have been computed so far."""
        found = re.findall(r"^albertkit_tokens_total\{.*\} (\S+)", self.get("/metrics"), re.M)
        return round(sum(map(float, found)))

    def batches(self) -> dict[str, float]:
        """Means over the batches so far."""
        text = self.get("/metrics")

        def mean(name: str) -> float:
            total, number = (
                float(re.search(rf"^albertkit_{name}_{part} (\S+)", text, re.M)[1])  # type: ignore[index]
                for part in ("sum", "count")
            )
            return total / number

        return {"requests_a_batch": mean("batch_requests"), "tokens_a_batch": mean("batch_tokens")}


@contextmanager
def open_service(folder: Path, precision: Precision, options: Sequence[str] = ()) -> Iterator[Service]:
    """Serve a folder as `bench` on a free port, with as many threads as torch has here.

    Raises:
        MachineError: peer-failed with what the service said last.
    """
    own = ["--port", "0", "--precision", precision, "--threads", str(torch.get_num_threads())]
    command = [sys.executable, "-m", "albertkit.cli", "serve", f"bench={folder}", *own, *options]
    log = folder.parent / "service.log"
    with open(log, "w", encoding="utf-8") as stream:
        process = subprocess.Popen(command, stderr=stream, env=_environment())
    try:
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end and process.poll() is None:
            said = log.read_text(encoding="utf-8")
            found = re.search(r'"url": "http://([\d.]+):(\d+)"', said)
            if found and '"message": "ready"' in said:
                yield Service(found[1], int(found[2]))
                return
            time.sleep(0.1)
        lines = log.read_text(encoding="utf-8").strip().splitlines() or ["nothing"]
        fault = next((line for line in lines if line.startswith("error[")), lines[-1])
        raise MachineError(
            "peer-failed", f"the service did not start; it said: {fault}", "albertkit serve FOLDER says more"
        )
    finally:
        process.terminate()
        process.wait(_PATIENCE)


def _environment() -> dict[str, str]:
    """Threads are the worker's own to choose."""
    return {name: value for name, value in os.environ.items() if name not in ("ALBERTKIT_API_KEY", "OMP_NUM_THREADS")}


# --- the clients ------------------------------------------------------------------------------------------------------


@dataclass
class Load:
    """A process that holds all clients; see `serving_clients.py`.

    Attributes:
        process: The process.
        vectors: File with the vectors of the first round.
        p50, p99: Milliseconds of a request, of each round.
    """

    process: "subprocess.Popen[str]"
    vectors: Path
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)

    def seconds(self) -> float:
        """Ask for all texts once."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        answer = _answer(self.process.stdout)
        self.p50.append(answer["p50_ms"])
        self.p99.append(answer["p99_ms"])
        return answer["seconds"]


@contextmanager
def open_load(service: Service, texts: list[str], clients: int) -> Iterator[Load]:
    """Start the clients.

    Raises:
        MachineError: peer-failed.
    """
    with TemporaryDirectory(prefix="albertkit-bench-") as scratch:
        place = Path(scratch)
        (place / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
        vectors = place / "vectors.npy"
        job = {"host": service.host, "port": service.port, "texts": str(place / "texts.json"), "vectors": str(vectors)}
        script = Path(__file__).with_name("serving_clients.py")
        process = subprocess.Popen(
            [sys.executable, str(script), json.dumps({**job, "clients": clients})],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
        )  # fmt: skip
        try:
            _answer(process.stdout)
            yield Load(process, vectors)
        finally:
            process.kill()
            process.communicate()


def _answer(stream: IO[str] | None) -> dict[str, Any]:
    line = stream.readline() if stream else ""
    if not line:
        raise MachineError("peer-failed", "the clients ended", "what they said last is above")
    return json.loads(line)
