"""Lines of text files, whatever they are packed with, and what to say of lines that are no text."""

import csv
import io
import json
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from albertkit.encodings import encoding_advice, file_encoding_advice
from albertkit.errors import AlbertKitError, DataError, format_list
from albertkit.model_paths import is_remote
from albertkit.tables.files import ByteStream, InputFile
from albertkit.tables.records import DataFile, Records

HEAD_BYTES = 1 << 16
_ROWS = 1000
_MIN_COMMA_ROWS = 3
_MIN_REPEATING_ROWS = 6
_MARKUP_SHARE, _STRUCTURED_SHARE = 0.5, 0.9  # of the lines
_COMMON_COLUMNS = set(
    "id idx index text label sentence sentence1 document content review title".split()
)
_JSON = re.compile(r'(\{\s*["}]|\[\s*[{"])')
_MARKUP_LINE = re.compile(r"\s*</?[A-Za-z][\w:.-]*[^<>]*>")
_BEGINNINGS = {
    "HTML": re.compile(r"<!doctype html|<html", re.IGNORECASE),
    "XML": re.compile(r"<\?xml|<mediawiki"),
    "RTF": re.compile(r"\{\\rtf"),
    "PDF": re.compile("%PDF-"),
    "pages of an archive (WARC)": re.compile(r"WARC/\d"),
    "cards or dates of a calendar": re.compile("BEGIN:V(CARD|CALENDAR)"),
    "a table (ARFF)": re.compile(r"(%.*\n\s*)*@relation\s", re.IGNORECASE),
    "dictionaries of Python": re.compile(r"\[?\{'[^'\n]*': "),
    "LaTeX": re.compile(r"\\documentclass"),
    "SQL": re.compile(r"(\s*(--|/\*).*\n)*\s*(CREATE TABLE|INSERT INTO|DROP TABLE)\b"),
    # Items of several keys: a dialogue's line, `- Anna: Yes.`, has one.
    "records (YAML)": re.compile(r"(---\s*\n)?([\w-]+:.*\n\s*)*- [\w-]+:.*\n +[\w-]+:"),
    "BibTeX": re.compile(r"@[a-z]+\{\S*,\s*\n", re.IGNORECASE),
    "mail with its headers": re.compile(
        r"(From \S+@.*\n)?((From|Received|Return-Path|Message-ID|X-\S+): .*\n)([\w-]+: |[ \t])"
    ),
    "subtitles with times": re.compile(
        r"WEBVTT|\[Script Info\]|\d+\s*\n\d\d:\d\d:\d\d[,.]\d{3} +-->"
    ),
}
_LINES = {  # as which most lines, but for comments, are written
    "words with tags": re.compile(r"\S.*[ \t](O|[BIESMLU]-\S+)\s*"),
    "words with annotations (CoNLL-U)": re.compile(r"\d+([-.]\d+)?(\t[^\t]+){9}\s*"),
    "annotations of brat": re.compile(r"([TREAMN]\d+|[#*]\d*)\t\S+ .*"),
    "texts with labels (fastText)": re.compile(r"__label__\S+\s.*"),
    "lines with times": re.compile(
        r"((\[[^]]+\] )?\[(오전 |오후 )?\d+:\d\d([.:]\d+)?\]|\{\d+\}\{\d+\}"
        r"|\[?\d+([-./] ?|년 )\d+([-./] ?|월 )\d+[일.]?,?[T ](오전 |오후 |at )?\d\d?:\d\d\b).*"  # of logs and of chats
    ),
    "messages with translations (PO)": re.compile(
        r'(msg(ctxt|id|id_plural|str)(\[\d+\])? )?".*"\s*|#[:.,|~].*'
    ),
    "words with their parts of speech": re.compile(
        # of a sentence, or a word a line; "Bonjour !" is no word with its tag
        r"\s*+\S+/[^\s/]++(\s++\S+/[^\s/]++)+\s*|(\S+[ \t][A-Z]{2,6}\$?|[^\w\s]+[ \t][^\w\s]{1,2})\s*"
    ),
    "syntax trees": re.compile(r"\s*\((\S+ )?\(.*\)\s*\)\s*"),
    "numbers": re.compile(r"\S+( (\d+:)?[-+]?\d+(\.\d+)?(e[-+]?\d+)?){3,}\s*"),
}
_NUMBER = re.compile(r"[-+]?\d+([.:/-]\d+)*")


