"""Files of vectors: what `encode` gives, in the order of the file, whatever the file's form and however often it was killed."""

import gzip
import json
import lzma
import os
import sys
from functools import partial

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
import torch
import zstandard
from fault_moments import ends_the_same_when_killed

from albertkit.embeddings import encode as module
from albertkit.embeddings.encode import encode_file
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.errors import AlbertKitError, ConfigError, MissingExtraError

from .conftest import largest_difference


@pytest.fixture
def small(monkeypatch):
    """Parts of 100 texts, Parquet in groups of 50."""
    monkeypatch.setattr(module, "PART_TEXTS", 100)
    monkeypatch.setattr(module, "_GROUP", 50)


@pytest.fixture
def file(tmp_path, sentences):
    """A text a line; two of the 300 are empty."""
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(["", *sentences[1:-1], ""]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def encode(encoder, file, tmp_path):
    """`encode("v.npy", **options)`: the report of encoding the file, in fp32 and small batches."""
    return lambda out, **options: encode_file(
        encoder, file, tmp_path / out, **{"precision": "fp32", "batch_tokens": 300, **options}
    )


def texts_of_example(file):
    return file.read_text(encoding="utf-8").split("\n")[:-1]


def vectors_of(file):
    if file.suffix == ".npy":
        return np.load(file)
    column = parquet.read_table(file)["vector"].combine_chunks()
    return np.asarray(column.flatten()).reshape(len(column), -1)


# --- what is in the file --------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["npy", "parquet"])
def test_the_rows_are_the_vectors_in_order(encode, encoder, file, tmp_path, small, ending):
    out = tmp_path / f"v.{ending}"
    report = encode(out)
    expected = encoder.encode(texts_of_example(file), precision="fp32")
    vectors = vectors_of(out)
    assert vectors.shape == (300, 32)
    assert vectors.dtype == np.float32
    assert largest_difference(vectors, expected) < 2e-6
    assert largest_difference(vectors[::-1], expected) > 0.1
    assert report.texts == 300
    assert report.dimension == 32
    assert report.read_as == "lines"
    assert report.resumed == 0
    assert report.sentences_per_second > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "texts.txt",
        f"v.{ending}",
        f"v.{ending}.json",
    ]


def test_settings(encode, encoder, file, tmp_path, small):
    encode("v.npy", dimension=8, normalize=True, dtype="float16")
    vectors = np.load(tmp_path / "v.npy", mmap_mode="r")
    assert vectors.shape == (300, 8)
    assert vectors.dtype == np.float16
    expected = encoder.encode(texts_of_example(file), precision="fp32", dimension=8, normalize=True)
    assert 0 < largest_difference(vectors, expected) < 1e-3
    encode("v.parquet", dtype="float16")
    assert str(parquet.read_schema(tmp_path / "v.parquet").field("vector").type) == (
        "fixed_size_list<element: halffloat>[32]"
    )


def test_numpy_reads_an_npy_of_its_own_and_ours_alike(encode, tmp_path):
    encode("ours.npy")
    np.save(tmp_path / "numpys.npy", np.load(tmp_path / "ours.npy"))
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "numpys.npy").read_bytes()


def test_every_form_of_a_table(encoder, tmp_path, sentences):
    texts = [text or "fox" for text in sentences[:20]]
    expected = encoder.encode(texts, precision="fp32")
    rows = [
        {"text": text, "name": f"n{number}", "other": number} for number, text in enumerate(texts)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (tmp_path / "t.jsonl").write_bytes(lines)
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "t.jsonl.xz").write_bytes(lzma.compress(lines))
    (tmp_path / "t.jsonl.zst").write_bytes(zstandard.compress(lines))
    (tmp_path / "t.csv").write_text(
        "name,text\n" + "".join(f'{r["name"]},"{r["text"]}"\n' for r in rows)
    )
    (tmp_path / "t.tsv").write_text(
        "".join(f"{r['name']}\t{r['text']}\t{r['other']}\n" for r in rows)
    )
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    (tmp_path / "t.txt.gz").write_bytes(gzip.compress("\n".join(texts).encode()))
    for name in (
        "t.jsonl",
        "t.jsonl.gz",
        "t.jsonl.xz",
        "t.jsonl.zst",
        "t.csv",
        "t.tsv",
        "t.parquet",
        "t.txt.gz",
    ):
        names = {} if name == "t.txt.gz" else {"id": "name"}
        if name == "t.tsv":
            names |= {"text": "b", "id": "a", "columns": "a,b,c"}
        out = tmp_path / "v.parquet"
        report = encode_file(
            encoder, tmp_path / name, out, precision="fp32", overwrite=True, **names
        )
        encoded = parquet.read_table(tmp_path / "v.parquet")
        assert report.read_as == ("lines" if name == "t.txt.gz" else "table")
        assert encoded["id"].to_pylist() == (
            list(range(20)) if not names else [row["name"] for row in rows]
        )
        assert encoded["text"].to_pylist() == texts
        assert largest_difference(vectors_of(tmp_path / "v.parquet"), expected) < 2e-6


