"""Tables of separated fields, quoted or not."""

import csv
from collections.abc import Iterator

from albertkit.corpus.inputs import ByteStream
from albertkit.errors import DataError
from albertkit.tasks.tables.source import LONGEST, Bad, Quoting, Source, lines

_SEPARATORS = "\t,;"
_QUOTES = 'double the quotes within quoted fields; if `"` is a character as any other here, say --no-quoted'


def open_separated(stream: ByteStream, sample: bytes, extension: str, quoted: Quoting, bad: Bad) -> Source:
    """A table of separated fields.

    Args:
        stream: At its start.
        sample: Its first bytes.
        extension: Of its name: "csv" has commas, anything else tabs, where the first line holds both or neither.
        quoted: As `Table`.
        bad: Told of every row that cannot be read.

    Raises:
        DataError: quoted-table.
    """
    text = sample.decode("utf-8", "replace").removeprefix("\ufeff")
    head = text.lstrip("\r\n").partition("\n")[0]
    usual = "," if extension == "csv" else "\t"
    separator = next((s for s in usual + _SEPARATORS if s in head), usual)
    evidence = QuotingEvidence()
    if quoted == "look" and separator == "\t":
        for line in text.split("\n")[:-1]:
            evidence.see(line.split(separator))
        in_quotes = evidence.shows_quoting
    else:
        in_quotes = quoted if isinstance(quoted, bool) else separator != "\t"
    watched = None if quoted in (False, "commas") else evidence
    rows = _quoted(stream, separator, bad) if in_quotes else _unquoted(stream, separator, watched)
    first = next((row for row in rows if row[1]), (1, []))
    return Source(tuple(name.strip() for name in first[1]), lambda _: rows, has_own_names=False)


def _unquoted(
    stream: ByteStream, separator: str, evidence: "QuotingEvidence | None"
) -> Iterator[tuple[int, list[str]]]:
    """Rows in which `"` is a character as any other. An empty line has no field."""
    for number, line in lines(stream):
        fields = line.split(separator) if line else []
        if evidence and '"' in line:
            evidence.see(fields)
            if evidence.shows_quoting or (number == 1 and all(map(_in_quotes, fields))):
                raise DataError(
                    "quoted-table",
                    f"`{stream.file.path}`, line {number:,}: the fields are in quotes, but tables with tabs are read unquoted",
                    "say --quoted; or --no-quoted, if the quotes belong to the texts",
                )
            if evidence.settled:
                evidence = None
        yield number, fields


def _quoted(stream: ByteStream, separator: str, bad: Bad) -> Iterator[tuple[int, list[str]]]:
    """Rows as RFC 4180 has them: fields in quotes where they hold a separator, a line end or a quote, which is doubled."""
    csv.field_size_limit(LONGEST)  # of the whole process; its own, 131,072 characters, is a text of 25,000 words
    reader = csv.reader((line + "\n" for _, line in lines(stream)), delimiter=separator, strict=True)
    while True:
        first = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            swallowed = reader.line_num - first
            more = f"; it swallowed {swallowed:,} further lines" * bool(swallowed)
            bad(first, f"a quote that is not closed, or not doubled within its field ({error}){more}", _QUOTES)
            continue
        if swallowed := _swallowed_rows(fields, separator):
            bad(first, f"a quote that is closed {swallowed + 1:,} rows later", _QUOTES)
            continue
        yield first, fields


def _swallowed_rows(fields: list[str], separator: str) -> int:
    """How many whole rows a field seems to hold: all of its inner lines look like rows of this table."""
    for field in fields:
        if "\n" in field:
            inner = field.split("\n")[1:-1]
            enough = 1 if separator == "\t" else 3  # a text may well have a comma in a line, or in two
            if len(inner) >= enough and len(fields) > 1 and all(x.count(separator) == len(fields) - 1 for x in inner):
                return len(inner)
    return 0


class QuotingEvidence:
    """Whether a table that is read unquoted was written quoted.

    A writer that quotes doubles the quotes within a field, so every field with a `"` begins and ends with one and has only
    pairs between. One field that breaks this shows that nothing was quoted; one that fits and holds a pair, before any
    that breaks it, shows the opposite. RTE's quoted edition has 558 fields that fit, all with pairs, and none that breaks
    it; MRPC has 148 that fit, none with a pair, and 1,914 that break it.
    """

    def __init__(self) -> None:
        self._fits = self.settled = False

    @property
    def shows_quoting(self) -> bool:
        """Whether a field showed quoting, and none the opposite. `settled`: one did, and no other can show quoting."""
        return self._fits and not self.settled

    def see(self, fields: list[str]) -> None:
        """Look at the fields of a row."""
        for field in fields:
            if '"' in field:
                inside = field[1:-1] if _in_quotes(field) else '"'
                self.settled |= '"' in inside.replace('""', "")
                self._fits |= '""' in inside


def _in_quotes(field: str) -> bool:
    return len(field) > 1 and field[0] == field[-1] == '"'
