"""Odd requests, and a machine that is short of something: every answer is JSON in our form. The app runs in this process."""

import codecs
import errno
import os

import pytest
from starlette import formparsers
from starlette.testclient import TestClient

from albertkit.serve import gate, routes
from albertkit.serve.app import make_app
from albertkit.serve.options import ServeOptions
from albertkit.serve.service import Models, Service

TEXTS = b'{"texts": ["a"]}'
VIDEO = {"file": ("a.mp4", bytes(2_000_000))}


def make_client(**options):
    """A client of a service without models: what it refuses for that (404) was read."""
    app = make_app(Service(Models({}), ServeOptions((), allow_host=("*",), **options), []))

    @app.get("/panic")
    async def panic():
        raise type("PanicException", (BaseException,), {})("a library of Rust failed")

    return TestClient(app)


def slug_of(answer):
    assert answer.headers["Content-Type"] == "application/json"
    error = answer.json()["error"]
    assert error.keys() == {"slug", "message", "hint"}
    return answer.status_code, error["slug"]


@pytest.mark.parametrize(
    ("body", "headers", "refusal"),
    [
        (TEXTS, {"Content-Type": "application/json"}, (404, "unknown-name")),
        (codecs.BOM_UTF8 + TEXTS, {"Content-Type": "application/json"}, (404, "unknown-name")),
        (TEXTS, {"Content-Type": "text/json"}, (404, "unknown-name")),
        (TEXTS, {"Content-Type": "Text/JSON; charset=utf-8"}, (404, "unknown-name")),
        (TEXTS, {"Content-Type": "application/vnd.api+json"}, (404, "unknown-name")),
        (
            TEXTS,
            {"Content-Type": "application/json", "Content-Encoding": "identity"},
            (404, "unknown-name"),
        ),
        (
            TEXTS,
            {"Content-Type": "application/json", "Content-Encoding": "gzip"},
            (415, "unsupported"),
        ),
        (TEXTS, {"Content-Type": "text/plain"}, (400, "bad-input")),
        (TEXTS, {}, (400, "bad-input")),
    ],
)
def test_a_body_is_read_or_the_cause_is_named(body, headers, refusal):
    with make_client() as client:
        answer = client.post("/classify", content=body, headers=headers)
    assert slug_of(answer) == refusal
    cause = (
        headers.get("Content-Encoding")
        if refusal[0] == 415
        else headers.get("Content-Type", "nothing")
    )
    assert refusal[0] == 404 or cause in answer.json()["error"]["message"]


@pytest.mark.parametrize("value", "bytes=9-1 bytes=a lines=1-2 bytes=999999999- bytes=0-1".split())
def test_a_range_is_not_looked_at(value):
    with make_client() as client:
        answers = [
            client.get("/page/main.js", headers=headers) for headers in ({}, {"Range": value})
        ]
    assert answers[0].status_code == answers[1].status_code == 200
    assert answers[0].content == answers[1].content


def test_a_panic_is_an_answer():
    with make_client() as client:
        assert slug_of(client.get("/panic")) == (500, "internal-error")
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    "target",
    [
        (formparsers, "SpooledTemporaryFile"),
        (routes, "NamedTemporaryFile"),
    ],
)
def test_a_full_disk_of_uploads_is_named(target, monkeypatch):
    monkeypatch.setattr(*target, lambda *_, **__: open("/dev/full", "wb", buffering=0))  # noqa: SIM115 (its user closes it)
    with make_client() as client:
        answer = client.post("/caption", files=VIDEO)
    assert slug_of(answer) == (507, "disk-full")
    assert answer.headers["Retry-After"]


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM])
def test_want_of_descriptors_or_memory_is_named(code, monkeypatch):
    def refuse(*_, **__):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(routes, "NamedTemporaryFile", refuse)
    with make_client() as client:
        answer = client.post("/caption", files=VIDEO)
    assert slug_of(answer) == (503, "busy")
    assert answer.headers["Retry-After"]


def test_the_sum_of_uploads_is_bounded(monkeypatch):
    monkeypatch.setattr(gate, "MAX_UPLOADS", 0.1)
    with make_client(max_upload_megabytes=10) as client:
        answer = client.post("/caption", files=VIDEO)
        assert slug_of(answer) == (429, "busy")
        assert answer.headers["Retry-After"]
        assert slug_of(client.post("/caption", files={"file": ("a.mp4", b"small")})) == (
            404,
            "unknown-name",
        )


@pytest.mark.parametrize("charset", "undefined idna base64 rot13 none-such utf-16".split())
def test_a_form_of_any_charset_is_answered(charset):
    body = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n\xff\xfea\r\n--b--\r\n'
    headers = {"Content-Type": f"multipart/form-data; boundary=b; charset={charset}"}
    with make_client() as client:
        status, slug = slug_of(client.post("/caption", content=body, headers=headers))
    assert status in (400, 422)
    assert slug == "bad-input"


def test_a_form_has_each_field_once():
    with make_client() as client:
        answer = client.post("/caption", files=VIDEO, data={"num_captions": ["1", "2"]})
    assert slug_of(answer) == (400, "bad-input")
    assert "`num_captions` occurs twice" in answer.json()["error"]["message"]


def test_a_form_has_one_video():
    with make_client() as client:
        answer = client.post("/caption", files=[("file", ("a.mp4", b"a"))] * 2)
    assert slug_of(answer) == (400, "bad-input")
