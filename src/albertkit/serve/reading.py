"""Read bodies of JSON: their shape is checked before anything is built, and large ones are read in a thread.

What makes a body expensive is not its size but what Python must hold of it, and a list of everything that is wrong with it:
2.3 MB with 200,000 keys took 8 seconds on the event loop. So brackets and commas are counted first, on bytes, without
Python's lock; and a list is given up at its first error.
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

from albertkit.serve.bounds import MOST_DEPTH, MOST_ITEMS, MOST_KEYS, MOST_LISTS, MOST_OBJECTS
from albertkit.serve.refusals import ServiceError

_SMALL = 16_000  # bytes, read in less than a millisecond
_FIELDS = 10  # of a form; each may have a megabyte
_SHOWN = 100  # errors that are kept of a body
_QUOTE, _COMMA, _COLON, _OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST = b'",:{}[]'
_threads = ThreadPoolExecutor(1, "bodies")  # one at a time: two large bodies hold twice the memory, and are no faster


def check_shape(body: bytes) -> None:
    """Refuse JSON of too many objects, keys or items, or too deep, without reading it."""
    if len(body) <= MOST_OBJECTS and body.count(b"{") + body.count(b"[") <= MOST_DEPTH:
        return  # one text: 1 microsecond in place of 60
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    signs = np.frombuffer(plain, np.uint8)
    outside = (np.cumsum(signs == _QUOTE, dtype=np.int32) & 1) == 0
    signs = signs[outside]  # numbers, literals and signs; a list of 600,000 ids has 4 MB of them
    opened, closed = (signs == _OPEN) | (signs == _OPEN_LIST), (signs == _CLOSE) | (signs == _CLOSE_LIST)
    depth = int(np.cumsum(opened.astype(np.int8) - closed.astype(np.int8), dtype=np.int32).max(initial=0))
    counts = (
        (depth, MOST_DEPTH, "levels"),
        (_count(signs, _OPEN), MOST_OBJECTS, "objects"),
        (_count(signs, _OPEN_LIST), MOST_LISTS, "lists"),
        (_count(signs, _COLON), MOST_KEYS, "keys"),
        (_count(signs, _COMMA), MOST_ITEMS, "items"),
    )
    for count, most, what in counts:
        if count > most:
            fact = f"the body has {count:,} {what}, at most {most:,} are read"
            hint = (
                "send lists and objects that are less nested" if what == "levels" else "send fewer texts in a request"
            )
            raise ServiceError("bad-input", fact, hint, status=422)


def _count(signs: np.ndarray, sign: int) -> int:
    return int(np.count_nonzero(signs == sign))


def read_body(body: bytes, model: type[BaseModel]) -> BaseModel:
    """Read JSON as a request; it may begin with a byte order mark.

    It may hold neither NaN nor half a surrogate pair, nor a key twice, of which others read the first or the last.
    """
    body = body.removeprefix(codecs.BOM_UTF8)
    check_shape(body)
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        one = {"type": "json_invalid", "loc": ("body", 0), "msg": "JSON decode error", "ctx": {"error": str(error)}}
        raise RequestValidationError([one]) from None
    # Each key has a colon: where texts have more, or objects are nested, the keys are looked at one by one.
    if isinstance(value, dict) and body.count(b":") > len(value):
        json.loads(body, object_pairs_hook=_check_keys, parse_int=str, parse_float=str)
    return validate(value, model)


def _check_keys(pairs: list[tuple[str, Any]]) -> None:
    _check_once([name for name, _ in pairs], "an object")


def _check_once(names: Sequence[str], container: str) -> None:
    """Refuse a key or a field that stands twice."""
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise ServiceError("bad-input", f"`{repeated[:80]}` occurs twice in {container}", "send it once", status=400)


def validate(value: Any, model: type[BaseModel]) -> BaseModel:
    """Return plain values as a request."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in found[:_SHOWN]]) from None


class StrictRoute(APIRoute):
    """Read the JSON of a route with `read_body`, and its form before FastAPI does."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, which gets the body as the route's model."""
        handle, model = super().get_route_handler(), self._model()
        is_form = self.body_field is not None and isinstance(self.body_field.field_info, Form)

        async def handle_strict(request: Request) -> Response:
            if is_form:  # FastAPI would call every error a body that cannot be parsed
                try:
                    form = await request.form(max_files=1, max_fields=_FIELDS)
                except (ValueError, LookupError) as error:  # a `charset` that Python knows and cannot read
                    fact, hint = f"the form cannot be read: {error}", "send it in UTF-8"
                    raise ServiceError("bad-input", fact, hint, status=400) from None
                _check_once([name for name, _ in form.multi_items()], "the form")
            elif model is not None and "json" in request.headers.get("Content-Type", "").lower():
                body = await request.body()
                if body:
                    request._json = await _off_the_loop(body, partial(read_body, body, model))
                    request._headers = Headers({**request.headers, "content-type": "application/json"})  # or text/json
            return await handle(request)

        return handle_strict

    def _model(self) -> type[BaseModel] | None:
        field = self.body_field
        kind = None if field is None else field.field_info.annotation
        return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


async def _off_the_loop(body: bytes, read: Callable[[], Any]) -> Any:
    return read() if len(body) <= _SMALL else await asyncio.get_running_loop().run_in_executor(_threads, read)
