"""What is refused, with which status, slug and hint; which options cannot work; what is loaded and logged."""

import io
import json
import logging
import sys
import unicodedata
import warnings

import pytest

from albertkit.errors import CheckpointError, ConfigError
from albertkit.serve import refusals
from albertkit.serve.logs import REQUESTS, JsonFormatter, PlainFormatter, log_to_stderr
from albertkit.serve.options import ServeOptions
from albertkit.serve.processes import parse_folders
from albertkit.serve.reading import check_json_size, read_body
from albertkit.serve.refusals import ServiceError
from albertkit.serve.schemas import ClassifyRequest, EmbeddingsRequest
from albertkit.tasks.early_exit import check_exits, missing_exits_notes

JSON = {"Content-Type": "application/json"}
LONG = {"texts": "fox [MASK] " * 60}
REFUSED = {
    "not JSON": ("/classify", b"{", 400, "bad-input"),
    "NaN": ("/classify", b'{"texts": [NaN]}', 400, "bad-input"),
    "half a surrogate pair": ("/classify", b'{"texts": ["\\ud800"]}', 400, "bad-input"),
    "no UTF-8": ("/classify", b'{"texts": ["\xff"]}', 400, "bad-input"),
    "nested": ("/classify", b"[" * 100_000, 422, "bad-input"),
    "nothing": ("/classify", b"", 422, "bad-input"),
    "no object": ("/classify", b"null", 422, "bad-input"),
    "no texts": ("/classify", b"{}", 422, "bad-input"),
    "an empty list": ("/classify", b'{"texts": []}', 422, "bad-input"),
    "a misspelt field": ("/classify", b'{"texts": ["a"], "modle": "x"}', 422, "bad-input"),
    "a number": ("/classify", b'{"texts": 1}', 422, "bad-input"),
    "half of a pair": ("/classify", b'{"texts": [" ", ["a"]]}', 422, "bad-input"),
    "too many": ("/classify", json.dumps({"texts": ["a"] * 2049}).encode(), 422, "bad-input"),
    "too long": ("/classify", json.dumps({"texts": ["a" * 100_001]}).encode(), 422, "bad-input"),
    "no mask": ("/fill-mask", b'{"texts": "a"}', 422, "bad-input"),
    "longer than the model reads": ("/fill-mask", json.dumps(LONG).encode(), 422, "too-large"),
    "an impossible number": ("/fill-mask", b'{"texts": "[MASK]", "top": 0}', 422, "bad-input"),
    "a huge number": ("/fill-mask", b'{"texts": "[MASK]", "top": 1e999}', 422, "bad-input"),
    "no model": ("/classify", b'{"texts": ["a"], "model": "nobody"}', 404, "unknown-name"),
    "another kind": ("/classify", b'{"texts": ["a"], "model": "tag"}', 404, "unknown-name"),
    "a pair of three": ("/sentence-order", b'{"pairs": [["a", "b", "c"]]}', 422, "bad-input"),
    "one choice": (
        "/choose",
        b'{"questions": [{"question": "a", "choices": ["b"]}]}',
        422,
        "bad-input",
    ),
    "nothing to choose for": (
        "/choose",
        b'{"questions": [{"choices": ["b", "c"]}]}',
        422,
        "bad-input",
    ),
    "too many cosines": (
        "/similarity",
        json.dumps({"texts": ["a"] * 1001}).encode(),
        422,
        "too-large",
    ),
    "nothing to look at": ("/passes", b'{"text": " "}', 422, "bad-input"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_reported(service, case):
    path, body, *expected = REFUSED[case]
    answer, openai_answer = (
        service.post(to, body, headers=JSON) for to in (path, "/v1/embeddings")
    )
    assert [answer.status_code, answer.json()["error"]["slug"]] == expected
    assert answer.json()["error"].keys() == {"slug", "message", "hint"}
    assert len(answer.content) < 2000  # the input is not sent back
    assert openai_answer.status_code == 400
    assert openai_answer.json()["error"].keys() == {"message", "type", "param", "code"}


IDS = {"model": "pretrained"}


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (
            "/v1/embeddings",
            {"input": [True, False], **IDS},
            "body.input.0: Input should be a valid integer",
        ),
        (
            "/v1/embeddings",
            {"input": ["a"] * 5000, **IDS},
            "body.input: List should have at most 2048 items",
        ),
        ("/v1/embeddings", {"input": 1, **IDS}, "body.input: Input should be a valid string"),
        (
            "/classify",
            {"texts": ["fine", ["a", 3]]},
            "body.texts.1.1: Input should be a valid string",
        ),
        (
            "/classify",
            {"texts": [["a", "b", "c"]]},
            "body.texts.0: List should have at most 2 items",
        ),
        ("/tag", {"texts": [[]]}, "body.texts.0: List should have at least 1 item"),
        ("/decode", {"ids": []}, "body.ids: List should have at least 1 item"),
        ("/decode", {"ids": "a"}, "body.ids: Input should be a valid list"),
    ],
)
def test_an_error_names_the_place_in_the_form_that_was_meant_and_no_types(
    service, path, body, message
):
    error = service.post(path, body).json()["error"]
    assert error["message"].startswith(message)
    assert "; body" not in error["message"]
    assert "constrained" not in error["message"]


