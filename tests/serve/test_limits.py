"""What a service does with little room: bodies without end, clients that go, a full queue, a worker that stops."""

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from socket import create_connection

import psutil
import pytest

HEAD = b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: %s\r\n"
TEXTS = HEAD % (b"/fill-mask", b"application/json")
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def limited(folders, services):
    """Half a megabyte, two for uploads; 500 tokens may wait, 64 a batch; five seconds; a captioner."""
    limits = "--max-megabytes 0.5 --max-upload-megabytes 2 --queue-tokens 500 --timeout 5 --batch-tokens 64"
    origin = "--allow-origin https://app.example"
    return services(folders["pretrained"], folders["caption"], *limits.split(), *origin.split())


def chunk(content):
    """Bytes as a chunk of a body without a length."""
    return b"%x\r\n%s\r\n" % (len(content), content)


def send(service, parts):
    """Bytes in, bytes out, over a connection of its own; the service may end it early."""
    answer = b""
    with (
        create_connection(service.address, timeout=60) as connection,
        suppress(ConnectionResetError),
    ):
        with suppress(BrokenPipeError, ConnectionResetError):
            for part in parts:
                connection.sendall(part)
        while part := connection.recv(65536):
            answer += part
    return answer


@contextmanager
def suspended(worker):
    """Stop a worker for a while."""
    worker.suspend()
    try:
        yield worker
    finally:
        worker.resume()


def test_head_is_answered_as_get_without_the_body(limited):
    statuses = {
        "/health": 200,
        "/ready": 200,
        "/": 307,
        "/models": 200,
        "/fill-mask": 405,
        "/x": 404,
    }
    with limited.client() as client:
        answers = {path: client.head(path) for path in statuses}
    assert {path: answer.status_code for path, answer in answers.items()} == statuses
    assert {answer.content for answer in answers.values()} == {b""}


@pytest.mark.parametrize("count", [6, 14])
def test_a_body_in_chunks_that_is_too_large_is_answered_before_the_connection_ends(limited, count):
    """Without a length, by a client that writes on for some time and reads afterwards."""
    answer = send(limited, [TEXTS + CHUNKED, *[chunk(b" " * 100_000)] * count, b"0\r\n\r\n"])
    assert answer.startswith(b"HTTP/1.1 413")
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert error["slug"] == "too-large"
    assert error["hint"]


def test_two_lengths_of_one_body_are_refused(limited):
    body = b"0\r\n\r\nGET /models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = TEXTS.replace(b"Connection: close\r\n", b"")
    answer = send(limited, [head + b"Content-Length: %d\r\n" % len(body) + CHUNKED + body])
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1 ") == 1


def test_a_broken_body_is_the_clients_fault(limited):
    assert send(limited, [TEXTS + CHUNKED + b"not a size\r\n"]).startswith(b"HTTP/1.1 400")
    limited.wait_until(lambda: 499 in {line.get("status") for line in limited.lines})
    assert "internal error" not in {line["message"] for line in limited.lines}


def test_characters_that_stand_for_many_are_counted_as_many(limited):
    assert (
        limited.post("/tokenize", {"inputs": "\ufdfa" * 16_000, "model": "pretrained"}).status_code
        == 200
    )
    assert (
        limited.post("/tokenize", {"inputs": "\ufdfa" * 17_000, "model": "pretrained"}).status_code
        == 413
    )


def test_a_long_number_is_not_repeated(limited):
    answer = limited.post("/v1/embeddings", {"input": [[int("9" * 4000)]], "model": "pretrained"})
    assert answer.status_code == 400
    assert len(answer.content) < 300


def test_a_long_path_is_not_repeated(limited):
    answer = limited.get("/" + "a" * 10_000)
    assert answer.status_code == 404
    assert len(answer.content) < 500


def test_bodies_that_are_too_large(limited):
    large = json.dumps({"texts": ["[MASK] " + "a" * 90_000] * 10}).encode()
    with limited.client() as client:
        for content in (large, iter([large])):  # with a length, and without
            answer = client.post("/fill-mask", content=content, headers=JSON)
            assert answer.status_code == 413
            assert answer.json()["error"]["slug"] == "too-large"
    # The first may be that large; it is no video
    for size, status in ((1_500_000, 422), (2_500_000, 413)):
        assert limited.upload(bytes(size)).status_code == status
    error = limited.post("/v1/embeddings", {"input": ["a" * 90_000] * 10, "model": "x"}).json()[
        "error"
    ]
    assert error["code"] == "too_large"


