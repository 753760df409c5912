"""Make model inputs from texts: special tokens, truncation, windows, padding, tensors; as transformers' tokenizers do it."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from albertkit.errors import ConfigError, DataError, near_miss
from albertkit.tokenizer.ragged import RaggedIds

_TRUNCATIONS = ("longest_first", "only_first", "only_second")
Span = tuple[int, int]


class Encoder(Protocol):
    """Methods of an `AlbertTokenizer` that are used here."""

    pad_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    model_max_length: int
    truncation_side: str
    padding_side: str
    longer_half: ClassVar[str]

    def encode_batch(self, texts: Sequence[str], num_threads: int = 0) -> RaggedIds: ...

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[Span]]: ...

    def id_to_piece(self, piece_id: int) -> str: ...

    def convert_ids_to_tokens(self, ids: Any) -> Any: ...


class TokenizedTexts(dict[str, Any]):
    """The columns of tokenized texts, by key or as attributes: `inputs["input_ids"]`, `inputs.input_ids`.

    Keys are those of transformers' `BatchEncoding`, and so are `to`, `tokens`, `word_ids` and `sequence_ids`.
    """

    _rows: "list[_Row]"
    _tokenizer: Encoder

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no column `{name}`, only {', '.join(self)}") from None

    def to(self, device: Any) -> "TokenizedTexts":
        """Move the tensors to a device, and return this object."""
        for name, value in self.items():
            if hasattr(value, "to"):
                self[name] = value.to(device)
        return self

    def tokens(self, row: int = 0) -> list[str]:
        """Return the tokens of a row, padding left out; what is unknown is the unknown token."""
        return self._tokenizer.convert_ids_to_tokens(self._rows[row].ids)

    def word_ids(self, row: int = 0) -> list[int | None]:
        """Return the number of the word that each token of a row is from, None for special tokens.

        With `is_split_into_words`, words are those that were given; with `return_offsets_mapping`, what spaces divide.
        """
        found = self._rows[row]
        if len(found.words) != len(found.ids):
            what = "the words of these tokens were not kept"
            raise ConfigError(
                "bad-value", what, "call the tokenizer with return_offsets_mapping=True or is_split_into_words=True"
            )
        return found.words

    def sequence_ids(self, row: int = 0) -> list[int | None]:
        """Return 0 for tokens of the first text, 1 for those of the second, None for special tokens."""
        return self._rows[row].sequences


@dataclass(frozen=True)
class InputSettings:
    """Settings of model inputs; see `AlbertTokenizer.__call__`."""

    padding: bool | str | None = None
    truncation: bool | str = False
    max_length: int | None = None
    stride: int = 0
    is_split_into_words: bool = False
    add_special_tokens: bool = True
    pad_to_multiple_of: int | None = None
    return_tensors: str | None = None
    return_token_type_ids: bool = True
    return_attention_mask: bool = True
    return_overflowing_tokens: bool = False
    return_special_tokens_mask: bool = False
    return_offsets_mapping: bool = False
    return_length: bool = False

    def __post_init__(self) -> None:
        if self.padding not in (None, False, True, "longest", "max_length", "do_not_pad"):
            raise _bad("padding", self.padding, ("longest", "max_length", "do_not_pad"))
        if self.return_tensors not in (None, "pt", "np"):
            raise _bad("return_tensors", self.return_tensors, ("pt", "np"))
        if self.truncation not in (True, False, None, "do_not_truncate", *_TRUNCATIONS):
            raise _bad("truncation", self.truncation, _TRUNCATIONS)
        if self.stride < 0:
            raise ConfigError("bad-value", f"stride is {self.stride}", "use 0 or more")

    @property
    def strategy(self) -> str | None:
        """Return the name of the way to truncate; None for none."""
        strategy = "longest_first" if self.truncation is True else self.truncation
        return None if strategy in (False, None, "do_not_truncate") else str(strategy)


@dataclass(frozen=True, slots=True)
class _Text:
    """Tokens of a text. Spans and words are empty where they were not asked for."""

    ids: list[int]
    spans: list[Span]
    words: list[int]

    def part(self, start: int, stop: int) -> "_Text":
        return _Text(self.ids[start:stop], self.spans[start:stop], self.words[start:stop])

    def without(self, surplus: int, side: str) -> "_Text":
        return self.part(0, len(self) - surplus) if side == "right" else self.part(surplus, len(self))

    def __len__(self) -> int:
        return len(self.ids)


class _Row(NamedTuple):
    """One sequence of a model."""

    ids: list[int]
    types: list[int]
    spans: list[Span]
    words: list[int | None]
    sequences: list[int | None]
    source: int


def model_inputs(tokenizer: Encoder, text: Any, text_pair: Any, settings: InputSettings) -> TokenizedTexts:
    """See `AlbertTokenizer.__call__`."""
    words = settings.is_split_into_words
    alone = (not text or isinstance(text[0], str)) if words else isinstance(text, str)
    firsts = [text] if alone else list(text)
    seconds = None if text_pair is None else [text_pair] if alone else list(text_pair)
    if seconds is not None and len(seconds) != len(firsts):
        raise ConfigError("bad-value", f"{len(firsts)} texts, but {len(seconds)} second ones", "give as many of both")
    located = settings.return_offsets_mapping or words
    second_texts = None if seconds is None else _texts(tokenizer, seconds, words, located)
    rows = _rows(tokenizer, _texts(tokenizer, firsts, words, located), second_texts, settings)
    return _columns(tokenizer, rows, settings, alone and not settings.return_overflowing_tokens)


def _columns(tokenizer: Encoder, rows: list[_Row], settings: InputSettings, alone: bool) -> TokenizedTexts:
    lengths = [len(row.ids) for row in rows]
    width = _width(tokenizer, lengths, settings)
    side = tokenizer.padding_side
    columns = {"input_ids": _padded([row.ids for row in rows], width, tokenizer.pad_id, side)}
    if settings.return_token_type_ids:
        columns["token_type_ids"] = _padded([row.types for row in rows], width, 0, side)
    if settings.return_special_tokens_mask:
        masks = [[int(place is None) for place in row.sequences] for row in rows]
        columns["special_tokens_mask"] = _padded(masks, width, 1, side)
    if settings.return_attention_mask:
        columns["attention_mask"] = _padded([[1] * length for length in lengths], width, 0, side)
    if settings.return_offsets_mapping:
        columns["offset_mapping"] = _padded([row.spans for row in rows], width, (0, 0), side)
    found = TokenizedTexts(_typed(columns, settings.return_tensors, alone))
    if settings.return_length:
        found["length"] = _as_kind([len(ids) for ids in columns["input_ids"]], settings.return_tensors)
    if settings.return_overflowing_tokens:
        found["overflow_to_sample_mapping"] = _as_kind([row.source for row in rows], settings.return_tensors)
    found._rows, found._tokenizer = rows, tokenizer
    return found


def _width(tokenizer: Encoder, lengths: list[int], settings: InputSettings) -> int:
    """Return the length to which sequences are padded; 0 for none."""
    width = 0
    if settings.padding == "max_length":
        width = settings.max_length if settings.max_length is not None else tokenizer.model_max_length
    elif settings.padding in (True, "longest") or (settings.padding is None and settings.return_tensors):
        width = max(lengths, default=0)
    if width and settings.pad_to_multiple_of:
        width = -(-width // settings.pad_to_multiple_of) * settings.pad_to_multiple_of
    return width


def pad_inputs(tokenizer: Encoder, encoded: Any, settings: InputSettings) -> TokenizedTexts:
    """See `AlbertTokenizer.pad`."""
    given = {name: list(values) for name, values in encoded.items()} if isinstance(encoded, Mapping) else {}
    alone = bool(given) and isinstance(given["input_ids"][0], int)
    rows = [given] if alone else list(encoded)
    if given and not alone:
        rows = [dict(zip(given, values, strict=True)) for values in zip(*given.values(), strict=True)]
    plain = [{name: v.tolist() if hasattr(v, "tolist") else v for name, v in row.items()} for row in rows]
    lengths = [len(row["input_ids"]) for row in plain]
    width = _width(tokenizer, lengths, settings)
    fillers = {"input_ids": tokenizer.pad_id, "token_type_ids": 0, "attention_mask": 0, "special_tokens_mask": 1}
    columns = {name: [row[name] for row in plain] for name in (plain[0] if plain else ())}
    columns.setdefault("attention_mask", [[1] * length for length in lengths])
    padded = {
        name: _padded(values, width, fillers[name], tokenizer.padding_side)
        for name, values in columns.items()
        if name in fillers
    }
    found = TokenizedTexts(_typed(padded, settings.return_tensors, alone))
    others = {name: values[0] if alone else values for name, values in columns.items() if name not in fillers}
    for name, values in others.items():
        is_real = settings.return_tensors and np.array(values).dtype.kind == "f"
        found[name] = _as_kind(values, settings.return_tensors, np.shape(values), np.float32 if is_real else np.int64)
    return found


def _typed(columns: dict[str, list[Any]], kind: str | None, alone: bool) -> dict[str, Any]:
    """Return lists, of a text alone those of its row; or arrays; or tensors."""
    if kind is None:
        return {name: rows[0] for name, rows in columns.items()} if alone else dict(columns)
    lengths = {len(row) for row in columns["input_ids"]}
    if len(lengths) > 1:
        what = f"sequences of {min(lengths)} to {max(lengths)} ids make no tensor without padding"
        raise ConfigError("bad-value", what, 'leave `padding` out, or use truncation=True with padding="max_length"')
    width = max(lengths, default=0)
    shapes = {name: (len(rows), width, *((2,) if name == "offset_mapping" else ())) for name, rows in columns.items()}
    return {name: _as_kind(rows, kind, shapes[name]) for name, rows in columns.items()}


def _as_kind(numbers: Any, kind: str | None, shape: tuple[int, ...] = (-1,), dtype: Any = np.int64) -> Any:
    """Return numbers as they are, as an array, or as a tensor."""
    if kind is None:
        return numbers
    array = np.array(numbers, dtype=dtype).reshape(shape)
    if kind == "np":
        return array
    import torch

    return torch.from_numpy(array)


# --- texts ------------------------------------------------------------------------------------------------------------


def _texts(tokenizer: Encoder, texts: Sequence[Any], split: bool, located: bool) -> list[_Text]:
    """Return the tokens of texts, or of lists of words, without special tokens but the mask."""
    if not located:
        return [_Text(ids, [], []) for ids in _contents(tokenizer, texts)]
    if not split:
        return [_located(tokenizer, text) for text in texts]
    found = []
    for words in texts:
        if isinstance(words, str):
            what = f"is_split_into_words, but {words[:30]!r} is a text and not a list of words"
            raise ConfigError("bad-value", what, "give a list of words for each text")
        pieces = [_located(tokenizer, word) for word in words]
        ids = [number for piece in pieces for number in piece.ids]
        spans = [span for piece in pieces for span in piece.spans]
        found.append(_Text(ids, spans, [number for number, piece in enumerate(pieces) for _ in piece.ids]))
    return found


def _contents(tokenizer: Encoder, texts: Sequence[str]) -> Iterator[list[int]]:
    """Return the ids of texts, all encoded together."""
    mask = tokenizer.id_to_piece(tokenizer.mask_id)
    parts = [text.split(mask) for text in texts]
    encoded = tokenizer.encode_batch(list(itertools.chain.from_iterable(parts))).texts()
    for text in parts:
        ids = next(encoded).tolist()
        for _ in text[1:]:
            ids += [tokenizer.mask_id, *next(encoded).tolist()]
        yield ids


def _located(tokenizer: Encoder, text: str) -> _Text:
    """Return the tokens of a text and their characters. The mask takes the white space before it along, other tokens none."""
    mask = tokenizer.id_to_piece(tokenizer.mask_id)
    ids: list[int] = []
    spans: list[Span] = []
    start, blanks = 0, 0
    for number, part in enumerate(text.split(mask)):
        if number:
            ids.append(tokenizer.mask_id)
            spans.append((start - blanks, start + len(mask)))
            start += len(mask)
        blanks = len(part) - len(part.rstrip())
        part_ids, part_spans = tokenizer.encode_with_offsets(part)
        ids += part_ids
        spans += [(start + a, start + b) for a, b in (_trimmed(part, span) for span in part_spans)]
        start += len(part)
    return _Text(ids, spans, _words(text, spans, [number == tokenizer.mask_id for number in ids]))


def _words(text: str, spans: list[Span], masks: list[bool]) -> list[int]:
    """Return the number of each token's word: white space begins one, and a mask is one."""
    words: list[int] = []
    for n, ((start, _), is_mask) in enumerate(zip(spans, masks, strict=True)):
        begins = n > 0 and (is_mask or masks[n - 1] or any(map(str.isspace, text[spans[n - 1][1] : start])))
        words.append(words[-1] + begins if words else 0)
    return words


