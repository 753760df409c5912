"""Compare a faster form of a model (an engine, an export) with the model in fp32, before anything is saved or served in int8.

T tokens of N sequences, P masked positions. Why it is needed: ALBERT in int8 with one scale a
tensor fell from F1 0.8 to 0.05 (onnxruntime issue 11701).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from albertkit.command import takes
from albertkit.config import AlbertConfig
from albertkit.conversion.classes import load_model
from albertkit.corpus.builtin import builtin_documents
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.folder import is_encoder_folder
from albertkit.engines import load_engine, model_on_engine
from albertkit.engines.onnx import (
    REPORT,
    OnnxModel,
    is_onnx_folder,
    load_onnx,
    load_optional_tokenizer,
)
from albertkit.errors import CheckpointError
from albertkit.files import read_json
from albertkit.model import (
    AlbertForBeamQuestionAnswering,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertModel,
    PackedBatch,
)
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.model_paths import is_remote, local_folder
from albertkit.output.sections import FactList, Result, Section
from albertkit.tables.bad_rows import BadRows
from albertkit.tables.records import as_files
from albertkit.tasks.data import find_split_file, read_split
from albertkit.tasks.models import load_task_model, run_model
from albertkit.tasks.options import ComparePrecisionOptions
from albertkit.tokenizer import AlbertTokenizer

# By the name in the graph: [T, ...], [P, ...] or [N, ...]; int64 for places
Outputs = dict[str, Tensor]
Form = PretrainedAlbert | SentenceEncoder

MAX_LOSS = 0.5  # points of the task's metric
MIN_COSINE = 0.99  # mean over tokens, where there are no labels
MIN_TOP1 = 0.97
_MIN_LOGIT = -1e29  # logits below this only say that a place is not allowed
# Rows of fewer numbers say little by their direction: those of a batch are one vector
_MIN_ROW_NUMBERS = 16
_SEQUENCES = 64  # whose outputs are compared number by number
_BATCH_SEQUENCES = 8  # of all lengths, so rows are padded
_MAX_TOKENS = 128  # of a sequence of the sample
_MASK_EVERY = 7  # tokens, as in pretraining
_BATCH_TOKENS = 8192


@dataclass(frozen=True)
class PrecisionComparison(Result):
    """Comparison of a form of a model with the model in fp32.

    Attributes:
        precision: Precision of the form.
        source: What was read: a file, or the built-in sample.
        texts: Number of texts.
        cosine_mean: Mean cosine of tokens' last states, or of the outputs' logits where there are
            no states.
        cosine_min: The worst token's.
        top1: Share of the head's first choices that are the same: masked tokens, labels, tags,
            answers; None without a head.
        metric: Metric of the task, where labels were given.
        reference: Its value in fp32, in points.
        found: Its value in this form, in points.
        notes: What the engine fell back from.
    """

    precision: str
    source: str
    texts: int
    cosine_mean: float
    cosine_min: float
    top1: float | None = None
    metric: str | None = None
    reference: float | None = None
    found: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def loss(self) -> float | None:
        """Return the points that the metric loses; negative if it gains."""
        return None if self.reference is None or self.found is None else self.reference - self.found

    @property
    def problems(self) -> list[str]:
        """Return why it should not be used; empty if it may."""
        if self.loss is not None:
            if not math.isfinite(self.loss):
                return [f"{self.metric} is {self.found}, in fp32 {self.reference}"]
            problem = f"{self.metric} falls by {self.loss:.2f} points, allowed are {MAX_LOSS}"
            return [problem] if self.loss > MAX_LOSS else []
        problems = []
        if self.cosine_mean < MIN_COSINE:
            problems.append(f"mean cosine {self.cosine_mean:.4f}, wanted {MIN_COSINE}")
        if self.top1 is not None and self.top1 < MIN_TOP1:
            problems.append(
                f"{self.top1:.1%} of the first choices are the same, wanted {MIN_TOP1:.0%}"
            )
        return problems

    @property
    def exit_status(self) -> int:
        """Return 1 if the form should not be used."""
        return 1 if self.problems else 0

    def facts(self) -> dict[str, Any]:
        """Return what the report lists, name to text; without `problems` and `notes`."""
        facts = {
            "compared on": f"{self.source}, {self.texts:,} texts",
            "cosine": f"{self.cosine_mean:.5f} on average, {self.cosine_min:.5f} at worst",
        }
        if self.top1 is not None:
            facts["same choice"] = f"{self.top1:.1%}"
        if self.metric is not None:
            facts[self.metric] = f"{self.found:.2f}, in fp32 {self.reference:.2f}"
        return facts

    def to_dict(self) -> dict[str, Any]:
        """Return every field, and `loss` and `problems`."""
        return {**super().to_dict(), "loss": self.loss, "problems": self.problems}

    def sections(self) -> list[Section]:
        """Return the facts and the verdict."""
        verdict = {
            "same as fp32": not self.problems,
            "because": self.problems,
            "notes": list(self.notes),
        }
        return [FactList({"precision": self.precision, **self.facts(), **verdict})]

    def require_closeness(self, force: bool, remedy: str) -> None:
        """Raise `doubtful` if there are problems, unless forced; `remedy` is what the command offers instead."""
        if self.problems and not force:
            reasons = "; ".join(self.problems)
            fact = f"in {self.precision} the model differs too much from fp32: {reasons}"
            raise CheckpointError("doubtful", fact, f"{remedy}, or take it as it is with --force")


@takes(ComparePrecisionOptions)
def compare_precision(options: ComparePrecisionOptions) -> PrecisionComparison:
    """Compare an engine with fp32; see `ComparePrecisionOptions`.

    Raises:
        CheckpointError: wrong-model if there are examples and no task; missing-file. And what
            reading and loading raise.
    """
    folder = local_folder(options.model)
    if is_onnx_folder(folder):
        # It has no weights in fp32: those of the folder that it was exported from are the reference.
        report = (
            read_json(folder / REPORT, "report of the export") if (folder / REPORT).exists() else {}
        )
        source = report.get("source")
        if not source or not Path(source).is_dir():
            missing = f"`{source}`" if source else f"there is no {REPORT}"
            raise CheckpointError(
                "missing-file",
                f"`{folder}` is an exported model, and the folder that it was exported from is not there: {missing}",
                f"{REPORT} has the comparison that was made then; name the model's own folder to compare an engine",
            )
        origin = local_folder(source)
        form = load_onnx(folder)
        original = (
            SentenceEncoder.from_pretrained(origin)
            if is_encoder_folder(origin)
            else load_model(origin)
        )
        comparison = compare_with_fp32(
            origin, original, form, form.precision, options.data, options.split
        )
        note = f"{folder} was compared with {origin}, which it was exported from"
        return replace(comparison, notes=(note,))
    model = (
        SentenceEncoder.from_pretrained(folder).albert
        if is_encoder_folder(folder)
        else load_model(folder)
    )
    engine = load_engine(model, options.precision)
    comparison = compare_with_fp32(
        folder, model, model_on_engine(model, engine), engine.precision, options.data, options.split
    )
    return replace(comparison, notes=engine.notes)


def compare_with_fp32(
    folder: Path,
    model: Form,
    form: PretrainedAlbert,
    precision: str,
    data: str | Path | None,
    split: str = "dev",
) -> PrecisionComparison:
    """Compare any form of a model with the model: on labelled examples, or on a sample of text.

    The folder holds the model's tokenizer and task.
    """
    if data is None:
        batches, source = sample_batches_and_source(load_optional_tokenizer(folder), model.config)
        num_texts = sum(batch.num_sequences for batch in batches)
        return PrecisionComparison(
            precision, source, num_texts, *_compare_outputs(batches, model, form)
        )
    if isinstance(model, SentenceEncoder):
        raise CheckpointError(
            "wrong-model",
            f"`{folder}` makes vectors: there is no task to score",
            "leave --data out",
        )
    task, _, tokenizer = load_task_model(folder)
    with as_files(data) as files:
        file, split = find_split_file(task, files, split)
        examples = read_split(task, file, split, BadRows())
    features = task.features(examples, tokenizer, labelled=False)
    scale = 1 if task.kind == "answers" else 100  # to points
    points = []
    choices = []
    for compared in (model, form):
        outputs = run_model(compared, task, features, _BATCH_TOKENS)
        predictions = task.predictions(examples, features, outputs)
        points.append(scale * task.score(examples, predictions)[task.metric])
        choices.append([first_choice(record) for record in predictions])
    top1 = None
    if choices[0][0] is not None:
        is_same = [expected == choice for expected, choice in zip(*choices, strict=True)]
        top1 = float(np.mean(is_same))
    sequences = np.arange(min(features.num_sequences, _SEQUENCES))
    parts = np.split(sequences, range(_BATCH_SEQUENCES, len(sequences), _BATCH_SEQUENCES))
    closeness = _compare_outputs([features.batch(part).packed for part in parts], model, form)
    cosines = (closeness.cosine_mean, closeness.cosine_min)
    source = str(data if is_remote(data) else file)
    return PrecisionComparison(
        precision, source, len(examples), *cosines, top1, task.metric, points[0], points[1]
    )


def _compare_outputs(batches: list[PackedBatch], model: Form, form: Form) -> "Closeness":
    reference = [compute_outputs(model, batch) for batch in batches]
    return compare_states(reference, [compute_outputs(form, batch) for batch in batches])


def first_choice(prediction: dict[str, Any]) -> Any:
    """Return the first choice of a prediction; None for a number."""
    return next(
        (prediction[name] for name in ("label", "labels", "tags", "answer") if name in prediction),
        None,
    )


# --- outputs, number by number --------------------------------------------------------------------


@torch.inference_mode()
def compute_outputs(model: Form, batch: PackedBatch) -> Outputs:
    """Return the outputs for a batch, at real tokens only: the same names for a model and for its export."""
    if isinstance(model, SentenceEncoder):
        return {
            "last_hidden_state": model.albert.encode(batch).hidden,
            "sentence_embedding": model(batch),
        }
    if isinstance(model, OnnxModel) and isinstance(model, AlbertModel):
        return {**model.run(batch), "last_hidden_state": model.encode(batch).hidden}
    if isinstance(model, AlbertModel):
        hidden, pooled = model.encode(batch)
        return {"last_hidden_state": hidden} | ({} if pooled is None else {"pooler_output": pooled})
    if isinstance(model, AlbertForBeamQuestionAnswering):
        return dict(model.packed_beams(batch))
    logits = model.packed_logits(batch)  # type: ignore[operator]
    if isinstance(model, AlbertForPreTraining):
        return {"prediction_logits": logits[0], "sop_logits": logits[1]}
    if isinstance(model, AlbertForQuestionAnswering):
        return {"start_logits": logits[0], "end_logits": logits[1]}
    return {"logits": logits}


class Closeness(NamedTuple):
    """Mean and least cosine of vectors, and the share of first choices that are the same; None where there is no choice."""

    cosine_mean: float
    cosine_min: float
    top1: float | None


def compare_states(reference: Sequence[Outputs], outputs: Sequence[Outputs]) -> Closeness:
    """Compare states, logits and first choices of each batch.

    A vector is a row of an output; an output of one number a row is one vector. Choices are the
    largest logits, and the first places of beams.
    """
    cosines = []
    agreements = []
    for name, expected, values in _compared_outputs(reference, outputs):
        if not expected.is_floating_point():
            agreements.append(expected[:, 0] == values[:, 0])
            continue
        if name.endswith("logits") and expected.dim() == 2 and expected.shape[1] > 1:
            agreements.append(expected.argmax(1) == values.argmax(1))
        cosine = F.cosine_similarity(_compared_vectors(values), _compared_vectors(expected), dim=1)
        # NaN is as bad as can be; rounding may pass 1.
        cosines.append(cosine.nan_to_num(-1.0).clamp(max=1.0))
    all_cosines = torch.cat(cosines)
    top1 = float(torch.cat(agreements).float().mean()) if agreements else None
    return Closeness(float(all_cosines.mean()), float(all_cosines.min()), top1)


def largest_difference_and_magnitude(
    reference: Sequence[Outputs], outputs: Sequence[Outputs]
) -> tuple[float, float]:
    """Return the largest absolute difference of two numbers, and the largest magnitude among those of the reference."""
    differences = []
    magnitudes = []
    for _, expected, values in _compared_outputs(reference, outputs):
        if expected.is_floating_point():
            expected = _zero_masked_logits(expected)
            differences.append((expected - _zero_masked_logits(values)).abs().max())
            magnitudes.append(float(expected.abs().max()))
    return float(torch.stack(differences).max()), max(magnitudes)


def _compared_outputs(
    reference: Sequence[Outputs], outputs: Sequence[Outputs]
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the name, the reference and the compared values of every output that has a number."""
    for expected, compared in zip(reference, outputs, strict=True):
        for name, values in expected.items():
            if values.numel():
                yield name, values, compared[name]


