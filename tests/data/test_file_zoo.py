"""Files of the shapes that people have: the rows are those of the csv module, or the error has its slug."""

import csv
import gzip
import io
import json
import lzma
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
import zstandard

from albertkit.data.bad_rows import BadRows
from albertkit.data.columns import Columns
from albertkit.data.inputs import ByteStream, find_file, find_inputs
from albertkit.data.layouts import is_number
from albertkit.data.tables import Table
from albertkit.errors import DataError
from albertkit.tasks.registry import find_task

PACKERS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.ZstdCompressor().compress}


@contextmanager
def opened(folder: Path, name: str, content: bytes, packing: str = "") -> Iterator[Path]:
    """Yield a file with this content: packed, or a named pipe, which can be read only once."""
    file = folder / name
    if packing != "pipe":
        file = file.with_name(name + packing)
        file.write_bytes(PACKERS[packing](content))
        yield file
        return
    os.mkfifo(file)
    writer = threading.Thread(target=file.write_bytes, args=(content,))
    writer.start()
    yield file
    writer.join()


@pytest.mark.parametrize(
    ("content", "separator"),
    [
        ("text,label\na,pos\n\nb,neg\n\n\nc,pos\n\n", ","),
        ("\ntext,label\r\n\r\na,pos\r\n", ","),
        ('text;label\n"a\n\nb";pos\n\nc;neg\n', ";"),
        ("sep=;\ntext;label\na, b;pos\n", ";"),
        ("\ufeffsep=;\r\ntext;label\r\na;pos\r\n", ";"),
        ("SEP=,\ntext,label\na;b,pos\n", ","),
        ("sep=|\ntext|label\na;b,c|pos\n", "|"),
        ("sep=\t\ntext\tlabel\na;b,c\tpos\n", "\t"),
    ],
)
def test_rows_are_those_of_csv(content: str, separator: str, tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_bytes(content.encode())
    table = content.removeprefix("\ufeff")
    if table.lower().startswith("sep="):
        table = table.partition("\n")[2]
    names, *expected = filter(None, csv.reader(io.StringIO(table, newline=""), delimiter=separator))
    with Table(file) as read:
        assert [row.values for row in read.rows()] == [dict(zip(names, row, strict=True)) for row in expected]


@pytest.mark.parametrize(
    ("content", "slug", "encoding"),
    [
        ("text,label\na,pos\n".encode("utf-16"), "bad-encoding", "UTF-16"),
        ("text,label\na,pos\n".encode("utf-32"), "bad-encoding", "UTF-32"),
        (b"\0\0\xfe\xff" + "text,label\na,pos\n".encode("utf-32-be"), "bad-encoding", "UTF-32"),
    ],
)
def test_other_encodings_are_named(content: bytes, slug: str, encoding: str, tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_bytes(content)
    with pytest.raises(DataError) as error:
        Table(file)
    assert error.value.slug == slug
    assert f"is {encoding}," in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"), [("1_0", False), ("10", True), ("-1e3", True), ("nan", False), ("1_000.5", False)]
)
def test_numbers_are_those_of_files_not_of_python(text: str, expected: bool) -> None:
    assert is_number(text) is expected


@pytest.mark.parametrize("window_log", [27, 28, 30, 31])
@pytest.mark.parametrize("before", [b"", b"\x50\x2a\x4d\x18\x04\0\0\0abcd", b"\x5f\x2a\x4d\x18\0\0\0\0"])
def test_zstandard_of_any_window_is_read(window_log: int, before: bytes, tmp_path: Path) -> None:
    text = b"two lines\nof text\n" * 100
    # a frame with one raw block, by its format: no content size, so the window is what the header says
    frame = b"\x28\xb5\x2f\xfd\0" + bytes([(window_log - 10) << 3]) + (len(text) << 3 | 1).to_bytes(3, "little") + text
    assert zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj().decompress(frame) == text
    file = tmp_path / "text.zst"
    file.write_bytes(before + frame)
    with ByteStream(find_file(file)) as stream:
        assert b"".join(iter(stream.read, b"")) == text


def test_litter_of_file_managers_is_passed_over(tmp_path: Path) -> None:
    for name in ("a.txt", "Thumbs.db", "desktop.ini", ".DS_Store"):
        (tmp_path / name).write_bytes(b"x\0")
    assert [file.name for file in find_inputs([tmp_path])] == ["a.txt"]


@pytest.mark.parametrize(
    ("link", "target", "slug"),
    [
        ("b.txt", "lost.txt", "not-found"),
        ("self", ".", "wrong-kind"),
        ("below/up", "..", "wrong-kind"),
        ("below/in", ".", "wrong-kind"),
    ],
)
def test_links_that_are_broken_or_lead_back_are_refused(link: str, target: str, slug: str, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "a.txt").write_text("text\n")
    (tmp_path / link).symlink_to(target)
    with pytest.raises(DataError) as error:
        find_inputs([tmp_path])
    assert error.value.slug == slug
    assert link in str(error.value)


def test_links_that_lead_to_each_other_are_refused(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "link").symlink_to(tmp_path / other)
    with pytest.raises(DataError, match="leads back"):
        find_inputs([tmp_path / "a"])


def test_links_that_lead_on_are_followed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.txt").write_text("text\n")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/linked").symlink_to(tmp_path / "data")
    assert [file.name for file in find_inputs([tmp_path / "corpus"])] == ["a.txt"]


