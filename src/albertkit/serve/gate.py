"""Refuse unknown clients, bodies that are too large, and requests that take too long.

Web pages of other sites may do nothing through a visitor's browser. A page can send a form
anywhere, and can let its own name point to 127.0.0.1 (DNS rebinding). The first is seen from
`Origin` and `Sec-Fetch-Site`, the second from `Host`.
"""

import asyncio
import hmac
from collections.abc import Mapping
from contextlib import suppress

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from albertkit.serve.options import MEGABYTE, ServeOptions, is_loopback
from albertkit.serve.queue import RequestCapacity, Sender, client_of_address
from albertkit.serve.refusals import MAX_BODIES, MAX_REQUESTS, MAX_UPLOADS, ServiceError, refusal

# Need no key: they show nothing of models and texts
OPEN = {"/", "/health", "/ready", "/openapi.json"}
PAGE = "/page/"  # the page's own files; it asks the user for the key
UPLOAD = "/caption"
PROBES = {"/health", "/ready"}  # balancers ask by address
ANY = "*"
_READING = {"GET", "HEAD", "OPTIONS"}
# Seconds in which the rest of a refused body is read: a client that is cut off never sees the
# error.
_DRAIN_SECONDS = 2.0
_TOO_MANY_BODIES = "there are too many large bodies at once"


