"""Clients of text-embeddings-inference, unchanged, against the service: huggingface_hub's, llama-index's, langchain's.

Run with `-m peer` where llama-index-embeddings-text-embeddings-inference,
llama-index-postprocessor-tei-rerank and langchain-openai are installed; huggingface_hub's client is
tested by default.
"""

import numpy as np
import pytest
from huggingface_hub import InferenceClient
from numpy.testing import assert_allclose

TEXTS = ["the quick fox", "a lazy dog"]


@pytest.fixture(scope="module")
def vectors(pipeline_of):
    return np.stack([row["embedding"] for row in pipeline_of("pretrained", "embed")(TEXTS)])


@pytest.fixture(scope="module")
def unit_vectors(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_huggingface_hub_makes_vectors(service, vectors, unit_vectors):
    client = InferenceClient(model=service.url, provider="hf-inference")
    assert_allclose(client.feature_extraction(TEXTS), unit_vectors, atol=1e-5)
    assert_allclose(client.feature_extraction(TEXTS[0], normalize=False), vectors[:1], atol=1e-5)
    cosines = client.sentence_similarity(TEXTS[0], TEXTS)
    assert_allclose(cosines, unit_vectors @ unit_vectors[0], atol=1e-5)
    assert client.get_endpoint_info()["model_id"] == "pretrained"


def test_huggingface_hub_classifies(service, pipeline_of):
    probabilities = pipeline_of("classify")(TEXTS[0])["probabilities"]
    client = InferenceClient(model=f"{service.url}/predict")
    best = client.text_classification(TEXTS[0])  # the client keeps the first of TEI's list
    assert best.label == max(probabilities, key=probabilities.get)
    assert best.score == pytest.approx(max(probabilities.values()), abs=1e-5)


@pytest.mark.peer
def test_llama_index_makes_vectors(service, unit_vectors):
    base = pytest.importorskip("llama_index.embeddings.text_embeddings_inference")
    client = base.TextEmbeddingsInference(model_name="pretrained", base_url=service.url)
    assert_allclose(client.get_text_embedding_batch(TEXTS), unit_vectors, atol=1e-5)
    assert_allclose(client.get_query_embedding(TEXTS[0]), unit_vectors[0], atol=1e-5)


@pytest.mark.peer
def test_llama_index_ranks(service, pipeline_of):
    reranker = pytest.importorskip("llama_index.postprocessor.tei_rerank")
    from llama_index.core.schema import NodeWithScore, TextNode

    texts = [*TEXTS, "seven old wizards"]
    values = [row["value"] for row in pipeline_of("score")([("calm", t) for t in texts])]
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in texts]
    ranked = reranker.TextEmbeddingInference(base_url=service.url, top_n=3).postprocess_nodes(
        nodes, query_str="calm"
    )
    assert [node.text for node in ranked] == [
        texts[index] for index in np.argsort(-np.array(values))
    ]


@pytest.mark.peer
def test_langchain_through_openai(service, vectors):
    openai = pytest.importorskip("langchain_openai")
    client = openai.OpenAIEmbeddings(
        base_url=f"{service.url}/v1",
        api_key="none",
        model="pretrained",
        check_embedding_ctx_length=False,
    )
    assert_allclose(client.embed_documents(TEXTS), vectors, atol=1e-5)
