"""What goes into a store comes out of it; a store that is not whole, or not yours, says so."""

import json
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from word_tokenizer import WordTokenizer

from albertkit.corpus import BuildSettings, TokenStore, build_store
from albertkit.corpus.store import StoreWriter, document_hash
from albertkit.errors import DataError
from albertkit.job import Job

WORDS = st.sampled_from(["a", "bc", "één", "\u200b", "한국어", "."])
SENTENCES = st.lists(WORDS, min_size=1, max_size=6).map(" ".join)
DOCUMENTS = st.lists(st.lists(SENTENCES, min_size=1, max_size=5), min_size=1, max_size=20)


def make(folder, text, vocab_size=5000, **options):
    (folder / "in.txt").write_text(text, encoding="utf-8")
    build_store(
        [folder / "in.txt"],
        folder / "store",
        WordTokenizer(vocab_size),
        BuildSettings("text", **options),
    )
    return TokenStore.open(folder / "store")


@pytest.fixture
def store(tmp_path):
    return make(
        tmp_path,
        "\n\n".join(f"Document {i} begins.\nIt ends {i * i}." for i in range(200)),
        shard_tokens=500,
    )


@settings(max_examples=60)
@given(DOCUMENTS, st.integers(1, 30), st.sampled_from([100, 70_000]))
def test_documents_come_back(documents, shard_tokens, vocab_size):
    tokenizer = WordTokenizer(vocab_size)
    # the same text twice is one document; characters without an id leave no sentence, sentences
    # without one no document
    distinct = dict.fromkeys(tuple(document) for document in documents)
    encoded = [
        [ids for sentence in document if (ids := tokenizer.ids(sentence))] for document in distinct
    ]
    unique = [document for document in encoded if document]
    text = "\n\n".join("\n".join(document) for document in documents)
    with tempfile.TemporaryDirectory() as folder:
        if not unique:
            with pytest.raises(DataError, match="no document with text"):
                make(Path(folder), text, vocab_size, shard_tokens=shard_tokens)
            return
        store = make(Path(folder), text, vocab_size, shard_tokens=shard_tokens)
        assert [[s.tolist() for s in document] for document in store.documents()] == unique
        assert store.tokens[0].dtype == (np.uint16 if vocab_size == 100 else np.uint32)
        assert store.num_documents == len(unique)
        assert store.num_sentences == sum(map(len, unique))
        assert (
            store.num_tokens
            == sum(len(s) for d in unique for s in d)
            == sum(map(len, store.tokens))
        )
        for k in range(store.num_shards):
            assert len(store.tokens[k]) <= shard_tokens or len(store.document_offsets[k]) == 2
            assert store.sentence_offsets[k][-1] == len(store.tokens[k])
            assert store.document_offsets[k][-1] == len(store.sentence_offsets[k]) - 1
        store.verify()


def test_shards_are_filled(store):
    # 6 tokens a document: 83 fit into 500
    assert [len(offsets) - 1 for offsets in store.document_offsets] == [83, 83, 34]


def test_documents_by_number(store):
    assert [len(sentence) for sentence in store.document(0)] == [3, 3]
    assert [s.tolist() for s in store.document(-1)] == [s.tolist() for s in store.document(199)]
    with pytest.raises(IndexError):
        store.document(200)
    with pytest.raises(ValueError, match="read-only"):
        store.tokens[0][0] = 1


def test_held_out_documents(store):
    masks = store.held_out(0.25, seed=7)
    assert [len(mask) for mask in masks] == [len(offsets) - 1 for offsets in store.document_offsets]
    assert 25 <= sum(mask.sum() for mask in masks) <= 75
    second_masks = TokenStore.open(store.folder).held_out(0.25, seed=7)
    assert all(np.array_equal(a, b) for a, b in zip(masks, second_masks, strict=True))
    other_masks = store.held_out(0.25, seed=8)
    assert not all(np.array_equal(a, b) for a, b in zip(masks, other_masks, strict=True))
    larger = store.held_out(0.5, seed=7)
    assert all((a <= b).all() for a, b in zip(masks, larger, strict=True))
    assert not np.concatenate(store.held_out(0.0, 7)).any()
    assert np.concatenate(store.held_out(1.0, 7)).all()


