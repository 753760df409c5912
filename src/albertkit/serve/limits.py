"""What is refused before anything is read or computed: strangers, bodies that are too large, requests that take too long."""

import asyncio
import hmac

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from albertkit.serve.refusals import ServiceError, refusal
from albertkit.serve.settings import MEGABYTE, ServeSettings

OPEN = {"/", "/health", "/ready", "/docs", "/openapi.json"}  # without a key: they say nothing of models and texts
PAGE = "/page/"  # the page's own files; it asks a person for the key
UPLOAD = "/caption"


class Gate:
    """Middleware: key, size of the body, time.

    Args:
        app: What it goes around.
        settings: The limits.
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        self._app, self._timeout = app, settings.timeout
        self._key = None if settings.api_key is None else f"bearer {settings.api_key}".encode()
        self._most, self._most_upload = (
            int(megabytes * MEGABYTE) for megabytes in (settings.max_megabytes, settings.max_upload_megabytes)
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or refuse it."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        path, headers = scope["path"], dict(scope["headers"])
        most = self._most_upload if path == UPLOAD else self._most
        body = _Body(receive, most)

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start" and not body.is_read and _has_body(headers):
                if b"expect" not in headers and not is_late:  # who asks first, sends nothing
                    await body.let_go()
                if not body.is_read:  # otherwise the server would read on without end, to keep the connection
                    message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
            body.is_answered = True
            await send(message)

        is_late = False
        try:
            async with asyncio.timeout(self._timeout):
                error = self._stranger(path, headers) or _too_long(headers, most)
                if error is None:
                    await self._app(scope, body.receive, send_noted)
                else:
                    await refusal(path, error.status, error)(scope, receive, send_noted)
        except TimeoutError:
            if body.is_answered:
                raise
            is_late = True
            error = ServiceError(
                "timed-out", f"there is no answer after {self._timeout:g} seconds; the request is dropped",
                "send fewer texts in a request, or fewer requests at once", status=504,
            )  # fmt: skip
            await refusal(path, error.status, error)(scope, receive, send_noted)

    def _stranger(self, path: str, headers: dict[bytes, bytes]) -> ServiceError | None:
        if self._key is None or path in OPEN or path.startswith(PAGE):
            return None
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        if hmac.compare_digest(scheme.lower() + b" " + key.strip(), self._key):
            return None
        fact = "the API key is not the right one" if key else "this service asks for an API key"
        return ServiceError("wrong-key", fact, "send the header `Authorization: Bearer KEY`", status=401)


class _Body:
    """A request's body, counted as it comes.

    Args:
        receive: Of the server.
        most: Bytes that may come.

    Attributes:
        is_read: Whether all of it has come.
        is_answered: Whether the answer has begun.
    """

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive, self._most, self._bytes = receive, most, 0
        self.is_read = self.is_answered = False

    async def receive(self) -> Message:
        """The next part; HTTP 413 beyond the limit."""
        message = await self._part()
        if self._bytes > self._most:
            raise HTTPException(413, f"the body is larger than {self._most:,} bytes")
        return message

    async def let_go(self) -> None:
        """Read on up to three times the limit, and forget it: a client that is cut off while it writes never sees the answer."""
        while not self.is_read and self._bytes < 3 * self._most:
            await self._part()

    async def _part(self) -> Message:
        message = await self._receive()
        self._bytes += len(message.get("body", b""))
        self.is_read = self.is_read or not message.get("more_body", False)
        return message


def _has_body(headers: dict[bytes, bytes]) -> bool:
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


def _too_long(headers: dict[bytes, bytes], most: int) -> ServiceError | None:
    """What the client says of the length of its body; a body that says nothing is counted as it comes."""
    said = headers.get(b"content-length", b"0")
    if not said.isdigit() or int(said[:20]) <= most:
        return None
    return ServiceError(
        "request-too-large", f"the body has {int(said[:20]):,} bytes, at most {most:,} are read",
        "send fewer texts in a request, or a smaller video", status=413,
    )  # fmt: skip
