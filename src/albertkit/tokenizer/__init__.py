"""Text to ids and back: text rules, SentencePiece with ALBERT's ids, WordPiece, training, checks, `tokenizer.json`."""

from albertkit.tokenizer.check import TokenizerCheckReport, check_tokenizer
from albertkit.tokenizer.ragged import RaggedIds
from albertkit.tokenizer.sentencepiece import SentencePieceTokenizer
from albertkit.tokenizer.tokenizer import AlbertTokenizer
from albertkit.tokenizer.tokenizer_json import JsonTokenizer
from albertkit.tokenizer.train import train_tokenizer
from albertkit.tokenizer.wordpiece import WordPieceTokenizer

AlbertTokenizer.kinds = (SentencePieceTokenizer, WordPieceTokenizer, JsonTokenizer)

__all__ = [
    "AlbertTokenizer",
    "JsonTokenizer",
    "RaggedIds",
    "SentencePieceTokenizer",
    "TokenizerCheckReport",
    "WordPieceTokenizer",
    "check_tokenizer",
    "train_tokenizer",
]
