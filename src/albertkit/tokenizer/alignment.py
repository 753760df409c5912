"""A text after its rules, and where each of its characters comes from: every step of the rules once more, with places."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple

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


def replaced(text: AlignedText, replacements: Mapping[str, str]) -> AlignedText:
    """Replace single characters by any number of others."""
    kept: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for character, start, end in zip(text.text, text.starts, text.ends, strict=True):
        made = replacements.get(character, character)
        if not made and ends:
            ends[-1] = end
        kept.append(made)
        starts += [start] * len(made)
        ends += [end] * len(made)
    return AlignedText("".join(kept), starts, ends)


def collapsed(text: AlignedText) -> AlignedText:
    """`" ".join(text.split())`: `\\s` in a str pattern is `str.isspace`, which is what `split` uses."""
    if " ".join(text.text.split()) == text.text:
        return text
    kept: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for word in re.finditer(r"\S+", text.text):
        if kept:
            kept.append(" ")
            starts.append(ends[-1])
            ends.append(text.starts[word.start()])
        kept.append(word.group())
        starts += text.starts[word.start() : word.end()]
        ends += text.ends[word.start() : word.end()]
    return AlignedText("".join(kept), starts, ends)


def lowered(text: AlignedText) -> AlignedText:
    """Lower-cased as a whole, since a final sigma depends on its neighbours. One character, U+0130, becomes two."""
    lower = text.text.lower()
    if len(lower) == len(text.text):
        return text._replace(text=lower)
    widths = [len(character.lower()) for character in text.text]
    starts = [start for start, width in zip(text.starts, widths, strict=True) for _ in range(width)]
    ends = [end for end, width in zip(text.ends, widths, strict=True) for _ in range(width)]
    return AlignedText(lower, starts, ends)


def without_marks(text: AlignedText) -> AlignedText:
    """NFKD without the characters that have a combining class."""
    kept: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    place = 0
    # Character by character is NFKD of the whole: the two differ only in the order of marks, and those go.
    for found in BEYOND_ASCII.finditer(text.text):
        here = found.start()
        kept.append(text.text[place:here])
        starts += text.starts[place:here]
        ends += text.ends[place:here]
        bases = [c for c in unicodedata.normalize("NFKD", found.group()) if not unicodedata.combining(c)]
        if not bases and ends:
            ends[-1] = text.ends[here]
        kept += bases
        starts += [text.starts[here]] * len(bases)
        ends += [text.ends[here]] * len(bases)
        place = here + 1
    return AlignedText("".join(kept) + text.text[place:], starts + text.starts[place:], ends + text.ends[place:])


def composed(text: AlignedText) -> AlignedText:
    """Compose the characters (NFC)."""
    if unicodedata.is_normalized("NFC", text.text):
        return text
    kept: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for first, last in _composing_runs(text.text):
        whole = unicodedata.normalize("NFC", text.text[first:last])
        kept.append(whole)
        if whole == text.text[first:last]:
            starts.extend(text.starts[first:last])
            ends.extend(text.ends[first:last])
        else:
            starts.extend([text.starts[first]] * len(whole))
            ends.extend([text.ends[last - 1]] * len(whole))
    return AlignedText("".join(kept), starts, ends)


def _composing_runs(text: str) -> list[tuple[int, int]]:
    """Return the spans that NFC treats on their own: no character composes or changes places with one of another span."""
    runs: list[tuple[int, int]] = []
    first = 0
    for position in range(1, len(text)):
        if unicodedata.combining(text[position]):
            continue
        before, character = text[first:position], text[position]
        if _nfc(before) + _nfc(character) == _nfc(before + character):
            runs.append((first, position))
            first = position
    return [*runs, (first, len(text))] if text else runs


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def with_spaces(aligned: AlignedText, places: Sequence[int]) -> AlignedText:
    """Insert spaces that the original does not have, each of which stands for nothing in it, at ascending places of the text."""
    text, starts, ends = list(aligned.text), list(aligned.starts), list(aligned.ends)
    for place in reversed(places):
        text.insert(place, " ")
        starts.insert(place, aligned.starts[place])
        ends.insert(place, aligned.starts[place])
    return AlignedText("".join(text), starts, ends)
