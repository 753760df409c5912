"""What uvicorn leaves open: answers that wait, connections that stay silent, bad HTTP, the end of the service."""

import asyncio
import json
import re
import signal
import socket
import struct
import sys
import time
from pathlib import Path

import h11
import pytest
import uvicorn

from albertkit.serve import connection as module
from albertkit.serve.connection import Connection, Server
from albertkit.serve.server import graceful_signals, listening_socket


async def app(scope, receive, send):
    """Answers every request with `{}`."""
    assert scope["type"] == "http"
    headers = [(b"content-type", b"application/json"), (b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"{}"})


def talk(client, connection_class=Connection):
    """Run a client against this application; it gets host, port, and the connections of the server."""

    async def play():
        config = uvicorn.Config(
            app, http=connection_class, lifespan="off", log_config=None, access_log=False
        )
        server = Server(config, 0.0)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            config.load()
            server.lifespan = config.lifespan_class(config)
            await server.startup(sockets=[listener])
            try:
                return await asyncio.wait_for(
                    client(*listener.getsockname(), server.server_state.connections), 60
                )
            finally:
                for listening in server.servers:
                    listening.close()

    return asyncio.run(play())


def test_an_answer_is_one_write_of_what_h11_would_send():
    writes = []
    for parser in (
        h11.Connection(h11.SERVER),
        module._BoundedHeads(h11.SERVER, module.HEADER_BYTES),
    ):
        parser.receive_data(REQUEST)
        parser.next_event()
        events = (
            h11.Response(status_code=200, headers=[("content-length", "4")], reason="OK"),
            h11.Data(data=b"full"),
            h11.EndOfMessage(),
        )
        writes.append([parser.send(event) for event in events])
    plain, joined = writes
    assert [part for part in joined if part] == [b"".join(plain)]


REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_answers_leave_at_once():
    """A body that waits for the acknowledgement of its head comes 40 ms late, on every connection that is kept."""

    async def client(host, port, connections):
        _, writer = await asyncio.open_connection(host, port)
        writer.write(REQUEST)
        while not connections:
            await asyncio.sleep(0.01)
        (connection,) = connections
        option = connection.transport.get_extra_info("socket").getsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY
        )
        writer.close()
        return option

    assert talk(client) != 0


@pytest.mark.parametrize(
    "content",
    [b"", b"GET / HTTP/1.1\r\nX-A: ", REQUEST + b"GET /"],
    ids=["nothing", "half", "a second"],
)
def test_who_does_not_finish_a_request_is_let_go(content, monkeypatch):
    monkeypatch.setattr(module, "HEADER_SECONDS", 0.2)

    async def client(host, port, connections):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(content[: len(REQUEST)])
        await asyncio.sleep(0.05)
        writer.write(content[len(REQUEST) :])
        heard = await reader.read()  # until the other side ends it
        writer.close()
        return heard

    heard = talk(client)
    assert heard.count(b"HTTP/1.1 200") == content.startswith(REQUEST)


def test_who_finishes_requests_is_kept(monkeypatch):
    monkeypatch.setattr(module, "HEADER_SECONDS", 0.2)

    async def client(host, port, connections):
        reader, writer = await asyncio.open_connection(host, port)
        for _ in range(3):
            writer.write(REQUEST)
            await reader.readuntil(b"{}")
            await asyncio.sleep(0.3)
        writer.close()
        return True

    assert talk(client)


