"""What a model takes, from texts: special tokens, truncation, padding, tensors; as transformers' tokenizers do it."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from albertkit.errors import ConfigError, DataError, near_miss

if TYPE_CHECKING:
    from albertkit.tokenizer.tokenizer import AlbertTokenizer

_TRUNCATIONS = ("longest_first", "only_first", "only_second")


def model_inputs(
    tokenizer: "AlbertTokenizer",
    text: str | Sequence[str],
    text_pair: str | Sequence[str] | None,
    padding: bool | str | None,
    truncation: bool | str,
    max_length: int | None,
    return_tensors: str | None,
) -> dict[str, Any]:
    """See `AlbertTokenizer.__call__`."""
    alone = isinstance(text, str)
    firsts = [text] if isinstance(text, str) else list(text)
    seconds = [text_pair] if isinstance(text_pair, str) else None if text_pair is None else list(text_pair)
    if seconds is not None and len(seconds) != len(firsts):
        raise ConfigError(
            "bad-argument", f"{len(firsts)} texts, but {len(seconds)} second ones", "give as many of both"
        )
    if padding not in (None, False, True, "longest", "max_length"):
        raise _bad("padding", padding, ("longest", "max_length"))
    if return_tensors not in (None, "pt", "np"):
        raise _bad("return_tensors", return_tensors, ("pt", "np"))
    strategy = "longest_first" if truncation is True else truncation
    if strategy and strategy not in _TRUNCATIONS:
        raise _bad("truncation", strategy, _TRUNCATIONS)
    limit = max_length if max_length is not None else tokenizer.model_max_length

    ids, types = [], []
    contents = _contents(tokenizer, firsts)
    for first, second in zip(contents, _contents(tokenizer, seconds) if seconds else [None] * len(firsts), strict=True):
        if strategy:
            first, second = _shortened(first, second, limit - (2 if second is None else 3), str(strategy))
        pair = [] if second is None else [*second, tokenizer.sep_id]
        ids.append([tokenizer.cls_id, *first, tokenizer.sep_id, *pair])
        types.append([0] * (len(first) + 2) + [1] * len(pair))
    lengths = [len(row) for row in ids]
    width = 0
    if padding == "max_length":
        width = limit
    elif padding or (padding is None and return_tensors):
        width = max(lengths, default=0)
    columns = {
        "input_ids": _padded(ids, width, tokenizer.pad_id),
        "token_type_ids": _padded(types, width, 0),
        "attention_mask": _padded([[1] * length for length in lengths], width, 0),
    }
    if return_tensors is None:
        return {name: rows[0] for name, rows in columns.items()} if alone else columns
    if len({len(row) for row in columns["input_ids"]}) > 1:
        raise ConfigError(
            "bad-argument", f"sequences of {min(lengths)} to {max(lengths)} ids make no tensor without padding",
            "leave `padding` out, or use truncation=True with padding=\"max_length\"",
        )  # fmt: skip
    arrays = {
        name: np.array(rows, dtype=np.int64).reshape(len(rows), max(map(len, rows), default=0))
        for name, rows in columns.items()
    }
    if return_tensors == "np":
        return arrays
    import torch

    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _contents(tokenizer: "AlbertTokenizer", texts: Sequence[str]) -> list[list[int]]:
    """Ids of texts without special tokens but the mask."""
    mask = tokenizer.id_to_piece(tokenizer.mask_id)
    parts = [text.split(mask) for text in texts]
    encoded = tokenizer.encode_batch(list(itertools.chain.from_iterable(parts))).texts()
    contents = []
    for text in parts:
        ids = next(encoded).tolist()
        for _ in text[1:]:
            ids += [tokenizer.mask_id, *next(encoded).tolist()]
        contents.append(ids)
    return contents


def _shortened(
    first: list[int], second: list[int] | None, room: int, strategy: str
) -> tuple[list[int], list[int] | None]:
    """Cut a text or a pair to `room` ids, from the end."""
    surplus = len(first) + len(second or []) - room
    if surplus <= 0:
        return first, second
    if strategy == "only_second" or second is None:
        from_first = surplus if second is None and strategy != "only_second" else 0
    elif strategy == "only_first":
        from_first = surplus
    else:  # the longer down to the other's length, then both in turn, the second first
        difference = len(first) - len(second)
        from_first = min(max(difference, 0), surplus)
        from_first += max(surplus - abs(difference), 0) // 2
    from_second = surplus - from_first
    if from_first > len(first) or from_second > len(second or []):
        raise DataError(
            "cannot-truncate",
            f"a sequence is {surplus} ids too long, more than there are to take by `{strategy}`",
            "use truncation=\"longest_first\", or a larger max_length",
        )  # fmt: skip
    return first[: len(first) - from_first], None if second is None else second[: len(second) - from_second]


def _padded(rows: list[list[int]], width: int, filler: int) -> list[list[int]]:
    return [row + [filler] * (width - len(row)) for row in rows]


def _bad(name: str, value: object, known: Sequence[str]) -> ConfigError:
    return ConfigError("bad-argument", f"{name} is {value!r}", near_miss(str(value), known))
