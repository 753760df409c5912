"""Tables of any form: the same rows from all of them, and every way in which one can be wrong."""

import csv
import gzip
import json
import lzma
import subprocess

import pytest
import zstandard

from albertkit.errors import DataError
from albertkit.tables.bad_rows import BadRows
from albertkit.tables.table import Table

ROWS = [
    {"id": "7", "sentence": 'He said "no", twice', "label": "0"},
    {"id": "8", "sentence": "두 번째 문장", "label": "1"},
    {"id": "9", "sentence": "a\u2028line, that goes on", "label": "1"},
]


def write_csv(path, rows=ROWS, **options):
    with open(path, "w", encoding=options.pop("encoding", "utf-8"), newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), **options)
        writer.writeheader()
        writer.writerows(rows)
    return path


def values(path, **options):
    with Table(path, **options) as table:
        return [row.values for row in table.rows()]


def as_tsv(path):
    lines = ["\t".join(ROWS[0]), *("\t".join(row.values()) for row in ROWS)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def as_parquet(path):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist([{**row, "id": int(row["id"])} for row in ROWS]), path
    )


FORMS = {
    "a.csv": write_csv,
    "semicolon.csv": lambda path: write_csv(path, delimiter=";"),
    "bom.csv": lambda path: write_csv(path, encoding="utf-8-sig"),
    "mac-excel.csv": lambda path: write_csv(
        path, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None
    ),
    "a.tsv": as_tsv,
    "no-extension": as_tsv,
    "a.jsonl": lambda path: path.write_text("\n\n".join(map(json.dumps, ROWS))),
    "array.json": lambda path: path.write_text(
        json.dumps(ROWS, indent=4, ensure_ascii=False), encoding="utf-8"
    ),
    "dense.json": lambda path: path.write_text(json.dumps(ROWS)),
    "a.parquet": as_parquet,
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("packing", ["", "gz", "xz", "zst"])
def test_every_form_gives_the_same_rows(tmp_path, name, packing):
    path = tmp_path / name
    FORMS[name](path)
    if packing:
        pack = {
            "gz": gzip.compress,
            "xz": lzma.compress,
            "zst": zstandard.ZstdCompressor().compress,
        }[packing]
        path = tmp_path / f"{name}.{packing}"
        path.write_bytes(pack((tmp_path / name).read_bytes()))
    assert values(path) == ROWS
    with Table(path) as table:
        assert [(r.number, r.values) for r in table.rows(["label"])] == [
            (0, {"label": "0"}),
            (1, {"label": "1"}),
            (2, {"label": "1"}),
        ]


def test_rows_know_their_lines(tmp_path):
    path = write_csv(
        tmp_path / "a.csv", [{"a": "one\ntwo\nthree", "b": "x"}, {"a": "four", "b": "y"}]
    )
    with Table(path) as table:
        assert [row.line for row in table.rows()] == [2, 5]


def test_a_json_array_larger_than_what_is_read_at_once(tmp_path):
    rows = [{"text": "word " * 3000, "n": str(n)} for n in range(300)] + [
        {"text": "w " * 1_500_000, "n": "long"}
    ]
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=1))
    assert values(tmp_path / "a.json") == rows


def test_objects_within_objects_have_dotted_names(tmp_path):
    (tmp_path / "a.json").write_text(
        '[{"s": "x", "labels": {"label": 4.9, "binary": null, "all": [1, 2]}, "ok": true}]'
    )
    assert values(tmp_path / "a.json") == [
        {"s": "x", "labels.label": "4.9", "labels.binary": "", "labels.all": "[1, 2]", "ok": "true"}
    ]


def test_structures_in_parquet_have_dotted_names(tmp_path):
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.Table.from_pylist([{"s": "x", "labels": {"label": 4.9, "n": None}}])
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with Table(tmp_path / "a.parquet") as opened:
        assert opened.columns == ("s", "labels.label", "labels.n")
        assert [row.values for row in opened.rows(["labels.label"])] == [{"labels.label": "4.9"}]


def test_a_text_of_fifty_thousand_words(tmp_path):
    long = "word, " * 50_000  # 300,000 characters; the csv module alone stops at 131,072
    assert values(write_csv(tmp_path / "a.csv", [{"text": long, "label": "0"}]))[0]["text"] == long


