"""`albertkit bench data`: text to masked training batches, and masking alone."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from albertkit.benchmarks.harness import Contender, Row, compare, interleave, progress, versions
from albertkit.benchmarks.inputs import Inputs
from albertkit.errors import DataError

MODEL_GARDEN = "Model Garden create_pretraining_data"
GOOGLE = "google-research create_pretraining_data"
INSTALL = (
    "python -m venv PEER && PEER/bin/pip install tensorflow-cpu sentencepiece && "
    "PEER/bin/pip install --no-deps tf-keras tf-models-official; then --peer-python PEER/bin/python"
)
NOTES = {
    GOOGLE: "the original in full: SentencePiece, sentence order, n-gram whole-word masks; dupe factor 1, one process",
    MODEL_GARDEN: (
        "the Model Garden's script with SentencePiece and n-gram whole-word masks, but next-sentence pairs (it has no "
        "sentence order); dupe factor 1, one process"
    ),
}
WARM = (
    "ours reads the tokenizer, builds the store and opens it anew in every round; imports are excluded on both sides, and "
    "our loops are compiled before the clock starts"
)


@dataclass
class PeerScript:
    """Somebody's `create_pretraining_data.py`, run by an interpreter that has TensorFlow.

    Attributes:
        name: `GOOGLE` or `MODEL_GARDEN`.
        python: The interpreter.
        folder: Checkout of google-research/albert; empty for the Model Garden's.
        text: Input file.
        model: SentencePiece model.
        output: TFRecord file it writes.
        max_length: Longest sequence.
        processes: Seconds of the whole process, imports included, one entry a run.
        result: What the last run reported: seconds of its own function, examples, tokens, predictions.
    """

    name: str
    python: str
    folder: str
    text: Path
    model: Path
    output: Path
    max_length: int
    processes: list[float] = field(default_factory=list)
    result: dict[str, float] = field(default_factory=dict)

    def flags(self) -> list[str]:
        """The same work as ours: length, 15 % masked, whole words, spans of up to three, one pass over the text."""
        common = [
            f"--input_file={self.text}", f"--output_file={self.output}", f"--max_seq_length={self.max_length}",
            f"--max_predictions_per_seq={round(0.15 * self.max_length)}", "--masked_lm_prob=0.15",
            "--short_seq_prob=0.1", "--dupe_factor=1", "--do_whole_word_mask=True", "--do_lower_case=True",
        ]  # fmt: skip
        if self.name == GOOGLE:  # it asks for a vocabulary file even when it never reads one
            return [*common, f"--spm_model_file={self.model}", f"--vocab_file={self.model}", "--ngram=3"]
        return [*common, "--tokenization=SentencePiece", f"--sp_model_file={self.model}", "--max_ngram_size=3"]

    def run(self) -> float:
        """Run it once.

        Returns:
            Seconds of its own `main`, without starting Python and importing TensorFlow.

        Raises:
            DataError: peer-failed, with the last line it wrote.
        """
        job = json.dumps({"folder": self.folder, "flags": self.flags(), "output": str(self.output)})
        script = Path(__file__).with_name("peer_script.py")
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
        start = time.perf_counter()
        done = subprocess.run(
            [self.python, str(script), job], capture_output=True, text=True, env={**os.environ, **quiet}, check=False
        )
        self.processes.append(time.perf_counter() - start)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise DataError("peer-failed", f"{self.name} under `{self.python}` failed: {last}", INSTALL)
        self.result = json.loads(done.stdout.strip().splitlines()[-1])
        return self.result["seconds"]


def _importable(python: str) -> bool:
    """Whether the Model Garden's script and TensorFlow can be found by an interpreter (without importing them: 4 s)."""
    code = (
        "import importlib.util as u, sys; "
        "sys.exit(not all(u.find_spec(n) for n in ('tensorflow', 'tf_keras', 'sentencepiece', 'official')))"
    )
    try:
        return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0
    except OSError as error:
        raise DataError("not-found", f"`{python}` cannot be run: {error.strerror}", "name an interpreter") from None


