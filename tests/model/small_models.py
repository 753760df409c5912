"""What several tests of models use: the classes, a batch of any lengths, gradients by name."""

from collections.abc import Callable

import torch

from albertkit.model import (
    AlbertForBeamQuestionAnswering,
    AlbertForMaskedLM,
    AlbertForMultipleChoice,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    AlbertModel,
    PackedBatch,
)
from albertkit.model.pretrained import PretrainedAlbert

Make = Callable[..., PretrainedAlbert]
Tensors = dict[str, torch.Tensor]
WITH_HEADS = [
    AlbertForPreTraining, AlbertForMaskedLM, AlbertForSequenceClassification, AlbertForTokenClassification,
    AlbertForQuestionAnswering, AlbertForMultipleChoice, AlbertForBeamQuestionAnswering,
]  # fmt: skip
CLASSES = [AlbertModel, *WITH_HEADS]


def sequences(lengths: tuple[int, ...]) -> PackedBatch:
    """Sequences of these lengths with both kinds of labels."""
    ids = [[(7 * n + place) % 85 + 5 for place in range(n)] for n in lengths]
    masked = [[0] if n < 4 else [1, 3] for n in lengths]
    labels = [[n % 90] * len(places) for n, places in zip(lengths, masked, strict=True)]
    return PackedBatch.from_sequences(ids, None, masked, labels, [n % 2 for n in lengths])


def gradients(model: PretrainedAlbert, loss: torch.Tensor) -> Tensors:
    """The gradient of each parameter that has one."""
    model.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