def test_an_endless_upload_is_ended_before_it_is_read(limited):
    """Chunks without a length: the answer comes, and the connection ends, soon after the limit."""
    sent = []

    def parts():
        yield HEAD % (b"/caption", b"multipart/form-data; boundary=b") + CHUNKED
        yield chunk(b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.mp4"\r\n\r\n')
        while len(sent) < 500:
            yield chunk(bytes(100_000))
            sent.append(100_000)

    answer = send(limited, parts())
    assert sum(sent) < 20_000_000  # six, and what the sockets of both sides hold
    assert answer == b"" or answer.startswith(b"HTTP/1.1 413")
    assert limited.get("/health").status_code == 200


def test_work_of_a_client_that_has_gone_is_not_computed(limited, texts):
    body = json.dumps({"texts": [f"{text} [MASK]" for text in texts[:40]]}).encode()

    def waiting():
        return limited.metric("albertkit_queue_tokens")

    with ThreadPoolExecutor(1) as pool, suspended(limited.worker) as worker:
        pending = pool.submit(limited.post, "/fill-mask", {"texts": "the [MASK] fox"})
        with create_connection(limited.address, timeout=60) as connection:
            connection.sendall(TEXTS + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            limited.wait_until(lambda: waiting() > 100)
        limited.wait_until(lambda: waiting() < 100)
        worker.resume()
        assert pending.result(120).status_code == 200
    limited.wait_until(lambda: any(line.get("status") == 499 for line in limited.lines))
    limited.wait_until(lambda: waiting() == 0)


def test_scripts_of_an_origin_that_is_allowed_may_read_answers(limited):
    origin = {"Origin": "https://app.example"}
    answer = limited.post("/fill-mask", {"texts": "[MASK]"}, headers=origin)
    assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example"
    with limited.client() as client:
        ask = origin | {"Access-Control-Request-Method": "POST"}
        assert client.options("/fill-mask", headers=ask).status_code == 200


def test_a_captioner_that_is_busy_stops_no_other_model(limited):
    with ThreadPoolExecutor(1) as pool, suspended(limited.workers[1]) as captions:
        pending = pool.submit(limited.upload, b"no video")
        time.sleep(0.2)  # the captioner has it
        assert limited.post("/fill-mask", {"texts": "the [MASK] fox"}).status_code == 200
        captions.resume()
        assert pending.result(120).status_code == 422


def test_a_full_queue(limited, texts):
    body = {"texts": [f"{text} [MASK]" for text in texts]}
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: limited.post("/fill-mask", body), range(16)))
    assert {answer.status_code for answer in answers} == {200, 429}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.json()["error"]["slug"] == "busy"
    assert int(refused.headers["Retry-After"]) >= 1
    limited.wait_until(lambda: limited.metric("albertkit_queue_tokens") == 0)
    assert limited.post("/fill-mask", {"texts": "[MASK]"}).status_code == 200


def test_a_stopped_worker_is_a_timeout_and_the_work_is_dropped(limited, texts):
    restarts = limited.metric("albertkit_worker_restarts_total")
    with suspended(limited.worker), ThreadPoolExecutor(3) as pool:
        ask = lambda text: limited.refusal("/fill-mask", {"texts": f"{text} [MASK]"})  # noqa: E731
        assert set(pool.map(ask, texts[:3])) == {(504, "busy")}
    assert limited.metric("albertkit_queue_tokens") == 0
    assert limited.post("/fill-mask", {"texts": "[MASK]"}).status_code == 200
    assert limited.metric("albertkit_worker_restarts_total") == restarts


def test_a_body_that_never_comes_is_a_timeout(limited):
    began = time.monotonic()
    assert send(limited, [TEXTS + b"Content-Length: 100\r\n\r\n{"]).startswith(b"HTTP/1.1 408")
    assert time.monotonic() - began > 3


def test_a_killed_front_takes_its_workers_along(limited):
    workers = limited.workers
    assert len(workers) == 2
    limited.end(signal.SIGKILL)
    assert psutil.wait_procs(workers, timeout=120)[1] == []