@pytest.mark.parametrize(
    "content",
    [
        b"\x16\x03\x01\x02\x00",
        b"HELLO\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 40_000,
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 1_000_000,
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: a\r\n" * 2800,
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 16_500,
    ],
    ids=[
        "TLS",
        "words",
        "many headers",
        "a long address",
        "a long header",
        "a burst of headers",
        "a burst of one",
    ],
)
def test_what_is_no_http_is_refused_in_json(content):
    async def client(host, port, connections):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(content + b"\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return head, body

    head, body = talk(client)
    assert head.startswith(b"HTTP/1.1 400")
    assert json.loads(body)["error"]["slug"] == "bad-input"


def exchanged(content):
    """Everything that the server answers to these bytes, and to nothing more."""

    async def client(host, port, connections):
        reader, writer = await asyncio.open_connection(host, port)
        for part in content.split(b"|"):
            writer.write(part)
            await asyncio.sleep(0.05)
        heard = b""
        while True:
            try:
                received = await asyncio.wait_for(reader.read(65536), 0.5)
            except TimeoutError:
                break
            if not received:
                break
            heard += received
        writer.close()
        return heard

    return talk(client)


def test_no_request_hides_in_the_body_of_an_upgrade():
    hidden = b"GET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
    answers = exchanged(head + b"Content-Length: %d\r\n\r\n|" % len(hidden) + hidden)
    assert answers.count(b"HTTP/1.1 200") == answers.count(b"HTTP/1.1") == 1


def test_headers_just_below_the_limit_are_read():
    assert exchanged(b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 16_000 + b"\r\n\r\n").startswith(
        b"HTTP/1.1 200"
    )


def test_trailers_are_bounded():
    head = (
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"
    )
    for count in (2800, 20_000):
        assert b"HTTP/1.1 400" in exchanged(head + b"a: b\r\n" * count + b"\r\n")


@pytest.mark.parametrize(
    "headers",
    [b"Host: a\r\nHost: b\r\n", b"", b"Host: a\r\nTransfer-Encoding: gzip, chunked\r\n"],
    ids=["two hosts", "no host", "gzip"],
)
def test_headers_that_say_two_things_are_refused(headers):
    assert exchanged(b"POST / HTTP/1.1\r\n" + headers + b"\r\n").startswith(b"HTTP/1.1 400")


def test_answers_come_before_the_refusal_of_what_follows():
    answers = exchanged(REQUEST + REQUEST + b"GARBAGE\r\n\r\n")
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"200", b"400"]


def test_who_takes_nothing_of_an_answer_is_let_go(monkeypatch):
    monkeypatch.setattr(module, "READ_SECONDS", 0.2)

    async def large(scope, receive, send):
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-length", b"50000000")],
            }
        )
        await send({"type": "http.response.body", "body": bytes(50_000_000)})

    monkeypatch.setattr(sys.modules[__name__], "app", large)

    async def client(host, port, connections):
        with socket.create_connection((host, port)) as silent:
            silent.setblocking(False)
            silent.sendall(REQUEST)
            while not connections:
                await asyncio.sleep(0.01)
            while connections:
                await asyncio.sleep(0.01)
        return True

    assert talk(client)


@pytest.mark.parametrize(
    ("sent", "wait"),
    [
        (signal.SIGTERM, True),
        (signal.SIGINT, False),
    ],
)
def test_a_server_that_is_told_to_end_goes_on_for_a_while(sent, wait):
    server = Server(uvicorn.Config(app, log_config=None), 1000.0)
    assert not server.is_draining
    before = time.monotonic()
    server.handle_exit(sent, None)
    assert server.is_draining
    assert (server._end > before + 900) == wait
    assert asyncio.run(server.on_tick(1)) != wait
    server.handle_exit(sent, None)  # a second time: now
    assert asyncio.run(server.on_tick(1))


@pytest.mark.parametrize(
    ("before", "drains"),
    [
        (signal.SIG_DFL, True),
        (signal.SIG_IGN, False),
    ],
    ids=["", "nohup"],
)
def test_a_terminal_that_closes_lets_the_server_drain(before, drains):
    """The kernel and the shell send a SIGHUP each; `nohup` has both ignored."""
    server = Server(uvicorn.Config(app, log_config=None), 1000.0)
    original = signal.signal(signal.SIGHUP, before)
    try:
        with graceful_signals(server):
            for _ in range(2):
                signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == before
    finally:
        signal.signal(signal.SIGHUP, original)
    assert server.is_draining == drains
    assert (server._end > time.monotonic() + 900) == drains


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels do not tell")
def test_as_many_connections_may_wait_as_the_kernel_allows():
    """Behind a full queue it resets them."""
    with listening_socket("127.0.0.1", 0) as listener:
        (backlog,) = struct.unpack_from(
            "I", listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 28
        )
    assert backlog == min(65_535, int(Path("/proc/sys/net/core/somaxconn").read_text()))
