"""Refuse requests: errors, statuses and bodies, and the limits that no option sets (the others are in `ServeOptions`)."""

import errno
import logging
import os
import re
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from albertkit.errors import AlbertKitError, CheckpointError, ConfigError, DataError
from albertkit.pipelines.pipeline import Pipeline
from albertkit.pipelines.text_pipelines import MASK, FillMask

log = logging.getLogger(__name__)
OPENAI = "/v1/"  # paths whose errors have OpenAI's form
_SLUGS = {
    400: "bad-input", 401: "not-allowed", 404: "not-found", 405: "bad-input", 413: "too-large", 422: "bad-input",
    415: "unsupported", 429: "busy",
}  # fmt: skip
_HINTS = {
    404: "/openapi.json lists every path and its method",
    405: "/openapi.json lists every path and its method",
    413: "send fewer texts in a request, or a smaller video",
    429: "send it again later",
}
_OPENAI_CODES = {(404, "unknown-name"): "model_not_found"}  # where OpenAI has another word
_OPENAI_TYPES = {401: "authentication_error", 429: "rate_limit_error"}
_MAX_ERRORS = 3  # of a body, in one message
_RETRY_SECONDS = 10  # after which disk, descriptors or memory may be free again
# Names of types in a location of pydantic
_TYPE = re.compile(r"(list|dict|tuple|union)\[|constrained-|form:")
_LONGEST_QUOTE = 80  # characters of a path or a method that an answer repeats
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


