"""Text to ids and back: text rules, SentencePiece with ALBERT's ids, WordPiece, training, checks, `tokenizer.json`."""

from albertkit.tokenizer.check import CheckReport, check_tokenizer
from albertkit.tokenizer.json_tokenizer import JsonTokenizer
from albertkit.tokenizer.ragged import RaggedIds
from albertkit.tokenizer.sentencepiece_tokenizer import SentencePieceTokenizer
from albertkit.tokenizer.tokenizer import AlbertTokenizer
from albertkit.tokenizer.train import train_tokenizer
from albertkit.tokenizer.wordpiece import WordPieceTokenizer

AlbertTokenizer.kinds = (SentencePieceTokenizer, WordPieceTokenizer, JsonTokenizer)

__all__ = [
    "AlbertTokenizer",
    "CheckReport",
    "JsonTokenizer",
    "RaggedIds",
    "SentencePieceTokenizer",
    "WordPieceTokenizer",
    "check_tokenizer",
    "train_tokenizer",
]
