"""Rows of any table, by column name: CSV, TSV, JSON lines, a JSON array, Parquet; gzip, xz and zstandard. Streaming."""

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

from albertkit.corpus.inputs import ByteStream, find_inputs
from albertkit.encodings import conversion
from albertkit.errors import DataError, near_miss
from albertkit.tasks.faults import Faults
from albertkit.tasks.tables.json_records import open_json
from albertkit.tasks.tables.parquet import open_parquet
from albertkit.tasks.tables.separated import open_separated
from albertkit.tasks.tables.source import NOT_UTF8, Quoting, Source, has_half_characters, lines, not_utf8

EXTENSIONS = ("tsv", "csv", "txt", "jsonl", "ndjson", "json", "parquet", "pq")
PACKINGS = ("gz", "xz", "zst")

_SAMPLE = 1 << 20


class Row(NamedTuple):
    """A row of a table.

    Attributes:
        number: Its place among the rows, from 0; rows that cannot be read are counted.
        line: Its line in the file, from 1; of JSON arrays and Parquet the number of the record, from 1.
        values: Column name to text.
    """

    number: int
    line: int
    values: dict[str, str]


class Table:
    """A table, opened at its first row. The first bytes say what it is, and the extension where they leave it open.

    - A separated table has the tab, comma or semicolon that its first line holds, that of its extension first.
    - With commas and semicolons fields may be in quotes, with tabs they are not: GLUE's never are.
    - JSON and Parquet have names of their own; an object within an object gives names such as `labels.label`.

    Args:
        file: Path or URL.
        quoted: Whether fields of a separated table may be in quotes. "commas": as above. "look": with tabs the first mebibyte
            decides. Default: as above, and a table with tabs that shows that it was written otherwise is refused.
        faults: Told of every row that cannot be read. Default: such a row is an error.
        lines_unless: Lists of columns, of one task: a `.txt` file, or one without an extension, that has none of these lists in
            its first line is read as a text a line, as a table with one column, the first one named. Default: a table.

    Attributes:
        path: Of the file.
        columns: Names of the columns; of a separated table the fields of its first line.
        has_own_names: False for separated tables, whose first line may be a row: see `without_header`.
        is_lines: Whether every line is a text.

    Raises:
        DataError: not-found, wrong-kind, bad-encoding, binary-file, empty-table, quoted-table, broken-json,
            broken-parquet, truncated-file, broken-archive, bad-row.
        MissingExtraError: missing-extra, for Parquet without pyarrow.
    """

    def __init__(
        self,
        file: str | os.PathLike[str],
        *,
        quoted: Quoting = None,
        faults: Faults | None = None,
        lines_unless: Sequence[Sequence[str]] = (),
    ) -> None:
        if os.path.isdir(file):
            raise DataError("wrong-kind", f"a file was expected, this is a folder: `{file}`", "name the table")
        self._stream = ByteStream(find_inputs([file])[0])
        self.path = self._stream.file.path
        self._faults = faults if faults is not None else Faults()
        self._number = 0
        self._more_fields = False  # than there are names
        self._has_lines = True  # a record is a line of the file, or its number is all that is known
        self._first_row: list[tuple[int, list[str]]] = []
        self.is_lines = False
        try:
            source = self._open(quoted, lines_unless)
        except BaseException:
            self._stream.close()
            raise
        self.columns, self._records, self.has_own_names = source

    def _open(self, quoted: Quoting, lines_unless: Sequence[Sequence[str]]) -> Source:
        sample = self._stream.peek(_SAMPLE)
        _refuse_binary(sample, self.path)
        start = sample.removeprefix(b"\xef\xbb\xbf").lstrip()
        if not start:
            raise DataError("empty-table", f"`{self.path}` is empty", "name a file with rows")
        extension = next((p for p in reversed(self._stream.file.name.lower().split(".")) if p in EXTENSIONS), "")
        if start.startswith(b"PAR1"):
            self._has_lines = False
            return open_parquet(self._stream)
        if extension in ("parquet", "pq"):
            raise DataError(
                "broken-parquet", f"`{self.path}` is called Parquet, but is not: it does not begin with PAR1",
                "copy or download it again, or call it what it is, such as .csv",
            )  # fmt: skip
        if start[:1] in (b"[", b"{") and extension not in ("csv", "tsv", "txt"):
            self._has_lines = not start.startswith(b"[")
            return open_json(self._stream, not self._has_lines, self._bad)
        if lines_unless and extension in ("", "txt"):
            first = start.split(b"\n", 1)[0].decode("utf-8", "replace")
            header = {name.strip().strip('"') for name in re.split(r"[\t,;]", first)}
            self.is_lines = not any(header.issuperset(columns) for columns in lines_unless)
        if self.is_lines:
            column = lines_unless[0][0]
            return Source(
                (column,), lambda _: ((n, {column: line}) for n, line in lines(self._stream)), has_own_names=True
            )
        return open_separated(self._stream, sample, extension, quoted, self._bad)

    def without_header(self, names: Sequence[str], more_fields: bool = False) -> None:
        """Say that the first line of a separated table is a row.

        Args:
            names: Of the columns.
            more_fields: Whether rows may have further fields, which are passed over; such rows may also lack those fields
                at the end that are not asked for.
        """
        self._first_row = [(1, list(self.columns))]
        self.columns, self._more_fields = tuple(names), more_fields

    def rows(self, columns: Sequence[str] | None = None) -> Iterator[Row]:
        """The rows from where the table stands, in order.

        Args:
            columns: The columns wanted. Default: all.

        Raises:
            DataError: unknown-column, repeated-column; quoted-table; bad-row unless the faults are to be skipped.
        """
        wanted = list(self.columns if columns is None else dict.fromkeys(columns))
        self.check(wanted)
        places = [self.columns.index(name) for name in wanted]
        reading = self._values_by_name(wanted) if self.has_own_names else self._values_by_place(wanted, places)
        with self._stream:
            for line, values in reading:
                if any(map(has_half_characters, values.values())):
                    self._bad(line, NOT_UTF8, not_utf8(self.path))
                    continue
                yield Row(self._number, line, values)
                self._number += 1

    def check(self, columns: Sequence[str]) -> None:
        """Refuse columns that are not there, or are there twice.

        Raises:
            DataError: unknown-column, repeated-column.
        """
        for name in columns:
            there = self.columns.count(name)
            if there == 0:
                listed = ", ".join(f"`{column[:40]}`" for column in self.columns)
                hint = near_miss(name, self.columns)
                if not hint.startswith("did you"):
                    hint = "name one of these; if the first line is a row, name all columns with --columns"
                raise DataError("unknown-column", f"`{self.path}` has no column `{name}`, only {listed}", hint)
            if there > 1:
                raise DataError(
                    "repeated-column", f"`{self.path}` has {there} columns `{name}`", "give them different names"
                )

    def _values_by_name(self, wanted: list[str]) -> Iterator[tuple[int, dict[str, str]]]:
        for line, record in self._records(wanted):
            if missing := [name for name in wanted if name not in record]:
                self._bad(line, f"no `{missing[0]}`", "")
            else:
                yield line, {name: record[name] for name in wanted}

    def _values_by_place(self, wanted: list[str], places: list[int]) -> Iterator[tuple[int, dict[str, str]]]:
        width, least = len(self.columns), max(places, default=0) + 1
        empty_line = 0
        for line, fields in itertools.chain(self._first_row, self._records(wanted)):
            if not fields:
                empty_line = empty_line or line
                continue
            if empty_line:  # one at the end of a file is none
                self._bad(empty_line, "an empty line", "")
                empty_line = 0
            if len(fields) == width or (self._more_fields and len(fields) >= least):
                yield line, {name: fields[place] for name, place in zip(wanted, places, strict=True)}
            else:
                in_quotes = any(field.startswith('"') for field in fields)
                self._bad(
                    line, f"{len(fields):,} field{'s' * (len(fields) != 1)}, but the table has {width:,} columns",
                    "if fields are in quotes, say --quoted" * in_quotes,
                )  # fmt: skip

    def _bad(self, line: int, reason: str, hint: str) -> None:
        self._number += 1
        self.add_fault(line, reason, hint)

    def add_fault(self, line: int, reason: str, hint: str = "") -> None:
        """Tell the faults of a row that cannot be used.

        Args:
            line: As in `Row`.
            reason, hint: As `Faults.add`.

        Raises:
            DataError: bad-row.
        """
        self._faults.add(self.path, line, reason, hint, "" if self._has_lines else f"record {line:,}")

    def close(self) -> None:
        """Close the file; reading to the end does it, too."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _refuse_binary(head: bytes, path: str) -> None:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError("bad-encoding", f"`{path}` is UTF-16, not UTF-8", conversion(path, "UTF-16"))
    if not head.startswith(b"PAR1") and (b"\0" in head[:4096] or head.startswith((b"%PDF", b"PK\x03\x04"))):
        raise DataError("binary-file", f"`{path}` is binary, not a table", "save it as CSV, TSV, JSON lines or Parquet")
