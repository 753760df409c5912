"""`albertkit bench embed`: sentences a second of `SentenceEncoder.encode`, beside sentence-transformers and its backends."""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from albertkit.benchmarks.harness import (
    Contender,
    Row,
    compare,
    interleave,
    progress,
    size_of,
    using_threads,
    versions,
)
from albertkit.benchmarks.inputs import Inputs
from albertkit.benchmarks.pretraining import VOCABULARY
from albertkit.config import AlbertConfig
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.engines.engine import Precision
from albertkit.errors import ConfigError, DataError

LIBRARY = "sentence-transformers"
PYTHON = "ALBERTKIT_SENTENCE_TRANSFORMERS_PYTHON"
INSTALL = (
    "python -m venv PEER && PEER/bin/pip install 'torch==2.13.0' 'transformers<5' 'huggingface-hub<1' "
    f"'sentence-transformers[onnx,openvino]' datasets; then {PYTHON}=PEER/bin/python"
)
DEFAULT = "default (torch, fp32)"
SAME = 0.999  # cosine of a vector to the same text's in sentence-transformers' fp32
NOTE = (
    "everybody is given the texts as strings and returns a numpy array in their order; batch 32 is sentence-transformers' "
    "default, which sorts by length too; exports, calibration (on 300 of the texts, minutes; ours has none) and "
    "loading are done before the clock starts"
)


def embed_rows(
    inputs: Inputs,
    model: Path | None = None,
    sentences: int = 512,
    rounds: int = 3,
    threads: int = 0,
    peer_python: str | None = None,
    config: AlbertConfig | None = None,
) -> Iterator[Row]:
    """Measure encoding sentences of natural lengths.

    Args:
        inputs: Text, and the tokenizer of a model with random weights.
        model: Folder of a sentence encoder or a checkpoint. Default: base with random weights, mean pooling.
        sentences: Taken evenly from the text.
        rounds: Timed rounds.
        threads: Threads for everybody; 0 for all cores.
        peer_python: Interpreter with sentence-transformers. Default: the one that the environment variable
            `ALBERTKIT_SENTENCE_TRANSFORMERS_PYTHON` names, or this one.
        config: Of the random model, for tests.

    Yields:
        A row with us in int8 and one with us in bf16, in sentences/s; fp32 in place of what this machine cannot do.

    Raises:
        ConfigError: bad-sentences; vocab-too-large. DataError: peer-failed, and what loading the model raises.
    """
    if sentences < 1:
        raise ConfigError("bad-sentences", f"--sentences is {sentences}, it must be at least 1", "leave it out")
    texts = texts_evenly(inputs.lines, sentences)
    with using_threads(threads), TemporaryDirectory(prefix="albertkit-bench-") as scratch:
        encoder = SentenceEncoder.from_pretrained(model) if model else random_encoder(inputs, config)
        folder = Path(scratch) / "model"
        encoder.save_pretrained(folder)
        with open_peer(peer_python or os.environ.get(PYTHON, sys.executable), folder, texts) as peer:
            yield from _rows(encoder, texts, peer, rounds, inputs.text_name)


def texts_evenly(lines: Sequence[str], count: int) -> list[str]:
    """So many of the lines, or all, at equal distances."""
    return [lines[place] for place in np.linspace(0, len(lines) - 1, min(count, len(lines))).astype(int)]


def random_encoder(inputs: Inputs, config: AlbertConfig | None) -> SentenceEncoder:
    """Random weights, mean pooling, and the tokenizer of the inputs. Default: base.

    Raises:
        ConfigError: vocab-too-large.
    """
    from albertkit.model import AlbertModel

    config = config or AlbertConfig.from_size("base", vocab_size=VOCABULARY)
    tokenizer = inputs.open_tokenizer(config.vocab_size)
    torch.manual_seed(0)
    return SentenceEncoder(AlbertModel(config), tokenizer).eval()


