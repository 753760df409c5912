"""Bodies are parsed strictly, and large ones in a thread."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json

_SMALL = 64_000  # bytes, parsed in less than a millisecond


class _Strict(Request):
    """A request whose JSON may hold neither NaN nor half a surrogate pair nor 10,000 open brackets."""

    async def json(self) -> Any:
        body = await self.body()
        return _parsed(body) if len(body) <= _SMALL else await asyncio.to_thread(_parsed, body)


def _parsed(body: bytes) -> Any:
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise json.JSONDecodeError(str(error), "", 0) from None


class StrictRoute(APIRoute):
    """A route with such requests."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As `APIRoute`."""
        handle = super().get_route_handler()

        async def handle_strict(request: Request) -> Response:
            return await handle(_Strict(request.scope, request.receive))

        return handle_strict
