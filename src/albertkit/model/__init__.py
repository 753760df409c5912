"""The model: packed batches, attention, the shared encoder, heads, and the public classes."""

from albertkit.model.packing import PackedBatch

__all__ = ["PackedBatch"]
