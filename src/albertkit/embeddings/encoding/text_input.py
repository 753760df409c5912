"""The texts of one file: lines, or a column of a table; read as often as needed, a text at a time."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from albertkit.data.bad_rows import BadRows
from albertkit.data.inputs import ByteStream, InputFile, find_inputs
from albertkit.data.lines import NOT_UTF8, has_half_characters, lines, not_utf8
from albertkit.data.tables import EXTENSIONS, Table
from albertkit.errors import DataError


class Text(NamedTuple):
    """Holds a text of a file."""

    number: int  # place in the file, from 0; texts that cannot be read are counted
    id: str | None  # of the column of ids; None without one
    text: str


@dataclass(frozen=True)
class TextInput:
    """Reads texts. Without any of the names a file is lines, unless it is called a table (.csv, .jsonl, …).

    The fields are those of `EncodeOptions`; `file` may be a URL.
    """

    file: str
    text: str | None = None
    id: str | None = None
    columns: str | None = None
    quoted: bool | None = None

    @property
    def is_table(self) -> bool:
        """Return whether it is read as a table."""
        known = [part for part in reversed(Path(self.file).name.lower().split(".")) if part in EXTENSIONS]
        return any((self.text, self.id, self.columns)) or (bool(known) and known[0] != "txt")

    def found(self) -> InputFile:
        """Return the file, with size and time of the last change."""
        if os.path.isdir(self.file):
            raise DataError("wrong-kind", f"a file was expected, this is a folder: `{self.file}`", "name the file")
        files = find_inputs([self.file])
        if len(files) > 1:
            raise DataError("ambiguous", f"`{self.file}` names {len(files)} files", "encode them one by one")
        if "://" not in files[0].path and not os.path.isfile(files[0].path):
            raise DataError(
                "wrong-kind",
                f"`{self.file}` is no plain file, and it has to be read more than once",
                "put the texts into a file",
            )
        return files[0]

    def texts(self, bad_rows: BadRows) -> Iterator[Text]:
        """Yield the texts, in order; bad rows are added to `bad_rows`."""
        return self._of_table(bad_rows) if self.is_table else self._of_lines(bad_rows)

    def _of_lines(self, bad_rows: BadRows) -> Iterator[Text]:
        file = self.found()
        with ByteStream(file) as stream:
            for number, line in lines(stream):
                if "\0" in line:
                    bad_rows.add(file.path, number, "a zero byte, which no text has")
                elif has_half_characters(line):
                    bad_rows.add(file.path, number, NOT_UTF8, not_utf8(file.path))
                else:
                    yield Text(number - 1, None, line)

    def _of_table(self, bad_rows: BadRows) -> Iterator[Text]:
        text = self.text or "text"
        with Table(self.file, quoted=self.quoted, bad_rows=bad_rows) as table:
            if self.columns is not None:
                table.without_header([name.strip() for name in self.columns.split(",")])
            for row in table.rows([text] if self.id is None else [text, self.id]):
                yield Text(row.number, None if self.id is None else row.values[self.id], row.values[text])