def test_lines_that_are_rows_of_a_table_are_reported(encoder, tmp_path):
    file = tmp_path / "t.txt"
    file.write_text("fox\tseven\tCC-BY\ndog\told\tCC-BY\n")
    report = encode_file(encoder, file, tmp_path / "v.npy")
    assert report.notes[-1] == (
        "every line has 3 fields with tabs between and is encoded whole; for one of them: --columns c1,c2,c3 --text c1"
    )
    report = encode_file(
        encoder, file, tmp_path / "w.npy", columns="c1,c2,c3", text="c1", precision="fp32"
    )
    assert not any("tabs" in note for note in report.notes)
    assert largest_difference(np.load(tmp_path / "w.npy"), encoder.encode(["fox", "dog"])) < 2e-6


def test_empty_texts_are_reported(encoder, tmp_path):
    (tmp_path / "t.csv").write_text('text,b\nfox,1\n,2\n" ",3\ndog,4\n')
    report = encode_file(encoder, tmp_path / "t.csv", tmp_path / "v.npy")
    assert "2 texts of 4 empty: a vector without meaning stands for each" in report.notes
    assert report.texts == len(np.load(tmp_path / "v.npy")) == 4


def test_books_make_short_parts(sentences, monkeypatch):
    monkeypatch.setattr(module, "PART_CHARACTERS", 1000)
    parts = list(module.split_into_parts(module.FileText(0, None, text) for text in sentences))
    assert [text for part in parts for text in part] == sentences
    assert max(sum(map(len, part[:-1])) for part in parts) < 1000
    assert len(parts) > 10


# --- rows that cannot be used ---------------------------------------------------------------------


def test_bad_lines(encoder, tmp_path):
    file = tmp_path / "t.txt"
    file.write_bytes(b"quick fox\nna\xefve\nlazy \0 dog\ncalm rivers")
    before = b"what was there"
    (tmp_path / "v.npy").write_bytes(before)
    with pytest.raises(AlbertKitError, match=r"line 2: bytes that are not UTF-8"):
        encode_file(encoder, file, tmp_path / "v.npy")
    assert (tmp_path / "v.npy").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.txt", "v.npy"]
    report = encode_file(
        encoder, file, tmp_path / "v.npy", on_error="skip", precision="fp32", overwrite=True
    )
    assert [row.line for row in report.left_out] == [2, 3]
    assert (
        largest_difference(
            np.load(tmp_path / "v.npy"),
            encoder.encode(["quick fox", "calm rivers"], precision="fp32"),
        )
        < 2e-6
    )
    encode_file(encoder, file, tmp_path / "v.parquet", on_error="skip")
    assert parquet.read_table(tmp_path / "v.parquet")["id"].to_pylist() == [0, 3]


def test_what_cannot_be_done_is_refused(encoder, file, tmp_path, monkeypatch, slug_of):
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    os.mkfifo(tmp_path / "pipe")
    out = tmp_path / "v.npy"
    for arguments, options, slug in (
        ((file, tmp_path / "v.csv"), {}, "bad-value"),
        ((file, tmp_path / "folder.npy"), {}, "wrong-kind"),
        ((tmp_path, out), {}, "wrong-kind"),
        ((tmp_path / "pipe", out), {}, "wrong-kind"),
        ((tmp_path / "*.*", out), {}, "ambiguous"),
        ((tmp_path / "no.txt", out), {}, "not-found"),
        ((tmp_path / "empty.txt", out), {}, "empty"),
        ((tmp_path / "t.csv", out), {}, "missing-column"),
        ((file, out), {"dimension": 33}, "bad-value"),
        ((file, out), {"id": "number"}, "conflicting-options"),
        ((file, out), {"precision": "fp8"}, "unknown-name"),
        ((file, out), {"device": "tpu"}, "no-device"),
    ):
        assert slug_of(encode_file, encoder, *arguments, **options) == slug
    parquet.write_table(arrow.table({"text": ["fox"]}), tmp_path / "t.parquet")
    assert (
        slug_of(encode_file, encoder, tmp_path / "t.parquet", tmp_path / "t.parquet") == "bad-value"
    )
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError):
        encode_file(encoder, file, tmp_path / "v.parquet")
    assert not list(tmp_path.glob(".*"))


