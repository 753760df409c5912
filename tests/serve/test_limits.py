"""What is refused, with which status, and in whose form."""

import http.client
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from albertkit.errors import ConfigError
from albertkit.serve import ServeSettings
from albertkit.serve.models import named_folders
from albertkit.serve.settings import find_key


@pytest.fixture(scope="module")
def narrow(folders, running):
    """Half a megabyte, two for uploads; 500 tokens may wait; five seconds."""
    limits = (
        "--max-megabytes",
        0.5,
        "--max-upload-megabytes",
        2,
        "--queue-tokens",
        500,
        "--timeout",
        5,
        "--batch-tokens",
        64,
    )
    with running(folders["pretrained"], folders["caption"], *limits) as found:
        yield found


REFUSED = {
    "not JSON": ("/classify", b"{", 400, "bad-json"),
    "NaN": ("/classify", b'{"texts": [NaN]}', 400, "bad-json"),
    "half a surrogate pair": ("/classify", b'{"texts": ["\\ud800"]}', 400, "bad-json"),
    "no UTF-8": ("/classify", b'{"texts": ["\xff"]}', 400, "bad-json"),
    "nested": ("/classify", b"[" * 100_000, 422, "bad-input"),
    "nothing": ("/classify", b"", 422, "bad-input"),
    "no object": ("/classify", b"null", 422, "bad-input"),
    "no texts": ("/classify", b"{}", 422, "bad-input"),
    "an empty list": ("/classify", b'{"texts": []}', 422, "bad-input"),
    "a misspelt field": ("/classify", b'{"texts": ["a"], "modle": "x"}', 422, "bad-input"),
    "a number": ("/classify", b'{"texts": 1}', 422, "bad-input"),
    "blank": ("/classify", b'{"texts": [" "]}', 422, "bad-input"),
    "too many": ("/classify", json.dumps({"texts": ["a"] * 2049}).encode(), 422, "bad-input"),
    "too long": ("/classify", json.dumps({"texts": ["a" * 100_001]}).encode(), 422, "bad-input"),
    "no mask": ("/fill-mask", b'{"texts": "a"}', 422, "no-mask"),
    "longer than the model reads": ("/fill-mask", json.dumps({"texts": "fox [MASK] " * 60}).encode(), 422, "too-long"),
    "an impossible number": ("/fill-mask", b'{"texts": "[MASK]", "top": 0}', 422, "bad-input"),
    "a huge number": ("/fill-mask", b'{"texts": "[MASK]", "top": 1e999}', 422, "bad-input"),
    "no model": ("/classify", b'{"texts": ["a"], "model": "nobody"}', 404, "unknown-model"),
    "another kind": ("/classify", b'{"texts": ["a"], "model": "tag"}', 404, "unknown-model"),
    "a pair of three": ("/sentence-order", b'{"pairs": [["a", "b", "c"]]}', 422, "bad-input"),
    "one choice": ("/choose", b'{"questions": [{"question": "a", "choices": ["b"]}]}', 422, "bad-input"),
    "nothing to choose for": ("/choose", b'{"questions": [{"choices": ["b", "c"]}]}', 422, "bad-input"),
    "too many cosines": ("/similarity", json.dumps({"texts": ["a"] * 1001}).encode(), 422, "answer-too-large"),
    "nothing to look at": ("/passes", b'{"text": " "}', 422, "bad-input"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_said(service, case):
    path, body, status, slug = REFUSED[case]
    with service.client() as client:
        answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
        other = client.post("/v1/embeddings", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["slug"]) == (status, slug)
    assert answer.json()["error"].keys() == {"slug", "message", "hint"}
    assert len(answer.content) < 2000  # the input is not sent back
    assert other.status_code == 400
    assert other.json()["error"].keys() == {"message", "type", "param", "code"}


def test_a_fault_is_said_with_its_place_and_no_names_of_types(service):
    told = service.post("/classify", {"texts": ["fine", ["a", 3]]}).json()["error"]["message"]
    assert "body.texts.1.1: Input should be a valid string" in told
    assert "constrained" not in told
    assert "/docs" in service.get("/nowhere").json()["error"]["hint"]


def test_paths_and_methods(service):
    assert service.get("/nowhere").status_code == 404
    assert service.get("/classify").status_code == 405
    assert service.get("/classify").json()["error"]["slug"] == "wrong-method"
    assert service.get("/health").json() == {"status": "alive"}
    assert service.get("/openapi.json").json()["info"]["title"] == "albertkit"
    plain = service.client().post("/classify", content=b'{"texts": ["a"]}', headers={"Content-Type": "text/plain"})
    assert plain.status_code == 400  # what a form on a stranger's page can send is not read
    assert "Content-Type: application/json" in plain.json()["error"]["hint"]  # which curl -d does not send by itself


def test_bodies_that_are_too_large(narrow):
    large = json.dumps({"texts": ["[MASK] " + "a" * 90_000] * 10})
    for headers in ({}, {"Transfer-Encoding": "chunked"}):
        content = iter([large.encode()]) if headers else large.encode()
        with narrow.client() as client:
            answer = client.post("/fill-mask", content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code == 413
        assert answer.json()["error"]["slug"] == "request-too-large"
    with narrow.client() as client:
        video = client.post("/caption", files={"file": ("a.mp4", bytes(1_500_000))})
        assert video.status_code == 422  # it may be that large; it is no video
        assert client.post("/caption", files={"file": ("a.mp4", bytes(2_500_000))}).status_code == 413
    assert (
        narrow.post("/v1/embeddings", {"input": ["a" * 90_000] * 10, "model": "x"}).json()["error"]["code"]
        == "request_too_large"
    )


def test_an_endless_upload_is_ended_before_it_is_read(narrow):
    """Chunks without a length: the answer comes, and the connection ends, soon after the limit."""
    host, port = narrow.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(
            b"POST /caption HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
            b"Content-Type: multipart/form-data; boundary=b\r\n\r\n"
        )
        start = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.mp4"\r\n\r\n'
        connection.sendall(b"%x\r\n%s\r\n" % (len(start), start))
        sent = 0
        chunk = bytes(100_000)
        answer = b""
        try:
            while sent < 50_000_000:
                connection.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                sent += len(chunk)
        except (BrokenPipeError, ConnectionResetError):
            pass
        try:
            while part := connection.recv(65536):
                answer += part
        except ConnectionResetError:
            pass
    assert sent < 20_000_000  # six, and what the sockets of both sides hold
    assert answer == b"" or answer.startswith(b"HTTP/1.1 413")
    assert narrow.get("/health").status_code == 200


def test_a_full_queue(narrow, texts):
    many = {"texts": [f"{text} [MASK]" for text in texts]}

    def ask(_):
        return narrow.post("/fill-mask", many)

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(16)))
    statuses = {answer.status_code for answer in answers}
    assert statuses == {200, 429}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.json()["error"]["slug"] == "queue-full"
    assert int(refused.headers["Retry-After"]) >= 1
    narrow.wait_until(lambda: narrow.metric("albertkit_queue_tokens") == 0)
    assert narrow.post("/fill-mask", {"texts": "[MASK]"}).status_code == 200


def test_a_stopped_worker_is_a_timeout_and_the_work_is_dropped(narrow, texts):
    worker = narrow.worker
    worker.suspend()
    try:
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(lambda n: narrow.post("/fill-mask", {"texts": f"{texts[n]} [MASK]"}), range(3)))
    finally:
        worker.resume()
    assert {answer.status_code for answer in answers} == {504}
    assert {answer.json()["error"]["slug"] for answer in answers} == {"timed-out"}
    assert narrow.metric("albertkit_queue_tokens") == 0
    assert narrow.post("/fill-mask", {"texts": "[MASK]"}).status_code == 200
    assert narrow.metric("albertkit_worker_restarts_total") == 0


