"""Refused requests: their errors, statuses and bodies."""

import errno
import logging
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
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
_SHOWN = 3  # errors of a body
_SHORT = 10  # seconds after which others may have ended that hold the disk, descriptors or memory
_TYPE = re.compile(
    r"(list|dict|tuple|union)\[|constrained-|form:"
)  # types in places, as pydantic and `schemas` name them
_LONGEST_QUOTE = 80  # characters of a path or a method that an answer repeats


class ServiceError(AlbertKitError):
    """Refuse a request with an HTTP status."""

    def __init__(self, slug: str, message: str, hint: str = "", *, status: int, retry_after: int | None = None) -> None:
        super().__init__(slug, message, hint)
        self.status, self.retry_after = status, retry_after

    def __reduce__(self) -> tuple:
        again = partial(ServiceError, status=self.status, retry_after=self.retry_after)
        return again, (self.slug, self.message, self.hint)


def status_of(error: AlbertKitError) -> int:
    """Return the HTTP status of an error: input that does not fit is the client's, the rest is ours."""
    if isinstance(error, ServiceError):
        return error.status
    return 422 if isinstance(error, DataError | ConfigError | CheckpointError) else 500


def refusal(path: str, status: int, error: AlbertKitError, retry_after: int | None = None) -> JSONResponse:
    """Return an error as an answer: in OpenAI's form below `/v1/`, where input that does not fit is 400; else in ours."""
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


# --- handlers of the application --------------------------------------------------------------------------------------


def on_error(request: Request, error: Exception) -> JSONResponse:
    """Answer an `AlbertKitError`."""
    assert isinstance(error, AlbertKitError)
    return refusal(request.url.path, status_of(error), error, getattr(error, "retry_after", None))


def on_system_error(request: Request, error: Exception) -> JSONResponse:
    """Answer where the disk of uploads is full, or descriptors or memory are short; other errors of the system are bugs."""
    assert isinstance(error, OSError)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        fact, hint = "the service has no space left for uploads", "send it again later"
        refused = ServiceError("disk-full", fact, hint, status=507, retry_after=_SHORT)
    elif error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN):
        fact = f"the service is short of something: {os.strerror(error.errno)}"
        refused = ServiceError("busy", fact, "send it again later", status=503, retry_after=_SHORT)
    else:
        raise error
    log.error(refused.message, extra={"slug": refused.slug, "folder": tempfile.gettempdir()})
    return on_error(request, refused)


def on_bad_request(request: Request, error: Exception) -> JSONResponse:
    """Answer a body that is not JSON (400) or not what the endpoint takes (422): say where, without repeating the body."""
    assert isinstance(error, RequestValidationError)
    errors: list[Mapping[str, Any]] = list(error.errors())
    if any(one["type"] == "json_invalid" for one in errors):
        reason = errors[0].get("ctx", {}).get("error", "")
        fact, hint = f"the body is not JSON: {reason}", "send one JSON object"
        return on_error(request, ServiceError("bad-input", fact, hint, status=400))
    is_text = any(one["loc"] == ("body",) and one["type"] != "missing" for one in errors)
    if is_text and "json" not in (kind := _content_type(request)):
        fact, hint = f"the body is sent as {kind}", "send `Content-Type: application/json`"
        return on_error(request, ServiceError("bad-input", fact, hint, status=400))
    shown = "; ".join(f"{_place(one['loc'])}: {one['msg']}" for one in errors[:_SHOWN])
    more = f"; and {len(errors) - _SHOWN} more" if len(errors) > _SHOWN else ""
    hint = "GET /openapi.json says what each endpoint takes"
    return on_error(request, ServiceError("bad-input", f"{shown}{more}", hint, status=422))


def _place(parts: Sequence[str | int]) -> str:
    """Return a place in the body, without the names of types, which pydantic adds where a field may be of several."""
    return ".".join(str(part) for part in parts if isinstance(part, int) or not _TYPE.match(part))


def _content_type(request: Request) -> str:
    return request.headers.get("Content-Type", "").partition(";")[0].strip().lower() or "nothing that is named"


def on_http_error(request: Request, error: Exception) -> JSONResponse:
    """Answer what the framework refuses: unknown paths and methods, forms that cannot be read."""
    assert isinstance(error, HTTPException)
    slug = _SLUGS.get(error.status_code, "bad-input")
    subject = " ".join(
        text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}…"
        for text in (request.method, request.url.path)
    )
    shown = AlbertKitError(slug, f"{subject}: {error.detail}", _HINTS.get(error.status_code, ""))
    answer = refusal(request.url.path, error.status_code, shown)
    answer.headers.update(error.headers or {})
    return answer
