"""Vectors of texts, against sentence-transformers on the same folders."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.folder import Projection
from albertkit.errors import DataError
from albertkit.model import AlbertForPreTraining, AlbertModel
from albertkit.pipelines.load import load_pipeline

SHAPES = {
    "mean": {},
    "cls": {"pooling": "cls", "normalize": True},
    "two poolings": {"pooling": ("mean", "max")},
    "projection": {"projection": 24, "normalize": True},
    "prompt": {"settings": {"prompts": {"query": "the fox "}, "default_prompt_name": "query"}},
}


@pytest.fixture
def encoder_folder(tmp_path, tokenizer, make_model):
    """`encoder_folder(SentenceEncoder's arguments)`: a folder of sentence-transformers."""

    def save(projection=None, **arguments):
        if projection is not None:
            torch.manual_seed(1)
            arguments["projection"] = Projection(64, projection, "tanh")
        encoder = SentenceEncoder(make_model(AlbertModel), tokenizer, max_length=32, **arguments)
        encoder.eval().save_pretrained(tmp_path / "encoder")
        return tmp_path / "encoder"

    return save


def their_encoder(folder):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu")


def vectors_of(records):
    return np.stack([record["embedding"] for record in records])


@pytest.mark.parametrize("shape", SHAPES)
def test_vectors_are_sentence_transformers(encoder_folder, tokenizer, sentences, shape):
    path = encoder_folder(**SHAPES[shape])
    theirs = their_encoder(path)
    embed = load_pipeline(path, precision="fp32")
    assert embed.kind == "embed"
    texts = [
        text
        for text in sentences
        if theirs.tokenizer(text)["input_ids"] == tokenizer.encode(text, None, True)
    ]
    assert len(texts) > 10
    records = embed(texts)
    assert_allclose(vectors_of(records), theirs.encode(texts), atol=1e-5)
    assert records[0]["embedding"].dtype == np.float32
    tokens = (
        theirs.tokenize([embed.encoder.prompt + text for text in texts])["attention_mask"]
        .sum(1)
        .tolist()
    )
    assert [record["tokens"] for record in records] == tokens
    alone = np.stack([embed(text)["embedding"] for text in texts])
    assert_allclose(vectors_of(records), alone, atol=1e-5)
    rotated = [*texts[1:], texts[0]]
    assert not np.allclose(vectors_of(embed(rotated)), theirs.encode(texts), atol=1e-3)


def test_dimension_and_similarity_are_sentence_transformers(encoder_folder, sentences, slug_of):
    path = encoder_folder()
    theirs = their_encoder(path)
    embed = load_pipeline(path, precision="fp32")
    texts = ["the quick fox", "seven old wizards", "a lazy dog"]
    assert_allclose(
        vectors_of(embed(texts, dimension=16)), theirs.encode(texts, truncate_dim=16), atol=1e-5
    )
    expected = theirs.similarity(theirs.encode(texts), theirs.encode(texts)).numpy()
    assert_allclose(embed.similarity(texts), expected, atol=1e-5)
    assert_allclose(embed.similarity(texts[:1], texts[1:]), expected[:1, 1:], atol=1e-5)
    assert np.allclose(np.diag(expected), 1)
    assert (expected[0, 1:] < 0.9999).all()
    for wrong in (0, 65, -1):
        assert slug_of(embed, "a", dimension=wrong) == "bad-value"
    with pytest.raises(DataError):
        embed.similarity(["a", 3])
    assert embed.similarity("the fox", texts).shape == (1, 3)


def test_low_precision_is_near_fp32(encoder_folder, sentences, low_precision):
    path = encoder_folder()
    exact, near = (
        load_pipeline(path, precision=precision) for precision in ("fp32", low_precision)
    )
    assert near.precision == low_precision
    first = vectors_of(exact(sentences))
    second = vectors_of(near(sentences))
    cosines = (
        (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    )
    assert cosines.min() > 0.99
    assert not np.array_equal(first, second)


def test_a_pretrained_model_gives_the_mean_of_its_states(folder, tokenizer):
    path = folder(AlbertForPreTraining)
    import transformers

    model = transformers.AlbertModel.from_pretrained(path).eval()
    records = load_pipeline(path, "embed", precision="fp32")(["seven old wizards", "", " \n"])
    for text, record in zip(["seven old wizards", "", ""], records, strict=True):
        with torch.inference_mode():
            states = model(
                torch.tensor([tokenizer.encode(text, special_tokens=True)])
            ).last_hidden_state[0]
        assert_allclose(record["embedding"], states.mean(0).numpy(), atol=1e-5)