def test_a_body_that_never_comes_is_a_timeout(narrow):
    host, port = narrow.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    connection.putrequest("POST", "/fill-mask")
    connection.putheader("Content-Length", "100")
    connection.putheader("Content-Type", "application/json")
    connection.endheaders()
    connection.send(b"{")
    began = time.monotonic()
    assert connection.getresponse().status == 408
    assert time.monotonic() - began > 3


def test_settings_are_checked(tmp_path, monkeypatch):
    for wrong in (
        {"port": -1},
        {"port": 70000},
        {"timeout": 0},
        {"timeout": float("inf")},
        {"timeout": float("nan")},
        {"batch_tokens": -5},
        {"api_key": ""},
        {"api_key": "a\nb"},
    ):
        with pytest.raises(ConfigError) as error:
            ServeSettings(**wrong)
        assert error.value.slug == "bad-value"
    for host in ("0.0.0.0", "::", "example.org", "192.168.0.7"):
        with pytest.raises(ConfigError) as error:
            ServeSettings(host=host)
        assert error.value.slug == "no-api-key"
        assert ServeSettings(host=host, api_key="k").host == ServeSettings(host=host, no_key=True).host == host
    for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        assert ServeSettings(host=host).api_key is None
    assert "secret" not in repr(ServeSettings(api_key="secret"))
    (tmp_path / "key").write_text("secret\n")
    monkeypatch.delenv("ALBERTKIT_API_KEY", raising=False)
    assert find_key(tmp_path / "key") == "secret"
    assert find_key(None) is None
    monkeypatch.setenv("ALBERTKIT_API_KEY", "other")
    assert find_key(None) == "other"


def test_names_of_models(tmp_path):
    (tmp_path / "a=b").mkdir()
    found = named_folders([f"mine={tmp_path}", str(tmp_path / "a=b"), "runs/sst2/best"])
    assert found == {"mine": str(tmp_path), "a=b": str(tmp_path / "a=b"), "best": "runs/sst2/best"}
    for wrong in ([], ["=x"], ["x="], ["m/x", "n/x"]):
        with pytest.raises(ConfigError) as error:
            named_folders(wrong)
        assert error.value.slug == "bad-argument"