def test_a_table_without_header(tmp_path):
    (tmp_path / "a.tsv").write_text("x\t1\ty\nz\t0\tw\tfurther\nshort\t1\n")
    with Table(tmp_path / "a.tsv") as table:
        table.without_header(["text", "label", "source"], more_fields=True)
        assert [row.values for row in table.rows(["label", "text"])] == [
            {"text": "x", "label": "1"},
            {"text": "z", "label": "0"},
            {"text": "short", "label": "1"},
        ]


# --- quoting --------------------------------------------------------------------------------------


def test_a_quoted_table_read_unquoted_is_refused(tmp_path):
    path = write_csv(tmp_path / "a.tsv", delimiter="\t")
    with pytest.raises(DataError, match=r"\[doubtful\].*line 2: the fields are in quotes"):
        values(path)
    assert values(path, quoted=True) == values(path, quoted="look") == ROWS
    assert values(path, quoted=False)[0]["sentence"] == '"He said ""no"", twice"'


def test_a_header_in_quotes_is_quoting(tmp_path):
    path = write_csv(
        tmp_path / "a.tsv", [{"a": "x", "b": "y"}], delimiter="\t", quoting=csv.QUOTE_ALL
    )
    with pytest.raises(DataError, match="line 1: the fields are in quotes"):
        values(path)


def test_quotes_of_the_text_are_no_quoting(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text(
        'text\tlabel\n"The lies went on for 12 years."\t1\nover "12 years"\t0\n"a ""b"" c"\t1\n'
    )
    assert [row["text"] for row in values(path, quoted="look")] == [
        row["text"] for row in values(path, quoted=False)
    ]
    assert values(path)[0]["text"] == '"The lies went on for 12 years."'


def test_the_two_editions_of_rte(data, golden):
    with (
        Table(data / "glue/RTE/dev.tsv", quoted="look") as quoted,
        open(data / "glue/RTE/dev.tsv", newline="") as other_edition,
    ):
        assert [row.values for row in quoted.rows()] == list(
            csv.DictReader(other_edition, delimiter="\t")
        )
    plain = golden / "glue/data/RTE/dev.tsv"
    expected = [line.split("\t") for line in plain.read_text(encoding="utf-8").splitlines()[1:]]
    assert [list(row.values()) for row in values(plain, quoted="look")] == expected
    assert any('"' in field for row in expected for field in row)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('text,label\n"He said "no" twice",1\nb,0\n', "not doubled"),
        ('text,label\na,1\n"open,0\nb,0\nc,1\n', "it swallowed 2 further lines"),
        ('text,label\n"open,0\nb,0\nc,1\nd,1\nclosed",0\n', "a quote that is closed 4 rows later"),
    ],
)
def test_a_quote_that_swallows_rows_is_told(tmp_path, text, reason):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=reason) as caught:
        values(path)
    assert "--no-quoted" in caught.value.hint
    assert len(values(path, quoted=False)) == text.count("\n") - 1


def test_a_text_of_several_lines_is_none(tmp_path):
    rows = [{"text": "Dear Sir,\nyes, no\nand so on, and on,\nYours", "label": "0"}]
    assert values(write_csv(tmp_path / "a.csv", rows)) == rows


# --- what can be wrong ----------------------------------------------------------------------------


def bad_rows_of(path, columns=None, **options):
    bad_rows = BadRows("skip")
    with Table(path, bad_rows=bad_rows, **options) as table:
        rows = list(table.rows(columns))
    return rows, [(row.line, row.reason) for row in bad_rows.rows]


