"""Requests that nobody sends by mistake, and those that schemathesis makes of the service's own description."""

import json
import random
import string

import hypothesis
import psutil
import pytest

TYPES = [
    *(
        "application/json",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
    ),
    *("", "é".encode()),
]
PATHS = [
    "/fill-mask", "/sentence-order", "/classify", "/score", "/tag", "/answer", "/choose", "/similarity", "/passes",
    "/caption", "/v1/embeddings", "/v1/models", "/v1/models/x", "/models", "/nowhere", "/page/../../x", "/%00",
    "/page/%2e%2e/app.py",
]  # fmt: skip
SETTINGS = hypothesis.settings(
    derandomize=True, database=None, suppress_health_check=list(hypothesis.HealthCheck)
)
NAMES = (
    "texts pairs questions top model text input others question context choices dimensions".split()
)
TEXTS = [
    "", " ", "\x00", "[MASK]", "[CLS][SEP]", "the [MASK] fox " * 40, "\u202e", "é\u0301" * 50, "\U0001f600" * 300, "﷽" * 100,
    "a" * 5000, "\ufffe\uffff", "{{7*7}}", "<script>", "\r\n\r\n", "ﬁ①Ⅳ", "서울에서 온", "\u200b", "-1", "nan",
]  # fmt: skip


def value(rng, depth=0):
    """A JSON value of any shape."""
    kind = rng.random()
    if depth < 4 and kind < 0.3:
        return [value(rng, depth + 1) for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 40]))]
    if depth < 3 and kind < 0.45:
        return {rng.choice(NAMES): value(rng, depth + 1) for _ in range(rng.randint(0, 3))}
    if kind < 0.85:
        return rng.choice(TEXTS)
    return rng.choice(
        [0, 1, -1, 2**31, 2**63, 10**40, 1.5, 1e308, True, None, float("nan"), float("inf")]
    )


def likely(rng, path):
    """What an endpoint takes, of unlikely texts."""
    texts = rng.choices(TEXTS, k=rng.choice([1, 2, 2, 3]))
    question = {"question": texts[0], "context": texts[-1]}
    bodies = {
        "/sentence-order": {"pairs": [texts[:2]]},
        "/answer": {"questions": [question]},
        "/passes": {"text": texts[0]},
        "/choose": {"questions": [{**question, "choices": texts}]},
        "/v1/embeddings": {"input": texts, "model": "pretrained"},
    }
    return bodies.get(path, {"texts": texts})


def body(rng, path):
    """A body: what is taken, a likely object of unlikely values, JSON with a fault, or bytes."""
    kind = rng.random()
    if kind < 0.4:
        return json.dumps(likely(rng, path)).encode()
    if kind < 0.7:
        fields = {rng.choice(NAMES): value(rng) for _ in range(rng.randint(1, 3))} | {
            rng.choice(NAMES[:7]): value(rng)
        }
        return json.dumps(fields, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    if kind < 0.9:
        text = json.dumps({"texts": value(rng)}).encode()
        at = rng.randrange(len(text))
        return text[:at] + bytes([rng.randrange(256)]) + text[at + rng.randint(0, 5) :]
    return rng.randbytes(rng.choice([0, 1, 100, 10_000]))


def attack(service, count, seed):
    """Statuses of hostile requests."""
    rng = random.Random(seed)
    statuses = set()
    with service.client() as client:
        for number in range(count):
            headers = {"Content-Type": rng.choice(TYPES) if rng.random() < 0.2 else TYPES[0]}
            if rng.random() < 0.05:
                headers["X-Request-Id"] = "".join(
                    rng.choices(string.printable.strip(), k=rng.choice([1, 200, 3000]))
                )
            method = (
                "POST"
                if rng.random() < 0.95
                else rng.choice("GET PUT DELETE HEAD OPTIONS PATCH".split())
            )
            path = rng.choice(PATHS)
            content = body(rng, path)
            answer = client.request(method, path, content=content, headers=headers)
            assert answer.status_code < 500, (number, method, path, headers, content, answer.text)
            if answer.status_code >= 400 and method == "POST":
                assert answer.json()["error"]["message"]
            elif answer.status_code == 200 and method == "POST":
                answer.json()
            statuses.add(answer.status_code)
    return statuses


def test_hostile_requests(service):
    statuses = attack(service, 200, 0)
    assert {200, 400, 404, 405, 422} <= statuses
    assert service.get("/ready").status_code == 200


@pytest.mark.slow
def test_ten_thousand_hostile_requests_leave_no_trace(service):
    processes = [psutil.Process(service.process.pid), service.worker]
    attack(service, 1000, 1)  # what is loaded at first use
    before = [process.memory_info().rss for process in processes]
    restarts = service.metric("albertkit_worker_restarts_total")
    attack(service, 9000, 2)
    grown = [
        process.memory_info().rss - old for process, old in zip(processes, before, strict=True)
    ]
    assert max(grown) < 60e6, grown
    assert service.worker.pid == processes[1].pid
    assert service.metric("albertkit_worker_restarts_total") == restarts
    assert len(service.get("/metrics").content) < 100_000  # nobody makes up names of counters


def test_the_description_says_what_texts_must_hold(service):
    schemas = service.get("/openapi.json").json()["components"]["schemas"]
    listed = schemas["FillMaskRequest"]["properties"]["texts"]["oneOf"]
    assert [form.get("items", form)["pattern"] for form in listed] == [r"\[MASK\]"] * 2
    for request, field in (
        ("Question", "context"),
        ("Choices", "choices"),
        ("SentenceOrderRequest", "pairs"),
    ):
        assert r'"pattern": "\\S"' in json.dumps(schemas[request]["properties"][field])


def test_the_service_is_as_it_says(service):
    """A few requests for each endpoint, made of what the description allows."""
    check(service, 10)


@pytest.mark.slow
def test_the_service_is_as_it_says_at_length(service):
    check(service, 300)


def check(service, examples):
    # Here, for it takes a second: one worker needs it, all would import it
    import schemathesis
    from schemathesis import checks
    from schemathesis.specs.openapi.checks import (
        response_schema_conformance,
        status_code_conformance,
    )

    required = [checks.not_a_server_error, status_code_conformance, response_schema_conformance]
    schema = schemathesis.openapi.from_url(f"{service.url}/openapi.json")
    tried = 0
    for result in schema.get_all_operations():
        operation = result.ok()

        @hypothesis.given(case=operation.as_strategy())
        @hypothesis.settings(SETTINGS, max_examples=examples)
        def conforms(case):
            case.call_and_validate(checks=required, timeout=120)

        conforms()
        tried += 1
    assert tried >= 16
