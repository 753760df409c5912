"""Row `embed`: sentences a second of `SentenceEncoder.encode`, compared with sentence-transformers and its backends."""

import copy
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch

from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.engines.engine import Precision
from albertkit.model import AlbertModel
from benchmarks.harness import (
    TIMING,
    Contender,
    Row,
    Timing,
    measure,
    scratch_folder,
    size_of,
    using_threads,
    versions,
)
from benchmarks.inputs import TEXT, Inputs, Text
from benchmarks.peers import PeerProcess, Program, open_peer

LIBRARY = "sentence-transformers"
PYTHON = "ALBERTKIT_SENTENCE_TRANSFORMERS_PYTHON"
INSTALL = (
    "python -m venv PEER && PEER/bin/pip install 'torch==2.13.0' 'transformers<5' 'huggingface-hub<1' "
    f"'sentence-transformers[onnx,openvino]' datasets; then {PYTHON}=PEER/bin/python"
)
PROGRAM = Program("sentences", PYTHON, INSTALL)
DEFAULT = "default (torch, fp32)"
SAME = 0.999  # cosine of a vector to the same text's in sentence-transformers' fp32
NOTE = (
    "every program gets the texts as strings and returns a numpy array in their order; batch 32 is sentence-transformers' "
    "default, which sorts by length too; exports, calibration (on 300 of the texts, minutes; ours has none) and "
    "loading are done before the clock starts"
)


def embed(
    *,
    text: Text = TEXT,
    model: Path | None = None,
    peer_python: str | None = None,
    sentences: int = 512,
    timing: Timing = TIMING,
) -> Iterator[Row]:
    """Sentences a second of encoding, compared with sentence-transformers in its default setting and with its backends.

    Args:
        model: Sentence encoder or checkpoint to measure. Default: base with random weights, mean
            pooling.
        peer_python: Interpreter that has sentence-transformers[onnx,openvino] and datasets.
            Default: what ALBERTKIT_SENTENCE_TRANSFORMERS_PYTHON names, or this one.
        sentences: How many, taken evenly from the text.
    """
    with text.open(1.0) as inputs, using_threads(timing.threads), scratch_folder() as scratch:
        texts = inputs.lines_evenly(sentences)
        encoder = open_encoder(model, inputs, timing)
        encoder.save_pretrained(scratch / "model")
        (scratch / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
        job = {"folder": str(scratch / "model"), "texts": str(scratch / "texts.json")}
        with open_peer(PROGRAM, job, scratch, peer_python) as peer:
            for row in _rows(encoder, texts, peer, timing.rounds or 3):
                row.details["text"] = inputs.text_name
                yield row


def open_encoder(
    model: Path | None, inputs: Inputs, timing: Timing, size: str = "base"
) -> SentenceEncoder:
    """Load a sentence encoder or a checkpoint; without one random weights, mean pooling, and the tokenizer of the inputs."""
    if model is not None:
        return SentenceEncoder.from_pretrained(model)
    config = timing.model_config(size)
    tokenizer = inputs.open_tokenizer(config.vocab_size)
    torch.manual_seed(0)
    return SentenceEncoder(AlbertModel(config), tokenizer).eval()


def _rows(
    encoder: SentenceEncoder, texts: list[str], peer: PeerProcess, rounds: int
) -> Iterator[Row]:
    """Measure us in int8 and in bf16, fp32 in place of what this machine cannot do."""
    ours: dict[Precision, SentenceEncoder] = {}
    precisions: tuple[Precision, ...] = ("int8", "bf16")
    for precision in precisions:
        own_encoder = copy.deepcopy(encoder)  # an encoder keeps one engine
        ours.setdefault(own_encoder.engine(precision).precision, own_encoder)
    count = float(len(texts))
    contenders: dict[str, Contender] = {
        n: Contender(f"albertkit {n}", partial(own_encoder.encode, texts, precision=n), count)
        for n, own_encoder in ours.items()
    }
    peers = [Contender(name, partial(peer.seconds, name), count) for name in peer.ready]
    vectors = {name: peer.array(name) for name in peer.ready}
    reference = vectors.get(DEFAULT, encoder.encode(texts, precision="fp32"))
    similarities = {name: cosines(theirs, reference) for name, theirs in vectors.items()}
    missing = peer.failed(f"{LIBRARY} ") if peer.about["library"] else {LIBRARY: INSTALL}
    packages = versions("torch", "numba", "sentencepiece") | peer.about["versions"]
    title = f"encode sentences, {size_of(encoder.config)}, ours in {{}}"
    rows, _ = measure(
        title, "sentences/s", contenders, peers, rounds, missing=missing, versions=packages
    )
    lengths = encoder.features(texts).lengths
    for name, own_encoder in ours.items():
        row, own_cosines = rows[name], cosines(own_encoder.encode(texts, precision=name), reference)
        row.equal = own_cosines["min"] >= SAME
        owner = LIBRARY if vectors else "our"
        compared = (
            f"at least {own_cosines['min']:.5f}, mean {own_cosines['mean']:.6f}; within {SAME}"
        )
        row.compared = f"cosine of every vector to the same text's in {owner} fp32: {compared}; everybody's in details"
        row.note = "; ".join([NOTE, *own_encoder.engine(name).notes])
        row.details = {
            "sentences": len(texts),
            "mean_length": float(lengths.mean()),
            "longest": int(lengths.max()),
            "tokens_per_second": row.ours * float(lengths.mean()),
            "threads": torch.get_num_threads(),
            "cosine": {"ours": own_cosines, **similarities},
        }
        yield row


def cosines(vectors: np.ndarray, reference: np.ndarray) -> dict[str, float]:
    """Compare vectors [N, D] with a reference, one by one."""
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(reference, axis=1)
    similarities = (vectors * reference).sum(1) / lengths
    return {"min": float(similarities.min()), "mean": float(similarities.mean())}
