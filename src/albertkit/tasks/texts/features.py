"""Texts and pairs of texts as sequences of ids: `[CLS] A [SEP]`, `[CLS] A [SEP] B [SEP]`; no loop over examples.

M sequences of E examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from albertkit.data.features import Features, tokens_for_text
from albertkit.errors import ConfigError

if TYPE_CHECKING:
    from albertkit.tokenizer import AlbertTokenizer


def text_features(
    texts: Sequence[str], pairs: Sequence[str] | None, tokenizer: AlbertTokenizer, length: int, stride: int = 0
) -> Features:
    """Return what the model sees of texts.

    Returns:
        A sequence an example, in their order; with windows one or more. `left_out` counts the tokens that were cut.

    Source: `convert_single_example` and `_truncate_seq_pair` of google-research/albert, `classifier_utils.py`.
    """
    room = tokens_for_text(length, 2 if pairs is None else 3)
    first, first_starts = tokenizer.encode_batch(texts)
    lengths, starts = np.diff(first_starts), first_starts[:-1]
    examples = np.arange(len(texts))
    if pairs is None:
        if stride > room:
            fact = f"a stride of {stride} leaves gaps between windows of {room} tokens"
            raise ConfigError("bad-value", fact, f"use a stride of at most {room}")
        left_out = np.maximum(lengths - room, 0)
        if stride:
            left_out = np.zeros_like(left_out)
            examples, starts, lengths = _windows(starts, lengths, room, stride)
        elif tokenizer.truncation_side == "left":
            starts = starts + left_out
        made = _assembled(tokenizer, examples, first, starts, np.minimum(lengths, room))
        return replace(made, left_out=left_out)
    second, second_starts = tokenizer.encode_batch(pairs)
    second_lengths = np.diff(second_starts)
    kept, second_kept = _truncated_pairs(lengths, second_lengths, room)
    single = second_lengths == 0
    kept[single] = np.minimum(lengths[single], room + 1)
    second_from = second_starts[:-1]
    if tokenizer.truncation_side == "left":
        starts = starts + lengths - kept
        second_from = second_from + second_lengths - second_kept
    made = _assembled(tokenizer, examples, first, starts, kept, second, second_from, second_kept)
    return replace(made, left_out=lengths - kept + second_lengths - second_kept)


def _truncated_pairs(first: np.ndarray, second: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Return lengths after taking tokens one by one from the longer text, from the second where both are as long.

    The longer one shrinks to what the shorter leaves; where the shorter one is more than half of the room, both get half.
    """
    half = (room + 1) // 2
    fits = first + second <= room
    first_kept = np.minimum(first, np.maximum(room - second, half))
    second_kept = np.minimum(second, np.maximum(room - first, room - half))
    return np.where(fits, first, first_kept), np.where(fits, second, second_kept)


def _windows(starts: np.ndarray, lengths: np.ndarray, size: int, stride: int) -> tuple[np.ndarray, ...]:
    """Return example, start and length of each window; the last one of a text is the first that reaches its end."""
    further = -(-np.maximum(lengths - size, 0) // stride)
    examples = np.repeat(np.arange(len(lengths)), further + 1)
    number = np.arange(len(examples)) - np.repeat(np.cumsum(further + 1) - further - 1, further + 1)
    return examples, starts[examples] + number * stride, lengths[examples] - number * stride


def _assembled(
    tokenizer: AlbertTokenizer,
    examples: np.ndarray,
    first: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    second: np.ndarray | None = None,
    second_starts: np.ndarray | None = None,
    second_lengths: np.ndarray | None = None,
) -> Features:
    """Assemble sequences from places in the ids of all texts."""
    ends = lengths + 2
    sizes = ends if second_lengths is None else ends + second_lengths + (second_lengths > 0)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    begin = offsets[:-1]
    ids = np.full(offsets[-1], tokenizer.sep_id, np.int32)
    types = np.zeros(offsets[-1], np.uint8)
    ids[begin] = tokenizer.cls_id
    ids[_spread(begin + 1, lengths)] = first[_spread(starts, lengths)]
    if second is not None and second_starts is not None and second_lengths is not None:
        ids[_spread(begin + ends, second_lengths)] = second[_spread(second_starts, second_lengths)]
        types[_spread(begin + ends, sizes - ends)] = 1
    return Features(ids, types, offsets, examples.astype(np.int64))


def _spread(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return all places of ranges, one after the other."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())