WHO = {"question": "Who?", "context": " "}


@pytest.mark.parametrize(
    ("path", "body", "hint"),
    [
        ("/answer", {"questions": [WHO]}, '{"question": "Who wrote it?", "context": "It was'),
        ("/sentence-order", {"pairs": [["", ""]]}, '["The kettle boiled.", "She poured the tea."]'),
        ("/fill-mask", {"texts": "none"}, '"The following example shows how to use the [MASK]."'),
    ],
)
def test_hints_over_http_are_json(service, path, body, hint):
    assert f"for example {hint}" in service.post(path, body).json()["error"]["hint"]


def test_paths_and_methods(service):
    assert service.get("/nowhere").status_code == 404
    assert "/openapi.json" in service.get("/nowhere").json()["error"]["hint"]
    assert service.get("/classify").status_code == 405
    assert service.get("/classify").json()["error"]["slug"] == "bad-input"
    assert service.get("/health").json() == {"status": "alive"}
    assert service.get("/openapi.json").json()["info"]["title"] == "albertkit"
    plain = service.post("/classify", b'{"texts": ["a"]}', headers={"Content-Type": "text/plain"})
    assert plain.status_code == 400  # what a form on a stranger's page can send is not read
    # Which curl -d does not send by itself
    assert "Content-Type: application/json" in plain.json()["error"]["hint"]


SPACES = {"question": "who?", "context": "fox" + " " * 60_000}


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/fill-mask", {"texts": ["[MASK] " * 50] * 50, "top": 50}, 422, "at most "),
        ("/similarity", {"texts": ["a"] * 1001}, 422, "at most "),
        ("/answer", {"questions": [SPACES] * 50, "top": 20}, 422, "at most "),
        ("/tag", {"texts": ["a " * 49_000] * 10}, 413, ""),
    ],
)
def test_an_answer_much_larger_than_its_request_is_refused_before_it_is_computed(
    service, path, body, status, message
):
    before = service.metric("albertkit_tokens_total")
    answer = service.post(path, body)
    assert answer.status_code == status
    assert answer.json()["error"]["slug"] == "too-large"
    assert message in answer.json()["error"]["message"]
    assert service.metric("albertkit_tokens_total") == before


# --- bodies, in this process ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"texts":["a"],%s}' % b",".join(b'"k%d":1' % n for n in range(20_000)), "20,001 keys"),
        (b'{"texts":[%s[]]}' % (b"[]," * 100_000), "100,002 lists"),
        (b'{"texts":[%s{}]}' % (b"{}," * 5_000), "5,002 objects"),
        (b'{"input":[%s1]}' % (b"1," * 700_000), "700,000 items"),
        (b"[" * 100_000, "100,000 levels"),
        (b'{"a":' * 4000, "4,000 levels"),
    ],
    ids="keys lists objects items brackets braces".split(),
)
def test_json_of_a_shape_that_no_request_has_is_refused_unread(body, message):
    with pytest.raises(ServiceError, match=message):
        check_json_size(body)


@pytest.mark.parametrize(
    "text", ["[{," * 30_000, '"[{' * 30_000, "\\" * 30_000, '\\"[' * 20_000, 'a\\\\"{' * 10_000]
)
def test_signs_within_texts_do_not_count(text):
    body = json.dumps({"texts": [text]}).encode()
    check_json_size(body)
    assert read_body(body, ClassifyRequest).texts == [text]


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b'{"texts": ["a"], "model": "m", "texts": ["b"]}', "texts"),
        (b'{"texts": ["a: b"], "model": "m", "m\\u006fdel": "n"}', "model"),
        (
            b'{"questions": [{"question": "Who: he?", "question": "Who?", "context": "He."}]}',
            "question",
        ),
        (b'{"texts": [%s], "texts": ["b"]}' % b",".join([b'"a: b"'] * 2000), "texts"),
    ],
)
def test_a_key_twice_in_an_object_is_refused_by_its_name(body, key):
    with pytest.raises(ServiceError, match=f"`{key}` occurs twice in an object") as refused:
        read_body(body, ClassifyRequest)
    assert refused.value.status == 400


