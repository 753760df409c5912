"""Every request gets a number, a line in the log, and is counted."""

import logging
import re
import uuid
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from albertkit.errors import MachineError
from albertkit.serve.metrics import Metrics
from albertkit.serve.refusals import refusal

log = logging.getLogger(__name__)
_REQUEST_ID = re.compile(rb"[\w.:/+=-]{1,128}")


class Observed:
    """Middleware around everything else.

    Args:
        app: What it goes around.
        metrics: Where requests are counted.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request; the client's own `X-Request-Id` is kept."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        begin, status = perf_counter(), 0
        given = dict(scope["headers"]).get(b"x-request-id", b"")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex.encode()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id)]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            log.exception("our fault", extra={"request_id": request_id.decode()})
            if not status:
                error = MachineError("internal-error", "the service failed at this request", "its log says more")
                await refusal(scope["path"], 500, error)(scope, receive, send_with_id)
        finally:
            seconds = perf_counter() - begin
            # The route's own path: what strangers make up must not become names of counters.
            self._metrics.answered(getattr(scope.get("route"), "path", "other"), status, seconds)
            log.info(
                "request",
                extra={
                    "method": scope["method"], "path": scope["path"], "status": status, "ms": round(seconds * 1000, 2),
                    "tokens": scope.get("state", {}).get("tokens", 0), "request_id": request_id.decode(),
                },
            )  # fmt: skip
