"""Read rows of any table, by column name: CSV, TSV, JSON lines, a JSON array, Parquet; gzip, xz and zstandard. Streaming.

A reader is opened for the kind of file: it returns a `_TableSource`, which yields records as lists
of fields or as dictionaries.
"""

import csv
import glob
import itertools
import json
import re
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Self

from albertkit.encodings import check_begins_as_utf8, normalize
from albertkit.errors import DataError, requires_package, suggest_name
from albertkit.files import StrPath, object_with_unique_keys
from albertkit.tables.bad_rows import BadRows
from albertkit.tables.files import ByteStream, InputFile, find_inputs, require_one_file
from albertkit.tables.records import DataFile, Records, name_classes, quoted_name, row_name
from albertkit.tables.text_lines import (
    MAX_RECORD_CHARACTERS,
    NOT_UTF8,
    encoding_hint,
    has_half_characters,
    json_problem,
    lines,
    text_problem,
)

_ROWS = 256  # at a time; a row may be a whole document


class ParquetFile:
    """A Parquet file, opened. It is read from its end, so a compressed or piped one goes through the disk first.

    Attributes:
        schema: Its columns, a `pyarrow.Schema`.
        class_names: Names of the classes in columns that are a `ClassLabel` of datasets, as files
            of the hub have them.
    """

    def __init__(self, stream: ByteStream) -> None:
        with requires_package("pyarrow", "parquet", "reading Parquet"):
            import pyarrow
            import pyarrow.parquet
        self._arrow: Any = pyarrow
        self._path = stream.file.path
        file: IO[bytes] | None = stream.seekable_file()
        if file is None:
            file = tempfile.TemporaryFile()  # noqa: SIM115  (it lives as long as the table)
            shutil.copyfileobj(stream, file, 1 << 20)
        file.seek(0)
        with self._arrow_errors_as_ours():
            self._table = pyarrow.parquet.ParquetFile(file)
            self.schema: Any = self._table.schema_arrow
        self.class_names: dict[str, list[str]] = {}
        with suppress(KeyError, TypeError, ValueError):  # KeyError: not written by datasets
            features = json.loads(self.schema.metadata[b"huggingface"])["info"]["features"]
            for column, feature in features.items():
                feature = feature.get("feature", feature)  # of a list
                if feature["_type"] == "ClassLabel":
                    self.class_names[column] = feature["names"]

    @contextmanager
    def _arrow_errors_as_ours(self) -> Iterator[None]:
        try:
            yield
        except (self._arrow.ArrowException, OSError, UnicodeDecodeError) as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise DataError(
                "corrupt",
                f"`{self._path}`: {reason}",
                "copy or download it again",
            ) from None

    def records(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the rows, each with these columns by name; texts are bytes, see also `class_names`."""
        arrow = self._arrow
        batches = self._table.iter_batches(batch_size=_ROWS, columns=list(columns))
        while True:
            with self._arrow_errors_as_ours():
                batch = next(batches, None)
                if batch is None:
                    return
                # Texts as bytes: pyarrow would refuse a whole file for one that is not UTF-8.
                fields = []
                for field in batch.schema:
                    is_text = field.type in (arrow.string(), arrow.large_string())
                    fields.append(field.with_type(arrow.large_binary()) if is_text else field)
                rows = batch.cast(arrow.schema(fields)).to_pylist()
            for row in rows:
                for column in self.class_names.keys() & row.keys():
                    row[column] = name_classes(row[column], self.class_names[column])
                yield row


EXTENSIONS = ("tsv", "csv", "txt", "jsonl", "ndjson", "json", "parquet", "pq")
PACKINGS = ("gz", "xz", "zst")
PACKED_ENDINGS = ("", *(f".{packing}" for packing in PACKINGS))  # of a file that may be compressed
Quoting = bool | Literal["commas", "look"] | None

_SAMPLE = 1 << 20
_SEPARATORS = "\t,;|"
_SEPARATOR_LINES = 200  # that the separator is judged by
_QUOTES = 'double the quotes within quoted fields; if `"` is a character as any other here, say --no-quoted'
# Excel's first line, which is no row
_DECLARED_SEPARATOR = re.compile(r"sep=([\t,;|])\r?", re.IGNORECASE)
_SPACE = re.compile(r"\s*")


def nfc_column_name(name: str) -> str:
    """Return a name in NFC, as columns are compared."""
    # macOS writes Hangul and accented letters decomposed.
    return name if name.isascii() else normalize("NFC", name)


JSON_DECODER = json.JSONDecoder(
    object_pairs_hook=lambda pairs: object_with_unique_keys(
        [(nfc_column_name(name), value) for name, value in pairs]
    )
)
# Takes line, reason and perhaps a hint of a record that cannot be read
_Report = Callable[..., None]


class ListText(str):
    """A list of JSON or Parquet, as its JSON."""


class Null(str):
    """A value that JSON or Parquet has as null, or NaN: an empty text."""


class TableRow(NamedTuple):
    """A row of a table.

    Attributes:
        number: Its place among the rows, from 0; rows that cannot be read are counted.
        line: Its line in the file, from 1; of JSON arrays and Parquet the number of the record,
            from 1.
        values: Column name to text.
    """

    number: int
    line: int
    values: dict[str, str]


class _TableSource(NamedTuple):
    """An open table: its columns, its records when called with the wanted columns, and whether they are dictionaries."""

    columns: tuple[str, ...]
    records: Callable[[Sequence[str]], Iterator[tuple[int, Any]]]
    has_own_names: bool


# Not pandas, DuckDB, polars or pyarrow: on 51 small files of shapes that had failed, 41, 38, 37 and
# 37 had the right rows or an error, 8 to 11 were silently wrong. All four take a column name twice,
# a quote that swallows rows, a zero byte, and `sep=;` as header; none names the encoding. Of 1,340
# lines here a library would replace 250, and imports take as long (pandas 0.37 s).
class Table:
    """A table, opened at its first row. The first bytes say what it is, and the extension where they leave it open.

    - A separated table has the tab, comma, semicolon or `|` that its first line holds and most rows agree with, that of its
      extension first.
    - With commas and semicolons fields may be in quotes, with tabs they are not: GLUE's never are.
    - JSON and Parquet have names of their own, JSON those of all its records. An object within an object gives names such as
      `labels.label`.

    Args:
        file: Path or URL, or rows in memory; a glob that names several files reads them one after
            the other, each with a header if one has.
        quoted: Whether fields of a separated table may be in quotes. "commas": as above. "look":
            with tabs the first mebibyte decides. Default: as above, and a table with tabs that
            shows that it was written otherwise is refused.
        bad_rows: Collects every row that cannot be read. Default: such a row is an error.
        lines_unless: Lists of columns, of one task: a `.txt` file, or one without an extension,
            that has none of these lists in its first line is read as a text a line, as a table with
            one column, the first one named. Default: a table.
        skip_short: Whether rows of a separated table that lack fields are counted in `num_short`;
            else they are bad rows.

    Attributes:
        file: Path of the file that is being read, or the rows in memory.
        source: The argument `file`, as a path.
        columns: Names of the columns in NFC; of a separated table the fields of its first line.
        has_own_names: False for separated tables, whose first line may be a row: see
            `without_header`.
        is_lines: Whether every line is a text.
        num_short: How many rows were skipped because they lack fields.
    """

    def __init__(
        self,
        file: StrPath | Records,
        *,
        quoted: Quoting = None,
        bad_rows: BadRows | None = None,
        lines_unless: Sequence[Sequence[str]] = (),
        skip_short: bool = False,
    ) -> None:
        require_one_file(file)
        first, *self._further_files = find_inputs([file])
        self._stream = ByteStream(first)
        self.file = first.source
        self.source: DataFile = file if isinstance(file, Records) else Path(file)
        self._options: dict[str, Any] = {
            "quoted": quoted,
            "lines_unless": lines_unless,
            "skip_short": skip_short,
        }
        self._bad_rows = bad_rows if bad_rows is not None else BadRows()
        self._number = 0
        self._more_fields = False  # than there are names
        self._has_lines = True  # a record is a line of the file, or its number is all that is known
        self._first_row: list[tuple[int, list[str]]] = []
        self._line_of_id: dict[str, int] = {}
        self.is_lines = False
        self.num_short = 0
        self._skip_short = skip_short
        try:
            source = self._open(quoted, lines_unless)
        except BaseException:
            self._stream.close()
            raise
        self.columns, self._records, self.has_own_names = source
        if self.has_own_names and not self.is_lines:
            for shard in map(self._open_shard, self._further_files):
                self.columns = tuple(dict.fromkeys((*self.columns, *shard.columns)))
                shard.close()

    def _open(self, quoted: Quoting, lines_unless: Sequence[Sequence[str]]) -> _TableSource:
        stream = self._stream
        path = stream.file.path
        sample = stream.peek(_SAMPLE)
        start = sample.removeprefix(b"\xef\xbb\xbf").lstrip()
        if start.startswith(b"PAR1"):
            self._has_lines = False
            return _open_parquet(stream)
        check_begins_as_utf8(sample, path)
        has_zero_bytes = b"\0" in sample[:4096]
        if has_zero_bytes or sample.startswith(b"%PDF"):
            reason = ": it holds zero bytes" if has_zero_bytes else ""
            hint = "save it as CSV, TSV, JSON lines or Parquet"
            raise DataError("wrong-kind", f"`{path}` is binary, not a table{reason}", hint)
        if not start:
            raise DataError("empty", f"{self.name} is empty", "name a file with rows")
        extensions = [part for part in stream.file.name.lower().split(".") if part in EXTENSIONS]
        extension = extensions[-1] if extensions else ""
        if extension in ("parquet", "pq"):
            fact = f"{self.name} is called Parquet, but is not: it does not begin with PAR1"
            raise DataError(
                "corrupt",
                fact,
                "copy or download it again, or call it what it is, such as .csv",
            )
        is_json = start[:1] in (b"[", b"{") and extension not in ("csv", "tsv", "txt")
        if is_json or extension in ("jsonl", "ndjson", "json"):
            self._has_lines = is_json_lines(stream)
            return _open_json(stream, self._bad)
        if lines_unless and extension in ("", "txt"):
            first = start.split(b"\n", 1)[0].decode("utf-8", "replace")
            header = {name.strip().strip('"') for name in re.split(r"[\t,;]", first)}
            self.is_lines = not any(header.issuperset(columns) for columns in lines_unless)
        if self.is_lines:
            name = lines_unless[0][0]
            return _TableSource(
                (name,), lambda _: ((n, {name: line}) for n, line in lines(stream)), True
            )
        return open_separated(lines(stream), path, sample, extension, quoted, self._bad)

    def without_header(self, names: Sequence[str], more_fields: bool = False) -> None:
        """Declare that the first line of a separated table is a row.

        Args:
            names: Of the columns.
            more_fields: Whether rows may have further fields, which are ignored; such rows may also
                lack those fields at the end that are not asked for.
        """
        self._first_row = [(1, list(self.columns))]
        self.columns = tuple(map(nfc_column_name, names))
        self._more_fields = more_fields

    def rows(
        self,
        columns: Sequence[str] | None = None,
        optional: Sequence[str] = (),
        lists: Sequence[str] = (),
    ) -> Iterator[TableRow]:
        """Yield the rows from where the table stands, in order.

        Args:
            columns: The wanted columns; a row without one of them is a bad row. Default: all, none
                of which a row must have.
            optional: Further columns of the table; they come first, and are "" in rows that lack
                them.
            lists: The wanted columns that may hold lists; of another one a list is a bad row.
        """
        no_lists = set(columns or ()).difference(lists)
        needed = set(map(nfc_column_name, columns or ()))
        names = (*optional, *(self.columns if columns is None else columns))
        requested = {nfc_column_name(name): name for name in names}
        self.check(list(requested))
        yield from self._rows_of_first_file(requested, needed, no_lists)
        for shard in map(self._open_shard, self._further_files):
            shard.check(list(needed))
            self.file = shard.file
            self._has_lines = shard._has_lines
            shard._number = self._number
            in_shard = {
                name: spelled for name, spelled in requested.items() if name in shard.columns
            }
            for row in shard._rows_of_first_file(in_shard, needed, no_lists):
                yield row._replace(
                    values={spelled: row.values.get(spelled, "") for spelled in requested.values()}
                )
            self._number = shard._number
            self.num_short += shard.num_short

    def reopen(self) -> "Table | None":
        """Open the same table once more, to look at rows ahead; those that cannot be read are skipped. None for a pipe."""
        file = self.source
        if isinstance(file, Path) and not file.is_file() and not glob.has_magic(str(file)):
            return None
        return self._open_with_same_options(file, BadRows("skip"))

    def _open_shard(self, file: InputFile) -> "Table":
        """Open a further file of a glob."""
        return self._open_with_same_options(glob.escape(file.path), self._bad_rows)

    def _open_with_same_options(self, file: DataFile | str, bad_rows: BadRows) -> "Table":
        """Open a table that is read as this one is."""
        table = Table(file, bad_rows=bad_rows, **self._options)
        if self._first_row:
            table.without_header(self.columns, self._more_fields)
        return table

    def _rows_of_first_file(
        self,
        requested: dict[str, str],
        needed: set[str],
        no_lists: set[str],
    ) -> Iterator[TableRow]:
        read_values = self._values_by_name if self.has_own_names else self._values_by_index
        with self._stream:
            for line, values in read_values(requested, needed):
                if any(map(has_half_characters, values.values())):
                    self._bad(line, NOT_UTF8)
                    continue
                columns_with_list = [
                    name for name in no_lists if isinstance(values[name], ListText)
                ]
                if columns_with_list:
                    hint = "write one text; lists of labels are for `multilabel`, lists of choices for `choice`"
                    self._bad(line, f"`{columns_with_list[0]}` is a list, not a text", hint)
                    continue
                yield TableRow(self._number, line, values)
                self._number += 1

    def check(self, columns: Sequence[str]) -> None:
        """Refuse columns that are missing, or that occur twice."""
        for name in columns:
            count = self.columns.count(nfc_column_name(name))
            if count == 0:
                listed = ", ".join(f"`{column[:40]}`" for column in self.columns)
                hint = suggest_name(name, self.columns)
                if not hint.startswith("did you"):
                    hint = "name one of these; if the first line is a row, name all columns with --columns"
                raise DataError(
                    "missing-column",
                    f"{self.name} has no column `{name}`, only {listed}",
                    hint,
                )
            if count > 1:
                fact = f"{self.name} has {count} columns `{name}`"
                raise DataError("ambiguous", fact, "give them different names")

    def _values_by_name(
        self, requested: dict[str, str], needed: set[str]
    ) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield line numbers and values; `requested` has each column's name in NFC, and as it is asked for."""
        for line, record in self._records(list(requested)):
            missing = [name for name in requested if name in needed and name not in record]
            if missing:
                self._bad(line, f"no `{missing[0]}`")
            else:
                yield line, {spelled: record.get(name, "") for name, spelled in requested.items()}

    def _values_by_index(
        self, requested: dict[str, str], needed_columns: set[str]
    ) -> Iterator[tuple[int, dict[str, str]]]:
        indices = {spelled: self.columns.index(name) for name, spelled in requested.items()}
        width = len(self.columns)
        min_width = max(map(self.columns.index, needed_columns), default=0) + 1
        empty_line = 0
        for line, fields in itertools.chain(self._first_row, self._records(list(requested))):
            if not fields:
                empty_line = empty_line or line
                continue
            if empty_line:  # one at the end of a file is none
                self._bad(empty_line, "an empty line")
                empty_line = 0
            # Where files were joined, perhaps with the mark that each begins with.
            is_header = fields[0].endswith(self.columns[0]) and self.columns == tuple(
                field.removeprefix("\ufeff").strip() for field in fields
            )
            if is_header and width > 1 and not self._first_row:
                self._bad(line, "the names of the columns again, as in the first line")
            elif len(fields) == width or (self._more_fields and len(fields) >= min_width):
                yield (
                    line,
                    {
                        name: fields[index] if index < len(fields) else ""
                        for name, index in indices.items()
                    },
                )
            elif self._skip_short and len(fields) < width:
                self.num_short += 1
                self._number += 1
            else:
                plural = "" if len(fields) == 1 else "s"
                hint = ""
                if any(field.startswith('"') for field in fields):
                    hint = "if fields are in quotes, say --quoted"
                self._bad(
                    line,
                    f"{len(fields):,} field{plural}, but the table has {width:,} columns",
                    hint,
                )

    def _bad(self, line: int, reason: str, hint: str = "") -> None:
        self._number += 1
        self.add_bad_row(line, reason, hint)

    def add_bad_row(self, line: int, reason: str, hint: str = "") -> None:
        """Report a row that cannot be used; arguments as in `Row` and `BadRows.add`."""
        self._bad_rows.add(self.file, line, reason, hint, self.row_name(line))

    def check_id(self, name: str, line: int) -> None:
        """Refuse the id of an earlier row: a ValueError."""
        earlier_line = self._line_of_id.setdefault(name, line)
        if earlier_line != line:
            raise ValueError(f"id `{name}` again, as in {self.row_name(earlier_line)}")

    def row_name(self, line: int) -> str:
        """Return how messages call a row: "line 5", "record 5" of a file without lines, "row 4" of rows in memory."""
        return row_name(self.file, line) if self._has_lines else f"record {line:,}"

    @property
    def name(self) -> str:
        """How messages call the table: its path in backticks, or the name of rows in memory."""
        return quoted_name(self.file)

    def close(self) -> None:
        """Close the file; reading to the end does it, too."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


# --- separated fields -----------------------------------------------------------------------------


def open_separated(
    numbered_lines: Iterator[tuple[int, str]],
    path: str,
    sample: bytes,
    extension: str,
    quoted: Quoting,
    report: _Report,
) -> _TableSource:
    """Open a table of separated fields.

    Args:
        numbered_lines: All lines, as `lines` yields them.
        path: Of the file.
        sample: The first bytes of the file.
        extension: "csv" if commas are the usual separator, "" for tabs.
        quoted: As `Table`.
        report: Reports a row that cannot be read.
    """
    text = sample.decode("utf-8", "replace").lstrip("\ufeff\r\n")
    head = re.split("[\r\n]", text, maxsplit=1)[0]
    usual = "," if extension == "csv" else "\t"
    declared = _DECLARED_SEPARATOR.fullmatch(head)
    separator = declared[1] if declared else _detect_separator(text, head, usual)
    # GLUE's QQP keeps quotes of CSV that the original reads as text
    watched = quoted not in (False, "commas")
    if quoted == "look" and separator == "\t":
        verdicts = {_shows_quoting(line.split(separator)) for line in text.split("\n")[:-1]}
        in_quotes = True in verdicts and False not in verdicts
        watched = False not in verdicts
    else:
        in_quotes = quoted if isinstance(quoted, bool) else separator != "\t"
    if in_quotes:
        blanks_before_quotes = re.search(f'{re.escape(separator)} +"[^"]', text) is not None
        rows = _read_quoted(numbered_lines, separator, blanks_before_quotes, report)
    else:
        rows = _read_unquoted(numbered_lines, path, separator, watched)
    if declared:
        next(row for row in rows if row[1])
    first = next((row for row in rows if row[1]), (1, []))
    if any(map(has_half_characters, first[1])):
        raise DataError(
            "bad-encoding",
            f"`{path}`, line {first[0]:,}: {NOT_UTF8}",
            encoding_hint(path, sample),
        )
    return _TableSource(
        tuple(nfc_column_name(name.strip()) for name in first[1]),
        lambda _: rows,
        has_own_names=False,
    )


def _detect_separator(text: str, head: str, usual: str) -> str:
    """Return the separator of the first line that gives most of the first rows as many fields as it has."""
    candidates = [
        separator for separator in dict.fromkeys(usual + _SEPARATORS) if separator in head
    ]
    if len(candidates) < 2:
        return candidates[0] if candidates else usual
    some_lines = re.split("\r\n|[\r\n]", text, maxsplit=_SEPARATOR_LINES)[:_SEPARATOR_LINES]

    def regular_rows(separator: str) -> int:
        ended = [line + "\n" for line in some_lines]
        rows: Iterable[list[str]] = csv.reader(ended, delimiter=separator)
        if separator == "\t":
            rows = [line.split("\t") for line in ended]
        widths = [len(row) for row in rows if row not in ([], ["\n"])]
        return widths.count(widths[0])

    csv.field_size_limit(MAX_RECORD_CHARACTERS)
    return max(candidates, key=regular_rows)


def _shows_quoting(fields: list[str]) -> bool | None:
    """Return whether a row that was split without looking at quotes was written with quotes; None if it does not show it."""
    # A writer that quotes doubles the quotes within a field, so every field with a `"` begins and
    # ends with one and has only pairs between. A field that breaks this shows that nothing was
    # quoted; one that fits and holds a pair shows the opposite. RTE's quoted edition has 558 fields
    # that fit, all with pairs, and none that breaks it; MRPC has 148 that fit, none with a pair,
    # and 1,914 that break it.
    has_pairs = None
    for field in fields:
        if '"' in field:
            if not _in_quotes(field) or '"' in field[1:-1].replace('""', ""):
                return False
            if '""' in field[1:-1]:
                has_pairs = True
    return has_pairs


def _in_quotes(field: str) -> bool:
    return len(field) > 1 and field[0] == field[-1] == '"'


def _read_unquoted(
    numbered_lines: Iterator[tuple[int, str]],
    path: str,
    separator: str,
    watched: bool,
) -> Iterator[tuple[int, list[str]]]:
    """Yield rows in which `"` is a character as any other, until one shows quoting. An empty line has no field."""
    for number, line in numbered_lines:
        fields = line.split(separator) if line else []
        if watched and '"' in line:
            shows_quoting = _shows_quoting(fields)
            if shows_quoting or (number == 1 and all(map(_in_quotes, fields))):
                fact = "the fields are in quotes, but tables with tabs are read unquoted"
                hint = "say --quoted; or --no-quoted, if the quotes belong to the texts"
                raise DataError("doubtful", f"`{path}`, line {number:,}: {fact}", hint)
            watched = shows_quoting is None
        yield number, fields


def _read_quoted(
    numbered_lines: Iterator[tuple[int, str]],
    separator: str,
    blanks_before_quotes: bool,
    report: _Report,
) -> Iterator[tuple[int, list[str]]]:
    """Yield rows as RFC 4180 has them: fields in quotes where they hold a separator, a line end or a quote, which is doubled."""
    # A CR alone ends a line, too, as for csv and pandas.

    def ended_lines() -> Iterator[str]:
        for _, line in numbered_lines:
            if "\r" in line:
                yield from re.findall("[^\r]*\r|[^\r]+$", line + "\n")
            else:
                yield line + "\n"

    # Of the whole process; its own limit, 131,072 characters, is a text of 25,000 words.
    csv.field_size_limit(MAX_RECORD_CHARACTERS)
    reader = csv.reader(
        ended_lines(),
        delimiter=separator,
        strict=True,
        skipinitialspace=blanks_before_quotes,
    )
    while True:
        first = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            swallowed = reader.line_num - first
            fact = f"a quote that is not closed, or not doubled within its field ({error})"
            if swallowed:
                fact += f"; it swallowed {swallowed:,} further lines"
            report(first, fact, _QUOTES)
            continue
        swallowed = _count_swallowed_rows(fields, separator)
        if swallowed:
            report(first, f"a quote that is closed {swallowed + 1:,} rows later", _QUOTES)
            continue
        if fields:  # an empty line is none, as for csv and pandas
            yield first, fields


def _count_swallowed_rows(fields: list[str], separator: str) -> int:
    """Return how many whole rows a field seems to hold; 0 for a text of several lines."""
    # Its inner lines are then rows of this table, its first line ends as a row does from its column
    # on, its last line begins as one does up to there; and no separator is followed by a blank, as
    # the commas of an address or a poem are.
    enough = 1 if separator == "\t" else 3  # a text may well have a comma in a line, or in two
    for column, field in enumerate(fields) if len(fields) > 1 else ():
        first, *inner, last = field.split("\n") if "\n" in field else ("", "")
        counts = [line.count(separator) for line in (first, *inner, last)]
        expected = [len(fields) - 1 - column, *[len(fields) - 1] * len(inner), column]
        if (
            len(inner) >= enough
            and counts == expected
            and (separator == "\t" or f"{separator} " not in field)
        ):
            return len(inner)
    return 0


# --- JSON -----------------------------------------------------------------------------------------


def _open_json(stream: ByteStream, bad: _Report) -> _TableSource:
    """Open a table of JSON objects: one a line, in one array, or one after the other. Its columns are the names in all."""
    has_lines = is_json_lines(stream)

    def records(report: _Report) -> Iterator[tuple[int, dict[str, str]]]:
        items = (
            json_lines(lines(stream), report)
            if has_lines
            else json_items(lines(stream), stream.file.path)
        )
        for number, item in items:
            if not isinstance(item, dict):
                report(number, f"a {type(item).__name__}, not an object")
                continue
            record = _flatten_texts(item)
            if any(map(has_half_characters, record)):
                report(number, NOT_UTF8)
            else:
                yield number, record

    stream.make_rewindable()
    columns: dict[str, None] = {}
    reasons: deque[str] = deque(maxlen=1)
    for _, record in records(lambda line, reason: reasons.append(reason)):
        columns.update(dict.fromkeys(record))
    stream.rewind()
    rows = records(bad)
    first = next(rows, None)
    if first is None:
        why = f" that can be read; the last is {reasons[0]}" if reasons else ""
        raise DataError(
            "empty",
            f"{quoted_name(stream.file.source)} has no record{why}",
            "name a file with rows",
        )
    return _TableSource(
        tuple(columns), lambda _: itertools.chain([first], rows), has_own_names=True
    )


def is_json_lines(stream: ByteStream) -> bool:
    """Return whether JSON has one object a line; else it is one array, or documents that go over several lines."""
    start = stream.peek(_SAMPLE).removeprefix(b"\xef\xbb\xbf").lstrip()
    line, _, following = start.partition(b"\n")
    if start.startswith(b"[") or not following.strip() or following.lstrip().startswith(b"{"):
        return not start.startswith(b"[")
    text = line.decode("utf-8", "replace").rstrip()
    try:
        JSON_DECODER.raw_decode(text)
    except json.JSONDecodeError as error:
        return error.pos < len(text)  # at its end: the object goes on in the next line
    except (ValueError, RecursionError):
        pass
    return True


def numbered_text_lines(file: InputFile, bad_rows: BadRows) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file with their numbers; lines that are not valid text become bad rows."""
    with ByteStream(file) as stream:
        for number, line in lines(stream):
            problem = text_problem(line)
            if problem:
                bad_rows.add(file.source, number, problem)
            else:
                yield number, line


def json_lines(
    numbered_lines: Iterator[tuple[int, str]], report: _Report
) -> Iterator[tuple[int, Any]]:
    """Yield the values of lines of JSON; empty lines are passed over."""
    for number, line in numbered_lines:
        if line and not line.isspace():
            try:
                item = JSON_DECODER.decode(line)
            except (ValueError, RecursionError) as error:
                report(number, json_problem(error))
            else:
                yield number, item


def json_items(numbered_lines: Iterator[tuple[int, str]], path: str) -> Iterator[tuple[int, Any]]:
    """Yield the items of one array, or documents one after the other, numbered from 1 and decoded one at a time."""
    # What stands after an item that is no JSON cannot be read: nothing says where the next one
    # begins.
    text = ""
    position = 0
    number = 0
    is_array = False
    while True:
        try:
            before = "," if is_array else ""
            if number == 0:
                position = _after_space(text, position)
                is_array = text.startswith("[", position)
                before = "[" if is_array else ""
            item = _next_json_item_and_end(text, position, before)
        except (
            ValueError,
            RecursionError,
        ) as error:  # it is broken, or goes on in what is not read yet
            text = text[position:]
            position = 0
            following = ""
            # Twice as much each time: no record is decoded over and over
            min_characters = max(1 << 20, len(text))
            for _, line in numbered_lines:
                following += line + "\n"
                if len(following) >= min_characters:
                    break
            if not following and number and not is_array and not text.strip():
                return
            if not following or len(text) > MAX_RECORD_CHARACTERS:
                fact = f"`{path}`, record {number + 1:,}: {error}"
                hint = "correct the file: one array of objects, or one object on every line"
                raise DataError("bad-file", fact, hint) from None
            text += following
            continue
        if item is None:
            return
        number = number + 1
        position = item[1]
        yield number, item[0]


def _next_json_item_and_end(text: str, position: int, before: str) -> tuple[Any, int] | None:
    """Return the item after `before`, and where it ends; None at the end of the array."""
    start = _after_space(text, position)
    if before == "," and text.startswith("]", start):
        return None
    if not text.startswith(before, start):
        raise ValueError(f"expected `{before}`, found `{text[start : start + 10]}`")
    start = _after_space(text, start + len(before))
    if before == "[" and text.startswith("]", start):
        return None
    return JSON_DECODER.raw_decode(text, start)


def _after_space(text: str, position: int) -> int:
    space = _SPACE.match(text, position)
    assert space is not None
    return space.end()


def _flatten_texts(record: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Return name to text; an object within the object gives names such as `labels.label`.

    Nothing and NaN are "", a list is JSON, true is "true", 4.0 is "4.0".
    """
    values: dict[str, str] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            values |= _flatten_texts(value, f"{prefix}{name}.")
            continue
        if isinstance(value, str):
            text = value
        elif value is None or value != value:  # NaN: pandas' word for nothing
            text = Null()
        elif isinstance(value, list):
            text = ListText(json.dumps(value, ensure_ascii=False, default=str))
        elif isinstance(value, bool):
            text = "true" if value else "false"
        elif isinstance(value, bytes):
            text = value.decode("utf-8", "surrogateescape")
        else:
            text = str(value)
        values[prefix + name] = text
    return values


# --- Parquet --------------------------------------------------------------------------------------


def _open_parquet(stream: ByteStream) -> _TableSource:
    file = ParquetFile(stream)

    names = list(_column_names(file.schema))
    columns = tuple(map(nfc_column_name, names))
    stored_names = dict(zip(columns, names, strict=True))

    def records(requested: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
        stored = [stored_names[name] for name in requested]
        for number, record in enumerate(file.records(stored), 1):
            texts = _flatten_texts(record)
            yield number, {nfc_column_name(name): text for name, text in texts.items()}

    return _TableSource(columns, records, has_own_names=True)


def parquet_records(stream: ByteStream) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file as they are, lists and objects within them included."""
    file = ParquetFile(stream)
    for record in file.records(file.schema.names):
        yield {
            name: value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
            for name, value in record.items()
        }


def _column_names(fields: Any, prefix: str = "") -> Iterator[str]:
    """Yield names of Parquet columns; those within a structure as `labels.label`."""
    for field in fields:
        if str(field.type).startswith("struct"):
            yield from _column_names(field.type.fields, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name
