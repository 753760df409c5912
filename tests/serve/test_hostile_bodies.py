"""Bodies that cost a service much more than who sends them: its memory, and how long everybody else waits.

`pytest -m slow -s tests/serve/test_hostile_bodies.py` sends all of them and prints the front's peak
and the longest `/health`.
"""

import gzip
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

MAX_BODY = 4_000_000  # bytes of a body, by default
IDLE = 300_000_000  # bytes that the front may take above what it has when idle


def listed(item, max_bytes=MAX_BODY, head=b'{"texts":[', tail=b"]}"):
    """A body of as many items as fit."""
    return head + b",".join([item] * ((max_bytes - 40) // (len(item) + 1))) + tail


def keys(count):
    return b'{"texts":["a"],' + b",".join(b'"k%d":1' % n for n in range(count)) + b"}"


def texts(text, count, **fields):
    return json.dumps({"texts": [text] * count, **fields}, ensure_ascii=False).encode()


ID_HEAD = b'{"model":"pretrained","truncate":true,"input":['
BODIES = {
    "200,000 keys": ("/classify", lambda: keys(200_000)),
    "8,000 keys": ("/classify", lambda: keys(8_000)),
    "1.3 million lists": ("/classify", lambda: listed(b"[]")),
    "1.3 million objects": ("/answer", lambda: listed(b"{}", head=b'{"questions":[')),
    "2 million ids": ("/v1/embeddings", lambda: listed(b"1", head=ID_HEAD)),
    "590,000 ids": ("/v1/embeddings", lambda: listed(b"1", 1_180_000, head=ID_HEAD)),
    "2,048 rows of ids": (
        "/v1/embeddings",
        lambda: listed(b"[" + b"7," * 280 + b"7]", 1_140_000, head=ID_HEAD),
    ),
    "1.3 million booleans": ("/v1/embeddings", lambda: listed(b"true", head=ID_HEAD)),
    "a million empty texts": ("/classify", lambda: listed(b'""')),
    "a million texts": ("/v1/embeddings", lambda: listed(b'"a"', head=ID_HEAD)),
    "4 million brackets": ("/classify", lambda: b"[" * MAX_BODY),
    "500,000 levels": ("/classify", lambda: b'{"texts":' + b"[" * 500_000 + b"]" * 500_000 + b"}"),
    "4 million quotes": (
        "/classify",
        lambda: b'{"texts":"' + b'\\"' * (MAX_BODY // 2 - 20) + b'"}',
    ),
    "a number of a million digits": (
        "/fill-mask",
        lambda: b'{"texts":"[MASK]","top":' + b"9" * 1_000_000 + b"}",
    ),
    "half a text": ("/classify", lambda: b'{"texts":"' + b"a" * (MAX_BODY - 20)),
    "no UTF-8": ("/classify", lambda: b'{"texts":"' + b"\xff" * (MAX_BODY - 20) + b'"}'),
    "40 texts of 100,000 letters": ("/classify", lambda: texts("a" * 99_000, 40, truncate=True)),
    "40 texts of 50,000 words": ("/classify", lambda: texts("a " * 49_500, 40, truncate=True)),
    "40 texts of 50,000 words, uncut": ("/classify", lambda: texts("a " * 49_500, 40)),
    "ligatures of 18 letters": ("/classify", lambda: texts("﷽" * 30_000, 40, truncate=True)),
    "combining marks": ("/classify", lambda: texts("e" + "\u0301" * 49_000, 40, truncate=True)),
    "emoji": (
        "/v1/embeddings",
        lambda: json.dumps(
            {"model": "pretrained", "truncate": True, "input": ["\U0001f600" * 24_000] * 40},
            ensure_ascii=False,
        ).encode(),
    ),
    "50 texts of 60 masks, 50 guesses": ("/fill-mask", lambda: texts("[MASK] " * 60, 50, top=50)),
    "as many guesses as are sent": ("/fill-mask", lambda: texts("[MASK] " * 20, 20, top=50)),
    "2,000 texts of masks": ("/fill-mask", lambda: texts("[MASK] " * 60, 2000, top=50)),
    "texts of 14,000 masks": ("/fill-mask", lambda: texts("[MASK] " * 14_000, 40)),
    "two million words to tag": ("/tag", lambda: texts("a " * 49_500, 40)),
    "150,000 words to tag": ("/tag", lambda: texts("a " * 49_500, 3)),
    "lists of words": ("/tag", lambda: json.dumps({"texts": [["a"] * 10_000] * 40}).encode()),
    "contexts of blanks": (
        "/answer",
        lambda: json.dumps(
            {
                "questions": [{"question": "who?", "context": "fox" + " " * 95_000 + "dog"}] * 40,
                "top": 20,
            }
        ).encode(),
    ),
    "fewer contexts of blanks": (
        "/answer",
        lambda: json.dumps(
            {
                "questions": [{"question": "who?", "context": "fox" + " " * 95_000 + "dog"}] * 20,
                "top": 20,
            }
        ).encode(),
    ),
    "contexts of 50,000 words": (
        "/answer",
        lambda: json.dumps(
            {"questions": [{"question": "who?", "context": "a " * 49_500}] * 40}
        ).encode(),
    ),
    "2,000 questions of 26 choices": (
        "/choose",
        lambda: json.dumps(
            {"questions": [{"question": "who?", "choices": ["fox"] * 26}] * 2000}
        ).encode(),
    ),
    "a million cosines": ("/similarity", lambda: texts("the fox", 1000)),
    "2,048 vectors": (
        "/v1/embeddings",
        lambda: json.dumps({"model": "pretrained", "input": ["the fox"] * 2048}).encode(),
    ),
    "2,048 pairs": (
        "/sentence-order",
        lambda: json.dumps({"pairs": [["the fox " * 100] * 2] * 2048, "truncate": True}).encode(),
    ),
    "a packed gigabyte": ("/classify", lambda: gzip.compress(bytes(100_000_000))),
    "a form of 40,000 fields": (
        "/caption",
        lambda: (
            b"".join(
                b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n'
                for _ in range(40_000)
            )
            + b"--b--\r\n"
        ),
    ),
    "a form of 40,000 files": (
        "/caption",
        lambda: (
            b"".join(
                b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n1\r\n'
                for _ in range(40_000)
            )
            + b"--b--\r\n"
        ),
    ),
    "20 MB that are no video": (
        "/caption",
        lambda: (
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
            + bytes(20_000_000)
            + b"\r\n--b--\r\n"
        ),
    ),
}
FEW = [
    "200,000 keys",
    "1.3 million lists",
    "590,000 ids",
    "2,000 texts of masks",
    "contexts of blanks",
]
FEW += ["two million words to tag"]


class Watched:
    """The front while something is done to it.

    Attributes:
        peak: Bytes of memory above those before.
        longest: Seconds that the longest `/health` took.
    """

    peak = 0
    longest = 0.0

    def __str__(self):
        return f"front's peak above idle {self.peak / 1e6:4.0f} MB, longest /health {self.longest * 1000:5.0f} ms"


@contextmanager
def watched(service):
    """Ask `/health` on and on; the front's memory above what it had at the beginning."""
    front = Watched()
    over = threading.Event()
    status, clear = (
        Path(f"/proc/{service.process.pid}/{name}") for name in ("status", "clear_refs")
    )

    def bytes_of(name):
        return (
            int(
                next(
                    line for line in status.read_text().splitlines() if line.startswith(name)
                ).split()[1]
            )
            * 1024
        )

    def ask():
        with service.client() as client:
            while not over.is_set():
                begin = time.perf_counter()
                assert client.get("/health").status_code == 200
                front.longest = max(front.longest, time.perf_counter() - begin)
                time.sleep(0.005)

    clear.write_text("5")  # forget the peak of before
    before = bytes_of("VmRSS")
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            yield front
        finally:
            over.set()
        asking.result(120)
    front.peak = bytes_of("VmHWM") - before


def send(service, name):
    path, make = BODIES[name]
    headers = {
        "Content-Type": "multipart/form-data; boundary=b"
        if path == "/caption"
        else "application/json"
    }
    return service.post(path, make(), headers=headers)


def check(service, names):
    peak = 0
    longest = 0.0
    lines = []
    for name in names:
        BODIES[name][1]()  # made before the clock runs
        with watched(service) as front:
            answer = send(service, name)
        assert answer.status_code < 500 or answer.status_code == 504, (name, answer.text[:500])
        assert answer.status_code == 200 or answer.json()["error"]["message"]
        peak = max(peak, front.peak)
        longest = max(longest, front.longest)
        lines.append(f"{name:34} {answer.status_code} {len(answer.content) / 1e6:6.1f} MB  {front}")
    print(*lines, f"longest /health {longest * 1000:.0f} ms", sep="\n")
    assert peak < IDLE, lines


def test_a_few_hostile_bodies(service):
    check(service, FEW)


@pytest.mark.slow
def test_all_hostile_bodies(service):
    check(service, BODIES)


@pytest.mark.slow
def test_hostile_bodies_at_once(service):
    """32 clients with bodies of 4 MB, and 200 that never finish theirs."""
    head = b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 3900000\r\n\r\n"
    body = listed(b'"a"')
    with watched(service) as front, ThreadPoolExecutor(32) as pool:
        slow = [socket.create_connection(service.address, timeout=60) for _ in range(200)]
        for connection in slow:
            connection.sendall(head + b'{"texts":["' + b"a" * 50_000)

        def ask(_):
            return service.post(
                "/classify", body, headers={"Content-Type": "application/json"}
            ).status_code

        statuses = set(pool.map(ask, range(64)))
        for connection in slow:
            connection.close()
    print(statuses, front)
    assert statuses <= {422, 429}
    assert front.peak < IDLE
