"""Clients of `albertkit bench serve`, in a process of their own; run as a script with a job in JSON.

Each keeps one connection and asks for the vector of one text after the other, as fast as it gets answers. They speak just
enough HTTP to do so: httpx takes 0.5 ms a request, which on a machine of two cores would be taken from the service.
"""

import asyncio
import base64
import json
import sys
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np


class Client:
    """One connection that is kept.

    Args:
        host: Of the service.
        port: Of the service.
    """

    def __init__(self, host: str, port: int) -> None:
        self._place = host, port
        self._head = (
            f"POST /v1/embeddings HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: "
        )

    async def __aenter__(self) -> "Client":
        self._reader, self._writer = await asyncio.open_connection(*self._place)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def ask(self, body: bytes) -> bytes:
        """The body of the answer; any status but 200 ends the benchmark."""
        status, _, answer = await self.exchange(body)
        if status != 200:
            raise RuntimeError(answer.decode())
        return answer

    async def exchange(self, body: bytes) -> tuple[int, dict[bytes, bytes], bytes]:
        """Status, headers and body of the answer."""
        self._writer.write(f"{self._head}{len(body)}\r\n\r\n".encode() + body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        first, *lines = head.lower().split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in lines if line)
        answer = await self._reader.readexactly(int(headers[b"content-length"]))
        return int(first.split(b" ")[1]), headers, answer


class Round:
    """Every request once, whichever client is free takes the next.

    Args:
        bodies: Of the requests.
    """

    def __init__(self, bodies: list[bytes]) -> None:
        self._bodies, self._next = bodies, count()
        self.answers = [b""] * len(bodies)
        self.seconds = [0.0] * len(bodies)

    async def run(self, clients: list[Client]) -> float:
        """The seconds it took."""
        begin = perf_counter()
        await asyncio.gather(*map(self._ask, clients))
        return perf_counter() - begin

    async def _ask(self, client: Client) -> None:
        while (number := next(self._next)) < len(self._bodies):
            begin = perf_counter()
            self.answers[number] = await client.ask(self._bodies[number])
            self.seconds[number] = perf_counter() - begin


def _vectors(answers: list[bytes]) -> np.ndarray:
    """fp32 [texts, D]."""
    rows = [row["embedding"] for answer in answers for row in json.loads(answer)["data"]]
    return np.stack([np.frombuffer(base64.b64decode(row), "<f4") for row in rows])


async def main(job: dict[str, Any]) -> None:
    """A round for each line on stdin, its figures as a line on stdout; the vectors of the first one go into a file."""
    texts = json.loads(Path(job["texts"]).read_text(encoding="utf-8"))
    bodies = [json.dumps({"model": "bench", "input": text, "encoding_format": "base64"}).encode() for text in texts]
    clients = [await Client(job["host"], job["port"]).__aenter__() for _ in range(job["clients"])]
    print(json.dumps({"ready": True}), flush=True)
    first = True
    while await asyncio.to_thread(sys.stdin.readline):
        round_ = Round(bodies)
        seconds = await round_.run(clients)
        p50, p99 = np.percentile(round_.seconds, [50, 99]) * 1000
        if first:
            np.save(job["vectors"], _vectors(round_.answers))
            first = False
        print(json.dumps({"seconds": seconds, "p50_ms": p50, "p99_ms": p99}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
