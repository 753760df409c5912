"""Row `serve`: vectors a second over HTTP, compared with the same engine on the same texts without a service.

With --overload what is answered of more requests than the service can answer: requests come at
random moments whose mean rate is a multiple of the capacity, do not wait for each other, and come
again once, when `Retry-After` says. The capacity is what a few clients get that ask again as soon
as they are answered. With --beside how long one text takes beside a client that asks for many at
once, with --rate how long requests of one long text take that come at a constant rate.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated

import numpy as np
import torch
from cyclopts import Parameter

from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.engines.engine import Precision
from benchmarks.embedding import cosines, open_encoder
from benchmarks.harness import (
    TIMING,
    Contender,
    Row,
    Timing,
    compare,
    interleave,
    progress,
    scratch_folder,
    using_threads,
    versions,
)
from benchmarks.inputs import TEXT, Text
from benchmarks.peer_programs.serving_clients import Client
from benchmarks.peers import Program, open_peer

PROGRAM = Program("serving_clients")
OFFLINE = "the engine without a service"
SAME = 0.999  # cosine of a vector to the same text's without a service
LOADS = {"tiny": (1, 8), "base": (64,)}  # clients of each model
PATIENCE = 120  # seconds until the models are loaded
NOTE = (
    "every request asks for the vector of one text, over connections that are kept; clients, front and worker are processes of "
    "one machine and share its cores. Without a service all texts are at hand at once, sorted by length"
)
TIMES = (1.0, 3.0, 10.0)  # loads of --overload, as multiples of the capacity
TEXTS, TEXTS_A_REQUEST = 2048, 32
CAPACITY_CLIENTS = 4
OVERLOAD_NOTE = (
    "goodput: tokens of requests that were answered with 200, a second, from the first request to the last answer; the capacity "
    "is measured before every load with 4 clients that ask again as soon as they are answered; what is computed and not "
    "delivered is computed in vain"
)

RATE_NOTE = (
    "the load test of text-embeddings-inference, load_tests/load.js: requests of one text as long as the model reads, "
    "`truncate` set, at a constant rate, for 30 seconds there at 50 a second on a GPU"
)
BESIDE_NOTE = (
    "requests of one text a second, from one client at a time: alone, and beside clients that ask for many texts "
    "in one request, again as soon as it is answered or refused. Who waited behind such a request would wait for all of it"
)
SINGLES = 50  # requests of one text with --beside
# Seconds that a request may take in the service of --beside with several clients
NEIGHBOUR_TIMEOUT = 6.0


def serve(
    *,
    text: Text = TEXT,
    model: Path | None = None,
    sentences: int = 2048,
    clients: Annotated[tuple[int, ...], Parameter(consume_multiple=True)] = (),
    precision: Precision = "auto",
    overload: bool = False,
    seconds: float = 60.0,
    beside: int = 0,
    rate: float = 0.0,
    timing: Timing = TIMING,
) -> Iterator[Row]:
    """Sentences a second through `albertkit serve` with many clients, compared with the same engine without a service.

    Args:
        model: Sentence encoder or checkpoint to serve. Default: tiny and base with random weights,
            mean pooling.
        sentences: How many, taken evenly from the text; each is a request.
        clients: That ask at the same time; several for a row each. Default: 1 and 8 at tiny, 64 at
            base; with --beside 1.
        precision: fp32, bf16, int8, or auto: bf16 where the hardware multiplies it faster.
        overload: Send 1, 3 and 10 times as many requests of 32 texts as the service can answer, and
            count what is answered and what is refused.
        seconds: For which requests are sent with --overload and --rate.
        beside: Measure how many requests of one text a second are answered beside clients that ask
            for so many at once.
        rate: Send so many requests of one long text a second, as text-embeddings-inference's load
            test does.
    """
    if min(clients, default=1) < 1:
        raise SystemExit("--clients must be at least 1")
    if rate < 0:
        raise SystemExit("--rate must not be negative")
    with text.open(1.0) as inputs, using_threads(timing.threads):
        if overload:
            encoder = open_encoder(model, inputs, timing)
            yield from _overload_rows(encoder, inputs.lines_evenly(TEXTS), seconds, precision)
            return
        if beside:
            encoder = open_encoder(model, inputs, timing)
            yield asyncio.run(
                _beside_row(
                    encoder, inputs.lines_evenly(beside), precision, max(clients, default=1)
                )
            )
            return
        if rate:
            encoder = open_encoder(model, inputs, timing)
            yield _rate_row(encoder, inputs.lines_evenly(TEXTS), rate, seconds, precision)
            return
        has_model = bool(model or timing.config)
        loads = {"" if has_model else "base": clients or (64,)} if has_model or clients else LOADS
        for name, counts in loads.items():
            encoder = open_encoder(model, inputs, timing, name or "base")
            for row in _rows(
                encoder, inputs.lines_evenly(sentences), counts, timing.rounds or 5, precision, name
            ):
                row.details["text"] = inputs.text_name
                yield row


def _rows(
    encoder: SentenceEncoder,
    texts: list[str],
    counts: Sequence[int],
    rounds: int,
    precision: Precision,
    name: str,
) -> Iterator[Row]:
    """Measure one service with each number of clients."""
    engine, lengths, count = (
        encoder.engine(precision),
        encoder.features(texts).lengths,
        float(len(texts)),
    )
    offline = Contender(OFFLINE, partial(encoder.encode, texts, precision=precision), count)
    with open_service(encoder, precision) as service, scratch_folder() as scratch:
        (scratch / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
        job = {"host": service.host, "port": service.port, "texts": str(scratch / "texts.json")}
        for clients in counts:
            answers: list[dict[str, float]] = []
            progress(
                f"serve {name}: {len(texts):,} sentences, {clients} clients, {torch.get_num_threads()} threads"
            )
            with open_peer(PROGRAM, {**job, "clients": clients}, scratch) as peer:

                def ask(peer=peer, answers=answers) -> float:
                    answer = peer.ask("round")
                    answers.append(answer)
                    return answer["seconds"][0]

                ours = Contender("albertkit serve", ask, count)
                seconds = interleave([ours, offline], rounds)
                similarities = cosines(
                    peer.array("vectors"), encoder.encode(texts, precision=precision)
                )
            client_count = "1 client" if clients == 1 else f"{clients} clients"
            title = ", ".join(
                filter(None, ("serve sentences", name, client_count, engine.precision))
            )
            row = compare(
                title, "sentences/s", ours, [offline], seconds, equal=similarities["min"] >= SAME
            )
            worst = f"at least {similarities['min']:.5f}, within {SAME}"
            row.compared = f"cosine of a vector to the same text's without a service: {worst}"
            row.versions, row.note = (
                versions("torch", "fastapi", "uvicorn"),
                "; ".join([NOTE, *engine.notes]),
            )
            row.details = {
                "sentences": len(texts),
                "mean_length": float(lengths.mean()),
                "longest": int(lengths.max()),
                "tokens_per_second": row.ours * float(lengths.mean()),
                **{
                    key: median(answer[key] for answer in answers[1:])
                    for key in ("p50_ms", "p99_ms")
                },
                "requests_a_batch": service.mean("batch_requests"),
                "tokens_a_batch": service.mean("batch_tokens"),
            }
            yield row


# --- the service ----------------------------------------------------------------------------------


@dataclass
class Service:
    """`albertkit serve` in a process of its own."""

    host: str
    port: int
    pid: int

    def counter(self, name: str) -> float:
        """Return the sum of a counter over its labels."""
        with urllib.request.urlopen(
            f"http://{self.host}:{self.port}/metrics", timeout=60
        ) as answer:
            values = re.findall(
                rf"^albertkit_{name}(?:\{{.*\}})? (\S+)", answer.read().decode(), re.M
            )
        return sum(map(float, values))

    def mean(self, name: str) -> float:
        """Return a mean over the batches so far."""
        return self.counter(f"{name}_sum") / self.counter(f"{name}_count")


@contextmanager
def open_service(
    encoder: SentenceEncoder, precision: Precision, *options: str
) -> Iterator[Service]:
    """Serve an encoder as `bench` on a free port, with as many threads as torch has here."""
    own_options = [
        "--port",
        "0",
        "--precision",
        precision,
        "--threads",
        str(torch.get_num_threads()),
        *options,
    ]
    # Threads are the worker's own to choose.
    environment = {
        k: v for k, v in os.environ.items() if k not in ("ALBERTKIT_API_KEY", "OMP_NUM_THREADS")
    }
    with scratch_folder() as scratch:
        encoder.save_pretrained(scratch / "bench")
        command = [
            sys.executable,
            "-m",
            "albertkit",
            "serve",
            f"bench={scratch / 'bench'}",
            *own_options,
        ]
        log = scratch / "service.log"
        with open(log, "w", encoding="utf-8") as stream:
            process = subprocess.Popen(command, stderr=stream, env=environment)
        try:
            end = time.monotonic() + PATIENCE
            while time.monotonic() < end and process.poll() is None:
                log_text = log.read_text(encoding="utf-8")
                address = re.search(r'"url": "http://([\d.]+):(\d+)"', log_text)
                if address and '"message": "ready"' in log_text:
                    yield Service(address[1], int(address[2]), process.pid)
                    return
                time.sleep(0.1)
            lines = log.read_text(encoding="utf-8").strip().splitlines() or ["nothing"]
            error = next((line for line in lines if line.startswith("error[")), lines[-1])
            raise SystemExit(f"the service did not start: {error}")
        finally:
            process.terminate()
            process.wait(PATIENCE)


# --- more requests than it can answer -------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """A request for the vectors of some texts, and how many tokens they have."""

    body: bytes
    tokens: int


def _overload_rows(
    encoder: SentenceEncoder,
    texts: list[str],
    seconds: float,
    precision: Precision,
    timeout: float = 60.0,
) -> Iterator[Row]:
    """Measure goodput in tokens/s for each load; its ratio is of the capacity."""
    requests = []
    for start in range(0, len(texts), TEXTS_A_REQUEST):
        part = texts[start : start + TEXTS_A_REQUEST]
        body = {"model": "bench", "input": part, "encoding_format": "base64", "truncate": True}
        requests.append(
            Request(json.dumps(body).encode(), int(encoder.features(part).lengths.sum()))
        )
    with open_service(encoder, precision, "--timeout", f"{timeout:g}") as service:
        for times in TIMES:
            row = asyncio.run(_overload_row(service, requests, times, seconds))
            row.details |= {"timeout": timeout, "texts_a_request": min(TEXTS_A_REQUEST, len(texts))}
            yield row


@dataclass
class Answers:
    """What became of requests that did not wait for each other.

    Attributes:
        statuses: HTTP statuses, counted.
        seconds: Of each request that was answered with 200.
        tokens: Of those requests.
        waits: What Retry-After said, counted.
        next_try: HTTP statuses of those who came again then, counted.
        slowest_refusal: Seconds until a 429.
        elapsed: Seconds from the first request to the last answer.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    tokens: int = 0
    waits: Counter[int] = field(default_factory=Counter)
    next_try: Counter[int] = field(default_factory=Counter)
    slowest_refusal: float = 0.0
    elapsed: float = 0.0

    def percentiles(self) -> dict[str, float]:
        """Return p50 and p99 in seconds."""
        p50, p99 = np.percentile(self.seconds or [0.0], [50, 99])
        return {"p50_seconds": float(p50), "p99_seconds": float(p99)}


