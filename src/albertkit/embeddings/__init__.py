"""Sentence embeddings: texts to vectors; training, distillation, silver data, evaluation and files of any size."""

from importlib import import_module
from typing import Any

_WHERE = {
    "SentenceEncoder": "albertkit.embeddings.encoder",
    "augment": "albertkit.embeddings.augment",
    "distill_embeddings": "albertkit.embeddings.distill",
    "encode_file": "albertkit.embeddings.encode",
    "evaluate_embeddings": "albertkit.embeddings.evaluate",
    "train_embeddings": "albertkit.embeddings.train",
}

__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'albertkit.embeddings' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
