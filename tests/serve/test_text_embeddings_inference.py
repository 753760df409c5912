"""text-embeddings-inference's endpoints: its shapes, transformers' and sentence-transformers' numbers."""

from functools import partial

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from albertkit.serve.service import Models
from albertkit.tokenizer import AlbertTokenizer

TEXT = "the quick fox"
PAIR = ["the quick fox", "a lazy dog"]


@pytest.fixture(scope="module")
def encoder(folders, tmp_path_factory):
    """The folder of a sentence encoder with a prompt, written by sentence-transformers."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    folder = tmp_path_factory.mktemp("tei") / "encoder"
    albert = Transformer(str(folders["pretrained"]), max_seq_length=32)
    encoder = SentenceTransformer(
        modules=[albert, Pooling(64, "mean")], prompts={"query": "seven wizards "}
    )
    encoder.save(str(folder))
    return folder


@pytest.fixture(scope="module")
def served(encoder, folders, services):
    """The first model is a classifier, that of the other files' service an encoder."""
    return services(folders["classify"], encoder, folders["score"])


@pytest.fixture(scope="module")
def theirs(encoder):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(encoder), device="cpu")


@pytest.fixture
def vectors_of(served):
    return lambda inputs, **options: served.post("/embed", {"inputs": inputs, **options}).json()


assert_near = partial(np.testing.assert_allclose, atol=1e-5)


def logits_of(folder, values):
    """transformers' logits of texts and pairs."""
    model = transformers.AlbertForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AlbertTokenizer.from_pretrained(folder)
    rows = []
    for value in values:
        inputs = tokenizer(*([value] if isinstance(value, str) else value), return_tensors="pt")
        with torch.no_grad():
            rows.append(model(**inputs).logits[0])
    return torch.stack(rows)


@pytest.mark.parametrize("inputs", [TEXT, [TEXT], ["a dog", "", "seven old wizards " * 3]])
def test_vectors_are_of_length_1_unless_asked_otherwise(vectors_of, theirs, inputs):
    plain = theirs.encode([inputs] if isinstance(inputs, str) else inputs)
    assert_near(vectors_of(inputs, normalize=False), plain)
    assert_near(vectors_of(inputs), plain / np.linalg.norm(plain, axis=1, keepdims=True))


def test_dimensions_are_cut_before_the_length_becomes_1(vectors_of, theirs):
    cut = theirs.encode([TEXT])[:, :10]
    assert_near(vectors_of(TEXT, dimensions=10), cut / np.linalg.norm(cut))


def test_a_prompt_is_put_before_each_text(served, vectors_of, theirs):
    assert_near(
        vectors_of(TEXT, prompt_name="query", normalize=False),
        theirs.encode([TEXT], prompt_name="query"),
    )
    assert served.refusal("/embed", {"inputs": TEXT, "prompt_name": "passage"}) == (
        422,
        "bad-value",
    )


def test_every_token_has_a_vector(served, theirs):
    texts = ["a dog", "seven old wizards brew"]
    states = served.post("/embed_all", {"inputs": texts}).json()
    expected = theirs.encode(texts, output_value="token_embeddings")
    for rows, tensor in zip(states, expected, strict=True):
        assert_near(rows, tensor.numpy())


def test_long_texts_are_refused_or_cut(served, vectors_of, theirs):
    long = "the quick brown fox " * 20
    assert served.refusal("/embed", {"inputs": long}) == (422, "too-large")
    assert_near(vectors_of(long, truncate=True, normalize=False), theirs.encode([long]))
    assert (
        served.refusal(
            "/embed", {"inputs": long, "truncate": True, "truncation_direction": "left"}
        )[0]
        == 422
    )


def test_ids_with_and_without_special_tokens_are_the_text(served, vectors_of, theirs, encoder):
    tokenizer = AlbertTokenizer.from_pretrained(encoder)
    expected = theirs.encode([TEXT])
    for special in (False, True):
        ids = tokenizer.encode(TEXT, special_tokens=special)
        for body in (ids, [ids]):
            assert_near(vectors_of(body, normalize=False), expected)
        assert served.post("/decode", {"ids": [ids]}).json() == [TEXT]
    assert (
        "check_embedding_ctx_length"
        in served.post("/embed", {"inputs": [9906, 1917]}).json()["error"]["hint"]
    )
    assert served.refusal("/decode", {"ids": [[9906]]}) == (422, "bad-input")


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("special", [False, True])
def test_padded_ids_of_transformers_tokenizer_are_the_texts(
    served, vectors_of, theirs, encoder, side, special
):
    texts = [TEXT, "seven old wizards brew strong potions", ""]
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder, padding_side=side)
    batch = tokenizer(texts, padding="max_length", max_length=40, add_special_tokens=special)
    rows = batch["input_ids"]
    expected = theirs.encode(texts)
    assert {len(row) for row in rows} == {40}
    assert_near(vectors_of(rows, normalize=False), expected)
    assert_near(vectors_of(rows[0], normalize=False), expected[:1])
    states = served.post("/embed_all", {"inputs": rows}).json()
    for vectors, tensor in zip(
        states, theirs.encode(texts, output_value="token_embeddings"), strict=True
    ):
        assert_near(vectors, tensor.numpy())
    answer = served.post("/v1/embeddings", {"input": rows, "model": "encoder"}).json()
    assert_near([entry["embedding"] for entry in answer["data"]], expected)
    num_specials = 0 if special else 2 * len(texts)
    assert answer["usage"]["prompt_tokens"] == sum(map(sum, batch["attention_mask"])) + num_specials