async def _send(
    service: Service, requests: list[Request], gaps: Callable[[], float], seconds: float
) -> Answers:
    """Send requests in turn for some seconds, so many seconds apart, whether or not others are answered.

    Each is of a client of its own, with its own address.
    """
    answers = Answers()
    begin = perf_counter()

    async def ask(request: Request, number: int) -> None:
        for statuses in (answers.statuses, answers.next_try):
            client = await Client(
                service.host, service.port, f"127.1.{number // 250}.{1 + number % 250}"
            ).open()
            started = perf_counter()
            status, headers, _ = await client.exchange(request.body)
            await client.close()
            statuses[status] += 1
            if status == 200:
                answers.seconds.append(perf_counter() - started)
                answers.tokens, answers.elapsed = (
                    answers.tokens + request.tokens,
                    perf_counter() - begin,
                )
            if status != 429:
                return
            answers.slowest_refusal = max(answers.slowest_refusal, perf_counter() - started)
            answers.waits[int(headers[b"retry-after"])] += 1
            if statuses is answers.statuses:
                await asyncio.sleep(int(headers[b"retry-after"]))

    tasks, moment = list[asyncio.Task[None]](), 0.0
    while moment < seconds:
        tasks.append(asyncio.create_task(ask(requests[len(tasks) % len(requests)], len(tasks))))
        moment += gaps()
        await asyncio.sleep(max(0.0, begin + moment - perf_counter()))
    await asyncio.gather(*tasks)
    return answers