def test_colons_within_texts_are_no_keys():
    texts = ["a: b", '"texts": 1, "texts": 2', "9" * 5000]
    assert (
        read_body(json.dumps({"texts": texts, "model": "m:n"}).encode(), ClassifyRequest).texts
        == texts
    )


def test_the_largest_requests_that_are_allowed_are_read():
    rows = [[7] * 270] * refusals.MAX_TEXTS
    body = json.dumps({"model": "m", "input": rows}, separators=(",", ":")).encode()
    assert read_body(body, EmbeddingsRequest).input == rows
    pairs = [["a", "b"]] * refusals.MAX_TEXTS
    assert read_body(json.dumps({"texts": pairs}).encode(), ClassifyRequest).texts == pairs
    refusals.check_answer_numbers(refusals.MAX_NUMBERS)
    with pytest.raises(ServiceError, match="at most 2,000,000 are sent"):
        refusals.check_answer_numbers(refusals.MAX_NUMBERS + 1)


# --- options, models, logs ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            ("port", -1),
            ("port", 70000),
            ("timeout", 0),
            ("timeout", float("inf")),
            ("timeout", float("nan")),
        ),
        ("batch_tokens", -5),
    ],
)
def test_values_that_cannot_work(name, value):
    with pytest.raises(ConfigError, match=r"\[bad-value\]"):
        ServeOptions((), **{name: value})


def test_keys(tmp_path, monkeypatch):
    monkeypatch.delenv("ALBERTKIT_API_KEY", raising=False)
    key = tmp_path / "key"
    for wrong in ("", "a\nb"):
        key.write_text(wrong)
        with pytest.raises(ConfigError, match=r"\[bad-value\]"):
            ServeOptions((), api_key_file=key)
    key.write_text("secret\n")
    assert (
        ServeOptions((), api_key_file=key).api_key
        == ServeOptions((), api_key_file=str(key)).api_key
        == "secret"
    )
    with pytest.raises(ConfigError, match="port is '8000', it must be a whole number"):
        ServeOptions((), port="8000")
    assert "secret" not in repr(ServeOptions((), api_key_file=key))
    for host in ("0.0.0.0", "::", "example.org", "192.168.0.7"):
        with pytest.raises(ConfigError, match=r"\[not-allowed\]"):
            ServeOptions((), host=host)
        for allowed in ({"api_key_file": key}, {"no_key": True}):
            assert ServeOptions((), host=host, **allowed).host == host
    for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        assert ServeOptions((), host=host).api_key is None
    monkeypatch.setenv("ALBERTKIT_API_KEY", "other")
    assert ServeOptions(()).api_key == "other"
    assert ServeOptions((), api_key_file=key).api_key == "secret"
    monkeypatch.setenv("ALBERTKIT_API_KEY", " other ")  # nobody can send blanks around a key
    assert ServeOptions(()).api_key == "other"
    monkeypatch.setenv("ALBERTKIT_API_KEY", " ")
    with pytest.raises(ConfigError, match="into ALBERTKIT_API_KEY"):
        ServeOptions(())


def test_names_of_models(tmp_path):
    (tmp_path / "a=b").mkdir()
    folders = parse_folders([f"mine={tmp_path}", str(tmp_path / "a=b"), "runs/sst2/best"])
    assert folders == {
        "mine": str(tmp_path),
        "a=b": str(tmp_path / "a=b"),
        "best": "runs/sst2/best",
    }
    for wrong in ([], ["=x"], ["x="], ["m/x", "n/x"]):
        with pytest.raises(ConfigError, match=r"\[bad-value\]"):
            parse_folders(wrong)


def test_early_exit_of_models_without_exits_is_refused(folders, tmp_path):
    without = str(folders["classify"])
    with pytest.raises(CheckpointError, match=r"\[wrong-model\]"):
        check_exits([without], "patience:1")
    (tmp_path / "exits.safetensors").touch()
    check_exits([without, str(tmp_path)], "patience:1")
    assert missing_exits_notes(without, "patience:1") == [
        "trained without exits: all layers are run"
    ]
    assert missing_exits_notes(without, None) == missing_exits_notes(tmp_path, "patience:1") == []


REQUEST = {
    "client": "1.2.3.4",
    "method": "POST",
    "path": "/x",
    "status": 200,
    "ms": 3.5,
    "model": "a",
    "tokens": 7,
}
LISTENING = {"url": "http://127.0.0.1:8000", "models": ["a", "b"]}


