"""Checkpoint folders in Hugging Face's layout: loaded strictly, written whole or not at all."""

from albertkit.checkpoints.folder import load_checkpoint, read_tensors, save_checkpoint, write_tensors
from albertkit.checkpoints.hub import push_checkpoint
from albertkit.model_folder import local_folder

__all__ = [
    "load_checkpoint",
    "local_folder",
    "push_checkpoint",
    "read_tensors",
    "save_checkpoint",
    "write_tensors",
]
