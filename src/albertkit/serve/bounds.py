"""Limits of requests and their answers that no option sets; the others are in `ServeOptions`."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from albertkit.pipelines.pipeline import Pipeline
from albertkit.pipelines.text_pipelines import MASK, FillMask
from albertkit.serve.refusals import ServiceError

MOST_TEXTS = 2048  # of a request, as OpenAI's
MOST_CHARACTERS = 100_000  # of a text: 20,000 words
MOST_EXPANDED = 300_000  # of a text after NFKC: U+FDFA alone becomes 18. 100,000 of it held Python's lock for 0.2 s
MOST_IDS = 8192  # tokens of a text that is given as ids
MOST_WORDS = 10_000  # of a text that is given as words
MOST_CHOICES = 26  # of a question
MOST_GUESSES = 20_000  # of a /fill-mask: masks times `top`; an answer of 1.5 MB. 50,000 kept /health waiting for 161 ms
MOST_NUMBERS = 2_000_000  # of an answer: vectors, cosines, probabilities; 25 MB as JSON
MOST_COSINES = 1_000_000  # of a /similarity
MOST_QUOTED = 50_000_000  # characters of contexts times `top`: an /answer repeats parts of them
MOST_TAGGED = 300_000  # characters of a /tag or /tokenize: every word is some objects of Python's
MOST_REQUESTS = 1024  # at once
MOST_HELD = 16  # bodies of the largest size, in memory at once
MOST_UPLOADS = 8  # videos of the largest size, on disk at once
MOST_DEPTH = 8  # of a JSON body
MOST_OBJECTS = 4096  # in a JSON body; a question is one
MOST_LISTS = 8192  # in a JSON body; a pair is one. 600,000 empty ones are 1.8 MB, and took 2 seconds
MOST_KEYS = 8192  # in a JSON body
MOST_ITEMS = 600_000  # in a JSON body


def check_size(count: int, most: int, what: str, hint: str) -> None:
    """Refuse a request whose answer would be too large, before anything is computed."""
    if count > most:
        fact = f"the answer would have {count:,} {what}, at most {most:,} are sent"
        raise ServiceError("too-large", fact, hint, status=422)


def check_results(pipeline: Pipeline[Any], inputs: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Refuse a request whose results would be too large."""
    if pipeline.kind == "answer":
        most = sum(len(one.context) for one in inputs) * options.get("top", 5)
        check_size(most, MOST_QUOTED, "characters", "send fewer questions, or a smaller `top`")
    elif pipeline.kind == "classify":
        check_numbers(len(inputs) * pipeline.model.config.num_labels)


def check_numbers(count: int) -> None:
    """Refuse a request whose answer would have too many numbers."""
    check_size(count, MOST_NUMBERS, "numbers", "send fewer texts in a request")


def check_ids(rows: Sequence[Sequence[int]], vocab_size: int) -> None:
    """Refuse ids that the tokenizer does not have: those of another one."""
    for row in rows:
        if not 0 <= min(row) <= max(row) < vocab_size:
            wrong = min(row) if min(row) < 0 else max(row)
            fact = f"{str(wrong)[:20]} is no id of the tokenizer, it has {vocab_size:,} tokens"
            hint = (
                "send texts (langchain's OpenAIEmbeddings: check_embedding_ctx_length=False), or ids of this tokenizer"
            )
            raise ServiceError("bad-input", fact, hint, status=422)


def check_request(kind: str, values: Sequence[Any], characters: int, options: Mapping[str, Any]) -> None:
    """Refuse a request that would take too much memory, before it is tokenized."""
    if kind == FillMask.kind:
        guesses = sum(value.count(MASK) for value in values) * options.get("top", 5)
        check_size(guesses, MOST_GUESSES, "guesses", "send fewer texts or masks, or a smaller `top`")
    if kind in ("tag", "tokenize") and characters > MOST_TAGGED:
        fact = f"the texts have {characters:,} characters, at most {MOST_TAGGED:,} are split at once"
        raise ServiceError("too-large", fact, "send fewer texts in a request", status=413)


def check_expansion(values: Any, most: int) -> None:
    """Refuse texts that become much longer when they are normalised, or that are repeated in many pairs.

    Args:
        values: Texts, at any depth.
        most: Characters after NFKC of all texts.
    """
    plain = in_all = 0
    for text in _texts(values):
        expanded = len(text) if text.isascii() else _expanded(text)
        plain, in_all = plain + len(text), in_all + expanded
        # What grows is expanded under the interpreter's lock: 13 texts of 16,000 U+FDFA held /health for 0.28 s.
        if expanded > MOST_EXPANDED or in_all > most or in_all - plain > MOST_EXPANDED:
            fact = (
                f"{plain:,} characters stand for {in_all:,} in NFKC, at most {MOST_EXPANDED:,} a text and "
                f"{MOST_EXPANDED:,} more than they are, {most:,} in all"
            )
            raise ServiceError("too-large", fact, "send fewer or shorter texts in a request", status=413)


def _texts(values: Any) -> Iterator[str]:
    if isinstance(values, str):
        yield values
    elif isinstance(values, Mapping | list | tuple):
        nested: Iterable[Any] = values.values() if isinstance(values, Mapping) else values
        for value in nested:
            yield from _texts(value)


def _expanded(text: str) -> int:
    """Return at least the length of a text after NFKC; every kind of character is normalised once."""
    return sum(count * len(unicodedata.normalize("NFKC", character)) for character, count in Counter(text).items())