def _trimmed(text: str, span: Span) -> Span:
    """Return the span without its leading white space; of a space alone, as in transformers, the character after it."""
    start, end = span
    start += len(text[start:end]) - len(text[start:end].lstrip())
    return (start, end) if start < end else (start, min(start + 1, len(text)))


# --- sequences --------------------------------------------------------------------------------------------------------


def _rows(tokenizer: Encoder, firsts: list[_Text], seconds: list[_Text] | None, settings: InputSettings) -> list[_Row]:
    limit = settings.max_length if settings.max_length is not None else tokenizer.model_max_length
    specials = settings.add_special_tokens * (2 if seconds is None else 3)
    rows = []
    for number, first in enumerate(firsts):
        second = None if seconds is None else seconds[number]
        pairs = [(first, second)]
        if settings.strategy and settings.return_overflowing_tokens and tokenizer.truncation_side == "left":
            fact = "this tokenizer cuts texts on the left, and windows are made from the left"
            raise ConfigError("bad-value", fact, 'set tokenizer.truncation_side = "right"')
        if settings.strategy and settings.return_overflowing_tokens:
            pairs = _windows(first, second, limit - specials, settings.strategy, settings.stride)
        elif settings.strategy:
            pairs = [_shortened(first, second, limit - specials, settings.strategy, tokenizer)]
        rows += [_row(tokenizer, a, b, settings.add_special_tokens, number) for a, b in pairs]
    return rows