@pytest.mark.parametrize(
    ("name", "content", "slug"),
    [
        ("a.jsonl", '{"text": "a", "text": "b"}\n', "bad-row"),
        ("a.jsonl", '{"text": "a"}\n{"text": {"x": "1", "x": "2"}}\n', "bad-row"),
        ("a.json", '[{"text": "a", "text": "b"}]', "bad-file"),
    ],
)
def test_a_key_twice_is_refused(name: str, content: str, slug: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(DataError, match="occurs twice") as error, Table(file) as table:
        list(table.rows())
    assert error.value.slug == slug


@pytest.mark.parametrize("packing", ["", ".gz", ".xz", ".zst", "pipe"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_columns_of_json_are_those_of_all_records(name: str, packing: str, tmp_path: Path) -> None:
    records = [
        {"text": "a"},
        {"text": "b", "label": "pos", "meta": {"source": "x"}},
        {"id": "7", "text": "c", "meta": {"source": "y", "page": "2"}},
    ]
    lines = "\n".join(map(json.dumps, records)) if name.endswith("l") else json.dumps(records)
    frame = pd.json_normalize(records).fillna("")
    with opened(tmp_path, name, lines.encode(), packing) as file, Table(file) as table:
        assert sorted(table.columns) == sorted(frame.columns)
        assert [row.values for row in table.rows()] == frame[list(table.columns)].to_dict("records")


def test_records_that_lack_a_required_column_are_bad_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": "b", "label": "pos"}\n')
    bad_rows = BadRows("skip")
    with Table(tmp_path / "a.jsonl", bad_rows=bad_rows) as table:
        assert [row.values for row in table.rows(["text", "label"])] == [{"text": "b", "label": "pos"}]
    assert [(row.line, row.reason) for row in bad_rows.found] == [(1, "no `label`")]


def test_questions_whose_first_record_is_short(tmp_path: Path) -> None:
    records = [
        {"question": "Which?", "choice1": "a", "choice2": "b", "label": "A"},
        {
            "id": "q2",
            "context": "A text.",
            "question": "Who?",
            "choice1": "c",
            "choice2": "d",
            "choice3": "e",
            "label": 2,
        },
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    task = find_task("choice")
    examples = task.examples(tmp_path / "a.jsonl", split="train", labelled=True, bad_rows=BadRows())
    read = [(one.id, one.context, one.question, one.choices, one.label) for one in examples]
    assert read == [("0", "", "Which?", ("a", "b"), 0), ("q2", "A text.", "Who?", ("c", "d", "e"), 2)]


def test_ids_and_further_columns_of_later_records_are_read(tmp_path: Path) -> None:
    records = [{"text": "a"}, {"id": "x7", "text": "b", "source": "web"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    task = find_task("classify", Columns(text="text"))
    rows = task.rows(tmp_path / "a.jsonl", split="test", labelled=False, bad_rows=BadRows(), more=None)
    assert [(example.id, row.values) for example, row in rows] == [
        ("0", {"text": "a", "id": "", "source": ""}),
        ("x7", {"text": "b", "id": "x7", "source": "web"}),
    ]
