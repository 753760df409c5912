"""Documents out of every format and packing, and errors with the place for everything that can be wrong with a file."""

import gzip
import json
import lzma
import re
from pathlib import Path

import pytest
import zstandard

from albertkit.corpus import read_documents
from albertkit.corpus.documents import DocumentFile
from albertkit.errors import DataError, MissingExtraError
from albertkit.tables.files import find_inputs

PACKINGS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
}
WIKI = (
    '<doc id="1" url="http://x?curid=1" title="A &amp; B">\nA & B\n\nFirst paragraph. It goes on.\nSecond one.\n\n</doc>\n'
    '<doc id="2" url="http://x?curid=2" title="Empty">\nEmpty\n</doc>\n'
)
TEXT = "One a.\nOne b.\n\n\n  \nTwo a.\r\nTwo b."


def texts(*paths, **options):
    return [document.text for document in read_documents(list(paths), **options)]


def parquet_bytes(values, name="text"):
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.table({name: values, "n": list(range(len(values)))}), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize(
    "name", "a.txt a.jsonl wiki_00 a.parquet packed_without_a_telling_name".split()
)
def test_every_format_in_every_packing(tmp_path, name, packing):
    lines = "".join(
        json.dumps({"id": i, "text": text}) + "\n"
        for i, text in enumerate(["One.\nTwo.", "", "Three."])
    )
    content = {
        "a.txt": (TEXT.encode(), ["One a.\nOne b.", "Two a.\nTwo b."]),
        "a.jsonl": (lines.encode(), ["One.\nTwo.", "", "Three."]),
        "wiki_00": (WIKI.encode(), ["First paragraph. It goes on.\nSecond one.", ""]),
    }
    if name == "a.parquet":
        data = parquet_bytes(["One.\nTwo.", None, "Three."])
        expected = ["One.\nTwo.", "", "Three."]
    else:
        data, expected = content.get(name, content["a.txt"])
    file = tmp_path / (name if name.startswith("packed") else name + packing)
    file.write_bytes(PACKINGS[packing](data))
    assert texts(file) == expected


@pytest.mark.parametrize("packing", [".gz", ".xz", ".zst"])
def test_concatenated_streams_are_one_file(tmp_path, packing):
    file = tmp_path / f"a.txt{packing}"
    file.write_bytes(PACKINGS[packing](b"One.\n\n") + PACKINGS[packing](b"Two.\n"))
    assert texts(file) == ["One.", "Two."]


def test_files_never_merge_documents(tmp_path):
    for name in "ba":
        (tmp_path / f"{name}.txt").write_text(f"Of {name}.")  # no blank line, not even a line end
    documents = list(read_documents([tmp_path]))
    assert [(Path(d.file).name, d.ordinal, d.text) for d in documents] == [
        ("a.txt", 0, "Of a."),
        ("b.txt", 0, "Of b."),
    ]


def test_blocks_do_not_show(tmp_path):
    lines = [f"Zeile {i} mit Ümläuten und 한국어." for i in range(60_000)]  # 2.6 MB: three blocks
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n\nEnd.", encoding="utf-8")
    assert texts(tmp_path / "a.txt") == ["\n".join(lines), "End."]


def test_only_newlines_end_lines(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        json.dumps({"text": "a\u2028b\x85c"}, ensure_ascii=False) + "\n"
    )
    assert texts(tmp_path / "a.jsonl") == ["a\u2028b\x85c"]


def test_a_byte_order_mark_is_not_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfOne.\n")
    (tmp_path / "b").write_bytes(b'\xef\xbb\xbf{"text": "Two."}\n')
    assert texts(tmp_path) == ["One.", "Two."]


