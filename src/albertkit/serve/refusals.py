"""Refused requests: their errors, statuses and bodies."""

import errno
import logging
import os
import re
import tempfile
from collections.abc import Mapping
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from albertkit.errors import AlbertKitError, CheckpointError, ConfigError, DataError

log = logging.getLogger(__name__)
OPENAI = "/v1/"  # paths whose errors have OpenAI's form
_SLUGS = {
    400: "bad-input", 401: "not-allowed", 404: "not-found", 405: "bad-input", 413: "too-large", 422: "bad-input",
    415: "unsupported", 429: "busy",
}  # fmt: skip
_HINTS = {
    404: "/openapi.json lists every path and its method", 405: "/openapi.json lists every path and its method",
    413: "send fewer texts in a request, or a smaller video", 429: "send it again later",
}  # fmt: skip
_OPENAI_CODES = {(404, "unknown-name"): "model_not_found"}  # where OpenAI has another word
_OPENAI_TYPES = {401: "authentication_error", 429: "rate_limit_error"}
_MAX_ERRORS = 3  # of a body, in one message
_RETRY_SECONDS = 10  # after which disk, descriptors or memory may be free again
# Names of types in a location of pydantic
_TYPE = re.compile(r"(list|dict|tuple|union)\[|constrained-|form:")
_LONGEST_QUOTE = 80  # characters of a path or a method that an answer repeats


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