class ServiceError(AlbertKitError):
    """Refuse a request with an HTTP status."""

    def __init__(
        self,
        slug: str,
        message: str,
        hint: str = "",
        *,
        status: int,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(slug, message, hint)
        self.status, self.retry_after = status, retry_after

    def __reduce__(self) -> tuple:
        rebuild = partial(ServiceError, status=self.status, retry_after=self.retry_after)
        return rebuild, (self.slug, self.message, self.hint)


def status_of(error: AlbertKitError) -> int:
    """Return the HTTP status of an error: 422 for bad input, else 500."""
    if isinstance(error, ServiceError):
        return error.status
    return 422 if isinstance(error, DataError | ConfigError | CheckpointError) else 500


def refusal(
    path: str, status: int, error: AlbertKitError, retry_after: int | None = None
) -> JSONResponse:
    """Return an error as an answer: in OpenAI's form below `/v1/`, where bad input is 400; else in ours."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if not path.startswith(OPENAI):
        ours = {"slug": error.slug, "message": error.message, "hint": error.hint}
        return JSONResponse({"error": ours}, status, headers)
    kind = _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    message = f"{error.message}; {error.hint}" if error.hint else error.message
    code = _OPENAI_CODES.get((status, error.slug)) or error.slug.replace("-", "_")
    theirs = {"message": message, "type": kind, "param": None, "code": code}
    return JSONResponse({"error": theirs}, 400 if status == 422 else status, headers)


# --- handlers of the application ------------------------------------------------------------------


def on_albertkit_error(request: Request, error: Exception) -> JSONResponse:
    """Answer an `AlbertKitError`."""
    assert isinstance(error, AlbertKitError)
    return refusal(request.url.path, status_of(error), error, getattr(error, "retry_after", None))


def on_system_error(request: Request, error: Exception) -> JSONResponse:
    """Answer if the disk of uploads is full, or descriptors or memory are short; other errors are bugs."""
    assert isinstance(error, OSError)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        fact, hint = "the service has no space left for uploads", "send it again later"
        refused = ServiceError("disk-full", fact, hint, status=507, retry_after=_RETRY_SECONDS)
    elif error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN):
        fact = f"the service is short of something: {os.strerror(error.errno)}"
        refused = ServiceError(
            "busy", fact, "send it again later", status=503, retry_after=_RETRY_SECONDS
        )
    else:
        raise error
    log.error(refused.message, extra={"slug": refused.slug, "folder": tempfile.gettempdir()})
    return on_albertkit_error(request, refused)


def on_bad_request(request: Request, error: Exception) -> JSONResponse:
    """Answer a body that is not JSON (400) or does not fit the schema (422), with the paths of the errors."""
    assert isinstance(error, RequestValidationError)
    errors: list[Mapping[str, Any]] = list(error.errors())
    if any(details["type"] == "json_invalid" for details in errors):
        reason = errors[0].get("ctx", {}).get("error", "")
        fact, hint = f"the body is not JSON: {reason}", "send one JSON object"
        return on_albertkit_error(request, ServiceError("bad-input", fact, hint, status=400))
    is_text = any(
        details["loc"] == ("body",) and details["type"] != "missing" for details in errors
    )
    content_type = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if is_text and "json" not in content_type:
        fact = f"the body is sent as {content_type or 'nothing that is named'}"
        hint = "send `Content-Type: application/json`"
        return on_albertkit_error(request, ServiceError("bad-input", fact, hint, status=400))
    messages = []
    for details in errors[:_MAX_ERRORS]:
        field_path = ".".join(str(part) for part in details["loc"] if not _TYPE.match(str(part)))
        messages.append(f"{field_path}: {details['msg']}")
    if len(errors) > _MAX_ERRORS:
        messages.append(f"and {len(errors) - _MAX_ERRORS} more")
    hint = "GET /openapi.json says what each endpoint takes"
    return on_albertkit_error(
        request, ServiceError("bad-input", "; ".join(messages), hint, status=422)
    )


def on_http_error(request: Request, error: Exception) -> JSONResponse:
    """Answer errors of the framework: unknown paths and methods, forms that cannot be read."""
    assert isinstance(error, HTTPException)
    slug = _SLUGS.get(error.status_code, "bad-input")
    subject = " ".join(
        text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}…"
        for text in (request.method, request.url.path)
    )
    explained = AlbertKitError(
        slug, f"{subject}: {error.detail}", _HINTS.get(error.status_code, "")
    )
    answer = refusal(request.url.path, error.status_code, explained)
    answer.headers.update(error.headers or {})
    return answer


# --- limits of requests and their answers ---------------------------------------------------------


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
        check_answer_numbers(len(inputs) * pipeline.model.config.num_labels)


def check_answer_numbers(count: int) -> None:
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
    pipeline_kind: str, inputs: Sequence[Any], num_characters: int, options: Mapping[str, Any]
) -> None:
    """Raise an error for a request that would take too much memory, before it is tokenized."""
    if pipeline_kind == FillMask.kind:
        guesses = sum(value.count(MASK) for value in inputs) * options.get("top", 5)
        check_answer_size(
            guesses, MAX_GUESSES, "guesses", "send fewer texts or masks, or a smaller `top`"
        )
    if pipeline_kind in ("tag", "tokenize") and num_characters > MAX_SPLIT_CHARACTERS:
        fact = f"the texts have {num_characters:,} characters, at most {MAX_SPLIT_CHARACTERS:,} are split at once"
        raise ServiceError("too-large", fact, "send fewer texts in a request", status=413)


def check_expansion(nested_inputs: Any, max_characters: int) -> None:
    """Raise an error for texts that become much longer when they are normalised, or that are repeated in many pairs.

    Args:
        nested_inputs: Texts, at any depth.
        max_characters: Characters after NFKC of all texts.
    """
    num_plain = num_expanded = 0
    for text in _all_texts(nested_inputs):
        expanded_length = len(text) if text.isascii() else expanded_nfkc_length(text)
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


def _all_texts(nested_inputs: Any) -> Iterator[str]:
    if isinstance(nested_inputs, str):
        yield nested_inputs
    elif isinstance(nested_inputs, Mapping | list | tuple):
        nested: Iterable[Any] = (
            nested_inputs.values() if isinstance(nested_inputs, Mapping) else nested_inputs
        )
        for value in nested:
            yield from _all_texts(value)


def expanded_nfkc_length(text: str) -> int:
    """Return an upper bound of the length after NFKC: each different character is normalised once, alone."""
    return sum(
        count * len(unicodedata.normalize("NFKC", character))
        for character, count in Counter(text).items()
    )