class Gate:
    """Check who sends a request, and limit its size and time: a middleware.

    It puts the `deadline` of a request into its state, in seconds of the loop's clock. A request
    whose client has gone is cancelled.
    """

    def __init__(self, app: ASGIApp, options: ServeOptions) -> None:
        self._app, self._timeout = app, options.timeout
        self._visitors = Visitors(options)
        self._key = None if options.api_key is None else f"bearer {options.api_key}".encode()
        self._max_bytes = int(options.max_megabytes * MEGABYTE)
        self._max_upload_bytes = int(options.max_upload_megabytes * MEGABYTE)
        self._slots = RequestCapacity(MAX_REQUESTS, options.timeout)
        self._bodies = RequestCapacity(MAX_BODIES * self._max_bytes, options.timeout)
        self._uploads = RequestCapacity(MAX_UPLOADS * self._max_upload_bytes, options.timeout)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or refuse it."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        is_upload = scope["path"] == UPLOAD
        max_bytes = self._max_upload_bytes if is_upload else self._max_bytes
        bodies = self._uploads if is_upload else self._bodies
        request = _GatedRequest(scope, receive, send, max_bytes, bodies)
        scope.setdefault("state", {})["deadline"] = (
            asyncio.get_running_loop().time() + self._timeout
        )
        error = self._request_error(scope["method"], scope["path"], request.headers, max_bytes)
        if error is None and scope["method"] == "POST":
            # A slot, and memory for the body
            now = asyncio.get_running_loop().time()
            fact = f"{MAX_REQUESTS:,} requests are being answered"
            wait = self._slots.seconds_until_free(request.sender, 1, now)
            if wait is None:
                fact = _TOO_MANY_BODIES
                wait = bodies.seconds_until_free(request.sender, request.length, now)
            if wait is None:
                self._slots.occupy(1, now)
                request.slots = self._slots
            else:
                hint = f"send it again after {wait} s"
                error = ServiceError("busy", fact, hint, status=429, retry_after=wait)
        try:
            async with asyncio.timeout(self._timeout):
                if error is None:
                    await self._app(scope, request.receive, request.send)
                else:
                    await request.send_refusal(error)
        except TimeoutError:
            fact = f"there is no answer after {self._timeout:g} seconds; the request is dropped"
            hint = "send fewer texts in a request, or fewer requests at once"
            error = ServiceError("busy", fact, hint, status=504)
            if not request.is_read:
                fact = f"the body had not come after {self._timeout:g} seconds"
                error = ServiceError("busy", fact, "send it faster, or less", status=408)
            if not request.is_answered:
                await request.send_refusal(error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not request.is_abandoned or task is None or task.uncancel():
                raise
        finally:
            request.release()

    def _request_error(
        self, method: str, path: str, headers: dict[bytes, bytes], max_bytes: int
    ) -> ServiceError | None:
        if b"content-length" in headers and b"transfer-encoding" in headers:
            # RFC 9112, 6.1: a proxy in front may believe the other one, and see another request in
            # the body
            fact = "the request has both Content-Length and Transfer-Encoding"
            return ServiceError("bad-input", fact, "send one of them", status=400)
        encoding = headers.get(b"content-encoding", b"").lower()
        if _has_body(headers) and encoding not in (b"", b"identity"):
            fact = f"the body is sent with Content-Encoding {encoding[:20].decode('latin-1')}"
            return ServiceError(
                "unsupported", fact, "send it as it is, without that header", status=415
            )
        is_open = path.startswith(PAGE) or (path in OPEN and method != "POST")  # POST / computes
        refusal = self._visitors.find_refusal(method, path, headers)
        if refusal:
            return refusal
        if not is_open and self._key is not None:
            scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
            if not hmac.compare_digest(scheme.lower() + b" " + key.strip(), self._key):
                fact = (
                    "the API key is not the right one"
                    if key
                    else "this service asks for an API key"
                )
                return ServiceError(
                    "not-allowed", fact, "send the header `Authorization: Bearer KEY`", status=401
                )
        length = headers.get(b"content-length", b"0")  # a body without one is counted as it comes
        if not length.isdigit() or int(length[:20]) <= max_bytes:
            return None
        fact = f"the body has {int(length[:20]):,} bytes, at most {max_bytes:,} are read"
        return ServiceError(
            "too-large", fact, "send fewer texts in a request, or a smaller video", status=413
        )


class Visitors:
    """Decide who may send requests, by the names in their headers.

    Without `allow_host` only a service that listens on loopback without a key looks at `Host`: a
    key cannot be guessed, and behind other addresses something else decides.
    """

    def __init__(self, options: ServeOptions) -> None:
        self._hosts, self._origins = options.allow_host, options.allow_origin
        self._looks_at_host = bool(self._hosts) or (
            is_loopback(options.host) and options.api_key is None
        )

    def find_refusal(
        self, method: str, path: str, headers: dict[bytes, bytes]
    ) -> ServiceError | None:
        """Return the error for a request that another site's page may have sent; None for all others."""
        host = headers.get(b"host", b"").decode("latin-1").lower()
        # Without port, brackets and final dot
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        name = name.rstrip(".")
        is_local = is_loopback(name) or name.endswith(".localhost")
        is_known = is_local or name in self._hosts or ANY in self._hosts
        if self._looks_at_host and path not in PROBES and not is_known:
            hint = f"albertkit serve … --allow-host {name[:80] or 'NAME'}"
            return ServiceError(
                "not-allowed", f"the service is not known as `{host[:80]}`", hint, status=403
            )
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        site = headers.get(b"sec-fetch-site", b"").decode("latin-1").lower()
        if origin in self._origins or ANY in self._origins:
            is_own = True
        elif site:  # the browser's own word, right behind proxies, too
            is_own = site in ("same-origin", "none")
        else:
            is_own = not origin or origin.partition("://")[2] == host
        if method in _READING or is_own:
            return None
        fact = f"a page of `{origin[:80] or site[:80]}` sent this request"
        hint = f"albertkit serve … --allow-origin {origin[:80] or 'https://HOST'}"
        return ServiceError("not-allowed", fact, hint, status=403)


class _GatedRequest:
    """A request that counts the bytes of its body, and drains the rest of a body that the answer did not wait for.

    Attributes:
        headers: Of the request.
        length: Bytes of its body, as far as the client says.
        sender: Who sends it.
        bodies: Bytes of all bodies in memory or on disk.
        slots: Slots of requests, one of which it uses; None if it uses none.
        is_read: Whether all of the body has come.
        is_answered: Whether the answer has begun.
        is_abandoned: Whether the client has closed the connection before the answer.
    """

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, max_bytes: int, bodies: RequestCapacity
    ) -> None:
        self._scope, self._max_bytes = scope, max_bytes
        self._receive, self._send = receive, send
        self.bodies = bodies
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        length = self.headers.get(b"content-length", b"")
        self.length = int(length[:20]) if length.isdigit() else 0
        host, port = scope.get("client") or ("", 0)
        self.sender = Sender(
            client_of_address(host), port, (scope["path"], self.headers.get(b"content-length"))
        )
        self.slots: RequestCapacity | None = None
        self._bytes, self._counted_bytes = 0, 0
        self.is_read = not _has_body(self.headers)
        self.is_answered = False
        self.is_abandoned = False
        self._end: asyncio.Future[Message] | None = None
        self._reader = asyncio.current_task()

    async def receive(self) -> Message:
        """Return the next part; HTTP 413 beyond the limit. After the last one, wait for the end of the connection."""
        if self._end is not None:
            return await asyncio.shield(self._end)
        message = await self._receive_part()
        if self._bytes > self._max_bytes:
            raise HTTPException(413, f"the body is larger than {self._max_bytes:,} bytes")
        self._counted_bytes += len(message.get("body", b""))
        now = asyncio.get_running_loop().time()
        self.bodies.occupy(len(message.get("body", b"")), now)
        if self.bodies.is_exceeded:
            wait = self.bodies.promise_seconds(
                self.sender, max(self.length, self._counted_bytes), now
            )
            raise HTTPException(429, _TOO_MANY_BODIES, {"Retry-After": str(wait)})
        if not message.get("more_body", False):
            self._end = asyncio.ensure_future(self._receive())
            self._end.add_done_callback(self._cancel_abandoned_request)
        return message

    async def send(self, message: Message) -> None:
        """Send; after the answer, drain a body that was not read to its end and close the connection."""
        if message["type"] == "http.response.start":
            self.is_answered = True
            if not self.is_read:
                message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
        elif not self.is_read and not message.get("more_body"):
            await self._send({**message, "more_body": True})
            # Read and drop the rest for a while; a client that asks first sends nothing.
            if b"expect" not in self.headers:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_DRAIN_SECONDS):
                        while not self.is_read and self._bytes < 3 * self._max_bytes:
                            await self._receive_part()
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)

    async def send_refusal(self, error: ServiceError) -> None:
        """Answer with an error."""
        answer = refusal(self._scope["path"], error.status, error, error.retry_after)
        await answer(self._scope, self._receive, self.send)

    def release(self) -> None:
        """Free the memory, the slot and the tasks of this request."""
        now = asyncio.get_running_loop().time()
        if self.slots is not None:
            self.slots.release(1, now)
        if self._end is not None:
            self._end.cancel()
        if self._counted_bytes:
            self.bodies.release(self._counted_bytes, now)

    async def _receive_part(self) -> Message:
        message = await self._receive()
        self._bytes += len(message.get("body", b""))
        self.is_read = self.is_read or not message.get("more_body", False)
        return message

    def _cancel_abandoned_request(self, end: "asyncio.Future[Message]") -> None:
        if not end.cancelled() and not self.is_answered and self._reader is not None:
            self.is_abandoned = True
            self._reader.cancel()


def _has_body(headers: Mapping[bytes, bytes]) -> bool:
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
