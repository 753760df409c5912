"""Look at a table's values before it is read: for texts that no task reads, and whole numbers that became floats."""

import glob
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from albertkit.data.bad_rows import BadRows
from albertkit.data.given import DataFile, Records, file_name
from albertkit.data.tables import Quoting, Table
from albertkit.errors import listed

ROWS_SEEN = 100  # of a file
_TEXT_WORDS, _LONG_WORDS = 3, 8  # mean number of words; categories of three words repeat, passages may
_WHOLE_FLOAT = re.compile(r"-?\d+\.0")
_WORD = re.compile(r"\S*[^\W\d_]\S*")
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u9fff]")  # Japanese and Chinese, about two characters a word


def note_unread_texts(
    file: DataFile,
    columns: Sequence[str],
    read: Iterable[str],
    bad_rows: BadRows,
    *,
    quoted: Quoting = None,
    header: bool = True,
) -> None:
    """Note the columns of a table of training examples that hold texts and are not read.

    Args:
        file: The table. It is opened once more, so a pipe is left alone.
        columns: Its columns.
        read: Those that are read, or that repeat what is read.
        bad_rows: Takes the note.
        quoted: As `Table`.
        header: Whether the first line has the names of the columns.
    """
    unread = [name for name in dict.fromkeys(columns) if name not in read and columns.count(name) == 1]
    if not unread or not can_be_read_again(file):
        return
    with Table(file, quoted=quoted, bad_rows=BadRows("skip")) as table:
        if not header:
            table.without_header(columns)
        rows = [row.values for row in islice(table.rows([], unread), ROWS_SEEN)]
    values = {name: [row[name] for row in rows] for name in unread}
    _note_texts(file, "column", values, "name those to read with --text-column and --pair-column", bad_rows)


def note_unread_fields(
    file: DataFile, records: Iterable[Any], read: Iterable[str], hint: str, bad_rows: BadRows
) -> None:
    """Note the fields of JSON records of training examples that hold texts, or lists of words, and are not read."""
    values: dict[str, list[str]] = {}
    for record in islice(records, ROWS_SEEN):
        for name, value in record.items() if isinstance(record, dict) else ():
            words = value if isinstance(value, list) else [value]
            if name not in read and all(isinstance(word, str) for word in words):
                values.setdefault(name, []).append(" ".join(words))
    _note_texts(file, "field", values, hint, bad_rows)


def _note_texts(file: DataFile, kind: str, values: Mapping[str, Sequence[str]], hint: str, bad_rows: BadRows) -> None:
    texts = [f"`{name}`" for name, column in values.items() if _hold_text([text for text in column if text.strip()])]
    if texts:
        kind = f"{kind} holds" if len(texts) == 1 else f"{kind}s hold"
        bad_rows.note(f"`{file_name(file)}`: {len(texts)} {kind} texts that are not read: {listed(texts, 5)}; {hint}")


def can_be_read_again(file: DataFile) -> bool:
    """Return whether data are files or rows, not a pipe."""
    return isinstance(file, Records) or file.is_file() or glob.has_magic(str(file))


def _hold_text(values: Sequence[str]) -> bool:
    if not values:
        return False
    words = sum(len(_WORD.findall(value)) + len(_UNSPACED.findall(value)) // 2 for value in values) / len(values)
    return words >= _LONG_WORDS or (words >= _TEXT_WORDS and len(set(values)) > len(values) / 2)


def is_whole_float(label: str) -> bool:
    """Return whether a label looks like a whole number that pandas made a float, as it does where a column lacks values."""
    return _WHOLE_FLOAT.fullmatch(label) is not None


def are_whole_floats(
    file: DataFile, columns: Sequence[str], column: str, *, quoted: Quoting = None, header: bool = True
) -> bool:
    """Return whether all labels in a column are such; arguments as of `note_unread_texts`."""
    if not can_be_read_again(file):
        return False
    with Table(file, quoted=quoted, bad_rows=BadRows("skip")) as table:
        if not header:
            table.without_header(columns)
        labels = (row.values[column].strip() for row in table.rows([], [column]))
        return all(not label or is_whole_float(label) for label in labels)