def test_a_model_that_is_broken_writes_nothing(encoder, file, tmp_path):
    with torch.no_grad():
        encoder.albert.embeddings.word_embeddings.weight[encoder.tokenizer.encode("fox")] = float(
            "nan"
        )
    with pytest.raises(AlbertKitError, match=r"\[not-finite\].*not finite in float32"):
        encode_file(encoder, file, tmp_path / "v.npy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt"]


# --- interruptions --------------------------------------------------------------------------------


@pytest.mark.skipif(
    torch.get_num_threads() > 1, reason="OMP_NUM_THREADS is not 1: a fork has none of the threads"
)
@pytest.mark.parametrize("ending", ["npy", "parquet"])
def test_killed_anywhere_and_again(encode, tmp_path, small, ending):
    def run(folder):
        encode(folder / f"v.{ending}", batch_tokens=900)

    files = ends_the_same_when_killed(tmp_path, run, 5)
    assert sorted(files) == [f"v.{ending}", f"v.{ending}.json"]


class Interrupted(Exception):
    pass


def interrupt(monkeypatch, encode, *arguments, **options):
    """End an encoding after two of its three parts."""
    commit = module.Job.commit
    commits = iter(range(2))

    def ending(self, **facts):
        if next(commits, None) is None:
            raise Interrupted
        commit(self, **facts)

    with monkeypatch.context() as patch:
        patch.setattr(module.Job, "commit", ending)
        with pytest.raises(Interrupted):
            encode(*arguments, **options)


def test_what_was_done_is_not_done_again(encode, tmp_path, small, monkeypatch):
    out = tmp_path / "v.npy"
    undisturbed = encode("whole.npy")
    interrupt(monkeypatch, encode, out)
    assert not out.exists()
    computed = []
    encode_batch_of_features = SentenceEncoder.encode_batch_of_features

    def counting(self, features, run, *arguments):
        computed.extend(run)
        return encode_batch_of_features(self, features, run, *arguments)

    monkeypatch.setattr(SentenceEncoder, "encode_batch_of_features", counting)
    report = encode(out)
    assert report.resumed == 200
    assert undisturbed.resumed == 0
    assert len(computed) == 100
    assert out.read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_a_finished_file_is_not_computed_again_and_not_replaced_by_another(
    encode, tmp_path, monkeypatch, slug_of
):
    out = tmp_path / "v.npy"
    first = encode(out)
    before = out.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(SentenceEncoder, "encode_batch_of_features", None)
        second = encode(out)
    assert second.notes[0] == "already encoded: `v.npy` holds these vectors, nothing was computed"
    assert second.resumed == 300
    assert second.truncated == first.truncated
    printed = [[name for name, _ in report.sections()[0].rows()] for report in (first, second)]
    assert ["sentences per second" in names for names in printed] == [True, False]
    leftovers = tmp_path / ".v.npy.encoding"  # a kill came while it was removed
    leftovers.mkdir()
    (leftovers / "rubbish").write_bytes(b"")
    encode(out)
    assert not leftovers.exists()
    for options, differing in (({"normalize": True}, "normalize"), ({"length": 12}, "model")):
        with pytest.raises(AlbertKitError, match=f"changed.*differing: {differing}"):
            encode(out, **options)
    assert out.read_bytes() == before
    out.write_bytes(b"something else")
    assert slug_of(encode, out) == "exists"
    encode(out, overwrite=True)
    assert out.read_bytes() == before


def test_texts_that_are_cut_are_counted_also_after_an_interruption(
    encode, encoder, file, tmp_path, small, monkeypatch
):
    texts = texts_of_example(file)
    too_long = sum(len(encoder.tokenizer.encode(text)) > 30 for text in texts)
    assert too_long > 50
    report = encode("v.npy", length=32)
    assert report.truncated == too_long
    assert f"{too_long} texts of 300 longer than 32 tokens, cut there" in report.notes
    assert encoder.max_length == 64
    encoder.max_length = 32
    with pytest.warns(
        UserWarning, match=f"^{too_long} of 300 texts are longer than 32 tokens and were cut"
    ):
        assert largest_difference(np.load(tmp_path / "v.npy"), encoder.encode(texts)) < 2e-6
    encoder.max_length = 64
    interrupt(monkeypatch, encode, "w.npy", length=32)
    resumed = encode("w.npy", length=32)
    assert resumed.resumed == 200
    assert resumed.truncated == too_long


