"""Who finds no place, or no memory for a body, is told when there will be some: on a clock that jumps."""

import asyncio
from collections import Counter

import pytest
from jumping_clock import JumpingLoop

from albertkit.serve import gate
from albertkit.serve.options import ServeOptions

SECONDS = 0.1  # of a request, one after the other
SIZE = 500_000  # bytes of a body


class Client:
    """Sends a request, and sends it again when `Retry-After` says so.

    Attributes:
        statuses: Of each try.
    """

    def __init__(self, app, number):
        self._app, self.statuses = app, []
        self._address = f"127.0.{number // 250}.{1 + number % 250}", 50_000

    async def ask(self):
        for _ in range(2):
            status, wait = await self._post()
            self.statuses.append(status)
            if status == 200:
                return
            await asyncio.sleep(wait + 0.001)  # the answer takes time, too

    async def _post(self):
        headers, answer = [(b"host", b"localhost"), (b"content-length", b"%d" % SIZE)], {}
        scope = {"type": "http", "method": "POST", "path": "/classify", "headers": headers, "client": self._address}
        messages = iter([{"type": "http.request", "body": bytes(SIZE)}])

        async def receive():
            message = next(messages, None)
            return message or await asyncio.Event().wait()

        async def send(message):
            answer.update({key: message[key] for key in ("status", "headers") if key in message})

        await self._app(scope, receive, send)
        return answer["status"], int(dict(answer["headers"]).get(b"retry-after", 0))


def one_after_the_other():
    turns = asyncio.Lock()

    async def app(scope, receive, send):
        await receive()
        async with turns:
            await asyncio.sleep(SECONDS)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return app


@pytest.mark.parametrize("bound", [{"MAX_REQUESTS": 20}, {"MAX_BODIES": 10}], ids=["requests", "bodies"])
def test_who_finds_no_room_and_waits_as_told_finds_some(monkeypatch, bound):
    """300 clients, three times as many as can be served while they come."""
    for name, value in bound.items():
        monkeypatch.setattr(gate, name, value)

    async def scene():
        app = gate.Gate(one_after_the_other(), ServeOptions((), max_megabytes=1.0))
        clients = [Client(app, number) for number in range(300)]
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
    assert (app._slots.used, app._bodies.used) == (0, 0)
