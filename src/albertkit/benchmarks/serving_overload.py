"""`albertkit bench serve --overload`: what is answered of more requests than a service can answer.

Requests come at random moments whose mean rate is a multiple of the capacity, and do not wait for each other. The capacity is
what a few clients get that ask again as soon as they are answered.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np

from albertkit.benchmarks.embedding import random_encoder, texts_evenly
from albertkit.benchmarks.harness import Row, progress, using_threads, versions
from albertkit.benchmarks.inputs import Inputs
from albertkit.benchmarks.serving import Service, open_service
from albertkit.benchmarks.serving_clients import Client
from albertkit.config import AlbertConfig
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.engines.engine import Precision

_CLIENTS = 4  # that measure the capacity
_SENTENCES = 2048
NOTE = (
    "goodput: tokens of requests that were answered with 200, a second, from the first request to the last answer; the capacity "
    "is measured before every load with 4 clients that ask again as soon as they are answered; what is computed and not "
    "delivered is computed in vain"
)


def serve_overload_rows(
    inputs: Inputs,
    model: Path | None = None,
    seconds: float = 60.0,
    times: Sequence[float] = (1, 3, 10),
    timeout: float = 60.0,
    texts_a_request: int = 32,
    threads: int = 0,
    precision: Precision = "auto",
    config: AlbertConfig | None = None,
) -> Iterator[Row]:
    """Measure goodput and refusals under multiples of the capacity.

    Args:
        inputs: Text, and the tokenizer of a model with random weights.
        model: Folder of a sentence encoder or a checkpoint. Default: base with random weights, mean pooling.
        seconds: For which requests are sent at each load; a third of it measures the capacity.
        times: Loads, as multiples of the capacity.
        timeout: Of the service.
        texts_a_request: Sentences in each request.
        threads: Of the worker; 0 for all cores.
        precision: As `load_engine`.
        config: Of the random model, for tests.

    Yields:
        A row in tokens/s for each load; its ratio is of the capacity.

    Raises:
        ConfigError: vocab-too-large. DataError, CheckpointError: what loading the model raises. MachineError: peer-failed.
    """
    texts = texts_evenly(inputs.lines, _SENTENCES)
    with using_threads(threads), TemporaryDirectory(prefix="albertkit-bench-") as scratch:
        encoder = SentenceEncoder.from_pretrained(model) if model else random_encoder(inputs, config)
        encoder.save_pretrained(Path(scratch) / "bench")
        parts = [texts[at : at + texts_a_request] for at in range(0, len(texts), texts_a_request)]
        requests = [_Request(part, int(encoder.features(part).lengths.sum())) for part in parts]
        with open_service(Path(scratch) / "bench", precision, ("--timeout", f"{timeout:g}")) as service:
            for one in times:
                yield asyncio.run(_row(service, requests, one, seconds, timeout))


class _Request:
    """A request for the vectors of some texts.

    Args:
        texts: The texts.
        tokens: How many they have.
    """

    def __init__(self, texts: list[str], tokens: int) -> None:
        body = {"model": "bench", "input": texts, "encoding_format": "base64", "truncate": True}
        self.body, self.tokens = json.dumps(body).encode(), tokens


async def _row(service: Service, requests: list[_Request], times: float, seconds: float, timeout: float) -> Row:
    progress(f"serve: capacity, then {times:g}x of it for {seconds:g} s")
    capacity = await _capacity(service, requests, seconds / 3)
    mean = sum(one.tokens for one in requests) / len(requests)
    statuses: Counter[int] = Counter()
    late: list[float] = []
    waits: list[int] = []
    idle: list[Client] = []
    done, computed = 0, await asyncio.to_thread(service.tokens)
    begin = last = perf_counter()

    async def ask(request: _Request) -> None:
        nonlocal done, last
        client = idle.pop() if idle else await Client(service.host, service.port).__aenter__()
        asked = perf_counter()
        status, headers, _ = await client.exchange(request.body)
        statuses[status] += 1
        if status == 200:
            done, last = done + request.tokens, perf_counter()
            late.append(last - asked)
        if b"retry-after" in headers:
            waits.append(int(headers[b"retry-after"]))
        idle.append(client)

    rng, moment = np.random.default_rng(0), 0.0
    asked: list[asyncio.Task[None]] = []
    while moment < seconds:
        asked.append(asyncio.create_task(ask(requests[len(asked) % len(requests)])))
        moment += rng.exponential(mean / capacity / times)
        await asyncio.sleep(max(0.0, begin + moment - perf_counter()))
    await asyncio.gather(*asked)
    for client in idle:
        await client.__aexit__()
    goodput = done / max(last - begin, 1e-9)
    computed = await asyncio.to_thread(service.tokens) - computed
    p50, p99 = np.percentile(late or [0.0], [50, 99])
    return Row(
        row=f"serve overload, {times:g}x of capacity", unit="tokens/s", ours=goodput, peers={"capacity": capacity},
        ratio={"capacity": goodput / capacity}, best={"ours": goodput, "capacity": capacity},
        spread={"ours": 0.0, "capacity": 0.0}, rounds=1, note=NOTE, versions=versions("torch", "fastapi", "uvicorn"),
        details={
            "requests": len(asked), "statuses": {str(one): count for one, count in sorted(statuses.items())},
            "tokens_computed": computed, "of_them_delivered": done / max(computed, 1), "p50_seconds": float(p50),
            "p99_seconds": float(p99), "retry_after": Counter(waits).most_common(3),
            "timeout": timeout, "texts_a_request": len(json.loads(requests[0].body)["input"]), "tokens_a_request": mean,
        },
    )  # fmt: skip


async def _capacity(service: Service, requests: list[_Request], seconds: float) -> float:
    """Tokens a second that a few clients get."""
    begin, done = perf_counter(), 0

    async def ask(first: int) -> None:
        nonlocal done
        async with Client(service.host, service.port) as client:
            number = first
            while perf_counter() < begin + seconds:
                request = requests[number % len(requests)]
                await client.ask(request.body)
                done, number = done + request.tokens, number + _CLIENTS

    await asyncio.gather(*map(ask, range(_CLIENTS)))
    return done / (perf_counter() - begin)
