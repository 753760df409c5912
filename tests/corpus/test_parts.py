"""Any cutting of files into ranges gives the documents of the whole files, once and in order."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from record_files import write_records
from word_tokenizer import WordTokenizer

from albertkit.corpus import BuildSettings
from albertkit.corpus.cluster import plan_parts
from albertkit.corpus.documents import DocumentFile
from albertkit.corpus.encode import (
    BuildInputs,
    CorpusPosition,
    encode_documents,
    read_batches,
)
from albertkit.errors import DataError
from albertkit.tables.files import find_inputs

TOKENIZER = WordTokenizer()
LINES = st.sampled_from(
    ["a", "Tür auf.", "", " ", "\u3000", "b;$;c", "한국", "\r", "w " * 40, "</doc", "\ufeffx"]
)


def documents_of(path, format, *span):
    file = DocumentFile(find_inputs([path])[0], BuildSettings(format), "strict", *span)
    documents = [(document.text, document.cut) for document in file]
    return [*documents, file.faulty_lines] if span == () else [*documents]


@settings(max_examples=150)
@given(
    st.lists(LINES, max_size=25),
    st.booleans(),
    st.sampled_from(["text", "paragraphs", "pairs"]),
    st.integers(1, 60),
)
@example(["a", "", "", "b"], False, "text", 1)
@example(["\ufeffx", "y", "\u3000", "z"], True, "text", 5)
def test_ranges_of_plain_text(tmp_path_factory, lines, ending, format, width):
    path = tmp_path_factory.mktemp("ranges", numbered=True) / "in.txt"
    path.write_text("\n".join(lines) + "\n" * ending, encoding="utf-8")
    check_ranges(path, format, width)


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.sampled_from(["One.", "두 번째", ""]), max_size=3), max_size=8),
    st.integers(1, 80),
)
def test_ranges_of_wiki_and_json(tmp_path_factory, documents, width):
    folder = tmp_path_factory.mktemp("ranges", numbered=True)
    wiki = "".join(
        f'<doc id="{i}" title="T">\nT\n{chr(10).join(d)}\n</doc>\n\n'
        for i, d in enumerate(documents)
    )
    (folder / "wiki").write_text(wiki)
    check_ranges(folder / "wiki", "wiki", width)
    write_records(folder / "in.jsonl", ({"text": "\n".join(d)} for d in documents))
    check_ranges(folder / "in.jsonl", "jsonl", width)


def check_ranges(path, format, width):
    *all_documents, faulty = documents_of(path, format)
    size = path.stat().st_size
    documents = []
    faults = []
    lines = 0
    for start in range(0, size, width):
        end = start + width if start + width < size else None
        file = DocumentFile(
            find_inputs([path])[0], BuildSettings(format), "strict", start, end, lines + 1
        )
        documents += [(document.text, document.cut) for document in file]
        faults += file.faults
        lines += file.lines
    assert documents == all_documents
    if format == "pairs":
        assert len(faults) == faulty
        written_documents = path.read_text(encoding="utf-8").split("\n")
        assert all(
            written_documents[line - 1].strip() and ";$;" not in written_documents[line - 1]
            for line in faults
        )


def test_a_long_line_is_no_boundary(tmp_path, monkeypatch):
    monkeypatch.setattr("albertkit.corpus.documents._LINE_BYTES", 8)
    (tmp_path / "in.txt").write_text(f"one\n{' ' * 30}\ntwo\n\n{'long ' * 10}\n\nthree")
    for width in range(1, 40):
        check_ranges(tmp_path / "in.txt", "text", width)


def test_the_number_of_a_line_in_a_range(tmp_path):
    records = [json.dumps({"text": f"Line {i}."}) for i in range(20)]
    (tmp_path / "in.jsonl").write_text("\n".join([*records, '{"text": 3}']))
    with pytest.raises(DataError, match="line 21: field `text` is a int"):
        # 11 lines of 20 bytes and ends before
        documents_of(tmp_path / "in.jsonl", "jsonl", 220, None, 12)
    assert len(documents_of(tmp_path / "in.jsonl", "jsonl", 100, 200)) == 5


@pytest.fixture
def files(tmp_path):
    for i in range(5):
        (tmp_path / f"a{i}.txt").write_text(
            "\n\n".join(f"Small file {i}.\nDocument {j}." for j in range(9))
        )
    (tmp_path / "b.txt").write_text("\n\n".join(f"Large file, {i}.\nYes." for i in range(400)))
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress((tmp_path / "b.txt").read_bytes()))
    # Compressed, whatever it is called
    (tmp_path / "d.txt").write_bytes((tmp_path / "c.txt.gz").read_bytes())
    return find_inputs([tmp_path])


def results(files, position):
    """Every part with its batches and their ids."""
    inputs = BuildInputs(files, BuildSettings(), "strict", TOKENIZER)
    return [
        (part, batch, encode_documents(batch.texts, batch.rules, TOKENIZER, "en").tokens)
        for part in plan_parts(files, position, inputs.settings)
        for batch in read_batches(part, inputs, lambda _: True)
    ]


def tokens(tokens_of_documents):
    return np.concatenate([ids for _, _, ids in tokens_of_documents])


def test_parts_of_files(files, monkeypatch):
    all_batches = results(files, CorpusPosition())
    assert len({part for part, _, _ in all_batches}) == 1  # all of it is small
    monkeypatch.setattr("albertkit.corpus.cluster.PART_BYTES", 700)
    cut = results(files, CorpusPosition())
    assert np.array_equal(tokens(all_batches), tokens(cut))
    first = [part.first for part, _, _ in cut]
    assert first[:4] == [0, 2, 4, 5]  # two small files fit together
    assert first.count(5) > 10
    assert first.count(6) == 1


def test_a_build_goes_on_after_any_batch(files, monkeypatch):
    monkeypatch.setattr("albertkit.corpus.cluster.PART_BYTES", 700)
    monkeypatch.setattr("albertkit.corpus.encode.BATCH_DOCUMENTS", 7)
    batches = results(files, CorpusPosition())
    assert any(batch.position.document for _, batch, _ in batches)
    for number in range(0, len(batches) - 1, 5):
        remaining_batches = results(files, batches[number][1].position)
        assert np.array_equal(tokens(remaining_batches), tokens(batches[number + 1 :])), batches[
            number
        ][1].position
