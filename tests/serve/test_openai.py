"""The `openai` client, unchanged, against the service."""

import base64

import numpy as np
import openai
import pytest
from numpy.testing import assert_allclose


@pytest.fixture(scope="module")
def client(service):
    with openai.OpenAI(
        base_url=f"{service.url}/v1", api_key="none", max_retries=0, timeout=120
    ) as openai_client:
        yield openai_client


@pytest.fixture(scope="module")
def pipeline(pipeline_of):
    return pipeline_of("pretrained", "embed")


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_vectors(client, pipeline, texts, encoding):
    options = {} if encoding is None else {"encoding_format": encoding}
    response = client.embeddings.create(input=texts[:4], model="pretrained", **options)
    expected = pipeline(texts[:4])
    assert [row.index for row in response.data] == [0, 1, 2, 3]
    for row, record in zip(response.data, expected, strict=True):
        vector = row.embedding
        if encoding == "base64":  # asked for by name it comes as it is sent
            vector = np.frombuffer(base64.b64decode(vector), "<f4")
        assert_allclose(vector, record["embedding"], atol=1e-5)
    assert response.model == "pretrained"
    assert (
        response.usage.prompt_tokens
        == response.usage.total_tokens
        == sum(record["tokens"] for record in expected)
    )


def test_one_text_and_dimensions(client, pipeline):
    response = client.embeddings.create(
        input="the quick fox", model="pretrained", dimensions=10, user="somebody"
    )
    assert_allclose(
        response.data[0].embedding, pipeline("the quick fox")["embedding"][:10], atol=1e-5
    )
    with pytest.raises(openai.BadRequestError, match="64"):
        client.embeddings.create(input="the quick fox", model="pretrained", dimensions=65)


def test_ids(client, pipeline, texts):
    """Of tokens, without special ones, as OpenAI's clients send them; cut where the model ends."""
    rows = [pipeline.tokenizer.encode(text) for text in [*texts[:3], texts[0] * 50]]
    expected = np.stack([record["embedding"] for record in pipeline([*texts[:3], texts[0] * 50])])
    response = client.embeddings.create(
        input=rows, model="pretrained", extra_body={"truncate": True}
    )
    assert_allclose([row.embedding for row in response.data], expected, atol=1e-5)
    response = client.embeddings.create(input=rows[1], model="pretrained")
    assert_allclose([row.embedding for row in response.data], expected[1:2], atol=1e-5)
    for bad in ([10**6], [-1], [[1], [2**70]]):
        with pytest.raises(openai.BadRequestError) as error:
            client.embeddings.create(input=bad, model="pretrained")
        assert error.value.code == "bad_input"


def test_models(client):
    assert [model.id for model in client.models.list()] == ["pretrained"]
    assert client.models.retrieve("pretrained").object == "model"
    for name in ("classify", "org/name"):
        with pytest.raises(openai.NotFoundError) as error:
            client.models.retrieve(name)
        assert error.value.code == "model_not_found"


def test_errors_have_openais_form(client):
    with pytest.raises(openai.NotFoundError, match="pretrained") as error:
        client.embeddings.create(input="x", model="text-embedding-3-small")
    assert error.value.code == "model_not_found"
    assert error.value.type == "invalid_request_error"
    assert error.value.param is None
    for bad in ([], [1.5], {"a": 1}, ["x", 1], [[]]):
        with pytest.raises(openai.BadRequestError):
            client.embeddings.create(input=bad, model="pretrained")