def test_bad_rows_are_told_with_their_lines(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(b"text\tlabel\ngood\t1\nshort\nlong\t1\tx\n\nbad \xb0\xa1\t0\nlast\t0\n\n\n")
    rows, bad_rows = bad_rows_of(path)
    assert [(row.number, row.line, row.values["text"]) for row in rows] == [
        (0, 2, "good"),
        (5, 7, "last"),
    ]
    assert bad_rows == [
        (3, "1 field, but the table has 2 columns"),
        (4, "3 fields, but the table has 2 columns"),
        (5, "an empty line"),
        (6, "bytes that are not UTF-8"),
    ]
    with pytest.raises(DataError, match=r"\[bad-row\].*line 3: 1 field,"):
        values(path)


def test_bad_json_lines_are_told(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": "x"}\n{"a": \n[1]\n{"b": "y"}\n{"a": "\\ud800"}\n{"a": "z"}\n')
    rows, bad_rows = bad_rows_of(path, ["a"])
    assert [row.values for row in rows] == [{"a": "x"}, {"a": "z"}]
    assert [line for line, _ in bad_rows] == [2, 3, 4, 5]
    assert bad_rows[0][1] == "not JSON: Expecting value, column 7"
    assert [reason for _, reason in bad_rows[1:]] == [
        "a list, not an object",
        "no `a`",
        "bytes that are not UTF-8",
    ]
    path.write_text('{"a": "\\ud800"}\n')
    with pytest.raises(DataError) as caught:
        values(path)
    assert caught.value.hint.startswith(
        r"a character beyond U+FFFF takes two escapes of JSON, such as \ud83d\ude00"
    )
    path.write_text('"x"\n"y"\n')
    with pytest.raises(
        DataError, match=r"has no record that can be read; the last is a str, not an object"
    ):
        Table(path, bad_rows=BadRows("skip"))


@pytest.mark.parametrize(
    ("name", "content", "slug"),
    [
        ("a.tsv", b"", "empty"),
        ("a.json", b"[]", "empty"),
        ("a.json", b'[{"text": 1}, {"text": 2', "bad-file"),
        ("a.json", b'[{"text": 1} {"text": 2}]', "bad-file"),
        ("a.tsv", "text\tlabel\n".encode("utf-16"), "bad-encoding"),
        ("a.xlsx", b"PK\x03\x04....", "wrong-kind"),
        ("a.parquet", b"PAR1 and no more", "corrupt"),
        ("b.parquet", b"text,label\na,b\n", "corrupt"),
        ("a.csv.gz", gzip.compress(b"text,label\n" * 1000, mtime=0)[:-9], "corrupt"),
        ("a.tsv", b"text\ttext\na\tb\n", "ambiguous"),
        ("a.csv", b"sentence,label\na,b\n", "missing-column"),
    ],
)
def test_a_table_that_cannot_be_read(tmp_path, name, content, slug):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"\[{slug}\]"), Table(tmp_path / name) as table:
        list(table.rows(["text"]))


def test_how_a_file_is_made_utf8(tmp_path):
    """The command of the hint does it, and the file stays what it is."""
    for name, encoding in (("a.csv", "utf-16"), ("b.csv.gz", "utf-16"), ("c.csv", "latin-1")):
        content = "text,label\nà la carte,1\n".encode(encoding)
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        with pytest.raises(DataError) as caught:
            values(tmp_path / name)
        command = caught.value.hint.split("`")[1] if "`" in caught.value.hint else caught.value.hint
        subprocess.run(["sh", "-c", command], check=True)
        assert values(tmp_path / f"{name[0]}.utf8.csv") == [{"text": "à la carte", "label": "1"}]


def test_looking_for_quotes_reads_commas_as_ever(tmp_path):
    (tmp_path / "a.csv").write_text('text,label\n"a, b",1\nc,0\n')
    for quoting in (None, "look"):
        with Table(tmp_path / "a.csv", quoted=quoting) as table:
            assert [row.values["text"] for row in table.rows()] == ["a, b", "c"]


def test_a_record_is_not_called_a_line(tmp_path):
    (tmp_path / "a.json").write_text('[{"a": "x"},\n\n5]')
    with pytest.raises(DataError, match="record 2: a int, not an object"):
        values(tmp_path / "a.json")


def test_a_misspelt_column_is_refused_with_those_there(tmp_path):
    with (
        Table(write_csv(tmp_path / "a.csv")) as table,
        pytest.raises(DataError, match="only `id`, `sentence`") as caught,
    ):
        list(table.rows(["sentense"]))
    assert caught.value.hint == "did you mean `sentence`?"


def test_a_folder_or_nothing(tmp_path):
    with pytest.raises(DataError, match="this is a folder"):
        Table(tmp_path)
    with pytest.raises(DataError, match="no such file"):
        Table(tmp_path / "a.tsv")


def test_bytes_that_are_not_utf8_in_parquet(tmp_path):
    import pyarrow
    import pyarrow.parquet

    texts = pyarrow.array([b"good", b"bad \xff", None], pyarrow.binary()).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet")
    rows, bad_rows = bad_rows_of(tmp_path / "a.parquet")
    assert [row.values for row in rows] == [{"text": "good"}, {"text": ""}]
    assert bad_rows == [(2, "bytes that are not UTF-8")]
