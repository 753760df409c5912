"""Lines of text files of all formats, and some of them held out to measure on."""

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from albertkit.corpus.readers import read_documents

_HELD_OUT_SHARE = 0.01
_MOST_HELD_OUT = 2000


@dataclass(frozen=True)
class TextFiles:
    """Where lines come from.

    Attributes:
        inputs: Files, globs, folders, URLs; see `albertkit.corpus.readers.read_documents`.
        format: text, jsonl, parquet or wiki; None finds out for each file.
        field: JSONL field or Parquet column.
        errors: What to do about bytes that are not UTF-8: "strict" or "replace".
    """

    inputs: Sequence[str | os.PathLike[str]]
    format: str | None = None
    field: str = "text"
    errors: str = "strict"

    def lines(self) -> Iterator[str]:
        """Every line that is not blank.

        Raises:
            DataError, ConfigError, MissingExtraError: See `read_documents`.
        """
        for document in read_documents(self.inputs, self.format, self.field, self.errors):
            yield from filter(str.strip, document.text.split("\n"))


class HoldingOut:
    """Passes lines on, but for one in a hundred, of which it keeps a sample.

    Attributes:
        held_out: At most 2,000 lines, complete when the others have been read.
    """

    def __init__(self, lines: Iterator[str], seed: int) -> None:
        self.held_out: list[str] = []
        self._lines = lines
        self._seed = seed

    def __iter__(self) -> Iterator[str]:
        draw = random.Random(f"held out {self._seed}")
        number = 0
        for line in self._lines:
            if draw.random() >= _HELD_OUT_SHARE:
                yield line
                continue
            number += 1
            if len(self.held_out) < _MOST_HELD_OUT:
                self.held_out.append(line)
            elif (place := draw.randrange(number)) < _MOST_HELD_OUT:
                self.held_out[place] = line