def test_the_hash_is_splitmix64_and_uniform():
    # first outputs of Vigna's splitmix64.c from state s are mix(s + 1 * step), mix(s + 2 * step), …
    def splitmix64(state):
        mask = (1 << 64) - 1
        z = (state + 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    assert splitmix64(0) == 0xE220A8397B1DCDAF  # published first output for seed 0
    hashes = document_hash(-3, np.arange(5, dtype=np.uint64))
    start = splitmix64(-3 % (1 << 64))
    assert hashes.tolist() == [
        splitmix64((start + i * 0x9E3779B97F4A7C15) % (1 << 64)) for i in range(5)
    ]
    values = document_hash(1, np.arange(100_000, dtype=np.uint64)).astype(np.float64) / 2.0**64
    assert abs(np.histogram(values, 10, (0, 1))[0] - 10_000).max() < 500  # five standard errors


def test_pickles_as_a_folder(store):
    assert len(pickle.dumps(store)) < 500
    assert pickle.loads(pickle.dumps(store)).num_tokens == store.num_tokens


def test_what_is_not_a_store(tmp_path, slug_of):
    assert slug_of(lambda: TokenStore.open(tmp_path / "nowhere")) == "not-found"
    assert slug_of(lambda: TokenStore.open(tmp_path)) == "wrong-kind"
    (tmp_path / ".build").mkdir()
    assert slug_of(lambda: TokenStore.open(tmp_path)) == "unfinished"
    (tmp_path / "manifest.json").write_text("[]")
    assert slug_of(lambda: TokenStore.open(tmp_path)) == "wrong-kind"
    (tmp_path / "manifest.json").write_text("{")
    assert slug_of(lambda: TokenStore.open(tmp_path)) == "bad-file"


def test_a_broken_store(store, slug_of):
    file = store.folder / "tokens-00000.bin"
    data = file.read_bytes()
    file.write_bytes(data[:-2] + b"\1\1")
    assert slug_of(TokenStore.open(store.folder).verify) == "corrupt"
    file.write_bytes(data[:-2])
    assert slug_of(lambda: TokenStore.open(store.folder)) == "corrupt"
    file.unlink()
    assert slug_of(lambda: TokenStore.open(store.folder)) == "corrupt"


def test_another_tokenizer(store, slug_of):
    store.check_tokenizer(WordTokenizer(5000))
    assert slug_of(lambda: store.check_tokenizer(WordTokenizer(6000))) == "wrong-tokenizer"


def test_the_manifest_says_what_is_there(store):
    manifest = json.loads((store.folder / "manifest.json").read_text())
    assert set(manifest["files"]) == {
        file.relative_to(store.folder).as_posix()
        for file in store.folder.rglob("*")
        if file.is_file()
    } - {"manifest.json"}
    assert manifest["counts"]["documents"] == 200


def test_a_writer_goes_on_where_another_was(tmp_path):
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 99, rng.integers(1, 40)) for _ in range(60)]

    def write(writer, documents):
        for document in documents:
            writer.append(document, np.array([len(document)]), np.array([1]))

    with Job(tmp_path / "whole", {}) as job:
        writer = StoreWriter(job, 100, 200, [])
        write(writer, documents)
        job.commit(shards=writer.shards)
    for step in range(0, 60, 7):
        with Job(tmp_path / "interrupted", {}) as job:
            writer = StoreWriter(job, 100, 200, job.facts.get("shards", []))
            write(writer, documents[step : step + 7])
            job.commit(shards=writer.shards)
            write(writer, documents[20:40])  # never committed; may begin further shards
    with Job(tmp_path / "interrupted", {}) as job:
        assert len(job.files) > 15
    for name in job.files:
        assert (tmp_path / "whole" / name).read_bytes() == (
            tmp_path / "interrupted" / name
        ).read_bytes()
