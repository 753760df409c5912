"""Vectors of texts: whatever the batches, of one text or of many, with gradient or through an engine."""

import numpy as np
import pytest
import torch

from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.folder import Projection, similarity_matrix
from albertkit.errors import ConfigError

from .conftest import largest_difference, row_cosines


def test_batches_and_order_do_not_show(encoder, sentences):
    sentences = sentences[:60]
    expected = np.stack([encoder.encode(text, precision="fp32") for text in sentences])
    assert expected.shape == (60, 32)
    for batch_tokens in (1, 100, 100_000):
        assert largest_difference(encoder.encode(sentences, batch_tokens, "fp32"), expected) < 5e-6
    reversed_again = encoder.encode(sentences[::-1], 500, "fp32")[::-1]
    assert largest_difference(reversed_again, expected) < 5e-6
    assert largest_difference(reversed_again[1:], expected[:-1]) > 0.1


def test_what_training_sees_is_what_is_encoded(encoder, sentences):
    features = encoder.features(sentences[:20])
    with torch.no_grad():
        vectors = encoder(features.batch(np.arange(20)).packed).numpy()
    assert largest_difference(encoder.encode(sentences[:20], precision="fp32"), vectors) < 5e-6


def test_one_text_and_none(encoder):
    vector = encoder.encode("a lazy dog")
    assert vector.shape == (32,)
    assert (vector == encoder.encode(["a lazy dog"])[0]).all()
    assert encoder.encode([]).shape == (0, 32)
    empty = encoder.encode("")
    assert np.isfinite(empty).all()
    assert largest_difference(empty, vector) > 0.01
    assert (encoder.encode(np.array(["a lazy dog"])) == vector).all()


@pytest.mark.parametrize(
    "texts",
    [
        (t for t in ["a"]),
        {"a"},
        {"a": 1},
        b"a",
        5,
        None,
        ["a", None],
        ["a", 1.5],
        ["a", ["b"]],
    ],
)
def test_what_is_no_list_of_texts_is_refused(encoder, texts, slug_of):
    assert slug_of(encoder.encode, texts) == "bad-value"


def test_leading_dimensions(encoder, sentences):
    full = encoder.encode(sentences[:9], precision="fp32")
    assert (encoder.encode(sentences[:9], precision="fp32", dimension=8) == full[:, :8]).all()
    short = encoder.encode(sentences[:9], precision="fp32", dimension=8, normalize=True)
    assert largest_difference(np.linalg.norm(short, axis=1), np.ones(9)) < 1e-6
    assert (
        largest_difference(short, full[:, :8] / np.linalg.norm(full[:, :8], axis=1, keepdims=True))
        < 1e-6
    )
    for dimension in (33, -1):
        with pytest.raises(ConfigError, match="use 1 to 32"):
            encoder.encode("a", dimension=dimension)


def test_the_engine_follows_the_weights(encoder, sentences):
    before = encoder.encode(sentences[:5])
    engine = encoder.engine("auto")
    assert encoder.engine("auto") is engine
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=0.1)
    batch = encoder.features(sentences[:5]).batch(np.arange(5)).packed
    encoder(batch).square().mean().backward()
    optimizer.step()
    after = encoder.encode(sentences[:5], precision="fp32")
    assert largest_difference(after, before) > 0.01
    with torch.no_grad():
        assert largest_difference(after, encoder(batch).numpy()) < 5e-6


def test_encoding_during_training_has_no_dropout(encoder, sentences):
    encoder.albert.encoder.train()
    for module in encoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    encoder.train()
    assert (encoder.encode(sentences[:5]) == encoder.encode(sentences[:5])).all()
    assert encoder.training


def test_a_cosine_is_at_most_1():
    """Of 1,000 vectors with themselves a third is above 1 by rounding."""
    vectors = np.random.default_rng(0).standard_normal((1000, 64)).astype(np.float32)
    for signed in (vectors, -vectors):
        assert np.abs(similarity_matrix(vectors, signed)).max() == 1


def test_similarity_is_the_cosine(encoder, sentences):
    from sklearn.metrics.pairwise import cosine_similarity

    a, b = encoder.encode(sentences[:7]), encoder.encode(sentences[7:12])
    cosines = encoder.similarity(a, b)
    assert cosines.shape == (7, 5)
    assert largest_difference(cosines, cosine_similarity(a, b)) < 1e-6
    assert largest_difference(cosines, cosine_similarity(a, b + 0.1)) > 1e-3
    assert encoder.similarity(np.zeros(32), b).tolist() == [[0.0] * 5]
    assert encoder.similarity(a[0], a[0]).item() == pytest.approx(1.0, abs=1e-6)


def test_texts_are_cut_at_the_longest_length(encoder, words):
    assert encoder.max_length == 64  # the model's positions
    encoder.max_length = 12
    text = " ".join(words)
    assert encoder.features([text]).lengths.tolist() == [12]
    ids = encoder.tokenizer.encode(text)[:10]
    assert encoder.features([text]).input_ids.tolist() == [
        encoder.tokenizer.cls_id,
        *ids,
        encoder.tokenizer.sep_id,
    ]
    encoder.max_length = 65
    with pytest.raises(ConfigError, match="64 positions"):
        encoder.encode(text)


