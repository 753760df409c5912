"""The model: packed batches, attention, the shared encoder, heads, and the public classes."""

from albertkit.model.albert import AlbertForMaskedLM, AlbertForPreTraining, AlbertModel
from albertkit.model.beam import AlbertForBeamQuestionAnswering
from albertkit.model.outputs import PretrainingLosses, SummedLoss
from albertkit.model.packing import PackedBatch
from albertkit.model.tasks import (
    AlbertForMultipleChoice,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
)

__all__ = [
    "AlbertForBeamQuestionAnswering",
    "AlbertForMaskedLM",
    "AlbertForMultipleChoice",
    "AlbertForPreTraining",
    "AlbertForQuestionAnswering",
    "AlbertForSequenceClassification",
    "AlbertForTokenClassification",
    "AlbertModel",
    "PackedBatch",
    "PretrainingLosses",
    "SummedLoss",
]
