"""What pages of strangers may do through a visitor's browser."""

import pytest
from starlette.testclient import TestClient

from albertkit.serve.app import make_app
from albertkit.serve.connection import Connection
from albertkit.serve.gate import Visitors
from albertkit.serve.options import ServeOptions
from albertkit.serve.service import Models, Service

OWN = {"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:8000"}


def refused(options=None, method="POST", path="/classify", **headers):
    """The slug of the refusal, or None."""
    visitors = Visitors(options or ServeOptions(()))
    refusal = visitors.find_refusal(
        method,
        path,
        {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()},
    )
    assert refusal is None or refusal.status == 403
    return refusal and refusal.slug


@pytest.mark.parametrize(
    "host",
    "127.0.0.1:8000 localhost LOCALHOST:1 [::1]:8000 a.localhost localhost. 127.9.9.9".split(),
)
def test_a_local_service_answers_to_local_names(host):
    assert refused(host=host) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "",
        "10.0.0.1",
    ],
)
def test_a_local_service_answers_to_no_other_name(host):
    """A page of evil.example lets that name point to 127.0.0.1, and asks."""
    for method in ("GET", "POST"):
        assert refused(method=method, host=host) == "not-allowed"
    assert refused(path="/ready", method="GET", host=host) is None  # balancers ask by address


def test_names_that_are_allowed():
    options = ServeOptions((), allow_host=("Example.org",))
    assert refused(options, host="example.org:443") is None
    assert refused(options, host="localhost") is None
    assert refused(options, host="other.org") == "not-allowed"
    assert refused(ServeOptions((), allow_host=("*",)), host="other.org") is None


def test_with_a_key_or_behind_something_else_any_name_will_do(monkeypatch):
    monkeypatch.setenv("ALBERTKIT_API_KEY", "k")
    assert refused(ServeOptions(()), host="example.org") is None
    assert refused(ServeOptions((), allow_host=("a.org",)), host="example.org") == "not-allowed"
    monkeypatch.delenv("ALBERTKIT_API_KEY")
    assert refused(ServeOptions((), host="0.0.0.0", no_key=True), host="example.org") is None


@pytest.mark.parametrize(
    ("headers", "slug"),
    [
        ({}, None),  # no browser
        ({"origin": "http://127.0.0.1:8000"}, None),
        ({"origin": "http://127.0.0.1:9000"}, "not-allowed"),
        ({"origin": "http://evil.example"}, "not-allowed"),
        ({"origin": "null"}, "not-allowed"),
        ({"origin": "http://evil.example", "sec_fetch_site": "cross-site"}, "not-allowed"),
        ({"sec_fetch_site": "same-site"}, "not-allowed"),
        ({"sec_fetch_site": "none"}, None),
        (
            {"origin": "https://proxy.example", "sec_fetch_site": "same-origin"},
            None,
        ),  # a proxy may change the host
    ],
)
def test_pages_of_other_sites_may_not_send(headers, slug):
    assert refused(host="127.0.0.1:8000", **headers) == slug
    # It cannot read the answer
    assert refused(host="127.0.0.1:8000", method="GET", **headers) is None


@pytest.mark.parametrize(
    "origin", "http://[::1 http://a]b http:// :// http://127.0.0.1:8000@evil.example".split()
)
def test_an_origin_that_is_no_address_is_a_strangers(origin):
    assert refused(**{**OWN, "origin": origin}) == "not-allowed"


def test_origins_that_are_allowed():
    options = ServeOptions((), allow_origin=("https://app.example/",))
    headers = {"host": "localhost", "sec_fetch_site": "cross-site"}
    assert refused(options, origin="https://app.example", **headers) is None
    assert refused(options, origin="https://evil.example", **headers) == "not-allowed"


def test_a_strangers_form_and_name_are_refused_over_http(service):
    form = service.upload(b"no video", headers={"Origin": "http://evil.example"})
    name = service.post("/classify", {"texts": "a"}, headers={"Host": "evil.example"})
    for answer in (form, name):
        assert answer.status_code == 403
        assert answer.json()["error"]["slug"] == "not-allowed"
    assert "--allow-host evil.example" in name.json()["error"]["hint"]


def test_redirects_do_not_repeat_the_name_of_the_service():
    """Nor does a path that begins with two slashes lead to another site."""
    options = ServeOptions((), allow_host=("*",))
    with TestClient(make_app(Service(Models({}), options, []))) as client:
        client.follow_redirects = False
        for path in (
            "/",
            "/page",
            "/models/",
            "/v1/models/",
            "//evil.example",
            "/page/tabs",
            "/page/..%2f",
        ):
            answer = client.get(path, headers={"Host": "evil.example"})
            assert answer.status_code in (307, 404), path
            assert "evil" not in answer.headers.get("Location", "")
        assert client.get("/page", follow_redirects=True).url.path == "/page/"


def test_every_answer_says_what_browsers_may_not_do(service):
    for path in ("/health", "/page/", "/openapi.json", "/nowhere", "/models"):
        headers = service.get(path).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]


def test_paths_in_openais_form_do_not_describe_a_status_they_do_not_have(service):
    paths = service.get("/openapi.json").json()["paths"]
    assert "422" not in paths["/v1/embeddings"]["post"]["responses"]
    assert "422" in paths["/classify"]["post"]["responses"]
    assert "Not used" not in str(paths)


def test_answers_leave_through_our_connections():
    """`Connection` stands on whichever parser uvicorn has chosen, and changes what it knows by name."""
    for name in ("connection_made", "data_received", "connection_lost", "send_400_response"):
        assert hasattr(Connection.__mro__[1], name)
