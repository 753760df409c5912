"""Print text from outside: names of a folder, cells of a table, labels, paths.

A terminal obeys control characters and direction marks, and the end of a line forges the next: all
are spelled out.
"""

import re
import sys
from collections.abc import Iterable

# C0 and C1 control characters, marks that reverse the direction of text (also invalid in HTML),
# other ends of a line, and halves of surrogate pairs, which no stream can encode.
Notes = list[str]  # lines for the reader of a result

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def escape_control_characters(text: str) -> str:
    """Return a text with its control characters spelled out; line feeds and tabs stay."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def escape_line(text: str) -> str:
    """Return a text as one line, with line feeds spelled out, too."""
    return escape_control_characters(text).replace("\n", "\\n")


def join_lines(lines: Iterable[str]) -> str:
    """Return lines as a text that has no more lines than these."""
    return "\n".join(map(escape_line, lines))


def escape_json(text: str) -> str:
    """Return JSON of the same meaning without control characters."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def print_note(text: str) -> None:
    """Print one line on stderr."""
    print(escape_line(text), file=sys.stderr, flush=True)
