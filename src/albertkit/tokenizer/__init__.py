"""Text to ids and back: text rules, SentencePiece with ALBERT's ids, WordPiece, training, checks, `tokenizer.json`."""

from importlib import import_module
from typing import Any

_WHERE = {
    "AlbertTokenizer": "albertkit.tokenizer.tokenizer",
    "CheckReport": "albertkit.tokenizer.check",
    "JsonTokenizer": "albertkit.tokenizer.json_tokenizer",
    "RaggedIds": "albertkit.tokenizer.ragged",
    "SentencePieceTokenizer": "albertkit.tokenizer.sentencepiece_tokenizer",
    "WordPieceTokenizer": "albertkit.tokenizer.wordpiece",
    "check_tokenizer": "albertkit.tokenizer.check",
    "train_tokenizer": "albertkit.tokenizer.train",
}

__all__ = [*_WHERE]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'albertkit.tokenizer' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
