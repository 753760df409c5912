"""What comes over HTTP is what the pipelines say in this process, whoever else asks at the same time."""

import base64
import io
import itertools
import tempfile
import wave
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.testing import assert_allclose
from PIL import Image

from albertkit.pipelines.layers import trace_layers

QUESTIONS = [
    {"question": "who jumps?", "context": "the quick brown fox jumps over a lazy dog " * 12},
    {"question": "what brew wizards?", "context": "seven old wizards brew strong potions"},
]
CHOICES = [
    {"context": "seven old wizards", "question": "brew", "choices": ["potions", "rivers", "dog"]},
    {"context": "", "question": "the fox", "choices": ["jumps", "lazy"]},
]
CASES = {
    "fill-mask": (
        {"texts": ["the [MASK] fox", "a [MASK] [MASK] dog over"], "top": 3},
        "pretrained",
        {"top": 3},
    ),
    "sentence-order": (
        {"pairs": [["the fox", "jumps"], ["calm", "rivers near"]]},
        "pretrained",
        {},
    ),
    "classify": (
        {"texts": ["the fox", ["old wizards", "a dog"], "over " * 200], "truncate": True},
        "classify",
        {},
    ),
    "score": ({"texts": ["the fox", ["old wizards", "a dog"]]}, "score", {}),
    "tag": ({"texts": ["the quick, brown fox!", ["seven", "old", "wizards"]]}, "tag", {}),
    "answer": ({"questions": QUESTIONS, "top": 2}, "answer", {"top": 2}),
    "choose": ({"questions": CHOICES}, "choose", {}),
}


def assert_same(actual, expected):
    """Numbers to 1e-4, everything else exactly."""
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for name in expected:
            assert_same(actual[name], expected[name])
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected)
        for actual_item, expected_item in zip(actual, expected, strict=True):
            assert_same(actual_item, expected_item)
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, abs=1e-4)
    else:
        assert actual == expected


