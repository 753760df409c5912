"""Any cutting of files into ranges gives the documents of the whole files, once and in order."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from word_tokenizer import WordTokenizer

from albertkit.corpus import BuildSettings
from albertkit.corpus.inputs import find_inputs
from albertkit.corpus.parts import Part, encode_part, plan_parts
from albertkit.corpus.readers import DocumentFile
from albertkit.corpus.reading import Place
from albertkit.errors import DataError

TOKENIZER = WordTokenizer()
LINES = st.sampled_from(["a", "Tür auf.", "", " ", "\u3000", "b;$;c", "한국", "\r", "w " * 40, "</doc", "\ufeffx"])


def documents_of(path: Path, format: str, *span: int | None) -> list[str]:
    file = DocumentFile(find_inputs([path])[0], format, "text", "strict", ";$;", *span)
    found = [(document.text, document.cut) for document in file]
    return [*found, file.faulty_lines] if span == () else [*found]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(LINES, max_size=25), st.booleans(), st.sampled_from(["text", "paragraphs", "pairs"]), st.integers(1, 60)
)
@example(["a", "", "", "b"], False, "text", 1)
@example(["\ufeffx", "y", "\u3000", "z"], True, "text", 5)
def test_ranges_of_plain_text(tmp_path_factory, lines, ending, format, width):
    path = tmp_path_factory.mktemp("ranges", numbered=True) / "in.txt"
    path.write_text("\n".join(lines) + "\n" * ending, encoding="utf-8")
    check_ranges(path, format, width)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.sampled_from(["One.", "두 번째", ""]), max_size=3), max_size=8), st.integers(1, 80))
def test_ranges_of_wiki_and_json(tmp_path_factory, documents, width):
    folder = tmp_path_factory.mktemp("ranges", numbered=True)
    wiki = "".join(f'<doc id="{i}" title="T">\nT\n{chr(10).join(d)}\n</doc>\n\n' for i, d in enumerate(documents))
    (folder / "wiki").write_text(wiki)
    check_ranges(folder / "wiki", "wiki", width)
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": "\n".join(d)}) + "\n" for d in documents))
    check_ranges(folder / "in.jsonl", "jsonl", width)


def check_ranges(path: Path, format: str, width: int) -> None:
    *whole, faulty = documents_of(path, format)
    size = path.stat().st_size
    found, faults, lines = [], [], 0
    for start in range(0, size, width):
        end = start + width if start + width < size else None
        file = DocumentFile(find_inputs([path])[0], format, "text", "strict", ";$;", start, end, lines + 1)
        found += [(document.text, document.cut) for document in file]
        faults += file.faults
        lines += file.lines
    assert found == whole
    if format == "pairs":
        assert len(faults) == faulty
        written = path.read_text(encoding="utf-8").split("\n")
        assert all(written[line - 1].strip() and ";$;" not in written[line - 1] for line in faults)


def test_a_long_line_is_no_boundary(tmp_path, monkeypatch):
    monkeypatch.setattr("albertkit.corpus.ranges._LINE_BYTES", 8)
    (tmp_path / "in.txt").write_text(f"one\n{' ' * 30}\ntwo\n\n{'long ' * 10}\n\nthree")
    for width in range(1, 40):
        check_ranges(tmp_path / "in.txt", "text", width)


def test_the_number_of_a_line_in_a_range(tmp_path):
    records = [json.dumps({"text": f"Line {i}."}) for i in range(20)]
    (tmp_path / "in.jsonl").write_text("\n".join([*records, '{"text": 3}']))
    with pytest.raises(DataError, match="line 21: field `text` is a int"):
        documents_of(tmp_path / "in.jsonl", "jsonl", 220, None, 12)  # 11 lines of 20 bytes and ends before
    assert len(documents_of(tmp_path / "in.jsonl", "jsonl", 100, 200)) == 5


@pytest.fixture
def files(tmp_path) -> list:
    for i in range(5):
        (tmp_path / f"a{i}.txt").write_text("\n\n".join(f"Small file {i}.\nDocument {j}." for j in range(9)))
    (tmp_path / "b.txt").write_text("\n\n".join(f"Large file, {i}.\nYes." for i in range(400)))
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress((tmp_path / "b.txt").read_bytes()))
    (tmp_path / "d.txt").write_bytes((tmp_path / "c.txt.gz").read_bytes())  # compressed, whatever it is called
    return find_inputs([tmp_path])


def tokens(files: list, place: Place, **changes: int) -> tuple[np.ndarray, list[Part]]:
    how = BuildSettings()
    parts = list(plan_parts(files, place, how))
    results = [result for part in parts for result in encode_part(part, how, "strict", TOKENIZER)]
    return np.concatenate([result.encoded.tokens for result in results]), parts


def test_parts_of_files(files, monkeypatch):
    whole, parts = tokens(files, Place())
    assert len(parts) == 1  # all of it is small
    monkeypatch.setattr("albertkit.corpus.parts.PART_BYTES", 700)
    again, parts = tokens(files, Place())
    assert np.array_equal(whole, again)
    assert [part.first for part in parts[:4]] == [0, 2, 4, 5]  # two small files fit together
    assert sum(part.first == 5 for part in parts) > 10
    assert sum(part.first == 6 for part in parts) == 1


def test_a_build_goes_on_after_any_result(files, monkeypatch):
    monkeypatch.setattr("albertkit.corpus.parts.PART_BYTES", 700)
    monkeypatch.setattr("albertkit.corpus.parts._RESULT_CHARACTERS", 100)
    monkeypatch.setattr("albertkit.corpus.parts.BATCH_DOCUMENTS", 7)
    how, lines = BuildSettings(), 0
    whole, parts = tokens(files, Place())
    before, places = [], []
    for part in parts:
        for result in encode_part(part, how, "strict", TOKENIZER):
            before.append(result.encoded.tokens)
            place = part.next_place(lines + result.lines) if result.end else part.place(result.documents, lines)
            places.append((place, sum(map(len, before))))
            lines = place.lines
    assert any(place.document for place, _ in places)
    for place, written in places[:-1:5]:
        rest, _ = tokens(files, place)
        assert np.array_equal(rest, whole[written:]), place
