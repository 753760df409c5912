"""Make model inputs from texts: special tokens, truncation, windows, padding, tensors; as transformers' tokenizers do it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from albertkit.errors import ConfigError, DataError, suggest_name
from albertkit.tokenizer.ragged import RaggedIds, concatenate_ids, insert_missing_texts
from albertkit.tokenizer.rules import replace_lone_surrogates

_TRUNCATIONS = ("longest_first", "only_first", "only_second")
Span = tuple[int, int]


class InputEncoder(Protocol):
    """Methods of an `AlbertTokenizer` that are used here."""

    pad_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    model_max_length: int
    truncation_side: str
    padding_side: str
    longer_half: ClassVar[str]
    mask_flags: tuple[str, ...]

    @property
    def all_special_tokens(self) -> list[str]: ...

    def encode_batch(self, texts: Sequence[str], num_threads: int = 0) -> RaggedIds: ...

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[Span]]: ...

    def mask_spans(self, text: str) -> list[Span]: ...

    def convert_ids_to_tokens(self, ids: Any) -> Any: ...

    def tokenizer_json(self) -> str: ...


class TokenizedTexts(dict[str, Any]):
    """The columns of tokenized texts, by key or as attributes: `inputs["input_ids"]`, `inputs.input_ids`.

    Keys are those of transformers' `BatchEncoding`, and so are `to`, `tokens`, `word_ids` and
    `sequence_ids`.
    """

    _make_sequences: "list[_Sequence]"
    _tokenizer: InputEncoder

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
        """Return the tokens of a row without padding; unknown ones are the unknown token."""
        return self._tokenizer.convert_ids_to_tokens(self._make_sequences[row].ids)

    def word_ids(self, row: int = 0) -> list[int | None]:
        """Return the number of the word that each token of a row is from, None for special tokens.

        With `is_split_into_words`, words are those of the input; with `return_offsets_mapping`,
        spaces divide words.
        """
        words = self._make_sequences[row].words
        # Finding them takes an encoding with offsets, a text at a time
        if len(words) != len(self._make_sequences[row].ids):
            fact = "the words of these tokens were not kept"
            hint = "call the tokenizer with return_offsets_mapping=True or is_split_into_words=True"
            raise ConfigError("bad-value", fact, hint)
        return words

    def sequence_ids(self, row: int = 0) -> list[int | None]:
        """Return 0 for tokens of the first text, 1 for those of the second, None for special tokens."""
        return self._make_sequences[row].sequences


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
            raise _bad_value_error("padding", self.padding, ("longest", "max_length", "do_not_pad"))
        if self.return_tensors not in (None, "pt", "np"):
            raise _bad_value_error("return_tensors", self.return_tensors, ("pt", "np"))
        if self.truncation not in (True, False, None, "do_not_truncate", *_TRUNCATIONS):
            raise _bad_value_error("truncation", self.truncation, _TRUNCATIONS)
        if self.stride < 0:
            raise ConfigError("bad-value", f"stride is {self.stride}", "use 0 or more")

    @property
    def strategy(self) -> str | None:
        """Return the truncation strategy; None for no truncation."""
        strategy = "longest_first" if self.truncation is True else self.truncation
        return None if strategy in (False, None, "do_not_truncate") else str(strategy)


@dataclass(frozen=True, slots=True)
class _TokenizedText:
    """Tokens of a text. Spans and words are empty if they were not requested."""

    ids: list[int]
    spans: list[Span]
    words: list[int]

    def part(self, start: int, stop: int) -> "_TokenizedText":
        return _TokenizedText(self.ids[start:stop], self.spans[start:stop], self.words[start:stop])

    def without(self, surplus: int, side: str) -> "_TokenizedText":
        if side == "right":
            return self.part(0, len(self) - surplus)
        return self.part(surplus, len(self))

    def __len__(self) -> int:
        return len(self.ids)


class _Sequence(NamedTuple):
    """One sequence of a model."""

    ids: list[int]
    types: list[int]
    spans: list[Span]
    words: list[int | None]
    sequences: list[int | None]
    source: int

    def add_text(self, text: _TokenizedText, sequence: int) -> None:
        """Add the tokens of the first text (0) or the second (1)."""
        self.ids.extend(text.ids)
        self.types.extend([sequence] * len(text))
        self.spans.extend(text.spans)
        self.words.extend(text.words)
        self.sequences.extend([sequence] * len(text))

    def add_special_token(self, token_id: int, token_type: int) -> None:
        """Add a token that stands for nothing in a text."""
        self.ids.append(token_id)
        self.types.append(token_type)
        self.spans.append((0, 0))
        self.words.append(None)
        self.sequences.append(None)


def model_inputs(
    tokenizer: InputEncoder,
    text: Any,
    text_pair: Any,
    settings: InputSettings,
) -> TokenizedTexts:
    """See `AlbertTokenizer.__call__`."""
    split = settings.is_split_into_words
    is_single = isinstance(text, str)
    if split:
        is_single = not text or isinstance(text[0], str)
    firsts = [text] if is_single else list(text)
    with_spans = settings.return_offsets_mapping or split
    second_texts = None
    if text_pair is not None:
        seconds = [text_pair] if is_single else list(text_pair)
        if len(seconds) != len(firsts):
            fact = f"{len(firsts)} texts, but {len(seconds)} second ones"
            raise ConfigError("bad-value", fact, "give as many of both")
        second_texts = _tokenize(tokenizer, seconds, split, with_spans)
    rows = _make_sequences(
        tokenizer, _tokenize(tokenizer, firsts, split, with_spans), second_texts, settings
    )

    lengths = [len(row.ids) for row in rows]
    width = _padded_length(tokenizer, lengths, settings)
    side = tokenizer.padding_side
    columns = {"input_ids": _pad_rows([row.ids for row in rows], width, tokenizer.pad_id, side)}
    if settings.return_token_type_ids:
        columns["token_type_ids"] = _pad_rows([row.types for row in rows], width, 0, side)
    if settings.return_special_tokens_mask:
        masks = [[int(sequence is None) for sequence in row.sequences] for row in rows]
        columns["special_tokens_mask"] = _pad_rows(masks, width, 1, side)
    if settings.return_attention_mask:
        columns["attention_mask"] = _pad_rows([[1] * length for length in lengths], width, 0, side)
    if settings.return_offsets_mapping:
        columns["offset_mapping"] = _pad_rows([row.spans for row in rows], width, (0, 0), side)
    is_one_row = is_single and not settings.return_overflowing_tokens
    inputs = TokenizedTexts(_convert_columns(columns, settings.return_tensors, is_one_row))
    if settings.return_length:
        inputs["length"] = _convert_numbers(
            [len(ids) for ids in columns["input_ids"]], settings.return_tensors
        )
    if settings.return_overflowing_tokens:
        inputs["overflow_to_sample_mapping"] = _convert_numbers(
            [row.source for row in rows], settings.return_tensors
        )
    inputs._make_sequences = rows
    inputs._tokenizer = tokenizer
    return inputs


def _padded_length(tokenizer: InputEncoder, lengths: list[int], settings: InputSettings) -> int:
    """Return the length to which sequences are padded; 0 for none."""
    width = 0
    if settings.padding == "max_length":
        width = (
            settings.max_length if settings.max_length is not None else tokenizer.model_max_length
        )
    elif settings.padding in (True, "longest") or (
        settings.padding is None and settings.return_tensors
    ):
        width = max(lengths, default=0)
    if width and settings.pad_to_multiple_of:
        width = -(-width // settings.pad_to_multiple_of) * settings.pad_to_multiple_of
    return width


def pad_inputs(tokenizer: InputEncoder, encoded: Any, settings: InputSettings) -> TokenizedTexts:
    """See `AlbertTokenizer.pad`."""
    is_single = False
    rows: list[Mapping[str, Any]] = []
    if not isinstance(encoded, Mapping):
        rows = list(encoded)
    elif encoded:
        columns = {name: list(values) for name, values in encoded.items()}
        is_single = isinstance(columns["input_ids"][0], int)
        rows = [
            dict(zip(columns, values, strict=True))
            for values in zip(*columns.values(), strict=True)
        ]
        if is_single:
            rows = [columns]
    columns = {}
    for name in rows[0] if rows else ():
        values = [row[name] for row in rows]
        columns[name] = [value.tolist() if hasattr(value, "tolist") else value for value in values]
    lengths = [len(row["input_ids"]) for row in rows]
    width = _padded_length(tokenizer, lengths, settings)
    fillers = {
        "input_ids": tokenizer.pad_id,
        "token_type_ids": 0,
        "attention_mask": 0,
        "special_tokens_mask": 1,
    }
    columns.setdefault("attention_mask", [[1] * length for length in lengths])
    padded = {
        name: _pad_rows(values, width, fillers[name], tokenizer.padding_side)
        for name, values in columns.items()
        if name in fillers
    }
    inputs = TokenizedTexts(_convert_columns(padded, settings.return_tensors, is_single))
    for name, rows_of_values in columns.items():
        if name in fillers:
            continue
        values = rows_of_values[0] if is_single else rows_of_values
        is_float = settings.return_tensors and np.array(values).dtype.kind == "f"
        dtype = np.float32 if is_float else np.int64
        inputs[name] = _convert_numbers(values, settings.return_tensors, np.shape(values), dtype)
    return inputs


def _convert_columns(
    columns: dict[str, list[Any]], kind: str | None, is_single: bool
) -> dict[str, Any]:
    """Return lists (for a single text those of its row), arrays or tensors."""
    if kind is None:
        return {name: rows[0] for name, rows in columns.items()} if is_single else dict(columns)
    lengths = {len(row) for row in columns["input_ids"]}
    if len(lengths) > 1:
        fact = f"sequences of {min(lengths)} to {max(lengths)} ids make no tensor without padding"
        raise ConfigError(
            "bad-value",
            fact,
            'leave `padding` out, or use truncation=True with padding="max_length"',
        )
    width = max(lengths, default=0)
    shape = (len(columns["input_ids"]), width)
    shapes = {"offset_mapping": (*shape, 2)}
    return {
        name: _convert_numbers(rows, kind, shapes.get(name, shape))
        for name, rows in columns.items()
    }


def _convert_numbers(
    numbers: Any,
    kind: str | None,
    shape: tuple[int, ...] = (-1,),
    dtype: Any = np.int64,
) -> Any:
    """Return numbers as they are, as an array, or as a tensor."""
    if kind is None:
        return numbers
    array = np.array(numbers, dtype=dtype).reshape(shape)
    if kind == "np":
        return array
    import torch

    return torch.from_numpy(array)


# --- texts ----------------------------------------------------------------------------------------


def _tokenize(
    tokenizer: InputEncoder,
    texts: Sequence[Any],
    split: bool,
    with_spans: bool,
) -> list[_TokenizedText]:
    """Return the tokens of texts, or of lists of words, without special tokens but the mask."""
    tokenized: list[_TokenizedText] = []
    if not with_spans:
        # All texts are encoded in one call.
        parts_of_texts = [split_text(text, tokenizer.mask_spans(text)) for text in texts]
        encoded = tokenizer.encode_batch(list(chain.from_iterable(parts_of_texts))).texts()
        for parts in parts_of_texts:
            ids = next(encoded).tolist()
            for _ in parts[1:]:
                ids += [tokenizer.mask_id, *next(encoded).tolist()]
            tokenized.append(_TokenizedText(ids, [], []))
        return tokenized
    if not split:
        return [_tokenize_with_spans(tokenizer, text) for text in texts]
    for words in texts:
        if isinstance(words, str):
            fact = f"is_split_into_words, but {words[:30]!r} is a text and not a list of words"
            raise ConfigError("bad-value", fact, "give a list of words for each text")
        texts_of_words = [_tokenize_with_spans(tokenizer, word) for word in words]
        ids = [token_id for word in texts_of_words for token_id in word.ids]
        spans = [span for word in texts_of_words for span in word.spans]
        word_numbers = [number for number, word in enumerate(texts_of_words) for _ in word.ids]
        tokenized.append(_TokenizedText(ids, spans, word_numbers))
    return tokenized


def split_text(text: str, spans: Sequence[Span]) -> list[str]:
    """Return what stands before, between and after spans."""
    starts = [0, *(end for _, end in spans)]
    ends = [*(start for start, _ in spans), len(text)]
    return [text[start:end] for start, end in zip(starts, ends, strict=True)]


def _tokenize_with_spans(tokenizer: InputEncoder, text: str) -> _TokenizedText:
    """Return the tokens of a text and their characters. The mask takes the white space before it along, other tokens none."""
    masks = tokenizer.mask_spans(text)
    ids: list[int] = []
    spans: list[Span] = []
    start, blanks = 0, 0
    for number, part in enumerate(split_text(text, masks)):
        if number:
            ids.append(tokenizer.mask_id)
            spans.append((start - blanks, masks[number - 1][1]))
            start = masks[number - 1][1]
        blanks = len(part) - len(part.rstrip())
        part_ids, part_spans = tokenizer.encode_with_offsets(part)
        ids += part_ids
        for first, last in part_spans:
            first += len(part[first:last]) - len(part[first:last].lstrip())
            if first >= last:  # a space alone: as in transformers, the character after it
                last = min(first + 1, len(part))
            spans.append((start + first, start + last))
        start += len(part)
    # The number of each token's word: white space begins one, and a mask is one.
    words = [0] if ids else []
    for neighbours, (previous, span) in zip(pairwise(ids), pairwise(spans), strict=True):
        begins = tokenizer.mask_id in neighbours or any(
            map(str.isspace, text[previous[1] : span[0]])
        )
        words.append(words[-1] + begins)
    return _TokenizedText(ids, spans, words)


# --- sequences ------------------------------------------------------------------------------------


def _make_sequences(
    tokenizer: InputEncoder,
    firsts: list[_TokenizedText],
    seconds: list[_TokenizedText] | None,
    settings: InputSettings,
) -> list[_Sequence]:
    limit = settings.max_length if settings.max_length is not None else tokenizer.model_max_length
    num_specials = 0
    if settings.add_special_tokens:
        num_specials = 2 if seconds is None else 3
    rows = []
    for number, first in enumerate(firsts):
        second = None if seconds is None else seconds[number]
        pairs = [(first, second)]
        if (
            settings.strategy
            and settings.return_overflowing_tokens
            and tokenizer.truncation_side == "left"
        ):
            fact = "this tokenizer cuts texts on the left, and windows are made from the left"
            raise ConfigError("bad-value", fact, 'set tokenizer.truncation_side = "right"')
        if settings.strategy and settings.return_overflowing_tokens:
            pairs = _cut_into_windows(
                first,
                second,
                limit - num_specials,
                settings.strategy,
                settings.stride,
            )
        elif settings.strategy:
            pairs = [_truncate(first, second, limit - num_specials, settings.strategy, tokenizer)]
        for pair in pairs:
            row = _Sequence([], [], [], [], [], number)
            if settings.add_special_tokens:
                row.add_special_token(tokenizer.cls_id, 0)
            for sequence, text in enumerate(pair):
                if text is None:
                    continue
                row.add_text(text, sequence)
                if settings.add_special_tokens:
                    row.add_special_token(tokenizer.sep_id, sequence)
            rows.append(row)
    return rows


def _cut_into_windows(
    first: _TokenizedText,
    second: _TokenizedText | None,
    max_tokens: int,
    strategy: str,
    stride: int,
) -> list[tuple[_TokenizedText, _TokenizedText | None]]:
    """Cut the text that may be shortened into windows that overlap by `stride` tokens."""
    if second is not None and strategy == "longest_first":
        fact = "windows of a pair can only be cut from one of its texts"
        raise ConfigError("bad-value", fact, 'use truncation="only_second" or "only_first"')
    long, uncut = (
        (second, first) if strategy == "only_second" and second is not None else (first, second)
    )
    size = max_tokens - (len(uncut) if uncut is not None else 0)
    if len(long) <= size:
        return [(first, second)]
    if size <= stride:
        fact = f"stride is {stride}, but a window has room for {max(size, 0)} tokens"
        raise ConfigError("bad-value", fact, "use a smaller stride, or a larger max_length")
    starts = range(0, max(len(long) - stride, 1), size - stride)
    parts = [long.part(start, start + size) for start in starts]
    return [(first, part) if long is second else (part, second) for part in parts]


def _truncate(
    first: _TokenizedText,
    second: _TokenizedText | None,
    max_tokens: int,
    strategy: str,
    tokenizer: InputEncoder,
) -> tuple[_TokenizedText, _TokenizedText | None]:
    """Cut a text or a pair to `max_tokens` ids, from its right or left end."""
    second_length = len(second) if second is not None else 0
    surplus = len(first) + second_length - max_tokens
    if surplus <= 0:
        return first, second
    if strategy == "only_second":
        from_first = 0
    elif strategy == "only_first" or second is None:
        from_first = surplus
    else:  # the longer to what the shorter leaves, at least half; of an odd number of ids it has one more
        half = max(max_tokens, 0) // 2
        first_has_more = len(first) > len(second) or (
            tokenizer.longer_half == "first" and len(first) > half
        )
        shorter = min(len(first), len(second), half)
        from_first = len(first) - (max_tokens - shorter if first_has_more else shorter)
    from_second = surplus - from_first
    if from_first > len(first) or from_second > second_length:
        fact = f"a sequence is {surplus} ids too long, more than there are to take by `{strategy}`"
        raise DataError("too-large", fact, 'use truncation="longest_first", or a larger max_length')
    side = tokenizer.truncation_side
    return first.without(from_first, side), None if second is None else second.without(
        from_second, side
    )


def _pad_rows(
    rows: list[Any],
    width: int,
    filler: Any,
    side: str,
) -> list[list[Any]]:
    fillers = [[filler] * (width - len(row)) for row in rows]
    if side == "left":
        return [filling + row for row, filling in zip(rows, fillers, strict=True)]
    return [row + filling for row, filling in zip(rows, fillers, strict=True)]


def _bad_value_error(name: str, value: object, valid_values: Sequence[str]) -> ConfigError:
    return ConfigError("bad-value", f"{name} is {value!r}", suggest_name(str(value), valid_values))


# --- names of special tokens in texts --------------------------------------------------------------


def lower_each_character(text: str) -> str:
    """Return a text in lower case, character by character, as tokenizers' `Lowercase`."""
    # So without Python's rule for a final sigma, which looks at the neighbours.
    return "".join(map(str.lower, text))


