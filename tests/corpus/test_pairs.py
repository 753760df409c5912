"""Paragraphs and pairs: a line is a document; lines that are none are passed over, counted and named."""

import gzip
import json

import pytest
from word_tokenizer import WordTokenizer

from albertkit.corpus import BuildSettings, TokenStore, build_store, read_documents
from albertkit.corpus.sentences import line_rule
from albertkit.errors import AlbertKitError
from albertkit.job import Job

TOKENIZER = WordTokenizer()
PAIRS = "A one.;$;B one.\n\nno separator\nA two. ;$; B two.;$;C two.\n;$;B alone.\nA alone.;$;  \nA one.;$;B one.\n"


def texts(*files, **how):
    return [document.text for document in read_documents(files, **how)]


def documents(folder):
    return [
        [sentence.tolist() for sentence in document]
        for document in TokenStore.open(folder).documents()
    ]


def test_each_line_is_a_document(tmp_path):
    (tmp_path / "a.txt").write_text("One. It is 3.14 long.\n  Two.\n\n\tThree.\r\n")
    assert texts(tmp_path / "a.txt", format="paragraphs") == [
        "One. It is 3.14 long.",
        "Two.",
        "Three.",
    ]
    build_store(
        [tmp_path / "a.txt"], tmp_path / "store", TOKENIZER, BuildSettings(format="paragraphs")
    )
    split = [["One.", "It is 3.14 long."], ["Two."], ["Three."]]
    assert documents(tmp_path / "store") == [
        [TOKENIZER.ids(s) for s in sentences] for sentences in split
    ]


@pytest.mark.parametrize("separator", [";$;", "\t", "|||"])
def test_the_sentences_of_a_line_are_given(tmp_path, separator):
    """They are not split again, whatever stops they hold."""
    text = PAIRS.replace(";$;", separator).replace("A two.", "Dr. No came. A two.")
    (tmp_path / "a.gz").write_bytes(gzip.compress(text.encode()))
    documents = texts(tmp_path / "a.gz", format="pairs", separator=separator)
    assert documents == ["A one.\nB one.", "Dr. No came. A two.\nB two.\nC two.", "A one.\nB one."]
    assert [line_rule(None, f) for f in ("pairs", "paragraphs")] == ["sentence", "paragraph"]


def test_faulty_lines_are_counted_and_named(tmp_path):
    (tmp_path / "a.txt").write_text(PAIRS)
    (tmp_path / "b.txt").write_text("x\n" * 30)
    settings = BuildSettings(format="pairs")
    report = build_store(
        [tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "store", TOKENIZER, settings
    )
    assert report.documents == 2
    assert report.sentences == 5
    assert report.duplicate_documents == 1
    assert report.faulty_lines == 33
    assert report.faults == ["a.txt:3", "a.txt:5", "a.txt:6", *(f"b.txt:{n}" for n in range(1, 18))]
    (warning,) = (w for w in report.warnings if "33 lines" in w)
    assert "a.txt:3, a.txt:5, a.txt:6, b.txt:1, b.txt:2 …" in warning
    second_report = build_store(
        [tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "store", TOKENIZER, settings
    )
    assert second_report.already_built
    assert second_report.faults == report.faults


def test_an_interrupted_build_counts_the_same(tmp_path, monkeypatch):
    """Stopped by a bad file after a commit in the middle of a file of pairs, then resumed: the same bytes and faults."""
    monkeypatch.setattr("albertkit.corpus.encode.BATCH_CHARACTERS", 40)
    lines = [f"left {n};$;right {n}" if n % 7 else f"faulty {n}" for n in range(200)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    settings = BuildSettings(format="pairs")
    straight = build_store([tmp_path / "a.txt"], tmp_path / "one/store", TOKENIZER, settings)
    monkeypatch.setattr("albertkit.job.COMMIT_SECONDS", 0.0)
    commit = Job.commit
    remaining_writes = iter(range(30))

    def interrupted(self, **facts):
        if next(remaining_writes, None) is None:
            raise KeyboardInterrupt
        commit(self, **facts)

    with monkeypatch.context() as patch:
        patch.setattr(Job, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build_store([tmp_path / "a.txt"], tmp_path / "two/store", TOKENIZER, settings)
    resumed = build_store([tmp_path / "a.txt"], tmp_path / "two/store", TOKENIZER, settings)
    assert resumed.resumed
    assert straight.faulty_lines == resumed.faulty_lines
    assert straight.faults == resumed.faults
    manifests = [
        json.loads((tmp_path / n / "store/manifest.json").read_text()) for n in ("one", "two")
    ]
    assert manifests[0] == manifests[1]


def test_errors(tmp_path):
    (tmp_path / "a.txt").write_text("A\tB\nC\tD\n")
    message = r"\[too-little-data\].*none of 2 lines has two sentences with `;\$;` between them; the first: a.txt:1"
    with pytest.raises(AlbertKitError, match=message):
        build_store(
            [tmp_path / "a.txt"], tmp_path / "store", TOKENIZER, BuildSettings(format="pairs")
        )
    assert not (tmp_path / "store").exists()
    with pytest.raises(AlbertKitError, match=r"\[unknown-name\].*`pair`"):
        BuildSettings(format="pair")
    with pytest.raises(AlbertKitError, match=r"\[bad-value\]"):
        BuildSettings(separator=" ")


def test_other_formats_do_not_know_the_separator(tmp_path):
    """A store of plain text is the same whatever the separator: it is not among what the store was made from."""
    (tmp_path / "a.txt").write_text("A;$;B\n\nC")
    build_store([tmp_path / "a.txt"], tmp_path / "store", TOKENIZER)
    assert build_store(
        [tmp_path / "a.txt"], tmp_path / "store", TOKENIZER, BuildSettings(separator="|")
    ).already_built
    (tmp_path / "b.txt").write_text("A;$;B|C\n")
    build_store([tmp_path / "b.txt"], tmp_path / "pairs", TOKENIZER, BuildSettings(format="pairs"))
    with pytest.raises(AlbertKitError, match=r"\[changed\]"):
        build_store(
            [tmp_path / "b.txt"],
            tmp_path / "pairs",
            TOKENIZER,
            BuildSettings(format="pairs", separator="|"),
        )