def test_ids_with_one_of_the_two_special_tokens_are_refused(served, encoder):
    ids = AlbertTokenizer.from_pretrained(encoder).encode(TEXT, special_tokens=True)
    for row in (ids[:-1], ids[1:], [*ids[1:], 0, 0], ids[:1]):
        assert served.refusal("/embed", {"inputs": [ids, row]}) == (422, "bad-input")


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("inputs", [TEXT, [TEXT], PAIR, [[TEXT], PAIR]])
def test_labels_and_scores_the_best_first(served, folders, inputs, raw):
    batch = (
        inputs if isinstance(inputs[0], list) else [[inputs] if isinstance(inputs, str) else inputs]
    )
    logits = logits_of(
        folders["classify"], [value[0] if len(value) == 1 else value for value in batch]
    )
    scores = (logits if raw else logits.softmax(-1)).sort(descending=True)
    answer = served.post("/predict", {"inputs": inputs, "raw_scores": raw}).json()
    rows = answer if isinstance(inputs[0], list) else [answer]
    assert_near([[entry["score"] for entry in row] for row in rows], scores.values)
    assert [[entry["label"] for entry in row] for row in rows] == [
        [f"LABEL_{index}" for index in row] for row in scores.indices.tolist()
    ]


def test_ranks(served, folders):
    texts = ["a lazy dog", "calm rivers", "the fox", "seven potions"]
    logits = logits_of(folders["score"], [[TEXT, text] for text in texts])[:, 0]
    for raw in (False, True):
        ranks = served.post(
            "/rerank", {"query": TEXT, "texts": texts, "raw_scores": raw, "return_text": True}
        ).json()
        expected = (logits if raw else logits.sigmoid()).sort(descending=True)
        assert_near([rank["score"] for rank in ranks], expected.values)
        assert [(rank["index"], rank["text"]) for rank in ranks] == [
            (i, texts[i]) for i in expected.indices.tolist()
        ]


def test_cosines_of_one_sentence_with_others(served, theirs):
    sentences = ["a lazy dog", TEXT]
    body = {
        "inputs": {"source_sentence": TEXT, "sentences": sentences},
        "parameters": {"truncate": True},
    }
    vectors = torch.from_numpy(theirs.encode([TEXT, *sentences]))
    expected = nn.functional.cosine_similarity(vectors[:1], vectors[1:]).numpy()
    assert_near(served.post("/similarity", body).json(), expected)


def test_the_root_answers_as_the_first_model(served):
    for path, body in {
        "/embed": {"inputs": TEXT, "model": "encoder"},
        "/similarity": {"inputs": {"source_sentence": TEXT, "sentences": [TEXT]}},
        "/rerank": {"query": TEXT, "texts": [TEXT, "a dog"]},
        "/predict": {"inputs": PAIR},
    }.items():
        assert served.post("/", body).json() == served.post(path, body).json()
    assert served.refusal("/", {"texts": [TEXT]})[0] == served.refusal("/", [TEXT])[0] == 422


def test_models_describe_themselves(served, encoder):
    info = served.get("/info").json()
    assert info["model_id"] == "classify"
    classifier = info["model_type"]["classifier"]
    assert classifier["id2label"] == {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}
    assert classifier["label2id"] == {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}
    assert not info["auto_truncate"]
    description = Models({"encoder": str(encoder)}).description("encoder", {})
    assert description["model_type"] == {"embedding": {"pooling": "mean"}}
    assert description["max_input_length"] == 32


def test_probabilities_are_those_of_classify(served, pipeline_of):
    probabilities = pipeline_of("classify")(TEXT)["probabilities"]
    answer = served.post("/predict", {"inputs": TEXT, "parameters": {"top_k": 1}}).json()
    best = max(probabilities, key=probabilities.get)
    assert [entry["label"] for entry in answer] == [best]
    assert answer[0]["score"] == pytest.approx(probabilities[best], abs=1e-5)