class Structure(NamedTuple):
    """The form of a file that holds no running text.

    Attributes:
        kind: "csv", "tsv" and "jsonl" are formats whose texts can be named by a column; "other" has
            none.
        description: "a table of 3 columns (`id`, `text`, `label`)".
        column: The column with the longest texts; "" for another kind than a table.
    """

    kind: Literal["csv", "tsv", "jsonl", "other"]
    description: str
    column: str = ""


def check_running_text(
    head: bytes,
    path: str,
    hints: dict[str, str],
    name: str = "",
) -> None:
    """Refuse a file that is structured.

    Args:
        head: Its first bytes, at most `HEAD_BYTES`.
        path: Of the file.
        hints: What to do, for each `Structure.kind`; `{column}` stands for the column with the
            longest texts.
        name: Of the file, if it may tell that it is a table.
    """
    structure = detect_structure(head, name)
    if structure is not None:
        hint = hints[structure.kind].format(
            column=shlex.quote(structure.column) if structure.column else "COLUMN"
        )
        raise DataError(
            "doubtful",
            f"`{path}` is no running text, but {structure.description}",
            hint,
        )


def detect_structure(head: bytes, name: str) -> Structure | None:
    """Return what a file holds by its first bytes, or by its name; None for running text."""
    text = head.decode("utf-8", "ignore").removeprefix("\ufeff").lstrip()
    if "\n" not in text:
        text = text.replace("\r", "\n")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if len(head) >= HEAD_BYTES:
        lines.pop()
    lines = [line for line in lines if line.strip()][:_ROWS]
    if _JSON.match(text):
        return Structure("jsonl", "JSON")
    marked = [_MARKUP_LINE.match(line) is not None for line in lines]
    if len(lines) > 1 and marked[0] and sum(marked) > _MARKUP_SHARE * len(lines):
        return Structure("other", "XML")
    for description, beginning in _BEGINNINGS.items():
        if beginning.match(text):
            return Structure("other", description)
    uncommented_lines = [line for line in lines if not line.startswith("# ")]
    for description, pattern in _LINES.items():
        matching = sum(pattern.fullmatch(line) is not None for line in uncommented_lines)
        if len(uncommented_lines) > 1 and matching >= _STRUCTURED_SHARE * len(uncommented_lines):
            return Structure("other", description)
    extension = next(
        (part for part in reversed(name.lower().split(".")) if part in ("csv", "tsv")), ""
    )
    for separator in "\t,;|":
        rows = [line.split("\t") for line in lines]
        if separator != "\t":
            try:
                rows = list(csv.reader([line + "\n" for line in lines], delimiter=separator))
            except csv.Error:
                continue
        if (
            len({len(row) for row in rows}) == 1
            and len(rows[0]) > 1
            and (extension or _is_table(rows, separator))
        ):
            return _table_structure(rows, "tsv" if separator == "\t" else "csv")
    signs = {"csv": ',;"', "tsv": "\t", "": ""}[extension]
    if any(sign in line for line in lines for sign in signs):
        return _table_structure([[]], "tsv" if extension == "tsv" else "csv")
    return None


def _is_table(rows: Sequence[Sequence[str]], separator: str) -> bool:
    """Return whether rows of the same width are a table."""
    # A poem, too, may have a comma in every line.
    if separator == "\t":
        return len(rows) > 1
    if len(rows) < _MIN_COMMA_ROWS:
        return False
    if separator == "|":  # Hindi has it for a full stop
        filled_columns = [
            column for column in zip(*rows, strict=True) if any(map(str.strip, column))
        ]
        return len(filled_columns) > 1
    if any(field.startswith(" ") for row in rows for field in row[1:]):
        return False
    has_common_name = not _COMMON_COLUMNS.isdisjoint(name.strip().lower() for name in rows[0])
    columns = list(zip(*rows[1:], strict=True))
    has_numbers = any(all(map(_NUMBER.fullmatch, column)) for column in columns)
    has_classes = len(rows) > _MIN_REPEATING_ROWS and any(
        2 * len(set(column)) < len(column) for column in columns
    )
    has_quoted_separators = any(separator in field for row in rows for field in row)
    return has_common_name or has_numbers or has_classes or has_quoted_separators