def data_rows(
    inputs: Inputs,
    rounds: int = 3,
    threads: int = 0,
    google_albert: Path | None = None,
    peer_python: str = sys.executable,
) -> Iterator[Row]:
    """Measure making training data.

    Args:
        inputs: Text and tokenizer.
        rounds: Timed rounds.
        threads: Processes that build the store; 0 for what `build_store` thinks best for so much text.
        google_albert: Checkout of google-research/albert, the peer; None for the Model Garden's script.
        peer_python: Interpreter with the peer's TensorFlow.

    Yields:
        A row for text to batches at lengths 512 and 128, in MB/s, and one for masking alone, in tokens/s.

    Raises:
        DataError: not-found if `google_albert` lacks the script; peer-failed.
    """
    from albertkit.benchmarks.masking import masking_row

    if google_albert is not None and not (google_albert / "create_pretraining_data.py").is_file():
        raise DataError(
            "not-found",
            f"no create_pretraining_data.py in `{google_albert}`",
            "name a checkout of google-research/albert",
        )
    peer_name = GOOGLE if google_albert else MODEL_GARDEN
    has_peer = google_albert is not None or _importable(peer_python)
    for max_length in (512, 128):
        with TemporaryDirectory(prefix="albertkit-bench-") as scratch:
            folder = Path(scratch)
            inputs.write_text(folder / "text.txt")
            peer = PeerScript(
                peer_name, peer_python, str(google_albert.resolve()) if google_albert else "", folder / "text.txt",
                next(inputs.tokenizer_folder.glob("*.model")).resolve(), folder / "peer.tfrecord", max_length,
            )  # fmt: skip
            yield _pipeline_row(inputs, folder, peer if has_peer else None, max_length, rounds, threads or None)
    yield masking_row(inputs, rounds)


def _pipeline_row(
    inputs: Inputs, folder: Path, peer: PeerScript | None, max_length: int, rounds: int, workers: int | None
) -> Row:
    store = folder / "store"
    parts: list[dict[str, float]] = []

    def ours() -> float:
        shutil.rmtree(store, ignore_errors=True)
        parts.append(text_to_batches(folder / "text.txt", store, inputs.tokenizer_folder, max_length, workers))
        return parts[-1]["build"] + parts[-1]["stream"]

    progress(f"data, length {max_length}: {inputs.megabytes:.2f} MB")
    contender = Contender("albertkit", ours, inputs.megabytes)
    peers = [Contender(peer.name, peer.run, inputs.megabytes, warm_up=False)] if peer else []
    row = compare(
        f"text to masked batches, length {max_length}", "MB/s", contender, peers,
        interleave([contender, *peers], rounds, say=progress),
        missing={} if peer else {MODEL_GARDEN: INSTALL},
        versions=versions("numba", "numpy", "sentencepiece", "torch"),
        note=(f"{NOTES[peer.name]}; " if peer else "") + WARM,
    )  # fmt: skip
    last = parts[-1]
    masked = last["predictions"] / last["tokens"]
    row.details = {
        "text": inputs.text_name, "megabytes": inputs.megabytes,
        "build_seconds": last["build"], "stream_seconds": last["stream"], "text_tokens": last["text_tokens"],
        "examples": last["examples"], "tokens": last["tokens"], "masked_share": masked,
    }  # fmt: skip
    row.equal = abs(masked - 0.15) < 0.01
    row.compared = f"the share of masked tokens with 15 % (ours {masked:.2%}"
    if peer:
        theirs = peer.result["predictions"] / peer.result["tokens"]
        row.equal = row.equal and abs(masked - theirs) < 0.01
        row.compared += f", theirs {theirs:.2%}, within 1 %"
        row.details["peer"] = {**peer.result, "masked_share": theirs, "whole_process_seconds": peer.processes[-1]}
    row.compared += ")"
    return row


def text_to_batches(text: Path, store: Path, folder: Path, max_length: int, workers: int | None) -> dict[str, float]:
    """The whole of our path: tokenizer from its folder, text file, store on disk, every batch of one epoch.

    Returns:
        Seconds of `build` and `stream`; counts of `text_tokens`, `examples`, `tokens`, `predictions`.
    """
    from albertkit.corpus import TokenStore, build_store
    from albertkit.tokenizer import AlbertTokenizer

    start = time.perf_counter()
    tokenizer = AlbertTokenizer.from_pretrained(folder, text_rules="google")
    build_store([str(text)], store, tokenizer, workers=workers)
    built = time.perf_counter()
    opened = TokenStore.open(store)
    counts = one_epoch(open_stream(opened, max_length))
    return {"build": built - start, "stream": time.perf_counter() - built, "text_tokens": opened.num_tokens, **counts}


def open_stream(store: Any, max_length: int, seed: int = 0) -> Any:
    """Our batch stream over all documents of a store, at its default settings."""
    import numpy as np

    from albertkit.pretraining.examples import ExampleSettings
    from albertkit.pretraining.stream import BatchStream

    everything = [np.ones(len(offsets) - 1, dtype=bool) for offsets in store.document_offsets]
    return BatchStream(store, everything, ExampleSettings(max_length=max_length), seed=seed)


def one_epoch(stream: Any) -> dict[str, float]:
    """Draw every batch of an epoch, the stream standing at its start.

    Returns:
        Counts of `examples`, `tokens` and `predictions`.
    """
    counts: dict[str, float] = {"examples": 0, "tokens": 0, "predictions": 0}
    epoch = stream.state()["epoch"]
    for _ in range(stream.batches_in_epoch(epoch)):
        for batch in next(stream):
            counts["examples"] += batch.num_sequences
            counts["tokens"] += batch.num_tokens
            counts["predictions"] += len(batch.masked_labels)
    return counts
