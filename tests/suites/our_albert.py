"""A plugin of pytest: albertkit's classes under the names of transformers' ALBERTs."""

from transformers.models.albert import modeling_albert

import albertkit

for name in (
    "AlbertModel",
    "AlbertForPreTraining",
    "AlbertForMaskedLM",
    "AlbertForMultipleChoice",
    "AlbertForSequenceClassification",
    "AlbertForTokenClassification",
    "AlbertForQuestionAnswering",
):
    setattr(modeling_albert, name, getattr(albertkit, name))
