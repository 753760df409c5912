"""Mend uvicorn's connections: delayed answers, silent clients, and refusals that are not JSON."""

import asyncio
import json
import signal
import socket
import time
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_SECONDS = 20.0  # from the first byte of a request, or from the start of a connection, to the end of its headers
MOST_HEAD = 65_536  # bytes of an address and its headers, which httptools would read without end

_LINGER = 1.0  # seconds in which the rest of a request that is no HTTP is dropped


class Connection(HttpToolsProtocol):
    """Send answers at once, close silent connections, and answer bad requests in JSON."""

    _waiting: asyncio.TimerHandle | None = None
    _is_refused = False
    _unfinished = 0  # bytes that came of headers which are not at their end

    def connection_made(self, transport: Any) -> None:
        """Send small answers at once.

        uvicorn writes head and body apart. Without TCP_NODELAY the kernel holds the body back until the client has
        acknowledged the head, which clients delay: 40 ms an answer on every kept connection.
        """
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        """Read on; the time for headers ends where the request begins."""
        if self._is_refused:
            return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
            return
        if self._waiting is None:
            self._wait_for_headers()
        self._unfinished += len(data)
        if self._unfinished > MOST_HEAD and not self._is_refused:
            self.send_400_response("the headers are too large")

    def on_headers_complete(self) -> None:
        """Begin to answer, unless the headers are too large; an error here is HTTP 400."""
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MOST_HEAD:
            raise ValueError("the headers are too large")
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the time for headers."""
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP as every other refusal, unless this request's own answer has begun."""
        self._is_refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # its body is broken: nobody waits for its answer any more
            if self.cycle.response_started:
                self.transport.close()
                return
        error = {"slug": "bad-input", "message": msg, "hint": "send HTTP/1.1, and headers of at most 64 KB"}
        body = json.dumps({"error": error}).encode()
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        # Not closed yet: what still comes would be answered by a reset, which takes the answer from the client's hands.
        self.transport.write_eof()
        self.loop.call_later(_LINGER, self.transport.close)

    def _wait_for_headers(self) -> None:
        self._waiting = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        self._unfinished = 0
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


class Server(uvicorn.Server):
    """Go on for a while after SIGTERM, so that balancers see it in `/ready` before the port closes.

    Attributes:
        is_draining: Whether a signal has come.
    """

    def __init__(self, config: uvicorn.Config, drain_seconds: float) -> None:
        super().__init__(config)
        self.is_draining = False
        self._drain_seconds, self._end = drain_seconds, 0.0

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Begin to drain; a second signal ends it."""
        if sig == signal.SIGTERM and not self.is_draining:
            self._end = time.monotonic() + self._drain_seconds
        else:
            self._end = 0.0
        self.is_draining = True
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Return whether to end now."""
        return await super().on_tick(counter) and time.monotonic() >= self._end
