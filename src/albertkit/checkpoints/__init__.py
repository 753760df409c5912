"""Checkpoint folders in Hugging Face's layout: loaded strictly, written whole or not at all."""

from albertkit.checkpoints.folder import load_checkpoint, read_tensors, save_checkpoint, write_tensors

__all__ = ["load_checkpoint", "read_tensors", "save_checkpoint", "write_tensors"]