class NamedSpecials:
    """Reads texts as a tokenizer does, and `[SEP]`, `[MASK]`, `<pad>` in them as these tokens.

    Only texts with such a name go to the `tokenizers` library; the others keep their speed.

    Args:
        tokenizer: The tokenizer for all other texts.
        lower_case: Whether texts are lower-cased first, all but such names.
        reads_special_names_as_tokens: False reads the names as text, too.
    """

    def __init__(
        self,
        tokenizer: InputEncoder,
        lower_case: bool = False,
        reads_special_names_as_tokens: bool = True,
    ) -> None:
        self.tokenizer = tokenizer
        self.lower_case = lower_case
        self._names = tokenizer.all_special_tokens if reads_special_names_as_tokens else []
        self.cls_id = tokenizer.cls_id
        self.sep_id = tokenizer.sep_id
        self.truncation_side = tokenizer.truncation_side

    def encode_batch(self, texts: Sequence[str], num_threads: int = 0) -> RaggedIds:
        """See `AlbertTokenizer.encode_batch`."""
        is_mask_normalized = bool(self._names) and "normalized" in self.tokenizer.mask_flags
        indices = []
        for index, text in enumerate(texts):
            has_name = any(name in text for name in self._names)
            if has_name or (is_mask_normalized and self.tokenizer.mask_spans(text)):
                indices.append(index)
        plain_texts = list(map(lower_each_character, texts)) if self.lower_case else list(texts)
        if not indices:
            return self.tokenizer.encode_batch(plain_texts, num_threads)
        rows = []
        for index in indices:
            plain_texts[index] = ""
            ids = self._json_tokenizer.encode(
                replace_lone_surrogates(texts[index]), add_special_tokens=False
            ).ids
            rows.append(np.array(ids, dtype=np.int32))
        encoded = self.tokenizer.encode_batch(plain_texts, num_threads)
        return insert_missing_texts(encoded, np.array(indices), concatenate_ids(rows))

    @cached_property
    def _json_tokenizer(self) -> Any:
        from tokenizers import Tokenizer, normalizers

        tokenizer = Tokenizer.from_str(self.tokenizer.tokenizer_json())
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if self.lower_case:
            steps = [normalizers.Lowercase()]
            if tokenizer.normalizer:
                steps.append(tokenizer.normalizer)
            tokenizer.normalizer = normalizers.Sequence(steps)
        return tokenizer
