"""Files of the shapes that people have: the rows are those of the csv module, or the error has its slug."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import tarfile
import threading
import unicodedata
from contextlib import contextmanager
from pathlib import Path

import datasets
import pandas as pd
import pytest
import zstandard
from record_files import write_records

from albertkit.captioning.annotations import is_annotations
from albertkit.captioning.clips import read_manifest
from albertkit.captioning.score import read_caption_file
from albertkit.captioning.sources import read_splits
from albertkit.corpus.documents import DocumentFile, read_documents
from albertkit.corpus.options import BuildSettings
from albertkit.embeddings.data import _ExampleReader, read_texts
from albertkit.errors import DataError
from albertkit.files import read_text as read_text_file
from albertkit.tables.bad_rows import BadRows
from albertkit.tables.columns import Columns
from albertkit.tables.files import ByteStream, find_input_file, find_inputs
from albertkit.tables.layouts import is_number
from albertkit.tables.records import as_records
from albertkit.tables.table import Table
from albertkit.tasks.data import read_data
from albertkit.tasks.predictions import read_json_document
from albertkit.tasks.registry import find_task
from albertkit.tokenizer import train_tokenizer
from albertkit.tokenizer.options import ReadingOptions
from albertkit.tokenizer.texts import read_lines
from albertkit.vocabulary.train import read_text_lines

from .public_shapes import PUBLIC_RECORDS, PUBLIC_TABLES

PACKERS = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def examples_of(task, file, on_error="stop", split="train"):
    bad_rows = BadRows(on_error)
    return list(task.examples(file, split=split, labelled=True, bad_rows=bad_rows)), bad_rows


@contextmanager
def opened(folder, name, content, packing=""):
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
        ("id|text|label\n1|a;b,c|pos\n2|d|neg\n", "|"),
        ("id,text|label\n1,a|b\n2,c\n", ","),
        ("sep=\t\ntext\tlabel\na;b,c\tpos\n", "\t"),
    ],
)
def test_rows_are_those_of_csv(content, separator, tmp_path):
    file = tmp_path / "table.csv"
    file.write_bytes(content.encode())
    text = content.removeprefix("\ufeff")
    if text.lower().startswith("sep="):
        text = text.partition("\n")[2]
    names, *expected = filter(None, csv.reader(io.StringIO(text, newline=""), delimiter=separator))
    with Table(file) as table:
        assert [row.values for row in table.rows()] == [
            dict(zip(names, row, strict=True)) for row in expected
        ]


@pytest.mark.parametrize(
    ("content", "slug", "encoding"),
    [
        ("text,label\na,pos\n".encode("utf-16"), "bad-encoding", "UTF-16"),
        ("text,label\na,pos\n".encode("utf-16-be"), "bad-encoding", "UTF-16BE"),
        ("text,label\na,pos\n".encode("utf-32"), "bad-encoding", "UTF-32"),
        ("text,label\n日本,pos\n".encode("iso2022_jp"), "bad-encoding", "ISO-2022-JP"),
        (b"\x1b$)C" + "text,label\n한국,pos\n".encode("iso2022_kr"), "bad-encoding", "ISO-2022-KR"),
        (b"\0\0\xfe\xff" + "text,label\na,pos\n".encode("utf-32-be"), "bad-encoding", "UTF-32"),
    ],
)
def test_other_encodings_are_named(content, slug, encoding, tmp_path):
    file = tmp_path / "table.csv"
    file.write_bytes(content)
    readers = [
        Table,
        lambda file: list(read_documents([file])),
        lambda file: read_texts(file, Columns(), 1, BadRows()),
    ]
    for read_file in readers:
        with pytest.raises(DataError) as error:
            read_file(file)
        assert error.value.slug == slug
        assert f"is {encoding}," in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1_0", False),
        ("10", True),
        ("-1e3", True),
        ("nan", False),
        ("1_000.5", False),
    ],
)
def test_numbers_are_those_of_files_not_of_python(text, expected):
    assert is_number(text) is expected


@pytest.mark.parametrize("window_log", [27, 28, 30, 31])
@pytest.mark.parametrize(
    "before", [b"", b"\x50\x2a\x4d\x18\x04\0\0\0abcd", b"\x5f\x2a\x4d\x18\0\0\0\0"]
)
def test_zstandard_of_any_window_is_read(window_log, before, tmp_path):
    text = b"two lines\nof text\n" * 100
    # a frame with one raw block, by its format: no content size, so the window is what the header
    # says
    frame = (
        b"\x28\xb5\x2f\xfd\0"
        + bytes([(window_log - 10) << 3])
        + (len(text) << 3 | 1).to_bytes(3, "little")
        + text
    )
    assert (
        zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj().decompress(frame)
        == text
    )
    file = tmp_path / "text.zst"
    file.write_bytes(before + frame)
    with ByteStream(find_input_file(file)) as stream:
        assert b"".join(iter(stream.read, b"")) == text


def test_litter_of_file_managers_is_passed_over(tmp_path):
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
def test_links_that_are_broken_or_lead_back_are_refused(link, target, slug, tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "a.txt").write_text("text\n")
    (tmp_path / link).symlink_to(target)
    with pytest.raises(DataError) as error:
        find_inputs([tmp_path])
    assert error.value.slug == slug
    assert link in str(error.value)


@pytest.mark.parametrize(
    ("task", "lost", "dev"),
    [
        ("classify", "train.csv", "dev.csv"),
        ("ner", "train.conll", "dev.conll"),
        ("squad1", "train.json", "dev.json"),
        ("choice", "train.jsonl", "dev.jsonl"),
        ("race", "train", "dev"),
    ],
)
def test_a_split_that_is_a_broken_link_is_not_left_out(task, lost, dev, tmp_path):
    (tmp_path / dev).mkdir() if task == "race" else (tmp_path / dev).touch()
    (tmp_path / ".#dev").symlink_to("editor")
    (tmp_path / lost).symlink_to("moved")
    with pytest.raises(DataError, match=f"{lost}` is a link to `moved`, which does not exist"):
        find_task(task).files(tmp_path)


def test_captions_of_a_split_that_is_a_broken_link_are_not_left_out(tmp_path):
    (tmp_path / "dev.jsonl").touch()
    (tmp_path / "train.jsonl").symlink_to("moved")
    with pytest.raises(DataError, match="is a link to `moved`"):
        read_splits(tmp_path)


@pytest.mark.parametrize("target", ["lost.txt", "link"])
def test_a_link_that_leads_nowhere_is_called_that(target, tmp_path):
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(
        DataError, match=rf"\[not-found\].*is a link to `{target}`, which does not exist"
    ):
        find_inputs([tmp_path / "link"])


def test_a_file_name_that_is_not_utf8_is_refused(tmp_path):
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("text\n")
    with pytest.raises(DataError, match=r"the name `.*caf\\udce9\.txt` is not UTF-8"):
        find_inputs([tmp_path])


def test_links_that_lead_to_each_other_are_refused(tmp_path):
    for name, target in (("a", "b"), ("b", "a")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "link").symlink_to(tmp_path / target)
    with pytest.raises(DataError, match="leads back"):
        find_inputs([tmp_path / "a"])


def test_links_that_lead_on_are_followed(tmp_path):
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
def test_a_key_twice_is_refused(name, content, slug, tmp_path):
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(DataError, match=rf"\[{slug}\].*occurs twice"), Table(file) as table:
        list(table.rows())


QUESTIONS = '[{"id": "1", "question": "q", "answers": ["b"]}]'
SQUAD = f'{{"data": [{{"paragraphs": [{{%s"context": "b", "qas": {QUESTIONS}}}]}}]}}'
CLIPS = '{"videos": [{"video_id": "v", %s"split": "train"}], "sentences": [{"video_id": "v", "caption": "a"}]}'
# Content with room for a key that stands there already, the key, and what reads the file.
READERS = {
    "squad.json": (
        SQUAD,
        '"context": "c", ',
        lambda file: examples_of(find_task("squad1"), file)[0],
    ),
    "squad.jsonl": (
        '{"question": "q", %s"context": "b", "answers": ["b"]}',
        '"question": "r", ',
        lambda file: examples_of(find_task("squad1"), file)[0],
    ),
    "corpus.jsonl": ('{"text": "a"%s}', ', "text": "b"', lambda file: list(read_documents([file]))),
    "predictions.json": ('{"1": "a"%s}', ', "1": "b"', read_json_document),
    "captions.json": ('{"v1": ["a"]%s}', ', "v1": ["b"]', read_caption_file),
    "captions.jsonl": ('{"key": "v1", "caption": "a"%s}', ', "caption": "b"', read_caption_file),
    "annotations.json": (CLIPS, '"video_id": "w", ', is_annotations),
    "manifest.jsonl": (
        '{"video": "v.mp4"%s}',
        ', "video": "w.mp4"',
        lambda file: read_manifest(file, BadRows()),
    ),
    "choices.tsv": (
        'question\tchoices\tlabel\nq\t[{"text": "a", "label": "A"%s}, {"text": "b", "label": "B"}]\tA',
        ', "label": "B"',
        lambda file: examples_of(find_task("choice"), file)[0],
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_a_key_twice_is_refused_by_every_reader_of_json(name, tmp_path):
    content, repeated, read = READERS[name]
    file = tmp_path / name
    (tmp_path / "v.mp4").touch()
    file.write_text(content % "")
    assert read(file)
    file.write_text(content % repeated)
    with pytest.raises(DataError, match="occurs twice"):
        read(file)


@pytest.mark.parametrize("packing", ["", ".gz", ".xz", ".zst", "pipe"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_columns_of_json_are_those_of_all_records(name, packing, tmp_path):
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


def test_records_that_lack_a_required_column_are_bad_rows(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": "b", "label": "pos"}\n')
    bad_rows = BadRows("skip")
    with Table(tmp_path / "a.jsonl", bad_rows=bad_rows) as table:
        assert [row.values for row in table.rows(["text", "label"])] == [
            {"text": "b", "label": "pos"}
        ]
    assert [(row.line, row.reason) for row in bad_rows.rows] == [(1, "no `label`")]


def test_questions_whose_first_record_is_short(tmp_path):
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
    fields = [
        (example.id, example.context, example.question, example.choices, example.label)
        for example in examples
    ]
    assert fields == [
        ("0", "", "Which?", ("a", "b"), 0),
        ("q2", "A text.", "Who?", ("c", "d", "e"), 2),
    ]


def test_ids_and_further_columns_of_later_records_are_read(tmp_path):
    records = [{"text": "a"}, {"id": "x7", "text": "b", "source": "web"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    task = find_task("classify", Columns(text="text"))
    rows = task.rows(
        tmp_path / "a.jsonl", split="test", labelled=False, bad_rows=BadRows(), further_columns=None
    )
    assert [(example.id, row.values) for example, row in rows] == [
        ("0", {"text": "a", "id": "", "source": ""}),
        ("x7", {"text": "b", "id": "x7", "source": "web"}),
    ]


MAC = "text,label\ra,pos\rb,neg\r"


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("mac.csv", MAC, {}),
        ("mac.tsv", MAC.replace(",", "\t"), {"sep": "\t", "quoting": csv.QUOTE_NONE}),
        ("mac-semicolons.csv", "\r" + MAC.replace(",", ";"), {"sep": ";"}),
        ("mac-with-cells-of-several-lines.csv", 'text,label\r"a\nb, c",pos\rd,neg\r', {}),
        ("one-cr.csv", 'text,label\r\na,pos\rb,neg\r\n"c\rd",neg\r\n', {}),
        ("header-with-comma.csv", "text (all, raw);label\na;pos\nb, c;neg\n", {"sep": ";"}),
        ("header-with-semicolon.csv", "text; raw,label\na,pos\nb,neg\n", {}),
        ("header-with-comma.tsv", "text, raw\tlabel\na, b\tpos\nb, c\tneg\n", {"sep": "\t"}),
        (
            "kaggle-blank-before-quote.csv",
            'text, label\n"a", "b, c"\n"d ""e""", "f"\n',
            {"skipinitialspace": True},
        ),
        ("quoted-comma-and-quote.csv", 'text,label\n"He said, ""hi"" to me", pos\n', {}),
        (
            "yelp-addresses.csv",
            'text,label\n"12 Main St\nSpringfield, IL\nnear Chicago, IL\nfar from Boston, MA\nUSA",a\nb,c\n',
            {},
        ),
        (
            "poem.csv",
            'text,label\n"Roses are red,\nViolets are blue,\nSugar is sweet,\nAnd so are you",a\nb,c\n',
            {},
        ),
    ],
)
def test_rows_are_those_of_pandas(name, content, options, tmp_path):
    (tmp_path / name).write_bytes(content.encode())
    frame = pd.read_csv(tmp_path / name, dtype=str, keep_default_na=False, **options)
    frame.columns = frame.columns.str.strip()
    with Table(tmp_path / name) as table:
        assert [row.values for row in table.rows()] == frame.to_dict("records")


