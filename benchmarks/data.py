"""Row `data`: text to masked training batches, compared with create_pretraining_data.py and transformers' collators."""

import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.corpus import TokenStore, build_store
from albertkit.pretraining.batches import BatchStream
from albertkit.pretraining.examples import ExampleSettings
from albertkit.tokenizer import AlbertTokenizer
from benchmarks.harness import (
    TIMING,
    Contender,
    Peer,
    Row,
    Timing,
    compare,
    interleave,
    progress,
    scratch_folder,
    using_threads,
    versions,
)
from benchmarks.inputs import TEXT, Inputs, Text
from benchmarks.peers import Program, open_peer

MODEL_GARDEN = "Model Garden create_pretraining_data"
GOOGLE = "google-research create_pretraining_data"
INSTALL = (
    "python -m venv PEER && PEER/bin/pip install tensorflow-cpu sentencepiece && "
    "PEER/bin/pip install --no-deps tf-keras tf-models-official; then --peer-python PEER/bin/python"
)
PROGRAM = Program("pretraining_data", install=INSTALL)
NOTES = {
    GOOGLE: "the original in full: SentencePiece, sentence order, n-gram whole-word masks; dupe factor 1, one process; ",
    MODEL_GARDEN: (
        "the Model Garden's script with SentencePiece and n-gram whole-word masks, but next-sentence pairs (it has no "
        "sentence order); dupe factor 1, one process; "
    ),
}
WARM = (
    "ours reads the tokenizer, builds the store and opens it again in every round; imports are excluded on both sides, and "
    "our loops are compiled before the clock starts"
)
COLLATORS = Peer(
    "transformers DataCollatorForLanguageModeling", "transformers", "pip install transformers"
)
LENGTH = 512  # of masking's sequences
BATCH = 32  # sequences a collator gets at once: the same 16,384 tokens as our default batch
TOKENS = 4_000_000  # we draw in a round, in as many epochs as that takes: about a second
MASKING_NOTE = (
    "ours draws segments, sentence order, spans of one to three words, 80 % [MASK] / 10 % kept / 10 % random, and "
    "packs; the whole-word collator draws single words and replaces all of them by [MASK], the token collator single "
    "tokens at 80/10/10. Both collators get equal lengths with offsets and special-token masks given, as they need"
)


def data(
    *,
    text: Text = TEXT,
    google_albert: Path | None = None,
    peer_python: str = sys.executable,
    timing: Timing = TIMING,
) -> Iterator[Row]:
    """Text to masked training batches, compared with create_pretraining_data.py and transformers' collators.

    Args:
        google_albert: Checkout of google-research/albert to measure. Default: the Model Garden's
            script, if installed.
        peer_python: Interpreter that has TensorFlow for the peer. Default: this one.
    """
    if google_albert is not None and not (google_albert / "create_pretraining_data.py").is_file():
        raise SystemExit(
            f"no create_pretraining_data.py in `{google_albert}`: name a checkout of google-research/albert"
        )
    rounds = timing.rounds or 3
    with text.open(8.0) as inputs:
        for max_length in (512, 128):
            with scratch_folder() as folder:
                inputs.write_text(folder / "text.txt")
                peer = None
                if google_albert or _has_model_garden(peer_python):
                    checkout = str(google_albert.resolve()) if google_albert else ""
                    model = next(inputs.tokenizer_folder.glob("*.model")).resolve()
                    peer = Script(peer_python, checkout, folder, model, max_length)
                yield _pipeline_row(
                    inputs, folder, peer, max_length, rounds, timing.threads or None
                )
        yield masking_row(inputs, rounds)


