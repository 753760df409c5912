"""Number, log and count every request."""

import asyncio
import logging
import re
import secrets
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from albertkit.errors import MachineError
from albertkit.serve.logs import REQUESTS
from albertkit.serve.queue import Queue, RequestBatch
from albertkit.serve.refusals import refusal

log = logging.getLogger(REQUESTS)
_REQUEST_ID = re.compile(rb"[\w.:/+=-]{1,128}")
_LONGEST_LOGGED = 200  # characters of a path and of other strings of a client in the log
_PROBES = {"/health", "/ready", "/metrics"}  # asked every few seconds
# Status in log and metrics: the client closed the connection before the answer
_CLIENT_CLOSED = 499
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"frame-ancestors 'none'"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
]
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters of one service."""

    def __init__(self, queues: Sequence[Queue]) -> None:
        self.registry = CollectorRegistry()
        options: dict[str, Any] = {"namespace": "albertkit", "registry": self.registry}
        self.requests = Counter(
            "requests", "Requests by path and status.", ("path", "status"), **options
        )
        self.seconds = Histogram(
            "request_seconds", "From request to answer.", ("path",), buckets=_SECONDS, **options
        )
        self.tokens = Counter("tokens", "Tokens computed.", ("model", "kind"), **options)
        self.busy = Counter("worker_seconds", "Seconds that the worker computed.", **options)
        self.restarts = Counter(
            "worker_restarts", "Workers that died and were replaced.", **options
        )
        self.batch_tokens = Histogram(
            "batch_tokens", "Tokens of a batch.", buckets=[32 * n for n in _POWERS], **options
        )
        self.batch_sequences = Histogram(
            "batch_sequences", "Sequences of a batch.", buckets=_POWERS, **options
        )
        self.batch_requests = Histogram(
            "batch_requests", "Requests that share a batch.", buckets=_POWERS, **options
        )
        Gauge("queue_tokens", "Tokens that wait.", **options).set_function(
            lambda: sum(queue.tokens for queue in queues)
        )

    def count_batch(self, batch: RequestBatch, seconds: float) -> None:
        """Count a batch."""
        self.tokens.labels(*batch.key).inc(batch.tokens)
        self.busy.inc(seconds)
        self.batch_tokens.observe(batch.tokens)
        self.batch_sequences.observe(batch.sequences)
        self.batch_requests.observe(len(batch.jobs))

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests.labels(path, str(status)).inc()
        self.seconds.labels(path).observe(seconds)

    def text(self) -> bytes:
        """Return everything in Prometheus's text format."""
        return generate_latest(self.registry)


class Observed:
    """Outermost middleware; while the service is ending, it asks clients to close their connections."""

    def __init__(self, app: ASGIApp, metrics: Metrics, is_draining: Callable[[], bool]) -> None:
        self._app, self._metrics, self._is_draining = app, metrics, is_draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request; the client's own `X-Request-Id` is kept."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        begin, status, method = perf_counter(), 0, scope["method"]
        if method == "HEAD":  # answered as GET; the server sends no body
            scope = {**scope, "method": "GET"}
        client_id = dict(scope["headers"]).get(b"x-request-id", b"")
        request_id = (
            client_id if _REQUEST_ID.fullmatch(client_id) else secrets.token_hex(16).encode()
        )

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*_HEADERS, (b"x-request-id", request_id)]
                if self._is_draining():
                    headers.append((b"connection", b"close"))
                message["headers"] = [*message.get("headers", []), *headers]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            status = status or _CLIENT_CLOSED
        except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # panics of Rust libraries are no Exception
            log.exception("internal error", extra={"request_id": request_id.decode()})
            if not status:
                error = MachineError(
                    "internal-error",
                    "the service failed at this request",
                    "see the log of the service",
                )
                await refusal(scope["path"], 500, error)(scope, receive, send_with_id)
        finally:
            seconds, status = perf_counter() - begin, status or _CLIENT_CLOSED
            state = scope.get("state", {})
            # The route's own path: made-up paths must not become names of counters.
            self._metrics.answered(getattr(scope.get("route"), "path", "other"), status, seconds)
            extra = {
                "client": (scope.get("client") or ("",))[0][
                    :_LONGEST_LOGGED
                ],  # X-Forwarded-For, behind a proxy
                "method": method[:_LONGEST_LOGGED],
                "path": scope["path"][:_LONGEST_LOGGED],
                "status": status,
                "ms": round(seconds * 1000, 2),
                "model": state.get("model", ""),
                "tokens": state.get("tokens", 0),
                "request_id": request_id.decode(),
            }
            log.log(
                logging.DEBUG if scope["path"] in _PROBES else logging.INFO, "request", extra=extra
            )
