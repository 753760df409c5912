"""Rows `accelerate` and `accelerate-training`: live objects of transformers and sentence-transformers, before and after it."""

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.engines import load_engine
from albertkit.engines.engine import Precision
from albertkit.model import AlbertForPreTraining, AlbertForSequenceClassification, AlbertModel
from albertkit.pipelines.accelerate import accelerate as accelerated
from benchmarks import finetuning, pretraining
from benchmarks.harness import (
    CPU,
    TIMING,
    Contender,
    Peer,
    Row,
    Timing,
    measure,
    precisions,
    scratch_folder,
    size_of,
    using_threads,
    versions,
)
from benchmarks.inference import LARGEST_DIFFERENCE, LOWEST_COSINE
from benchmarks.inputs import TEXT, Text
from benchmarks.trainer import FIELDS, TRAINER, Example, TrainerSetting, contender, make_theirs, pad

SENTENCES = Peer(
    "sentence-transformers", "sentence_transformers", "pip install sentence-transformers"
)
WANTED: tuple[Precision, ...] = ("fp32", "bf16", "int8")
UNTOUCHED = "the same object, untouched"
LENGTH, NATURAL = 128, 32  # tokens of the one text; texts of natural length in one padded batch
CALLS = 5  # of a small batch in a round
NOTE = "base with random weights, in one process; untouched: as the library makes it, on as many threads, without gradients"


def accelerate(
    *, text: Text = TEXT, sentences: int = 256, timing: Timing = TIMING
) -> Iterator[Row]:
    """Speed of `accelerate` on transformers' AlbertModel and on a SentenceTransformer, compared with the untouched object.

    Args:
        sentences: How many a SentenceTransformer encodes, taken evenly from the text.
    """
    if not SENTENCES.installed:
        raise SystemExit(f"sentence-transformers is not installed: {SENTENCES.install}")
    config = timing.model_config()
    with text.open(1.0) as inputs, using_threads(timing.threads), scratch_folder() as scratch:
        torch.manual_seed(0)
        ours, tokenizer = AlbertModel(config).eval(), inputs.open_tokenizer(config.vocab_size)
        supported = [p for p in WANTED if load_engine(ours, p).precision == p]
        theirs = {name: make_theirs(ours).eval() for name in (UNTOUCHED, *supported)}
        for name in supported:
            accelerated(theirs[name], name)
        longest = config.max_position_embeddings
        ids = torch.from_numpy(
            np.random.default_rng(0).integers(5, config.vocab_size, (1, min(LENGTH, longest)))
        )
        lines = [
            torch.tensor(tokenizer.encode(line, special_tokens=True)[:longest])
            for line in inputs.lines_evenly(NATURAL)
        ]
        padded = torch.nn.utils.rnn.pad_sequence(lines, batch_first=True)
        mask = torch.arange(padded.shape[1]) < torch.tensor(list(map(len, lines)))[:, None]
        for title, batch in {
            f"AlbertModel, {ids.shape[0]}x{ids.shape[1]}": {"input_ids": ids},
            f"AlbertModel, {len(lines)} natural lengths": {
                "input_ids": padded,
                "attention_mask": mask.long(),
            },
        }.items():
            runs = {name: partial(_states, model, batch) for name, model in theirs.items()}
            yield from _rows(
                f"{title}, {size_of(config)}", "batches/s", 1.0, runs, timing.rounds or 7, CALLS
            )
        SentenceEncoder(ours, tokenizer).save_pretrained(scratch / "encoder")
        texts = inputs.lines_evenly(sentences)
        encoders = {
            name: _sentence_transformer(scratch / "encoder", name)
            for name in (UNTOUCHED, *supported)
        }
        runs = {
            name: partial(encoder.encode, texts, show_progress_bar=False)
            for name, encoder in encoders.items()
        }
        title = f"SentenceTransformer.encode, {len(texts)} sentences, {size_of(config)}"
        yield from _rows(title, "sentences/s", float(len(texts)), runs, timing.rounds or 3)


