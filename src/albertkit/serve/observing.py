"""Number, log and count every request.

The log is on stderr: plain lines on a terminal, one JSON object a line elsewhere.
"""

import json
import logging
import re
import sys
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from albertkit.errors import MachineError
from albertkit.serve.batching import Batch, Queue
from albertkit.serve.options import LogLevel
from albertkit.serve.refusals import refusal

log = logging.getLogger(__name__)
_REQUEST_ID = re.compile(rb"[\w.:/+=-]{1,128}")
_LONGEST_PATH = 200  # characters of a path that the log repeats
_PROBES = {"/health", "/ready", "/metrics"}  # asked every few seconds
_GONE = 499  # in log and metrics: the client closed the connection before the answer
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"frame-ancestors 'none'"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
]
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "color_message"}
_REQUEST = "{client} {method} {path} {status} {ms} ms {model} {tokens} tokens"


class Metrics:
    """Counters of one service."""

    def __init__(self, queues: Sequence[Queue]) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"namespace": "albertkit", "registry": self.registry}
        self.requests = Counter("requests", "Requests by path and status.", ("path", "status"), **own)
        self.seconds = Histogram("request_seconds", "From request to answer.", ("path",), buckets=_SECONDS, **own)
        self.tokens = Counter("tokens", "Tokens computed.", ("model", "kind"), **own)
        self.busy = Counter("worker_seconds", "Seconds that the worker computed.", **own)
        self.restarts = Counter("worker_restarts", "Workers that died and were replaced.", **own)
        self.batch_tokens = Histogram("batch_tokens", "Tokens of a batch.", buckets=[32 * n for n in _POWERS], **own)
        self.batch_sequences = Histogram("batch_sequences", "Sequences of a batch.", buckets=_POWERS, **own)
        self.batch_requests = Histogram("batch_requests", "Requests that share a batch.", buckets=_POWERS, **own)
        Gauge("queue_tokens", "Tokens that wait.", **own).set_function(lambda: sum(queue.tokens for queue in queues))

    def computed(self, batch: Batch, seconds: float) -> None:
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
    """Middleware around everything else. While the service is ending, clients are asked to end their connections, too."""

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
            log.exception("internal error", extra={"request_id": request_id.decode()})
            if not status:
                error = MachineError("internal-error", "the service failed at this request", "its log says more")
                await refusal(scope["path"], 500, error)(scope, receive, send_with_id)
        finally:
            seconds, status = perf_counter() - begin, status or _GONE
            state = scope.get("state", {})
            # The route's own path: made-up paths must not become names of counters.
            self._metrics.answered(getattr(scope.get("route"), "path", "other"), status, seconds)
            extra = {
                "client": (scope.get("client") or ("",))[0],
                "method": method,
                "path": scope["path"][:_LONGEST_PATH],
                "status": status,
                "ms": round(seconds * 1000, 2),
                "model": state.get("model", ""),
                "tokens": state.get("tokens", 0),
                "request_id": request_id.decode(),
            }
            log.log(logging.DEBUG if scope["path"] in _PROBES else logging.INFO, "request", extra=extra)


# --- lines of the log ---------------------------------------------------------------------------------------------------


class JsonFormatter(logging.Formatter):
    """Write a record as one JSON object: time (UTC), level, message, its `extra`, and the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Write the line."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": when, "level": record.levelname.lower(), "message": record.getMessage()}
        line |= _extra(record)
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class PlainFormatter(logging.Formatter):
    """Write a record as a line for a terminal; the address to open, and a request in one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Write the line."""
        when, extra = datetime.fromtimestamp(record.created).strftime("%H:%M:%S"), _extra(record)
        message = record.getMessage()
        if message == "listening":
            shown = f"serving {', '.join(extra['models'])}; open {extra['url']} as soon as it is ready"
        elif message == "request":
            shown = _REQUEST.format(**{"model": "", **extra})
        else:
            trace = extra.pop("trace", "")
            shown = " ".join([message, *(f"{name}={value}" for name, value in extra.items())]) + (
                trace and f"\n{trace}"
            )
        level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{when} {level}{shown}{trace}"


def log_to_stderr(level: LogLevel | None = None) -> None:
    """Log this service and uvicorn to stderr.

    Without a level a terminal gets no requests: a line a request hides the rest.
    """
    is_terminal = sys.stderr.isatty()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainFormatter() if is_terminal else JsonFormatter())
    own = logging.getLevelName((level or "info").upper())
    requests = logging.WARNING if is_terminal and level is None else own
    levels = {
        "albertkit.serve": own,
        __name__: requests,
        "albertkit.model_folder": own,
        "albertkit.jit": own,
        "uvicorn": logging.WARNING,
        "asyncio": logging.ERROR,
    }
    for name, least in levels.items():
        logger = logging.getLogger(name)
        logger.setLevel(least)
        if name != __name__:
            logger.handlers, logger.propagate = [handler], False


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _PLAIN and value != ""}
