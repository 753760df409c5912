"""Text to ids and back: text rules, SentencePiece with ALBERT's ids, training, and the file transformers reads."""

from importlib import import_module
from typing import Any

_WHERE = {
    "AlbertTokenizer": "albertkit.tokenizer.tokenizer",
    "RaggedIds": "albertkit.tokenizer.ragged",
    "train_tokenizer": "albertkit.tokenizer.train",
}

__all__ = ["AlbertTokenizer", "RaggedIds", "train_tokenizer"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'albertkit.tokenizer' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
