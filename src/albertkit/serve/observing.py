"""Every request gets a number, a line in the log, and is counted."""

import logging
import re
import uuid
from collections.abc import Callable
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from albertkit.errors import MachineError
from albertkit.serve.metrics import Metrics
from albertkit.serve.refusals import refusal

log = logging.getLogger(__name__)
_REQUEST_ID = re.compile(rb"[\w.:/+=-]{1,128}")
_LONGEST_PATH = 200  # characters of a path that the log repeats
_PROBES = {"/health", "/ready", "/metrics"}  # asked every few seconds
_GONE = 499  # in log and metrics: the client closed the connection before the answer
_HEADERS = [
    (b"x-content-type-options", b"nosniff"), (b"content-security-policy", b"frame-ancestors 'none'"),
    (b"x-frame-options", b"DENY"), (b"referrer-policy", b"no-referrer"),
]  # fmt: skip


class Observed:
    """Middleware around everything else.

    Args:
        app: What it goes around.
        metrics: Where requests are counted.
        is_draining: Says whether the service is ending; then clients are asked to end their connections, too.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, is_draining: Callable[[], bool]) -> None:
        self._app, self._metrics, self._is_draining = app, metrics, is_draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request; the client's own `X-Request-Id` is kept."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        begin, status, method = perf_counter(), 0, scope["method"]
        if method == "HEAD":  # answered as GET; the server sends no body
            scope = {**scope, "method": "GET"}
        given = dict(scope["headers"]).get(b"x-request-id", b"")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex.encode()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = [*_HEADERS, (b"x-request-id", request_id)]
                if self._is_draining():
                    own.append((b"connection", b"close"))
                message["headers"] = [*message.get("headers", []), *own]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            log.exception("our fault", extra={"request_id": request_id.decode()})
            if not status:
                error = MachineError("internal-error", "the service failed at this request", "its log says more")
                await refusal(scope["path"], 500, error)(scope, receive, send_with_id)
        finally:
            seconds, status = perf_counter() - begin, status or _GONE
            state = scope.get("state", {})
            # The route's own path: what strangers make up must not become names of counters.
            self._metrics.answered(getattr(scope.get("route"), "path", "other"), status, seconds)
            log.log(
                logging.DEBUG if scope["path"] in _PROBES else logging.INFO,
                "request",
                extra={
                    "client": (scope.get("client") or ("",))[0], "method": method, "path": scope["path"][:_LONGEST_PATH],
                    "status": status, "ms": round(seconds * 1000, 2), "model": state.get("model", ""),
                    "tokens": state.get("tokens", 0), "request_id": request_id.decode(),
                },
            )  # fmt: skip
