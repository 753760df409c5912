"""The rows of sentence encoding: what is compared, with whom, and what a missing peer looks like."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from albertkit.benchmarks import embedding
from albertkit.benchmarks.embedding import DEFAULT, PYTHON, embed_rows
from albertkit.benchmarks.inputs import Inputs
from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError, DataError

# Answers as the peer does, with vectors of a fixed kind and without the library.
FAKE = """
import json, sys
import numpy as np
job = json.loads(sys.argv[1])
texts = json.load(open(job["texts"]))
print(json.dumps({"making": "one"}), flush=True)
print(json.dumps({"ready": ["one"], "failed": {"two": "ImportError: no two"}, "versions": {"x": "1"}}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if "run" in asked:
        print(json.dumps({"seconds": 0.5}), flush=True)
    elif job["threads"] == 1:
        np.save(asked["file"], np.ones((len(texts), 64), np.float32))
        print(json.dumps({"saved": asked["file"]}), flush=True)
    else:
        sys.exit(3)
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    from albertkit.corpus import builtin_documents
    from albertkit.tokenizer import train_tokenizer

    documents = [document for _, document in zip(range(40), builtin_documents(), strict=False)]
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer([line for document in documents for line in document], folder, vocab_size=500)
    return Inputs(documents, "built-in text", folder)


@pytest.fixture
def config() -> AlbertConfig:
    sizes = dict(embedding_size=16, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96)
    return AlbertConfig.from_size("base", vocab_size=500, **sizes)


def python(folder: Path, body: str) -> str:
    """A program that stands for an interpreter."""
    file = folder / "python"
    file.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    file.chmod(0o755)
    return str(file)


def test_without_the_library_we_run_alone_and_say_how_to_get_it(
    inputs: Inputs, config: AlbertConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PYTHON, python(tmp_path, "exit 1"))
    rows = list(embed_rows(inputs, sentences=20, rounds=1, threads=1, config=config))
    assert 1 <= len(rows) <= 2
    for row in rows:
        assert row.equal
        assert row.ours > 0
        assert row.peers == {}
        assert "our fp32" in row.compared
        assert PYTHON in row.missing["sentence-transformers"]
        assert row.details["sentences"] == 20
        assert 2 < row.details["mean_length"] < row.details["longest"] <= 128


def test_a_peer_of_its_own_process(
    inputs: Inputs, config: AlbertConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "fake.py"
    fake.write_text(FAKE, encoding="utf-8")
    peer = python(tmp_path, f'[ "$1" = -c ] && exit 0\nshift\nexec {sys.executable} {fake} "$@"')
    monkeypatch.setattr(embedding, "DEFAULT", "one")
    row = next(embed_rows(inputs, sentences=8, rounds=2, threads=1, peer_python=peer, config=config))
    assert row.peers == {"one": 16.0}
    assert row.ratio["one"] == pytest.approx(row.ours / 16, rel=0.5)
    assert row.missing.keys() == {"sentence-transformers two"}
    assert row.missing["sentence-transformers two"].startswith("ImportError: no two; python -m venv")
    assert row.versions["x"] == "1"
    assert not row.equal  # their vectors are all ones, ours are not
    assert row.details["cosine"]["one"] == {"min": pytest.approx(1), "mean": pytest.approx(1)}
    json.dumps(row.to_json())
    with pytest.raises(DataError) as caught:  # a peer that dies
        next(embed_rows(inputs, sentences=8, rounds=1, threads=2, peer_python=peer, config=config))
    assert caught.value.slug == "peer-failed"
    assert "exit status 3" in caught.value.message


def test_what_cannot_be_measured_is_refused(inputs: Inputs, config: AlbertConfig) -> None:
    for arguments, slug in (
        ({"sentences": 0}, "bad-sentences"),
        ({"peer_python": "/no/such/python"}, "not-found"),
        ({"config": config.replace(vocab_size=400)}, "vocab-too-large"),
    ):
        with pytest.raises((ConfigError, DataError)) as caught:
            next(embed_rows(inputs, **{"config": config, **arguments}))
        assert caught.value.slug == slug


@pytest.mark.slow
def test_vectors_equal_those_of_sentence_transformers(
    inputs: Inputs, config: AlbertConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sentence_transformers")
    monkeypatch.delenv(PYTHON, raising=False)
    for row in embed_rows(inputs, sentences=40, rounds=1, threads=1, config=config):
        assert row.equal, row.compared
        assert "in sentence-transformers fp32" in row.compared
        assert DEFAULT in row.peers
        assert np.isfinite(list(row.ratio.values())).all()
        assert len(row.peers) + len(row.missing) == 7