def accelerate_training(
    *, data: Path | None = None, text: Text = TEXT, timing: Timing = TIMING
) -> Iterator[Row]:
    """Examples a second under transformers' Trainer with `accelerate(model, training=True)`, compared with the model untouched.

    Args:
        data: Folder with MRPC/ and SST-2/. Default: sentences of the text, and pairs of them.
    """
    if not TRAINER.installed:
        raise SystemExit(f"transformers is not installed: {TRAINER.install}")
    with text.open(2.0) as inputs, using_threads(timing.threads), scratch_folder() as scratch:
        works: list[tuple[str, Any, list[Example], int]] = []
        for labelled, config in finetuning.works(inputs, data, 2, timing.model_config()):
            name = f"fine-tuning, {labelled.name}, {size_of(config)}"
            rows = finetuning.examples_of(labelled.features)
            works.append(
                (name, AlbertForSequenceClassification(config), rows, finetuning.BATCH_SIZE)
            )
        for work in pretraining.works(timing, CPU):
            with scratch_folder() as of_store:
                (batch,) = pretraining.natural_batches(inputs, work, 1, of_store)
            name, rows = f"pretraining, {work.name}", pretraining.examples_of(batch)
            works.append((name, AlbertForPreTraining(work.config), rows, work.best_batch))
        for name, ours, rows, batch_size in works:
            torch.manual_seed(0)
            untouched = make_theirs(ours)
            model = accelerated(copy.deepcopy(untouched), training=True)
            compared = _compare_losses(untouched, model, pad(rows[:batch_size]))
            for precision in precisions():
                setting = TrainerSetting(
                    f"Trainer, {precision}, untouched", batch_size, bf16=precision == "bf16"
                )
                peer = contender(setting, untouched, rows, float(len(rows)), scratch)
                setting = replace(setting, name=f"Trainer, {precision}, accelerated")
                own = {precision: contender(setting, model, rows, float(len(rows)), scratch)}
                title = f"{name}, dynamic padding, batch {batch_size}, Trainer accelerated in {{}}"
                measured, _ = measure(
                    title, "examples/s", own, [peer], timing.rounds or 3, **FIELDS, **compared
                )
                yield from measured.values()


def _compare_losses(untouched: Any, model: Any, batch: Example) -> dict[str, Any]:
    """Compare the loss of a batch in evaluation mode, with gradients on; return `equal` and `compared`."""
    losses = [float(part.eval()(**batch).loss) for part in (model, untouched)]
    compared = "the loss of a batch with the same weights in fp32: accelerated {:.6f}, untouched {:.6f}".format(
        *losses
    )
    return {"equal": abs(losses[0] - losses[1]) <= 1e-5, "compared": compared}


def _sentence_transformer(folder: Any, precision: str) -> Any:
    """Return the encoder of a folder in sentence-transformers, accelerated unless it is to stay untouched."""
    from sentence_transformers import SentenceTransformer

    with warnings.catch_warnings(action="ignore"):
        model = SentenceTransformer(str(folder), device="cpu")
    return model if precision == UNTOUCHED else accelerated(model, precision)  # type: ignore[arg-type]


@torch.inference_mode()
def _states(model: Any, batch: dict[str, Any]) -> np.ndarray:
    """Return the last hidden states of the real tokens, fp32 [T, H]."""
    states = model(**batch).last_hidden_state
    mask = batch.get("attention_mask")
    return (states.flatten(0, 1) if mask is None else states[mask != 0]).float().numpy()


def _rows(
    title: str,
    unit: str,
    work: float,
    runs: Mapping[str, Callable[[], np.ndarray]],
    rounds: int,
    calls: int = 1,
) -> Iterator[Row]:
    """Measure the accelerated objects beside the untouched one, whose outputs they must have."""
    reference = runs[UNTOUCHED]()

    def repeat(run: Callable[[], Any]) -> None:
        for _ in range(calls):
            run()

    contenders = {
        name: Contender(name, partial(repeat, run), work * calls) for name, run in runs.items()
    }
    untouched = contenders.pop(UNTOUCHED)
    packages = versions("torch", "transformers", "sentence-transformers")
    rows, _ = measure(
        f"{title}, accelerated in {{}}", unit, contenders, [untouched], rounds, versions=packages
    )
    for name, row in rows.items():
        actual = runs[name]()
        difference = float(np.abs(actual - reference).max())
        norms = np.linalg.norm(actual, axis=-1) * np.linalg.norm(reference, axis=-1)
        cosine = float(((actual * reference).sum(-1) / norms).min())
        row.equal = (
            difference <= LARGEST_DIFFERENCE if name == "fp32" else cosine >= LOWEST_COSINE[name]
        )
        row.compared = f"states of the untouched object: largest difference {difference:.2g}, lowest cosine {cosine:.5f}"
        row.note, row.details = NOTE, {"threads": torch.get_num_threads()}
        yield row
