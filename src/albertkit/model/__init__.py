"""The model: packed batches, attention, the shared encoder, heads, and the public classes."""

from albertkit.model.albert import AlbertForMaskedLM, AlbertForPreTraining, AlbertModel
from albertkit.model.outputs import PretrainingLosses
from albertkit.model.packing import PackedBatch

__all__ = ["AlbertForMaskedLM", "AlbertForPreTraining", "AlbertModel", "PackedBatch", "PretrainingLosses"]
