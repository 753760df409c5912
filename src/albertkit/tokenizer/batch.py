"""Encoding of many texts at once, on several threads."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np

from albertkit.tokenizer import rules
from albertkit.tokenizer.digit_comma import DigitCommaRule
from albertkit.tokenizer.ragged import RaggedIds, join, ragged
from albertkit.tokenizer.sentencepiece_model import read_facts

# Loading the compiled engine takes about a second (several the first time on a machine), as long as SentencePiece takes for
# some 10 MB. It is loaded once a tokenizer has been given this many characters.
_CHARACTERS_BEFORE_ENGINE = 4_000_000
_CHARACTERS_A_CHUNK = 500_000  # one thread's work at a time: 0.5 MB of text and 2 MB of room for ids stay in the caches


class BatchEncoder:
    """Ids of many texts, with the word-by-word engine of `memo.py` where it fits and SentencePiece where it does not.

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
        self._characters = 0
        self._engine: Callable[[Sequence[str]], RaggedIds] | None = None
        self._asked_for_engine = False

    def encode(self, texts: Sequence[str], num_threads: int) -> RaggedIds:
        """See `AlbertTokenizer.encode_batch`."""
        threads = num_threads or available_cores()
        chunks = _chunks(texts)
        self._characters += sum(map(len, texts))
        engine = self._loaded_engine() if self._characters >= _CHARACTERS_BEFORE_ENGINE else None
        if engine is None:
            return self._rewritten(self._by_sentencepiece([rules.apply(self._rules, text) for text in texts], threads))
        if threads == 1 or len(chunks) == 1:
            return join([engine(chunk) for chunk in chunks])
        with ThreadPoolExecutor(threads) as pool:
            return join(list(pool.map(engine, chunks)))

    def _by_sentencepiece(self, prepared: list[str], num_threads: int) -> RaggedIds:
        """SentencePiece's own batch encoding; it runs without the interpreter's lock."""
        return ragged(self._processor.encode(prepared, num_threads=num_threads, return_type="numpy"))

    def _rewritten(self, encoded: RaggedIds) -> RaggedIds:
        return encoded if self._digit_comma is None else RaggedIds(*self._digit_comma.rewrite(*encoded))

    def _loaded_engine(self) -> Callable[[Sequence[str]], RaggedIds] | None:
        if not self._asked_for_engine:
            self._engine = self._load_engine()
            self._asked_for_engine = True
        return self._engine

    def _load_engine(self) -> Callable[[Sequence[str]], RaggedIds] | None:
        """The engine as a function from texts to ids; None if the model is not one for it."""
        from albertkit.tokenizer import memo

        facts = read_facts(self._model)
        if not memo.fits(facts):
            return None
        tables = memo.unigram_tables(facts, self._processor.unk_id(), self._digit_comma)
        blanks = b" " if self._rules == "none" else b"\t\n\v\f\r\x1c\x1d\x1e\x1f "
        known = _known_characters(self._model if facts.charsmap else b"", blanks)
        lower = self._rules == "google"
        memos: list[memo.WordMemo] = []  # those not in use; list.pop and list.append are atomic

        def encode(texts: Sequence[str]) -> RaggedIds:
            # The kernel sees to the white space of ASCII; the rest of the rules is for Python.
            prepared = [
                (text.lower() if lower else text) if text.isascii() else rules.apply(self._rules, text)
                for text in texts
            ]
            parts = [text.encode() for text in prepared]
            starts = np.zeros(len(texts) + 1, dtype=np.int64)
            np.cumsum([len(part) for part in parts], out=starts[1:])
            try:
                words = memos.pop()
            except IndexError:
                words = memo.empty_memo()
            everything = np.frombuffer(b"".join(parts), dtype=np.uint8)
            ids, offsets, refused = memo.encode_bytes(everything, starts, known, tables, words)
            memos.append(words)
            left = np.flatnonzero(refused)
            if not len(left):
                return RaggedIds(ids, offsets)
            # The rules twice change nothing more, and ASCII has had half of them.
            whole = [rules.apply(self._rules, prepared[n]) if prepared[n].isascii() else prepared[n] for n in left]
            by_sentencepiece = self._by_sentencepiece(whole, 1)
            return _filled(RaggedIds(ids, offsets), left, self._rewritten(by_sentencepiece))

        return encode


@lru_cache(maxsize=4)  # 1.1 MB each; several tokenizers of one model are common
def _known_characters(model: bytes, blanks: bytes) -> Any:
    """`memo.Characters` of a model; an empty model stands for one without a normaliser."""
    from albertkit.tokenizer import memo

    return memo.characters(_normalizer_rules(model) if model else (), blanks)


def _normalizer_rules(model: bytes) -> list[tuple[str, str]]:
    """What the model's normaliser replaces, and with what: 225,000 rules for nmt_nfkc, in 0.4 s."""
    import sentencepiece

    return sentencepiece.SentencePieceNormalizer(model_proto=model).Decompile()


def _filled(encoded: RaggedIds, places: np.ndarray, more: RaggedIds) -> RaggedIds:
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
    """Runs of texts of about `_CHARACTERS_A_CHUNK` characters."""
    chunks = []
    first = characters = 0
    for number, text in enumerate(texts):
        characters += len(text)
        if characters >= _CHARACTERS_A_CHUNK:
            chunks.append(texts[first : number + 1])
            first, characters = number + 1, 0
    if first < len(texts) or not chunks:
        chunks.append(texts[first:])
    return chunks


def available_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
