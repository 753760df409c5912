"""Encoding of many texts at once, on several threads."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from albertkit.tokenizer import rules
from albertkit.tokenizer.digit_comma import DigitCommaRule
from albertkit.tokenizer.ragged import RaggedIds, join, ragged
from albertkit.tokenizer.sentencepiece_model import read_facts

if TYPE_CHECKING:
    from albertkit.tokenizer.memo import WordEngine

# Loading the compiled engine takes 0.7 s (half of it numba's own start; several seconds the first time on a machine),
# which it saves within 13 MB: it takes 0.03 s for one, SentencePiece 0.08. It is loaded once a tokenizer has been given this
# many characters.
CHARACTERS_BEFORE_ENGINE = 10_000_000
_CHARACTERS_A_CHUNK = 500_000  # one thread's work at a time: 0.5 MB of text and 2 MB of room for ids stay in the caches
# 2 ms of work, for which no thread is started: two for a sentence took 0.3 ms, and 1 ms on a busy machine; encoding it, 0.01.
_FEW_CHARACTERS = 20_000
# Texts the engine refuses are work done twice. After a chunk with more than this share of them (Korean under the rules
# `google`, which take Hangul apart: all), so many chunks go to SentencePiece before the engine is tried again.
_REFUSED_SHARE = 0.5
_CHUNKS_WITHOUT_ENGINE = 30


class BatchEncoder:
    """Encodes many texts, by the word-by-word engine of `memo.py` where it pays and by SentencePiece where it does not."""

    def __init__(self, processor: Any, model: bytes, text_rules: str, digit_comma: DigitCommaRule | None) -> None:
        self._processor = processor
        self._model = model
        self._rules = text_rules
        self._digit_comma = digit_comma
        self._characters = 0
        self._engine: WordEngine | None = None
        self._asked_for_engine = False
        self._without_engine = 0  # chunks to come

    def encode(self, texts: Sequence[str], num_threads: int) -> RaggedIds:
        """See `AlbertTokenizer.encode_batch`."""
        characters = sum(map(len, texts))
        threads = min(num_threads or available_cores(), 1 + characters // _FEW_CHARACTERS)
        self._characters += characters
        if self._characters >= CHARACTERS_BEFORE_ENGINE:
            self.start_engine()
        if self._engine is None:
            return self._by_sentencepiece([rules.apply(self._rules, text) for text in texts], threads)
        return in_chunks(self._encode_chunk, texts, threads)

    def start_engine(self) -> bool:
        """Load the engine now. False if the model is not one for it."""
        if not self._asked_for_engine:
            self._engine, self._asked_for_engine = self._load_engine(), True
        return self._engine is not None

    def _encode_chunk(self, texts: Sequence[str]) -> RaggedIds:
        if self._without_engine > 0:
            self._without_engine -= 1
            return self._by_sentencepiece([rules.apply(self._rules, text) for text in texts], 1)
        assert self._engine is not None
        # The engine sees to white space and case of ASCII; the rest of the rules is for Python.
        prepared = list(texts)
        ascii_only = np.fromiter(map(str.isascii, texts), np.bool_, len(texts))
        beyond = np.flatnonzero(~ascii_only).tolist()
        for n, text in zip(beyond, _apply_to_all(self._rules, [texts[n] for n in beyond]), strict=True):
            prepared[n] = text
        encoded, refused = self._engine.encode(prepared, rules.lowers(self._rules))
        left = np.flatnonzero(refused)
        if not len(left):
            return encoded
        if len(left) > _REFUSED_SHARE * len(texts):
            self._without_engine = _CHUNKS_WITHOUT_ENGINE
        whole = [rules.apply(self._rules, texts[n]) for n in left.tolist()]
        return filled(encoded, left, self._by_sentencepiece(whole, 1))

    def _by_sentencepiece(self, prepared: list[str], num_threads: int) -> RaggedIds:
        """Use SentencePiece's own batch encoding, which runs without the interpreter's lock, and the digit-comma rule."""
        if num_threads == 1 and sum(map(len, prepared)) < _FEW_CHARACTERS:
            rows = [self._processor.encode(text, return_type="numpy") for text in prepared]
        else:
            rows = self._processor.encode(prepared, num_threads=num_threads, return_type="numpy")
        encoded = ragged(rows)
        return encoded if self._digit_comma is None else RaggedIds(*self._digit_comma.rewrite(*encoded))

    def _load_engine(self) -> "WordEngine | None":
        """Load the engine; None if the model is not one for it."""
        from albertkit.tokenizer.memo import WordEngine
        from albertkit.tokenizer.unigram_tables import fits, unigram_tables

        facts = read_facts(self._model)
        if not fits(facts):
            return None
        blanks = b"\t\n\v\f\r\x1c\x1d\x1e\x1f " if rules.COLLAPSE in rules.steps(self._rules) else b" "
        return WordEngine(unigram_tables(facts, self._processor.unk_id(), self._digit_comma), facts.charsmap, blanks)


def _apply_to_all(name: str, texts: list[str]) -> list[str]:
    """Apply rules to texts, but for blanks of ASCII: in one call, since one for each takes five times as long.

    No step looks across END: it is neither blank nor cased, and composes with nothing.
    """
    together = rules.apply_but_for_blanks(name, rules.END.join(texts)).split(rules.END)
    if len(together) == len(texts):
        return together
    return [rules.apply_but_for_blanks(name, text) for text in texts]


def in_chunks(encode: Callable[[Sequence[str]], RaggedIds], texts: Sequence[str], threads: int) -> RaggedIds:
    """Encode texts in runs of about `_CHARACTERS_A_CHUNK` characters, on so many threads."""
    chunks = _chunks(texts)
    if threads == 1 or len(chunks) == 1:
        return join([encode(chunk) for chunk in chunks])
    with ThreadPoolExecutor(threads) as pool:
        return join(list(pool.map(encode, chunks)))


def filled(encoded: RaggedIds, places: np.ndarray, more: RaggedIds) -> RaggedIds:
    """Put the texts of `more` where `encoded` has none yet."""
    counts = np.diff(encoded.offsets)
    counts[places] = np.diff(more.offsets)
    pieces = []
    last = 0
    for place, ids in zip(places, more.texts(), strict=True):
        pieces += [encoded.ids[last : encoded.offsets[place]], ids]
        last = encoded.offsets[place]
    offsets = np.zeros(len(encoded.offsets), dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return RaggedIds(np.concatenate([*pieces, encoded.ids[last:]]), offsets)


def _chunks(texts: Sequence[str]) -> list[Sequence[str]]:
    """Cut runs of texts of about `_CHARACTERS_A_CHUNK` characters."""
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    most = int(ends[-1]) if len(ends) else 0
    places = np.searchsorted(ends, np.arange(_CHARACTERS_A_CHUNK, most, _CHARACTERS_A_CHUNK)) + 1
    cuts = sorted({0, *places.tolist(), len(texts)})
    return [texts[first:last] for first, last in pairwise(cuts)] or [texts]


def available_cores() -> int:
    """Return the number of cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