@pytest.mark.parametrize(
    ("message", "level", "extra", "line"),
    [
        (
            "listening",
            logging.INFO,
            LISTENING,
            "serving a, b; open http://127.0.0.1:8000 as soon as it is ready",
        ),
        (
            "request",
            logging.INFO,
            {**REQUEST, "request_id": "i"},
            "1.2.3.4 POST /x 200 3.5 ms a 7 tokens",
        ),
        ("it died", logging.ERROR, {"status": -9}, "error: it died status=-9"),
    ],
)
def test_a_terminal_shows_lines(message, level, extra, line):
    record = logging.LogRecord("albertkit.serve", level, "", 1, message, None, None)
    vars(record).update(extra)
    assert PlainFormatter().format(record).split(" ", 1)[1] == line


FORGED = "/x\n12:00:00 ready\r\x1b[2J\x9b2J\x7f\u202e\u2028\ud800 \x85é한"


@pytest.mark.parametrize(
    "formatter",
    [
        PlainFormatter(),
        JsonFormatter(),
    ],
)
@pytest.mark.parametrize("message", ["request", "other"])
def test_words_of_a_client_neither_forge_a_line_nor_reach_the_terminal(formatter, message):
    """In the path, in a traceback, and in the message of a library."""
    try:
        raise ValueError(FORGED)
    except ValueError:
        caught = sys.exc_info()
    logged = [
        logging.LogRecord("x", logging.WARNING, "", 1, text, None, None)
        for text in (message, FORGED, message)
    ]
    vars(logged[0]).update({**REQUEST, "path": FORGED, "client": FORGED})
    logged[1].exc_info = caught
    vars(logged[2]).update({**REQUEST, "trace": FORGED})
    for record in logged:
        first, *lines = formatter.format(record).split("\n")
        assert all(line.startswith("    ") for line in lines)
        assert all(
            unicodedata.category(sign)[0] != "C" for line in (first, *lines) for sign in line
        )
        assert not {"\u2028", "\u2029"} & set("".join(lines) + first)


def test_what_libraries_warn_of_is_logged_as_everything_else(monkeypatch):
    """python-multipart repeats bytes of a body; a logger that nobody has set up writes bare lines."""
    monkeypatch.setattr(logging, "lastResort", None)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr("sys.stderr", stream := io.StringIO())
    log_to_stderr()
    logging.getLogger("python_multipart.multipart").warning("Did not find %r", "\x1b\n")
    warnings.warn("strange", stacklevel=1)
    messages = [json.loads(line)["message"] for line in stream.getvalue().splitlines()]
    assert messages[0] == "Did not find '\\x1b\\n'"
    assert "strange" in messages[1]


@pytest.mark.parametrize(
    ("is_terminal", "level", "is_logged"),
    [
        (True, None, False),
        (True, "info", True),
        (False, None, True),
        (False, "error", False),
    ],
)
def test_requests_are_logged_to_files_and_where_asked(monkeypatch, is_terminal, level, is_logged):
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal, raising=False)
    log_to_stderr(level)
    assert logging.getLogger(REQUESTS).isEnabledFor(logging.INFO) == is_logged


def test_compiling_is_logged_as_json(capsys):
    """On a machine that has just been installed the front compiles, which the command line prints as a plain line."""
    log = logging.getLogger("albertkit.jit")
    log.addHandler(logging.StreamHandler(sys.stderr))
    log_to_stderr()
    log.info("compiling loops")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == "compiling loops"


# --- the command ----------------------------------------------------------------------------------


def test_help_names_every_option(run_command):
    help_text = run_command("serve", "--help").out
    for flag in (
        "--host",
        "--port",
        "--api-key-file",
        "--batch-tokens",
        "--timeout",
        "--max-upload-megabytes",
    ):
        assert flag in help_text


@pytest.mark.parametrize(
    ("arguments", "slug"),
    [
        ((), "bad-command-line"),
        (("model", "--host", "0.0.0.0"), "not-allowed"),
        (("model", "--timeout", "0"), "bad-value"),
        (("model", "--api-key-file", "no-such-file"), "not-found"),
        (("no-such-model",), "not-found"),
    ],
)
def test_mistakes_are_reported_without_a_traceback(run_command, monkeypatch, arguments, slug):
    monkeypatch.delenv("ALBERTKIT_API_KEY", raising=False)
    process = run_command("serve", *arguments, "--port", "0")
    assert process.status == 2
    assert process.err.startswith(f"error[{slug}]")
