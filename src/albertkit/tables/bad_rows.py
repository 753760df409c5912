"""Rows of input that cannot be used: reported at once, or counted and left out."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

from albertkit.errors import ConfigError, DataError, OnError, format_list
from albertkit.tables.records import DataFile, quoted_name, row_name
from albertkit.tables.text_lines import NOT_UTF8, utf8_hint

_MAX_ROWS_SHOWN = 5  # bad rows that a command prints
_MAX_REASONS = 3


class UnusableRowError(ValueError):
    """Raised where one row is read that cannot be used: the reason, and a hint if there is a better one than to mend it."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason, hint)


@dataclass(frozen=True)
class BadRow:
    """One row that cannot be used.

    Attributes:
        file: Path of the file.
        line: Line, from 1; of JSON documents the number of the record, from 1.
        reason: What is wrong with it.
        where: How the row is called: "line 5", or what it is better known by, such as the id of a
            question.
        hint: What to do about it; "": mend it, or skip it.
    """

    file: str
    line: int
    reason: str
    where: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.file}, {self.where}: {self.reason}"


@dataclass
class BadRows:
    """Bad rows of input files, collected, or an error at the first.

    Attributes:
        on_error: "stop" raises at the first bad row, "skip" collects them.
        rows: The bad rows so far.
        notes: What was done to whole files and should be known; each thing once.
    """

    on_error: OnError = "stop"
    rows: list[BadRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.on_error not in get_args(OnError):
            raise ConfigError(
                "bad-value",
                f"`on_error` is {self.on_error!r}",
                'use "stop" or "skip"',
            )

    def add(
        self,
        file: DataFile | str,
        line: int,
        reason: str,
        hint: str = "",
        where: str = "",
    ) -> None:
        """Note a row that cannot be used, or raise an error for it; arguments as in `BadRow`."""
        where = where or row_name(file, line)
        if reason == NOT_UTF8:
            hint = utf8_hint(file)
        if self.on_error == "stop":
            raise DataError(
                "bad-row",
                f"{quoted_name(file)}, {where}: {reason}",
                hint or "correct the row, or leave such rows out with --on-error skip",
            )
        self.rows.append(BadRow(str(file), line, reason, where, hint))

    def lines(self) -> tuple[str, ...]:
        """Return a line for each bad row."""
        return tuple(map(str, self.rows))

    def note(self, text: str) -> None:
        """Note what was done to a file."""
        if text not in self.notes:
            self.notes.append(text)

    def left_out_line(self) -> str:
        """Return how many rows are left out, the first, and the most frequent reasons if there are several; "" for none."""
        if not self.rows:
            return ""
        counts = Counter(row.reason for row in self.rows).most_common(_MAX_REASONS)
        reasons = ""
        if len(counts) > 1:
            reasons = f"; {format_list([f'{count:,} x {reason}' for reason, count in counts], _MAX_REASONS)}"
        return f"rows left out: {len(self.rows):,} (the first: {self.rows[0].where}, {self.rows[0].reason}{reasons})"

    def report_lines(self) -> list[str]:
        """Return the line about rows left out, if there are any, and the notes."""
        return [line for line in (self.left_out_line(), *self.notes) if line]


def shorten_list(lines: Sequence[str], location: str) -> tuple[str, ...]:
    """Return the first lines of a list for the user, and how many more there are and where all of them stand."""
    num_omitted = len(lines) - _MAX_ROWS_SHOWN
    if num_omitted <= 0:
        return tuple(lines)
    return (*lines[:_MAX_ROWS_SHOWN], f"and {num_omitted:,} more; {location}")


def pluralize(count: int, noun: str) -> str:
    """Return a number of things: "1 row", "2,000 rows"; a thing that ends in "y" has "ies"."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun[:-1]}ies" if noun.endswith("y") else f"{count:,} {noun}s"