def _zero_masked_logits(values: Tensor) -> Tensor:
    return values.where(~(values <= _MIN_LOGIT), 0.0)  # NaN stays NaN


def _compared_vectors(values: Tensor) -> Tensor:
    """Return rows [R, C], or all numbers as one row."""
    if values.dim() == 1 or values.shape[1] < _MIN_ROW_NUMBERS:
        values = values.flatten()[None]
    return _zero_masked_logits(values).float()


# --- sample of text, which every machine has ------------------------------------------------------


def sample_batches_and_source(
    tokenizer: AlbertTokenizer | None, config: AlbertConfig
) -> tuple[list[PackedBatch], str]:
    """Return batches of single texts and pairs, some tokens masked, and their name; without a tokenizer random tokens."""
    max_tokens = min(_MAX_TOKENS, config.max_position_embeddings)
    rows = []
    if tokenizer is None:
        generator = torch.Generator().manual_seed(0)
        for _ in range(_SEQUENCES):
            halves = []
            for max_length in (max_tokens // 2, max_tokens - max_tokens // 2):
                length = torch.randint(1, max(max_length, 1) + 1, (1,), generator=generator)
                ids = torch.randint(0, config.vocab_size, length.tolist(), generator=generator)
                halves.append(ids.tolist())
            rows.append((halves[0], halves[1]))
        return _make_masked_batches(rows, config), "random tokens"
    texts = list(islice(chain.from_iterable(builtin_documents()), 2 * _SEQUENCES))
    encoded = [tokenizer.encode(text) for text in texts]
    for number, (text, pair) in enumerate(zip(encoded[::2], encoded[1::2], strict=True)):
        first = [tokenizer.cls_id, *text, tokenizer.sep_id][:max_tokens]
        second = [*pair, tokenizer.sep_id][: (max_tokens - len(first)) * (number % 2)]
        rows.append((first, second))
    return _make_masked_batches(rows, config, tokenizer.mask_id), "built-in text"


def _make_masked_batches(
    id_pairs: list[tuple[list[int], list[int]]], config: AlbertConfig, mask_id: int | None = None
) -> list[PackedBatch]:
    batches = []
    for start in range(0, len(id_pairs), _BATCH_SEQUENCES):
        pairs = id_pairs[start : start + _BATCH_SEQUENCES]
        ids = [[*first, *second] for first, second in pairs]
        types = [
            [0] * len(first) + [min(1, config.type_vocab_size - 1)] * len(second)
            for first, second in pairs
        ]
        # (Without a tokenizer the heads are compared there, and nothing is masked.)
        positions = [list(range(_MASK_EVERY // 2, len(row), _MASK_EVERY)) for row in ids]
        if mask_id is not None:
            for row, masked_positions in zip(ids, positions, strict=True):
                for position in masked_positions:
                    row[position] = mask_id
        batches.append(PackedBatch.from_sequences(ids, types, masked_positions=positions))
    return batches
