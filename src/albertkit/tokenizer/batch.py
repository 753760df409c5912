"""Encoding of many texts at once."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from albertkit.tokenizer import rules
from albertkit.tokenizer.digit_comma import DigitCommaRule
from albertkit.tokenizer.ragged import RaggedIds, ragged


class BatchEncoder:
    """Ids of many texts, on several threads.

    Args:
        processor: `sentencepiece.SentencePieceProcessor`.
        model: Content of its model file.
        text_rules: Name of the text rules.
        digit_comma: Table of the digit-comma rule, if it applies.
    """

    def __init__(self, processor: Any, model: bytes, text_rules: str, digit_comma: DigitCommaRule | None) -> None:
        self._processor = processor
        self._model = model
        self._rules = text_rules
        self._digit_comma = digit_comma

    def encode(self, texts: Sequence[str], num_threads: int) -> RaggedIds:
        """See `AlbertTokenizer.encode_batch`."""
        prepared = [rules.apply(self._rules, text) for text in texts]
        encoded = ragged(encode_arrays(self._processor, prepared, num_threads or available_cores()))
        if self._digit_comma is None:
            return encoded
        return RaggedIds(*self._digit_comma.rewrite(*encoded))


def encode_arrays(processor: Any, texts: list[str], num_threads: int) -> list[np.ndarray]:
    """SentencePiece's own batch encoding: an int32 array a text. It runs without the interpreter's lock."""
    return processor.encode(texts, num_threads=num_threads, return_type="numpy")


def available_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