def _table_structure(rows: Sequence[Sequence[str]], kind: Literal["csv", "tsv"]) -> Structure:
    names = [name.strip()[:40] for name in rows[0]]
    if not names:
        return Structure(kind, f"a table ({kind.upper()}), by its name")
    sizes = [sum(map(len, column)) for column in zip(*rows, strict=True)]
    fields = format_list([f"`{name}`" for name in names])
    return Structure(
        kind,
        f"a table of {len(names)} columns ({fields})",
        names[sizes.index(max(sizes))],
    )


MAX_RECORD_CHARACTERS = 64 << 20  # characters of a line or a record
# That are no part of a word or of a label: white space, such as U+00A0 and U+3000, and what is not
# even seen.
BLANKS = "".join(filter(str.isspace, map(chr, range(0x3001)))) + "\u200b\ufeff"
NOT_UTF8 = "bytes that are not UTF-8"  # see `utf8_hint`
_HALF = re.compile("[\ud800-\udfff]")


def numbered_blocks(stream: ByteStream, number: int = 1) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines, each with the number of its first line; `number` is that of the first block's."""
    # CR alone ends the lines of the first Macintoshes and of Excel's "CSV (Macintosh)".
    incomplete = b""
    cr_alone = None
    while chunk := stream.read():
        if cr_alone is None:
            cr_alone = number == 1 and b"\n" not in chunk and b"\r" in chunk[:-1]
        if cr_alone:
            chunk = chunk.replace(b"\r", b"\n")
        chunk = incomplete + chunk
        end = chunk.rfind(b"\n") + 1
        block = chunk[:end]
        incomplete = chunk[end:]
        if block:
            yield number, block
            number += block.count(b"\n")
        if len(incomplete) > MAX_RECORD_CHARACTERS:
            fact = f"`{stream.file.path}`: line {number:,} is longer than {MAX_RECORD_CHARACTERS:,} bytes"
            raise DataError("bad-row", fact, "break it into several lines")
    if incomplete:
        yield number, incomplete


def byte_lines(stream: ByteStream) -> Iterator[bytes]:
    """Yield lines with their ends."""
    for _, block in numbered_blocks(stream):
        yield from io.BytesIO(block)


def lines(stream: ByteStream) -> Iterator[tuple[int, str]]:
    """Yield line numbers from 1 and lines without their ends. Bytes that are not UTF-8 become lone surrogates."""
    for first, block in numbered_blocks(stream):
        # Lines are whole, so no character is cut in two
        text = block.decode("utf-8", "surrogateescape")
        if first == 1:
            text = text.lstrip("\ufeff")
        if text:
            # `str.splitlines` would cut JSONL at U+2028 within a text.
            for number, line in enumerate(text.removesuffix("\n").split("\n"), first):
                yield number, line.removesuffix("\r")


def has_half_characters(text: str) -> bool:
    """Return whether a text holds lone surrogates: what `lines` makes of bytes that are not UTF-8, and what JSON can spell."""
    return not text.isascii() and _HALF.search(text) is not None


def text_problem(text: str) -> str | None:
    """Return why a line is no text, if it is none."""
    if "\0" in text:
        return "a zero byte, which no text has"
    return NOT_UTF8 if has_half_characters(text) else None


def json_problem(error: ValueError | RecursionError) -> str:
    """Return what is wrong with one line of JSON."""
    # The line number of the error is left out: there it is always 1.
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg}, column {error.colno}"
    return NOT_UTF8 if isinstance(error, UnicodeDecodeError) else f"not JSON: {error}"


def utf8_hint(file: DataFile | str) -> str:
    """Return what to do about rows that are not UTF-8."""
    in_memory = isinstance(file, Records)
    hint = (
        'make it UTF-8: text.encode("utf-8", "replace").decode()'
        if in_memory
        else encoding_hint(str(file))
    )
    return f"{hint}; or leave such rows out with --on-error skip"


@lru_cache(maxsize=8)
def encoding_hint(path: str, sample: bytes = b"") -> str:
    """Return what to do about a file that is not UTF-8, by all of its lines. Asked for every bad row.

    Args:
        path: Of the file.
        sample: Lines that are not UTF-8, for what can be read only once.
    """
    if not (is_remote(path) or os.path.isfile(path)):
        return encoding_advice(sample)
    try:
        with ByteStream(InputFile(path, 0)) as stream:
            if stream.peek(4) == b"PAR1":
                return "write its texts as UTF-8"
            return file_encoding_advice(byte_lines(stream), path)
    except (OSError, AlbertKitError):  # what is wrong with the file is reported elsewhere
        return encoding_advice(sample)
