"""A text after its rules, and where each of its characters comes from: every step of the rules once more, with places."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from albertkit.normalization import normalize

BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")


class AlignedText(NamedTuple):
    """A text after its rules, and where each of its characters comes from.

    Attributes:
        text: The text after the rules.
        starts: For each character of `text`, the first character of the original that made it.
        ends: One past the last such character. Characters that the rules removed belong to the one before them.
    """

    text: str
    starts: list[int]
    ends: list[int]


def aligned(text: str) -> AlignedText:
    """Return a text before its rules: every character comes from itself."""
    return AlignedText(text, list(range(len(text))), list(range(1, len(text) + 1)))


def respelled(old: AlignedText, changes: Iterable[tuple[int, int, str]]) -> AlignedText:
    """Replace spans of a text, given in ascending order as (start, end, new text).

    Each new character comes from the whole of its span. What a removed span comes from belongs to the character before it.
    """
    parts: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    position = 0
    for first, last, new in changes:
        parts += [old.text[position:first], new]
        starts += old.starts[position:first] + [old.starts[first]] * len(new)
        ends += old.ends[position:first]
        end = old.ends[last - 1] if last > first else old.starts[first]
        if new:
            ends += [end] * len(new)
        elif ends:
            ends[-1] = end
        position = last
    parts.append(old.text[position:])
    return AlignedText("".join(parts), starts + old.starts[position:], ends + old.ends[position:])


def collapsed(text: AlignedText) -> AlignedText:
    """Align `" ".join(text.split())`: `\\s` in a str pattern is `str.isspace`, which is what `split` uses."""
    first, last = len(text.text) - len(text.text.lstrip()), len(text.text.rstrip())
    inner = AlignedText(text.text[first:last], text.starts[first:last], text.ends[first:last])
    return respelled(inner, ((*blank.span(), " ") for blank in re.finditer(r"\s+", inner.text)))


def lowered(text: AlignedText) -> AlignedText:
    """Lower-case the text as a whole, since a final sigma depends on its neighbours. U+0130 alone becomes two."""
    longer = ((*match.span(), match.group().lower()) for match in re.finditer("\u0130", text.text))
    return respelled(text, longer)._replace(text=text.text.lower())


def without_marks(text: AlignedText) -> AlignedText:
    """Apply NFKD, and remove the characters that have a combining class.

    Character by character is NFKD of the whole: the two differ only in the order of marks, and those go.
    """
    return respelled(text, ((*match.span(), _bases(match.group())) for match in BEYOND_ASCII.finditer(text.text)))


def _bases(character: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFKD", character) if not unicodedata.combining(c))


def composed(text: AlignedText) -> AlignedText:
    """Compose the characters (NFC)."""
    if unicodedata.is_normalized("NFC", text.text):
        return text
    runs = ((first, last, _nfc(text.text[first:last])) for first, last in _composing_runs(text.text))
    return respelled(text, (run for run in runs if run[2] != text.text[run[0] : run[1]]))


def _composing_runs(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans that NFC treats on their own: no character composes or changes places with one of another span."""
    first = 0
    for position in range(1, len(text)):
        # U+0F73 has no class itself, but decomposes to marks that have one.
        if unicodedata.combining(unicodedata.normalize("NFD", text[position])[0]):
            continue
        before, character = text[first:position], text[position]
        if _nfc(before) + _nfc(character) == _nfc(before + character):
            yield first, position
            first = position
    yield first, len(text)


def _nfc(text: str) -> str:
    return normalize("NFC", text)


def with_spaces(text: AlignedText, positions: Sequence[int]) -> AlignedText:
    """Insert spaces that the original does not have, each of which stands for nothing in it, at ascending positions."""
    return respelled(text, ((position, position, " ") for position in positions))