async def _overload_row(
    service: Service, requests: list[Request], times: float, seconds: float
) -> Row:
    progress(f"serve: capacity, then {times:g}x of it for {seconds:g} s")
    capacity = await _capacity(service, requests, seconds / 3)
    mean = sum(request.tokens for request in requests) / len(requests)
    computed = await asyncio.to_thread(service.counter, "tokens_total")
    rng = np.random.default_rng(0)
    answers = await _send(
        service, requests, lambda: rng.exponential(mean / capacity / times), seconds
    )
    goodput = answers.tokens / max(answers.elapsed, 1e-9)
    computed = round(await asyncio.to_thread(service.counter, "tokens_total") - computed)
    title, ratio = f"serve overload, {times:g}x of capacity", {"capacity": goodput / capacity}
    row = Row(
        title, "tokens/s", goodput, {"capacity": capacity}, ratio, rounds=1, note=OVERLOAD_NOTE
    )
    row.best, row.spread = {"ours": goodput, "capacity": capacity}, {"ours": 0.0, "capacity": 0.0}
    row.versions = versions("torch", "fastapi", "uvicorn")
    row.details = {
        "requests": answers.statuses.total(),
        "statuses": {str(request): count for request, count in sorted(answers.statuses.items())},
        "tokens_computed": computed,
        "of_them_delivered": answers.tokens / max(computed, 1),
        **answers.percentiles(),
        "retry_after": answers.waits.most_common(3),
        "next_try": {str(request): count for request, count in sorted(answers.next_try.items())},
        "slowest_refusal": answers.slowest_refusal,
        "tokens_a_request": mean,
    }
    return row


