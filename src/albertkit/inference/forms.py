"""Forms of a model (an engine, an export) beside the model: what each says of the same batches, number by number.

T tokens of N sequences, P masked positions.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.engines.onnx_model import OnnxModel
from albertkit.model import (
    AlbertForBeamQuestionAnswering,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertModel,
    PackedBatch,
)
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tasks.data import file_of, read_split
from albertkit.tasks.faults import Faults
from albertkit.tasks.loading import load_task_model
from albertkit.tasks.prediction import run_model

Outputs = dict[str, Tensor]  # by the name in the graph: [T, ...], [P, ...] or [N, ...]; int64 for places
_MEANT = -1e29  # logits below this only say that a place is not allowed
_NARROW = 16  # rows of fewer numbers say little by their direction: those of a batch are one vector
_SEQUENCES, _AT_ONCE = 64, 8  # of examples, whose outputs are compared number by number
_BATCH_TOKENS = 8192


class TaskAnswers(NamedTuple):
    """What forms of a model answer to labelled examples.

    Attributes:
        source: The file.
        texts: How many examples.
        metric: Of the task.
        points: Its value for each form, in points: 100 is the most.
        same: Share of examples that the first two forms answer alike; None where answers are numbers.
        batches: The first sequences.
    """

    source: str
    texts: int
    metric: str
    points: list[float]
    same: float | None
    batches: list[PackedBatch]


@torch.inference_mode()
def outputs_of(model: PretrainedAlbert | SentenceEncoder, batch: PackedBatch) -> Outputs:
    """What a model says of a batch, at real tokens only: the same names for a model and for its export."""
    if isinstance(model, SentenceEncoder):
        return {"last_hidden_state": model.albert.encode(batch).hidden, "sentence_embedding": model(batch)}
    if isinstance(model, OnnxModel) and isinstance(model, AlbertModel):
        return {**model.run(batch), "last_hidden_state": model.encode(batch).hidden}
    if isinstance(model, AlbertModel):
        hidden, pooled = model.encode(batch)
        return (
            {"last_hidden_state": hidden} if pooled is None else {"last_hidden_state": hidden, "pooler_output": pooled}
        )
    if isinstance(model, AlbertForBeamQuestionAnswering):
        return dict(model.packed_beams(batch))
    found = model.packed_logits(batch)  # type: ignore[operator]
    if isinstance(model, AlbertForPreTraining):
        return {"prediction_logits": found[0], "sop_logits": found[1]}
    if isinstance(model, AlbertForQuestionAnswering):
        return {"start_logits": found[0], "end_logits": found[1]}
    return {"logits": found}


class Likeness(NamedTuple):
    """How alike the outputs of two forms are.

    Attributes:
        cosine_mean: Over all vectors.
        cosine_min: The worst.
        top1: Share of first choices that are the same; None where there is no choice.
    """

    cosine_mean: float
    cosine_min: float
    top1: float | None


def compare(reference: Sequence[Outputs], found: Sequence[Outputs]) -> Likeness:
    """Cosines of states and logits, and whether the first choices are the same.

    A vector is a row of an output; an output of one number a row is one vector. Choices are the largest logits, and the
    first places of beams.

    Args:
        reference: Outputs of the model, of each batch.
        found: Of its other form, in the same order.
    """
    cosines, same = [], []
    for name, expected, given in _pairs(reference, found):
        if not expected.is_floating_point():
            same.append(expected[:, 0] == given[:, 0])
            continue
        if name.endswith("logits") and expected.dim() == 2 and expected.shape[1] > 1:
            same.append(expected.argmax(1) == given.argmax(1))
        cosines.append(F.cosine_similarity(_vectors(given), _vectors(expected), dim=1).nan_to_num(-1.0).clamp(max=1.0))
    all_cosines = torch.cat(cosines)
    top1 = float(torch.cat(same).float().mean()) if same else None
    return Likeness(float(all_cosines.mean()), float(all_cosines.min()), top1)


def largest_difference(reference: Sequence[Outputs], found: Sequence[Outputs]) -> tuple[float, float]:
    """The largest absolute difference of two numbers, and the largest magnitude among those of the reference."""
    pairs = [(_meant(e), _meant(g)) for _, e, g in _pairs(reference, found) if e.is_floating_point()]
    differences = torch.stack([(expected - given).abs().max() for expected, given in pairs])
    return float(differences.max()), max(float(expected.abs().max()) for expected, _ in pairs)


def _pairs(reference: Sequence[Outputs], found: Sequence[Outputs]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Name, what the model says and what its other form says, of every output that has a number."""
    for expected, given in zip(reference, found, strict=True):
        for name, values in expected.items():
            if values.numel():
                yield name, values, given[name]


def _meant(values: Tensor) -> Tensor:
    return values.where(~(values <= _MEANT), 0.0)  # what is no number stays none


def _vectors(values: Tensor) -> Tensor:
    """Rows [R, C], or all numbers as one row."""
    return _meant(values.flatten()[None] if values.dim() == 1 or values.shape[1] < _NARROW else values).float()


def answer_task(folder: Path, forms: Sequence[PretrainedAlbert], data: Path, split: str = "dev") -> TaskAnswers:
    """Score every form of a fine-tuned model.

    Args:
        folder: With `task.json` and a tokenizer.
        forms: Of the task's class.
        data: Labelled examples: a file, or a folder in the task's layout.
        split: Which file of a folder.

    Raises:
        CheckpointError: no-task. DataError: what reading raises.
    """
    task, _, tokenizer = load_task_model(folder)
    file, split = file_of(task, data, split)
    examples = read_split(task, file, split, Faults())
    features = task.features(examples, tokenizer, labelled=False)
    scale = 1 if task.kind == "answers" else 100
    points, choices = [], []
    for form in forms:
        predictions = task.predictions(examples, features, run_model(form, task, features, _BATCH_TOKENS))
        points.append(scale * task.score(examples, predictions)[task.metric])
        choices.append([first_choice(record) for record in predictions])
    same = None if choices[0][0] is None else float(np.mean([a == b for a, b in zip(*choices[:2], strict=True)]))
    numbers = np.arange(min(features.num_sequences, _SEQUENCES))
    batches = [features.batch(some).packed for some in np.split(numbers, range(_AT_ONCE, len(numbers), _AT_ONCE))]
    return TaskAnswers(str(file), len(examples), task.metric, points, same, batches)


def first_choice(prediction: dict[str, Any]) -> Any:
    """What a prediction says, for comparing; None for a number."""
    return next((prediction[name] for name in ("label", "labels", "tags", "answer") if name in prediction), None)
