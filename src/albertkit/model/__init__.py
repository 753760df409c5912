"""The model: packed batches, attention, the shared encoder, heads, and the public classes."""

import os

from albertkit.batches.packed import PackedBatch
from albertkit.model.beam_question_answering import AlbertForBeamQuestionAnswering
from albertkit.model.classes import (
    AlbertForMaskedLM,
    AlbertForMultipleChoice,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
)
from albertkit.model.padded import PretrainingLosses, SummedLoss
from albertkit.model.pretrained import AlbertModel

# cuBLAS repeats itself to the bit with a workspace that is named, and torch asks for it once, at
# the first product on a GPU. 32 MiB, as much as torch takes on an H100 anyway.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

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