def test_cr_alone_ends_lines_of_tagged_words(tmp_path):
    (tmp_path / "a.conll").write_bytes(b"EU B-ORG\rrejects O\r\rPeter B-PER\r")
    examples = examples_of(find_task("ner"), tmp_path / "a.conll")[0]
    assert [(example.words, example.tags) for example in examples] == [
        (("EU", "rejects"), ("B-ORG", "O")),
        (("Peter",), ("B-PER",)),
    ]


def test_messages_have_no_raw_carriage_return(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'"te\rxt",label\r\na,pos\r\n')
    with pytest.raises(DataError, match=r"te\\rxt"), Table(tmp_path / "a.csv") as table:
        table.check(["text"])


def tar_of(content):
    """A tar archive of one file."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        member = tarfile.TarInfo("a.csv")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "command"),
    [
        ("dump.csv.bz2", bz2.compress(b"text,label\na,pos\n"), "bunzip2 -k"),
        ("dump.csv.lzma", lzma.compress(b"text,label\na,pos\n", lzma.FORMAT_ALONE), "unlzma -k"),
        ("kaggle.zip", b"PK\x03\x04\x14\0\0\0", "unzip"),
        ("texts.tar", tar_of(b"text,label\na,pos\n"), "tar xf"),
        ("texts.tgz", gzip.compress(tar_of(b"text,label\na,pos\n")), "tar xf"),
        ("texts.tar.xz", lzma.compress(tar_of(b"text,label\na,pos\n")), "tar xf"),
        ("dump.7z", b"7z\xbc\xaf\x27\x1c\0\4", "7z x"),
        ("dump.rar", b"Rar!\x1a\x07\x01\0", "unrar x"),
        ("dump.csv.lz4", b"\x04\x22\x4d\x18\x64\x40", "unlz4 -k"),
        ("dump.csv.Z", b"\x1f\x9d\x90te", "gunzip -k"),
        ("sheet.xlsx", b"PK\x03\x04\x14\0\0\0", "pandas.read_excel"),
        ("sheet.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "pandas.read_excel"),
        (
            "lfs.parquet",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1\n",
            "git lfs pull",
        ),
        ("annex.csv", b"/annex/objects/MD5E-s1--9a.csv\n", "git annex get"),
    ],
)
def test_packed_files_and_pointers_are_refused_with_the_command(name, content, command, tmp_path):
    (tmp_path / name).write_bytes(content)
    for read_file in (
        Table,
        lambda file: list(read_documents([file])),
        lambda file: list(read_lines(file)),
    ):
        with pytest.raises(DataError) as error:
            read_file(tmp_path / name)
        assert error.value.slug == "wrong-kind"
        assert command in error.value.hint


# --- running text ---------------------------------------------------------------------------------

STRUCTURED = {
    "sick.csv": 'id,text,label\n0,"a man, a dog",pos\n1,"a woman",neg\n',
    "sst.txt": "text,label\na man,pos\na woman,neg\n",
    "ids.txt": '0,"a man, a dog",pos\n1,"a woman",neg\n2,no one,neg\n',
    "classes.txt": "\n".join(
        f"the text number {word};{word[0]}" for word in "aa ab ac ba bc bd be".split()
    ),
    "tatoeba.txt": "1\tHello.\tBonjour.\n2\tYes.\tOui.\n",
    "wnut17.txt": "Go O\nto O\nParis B-LOC\n\nYes O\nBob B-PER\n",
    "ontonotes.tsv": "Go\tO\nParis\tB-LOC\n",
    "c4.txt": '{"text": "a", "url": "b"}\n{"text": "c", "url": "d"}\n',
    "squad.txt": '{\n  "data": [\n  ]\n}\n',
    "nsmc.txt": '[\n  {"text": "a"}\n]\n',
    "page.html": "<!DOCTYPE html>\n<html><body>Text.</body></html>\n",
    "enwiki.xml": '<mediawiki xml:lang="en">\n<page>\n<title>A</title>\n</page>\n</mediawiki>\n',
    "tei": '<?xml version="1.0"?>\n<TEI><p>Text.</p></TEI>\n',
    "sejong.txt": "<text>\n<p>One line.</p>\n<p>Another.</p>\n</text>\n",
    "film.srt": "1\n00:00:01,000 --> 00:00:02,500\nHello.\n\n2\n00:00:03,000 --> 00:00:04,000\nYes.\n",
    "film.vtt": "WEBVTT\n\n00:01.000 --> 00:02.000\nHello.\n",
    "mac.txt": "text,label\ra,pos\rb,neg\r",
    "film.ass": "[Script Info]\nTitle: a\n\n[Events]\nFormat: Start, End, Text\nDialogue: 0:00:01.00,0:00:02.00,Yes.\n",
    "film.sub": "{1}{50}Hello.\n{60}{90}Yes.\n",
    "song.lrc": "[00:01.00]Hello.\n[00:02.00]Yes.\n",
    "ud.conllu": "# text = I go.\n"
    + "\n".join(f"{n}\tgo\tgo\tVERB\t_\t_\t0\troot\t_\t_" for n in (1, 2))
    + "\n\n# a\n",
    "ud.txt": "The DET\ncat NOUN\n. PUNCT\n",
    "brown.txt": "The/DT cat/NN sat/VBD ./.\nIt/PRP slept/VBD ./.\n",
    "fasttext.train": "__label__pos A good film.\n__label__neg __label__long A bad film.\n",
    "fr.po": '# French.\nmsgid ""\nmsgstr ""\n"Language: fr\\n"\n\n#: a.c:1\nmsgid "Open"\nmsgstr "Ouvrir"\n',
    "a.rtf": "{\\rtf1\\ansi {\\fonttbl {\\f0 Times;}}\n\\f0 Hello.\\par\n}\n",
    "a.tex": "\\documentclass{article}\n\\begin{document}\nHello.\n\\end{document}\n",
    "pipes.txt": "id|text\n1|A good film.\n2|A bad film.\n",
    "table.md": "| id | text |\n|----|------|\n| 1 | A good film. |\n",
    "brat.ann": "T1\tPER 0 3\tBob\nT2\tLOC 7 12\tParis\nR1\tlives Arg1:T1 Arg2:T2\n",
    "sst.trees": "(3 (2 It) (4 (2 is) (3 good)))\n(1 (2 It) (1 bad))\n",
    "glove.txt": "the 0.4 -0.2 1e-3 4\nof 0.7 0.5 0.1 2\n",
    "nlu.yml": 'version: "3.1"\n\nnlu:\n- intent: greet\n  examples: |\n    - hello\n    - hi there\n',
    "reviews.yaml": "- id: 1\n  text: A good film.\n- id: 2\n  text: >\n    note: bad\n",
    "app.log": "2024-01-02 03:04:05,678 INFO A request.\n2024-01-02T03:04:06Z INFO Another.\n",
    "KakaoTalk.txt": "2024년 1월 2일 오후 3:04, 홍길동 : 안녕\n2024. 1. 2. 오후 3:05, 나 : 응\n",
    "WhatsApp.txt": "[02/01/2024, 15:04:05] Bob: Hello.\n02/01/24, 15:05 - Ann: Yes.\n",
    "a.eml": "From: a@b.c\nTo: d@e.f\nSubject: Hello\n\nText.\n",
    "a.mbox": "From a@b.c Tue Jan  2 03:04:05 2024\nReturn-Path: <a@b.c>\nSubject: Hello\n\nText.\n",
    "KakaoTalk_PC.txt": "[홍길동] [오후 3:04] 안녕\n[나] [오후 3:05] 응\n",
    "a.pdf": "%PDF-1.4\n1 0 obj\n",
    "a.wet": "WARC/1.0\r\nWARC-Type: conversion\r\n\r\nText.\r\n",
    "a.ics": "BEGIN:VCALENDAR\nSUMMARY:Text\nEND:VCALENDAR\n",
    "a.arff": "% A set.\n@RELATION a\n\n@DATA\n'A text.',pos\n",
    "repr.txt": "{'text': 'A text.', 'label': 1}\n{'text': 'Another.'}\n",
    "a.bib": "@article{key,\n  title = {A title},\n}\n",
    "dump.sql": "-- MySQL dump\n/* a */;\nDROP TABLE IF EXISTS `a`;\nINSERT INTO `a` VALUES (1, 'text');\n",
}


@pytest.mark.parametrize("name", STRUCTURED)
@pytest.mark.parametrize("packing", ["", ".xz"])
def test_structured_files_are_no_running_text(name, packing, tmp_path):
    readers = [
        lambda file: list(read_documents([file])),
        lambda file: list(read_text_lines([file], ReadingOptions())),
        lambda file: read_texts(file, Columns(), 1, BadRows()),
        lambda file: train_tokenizer([file], tmp_path / "out", vocab_size=100),
    ]
    with opened(tmp_path, name, STRUCTURED[name].encode(), packing) as file:
        for read_file in readers:
            with pytest.raises(DataError, match=r"\[doubtful\].*no running text|is binary"):
                read_file(file)


PROSE = {
    "poem": "Roses are red,\nViolets are blue,\nSugar is sweet,\nAnd so are you.\n",
    "chinese": "你好,世界\n再见,朋友\n谢谢,大家\n",
    "figures": "It cost 1,200 won.\nThen 1,300 won.\nThen 1,400 won.\n",
    "quoted": "{'a', 'b'} is a set.\n[Ann] [aside] 3:04 is late.\n",
    "list": "[1] A title.\n[2] Another.\n",
    "dialogue": "- Anna: Hallo du.\n- Ben: Wie geht es?\n- Anna: Gut.\n",
    "bullets": "Heading\n  - a thing\n  - another thing\n  - and a last one\n",
    "code": "if x:\n    {y} = f(x, y)\n    <p> is a tag\n",
    "talk": "A: yes\tno\nB: no\n",
    "names.csv": "Alice\nBob\nCarol\n",
    "hindi": "राम घर गया |\nसीता भी गई |\nवे खुश थे |\n",
    "or": "Either a | b holds.\nOr a | c.\nOr and/or holds.\n",
    "label": "The sign __label__ begins\nevery line of fastText.\n",
    "gettext": 'A message begins with\nmsgid "Open"\nand goes on.\n',
    "heading": "# A title\nThe USA\nand the UK are here.\n",
    "play": "- Bob: Hello.\n- Ann: Yes.\nBob: So.\nAnn: No.\n",
    "book": "Title: A book\nAuthor: Ann\nFrom: the beginning.\n",
    "diary": "2024-01-02\nWe met at 03:04.\n02/01/2024: nothing.\n",
    "counting": "1 2 3 4\nare numbers.\nSo are 5 and 6.\n",
}


@pytest.mark.parametrize("name", PROSE)
@pytest.mark.parametrize("packing", ["", ".gz", ".xz", ".zst"])
def test_running_text_is_read_by_every_reader(name, packing, tmp_path):
    expected = PROSE[name].splitlines()
    with opened(tmp_path, name, PROSE[name].encode(), packing) as file:
        assert [
            line for document in read_documents([file]) for line in document.text.split("\n")
        ] == list(map(str.strip, expected))
        assert read_texts(file, Columns(), 1, BadRows()) == [(line,) for line in expected]
        assert list(read_lines(file)) == expected


@pytest.mark.parametrize(
    ("name", "content", "format", "field", "expected"),
    [
        ("a.csv", 'id,text\n1,"a, b\nc"\n2,d\n', "csv", "text", ["a, b\nc", "d"]),
        ("a.csv", "id;본문\n1;가\n2;나, 다\n", "csv", "본문", ["가", "나, 다"]),
        ("a.csv", "id|본문\n1|가\n2|나, 다\n", "csv", "본문", ["가", "나, 다"]),
        ("a.tsv", 'id\ttext\n1\tsay "no"\n2\td\n', "tsv", "text", ['say "no"', "d"]),
        ("a.json", '[{"text": "a"},\n {"text": "b"}]', None, "text", ["a", "b"]),
        ("a.json", json.dumps([{"text": "a"}, {"text": "b"}], indent=2), None, "text", ["a", "b"]),
        (
            "aihub.json",
            json.dumps({"data": [{"p": "a"}, {"p": "b"}]}, indent=1),
            None,
            "data[].p",
            ["a\nb"],
        ),
        ("jq", '{\n "text": "a"\n}\n{\n "text": "b"\n}\n', None, "text", ["a", "b"]),
        ("modu", '[\n{"text": "a"}\n]', None, "text", ["a"]),
    ],
)
@pytest.mark.parametrize("packing", ["", ".zst"])
def test_tables_and_json_documents_are_read_as_corpora(
    name, content, format, field, expected, packing, tmp_path
):
    with opened(tmp_path, name, content.encode(), packing) as file:
        assert [document.text for document in read_documents([file], format, field)] == expected
        halves = [DocumentFile(*find_inputs([file]), BuildSettings(format, field), start=0, end=9)]
        halves.append(DocumentFile(*find_inputs([file]), BuildSettings(format, field), start=9))
        assert [document.text for half in halves for document in half] == expected


def test_bytes_of_a_table_that_are_not_utf8_are_counted_or_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"id,text\n1,caf\xe9\n2,d\n")
    with pytest.raises(DataError, match="bad-encoding"):
        list(read_documents([tmp_path / "a.csv"], "csv"))
    documents = DocumentFile(*find_inputs([tmp_path / "a.csv"]), BuildSettings("csv"), "replace")
    assert [document.text for document in documents] == ["caf\ufffd", "d"]
    assert documents.bad_bytes == 1


def test_documents_over_several_lines_are_rows_of_a_table(tmp_path):
    (tmp_path / "jq.json").write_text('{\n "text": "a"\n}\n{\n "text": "b",\n "label": "x"}\n')
    with Table(tmp_path / "jq.json") as table:
        assert [row.values for row in table.rows()] == [
            {"text": "a", "label": ""},
            {"text": "b", "label": "x"},
        ]


# --- encodings ------------------------------------------------------------------------------------

KOREAN = "대한민국의 수도는 서울이다. 그는 안녕이라 말했다 ㅋㅋㅋ. 3월에는 눈이 온다."
JAPANESE = "日本語のテキストです。カタカナ、ひらがな「引用」を使います。①東京は首都です～。"
WESTERN = "Crème brûlée, naïve café à Zürich – “déjà vu”; groß, Übermut"


@pytest.mark.parametrize("packing", ["", ".gz"])
def test_a_korean_header_in_cp949_is_named_with_its_line(packing, tmp_path):
    rows = [["번호", "문장"], ["1", KOREAN], ["2", KOREAN]]
    content = "\n" + "".join(f"{number},{text}\n" for number, text in rows)
    with opened(tmp_path, "excel.csv", content.encode("cp949"), packing) as file:
        with pytest.raises(DataError, match=r"line 2: bytes that are not UTF-8") as error:
            Table(file)
        assert error.value.slug == "bad-encoding"
        assert "reads as CP949 (“번호" in error.value.hint
        subprocess.run(error.value.hint.split("`")[1], shell=True, check=True)
        with Table(tmp_path / "excel.utf8.csv") as table:
            assert [list(row.values.values()) for row in table.rows()] == rows[1:]


@pytest.mark.parametrize("name", "a.csv a.tsv a.jsonl a.json a.parquet".split())
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_names_of_columns_are_compared_in_nfc(name, form, tmp_path):
    column = unicodedata.normalize(form, "문장")
    frame = pd.DataFrame({"id": ["1"], column: ["가나"]})
    writers = {
        "csv": lambda file: frame.to_csv(file, index=False),
        "tsv": lambda file: frame.to_csv(file, index=False, sep="\t"),
        "jsonl": lambda file: frame.to_json(file, orient="records", lines=True),
        "json": lambda file: frame.to_json(file, orient="records"),
        "parquet": lambda file: frame.to_parquet(file),
    }
    writers[name.partition(".")[2]](tmp_path / name)
    for normal_form in ("NFC", "NFD"):
        spelled = unicodedata.normalize(normal_form, "문장")
        with Table(tmp_path / name) as table:
            assert [row.values for row in table.rows([spelled])] == [{spelled: "가나"}]
        task = find_task("classify", Columns(text=spelled))
        [example] = task.examples(tmp_path / name, split="test", labelled=False, bad_rows=BadRows())
        assert example.text == "가나"


@pytest.mark.parametrize(
    ("before", "encoding", "text", "foreign"),
    [
        (KOREAN, "cp949", KOREAN, 3),
        (WESTERN, "cp1252", WESTERN, 3),
        (KOREAN, "latin-1", "Crème brûlée à Zürich", 3),
        (JAPANESE, "cp932", JAPANESE, 3),
        ("plain", "cp932", JAPANESE, 3),
        ("plain", "cp1252", WESTERN, 3),
        ("plain", "cp949", KOREAN, 3),
    ],
)
@pytest.mark.parametrize("packing", ["", ".xz"])
def test_the_command_for_a_file_of_mixed_encodings_works(
    before, encoding, text, foreign, packing, tmp_path
):
    content = (
        f"text\n{before}\n{before}\n".encode() + f"{text}\n".encode(encoding) * foreign + b"end\n"
    )
    expected = f"text\n{before}\n{before}\n" + f"{text}\n" * foreign + "end\n"
    with opened(tmp_path, "a.txt", content, packing) as file:
        readers = [
            lambda: list(read_documents([file])),
            lambda: list(read_lines(file)),
            lambda: list(Table(file).rows()),
        ]
        if not packing:
            readers.append(lambda: read_text_file(file))
        for read_file in readers:
            with pytest.raises(DataError) as error:
                read_file()
            command, *leave_out = error.value.hint.split("`")[1::2]
            if before != "plain":
                assert f"{foreign} of {2 + 2 + foreign} lines are not UTF-8" in error.value.hint
                subprocess.run(leave_out[0], shell=True, check=True)
                expected_rest = (
                    expected.replace(f"{text}\n" * foreign, "")
                    if text != before
                    else f"text\n{before}\n{before}\nend\n"
                )
                assert (tmp_path / "a.utf8.txt").read_text(encoding="utf-8") == expected_rest
            subprocess.run(command, shell=True, check=True)
            assert (tmp_path / "a.utf8.txt").read_text(encoding="utf-8") == expected


def test_a_file_with_bytes_of_no_encoding_gets_a_command_that_works(tmp_path):
    lines = [f"{KOREAN}\n".encode("cp949")] * 4 + [b"\xb0\xa1\xff\xb0\xa1 broken\n"]
    (tmp_path / "a.txt").write_bytes(b"".join(lines))
    with pytest.raises(DataError) as error:
        list(read_lines(tmp_path / "a.txt"))
    subprocess.run(error.value.hint.split("`")[1], shell=True, check=True)
    assert (tmp_path / "a.utf8.txt").read_text(
        encoding="utf-8"
    ) == f"{KOREAN}\n" * 4 + "가\ufffd가 broken\n"


# --- tasks ----------------------------------------------------------------------------------------

ROWS = pd.DataFrame(
    {"text": [f"text {number}" for number in range(9)], "label": [*("pos", "neg") * 4, "pos"]}
)


@pytest.mark.parametrize("folder", [".", "data"])
@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv", "csv.gz"])
@pytest.mark.parametrize("total", [1, 3])
@pytest.mark.parametrize("has_hash", [False, True])
def test_shards_of_the_hub_are_one_split(folder, ending, total, has_hash, tmp_path):
    (tmp_path / folder).mkdir(exist_ok=True)
    writers = {
        "parquet": lambda frame, file: frame.to_parquet(file),
        "jsonl": lambda frame, file: frame.to_json(file, orient="records", lines=True),
        "csv": lambda frame, file: frame.to_csv(file, index=False),
    }
    for split, frame in (("train", ROWS), ("validation", ROWS[::-1])):
        for number in range(total):
            part = frame[number * len(frame) // total : (number + 1) * len(frame) // total]
            mark = f"-a09b{number}" if has_hash else ""
            name = f"{split}-{number:05}-of-{total:05}{mark}.{ending}"
            writers[ending.partition(".")[0]](part, tmp_path / folder / name)
    task = find_task("classify", Columns(text="text", label="label"))
    files = task.files(tmp_path)
    for split, expected in (("train", ROWS), ("dev", ROWS[::-1])):
        examples, _ = examples_of(task, files[split], split=split)
        assert [(example.text, example.label) for example in examples] == list(
            expected.itertuples(index=False, name=None)
        )
        assert [example.id for example in examples] == [
            str(number) for number in range(len(expected))
        ]
    if total > 1:
        next((tmp_path / folder).glob("train-00001-*")).unlink()
        with pytest.raises(DataError, match=f"2 of the {total} shards of `train`"):
            task.files(tmp_path)


@pytest.mark.parametrize("name", ["{}-00000-of-00001.jsonl", "{}/part-0.jsonl", "test/my_{}.jsonl"])
def test_a_glob_of_several_splits_is_no_training_file(name, tmp_path):
    for split, text in (("train", "a"), ("validation", "b")):
        file = tmp_path / name.format(split)
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(f'{{"text": "{text} {n}", "label": {n % 2}}}\n' for n in range(4)))
    task = find_task("classify", Columns(text="text", label="label"))
    with pytest.raises(DataError, match="names files of dev and train"):
        read_data(task, tmp_path / name.format("*"), None, 0.5, False, BadRows())
    pattern = tmp_path / name.format("trai[n]")
    assert len(read_data(task, pattern, None, 0.5, False, BadRows()).train) == 2


def test_a_glob_is_one_table_and_bad_rows_name_its_files(tmp_path):
    (tmp_path / "a1.jsonl").write_text('{"text": "a", "label": "x"}\n{"text": "b"}\n')
    (tmp_path / "a2.jsonl").write_text('{"label": "y", "text": "c", "more": "m"}\n{"text": 5}\n')
    task = find_task("classify", Columns(text="text", label="label"))
    pattern = tmp_path / "a*.jsonl"
    assert task.files(pattern) == {"train": pattern}
    examples, bad_rows = examples_of(task, pattern, "skip")
    assert [(example.text, example.label, example.id) for example in examples] == [
        ("a", "x", "0"),
        ("c", "y", "2"),
    ]
    assert [(Path(row.file).name, row.line) for row in bad_rows.rows] == [
        ("a1.jsonl", 2),
        ("a2.jsonl", 2),
    ]
    with Table(pattern) as table:
        assert table.columns == ("text", "label", "more")
        assert [row.values["more"] for row in table.rows()] == ["", "", "m", ""]


def test_files_of_a_glob_with_other_columns_are_refused(tmp_path):
    (tmp_path / "a1.csv").write_text("text,label\na,x\n")
    (tmp_path / "a2.csv").write_text("text,class\na,x\n")
    with (
        pytest.raises(DataError, match=r"a2.csv` has no column `label`"),
        Table(tmp_path / "a*.csv") as table,
    ):
        list(table.rows(["text", "label"]))


HUB = {  # columns of a task, and the features of its labels
    "ner": (
        {"tokens": [["Bob", "ran"], ["Paris"]], "ner_tags": [[1, 0], [2]]},
        {"ner_tags": datasets.Sequence(datasets.ClassLabel(names=["O", "B-PER", "B-LOC"]))},
    ),
    "squad1": (
        {
            "context": ["x y z"],
            "question": ["q"],
            "answers": [{"text": ["y", "z"], "answer_start": [2, 4]}],
        },
        {},
    ),
    "classify": (
        {"text": ["a", "b"], "label": [1, 0]},
        {"label": datasets.ClassLabel(names=["neg", "pos"])},
    ),
    "multilabel": (
        {"text": ["a", "b"], "labels": [[1, 0], []]},
        {"labels": datasets.Sequence(datasets.ClassLabel(names=["joy", "fear"]))},
    ),
}
LABELS = {
    "ner": ("tags", [("B-PER", "O"), ("B-LOC",)]),
    "squad1": ("answers", [(("y", 2, ""), ("z", 4, ""))]),
    "classify": ("label", ["pos", "neg"]),
    "multilabel": ("label", [("fear", "joy"), ()]),
}


@pytest.mark.parametrize("name", HUB)
def test_parquet_of_the_hub_has_the_names_of_its_features(name, tmp_path):
    """The names stand in the metadata of the schema, as datasets writes them; rows in memory have those of `int2str`."""
    columns, features = HUB[name]
    data = datasets.Dataset.from_dict(columns)
    data = data.cast(datasets.Features({**data.features, **features}))
    data.to_parquet(tmp_path / "train-00000-of-00001.parquet")
    task = find_task(name)
    examples = examples_of(task, task.files(tmp_path)["train"])[0]
    field, labels = LABELS[name]
    assert [getattr(example, field) for example in examples] == labels
    assert examples == examples_of(task, as_records(data))[0]


def test_tagged_sentences_may_be_an_array(tmp_path):
    rows = [{"tokens": ["Bob", "ran"], "tags": ["B-PER", "O"]}, {"tokens": ["["], "tags": ["O"]}]
    for indent in (None, 1):
        (tmp_path / "a.json").write_text(json.dumps(rows, indent=indent))
        assert [e.words for e in examples_of(find_task("ner"), tmp_path / "a.json")[0]] == [
            ("Bob", "ran"),
            ("[",),
        ]
    (tmp_path / "a.conll").write_text("[ O\n{ O\n")
    assert examples_of(find_task("ner"), tmp_path / "a.conll")[0][0].words == ("[", "{")


@pytest.mark.parametrize("has_splits", [False, True])
def test_a_folder_of_save_to_disk_is_refused_with_the_function_that_reads_it(has_splits, tmp_path):
    rows = datasets.Dataset.from_pandas(ROWS)
    saved = datasets.DatasetDict(train=rows) if has_splits else rows
    saved.save_to_disk(tmp_path / "saved")
    for find_files in (
        find_task("classify", Columns(text="text", label="label")).files,
        lambda path: find_inputs([path]),
    ):
        with pytest.raises(DataError, match="save_to_disk") as error:
            find_files(tmp_path / "saved")
        assert "datasets.load_from_disk(" in error.value.hint
        code = error.value.hint.rpartition(": ")[2].replace(
            "'train.parquet'", repr(str(tmp_path / "train.parquet"))
        )
        eval(code, {"datasets": datasets})
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "train.parquet"), ROWS)


@pytest.mark.parametrize(
    ("task", "values", "reason"),
    [
        ("classify", {"label": ["neg"]}, "`label` is a list, not a text"),
        ("classify", {"text": ["a", "b"]}, "`text` is a list, not a text"),
        ("regress", {"label": [1.0]}, "`label` is a list, not a text"),
        ("multilabel", {"text": ["a"]}, "`text` is a list, not a text"),
        ("multilabel", {"label": None}, "`label` is null"),
        ("multilabel", {"label": float("nan")}, "`label` is null"),
        ("classify", {"label": None}, "`label` is empty"),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_lists_and_null_are_no_texts_and_no_labels(task, values, reason, name, tmp_path):
    good = {
        "text": "a",
        "label": {"regress": 2.5, "multilabel": ["x", "y"], "classify": "pos"}[task],
    }
    if name.endswith("jsonl"):
        write_records(tmp_path / name, (good, {**good, **values}))
        expected = 1
    else:
        pd.DataFrame([{**good, **values}]).to_parquet(tmp_path / name)
        expected = 0
    examples, bad_rows = examples_of(
        find_task(task, Columns(text="text", label="label")), tmp_path / name, "skip"
    )
    assert len(examples) == expected
    assert [row.reason for row in bad_rows.rows] == [reason]


def test_the_error_for_too_few_labels_says_which_rows_were_left_out(tmp_path):
    rows = [f"text {number},{'neg' if number % 2 else 'pos'}" for number in range(20)]
    lines = [
        row.encode() if number % 2 else row.encode() + b"\xff" for number, row in enumerate(rows)
    ]
    (tmp_path / "a.csv").write_bytes(b"\n".join([b"text,label", *lines]))
    ROWS.to_csv(tmp_path / "dev.csv", index=False)
    task = find_task("classify", Columns(text="text", label="label"))
    with pytest.raises(
        DataError, match=r"have the label `neg`; rows left out: 10 \(the first: line 2, bytes"
    ) as error:
        read_data(task, tmp_path / "a.csv", tmp_path / "dev.csv", 0.1, False, BadRows("skip"))
    assert error.value.slug == "too-little-data"
    assert "convert it: `iconv -f LATIN1" in error.value.hint


def test_rows_of_snli_without_gold_label_can_be_skipped(tmp_path):
    rows = [
        ("a", "b", "entailment"),
        ("c", "d", "-"),
        ("e", "f", "contradiction"),
        ("a", "g", "contradiction"),
    ]
    frame = pd.DataFrame(rows, columns=["premise", "hypothesis", "label"])
    frame.to_csv(tmp_path / "snli.csv", index=False)
    columns = Columns(text="premise", pair="hypothesis", label="label")
    bad_rows = BadRows("skip")
    examples = _ExampleReader("nli", "nli", columns, bad_rows).read_examples(
        tmp_path / "snli.csv", "train"
    )
    assert list(examples.texts) == [row[:2] for row in rows if row[2] != "-"]
    assert [(row.line, row.reason) for row in bad_rows.rows] == [
        (3, "label `-`: there is no gold label")
    ]
    with pytest.raises(DataError, match="line 3"):
        _ExampleReader("nli", "nli", columns, BadRows()).read_examples(
            tmp_path / "snli.csv", "train"
        )


# --- public sets: their shapes, read to the rows of an independent reader -------------------------


@pytest.mark.parametrize("name", PUBLIC_TABLES)
@pytest.mark.parametrize("packing", ["", ".gz"])
def test_tables_of_public_sets_have_the_rows_of_pandas(name, packing, tmp_path):
    content, options = PUBLIC_TABLES[name]
    frame = pd.read_csv(
        io.StringIO(content.removeprefix("\ufeff"), newline=""),
        dtype=str,
        keep_default_na=False,
        header=None,
        **options,
    )
    expected = [
        [cell.replace("\r\n", "\n") for cell in row] for row in frame.itertuples(index=False)
    ]
    with (
        opened(tmp_path, name.rpartition("/")[2], content.encode(), packing) as file,
        Table(file) as table,
    ):
        assert list(table.columns) == [cell.strip() for cell in expected[0]]
        table.without_header([f"c{number}" for number in range(len(expected[0]))])
        rows = [list(row.values.values()) for row in table.rows()]
        assert rows[1:] == expected[1:]


@pytest.mark.parametrize("name", PUBLIC_RECORDS)
@pytest.mark.parametrize("packing", ["", ".zst"])
def test_records_of_public_sets_have_the_values_of_json(name, packing, tmp_path):
    content = PUBLIC_RECORDS[name]
    records = (
        json.loads(content)
        if content.startswith("[")
        else [json.loads(line) for line in content.splitlines() if line]
    )

    def flat(record, prefix=""):
        values = {}
        for key, value in record.items():
            if isinstance(value, dict):
                values |= flat(value, f"{prefix}{key}.")
            else:
                is_json = isinstance(value, bool | list)
                values[prefix + key] = (
                    json.dumps(value, ensure_ascii=False)
                    if is_json
                    else ""
                    if value is None
                    else str(value)
                )
        return values

    with (
        opened(tmp_path, name.rpartition("/")[2], content.encode(), packing) as file,
        Table(file) as table,
    ):
        expected = [flat(record) for record in records]
        assert [row.values for row in table.rows()] == [
            {name: row.get(name, "") for name in table.columns} for row in expected
        ]
        assert set(table.columns) == {name for row in expected for name in row}


REFUSED = {
    "nsmc-cp949.txt": (f"id\tdocument\n1\t{KOREAN}\n".encode("cp949"), "bad-row"),
    "utf16.csv": ("text,label\na,pos\n".encode("utf-16"), "bad-encoding"),
    "cut.csv.gz": (gzip.compress(b"text,label\n" + b"a,pos\n" * 9999)[:-20], "corrupt"),
    "cut.jsonl.zst": (
        zstandard.ZstdCompressor().compress(b'{"text": "a"}\n' * 9999)[:-9],
        "corrupt",
    ),
    "ragged.csv": (b"text,label\na,pos\nb\n", "bad-row"),
    "more-fields.tsv": (b"text\tlabel\na\tpos\tx\n", "bad-row"),
    "open-quote.csv": (b'text,label\n"a,pos\nb,neg\n', "bad-row"),
    "swallowed.csv": (b'text,label\n"a,pos\nb,neg\nc,pos\nd,neg\ne",pos\n', "bad-row"),
    "unescaped-quote.csv": (b'text,label\n"a "b" c",pos\n', "bad-row"),
    "quoted.tsv": (b'text\tlabel\n"a ""b"""\tpos\n', "doubtful"),
    "two-columns-of-a-name.csv": (b"text,text\na,b\n", "ambiguous"),
    "truncated.jsonl": (b'{"text": "a"}\n{"text": "b', "bad-row"),
    "scalars.jsonl": (b'"a"\n"b"\n', "bad-row"),
    "surrogate.jsonl": (b'{"text": "a\\ud800"}\n', "bad-row"),
    "broken-array.json": (b'[{"text": "a"}, {"text": ]', "bad-file"),
    "empty.csv": (b"", "empty"),
    "empty.json": (b"[]", "empty"),
    "only-blank.csv": (b"\n \n", "empty"),
    "not-parquet.parquet": (b"text,label\na,b\n", "corrupt"),
    "photo.csv": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "wrong-kind"),
    "paper.csv": (b"%PDF-1.7\n", "wrong-kind"),
}