@pytest.mark.parametrize("kind", CASES)
def test_as_in_this_process(service, pipeline_of, kind):
    body, name, options = CASES[kind]
    values = next(value for field, value in body.items() if field != "top")
    pipeline = pipeline_of(name, kind)
    expected = pipeline(
        [tuple(v) if isinstance(v, list) and kind != "tag" else v for v in values], **options
    )
    answer = service.post(f"/{kind}", body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == name
    results = answer.json()["results"]
    if kind not in ("fill-mask", "tag"):
        features = pipeline.features([pipeline.parse(value) for value in values])
        assert sum(row.pop("tokens") for row in results) == features.offsets[-1]
        assert [row.pop("truncated") for row in results] == features.left_out.tolist()
        assert [row.pop("truncated", 0) for row in expected] == features.left_out.tolist()
    assert_same(results, expected)
    with pytest.raises(AssertionError):  # the comparison can fail
        assert_same(results[::-1], expected)


LONG = "over " * 200
TOO_LONG = {
    "/v1/embeddings": {"input": ["the fox", LONG], "model": "pretrained"},
    "/similarity": {"texts": ["the fox"], "others": [LONG]},
    "/classify": {"texts": ["the fox", LONG]},
    "/score": {"texts": ["the fox", LONG]},
    "/sentence-order": {"pairs": [["the fox", "jumps"], ["the fox", LONG]]},
    "/choose": {
        "questions": [CHOICES[0], {"context": LONG, "question": "brew", "choices": ["dog", "fox"]}]
    },
    "/answer": {"questions": [QUESTIONS[0], {"question": LONG, "context": "seven old wizards"}]},
}


@pytest.mark.parametrize("path", TOO_LONG)
def test_a_text_that_is_too_long_is_refused_or_cut_as_asked(service, path):
    refused = service.post(path, TOO_LONG[path])
    error = refused.json()["error"]
    if path == "/v1/embeddings":
        assert refused.status_code == 400
        assert error["code"] == "too_large"
    else:
        assert refused.status_code == 422
        assert error["slug"] == "too-large"
    assert "text 1 has " in error["message"]
    cut = service.post(path, {**TOO_LONG[path], "truncate": True})
    assert cut.status_code == 200
    if path not in ("/v1/embeddings", "/similarity"):
        short, long = cut.json()["results"]
        assert short["truncated"] == 0 < long["truncated"]


def test_token_ids_beyond_the_models_length_are_refused_or_cut(service):
    body = {"input": [[7] * 10, [7] * 100], "model": "pretrained"}
    assert "text 1 has 102 tokens, 64 of them are read" in service.post("/v1/embeddings", body).text
    cut = service.post("/v1/embeddings", {**body, "truncate": True}).json()
    assert cut["usage"]["prompt_tokens"] == 12 + 64


def test_vectors_have_the_digits_of_fp32(service):
    body = {"input": "the quick fox", "model": "pretrained"}
    numbers = (
        service.post("/v1/embeddings", body).text.split('"embedding":[')[1].split("]")[0].split(",")
    )
    exact = service.post("/v1/embeddings", {**body, "encoding_format": "base64"}).json()["data"][0][
        "embedding"
    ]
    np.testing.assert_array_equal(
        np.array(numbers, np.float32), np.frombuffer(base64.b64decode(exact), "<f4")
    )
    assert max(len(number.lstrip("-0.").replace(".", "")) for number in numbers) <= 9


def test_one_text_without_a_list(service):
    alone, listed = (
        service.post("/fill-mask", {"texts": t}).json()
        for t in ("the [MASK] fox", ["the [MASK] fox"])
    )
    assert alone == listed


def test_a_model_by_its_name(service):
    body = {"texts": ["the fox"]}
    assert (
        service.post("/classify", {**body, "model": "classify"}).json()
        == service.post("/classify", body).json()
    )
    wrong = {**body, "model": "score"}
    assert service.refusal("/classify", wrong) == (404, "unknown-name")
    assert "classify" in service.post("/classify", wrong).json()["error"]["hint"]


def test_similarity(service, pipeline_of, texts):
    pipeline = pipeline_of("pretrained", "embed")
    for options in ({"others": texts[5:8]}, {}):
        cosines = service.post("/similarity", {"texts": texts[:5], **options}).json()["results"]
        assert_allclose(cosines, pipeline.similarity(texts[:5], *options.values()), atol=1e-5)
    assert_allclose(np.diag(cosines), 1, atol=1e-5)


def test_a_look_inside(service, pipeline_of):
    pipeline = pipeline_of("pretrained")
    expected = trace_layers(pipeline.model, pipeline.tokenizer, "the [MASK] fox")
    trace = service.post("/passes", {"text": "the [MASK] fox"}).json()
    assert trace.pop("model") == "pretrained"
    assert_allclose(np.abs(trace.pop("states_2d")), np.abs(expected.pop("states_2d")), atol=1e-3)
    assert_same(trace, expected)
    assert (
        service.post("/passes", {"text": "the fox", "model": "tag"}).json()["predictions"] is None
    )


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    import av

    file = tmp_path_factory.mktemp("clip") / "clip.mp4"
    rng = np.random.default_rng(0)
    with av.open(str(file), "w") as container:
        stream = container.add_stream("mpeg4", rate=8)
        stream.width = stream.height = 64
        for _ in range(16):
            for packet in stream.encode(
                av.VideoFrame.from_ndarray(rng.integers(0, 255, (64, 64, 3), np.uint8))
            ):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return file


def test_captions_of_an_upload(service, pipeline_of, clip):
    expected = pipeline_of("caption")(clip, num_captions=2, num_beams=4)
    answer = service.upload(clip.read_bytes(), data={"num_captions": "2"})
    assert answer.status_code == 200, answer.text
    assert_same(answer.json(), {"model": "caption", "results": [expected]})
    assert len(expected["captions"]) == 2


def test_captions_with_a_contact_sheet(service, pipeline_of, clip):
    captions = pipeline_of("caption")(clip)["captions"]
    answer = service.upload(clip.read_bytes(), data={"sheet": "true"})
    (result,) = answer.json()["results"]
    assert_same(result["captions"], captions)
    with Image.open(io.BytesIO(base64.b64decode(result["sheet"]))) as picture:
        assert picture.format == "PNG"
        assert picture.width > 500


def test_an_upload_that_is_no_video_is_named_as_the_client_named_it(service, tmp_path):
    sound = tmp_path / "sound.wav"
    with wave.open(str(sound), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(8000))
    for content in (sound.read_bytes(), b"", b"no video " * 1000):
        answer = service.upload(content, "holiday.mp4")
        assert answer.status_code == 422, answer.text
        assert "holiday.mp4" in answer.json()["error"]["message"]
        assert tempfile.gettempdir() not in answer.text


def test_64_clients_at_once_get_their_own_answers_from_shared_batches(service, pipeline_of, texts):
    expected = np.stack([row["embedding"] for row in pipeline_of("pretrained", "embed")(texts)])
    before = {
        name: service.metric(f"albertkit_{name}")
        for name in ("batch_requests_sum", "batch_requests_count")
    }

    def ask(client, number):  # one text, or several, in an order of their own
        numbers = [number] if number % 3 else [number, (number * 7) % 200, (number + 1) % 200]
        body = {"input": [texts[n] for n in numbers], "model": "pretrained"}
        data = client.post("/v1/embeddings", json=body).json()["data"]
        assert_allclose([row["embedding"] for row in data], expected[numbers], atol=1e-4)
        return len(data)

    with service.client() as client, ThreadPoolExecutor(64) as pool:
        counts = list(pool.map(ask, itertools.repeat(client), range(200)))
    assert sum(counts) == 200 + 2 * 67
    requests, batches = (service.metric(f"albertkit_{name}") - old for name, old in before.items())
    assert requests >= 200
    assert requests > batches  # some share one; how many depends on the machine


def test_a_large_request_and_a_small_one(service, pipeline_of, texts):
    expected = [[*record["probabilities"].values()] for record in pipeline_of("classify")(texts)]
    with ThreadPoolExecutor(2) as pool:
        large = pool.submit(service.post, "/classify", {"texts": texts * 10})
        small = service.post("/classify", {"texts": texts[:2]})
    for answer, rows in ((small, expected[:2]), (large.result(), expected * 10)):
        shares = [[*result["probabilities"].values()] for result in answer.json()["results"]]
        assert_allclose(shares, rows, atol=1e-4)


def test_texts_are_ranked_by_the_score_of_their_pair_with_the_query(service, pipeline_of, texts):
    pairs = [("the fox", text) for text in texts[:6]]
    scores = np.array([row["value"] for row in pipeline_of("score")(pairs)])
    body = {"query": "the fox", "texts": texts[:6], "return_text": True, "raw_scores": True}
    ranks = service.post("/rerank", body).json()
    assert [row["index"] for row in ranks] == np.argsort(-scores, kind="stable").tolist()
    raw_scores = np.array([row["score"] for row in ranks])
    assert_allclose(1 / (1 + np.exp(-raw_scores)), np.sort(scores)[::-1], atol=1e-4)
    assert [row["text"] for row in ranks] == [texts[row["index"]] for row in ranks]
    assert (
        service.post("/rerank", {"query": "a", "texts": ["b", LONG]}).json()["error"]["slug"]
        == "too-large"
    )


def test_tokens_with_their_places(service, pipeline_of):
    tokenizer = pipeline_of("classify").tokenizer
    text = "Calm  rivers, the quick fox"
    plain = service.post(
        "/tokenize", {"inputs": text, "model": "classify", "add_special_tokens": False}
    ).json()[0]
    assert [row["id"] for row in plain] == tokenizer.encode(text)
    assert [(row["start"], row["stop"]) for row in plain] == [
        tuple(p) for p in tokenizer.encode_with_offsets(text)[1]
    ]
    with_special = service.post("/tokenize", {"inputs": [text, ""], "model": "classify"}).json()
    assert with_special[0][1:-1] == plain
    assert [(row["id"], row["special"]) for row in with_special[1]] == [
        (tokenizer.cls_id, True),
        (tokenizer.sep_id, True),
    ]


def test_limits_are_told(service, folders):
    info = service.get("/info").json()
    assert info["models"] == list(folders)
    assert info["max_payload_bytes"] == 4_000_000
    assert info["max_batch_tokens"] == 4096


def test_what_is_served(service, folders):
    models = {model["name"]: model for model in service.get("/models").json()["models"]}
    assert list(models) == list(folders)
    assert models["pretrained"]["kinds"] == ["fill-mask", "sentence-order", "embed", "passes"]
    assert models["caption"]["kinds"] == ["caption"]
    assert {model["precision"] for model in models.values()} == {"fp32"}
    for kind in ("classify", "tag", "score", "answer", "choose"):
        field = "questions" if kind in ("answer", "choose") else "texts"
        assert (
            service.post(f"/{kind}", {field: [models[kind]["examples"][kind]]}).status_code == 200
        )


def test_the_page(service):
    with service.client(follow_redirects=True) as client:
        page = client.get("/")
        assert page.url.path == "/page/"
        assert page.headers["Content-Type"].startswith("text/html")
        assert "<title>albertkit</title>" in page.text
        assert client.get("/page/main.js").headers["Content-Type"].startswith("text/javascript")


def test_requests_are_logged_and_numbered(service):
    def number(request_id):
        answer = service.post(
            "/classify", {"texts": ["the fox"]}, headers={"X-Request-Id": request_id}
        )
        return answer.headers["X-Request-Id"]

    assert number("mine-7") == "mine-7"
    odd = number("a b;c")
    assert len(odd) == 32
    service.wait_until(
        lambda: {"mine-7", odd} <= {line.get("request_id") for line in service.lines}
    )
    line = next(line for line in service.lines if line.get("request_id") == "mine-7")
    expected = {
        "method": "POST",
        "path": "/classify",
        "status": 200,
        "tokens": 4,
        "model": "classify",
    }
    assert {**expected, "client": "127.0.0.1"}.items() <= line.items()
    assert line["ms"] > 0
    assert [line for line in service.lines if "not JSON" in line] == []
    assert not [
        line for line in service.lines if line.get("path") in ("/health", "/ready", "/metrics")
    ]