# --- requests at a constant rate ------------------------------------------------------------------


def _rate_row(
    encoder: SentenceEncoder, texts: list[str], rate: float, seconds: float, precision: Precision
) -> Row:
    """Measure the time of requests of one long text that come at a constant rate; the peer is that rate."""
    encoder.max_length = encoder.config.max_position_embeddings
    # No token of a text is as long as that on average
    text = " ".join(texts)[: 12 * encoder.max_length]
    body = {"model": "bench", "input": text, "encoding_format": "base64", "truncate": True}
    requests = [Request(json.dumps(body).encode(), int(encoder.features([text]).lengths.sum()))]
    with open_service(encoder, precision) as service:
        progress(
            f"serve: {rate:g} requests of {requests[0].tokens} tokens a second for {seconds:g} s"
        )
        answers = asyncio.run(_send(service, requests, lambda: 1 / rate, seconds))
    rate_done = len(answers.seconds) / max(answers.elapsed, 1e-9)
    title, rates = (
        f"serve one text of {requests[0].tokens} tokens, {rate:g} a second",
        {"asked for": rate},
    )
    row = Row(
        title,
        "requests/s",
        rate_done,
        rates,
        {"asked for": rate_done / rate},
        rounds=1,
        note=RATE_NOTE,
    )
    row.best, row.spread = {"ours": rate_done, **rates}, {"ours": 0.0, "asked for": 0.0}
    row.versions = versions("torch", "fastapi", "uvicorn")
    row.details = {
        "statuses": {str(status): count for status, count in sorted(answers.statuses.items())}
    }
    row.details |= answers.percentiles()
    return row


