"""Files of the shapes that people have: the rows are those of the csv module, or the error has its slug."""

import csv
import io
from pathlib import Path

import pytest

from albertkit.data.layouts import is_number
from albertkit.data.tables import Table
from albertkit.errors import DataError


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
