"""Read JSON bodies: their shape is checked before anything is built, and large ones are parsed in a thread.

A body is expensive by the objects that Python builds from it, and by the list of its errors, not by
its size: 2.3 MB with 200,000 keys took 8 seconds on the event loop. So brackets and commas are
counted first, on bytes, without Python's lock; and the check of a list stops at its first error.
"""

import asyncio
import codecs
import json
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.params import Form
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.datastructures import Headers

from albertkit.serve.refusals import (
    MAX_JSON_DEPTH,
    MAX_JSON_ITEMS,
    MAX_JSON_KEYS,
    MAX_JSON_LISTS,
    MAX_JSON_OBJECTS,
    ServiceError,
)

_MAX_BYTES_ON_LOOP = 16_000  # parsed in less than a millisecond
_FIELDS = 10  # of a form; each may have a megabyte
_MAX_ERRORS = 100  # errors listed of a body
_QUOTE, _COMMA, _COLON, _OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST = b'",:{}[]'
# One at a time: two large bodies hold twice the memory, and are no faster
_threads = ThreadPoolExecutor(1, "bodies")


def check_json_size(body: bytes) -> None:
    """Raise an error for JSON of too many objects, keys or items, or too deep, without parsing it."""
    if len(body) <= MAX_JSON_OBJECTS and body.count(b"{") + body.count(b"[") <= MAX_JSON_DEPTH:
        return  # one text: 1 microsecond in place of 60
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    signs = np.frombuffer(plain, np.uint8)
    outside = (np.cumsum(signs == _QUOTE, dtype=np.int32) & 1) == 0
    signs = signs[outside]  # numbers, literals and signs; a list of 600,000 ids has 4 MB of them
    opened, closed = (
        (signs == _OPEN) | (signs == _OPEN_LIST),
        (signs == _CLOSE) | (signs == _CLOSE_LIST),
    )
    depth = int(
        np.cumsum(opened.astype(np.int8) - closed.astype(np.int8), dtype=np.int32).max(initial=0)
    )
    counts = (
        (depth, MAX_JSON_DEPTH, "levels"),
        (_count_sign(signs, _OPEN), MAX_JSON_OBJECTS, "objects"),
        (_count_sign(signs, _OPEN_LIST), MAX_JSON_LISTS, "lists"),
        (_count_sign(signs, _COLON), MAX_JSON_KEYS, "keys"),
        (_count_sign(signs, _COMMA), MAX_JSON_ITEMS, "items"),
    )
    for count, max_count, unit in counts:
        if count > max_count:
            fact = f"the body has {count:,} {unit}, at most {max_count:,} are read"
            hint = (
                "send lists and objects that are less nested"
                if unit == "levels"
                else "send fewer texts in a request"
            )
            raise ServiceError("bad-input", fact, hint, status=422)


def _count_sign(signs: np.ndarray, sign: int) -> int:
    return int(np.count_nonzero(signs == sign))


def read_body(body: bytes, model: type[BaseModel]) -> BaseModel:
    """Parse JSON as a request; it may begin with a byte order mark.

    It may hold neither NaN nor half a surrogate pair, nor a key twice, of which others read the
    first or the last.
    """
    body = body.removeprefix(codecs.BOM_UTF8)
    check_json_size(body)
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        details = {
            "type": "json_invalid",
            "loc": ("body", 0),
            "msg": "JSON decode error",
            "ctx": {"error": str(error)},
        }
        raise RequestValidationError([details]) from None

    def check_keys(pairs: list[tuple[str, Any]]) -> None:
        _check_once([name for name, _ in pairs], "an object")

    # Each key has a colon: where texts have more, or objects are nested, the keys are looked at one
    # by one.
    if isinstance(value, dict) and body.count(b":") > len(value):
        json.loads(body, object_pairs_hook=check_keys, parse_int=str, parse_float=str)
    return validate_request(value, model)


def _check_once(names: Sequence[str], container: str) -> None:
    """Raise an error for a repeated key or field."""
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise ServiceError(
            "bad-input",
            f"`{repeated[:80]}` occurs twice in {container}",
            "send it once",
            status=400,
        )


def validate_request(value: Any, model: type[BaseModel]) -> BaseModel:
    """Return plain values as a request."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        listed_errors = [
            {**details, "loc": ("body", *details["loc"])} for details in errors[:_MAX_ERRORS]
        ]
        raise RequestValidationError(listed_errors) from None


class StrictRoute(APIRoute):
    """Read the JSON of a route with `read_body`, and its form before FastAPI does."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, which gets the body as the route's model."""
        handle = super().get_route_handler()
        info = None if self.body_field is None else self.body_field.field_info
        model: Any = getattr(info, "annotation", None)
        is_json = isinstance(model, type) and issubclass(model, BaseModel)

        async def handle_strict(request: Request) -> Response:
            # FastAPI would report every error as a body that cannot be parsed
            if isinstance(info, Form):
                try:
                    form = await request.form(max_files=1, max_fields=_FIELDS)
                except (
                    ValueError,
                    LookupError,
                ) as error:  # a `charset` that Python knows and cannot read
                    fact, hint = f"the form cannot be read: {error}", "send it in UTF-8"
                    raise ServiceError("bad-input", fact, hint, status=400) from None
                _check_once([name for name, _ in form.multi_items()], "the form")
            elif is_json and "json" in request.headers.get("Content-Type", "").lower():
                body = await request.body()
                if body:
                    parse = partial(read_body, body, model)
                    if len(body) <= _MAX_BYTES_ON_LOOP:
                        request._json = parse()
                    else:
                        request._json = await asyncio.get_running_loop().run_in_executor(
                            _threads, parse
                        )
                    # Or text/json
                    request._headers = Headers(
                        {**request.headers, "content-type": "application/json"}
                    )
            return await handle(request)

        return handle_strict
