"""Texts that are not UTF-8: the encoding that fits is named, and what was converted wrongly is noticed."""

import gzip
import subprocess

import pytest

from albertkit.corpus.documents import read_documents
from albertkit.encodings import check_mojibake, encoding_advice, likely_encoding
from albertkit.errors import DataError
from albertkit.files import read_text
from albertkit.tables.text_lines import utf8_hint
from albertkit.tokenizer.texts import read_lines

KOREAN = "대한민국의 수도는 서울이다. 그는 ‘안녕’이라 말했다 ㅋㅋㅋ. 3월에는 눈이 온다.\n"
JAPANESE = "日本語のテキストです。カタカナ、ひらがな「引用」を使います。東京は首都です。\n"
SIMPLIFIED = "我爱北京天安门，今天天气很好。中国的首都是北京，人口很多。这是一个例子。\n"
TRADITIONAL = "臺灣的語言學家說：「模型很輕」。今天的天氣很好，我們去公園散步，學生在圖書館讀書。\n"
RUSSIAN = "Русский текст о городе Москва, который стоит на реке. Он большой и старый.\n"
WESTERN = "Crème brûlée, naïve café à Zürich, déjà vu; Straße, groß, Übermut, für Äpfel und Öl\n"
CASES = [
    ("CP949", "cp949", KOREAN),
    ("CP949", "euc_kr", KOREAN),
    ("SHIFT_JIS", "shift_jis", JAPANESE),
    ("EUC-JP", "euc_jp", JAPANESE),
    ("GB18030", "gb2312", SIMPLIFIED),
    ("GB18030", "gb18030", SIMPLIFIED),
    ("BIG5", "big5", TRADITIONAL),
    ("CP1251", "cp1251", RUSSIAN),
    ("KOI8-R", "koi8_r", RUSSIAN),
    ("UTF-16LE", "utf-16-le", KOREAN),
    ("UTF-16BE", "utf-16-be", WESTERN),
    ("UTF-16", "utf-16", RUSSIAN),
    (None, "latin-1", WESTERN),
    (None, "cp1252", WESTERN),
]


@pytest.mark.parametrize(("name", "encoding", "text"), CASES)
def test_the_encoding_that_fits_is_named(name, encoding, text):
    sample = text.encode(encoding)
    for part in (sample, sample[:30], sample * 40 + sample[:7]):
        assert likely_encoding(part) == name
    if name and "16" not in name:
        assert likely_encoding(b"English, first. " * 200 + sample) == name


def test_damaged_utf8_is_not_another_encoding():
    damaged = (KOREAN * 5).encode() + b"\xc1\xff " + KOREAN.encode()
    assert likely_encoding(damaged) == "UTF-8"
    assert "copy or download it again" in encoding_advice(damaged)


def advice_of_readers(path):
    hints = []
    for read_file in (
        lambda: list(read_documents([path])),
        lambda: list(read_lines(path)),
        lambda: read_text(path),
    ):
        with pytest.raises(DataError, match="bad-encoding") as caught:
            read_file()
        hints.append(caught.value.hint)
    return [*hints, utf8_hint(str(path))]


@pytest.mark.parametrize(("name", "encoding", "text"), [CASES[0], CASES[2], CASES[12]])
def test_every_reader_gives_a_command_that_works(tmp_path, name, encoding, text):
    path = tmp_path / "text.txt"
    path.write_bytes(b"English first.\n" * 30 + text.encode(encoding) * 3)
    for hint in advice_of_readers(path):
        assert (name or "LATIN1") in hint
        subprocess.run(hint.split("`")[1], shell=True, check=True, cwd=tmp_path)
        assert (tmp_path / "text.utf8.txt").read_text(encoding="utf-8").endswith(text * 3)
        assert (f"“{text[:5]}" in hint) or name is None or "English" in hint


def test_packed_files_and_utf16_without_a_mark(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(KOREAN.encode("cp949")))
    with pytest.raises(DataError) as caught:
        list(read_documents([tmp_path / "a.txt.gz"]))
    assert "gzip -dc" in caught.value.hint
    assert "CP949" in caught.value.hint
    (tmp_path / "b.txt").write_bytes(KOREAN.encode("utf-16-le"))
    for read_file in (
        lambda: list(read_documents([tmp_path / "b.txt"])),
        lambda: list(read_lines(tmp_path / "b.txt")),
    ):
        with pytest.raises(DataError, match=r"bad-encoding.*is UTF-16LE") as caught:
            read_file()
        assert "iconv -f UTF-16LE -t UTF-8" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (KOREAN, "cp949"),
        (RUSSIAN, "cp1251"),
        (WESTERN, "utf-8"),
    ],
)
def test_what_was_converted_from_latin1_wrongly_is_refused(tmp_path, text, encoding):
    path = tmp_path / "wrong.txt"
    path.write_text((text * 30).encode(encoding).decode("latin-1"), encoding="utf-8")
    for read_file in (lambda: list(read_lines(path)), lambda: list(read_documents([path]))):
        with pytest.raises(DataError, match=r"\[bad-encoding\]") as caught:
            read_file()
    subprocess.run(caught.value.hint.split("`")[1], shell=True, check=True, cwd=tmp_path)
    assert (tmp_path / "wrong.utf8.txt").read_text(encoding="utf-8") == text * 30


@pytest.mark.parametrize(
    "text",
    [
        KOREAN,
        JAPANESE,
        SIMPLIFIED,
        RUSSIAN,
        WESTERN,
        "Tiếng Việt có nhiều dấu: ệ ữ ằ ộ\n",
        "Þetta er íslenska, æ ö ð á\n",
    ],
)
def test_sound_text_is_not_mojibake(text):
    check_mojibake((text * 60).encode(), "text.txt")


def test_what_was_piped_in_and_is_gone_is_not_taken_for_western():
    assert "CP949" in encoding_advice(b"")