# Exports of annotation programs, and rows of them that were read as something else; the reasons of
# the bad rows.
EXPORTS = {
    "doccano.jsonl": (
        "multilabel",
        '{"text": "Bob ran", "label": [[0, 3, "PER"]]}\n{"text": "a", "label": ["x"]}\n',
        [("x",)],
        ['`[[0, 3, "PER"]]` is no list of names'],
    ),
    "label_studio.csv": (
        "multilabel",
        'text,label\na,"{""choices"":[""x"",""y""]}"\nb,x\n',
        [("x", "y"), ("x",)],
        [],
    ),
    "label_studio_several.csv": (
        "classify",
        'text,label\na,"{""choices"":[""x"",""y""]}"\nb,x\n',
        ["x"],
        ['`{"choices":["x","y"]}` is a list of labels, as Label Studio writes several'],
    ),
    "prodigy.jsonl": (
        "classify",
        "".join(
            json.dumps({"text": verdict, "_input_hash": 1, "label": "x", "answer": verdict}) + "\n"
            for verdict in ("accept", "reject", "ignore")
        ),
        ["x"],
        [
            f"its `answer` is `{verdict}`: the annotator did not accept the label"
            for verdict in ("reject", "ignore")
        ],
    ),
    "two of Excel.csv": (
        "classify",
        "\ufeff\ufefftext,label\na,x\n\ufefftext,label\nb,y\n",
        ["x", "y"],
        ["the names of the columns again, as in the first line"],
    ),
    "concatenated.csv": (
        "classify",
        "text,label\na,x\ntext,label\nb,y\n",
        ["x", "y"],
        ["the names of the columns again, as in the first line"],
    ),
}


