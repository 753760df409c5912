"""Around every request: methods, bodies that are cut off, clients that go, signals, what is loaded, what is logged."""

import json
import logging
import shutil
import signal
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from albertkit.errors import CheckpointError
from albertkit.serve import bounds
from albertkit.serve.logs import PlainFormatter, log_to_stderr
from albertkit.serve.models import Models
from albertkit.serve.reading import check_shape, read_body
from albertkit.serve.refusals import ServiceError
from albertkit.serve.requests import ClassifyRequest, EmbeddingsRequest


@pytest.fixture(scope="module")
def small(folders, running):
    """Half a megabyte, 128 tokens a batch; a captioner; it drains for two seconds."""
    limits = (
        "--max-megabytes",
        0.5,
        "--batch-tokens",
        128,
        "--drain-seconds",
        2,
        "--allow-origin",
        "https://app.example",
    )
    with running(folders["pretrained"], folders["caption"], *limits) as found:
        yield found


def send(service, *parts):
    """Bytes in, bytes out, over a connection of its own."""
    host, port = service.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        for part in parts:
            connection.sendall(part)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return answer


def test_head_is_answered_as_get_without_the_body(small):
    with small.client() as client:
        for path, status in (
            ("/health", 200),
            ("/ready", 200),
            ("/", 307),
            ("/models", 200),
            ("/fill-mask", 405),
            ("/x", 404),
        ):
            answer = client.head(path)
            assert (path, answer.status_code, answer.content) == (path, status, b"")


def test_a_body_in_chunks_that_is_too_large_is_answered_before_the_connection_ends(small):
    """Without a length, by a client that writes on for some time and reads afterwards."""
    head = (
        b"POST /fill-mask HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    chunk = b"%x\r\n%s\r\n" % (100_000, b" " * 100_000)
    for count in (6, 14):
        answer = send(small, head, *[chunk] * count, b"0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 413")
        error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert (error["slug"], bool(error["hint"])) == ("request-too-large", True)


def test_two_lengths_of_one_body_are_refused(small):
    body = b"0\r\n\r\nGET /models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = send(
        small,
        b"POST /fill-mask HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body) + body,
    )
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1


def test_a_long_path_is_not_repeated(small):
    answer = small.get("/" + "a" * 10_000)
    assert answer.status_code == 404
    assert len(answer.content) < 500


def test_work_of_a_client_that_has_gone_is_not_computed(small, texts):
    worker = small.worker
    worker.suspend()
    try:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(small.post, "/fill-mask", {"texts": "the [MASK] fox"})
            small.wait_until(lambda: [one for one in small.lines if one.get("message") == "ready"])
            host, port = small.url.removeprefix("http://").split(":")
            body = json.dumps({"texts": [f"{text} [MASK]" for text in texts]}).encode()
            head = b"POST /fill-mask HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            with socket.create_connection((host, int(port)), timeout=60) as connection:
                connection.sendall(head % len(body) + body)
                small.wait_until(lambda: small.metric("albertkit_queue_tokens") > 500)
            small.wait_until(lambda: small.metric("albertkit_queue_tokens") < 500)
            worker.resume()
            assert asked.result(120).status_code == 200
    finally:
        worker.resume()
    small.wait_until(lambda: any(line.get("status") == 499 for line in small.lines))
    assert small.metric("albertkit_queue_tokens") == 0


def test_the_same_for_scripts_of_an_origin_that_is_allowed(small):
    with small.client() as client:
        answer = client.post("/fill-mask", json={"texts": "[MASK]"}, headers={"Origin": "https://app.example"})
        assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example"
        ask = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
        assert client.options("/fill-mask", headers=ask).status_code == 200


def test_a_captioner_that_is_busy_stops_no_other_model(small, tmp_path):
    _, captions = small.workers
    captions.suspend()
    try:
        with ThreadPoolExecutor(1) as pool, small.client() as client:
            asked = pool.submit(client.post, "/caption", files={"file": ("a.mp4", b"no video")})
            small.wait_until(lambda: small.metric("albertkit_requests_total") > 0)
            assert small.post("/fill-mask", {"texts": "the [MASK] fox"}).status_code == 200
            captions.resume()
            assert asked.result(120).status_code == 422
    finally:
        captions.resume()