def test_endless_documents_are_cut_and_marked(tmp_path, monkeypatch):
    monkeypatch.setattr("albertkit.corpus.documents.DOCUMENT_CHARACTERS", 100)
    lines = [f"This is line {i}." for i in range(50)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    documents = list(read_documents([tmp_path / "a.txt"]))
    assert [line for d in documents for line in d.text.split("\n")] == lines
    assert [d.cut for d in documents] == [True] * (len(documents) - 1) + [False]
    assert len(documents) > 5


def test_inputs_are_sorted_and_read_once(tmp_path):
    for name in ("c.txt", "a.txt", "sub/b.txt", ".hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    names = [
        Path(f.path).relative_to(tmp_path).as_posix()
        for f in find_inputs([tmp_path, tmp_path / "*.txt"])
    ]
    assert names == ["a.txt", "c.txt", "sub/b.txt"]
    assert [f.name for f in find_inputs([tmp_path / "**/*.txt"])] == ["a.txt", "c.txt", "b.txt"]


def test_urls(slug_of):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/corpus/b.txt.gz", gzip.compress(b"Two.\n"))
    memory.pipe("/corpus/a.txt", b"One.\n")
    memory.pipe("/corpus/c.parquet", parquet_bytes(["Three."]))
    expected = ["One.", "Two.", "Three."]
    assert texts("memory://corpus/") == texts("memory://corpus/*") == expected
    assert slug_of(texts, "memory://nowhere/a") == "not-found"
    assert slug_of(texts, "nosuch://a") == "bad-value"


def test_a_field_may_be_that_of_a_field_or_of_every_item_of_a_list(tmp_path):
    records = [
        {
            "SJML": {"text": [{"content": "One."}, {"content": " Two. "}]},
            "meta": {"body": "Three."},
        },
        {"SJML": {"text": []}, "meta": {"body": ""}, "SJML.text[].content": "as it is called"},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    assert texts(tmp_path / "a.jsonl", field="meta.body") == ["Three.", ""]
    assert texts(tmp_path / "a.jsonl", field="SJML.text[].content") == [
        "One.\nTwo.",
        "as it is called",
    ]
    for field, hint in (
        ("SJML.txt[].content", "did you mean `text`?"),
        ("meta.body[]", "--field meta.body"),
        ("SJML.text.content", "choose with --field"),
        ("SJML.text[]", "name another with --field"),
    ):
        with pytest.raises(
            DataError, match=rf"(?s)\[missing-column\].*line 1.*hint: .*{re.escape(hint)}"
        ):
            texts(tmp_path / "a.jsonl", field=field)


def test_field_and_column_are_named_with_a_near_miss(tmp_path, slug_of):
    (tmp_path / "a.jsonl").write_text('{"body": "One."}\n')
    (tmp_path / "b.parquet").write_bytes(parquet_bytes(["Two."], "body"))
    assert texts(tmp_path, field="body") == ["One.", "Two."]
    for name, location in (("a.jsonl", "line 1"), ("b.parquet", "column")):
        with pytest.raises(DataError, match=rf"(?s)\[missing-column\].*{location}.*hint: .*`body`"):
            texts(tmp_path / name, field="bdy")
    assert slug_of(texts, tmp_path / "b.parquet", field="n") == "missing-column"


def test_bad_bytes_are_counted_with_the_first_place(tmp_path):
    good = "Süß.\n" * 300_000  # the bad ones lie in the second block
    data = good.encode() + b"caf\xe9 and \xff\xfe.\n" + "Süß.\n".encode()
    (tmp_path / "a.txt").write_bytes(data)
    location = rf"line 300,001, byte {len(good.encode()) + 3:,} \(0xe9\)"
    with pytest.raises(DataError, match=rf"\[bad-encoding\].*3 bad bytes.*{location}"):
        texts(tmp_path / "a.txt")
    (file,) = find_inputs([tmp_path / "a.txt"])
    reader = DocumentFile(file, errors="replace")
    (document,) = reader
    assert reader.bad_bytes == 3
    assert document.text.split("\n")[-2:] == ["caf\ufffd and \ufffd\ufffd.", "Süß."]


def test_bad_bytes_in_parquet_and_half_characters_in_json(tmp_path):
    import pyarrow as arrow

    (tmp_path / "a.parquet").write_bytes(
        parquet_bytes(arrow.array([b"good", b"caf\xe9"], arrow.binary()))
    )
    with pytest.raises(DataError, match=r"\[bad-encoding\].*row 2"):
        texts(tmp_path / "a.parquet")
    assert texts(tmp_path / "a.parquet", errors="replace") == ["good", "caf\ufffd"]
    (tmp_path / "b.jsonl").write_text('{"text": "a\\ud800b"}\n')
    with pytest.raises(DataError, match=r"\[bad-encoding\].*line 1"):
        texts(tmp_path / "b.jsonl")
    assert texts(tmp_path / "b.jsonl", errors="replace") == ["a\ufffdb"]


@pytest.mark.parametrize(
    ("name", "data", "slug", "says"),
    [
        ("a.txt", b"\x00\x01\x02binary", "wrong-kind", "binary"),
        ("a.pdf", b"%PDF-1.4 ...", "wrong-kind", "binary"),
        ("a.txt", "text".encode("utf-16"), "bad-encoding", "UTF-16"),
        ("a.txt.gz", gzip.compress(b"word " * 99_999, mtime=0)[:-30], "corrupt", "gzip"),
        ("a.txt.xz", lzma.compress(b"word " * 99_999)[:-30], "corrupt", "xz"),
        (
            "a.txt.zst",
            zstandard.ZstdCompressor().compress(b"word " * 99_999)[:-9],
            "corrupt",
            "zstandard",
        ),
        ("a.txt.gz", gzip.compress(b"word " * 99, mtime=0)[:10] + b"\xff" * 40, "corrupt", "gzip"),
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', "bad-row", "line 2"),
        ("a.jsonl", b'["x"]\n', "bad-row", "str"),
        ("a.jsonl", b'{"text": 5}\n', "missing-column", "int"),
        ("wiki", b'<doc id="1" title="x">\nx\ny\n', "bad-file", "line 1"),
        ("wiki", b'<doc id="1" title="x">\nx\n</doc>\nstray\n', "bad-file", "line 4"),
        ("a.parquet", b"PAR1 but then nothing", "corrupt", "a.parquet"),
    ],
)
def test_bad_files(tmp_path, name, data, slug, says):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=rf"\[{slug}\].*{says}"):
        texts(tmp_path / name)


def test_missing_files_and_names(tmp_path, slug_of):
    for name in ("corpus.txt", ".partial-out"):
        (tmp_path / name).write_text("x")
    with pytest.raises(DataError, match=r"(?s)\[not-found\].*hint: did you mean `corpus\.txt`\?"):
        texts(tmp_path / "corpsu.txt")
    for number in range(40):
        (tmp_path / f"part{number:02}.txt").write_text("x")
    with pytest.raises(
        DataError,
        match=r"holds corpus.txt, part00.txt, part01.txt, part02.txt, part03.txt and 36 more",
    ):
        texts(tmp_path / "nope.txt")
    assert slug_of(texts, tmp_path / "*.gz") == "not-found"
    assert slug_of(texts, tmp_path / "corpus.txt", format="txet") == "unknown-name"
    assert slug_of(texts, tmp_path / "corpus.txt", errors="ignore") == "unknown-name"


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(parquet_bytes(["x"]))
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"albertkit\[parquet\]"):
        texts(tmp_path / "a.parquet")
