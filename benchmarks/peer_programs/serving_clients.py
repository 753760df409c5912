"""Clients of the row `serve`, in a process of their own.

Each keeps one connection and asks for the vector of one text after the other, as fast as it gets
answers. They speak just enough HTTP to do so: httpx takes 0.5 ms a request, which on a machine of
two cores would be taken from the service. The job holds `host`, `port`, `texts` (a JSON file) and
`clients`.
"""

import asyncio
import base64
import json
from itertools import count
from time import perf_counter

import numpy as np

from benchmarks.peer_programs import protocol


class Client:
    """One connection that is kept."""

    def __init__(self, host, port, source=None):
        """Connect to a port, from another address of this machine than the usual one if `source` names it."""
        self._place, self._source = (host, port), source and (source, 0)
        self._head = f"POST /v1/embeddings HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: "

    async def open(self):
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection(
            *self._place, local_addr=self._source
        )
        return self

    async def close(self):
        """Close the connection."""
        self._writer.close()
        await self._writer.wait_closed()

    async def exchange(self, body):
        """Return status, headers and body of the answer."""
        self._writer.write(f"{self._head}{len(body)}\r\n\r\n".encode() + body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        first, *lines = head.lower().split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in lines if line)
        answer = await self._reader.readexactly(int(headers[b"content-length"]))
        return int(first.split(b" ")[1]), headers, answer


class Clients:
    """All clients: every request once, whichever client is free takes the next."""

    def __init__(self, job):
        with open(job["texts"], encoding="utf-8") as stream:
            texts = json.load(stream)
        requests = [
            {"model": "bench", "input": text, "encoding_format": "base64", "truncate": True}
            for text in texts
        ]
        self.bodies = [json.dumps(request).encode() for request in requests]
        self.loop = asyncio.new_event_loop()
        connections = [Client(job["host"], job["port"]).open() for _ in range(job["clients"])]
        self.clients = self.loop.run_until_complete(self._together(connections))

    async def _together(self, waiting):
        return await asyncio.gather(*waiting)

    def round(self):
        """Ask for everything once; return the milliseconds of a request."""
        self.numbers = count()
        self.answers, self.seconds = [b""] * len(self.bodies), [0.0] * len(self.bodies)
        self.loop.run_until_complete(self._together(map(self._ask, self.clients)))
        p50, p99 = np.percentile(self.seconds, [50, 99]) * 1000
        return {"p50_ms": p50, "p99_ms": p99}

    async def _ask(self, client):
        while (number := next(self.numbers)) < len(self.bodies):
            begin = perf_counter()
            status, _, answer = await client.exchange(self.bodies[number])
            if status != 200:
                raise RuntimeError(answer.decode())
            self.answers[number], self.seconds[number] = answer, perf_counter() - begin

    def vectors(self):
        """Return fp32 [texts, D] of the last round."""
        rows = [row["embedding"] for answer in self.answers for row in json.loads(answer)["data"]]
        return np.stack([np.frombuffer(base64.b64decode(row), "<f4") for row in rows])


def prepare(job, say):
    """Open the connections."""
    clients = Clients(job)
    return {"round": clients.round, "vectors": clients.vectors}, {"failed": {}}


if __name__ == "__main__":
    protocol.answer(prepare)