def test_it_goes_on_only_as_it_began(encode, encoder, file, tmp_path, small, monkeypatch):
    out = tmp_path / "v.npy"
    interrupt(monkeypatch, encode, out)
    for options, differing in (
        ({"dimension": 8}, "dimension"),
        ({"normalize": True}, "normalize"),
        ({"dtype": "float16"}, "dtype"),
        ({"precision": "bf16"}, "precision"),
        ({"batch_tokens": 301}, "batch_tokens"),
    ):
        with pytest.raises(AlbertKitError, match=f"changed.*differing: {differing}"):
            encode(out, **options)
    other_encoder = SentenceEncoder(encoder.albert, encoder.tokenizer, "cls", encoder.max_length)
    with pytest.raises(AlbertKitError, match="differing: model"):
        encode_file(other_encoder, file, out, precision="fp32", batch_tokens=300)
    with torch.no_grad():
        encoder.albert.embeddings.word_embeddings.weight[7, 0] += 1e-3
    with pytest.raises(AlbertKitError, match="differing: model"):
        encode(out)
    with torch.no_grad():
        encoder.albert.embeddings.word_embeddings.weight[7, 0] -= 1e-3
    os.utime(file, ns=(1, 1))
    with pytest.raises(AlbertKitError, match="differing: input"):
        encode(out)
    assert encode(out, overwrite=True).resumed == 0
    assert (
        largest_difference(np.load(out), encoder.encode(texts_of_example(file), precision="fp32"))
        < 2e-6
    )


def test_a_file_that_changes_while_it_is_read(encode, file, tmp_path, small, monkeypatch, slug_of):
    encode_batch_of_features = SentenceEncoder.encode_batch_of_features

    def changing(self, *arguments):
        os.utime(file, ns=(1, 1))
        return encode_batch_of_features(self, *arguments)

    monkeypatch.setattr(SentenceEncoder, "encode_batch_of_features", changing)
    assert slug_of(encode, "v.npy") == "changed"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt"]


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "int8"},
        {"batch_tokens": "9"},
        {"normalize": "no"},
        {"columns": ["a"]},
    ],
)
def test_values_of_another_type_are_refused(encode, tmp_path, options):
    with pytest.raises(ConfigError):
        encode("v.npy", **options)
    assert not (tmp_path / "v.npy").exists()


# --- the command ----------------------------------------------------------------------------------


def test_the_command(checkpoint, encoder, file, tmp_path, run_command):
    command = [
        "embed",
        "encode",
        checkpoint,
        file,
        "--out",
        tmp_path / "v.npy",
        "--precision",
        "fp32",
    ]
    process = run_command(*command, "--json")
    assert process.json["texts"] == 300
    assert process.json["left_out"] == []
    assert process.json["out"] == str(tmp_path / "v.npy")
    assert process.err == ""
    assert (
        largest_difference(
            np.load(tmp_path / "v.npy"), encoder.encode(texts_of_example(file), precision="fp32")
        )
        < 2e-6
    )
    file.write_bytes(b"fox\n\xff\n")
    process = run_command(*command, "--on-error", "skip", "--overwrite")
    assert [line.split()[-1] for line in process.out.splitlines() if "left out" in line] == ["1"]
    assert "line 2" in process.err


def test_any_model_of_sentence_transformers_writes_its_own_vectors_also_after_an_interruption(
    file, tmp_path, small, monkeypatch, other_model, slug_of
):
    import sentence_transformers as st

    texts = texts_of_example(file)
    theirs = st.SentenceTransformer(str(other_model), device="cpu")
    report = encode_file(other_model, file, tmp_path / "v.npy", batch_tokens=300)
    assert report.precision == "fp32"
    assert report.dimension == 16
    assert largest_difference(np.load(tmp_path / "v.npy"), theirs.encode(texts)) < 2e-6
    lengths = [len(theirs.tokenizer(text)["input_ids"]) for text in texts]
    assert report.truncated == sum(length > theirs.max_seq_length for length in lengths) > 0
    encode_file(
        other_model, file, tmp_path / "p.npy", prompt_name="query", normalize=True, dimension=4
    )
    expected = theirs.encode(texts, prompt_name="query", truncate_dim=4, normalize_embeddings=True)
    assert largest_difference(np.load(tmp_path / "p.npy"), expected) < 2e-6
    encode = partial(encode_file, other_model, file, batch_tokens=300)
    interrupt(monkeypatch, encode, tmp_path / "w.npy")
    assert encode(tmp_path / "w.npy").resumed == 200
    assert (tmp_path / "w.npy").read_bytes() == (tmp_path / "v.npy").read_bytes()
    assert (
        slug_of(encode_file, other_model, file, tmp_path / "x.npy", precision="bf16")
        == "unknown-name"
    )
    assert (
        slug_of(encode_file, other_model, file, tmp_path / "x.npy", prompt_name="quer")
        == "bad-value"
    )
