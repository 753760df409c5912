"""Connections of uvicorn, without delayed answers, silent clients, and errors that are not JSON."""

import asyncio
import json
import signal
import socket
import time
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_BYTES = 16_384  # of a request's target and headers, and of its trailers
# From the first byte of a request, or from the start of a connection, to the end of its headers
HEADER_SECONDS = 20.0
READ_SECONDS = 30.0  # in which a client must read some of an answer

_DRAIN_SECONDS = 1.0  # in which the rest of a request that is not HTTP is dropped


class _BoundedHeads(h11.Connection):
    """Refuse headers and trailers that are too large, of which h11 checks only those without an end; join head and body."""

    _head = b""

    def send(self, event: Any) -> Any:
        """Return the bytes of an event; those of a head with the next event's, as each write takes 0.1 ms."""
        data = super().send(event)
        if isinstance(event, h11.Response):
            self._head, data = data or b"", b""
        elif self._head:
            self._head, data = b"", self._head + (data or b"")
        return data

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request | h11.EndOfMessage):
            size = sum(len(name) + len(value) + 4 for name, value in event.headers)
            if size + len(getattr(event, "target", b"")) > HEADER_BYTES:
                raise h11.RemoteProtocolError("headers too long", 431)
        return event


class Connection(H11Protocol):
    """Send answers at once, close connections whose client neither speaks nor listens, and answer bad requests in JSON."""

    _header_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None
    _is_refused = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # h11, although httptools makes a request cheaper (0.84 for 1.17 ms of one core): httptools
        # reads no body after `Upgrade`, which lets a second request hide in it, takes trailers for
        # headers, and has no limit for either.
        self.conn = _BoundedHeads(h11.SERVER, HEADER_BYTES)

    def connection_made(self, transport: Any) -> None:
        """Send small answers at once."""
        super().connection_made(transport)
        # Without TCP_NODELAY the kernel holds a second write back until the client has acknowledged
        # the first one, which clients delay: 40 ms an answer on every kept connection.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._start_header_timer()

    def data_received(self, data: bytes) -> None:
        """Read on; the time for headers ends where the request begins."""
        if self._is_refused:
            return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_header_timer()
        elif self._header_timer is None:
            self._start_header_timer()

    def pause_writing(self) -> None:
        """Start the time in which the client must read."""
        super().pause_writing()
        self._start_read_timer(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Stop that time: the client has read enough."""
        self._stop_read_timer()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers of headers and answers."""
        self._stop_header_timer()
        self._stop_read_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP with an error in JSON, unless its answer has begun."""
        self._is_refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # its body is broken: cancel the request
            if self.cycle.response_started:
                self.transport.close()
                return
        error = {
            "slug": "bad-input",
            "message": msg,
            "hint": "send HTTP/1.1, and headers of at most 16 KB",
        }
        body = json.dumps({"error": error}).encode()
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        # Not closed yet: further bytes would cause a reset, which discards the answer at the
        # client.
        self.transport.write_eof()
        self.loop.call_later(_DRAIN_SECONDS, self.transport.close)

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _start_read_timer(self, waiting_bytes: int) -> None:
        self._read_timer = self.loop.call_later(READ_SECONDS, self._check_read, waiting_bytes)

    def _check_read(self, waiting_bytes: int) -> None:
        """End the connection of a client that has read nothing of its answer, which would stay in memory for ever."""
        remaining_bytes = self.transport.get_write_buffer_size()
        if remaining_bytes < waiting_bytes:
            self._start_read_timer(remaining_bytes)
        else:
            self.transport.abort()

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


class Server(uvicorn.Server):
    """Serve on for a while after SIGTERM, so that load balancers see it in `/ready` before the port closes.

    Attributes:
        is_draining: Whether a signal has come.
    """

    def __init__(self, config: uvicorn.Config, drain_seconds: float) -> None:
        super().__init__(config)
        self.is_draining = False
        self._drain_seconds, self._end = drain_seconds, 0.0

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Begin to drain; a second signal ends it, but not of a terminal that closes: kernel and shell send one each."""
        if sig != signal.SIGINT and not self.is_draining:
            self._end = time.monotonic() + self._drain_seconds
        elif sig != signal.SIGHUP:
            self._end = 0.0
        self.is_draining = True
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Return whether to end now."""
        return await super().on_tick(counter) and time.monotonic() >= self._end
