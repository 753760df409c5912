"""A static encoder that is counted in a text, as sentence-transformers opens it."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from albertkit.corpus import TokenStore, build_store
from albertkit.embeddings import static_embeddings
from albertkit.errors import AlbertKitError


@pytest.fixture(scope="module")
def store(checkpoint: Path, sentences: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("static")
    (folder / "text.txt").write_text("\n".join(line for line in sentences if line), encoding="utf-8")
    build_store([folder / "text.txt"], folder / "store", tokenizer=checkpoint)
    return folder / "store"


def test_sentence_transformers_computes_the_weighted_mean(store: Path, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    report = static_embeddings(store, tmp_path / "out", dimension=8)
    opened = TokenStore.open(store)
    assert (report.tokens, report.dimension) == (opened.vocab_size, 8)
    model = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    text = "the quick brown fox jumps over a lazy dog"
    ids = opened.tokenizer().encode(text)
    counts = np.bincount(np.concatenate(opened.tokens), minlength=opened.vocab_size)
    (table,) = load_file(tmp_path / "out" / "model.safetensors").values()
    rows = table[ids]
    lengths, weights = np.linalg.norm(rows, axis=1), 1e-4 / (1e-4 + counts[ids] / counts.sum())
    assert np.allclose(lengths[lengths > 0], weights[lengths > 0], rtol=1e-4)
    assert (lengths > 0).sum() > 0.8 * len(ids)  # the space alone stands beside everything
    assert np.allclose(model.encode(text), rows.mean(0), atol=1e-6)


def test_same_bits_and_refusals(store: Path, tmp_path: Path) -> None:
    for name in "ab":
        static_embeddings(store, tmp_path / name, dimension=100)  # more numbers than tokens
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in "ab")
    assert first == second
    for dimension, out, slug in ((0, "c", "bad-value"), (4, "a", "exists")):
        with pytest.raises(AlbertKitError) as caught:
            static_embeddings(store, tmp_path / out, dimension=dimension)
        assert caught.value.slug == slug
