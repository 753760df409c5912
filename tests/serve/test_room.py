"""Who finds no place, or no memory for a body, is told when there will be some: on a clock that jumps."""

import asyncio
from collections import Counter

import pytest
from jumping_clock import JumpingLoop

from albertkit.serve import gate
from albertkit.serve.options import ServeOptions

SECONDS = 0.1  # of a request, one after the other
SIZE = 500_000  # bytes of a body
HEAD_SECONDS = 0.005  # in which the front reads a request and looks for room


class Front:
    """Does one thing after the other, in the order in which they come."""

    def __init__(self):
        self._turns = asyncio.Lock()

    async def spend(self, seconds):
        async with self._turns:
            await asyncio.sleep(seconds)

    async def __call__(self, scope, receive, send):
        await receive()
        for _ in range(2):  # before and after the worker
            await self.spend(SECONDS / 2)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class Client:
    """Sends a request, and sends it again when `Retry-After` says so.

    Attributes:
        statuses: Of each try.
    """

    def __init__(self, app, front, number):
        self._app = app
        self._front = front
        self.statuses = []
        self._address = f"127.0.{number // 250}.{1 + number % 250}", 50_000

    async def ask(self):
        for _ in range(2):
            status, wait = await self._post()
            self.statuses.append(status)
            if status == 200:
                return
            await asyncio.sleep(wait + 0.001)  # the answer takes time, too

    async def _post(self):
        headers = [(b"host", b"localhost"), (b"content-length", b"%d" % SIZE)]
        answer = {}
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/classify",
            "headers": headers,
            "client": self._address,
        }
        messages = iter([{"type": "http.request", "body": bytes(SIZE)}])

        async def receive():
            message = next(messages, None)
            return message or await asyncio.Event().wait()

        async def send(message):
            answer.update({key: message[key] for key in ("status", "headers") if key in message})

        await self._front.spend(HEAD_SECONDS)
        await self._app(scope, receive, send)
        return answer["status"], int(dict(answer["headers"]).get(b"retry-after", 0))


@pytest.mark.parametrize(
    "bound",
    [
        {"MAX_REQUESTS": 20},
        {"MAX_REQUESTS": 100},
        {"MAX_BODIES": 10},
    ],
    ids=str,
)
def test_who_finds_no_room_and_waits_as_told_finds_some(monkeypatch, bound):
    """600 clients, three times as many as can be served while they come.

    Who comes in time is read by the front after all that it holds: up to 10 seconds later where it
    holds 100 requests.
    """
    for name, value in bound.items():
        monkeypatch.setattr(gate, name, value)

    async def scene():
        front = Front()
        app = gate.Gate(front, ServeOptions((), max_megabytes=1.0))
        clients = [Client(app, front, number) for number in range(600)]
        tasks = []
        for client in clients:
            tasks.append(asyncio.create_task(client.ask()))
            await asyncio.sleep(SECONDS / 3)
        await asyncio.gather(*tasks)
        return clients, app

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        clients, app = runner.run(scene())
    second = Counter(client.statuses[1] for client in clients if client.statuses[0] == 429)
    assert second.total() > 100
    assert second[200] >= 0.9 * second.total()
    assert app._slots.used == 0
    assert app._bodies.used == 0