@dataclass
class Script:
    """Somebody's `create_pretraining_data.py`, run by an interpreter that has TensorFlow, in a process of its own every time.

    Attributes:
        python: The interpreter.
        checkout: Of google-research/albert; empty for the Model Garden's.
        folder: Holds text.txt.
        model: SentencePiece model.
        max_length: Longest sequence.
        result: What the last run reported: seconds of its own function and of the whole process,
            examples, tokens, predictions.
    """

    python: str
    checkout: str
    folder: Path
    model: Path
    max_length: int
    result: dict[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name as it is shown."""
        return GOOGLE if self.checkout else MODEL_GARDEN

    def flags(self) -> list[str]:
        """Return flags for the same work as ours: length, 15 % masked, whole words, spans of up to three, one epoch."""
        common = {
            "input_file": self.folder / "text.txt",
            "output_file": self.folder / "peer.tfrecord",
            "max_seq_length": self.max_length,
            "max_predictions_per_seq": round(0.15 * self.max_length),
            "masked_lm_prob": 0.15,
            "short_seq_prob": 0.1,
            "dupe_factor": 1,
            "do_whole_word_mask": True,
            "do_lower_case": True,
        }
        if self.checkout:  # it asks for a vocabulary file even when it never reads one
            tokenizer_flags = {"spm_model_file": self.model, "vocab_file": self.model, "ngram": 3}
        else:
            tokenizer_flags = {
                "tokenization": "SentencePiece",
                "sp_model_file": self.model,
                "max_ngram_size": 3,
            }
        return [f"--{name}={value}" for name, value in {**common, **tokenizer_flags}.items()]

    def run(self) -> float:
        """Run it once; return the seconds of its own `main`, without starting Python and importing TensorFlow."""
        job = {
            "folder": self.checkout,
            "flags": self.flags(),
            "output": str(self.folder / "peer.tfrecord"),
        }
        start = time.perf_counter()
        with open_peer(PROGRAM, job, self.folder, self.python) as peer:
            seconds = peer.seconds("main")
            counts = peer.ask("count")
        self.result = {
            **counts,
            "seconds": seconds,
            "whole_process_seconds": time.perf_counter() - start,
        }
        return seconds


def _has_model_garden(python: str) -> bool:
    """Return whether an interpreter finds the Model Garden's script and TensorFlow (without importing them: 4 s)."""
    code = (
        "import importlib.util as u, sys; "
        "sys.exit(not all(u.find_spec(n) for n in ('tensorflow', 'tf_keras', 'sentencepiece', 'official')))"
    )
    try:
        return (
            subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0
        )
    except OSError as error:
        raise SystemExit(f"`{python}` cannot be run: {error.strerror}") from None


def _pipeline_row(
    inputs: Inputs,
    folder: Path,
    peer: Script | None,
    max_length: int,
    rounds: int,
    workers: int | None,
) -> Row:
    last: dict[str, float] = {}

    def ours() -> float:
        shutil.rmtree(folder / "store", ignore_errors=True)
        last.update(text_to_batches(folder, inputs.tokenizer_folder, max_length, workers))
        return last["build_seconds"] + last["stream_seconds"]

    progress(f"data, length {max_length}: {inputs.megabytes:.2f} MB")
    contender = Contender("albertkit", ours, inputs.megabytes)
    peers = [Contender(peer.name, peer.run, inputs.megabytes, warm_up=False)] if peer else []
    title = f"text to masked batches, length {max_length}"
    row = compare(title, "MB/s", contender, peers, interleave([contender, *peers], rounds))
    row.missing, row.versions = (
        {} if peer else {MODEL_GARDEN: INSTALL},
        versions("numba", "numpy", "sentencepiece", "torch"),
    )
    row.note = (NOTES[peer.name] if peer else "") + WARM
    masked = last["predictions"] / last["tokens"]
    row.details = {
        "text": inputs.text_name,
        "megabytes": inputs.megabytes,
        **last,
        "masked_share": masked,
    }
    del row.details["predictions"]
    row.equal, row.compared = (
        abs(masked - 0.15) < 0.01,
        f"the share of masked tokens with 15 % (ours {masked:.2%}",
    )
    if peer:
        theirs = peer.result["predictions"] / peer.result["tokens"]
        row.equal = row.equal and abs(masked - theirs) < 0.01
        row.compared += f", theirs {theirs:.2%}, within 1 %"
        row.details["peer"] = {**peer.result, "masked_share": theirs}
    row.compared += ")"
    return row


def text_to_batches(
    folder: Path, tokenizer_folder: Path, max_length: int, workers: int | None
) -> dict[str, float]:
    """Take the whole of our path: tokenizer from its folder, text file, store on disk, every batch of one epoch."""
    start = time.perf_counter()
    tokenizer = AlbertTokenizer.from_pretrained(tokenizer_folder, text_rules="google")
    build_store([str(folder / "text.txt")], folder / "store", tokenizer, workers=workers)
    built = time.perf_counter()
    store = TokenStore.open(folder / "store")
    counts = one_epoch(open_stream(store, max_length))
    seconds = {"build_seconds": built - start, "stream_seconds": time.perf_counter() - built}
    return {**seconds, "text_tokens": store.num_tokens, **counts}


def open_stream(store: TokenStore, max_length: int) -> BatchStream:
    """Return our batch stream over all documents of a store, at its default settings."""
    everything = [np.ones(len(offsets) - 1, dtype=bool) for offsets in store.document_offsets]
    return BatchStream(store, everything, ExampleSettings(max_length=max_length), seed=0)


def one_epoch(stream: BatchStream) -> dict[str, float]:
    """Draw every batch of an epoch, the stream standing at its start; count examples, tokens and predictions."""
    counts: dict[str, float] = {"examples": 0, "tokens": 0, "predictions": 0}
    for _ in range(stream.estimate_global_batches(stream.state()["epoch"])):
        for batch in next(stream):
            counts["examples"] += batch.num_sequences
            counts["tokens"] += batch.num_tokens
            counts["predictions"] += len(batch.masked_targets()[1])
    return counts


# --- masking alone --------------------------------------------------------------------------------


def masking_row(inputs: Inputs, rounds: int) -> Row:
    """Measure masked tokens a second on one core, sequences of 512."""
    with using_threads(1), scratch_folder() as folder:
        store = inputs.build_store(folder)
        stream = open_stream(store, LENGTH)
        counts = one_epoch(stream)
        epochs = max(1, round(TOKENS / counts["tokens"]))

        def draw() -> None:
            for epoch in range(epochs):  # each planned and shuffled again
                stream.restore({**stream.state(), "epoch": epoch, "cursor": 0})
                one_epoch(stream)

        ours = Contender("albertkit", draw, epochs * counts["tokens"])
        shares = {ours.name: counts["predictions"] / counts["tokens"]}
        peers = _collators(folder, store, shares) if COLLATORS.installed else []
        progress(f"masking: {counts['tokens']:,} tokens")
        seconds = interleave([ours, *peers], rounds)
    row = compare(f"masking, length {LENGTH}, one core", "tokens/s", ours, peers, seconds)
    row.equal = all(abs(share - 0.15) < 0.015 for share in shares.values())
    row.compared = (
        "everybody's share of masked tokens with 15 %, within 1.5 %; see `masked_share` in details"
    )
    row.missing, row.versions = (
        COLLATORS.missing,
        versions("numba", "numpy", "torch", "transformers"),
    )
    row.note = MASKING_NOTE
    row.details = {"masked_share": shares, "tokens": counts["tokens"], "text": inputs.text_name}
    return row


def _sequences(store: TokenStore) -> list[dict[str, Any]]:
    """Return the store's text as a collator wants it: [CLS] 510 tokens [SEP], with offsets that leave a gap before words."""
    tokenizer = store.tokenizer()
    tokens = np.concatenate([np.asarray(shard, dtype=np.int64) for shard in store.tokens])
    starts = np.asarray(tokenizer.word_starts())
    inner = LENGTH - 2
    sequences = []
    for first in range(0, len(tokens) - inner + 1, inner):
        ids = tokens[first : first + inner]
        # A word start begins one after its neighbour's end
        begins = 3 * np.arange(1, inner + 1) + starts[ids]
        spans = np.stack([begins, 3 * np.arange(2, inner + 2)], axis=1)
        sequences.append(
            {
                "input_ids": [tokenizer.cls_id, *ids.tolist(), tokenizer.sep_id],
                "special_tokens_mask": [1, *[0] * inner, 1],
                "offset_mapping": [(0, 0), *map(tuple, spans.tolist()), (0, 0)],
            }
        )
    return sequences


def _collators(folder: Path, store: TokenStore, shares: dict[str, float]) -> list[Contender]:
    from transformers import AlbertTokenizer as TheirTokenizer
    from transformers import DataCollatorForLanguageModeling

    store.tokenizer().save_pretrained(folder / "tokenizer")
    tokenizer = TheirTokenizer.from_pretrained(str(folder / "tokenizer"))
    sequences = _sequences(store)
    contenders = []
    for whole_words in (True, False):
        with warnings.catch_warnings():
            # That it replaces everything by [MASK]; our note says so
            warnings.simplefilter("ignore")
            collator = DataCollatorForLanguageModeling(tokenizer, whole_word_mask=whole_words)
        name = f"transformers {'whole-word' if whole_words else 'token'} collator"
        rows = [
            {k: v for k, v in row.items() if whole_words or k != "offset_mapping"}
            for row in sequences
        ]
        batches = [rows[first : first + BATCH] for first in range(0, len(rows), BATCH)]

        def run(collator: Any = collator, batches: Sequence[Any] = batches) -> None:
            for batch in batches:
                collator(batch)

        masked = [collator(batch)["labels"] != -100 for batch in batches]
        shares[name] = sum(int(m.sum()) for m in masked) / max(sum(m.numel() for m in masked), 1)
        contenders.append(Contender(name, run, float(len(rows) * LENGTH)))
    return contenders