def _rows(
    encoder: SentenceEncoder, texts: list[str], peer: "Peer | None", rounds: int, text_name: str
) -> Iterator[Row]:
    ours: dict[Precision, tuple[SentenceEncoder, tuple[str, ...]]] = {}
    wanted: tuple[Precision, ...] = ("int8", "bf16")
    for precision in wanted:
        own = copy.deepcopy(encoder)  # an encoder keeps one engine
        engine = own.engine(precision)
        ours.setdefault(engine.precision, (own, engine.notes))
    contenders = {
        name: Contender(f"albertkit {name}", partial(_encode, own, texts, name), float(len(texts)))
        for name, (own, _) in ours.items()
    }
    peers = [Contender(name, partial(peer.seconds, name), float(len(texts))) for name in peer.ready] if peer else []
    progress(f"embed: {len(texts):,} sentences, {torch.get_num_threads()} threads")
    vectors = {peer_name: peer.vectors(peer_name) for peer_name in peer.ready} if peer else {}
    reference = vectors.get(DEFAULT, encoder.encode(texts, precision="fp32"))
    cosines = {name: _cosines(theirs, reference) for name, theirs in vectors.items()}
    seconds = interleave([*contenders.values(), *peers], rounds, say=progress)
    lengths = encoder.features(texts).lengths
    for name, contender in contenders.items():
        own_cosines = _cosines(ours[name][0].encode(texts, precision=name), reference)
        row = compare(
            f"encode sentences, {size_of(encoder.config)}, ours in {name}", "sentences/s", contender, peers, seconds,
            equal=own_cosines["min"] >= SAME,
            compared=(
                f"cosine of every vector to the same text's in {'sentence-transformers' if peer else 'our'} fp32: "
                f"at least {own_cosines['min']:.5f}, mean {own_cosines['mean']:.6f}; within {SAME}; everybody's in details"
            ),
            missing=peer.failed if peer else {LIBRARY: INSTALL},
            versions={**versions("torch", "numba", "sentencepiece"), **(peer.versions if peer else {})},
            note="; ".join([NOTE, *ours[name][1]]),
        )  # fmt: skip
        row.details = {
            "text": text_name, "sentences": len(texts), "mean_length": float(lengths.mean()), "longest": int(lengths.max()),
            "tokens_per_second": row.ours * float(lengths.mean()), "threads": torch.get_num_threads(),
            "cosine": {"ours": own_cosines, **cosines},
        }  # fmt: skip
        yield row


def _encode(encoder: SentenceEncoder, texts: list[str], precision: Precision) -> None:
    encoder.encode(texts, precision=precision)


def _cosines(vectors: np.ndarray, reference: np.ndarray) -> dict[str, float]:
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(reference, axis=1)
    found = (vectors * reference).sum(1) / lengths
    return {"min": float(found.min()), "mean": float(found.mean())}


# --- sentence-transformers --------------------------------------------------------------------------------------------


@dataclass
class Peer:
    """A process that holds sentence-transformers' models; see `sentence_transformers_peer.py`.

    Attributes:
        ready: Names of the settings that work there.
        failed: Name of every other setting to what is missing for it.
        versions: Of its packages.
        scratch: Folder for vectors.
        process: The process.
    """

    ready: list[str]
    failed: dict[str, str]
    versions: dict[str, str]
    scratch: Path
    process: "subprocess.Popen[str]"

    def seconds(self, name: str) -> float:
        """Encode all texts once at a setting; the process times itself."""
        return self._ask({"run": name})["seconds"]

    def vectors(self, name: str) -> np.ndarray:
        """fp32 [texts, D]."""
        file = self.scratch / "vectors.npy"
        self._ask({"vectors": name, "file": str(file)})
        return np.load(file)

    def _ask(self, question: dict[str, str]) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return _answer(self.process)


@contextmanager
def open_peer(python: str, folder: Path, texts: list[str]) -> Iterator[Peer | None]:
    """Start the peer's process and let it make every setting it can.

    Args:
        python: Interpreter.
        folder: A sentence-transformers folder; what is exported and asked for lies beside it.
        texts: To be encoded.

    Yields:
        The peer, or None where the interpreter has no sentence-transformers.

    Raises:
        DataError: not-found if the interpreter cannot be run; peer-failed with the last line it wrote.
    """
    scratch, threads = folder.parent, torch.get_num_threads()
    (scratch / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    job = {"folder": str(folder), "texts": str(scratch / "texts.json"), "threads": threads, "scratch": str(scratch)}
    script = Path(__file__).with_name("sentence_transformers_peer.py")
    limits = dict.fromkeys(("OMP_NUM_THREADS", "RAYON_NUM_THREADS"), str(threads))
    quiet = {"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", "TQDM_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}
    with open(scratch / "peer.log", "w", encoding="utf-8") as log:
        try:
            found = subprocess.run(
                [python, "-c", f"import {LIBRARY.replace('-', '_')}"], capture_output=True, check=False
            )
            if found.returncode:
                yield None
                return
            process = subprocess.Popen(
                [python, str(script), json.dumps(job)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, encoding="utf-8", env={**os.environ, **limits, **quiet},
            )  # fmt: skip
        except OSError as error:
            raise DataError("not-found", f"`{python}` cannot be run: {error.strerror}", "name an interpreter") from None
        try:
            answer = _answer(process)
            while "making" in answer:
                progress(f"{LIBRARY}: {answer['making']}")
                answer = _answer(process)
            failed = {f"{LIBRARY} {name}": f"{reason}; {INSTALL}" for name, reason in answer["failed"].items()}
            yield Peer(answer["ready"], failed, answer["versions"], scratch, process)
        finally:
            process.kill()
            process.communicate()


def _answer(process: "subprocess.Popen[str]") -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise DataError("peer-failed", f"{LIBRARY} ended with exit status {process.wait()}", INSTALL)
    return json.loads(line)
