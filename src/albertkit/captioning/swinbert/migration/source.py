"""A Python source whose tokens can be replaced; every other byte stays: newlines, byte order mark, encoding, spacing."""

import io
import tokenize
import warnings
from collections.abc import Iterable
from typing import NamedTuple

from albertkit.errors import DataError


class Edit(NamedTuple):
    """Text to stand in the place of some characters.

    Attributes:
        start: Line, from 1, and character of it, from 0, as `tokenize` counts them.
        end: Where the replaced characters end.
        text: What stands there then.
    """

    start: tuple[int, int]
    end: tuple[int, int]
    text: str


class PythonSource:
    """A source file's bytes, seen as tokens.

    Attributes:
        name: The file, for messages.
        content: Its bytes.
        tokens: What it says, without comments; statements end in a token that reads "\\n".
        newline: How its lines end.
    """

    def __init__(self, content: bytes, name: str) -> None:
        """Read the tokens.

        Raises:
            DataError: unknown-source if these bytes are no Python that this version of Python reads.
        """
        self.name, self.content = name, content
        try:
            self._encoding = tokenize.detect_encoding(io.BytesIO(content).readline)[0]
            self._text = content.decode(self._encoding)
            _compile(content, name)
            found = list(tokenize.generate_tokens(io.StringIO(self._text, newline="").readline))
        except (SyntaxError, ValueError, LookupError, tokenize.TokenError) as error:
            raise DataError("unknown-source", f"`{name}` cannot be read as Python: {error}", "restore it") from None
        ignored = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
        ends = {token.start: token._replace(string="\n") for token in found if token.type == tokenize.NEWLINE}
        self.tokens = [ends.get(token.start, token) for token in found if token.type not in ignored]
        self.newline = "\r\n" if b"\r\n" in content else "\n"

    def find(self, *strings: str) -> list[list[tokenize.TokenInfo]]:
        """Runs of tokens that read like these strings, one string a token."""
        ends = range(len(strings), len(self.tokens) + 1)
        runs = (self.tokens[end - len(strings) : end] for end in ends)
        return [run for run in runs if all(token.string == text for token, text in zip(run, strings, strict=True))]

    def with_edits(self, edits: Iterable[Edit]) -> bytes:
        """The file with some characters replaced.

        Raises:
            DataError: unknown-source if what comes out would not be Python.
        """
        lines = io.StringIO(self._text, newline="").readlines()
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line))
        text = self._text
        for edit in sorted(edits, reverse=True):
            first, last = (starts[row - 1] + column for row, column in (edit.start, edit.end))
            text = text[:first] + edit.text + text[last:]
        changed = text.encode(self._encoding)
        try:
            _compile(changed, self.name)
        except (SyntaxError, ValueError) as error:
            raise DataError(
                "unknown-source", f"`{self.name}` would not compile any more: {error}", "restore it"
            ) from None
        return changed


def replaced(token: tokenize.TokenInfo, text: str) -> Edit:
    """An edit of one token."""
    return Edit(token.start, token.end, text)


def _compile(content: bytes, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old sources write "\\d" and the like
        compile(content, name, "exec", dont_inherit=True)
