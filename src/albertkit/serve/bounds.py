"""Limits of requests and their answers that no option sets; the others are in `ServeOptions`."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from albertkit.pipelines.pipeline import Pipeline
from albertkit.pipelines.text_pipelines import MASK, FillMask
from albertkit.serve.refusals import ServiceError

MAX_TEXTS = 2048  # of a request, as OpenAI's
MAX_CHARACTERS = 100_000  # of a text: 20,000 words
# Of a text after NFKC: U+FDFA alone becomes 18. 100,000 of it held Python's lock for 0.2 s
MAX_EXPANDED_CHARACTERS = 300_000
MAX_IDS = 8192  # tokens of a text that is given as ids
MAX_WORDS = 10_000  # of a text that is given as words
MAX_CHOICES = 26  # of a question
# Of a /fill-mask: masks times `top`; an answer of 1.5 MB. 50,000 kept /health waiting for 161 ms
MAX_GUESSES = 20_000
MAX_NUMBERS = 2_000_000  # of an answer: vectors, cosines, probabilities; 25 MB as JSON
MAX_COSINES = 1_000_000  # of a /similarity
# Characters of contexts times `top`: an /answer repeats parts of them
MAX_QUOTED_CHARACTERS = 50_000_000
# Characters of a /tag or /tokenize: every word is some objects of Python's
MAX_SPLIT_CHARACTERS = 300_000
MAX_REQUESTS = 1024  # at once
MAX_BODIES = 16  # bodies of the largest size, in memory at once
MAX_UPLOADS = 8  # videos of the largest size, on disk at once
MAX_JSON_DEPTH = 8  # of a JSON body
MAX_JSON_OBJECTS = 4096  # in a JSON body; a question is one
# In a JSON body; a pair is one. 600,000 empty ones are 1.8 MB, and took 2 seconds
MAX_JSON_LISTS = 8192
MAX_JSON_KEYS = 8192  # in a JSON body
MAX_JSON_ITEMS = 600_000  # in a JSON body


def check_answer_size(count: int, max_count: int, unit: str, hint: str) -> None:
    """Raise an error for an answer that would be too large."""
    if count > max_count:
        fact = f"the answer would have {count:,} {unit}, at most {max_count:,} are sent"
        raise ServiceError("too-large", fact, hint, status=422)


def check_results(
    pipeline: Pipeline[Any], inputs: Sequence[Any], options: Mapping[str, Any]
) -> None:
    """Raise an error if the results would be too large."""
    if pipeline.kind == "answer":
        num_characters = sum(len(question.context) for question in inputs) * options.get("top", 5)
        check_answer_size(
            num_characters,
            MAX_QUOTED_CHARACTERS,
            "characters",
            "send fewer questions, or a smaller `top`",
        )
    elif pipeline.kind == "classify":
        check_numbers(len(inputs) * pipeline.model.config.num_labels)


def check_numbers(count: int) -> None:
    """Raise an error if the answer would have too many numbers."""
    check_answer_size(count, MAX_NUMBERS, "numbers", "send fewer texts in a request")


def check_ids(rows: Sequence[Sequence[int]], vocab_size: int) -> None:
    """Raise an error for ids that the tokenizer does not have."""
    for row in rows:
        if not 0 <= min(row) <= max(row) < vocab_size:
            wrong = min(row) if min(row) < 0 else max(row)
            fact = f"{str(wrong)[:20]} is no id of the tokenizer, it has {vocab_size:,} tokens"
            hint = "send texts (langchain's OpenAIEmbeddings: check_embedding_ctx_length=False), or ids of this tokenizer"
            raise ServiceError("bad-input", fact, hint, status=422)


def check_request(
    kind: str, values: Sequence[Any], characters: int, options: Mapping[str, Any]
) -> None:
    """Raise an error for a request that would take too much memory, before it is tokenized."""
    if kind == FillMask.kind:
        guesses = sum(value.count(MASK) for value in values) * options.get("top", 5)
        check_answer_size(
            guesses, MAX_GUESSES, "guesses", "send fewer texts or masks, or a smaller `top`"
        )
    if kind in ("tag", "tokenize") and characters > MAX_SPLIT_CHARACTERS:
        fact = f"the texts have {characters:,} characters, at most {MAX_SPLIT_CHARACTERS:,} are split at once"
        raise ServiceError("too-large", fact, "send fewer texts in a request", status=413)


def check_expansion(values: Any, max_characters: int) -> None:
    """Raise an error for texts that become much longer when they are normalised, or that are repeated in many pairs.

    Args:
        values: Texts, at any depth.
        max_characters: Characters after NFKC of all texts.
    """
    num_plain = num_expanded = 0
    for text in _texts(values):
        expanded_length = len(text) if text.isascii() else _expanded_length(text)
        num_plain += len(text)
        num_expanded += expanded_length
        # NFKC expands under the interpreter's lock: 13 texts of 16,000 U+FDFA held /health for 0.28
        # s.
        largest = max(expanded_length, num_expanded - num_plain)
        if largest > MAX_EXPANDED_CHARACTERS or num_expanded > max_characters:
            fact = (
                f"{num_plain:,} characters stand for {num_expanded:,} in NFKC, at most {MAX_EXPANDED_CHARACTERS:,} a text and "
                f"{MAX_EXPANDED_CHARACTERS:,} more than they are, {max_characters:,} in all"
            )
            raise ServiceError(
                "too-large", fact, "send fewer or shorter texts in a request", status=413
            )


def _texts(values: Any) -> Iterator[str]:
    if isinstance(values, str):
        yield values
    elif isinstance(values, Mapping | list | tuple):
        nested: Iterable[Any] = values.values() if isinstance(values, Mapping) else values
        for value in nested:
            yield from _texts(value)


def _expanded_length(text: str) -> int:
    """Return an upper bound of the length after NFKC: each different character is normalised once, alone."""
    return sum(
        count * len(unicodedata.normalize("NFKC", character))
        for character, count in Counter(text).items()
    )