def test_what_does_not_fit_together_is_refused(encoder, slug_of):
    for options, slug in (
        ({"pooling": "average"}, "unknown-name"),
        ({"pooling": ("cls", "mean"), "projection": Projection(32, 8)}, "bad-value"),
    ):
        assert slug_of(SentenceEncoder, encoder.albert, encoder.tokenizer, **options) == slug
    with pytest.raises(ConfigError, match=r"\[unsupported\].*relu"):
        Projection(32, 8, "relu")
    with pytest.raises(ConfigError, match="fp64"):
        encoder.encode("a", precision="fp64")
    for options, fact in (
        ({"batch_tokens": "9"}, "batch_tokens is '9', it must be a whole number, at least 1"),
        ({"batch_tokens": 0}, "batch_tokens is 0, it must be a whole number, at least 1"),
        ({"batch_size": 1.5}, "batch_size is 1.5, it must be at least 1"),
        ({"dimension": 1.5}, "the dimension is 1.5, but the vectors have 32 numbers"),
        ({"prompt": 5}, "5 is no prompt, and no name of one"),
        ({"prompt_name": ["query"]}, r"\['query'\] is no prompt"),
        ({"device": "gpu"}, "device `gpu`"),
    ):
        with pytest.raises(ConfigError, match=fact):
            encoder.encode("a", **options)
    assert encoder.encode("a", dimension=True, device="cpu").shape == (1,)
    assert slug_of(SentenceEncoder.from_pretrained, 3) == "bad-value"
    assert slug_of(SentenceEncoder, encoder.albert, encoder.tokenizer, pooling=5) == "unknown-name"
    for a, b in (((2, 3), (2, 4)), ((2, 2, 3), (2, 3))):
        assert slug_of(encoder.similarity, np.ones(a), np.ones(b)) == "bad-value"
    encoder.settings.update(prompts={"query": "fox "}, default_prompt_name="qury")
    with pytest.raises(ConfigError, match="did you mean `query`"):
        encoder.encode("a")


def test_a_bf16_vector_is_near_the_fp32_one(encoder, sentences):
    a, b = (encoder.encode(sentences, precision=precision) for precision in ("fp32", "bf16"))
    assert 0.999 < row_cosines(a, b).min() < 0.9999999


def test_keywords_of_sentence_transformers_mean_the_same(encoder, tmp_path, sentences, slug_of):
    import sentence_transformers as st

    encoder.settings.update(prompts={"query": "the fox "})
    encoder.save_pretrained(tmp_path)
    theirs = st.SentenceTransformer(str(tmp_path), device="cpu")
    texts = sentences[:20]
    for options in (
        {},
        {"prompt_name": "query"},
        {"prompt": "seven wizards "},
        {"normalize_embeddings": True},
        {"truncate_dim": 8},
        {"truncate_dim": 32},
        {"truncate_dim": 1000},
        {"batch_size": 3, "show_progress_bar": False},
        {"convert_to_tensor": True},
        {"convert_to_numpy": False},
        {"device": "cpu"},
    ):
        vectors = encoder.encode(texts, **options)
        expected = theirs.encode(texts, **options)
        assert type(vectors) is type(expected)
        rows = [np.stack(list(map(np.asarray, values))) for values in (vectors, expected)]
        assert largest_difference(*rows) < 5e-6
    assert (
        largest_difference(encoder.encode(texts, prompt_name="query"), encoder.encode(texts)) > 0.01
    )
    assert encoder.prompt == ""
    with pytest.raises(ConfigError, match="did you mean `query`"):
        encoder.encode(texts, prompt_name="quer")
    assert slug_of(encoder.encode, texts, prompt_name="query", prompt="a ") == "conflicting-options"
    assert encoder.encode(texts[1], convert_to_tensor=True).shape == (32,)


@pytest.mark.parametrize(
    "prompts",
    [
        {},
        {"query": "the fox ", "document": "a river "},
        {"passage": "a river "},
    ],
)
def test_queries_and_documents_have_the_prompts_of_sentence_transformers(
    encoder, tmp_path, sentences, prompts
):
    """The prompt of their name or none, whatever the default prompt is."""
    import sentence_transformers as st

    encoder.settings.update(
        prompts={**prompts, "other": "seven wizards "}, default_prompt_name="other"
    )
    encoder.save_pretrained(tmp_path)
    theirs = st.SentenceTransformer(str(tmp_path), device="cpu")
    assert encoder.max_seq_length == theirs.max_seq_length
    for name in ("encode_query", "encode_document"):
        for options in ({}, {"prompt_name": "other"}, {"prompt": "near "}):
            ours = getattr(encoder, name)(sentences[:20], **options)
            assert largest_difference(ours, getattr(theirs, name)(sentences[:20], **options)) < 5e-6


def test_int8_is_said_to_be_the_precision_of_the_computation(encoder):
    with pytest.warns(
        UserWarning, match=r"for int8 vectors: sentence_transformers\.quantize_embeddings"
    ):
        assert encoder.encode("the fox", precision="int8").dtype == np.float32


def test_a_prompt_that_is_not_pooled_is_left_out_whoever_names_it(encoder, sentences):
    encoder.settings.update(prompts={"query": "the fox "}, default_prompt_name="query")
    encoder.include_prompt = False
    default = encoder.encode(sentences[:5])
    encoder.settings.pop("default_prompt_name")
    assert largest_difference(encoder.encode(sentences[:5], prompt_name="query"), default) == 0
    assert largest_difference(encoder.encode(sentences[:5]), default) > 0.01