def _row(tokenizer: Encoder, first: _Text, second: _Text | None, specials: bool, source: int) -> _Row:
    """Put the special tokens around and between the texts."""
    start, end = [([tokenizer.cls_id], [tokenizer.sep_id]), ([], [])][not specials]
    parts: list[tuple[list[int], list[Span], list[int | None], int | None, int]] = []
    for place, text in enumerate((first, second)):
        if text is not None:
            if not place:
                parts.append((start, [(0, 0)] * len(start), [None] * len(start), None, 0))
            parts.append((text.ids, text.spans, [*text.words], place, place))
            parts.append((end, [(0, 0)] * len(end), [None] * len(end), None, place))
    return _Row(
        ids=[i for ids, *_ in parts for i in ids],
        types=[kind for ids, *_, kind in parts for _ in ids],
        spans=[span for _, spans, *_ in parts for span in spans],
        words=[word for _, _, words, *_ in parts for word in words],
        sequences=[place for ids, _, _, place, _ in parts for _ in ids],
        source=source,
    )


def _windows(
    first: _Text, second: _Text | None, room: int, strategy: str, stride: int
) -> list[tuple[_Text, _Text | None]]:
    """Cut the text that may be shortened into windows that overlap by `stride` tokens."""
    if second is not None and strategy == "longest_first":
        what = "windows of a pair can only be cut from one of its texts"
        raise ConfigError("bad-value", what, 'use truncation="only_second" or "only_first"')
    long, other = (second, first) if strategy == "only_second" and second is not None else (first, second)
    size = room - (len(other) if other is not None else 0)
    if len(long) <= size:
        return [(first, second)]
    if size <= stride:
        what = f"stride is {stride}, but a window has room for {max(size, 0)} tokens"
        raise ConfigError("bad-value", what, "use a smaller stride, or a larger max_length")
    step = size - stride
    parts = [long.part(start, start + size) for start in range(0, max(len(long) - stride, 1), step)]
    return [(first, part) if long is second else (part, second) for part in parts]