# --- one text beside many -------------------------------------------------------------------------


async def _beside_row(
    encoder: SentenceEncoder, texts: list[str], precision: Precision, neighbours: int
) -> Row:
    """Measure requests of one text a second beside clients with many; the peer is a request that waits for all of those.

    Each client has an address of its own, as the service tells clients apart by it.
    """
    body = {"model": "bench", "encoding_format": "base64", "truncate": True}
    bodies = [json.dumps({**body, "input": text}).encode() for text in texts]
    all_at_once = json.dumps({**body, "input": texts}).encode()
    # Seconds of the large requests that were answered; statuses of those that were not
    large, refused = (
        [],
        Counter[int](),
    )
    options = ("--timeout", f"{NEIGHBOUR_TIMEOUT:g}") if neighbours > 1 else ()
    with open_service(encoder, precision, *options) as service:
        client = await Client(service.host, service.port).open()

        async def ask_for_all(number: int) -> None:
            client = await Client(service.host, service.port, f"127.0.0.{2 + number}").open()
            while True:
                begin = perf_counter()
                status, _, _ = await client.exchange(all_at_once)
                if status == 200:
                    large.append(perf_counter() - begin)
                else:
                    refused[status] += 1

        async def singles() -> tuple[list[float], int]:
            """Return the seconds of the requests, and how many of them were answered."""
            seconds, answered = [], 0
            for number in range(SINGLES):
                begin = perf_counter()
                status, _, _ = await client.exchange(bodies[number % len(bodies)])
                seconds.append(perf_counter() - begin)
                answered += status == 200
            return seconds, answered

        progress(f"serve: one text alone, then beside {neighbours} x {len(texts):,}")
        await singles()  # warms up
        alone, _ = await singles()
        neighbour_tasks = [asyncio.create_task(ask_for_all(number)) for number in range(neighbours)]
        while not large:
            await asyncio.sleep(0.05)
            for task in neighbour_tasks:
                if task.done():
                    await task  # raises what was wrong
        latencies, answered = await singles()
        for task in neighbour_tasks:
            task.cancel()
        await client.close()
    seconds = {"ours": latencies, "behind all of them": large, "alone": alone}
    rates = {name: 1 / median(times) for name, times in seconds.items()}
    row = Row(
        f"serve one text beside {neighbours} x {len(texts):,}",
        "requests/s",
        rates.pop("ours"),
        rates,
        {},
        rounds=1,
    )
    row.ratio = {name: row.ours / rate for name, rate in rates.items()}
    row.best = {name: 1 / min(times) for name, times in seconds.items()}
    row.spread = {
        name: (max(times) - min(times)) / median(times) for name, times in seconds.items()
    }
    row.note, row.versions = BESIDE_NOTE, versions("torch", "fastapi", "uvicorn")
    for name, times in (("beside", latencies), ("alone", alone)):
        row.details[f"{name}_p50_ms"], row.details[f"{name}_p99_ms"] = (
            np.percentile(times, [50, 99]) * 1000
        )
    row.details |= {
        "answered": answered,
        "of": SINGLES,
        "large_requests": len(large),
        "large_request_seconds": median(large),
    }
    row.details["large_requests_refused"] = {
        str(status): count for status, count in sorted(refused.items())
    }
    return row


async def _capacity(service: Service, requests: list[Request], seconds: float) -> float:
    """Return the tokens a second that a few clients get."""
    begin, num_tokens = perf_counter(), 0

    async def ask(number: int) -> None:
        nonlocal num_tokens
        client = await Client(service.host, service.port).open()
        while perf_counter() < begin + seconds:
            request = requests[number % len(requests)]
            status, _, answer = await client.exchange(request.body)
            if status != 200:
                raise SystemExit(answer.decode())
            num_tokens, number = num_tokens + request.tokens, number + CAPACITY_CLIENTS
        await client.close()

    await asyncio.gather(*map(ask, range(CAPACITY_CLIENTS)))
    return num_tokens / (perf_counter() - begin)