def test_a_term_to_the_whole_group_loses_nothing(small, texts):
    """As systemd and `timeout` send it: the worker goes on, `/ready` says that the end is near, new requests are answered."""
    workers = small.workers
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
    small.process.send_signal(signal.SIGTERM)
    with small.client() as client:
        answer = client.get("/ready")
        assert (answer.status_code, answer.json()) == (503, {"status": "draining"})
        answer = client.post("/fill-mask", json={"texts": [f"{text} [MASK]" for text in texts]})
        assert (answer.status_code, answer.headers["Connection"]) == (200, "close")
    assert small.process.wait(120) == 0
    assert not [line for line in small.lines if "died" in line.get("message", "")]


# --- bodies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"texts":["a"],%s}' % b",".join(b'"k%d":1' % n for n in range(20_000)), "20,001 keys"),
        (b'{"texts":[%s[]]}' % (b"[]," * 100_000), "100,002 lists"),
        (b'{"texts":[%s{}]}' % (b"{}," * 5_000), "5,002 objects"),
        (b'{"input":[%s1]}' % (b"1," * 700_000), "700,000 items"),
        (b"[" * 100_000, "100,000 levels"),
        (b'{"a":' * 4000, "4,000 levels"),
    ],
    ids=["keys", "lists", "objects", "items", "brackets", "braces"],
)
def test_json_of_a_shape_that_no_request_has_is_refused_unread(body, told):
    with pytest.raises(ServiceError, match=told):
        check_shape(body)


@pytest.mark.parametrize("text", ["[{," * 30_000, '"[{' * 30_000, "\\" * 30_000, '\\"[' * 20_000, 'a\\\\"{' * 10_000])
def test_signs_within_texts_do_not_count(text):
    body = json.dumps({"texts": [text]}).encode()
    check_shape(body)
    assert read_body(body, ClassifyRequest).texts == [text]


def test_the_largest_requests_that_are_allowed_are_read():
    rows = [[7] * 270] * bounds.MOST_TEXTS
    body = json.dumps({"model": "m", "input": rows}, separators=(",", ":")).encode()
    assert read_body(body, EmbeddingsRequest).input == rows
    pairs = [["a", "b"]] * bounds.MOST_TEXTS
    assert read_body(json.dumps({"texts": pairs}).encode(), ClassifyRequest).texts == pairs


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        (
            "/v1/embeddings",
            {"input": [True, False], "model": "pretrained"},
            "body.input.0: Input should be a valid integer",
        ),
        (
            "/v1/embeddings",
            {"input": ["a"] * 5000, "model": "pretrained"},
            "body.input: List should have at most 2048 items",
        ),
        ("/v1/embeddings", {"input": 1, "model": "pretrained"}, "body.input: Input should be a valid string"),
        ("/classify", {"texts": [["a", "b", "c"]]}, "body.texts.0: List should have at most 2 items"),
        ("/tag", {"texts": [[]]}, "body.texts.0: List should have at least 1 item"),
    ],
)
def test_a_fault_is_told_of_the_form_that_was_meant(service, path, body, told):
    error = service.post(path, body).json()["error"]
    assert error["message"].startswith(told)
    assert "; body" not in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "hint"),
    [
        (
            "/answer",
            {"questions": [{"question": "Who?", "context": " "}]},
            '{"question": "Who wrote it?", "context": "It was',
        ),
        ("/sentence-order", {"pairs": [["", ""]]}, '["The kettle boiled.", "She poured the tea."]'),
        ("/fill-mask", {"texts": "none"}, '"Paris is the [MASK] of France."'),
    ],
)
def test_hints_over_http_are_json(service, path, body, hint):
    assert f"for example {hint}" in service.post(path, body).json()["error"]["hint"]


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/fill-mask", {"texts": ["[MASK] " * 50] * 50, "top": 50}),
        ("/similarity", {"texts": ["a"] * 1001}),
        ("/answer", {"questions": [{"question": "who?", "context": "fox" + " " * 60_000}] * 50, "top": 20}),
    ],
)
def test_an_answer_much_larger_than_its_request_is_refused_before_it_is_computed(service, path, body):
    before = service.metric("albertkit_tokens_total")
    answer = service.post(path, body)
    error = answer.json()["error"]
    assert (answer.status_code, error["slug"]) == (422, "answer-too-large")
    assert "at most " in error["message"]
    assert service.metric("albertkit_tokens_total") == before