def _shortened(
    first: _Text, second: _Text | None, room: int, strategy: str, tokenizer: Encoder
) -> tuple[_Text, _Text | None]:
    """Cut a text or a pair to `room` ids, from its right or left end."""
    surplus = len(first) + (len(second) if second is not None else 0) - room
    if surplus <= 0:
        return first, second
    if strategy == "only_second" or second is None:
        from_first = surplus if second is None and strategy != "only_second" else 0
    elif strategy == "only_first":
        from_first = surplus
    else:  # the longer to what the shorter leaves, at least half; of an odd number of ids it has one more
        half = max(room, 0) // 2
        first_has_more = len(first) > len(second) or (tokenizer.longer_half == "first" and len(first) > half)
        shorter = min(len(first), len(second), half)
        from_first = len(first) - (room - shorter if first_has_more else shorter)
    from_second = surplus - from_first
    if from_first > len(first) or from_second > (len(second) if second is not None else 0):
        what = f"a sequence is {surplus} ids too long, more than there are to take by `{strategy}`"
        raise DataError("too-large", what, 'use truncation="longest_first", or a larger max_length')
    side = tokenizer.truncation_side
    return first.without(from_first, side), None if second is None else second.without(from_second, side)


def _padded(rows: list[Any], width: int, filler: Any, side: str) -> list[list[Any]]:
    fillers = [[filler] * (width - len(row)) for row in rows]
    return [row + more if side == "right" else more + row for row, more in zip(rows, fillers, strict=True)]


def _bad(name: str, value: object, known: Sequence[str]) -> ConfigError:
    return ConfigError("bad-value", f"{name} is {value!r}", near_miss(str(value), known))
