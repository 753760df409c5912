"""Look at a table's values before it is read: for texts that no task reads, and whole numbers that became floats."""

import glob
import re
from collections.abc import Iterable, Sequence
from itertools import islice

from albertkit.data.bad_rows import BadRows
from albertkit.data.given import DataFile, Records, file_name
from albertkit.data.tables import Quoting, Table
from albertkit.errors import listed

_ROWS = 100  # that are looked at
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
        rows = [row.values for row in islice(table.rows([], unread), _ROWS)]
    texts = [f"`{name}`" for name in unread if _hold_text([values[name] for values in rows if values[name].strip()])]
    if texts:
        what = "column holds texts that are" if len(texts) == 1 else "columns hold texts that are"
        hint = "name those to read with --text-column and --pair-column"
        bad_rows.note(f"`{file_name(file)}`: {len(texts)} {what} not read: {listed(texts, 5)}; {hint}")


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