def test_many_numbers_and_words_are_refused(service, monkeypatch):
    bounds.check_numbers(bounds.MOST_NUMBERS)
    with pytest.raises(ServiceError, match="at most 2,000,000 are sent"):
        bounds.check_numbers(bounds.MOST_NUMBERS + 1)
    answer = service.post("/tag", {"texts": ["a " * 49_000] * 10})
    assert (answer.status_code, answer.json()["error"]["slug"]) == (413, "request-too-large")


# --- what is loaded, what is logged -----------------------------------------------------------------------------------


def test_early_exit_of_models_without_exits_is_refused(folders, tmp_path):
    with pytest.raises(CheckpointError) as error:
        Models({"a": str(folders["classify"])}, "patience:1")
    assert error.value.slug == "no-exits"
    shutil.copytree(folders["classify"], tmp_path / "with")
    (tmp_path / "with" / "exits.safetensors").touch()
    models = Models({"a": str(folders["classify"]), "b": str(tmp_path / "with")}, "patience:1").listing({})
    assert [model["notes"] for model in models] == [["trained without exits: all passes are made"], []]


def test_a_terminal_shows_lines_and_files_get_json(monkeypatch, capsys):
    def record(message, level=logging.INFO, **extra):
        made = logging.LogRecord("albertkit.serve", level, "", 1, message, None, None)
        vars(made).update(extra)
        return PlainFormatter().format(made).split(" ", 1)[1]

    told = record("listening", url="http://127.0.0.1:8000", models=["a", "b"])
    assert told == "serving a, b; open http://127.0.0.1:8000 as soon as it is ready"
    told = record(
        "request", client="1.2.3.4", method="POST", path="/x", status=200, ms=3.5, model="a", tokens=7, request_id="i"
    )
    assert told == "1.2.3.4 POST /x 200 3.5 ms a 7 tokens"
    assert record("it died", logging.ERROR, status=-9) == "error: it died status=-9"
    names = ("albertkit.serve", "albertkit.serve.observing", "albertkit.model_folder", "uvicorn", "asyncio")
    before = {name: (logging.getLogger(name).level, logging.getLogger(name).handlers) for name in names}
    try:
        for is_terminal, level, shown in (
            (True, None, False),
            (True, "info", True),
            (False, None, True),
            (False, "error", False),
        ):
            monkeypatch.setattr("sys.stderr.isatty", lambda found=is_terminal: found, raising=False)
            log_to_stderr(level)
            assert logging.getLogger("albertkit.serve.observing").isEnabledFor(logging.INFO) == shown
    finally:
        for name, (level, handlers) in before.items():
            logging.getLogger(name).setLevel(level)
            logging.getLogger(name).handlers, logging.getLogger(name).propagate = handlers, True


def test_the_log_names_client_and_model_and_leaves_out_probes(service):
    service.post("/classify", {"texts": "the fox"}, headers={"X-Request-Id": "for-the-log"})
    service.wait_until(lambda: any(line.get("request_id") == "for-the-log" for line in service.lines))
    line = next(line for line in service.lines if line.get("request_id") == "for-the-log")
    assert (line["client"], line["model"]) == ("127.0.0.1", "classify")
    assert not [line for line in service.lines if line.get("path") in ("/health", "/ready", "/metrics")]