@pytest.mark.parametrize("name", EXPORTS)
def test_exports_of_annotation_programs(name, tmp_path):
    task, content = EXPORTS[name][:2]
    (tmp_path / name).write_text(content)
    columns = Columns(text="text", label="label")
    examples, bad_rows = examples_of(find_task(task, columns), tmp_path / name, "skip")
    assert (
        [example.label for example in examples],
        [row.reason for row in bad_rows.rows],
    ) == EXPORTS[name][2:]


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_right_is_one_named_error(name, tmp_path):
    content, slug = REFUSED[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as error, Table(tmp_path / name) as table:
        list(table.rows(list(table.columns)))
    assert error.value.slug == slug
    assert error.value.hint
    assert name in error.value.message


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "parquet"])
@pytest.mark.parametrize("folder_name", ["data", "it's my data"])
def test_shards_where_one_file_is_read_are_joined_as_the_hint_says(tmp_path, ending, folder_name):
    folder = tmp_path / folder_name
    folder.mkdir()
    rows = pd.DataFrame(
        {"tokens": [["Anna", "came"], ["He", "left"]], "ner_tags": [["B-PER", "O"], ["O", "O"]]}
    )
    for number in range(2):
        name = folder / f"train-0000{number}-of-00002.{ending}"
        part = rows[number : number + 1]
        part.to_parquet(name) if ending == "parquet" else part.to_json(
            name, orient="records", lines=True
        )
    with pytest.raises(DataError, match="names 2 files, one was expected") as error:
        find_input_file(folder / f"train-*-of-00002.{ending}")
    command = error.value.hint.removeprefix("join them in one file: ").replace(
        "python -c", f"{sys.executable} -c"
    )
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    joined = tmp_path / f"joined.{ending}"
    examples = find_task("ner").examples(joined, split="train", labelled=True, bad_rows=BadRows())
    assert [example.words for example in examples] == [("Anna", "came"), ("He", "left")]


def test_shards_that_no_command_joins_are_named_without_one(tmp_path):
    for number in range(2):  # one after the other, two documents are no JSON
        (tmp_path / f"train-0000{number}-of-00002.json").write_text('{"data": []}')
    with pytest.raises(DataError) as error:
        find_input_file(tmp_path / "train-*.json")
    assert error.value.hint == "name one of them, or join them in one file"
