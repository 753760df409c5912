"""Read documents from files: plain text, paragraphs, pairs, JSON, CSV, TSV, Parquet and WikiExtractor.

A file never continues another's document.
"""

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, get_args

from albertkit.corpus.options import SEPARATOR, BuildSettings, Errors, Format
from albertkit.encodings import SAMPLE_BYTES, check_begins_as_utf8, check_mojibake
from albertkit.errors import ConfigError, DataError, suggest_name
from albertkit.files import StrPath, parse_json
from albertkit.tables.files import ByteStream, InputFile, find_inputs
from albertkit.tables.table import ParquetFile, is_json_lines, json_items, open_separated
from albertkit.tables.text_lines import (
    HEAD_BYTES,
    MAX_RECORD_CHARACTERS,
    check_running_text,
    encoding_hint,
    numbered_blocks,
)

# A longer line is taken for no boundary, whatever it holds: it is passed over without being held in
# memory.
_LINE_BYTES = 1 << 16
_LINES = ("jsonl", "paragraphs", "pairs")  # every line is a document
WHOLE_FORMATS = ("parquet", "csv", "tsv")  # that cannot be read from the middle


def document_bounds(
    file: IO[bytes],
    format: str,
    start: int,
    end: int | None,
) -> tuple[int, int | None]:
    """Return the bytes where the first document of a range begins and its last one ends; 0 and 0 if it holds none.

    The file is seekable and not compressed; None is its end.
    """
    first = _find_boundary(file, format, start, end) if start else 0
    if first is None or (end is not None and first >= end and format in _LINES):
        return 0, 0
    return first, None if end is None else _find_boundary(file, format, end, None)


def _find_boundary(
    file: IO[bytes],
    format: str,
    start: int,
    limit: int | None,
) -> int | None:
    """Return the first byte after the first line that ends a document and begins from `start` on, before `limit`."""
    file.seek(start - 1)
    position = start - 1 + _read_line_and_size(file)[1]  # begins a line, be it at `start` itself
    if format in _LINES:
        return position
    last_line = "</doc>" if format == "wiki" else ""
    while limit is None or position < limit:
        line, size = _read_line_and_size(file)
        if not size:
            return None
        position += size
        if line.decode("utf-8", "replace").strip() == last_line:
            return position
    return None


def _read_line_and_size(file: IO[bytes]) -> tuple[bytes, int]:
    """Return the next line, or `-` for a very long one, and its size."""
    line = chunk = file.readline(_LINE_BYTES)
    size = len(line)
    while len(chunk) == _LINE_BYTES and not chunk.endswith(b"\n"):
        line = b"-"
        chunk = file.readline(_LINE_BYTES)
        size += len(chunk)
    return line, size


FAULTS_NAMED = 20  # faulty lines whose position is reported

# A document is handled whole by one worker. Plain text without a single blank line would be one
# document of any size, so it is cut, and the cuts are counted.
DOCUMENT_CHARACTERS = 4 << 20

_EXTENSIONS = {
    "txt": "text",
    "text": "text",
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "json": "jsonl",
    "parquet": "parquet",
    "pq": "parquet",
}
_AS_TEXT = "; if its lines are texts as they stand, say --format text"
_STRUCTURE_HINTS = {
    "csv": f"name its format and the column of the texts: --format csv --field {{column}}{_AS_TEXT}",
    "tsv": f"name its format and the column of the texts: --format tsv --field {{column}}{_AS_TEXT}",
    "jsonl": f"name its format and the field of the texts: --format jsonl --field text{_AS_TEXT}",
    "other": f"take the texts out of it first, or leave it out of the inputs{_AS_TEXT}",
}
_UNDECODABLE = re.compile("[\udc80-\udcff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_DOC_START = re.compile(r"<doc [^>]*?(?:title=\"(.*)\")?\s*>$")


@dataclass(frozen=True, slots=True)
class Document:
    """A text and its source.

    Args:
        text: Its lines, joined by newlines; empty if the file holds an empty document.
        file: Path or URL.
        ordinal: Number of the document in its file, from 0.
        cut: It ends where `DOCUMENT_CHARACTERS` were full, not where its author ended it.
    """

    text: str
    file: str
    ordinal: int
    cut: bool = False


class DocumentFile:
    """Iterates over the documents of one input file.

    Args:
        file: The input.
        settings: Its format, field and separator. Without a format the first bytes and the name
            decide; no file looks like paragraphs or pairs, and a table of fields, markup and the
            like are refused.
        errors: What to do about bytes that are not UTF-8: "strict" or "replace" (by U+FFFD, counted
            in `bad_bytes`).
        start, end: Only the documents of this range of bytes (`document_bounds`). A file that
            cannot be read from the middle (compressed, a table, one JSON document) is read whole by
            a range that begins at 0, and not at all by another.
        first_line: Number of the first line of the range.

    Attributes:
        stream: The file, decompressed; to be closed where the documents are not read.
        lines: Lines read, when all documents have been.
        faulty_lines: Lines of pairs, read so far, with fewer than two sentences; they are passed
            over.
        faults: Numbers of the first of them, at most `FAULTS_NAMED`.
    """

    def __init__(
        self,
        file: InputFile,
        settings: BuildSettings | None = None,
        errors: str = "strict",
        start: int = 0,
        end: int | None = None,
        first_line: int = 1,
    ) -> None:
        if errors not in get_args(Errors):
            raise ConfigError(
                "unknown-name",
                f"errors cannot be `{errors}`",
                suggest_name(errors, get_args(Errors)),
            )
        settings = settings or BuildSettings()
        self.file = file
        self.field = settings.field
        self.separator = settings.separator
        self.errors = errors
        self._range = start, end
        self._first_line = first_line
        self._first_byte = 0
        self.lines = 0
        self.bad_bytes = 0
        self._sample = b""  # of what is not UTF-8
        self.faulty_lines = 0
        self.faults: list[int] = []
        self.stream = ByteStream(file)
        try:
            self.format = settings.format or self._detect_format()
            self._is_json_document = self.format == "jsonl" and not is_json_lines(self.stream)
        except BaseException:
            self.stream.close()
            raise

    def _detect_format(self) -> str:
        head = self.stream.peek(HEAD_BYTES)
        if head.startswith(b"PAR1"):
            return "parquet"
        check_begins_as_utf8(head, self.file.path)
        if b"\0" in head[:4096] or head.startswith(b"%PDF"):
            raise DataError(
                "wrong-kind",
                f"`{self.file.path}` is binary, not text",
                "leave it out of the inputs, or name its format with --format",
            )
        check_mojibake(head[:4096], self.file.path)
        start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
        if start.startswith(b"<doc "):
            return "wiki"
        format = "jsonl" if re.match(rb'[\[{]\s*[{"]', start) else "text"
        for extension in self.file.name.lower().split(".")[1:]:
            # The last one decides: `a.jsonl.txt` is text
            format = _EXTENSIONS.get(extension, format)
        if format == "text":
            check_running_text(head, self.file.path, _STRUCTURE_HINTS, self.file.name)
        return format

    def __iter__(self) -> Iterator[Document]:
        reader = {
            "text": self._documents_from_text,
            "paragraphs": self._documents_from_paragraphs,
            "pairs": self._documents_from_pairs,
            "jsonl": self._documents_from_jsonl,
            "csv": self._documents_from_table,
            "tsv": self._documents_from_table,
            "parquet": self._documents_from_parquet,
            "wiki": self._documents_from_wiki,
        }[self.format]
        start, end = self._range
        with self.stream:
            if (start, end) != (0, None):
                is_whole = self.format in WHOLE_FORMATS or self._is_json_document
                file = None if is_whole else self.stream.seekable_file()
                if file is None and start:
                    return  # the range that begins at 0 reads the whole file
                if file is not None:
                    first, last = document_bounds(file, self.format, start, end)
                    if first == last:
                        return
                    self.stream.limit(first, last)
                    self._first_byte = first
            for ordinal, (text, cut) in enumerate(reader()):
                yield Document(text, self.file.path, ordinal, cut)

    # --- lines ------------------------------------------------------------------------------------

    def _numbered_lines(self) -> Iterator[tuple[int, str]]:
        """Yield line numbers from 1 and lines without their ends."""
        offset = self._first_byte
        bad = ""
        for number, block in numbered_blocks(self.stream, self._first_line):
            text, first = self._decode_or_locate_bad_byte(block, number, offset)
            bad = bad or first
            if not bad:
                yield from enumerate(text.removesuffix("\n").split("\n"), number)
            self.lines += block.count(b"\n")
            offset += len(block)
        if bad:
            raise self._encoding_error(bad)

    def _decode_or_locate_bad_byte(self, block: bytes, number: int, offset: int) -> tuple[str, str]:
        """Return the text of a block of whole lines, and the position of the first bad byte if they are not replaced."""
        try:
            text = block.decode("utf-8")
            if offset == 0:
                text = text.removeprefix("\ufeff")
            return text, ""
        except UnicodeDecodeError as error:
            # surrogateescape maps every bad byte to one lone surrogate, which good UTF-8 never
            # gives
            self.bad_bytes += len(_UNDECODABLE.findall(block.decode("utf-8", "surrogateescape")))
            if self.errors == "replace":
                return block.decode("utf-8", "replace"), ""
            line = number + block.count(b"\n", 0, error.start)
            begin = block.rfind(b"\n", 0, error.start) + 1
            self._sample = self._sample or block[begin : begin + SAMPLE_BYTES]
            return "", f"line {line:,}, byte {offset + error.start:,} (0x{block[error.start]:02x})"

    def _encoding_error(self, first: str) -> DataError:
        plural = "s" if self.bad_bytes != 1 else ""
        return DataError(
            "bad-encoding",
            f"`{self.file.path}` is not UTF-8: {self.bad_bytes:,} bad byte{plural}, the first at {first}",
            f"{encoding_hint(self.file.path, self._sample)}; or go on with `--errors replace`, which counts them",
        )

    # --- formats ----------------------------------------------------------------------------------

    def _documents_from_text(self) -> Iterator[tuple[str, bool]]:
        lines: list[str] = []
        size = 0
        for _, raw in self._numbered_lines():
            line = raw.strip()
            is_cut = bool(line) and size > DOCUMENT_CHARACTERS
            if lines and (is_cut or not line):
                yield "\n".join(lines), is_cut
                lines = []
                size = 0
            if line:
                lines.append(line)
                size += len(line)
        if lines:
            yield "\n".join(lines), False

    def _documents_from_paragraphs(self) -> Iterator[tuple[str, bool]]:
        for _, line in self._numbered_lines():
            if line.strip():
                yield line.strip(), False

    def _documents_from_pairs(self) -> Iterator[tuple[str, bool]]:
        for number, line in self._numbered_lines():
            sentences = [sentence.strip() for sentence in line.split(self.separator)]
            if len(sentences) > 1 and all(sentences):
                yield "\n".join(sentences), False
            elif line.strip():
                self.faulty_lines += 1
                if len(self.faults) < FAULTS_NAMED:
                    self.faults.append(number)

    def _documents_from_jsonl(self) -> Iterator[tuple[str, bool]]:
        for location, record in self._json_records():
            if not isinstance(record, dict):
                raise DataError(
                    "bad-row",
                    f"{location}: a {type(record).__name__}, not an object",
                    "one object on every line",
                )
            texts = [
                self._parse_field_text(value, location)
                for value in self._values_of_field(record, location)
            ]
            yield "\n".join(filter(None, texts)), False

    def _json_records(self) -> Iterator[tuple[str, Any]]:
        """Yield the JSON value of each line, or the items of an array, or the documents of several lines."""
        if self._is_json_document:
            for number, record in json_items(self._numbered_lines(), self.file.path):
                yield f"`{self.file.path}`, record {number:,}", record
            return
        for number, line in self._numbered_lines():
            if line and not line.isspace():
                location = f"`{self.file.path}`, line {number:,}"
                try:
                    record = parse_json(line)
                except (ValueError, RecursionError) as error:
                    raise DataError(
                        "bad-row",
                        f"{location}: not JSON: {error}",
                        "JSONL has one whole object on every line",
                    ) from None
                yield location, record

    def _documents_from_table(self) -> Iterator[tuple[str, bool]]:
        """Read a column of a table whose first line has the names."""

        def bad(line: int, reason: str, hint: str) -> None:
            raise DataError(
                "bad-row",
                f"`{self.file.path}`, line {line:,}: {reason}",
                hint or "correct the row",
            )

        sample = self.stream.peek(SAMPLE_BYTES)
        extension = self.format if self.format == "csv" else ""
        table = open_separated(
            self._numbered_lines(), self.file.path, sample, extension, "look", bad
        )
        if table.columns.count(self.field) != 1:
            hint = _field_hint(self.field, table.columns)
            raise DataError("missing-column", f"`{self.file.path}`: no column `{self.field}`", hint)
        column = table.columns.index(self.field)
        width = len(table.columns)
        for line, fields in table.records(()):
            if fields and len(fields) != width:
                bad(line, f"{len(fields):,} fields, but the table has {width:,} columns", "")
            if fields:
                yield fields[column].strip(), False

    def _values_of_field(self, record: dict[str, Any], location: str) -> list[Any]:
        """Return the values of the field in a record: `text`, `document.text`, or of every item of a list, `text[].content`."""
        if self.field in record:
            return [record[self.field]]
        values: list[Any] = [record]
        for step in self.field.split("."):
            name = step.removesuffix("[]")
            for value in values:
                if not isinstance(value, dict) or name not in value:
                    fields = value if isinstance(value, dict) else {}
                    raise DataError(
                        "missing-column",
                        f"{location}: no field `{self.field}`",
                        _field_hint(name, fields),
                    )
            values = [value[name] for value in values]
            if step.endswith("[]"):
                lists = [value for value in values if isinstance(value, list)]
                if len(lists) < len(values):
                    raise DataError(
                        "missing-column",
                        f"{location}: `{name}` of `{self.field}` is not a list",
                        f"name it without []: --field {self.field.replace(step, name, 1)}",
                    )
                values = [item for items in lists for item in items]
        return values

    def _parse_field_text(self, value: Any, location: str) -> str:
        if value is None:
            return ""
        if not isinstance(value, str):
            kind = type(value).__name__
            raise DataError(
                "missing-column",
                f"{location}: field `{self.field}` is a {kind}, not text",
                "name another with --field",
            )
        # JSON can spell half a character (a lone surrogate, "\\ud800"); no tokenizer takes it
        halves = len(_SURROGATE.findall(value))
        if halves:
            self.bad_bytes += halves
            if self.errors == "strict":
                raise DataError(
                    "bad-encoding",
                    f"{location}: {halves:,} lone surrogates (half characters) in field `{self.field}`",
                    "go on with `--errors replace`, which counts them",
                )
            value = _SURROGATE.sub("\ufffd", value)
        return value.strip()

    def _documents_from_wiki(self) -> Iterator[tuple[str, bool]]:
        # WikiExtractor repeats the title as the first line; it is not a sentence.
        lines: list[str] | None = None
        title = ""
        start = size = 0
        for number, raw in self._numbered_lines():
            line = raw.strip()
            head = _DOC_START.match(line)
            if head:
                if lines is not None:
                    break
                title = html.unescape(head[1] or "")
                lines = []
                start, size = number, 0
            elif line == "</doc>" and lines is not None:
                if lines and lines[0] == title:
                    del lines[0]
                yield "\n".join(lines), False
                lines = None
            elif line:
                if lines is None:
                    raise DataError(
                        "bad-file",
                        f"`{self.file.path}`, line {number:,}: text outside of <doc …> and </doc>",
                        "if it is not WikiExtractor's output, say --format text",
                    )
                lines.append(line)
                size += len(line)
                if size > MAX_RECORD_CHARACTERS:
                    break
        if lines is not None:
            raise DataError(
                "bad-file",
                f"`{self.file.path}`: the document that begins at line {start:,} has no </doc>",
                "the file may be cut off: copy it again; if it is not WikiExtractor's output, say --format text",
            )

    def _documents_from_parquet(self) -> Iterator[tuple[str, bool]]:
        table = ParquetFile(self.stream)
        if self.field not in table.schema.names:
            hint = _field_hint(self.field, table.schema.names)
            raise DataError("missing-column", f"`{self.file.path}`: no column `{self.field}`", hint)
        for row, record in enumerate(table.records([self.field]), 1):
            value = record[self.field]
            if not isinstance(value, bytes | None):
                fact = f"column `{self.field}` is a {type(value).__name__}, not text"
                raise DataError(
                    "missing-column",
                    f"`{self.file.path}`: {fact}",
                    "name another with --field",
                )
            text, bad = self._decode_or_locate_bad_byte(value or b"", 1, 0)
            if bad:
                raise self._encoding_error(f"row {row:,}")
            yield text.strip(), False


def _field_hint(field: str, fields: Iterable[str]) -> str:
    return f"{suggest_name(field, fields)} (choose with --field)"


def read_documents(
    inputs: Sequence[StrPath],
    format: Format | None = None,
    field: str = "text",
    errors: str = "strict",
    separator: str = SEPARATOR,
) -> Iterator[Document]:
    """Yield all documents of files, folders, globs and URLs, streamed in the order of `find_inputs`.

    Args:
        inputs: What to read.
        format: One of `Format`; None finds out for each file, but for csv, tsv, paragraphs and
            pairs.
        field: JSON field or column of a table; `a.b` for a field of a field, `a[].b` for that of
            every item of a list (JSONL).
        errors: "strict" or "replace".
        separator: Between the sentences of a line of pairs.
    """
    settings = BuildSettings(format, field, separator)
    for file in find_inputs(inputs):
        yield from DocumentFile(file, settings, errors)
