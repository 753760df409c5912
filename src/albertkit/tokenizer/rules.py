"""Text rules: what happens to a text before SentencePiece sees it.

`google`
    `preprocess_text(lower=True)` of google-research/albert and the TF Model Garden: white space collapsed with
    `str.split`, NFKD, characters with a non-zero combining class removed, lower-cased. Google's digit-comma rule
    belongs to it, too; it rewrites ids, not text, and lives in `digit_comma.py`.
`google-cased`, `google-accents`, `google-cased-accents`
    The same without the lower-casing (`lower=False`), without NFKD and the removal of marks, without both. The last two
    are transformers' `keep_accents=True`; a folder's `do_lower_case` and `keep_accents` choose among the four.
`multilingual`
    White space collapsed with `str.split`, then NFC. Accents, marks and case stay, so nothing of a Hindi, Japanese or
    Korean text is lost, and decomposed Hangul (macOS file names) equals composed Hangul.
`korean`
    `multilingual`, and lower-cased: Hangul has no case, so only the Latin words in a Korean text need fewer pieces.
`none`
    The text as it is; SentencePiece's own normaliser is all there is.

In every rule a lone surrogate, which no UTF-8 can hold, becomes U+FFFD. A further rule is a function in `_RULES` and
one in `_ALIGNMENTS`.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from albertkit.errors import ConfigError, near_miss


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


_SURROGATE = re.compile("[\ud800-\udfff]")
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")


def apply(rules: str, text: str) -> str:
    """The text as SentencePiece shall see it.

    Args:
        rules: Name of the text rules.
        text: Any text.
    """
    return _RULES[rules](text)


def align(rules: str, text: str) -> AlignedText:
    """`apply`, with the origin of every character; slower."""
    return _ALIGNMENTS[rules](encodable(text))


def with_spaces(aligned: AlignedText, places: Sequence[int]) -> AlignedText:
    """The text with spaces that the original does not have, each of which stands for nothing in it.

    Args:
        aligned: A text after its rules.
        places: Where, in characters of its text, ascending.
    """
    text, starts, ends = list(aligned.text), list(aligned.starts), list(aligned.ends)
    for place in reversed(places):
        text.insert(place, " ")
        starts.insert(place, aligned.starts[place])
        ends.insert(place, aligned.starts[place])
    return AlignedText("".join(text), starts, ends)


def check(rules: str) -> str:
    """The name itself, if there are rules of that name.

    Raises:
        ConfigError: bad-text-rules.
    """
    if rules not in _RULES:
        raise ConfigError("bad-text-rules", f"there are no text rules `{rules}`", near_miss(str(rules), _RULES))
    return rules


class GoogleRules(NamedTuple):
    """What rules of Google's family do beyond collapsing white space and the digit-comma rule."""

    lower: bool
    strip: bool


_GOOGLE = {
    "google": GoogleRules(lower=True, strip=True),
    "google-cased": GoogleRules(lower=False, strip=True),
    "google-accents": GoogleRules(lower=True, strip=False),
    "google-cased-accents": GoogleRules(lower=False, strip=False),
}


def google_family(rules: str) -> GoogleRules | None:
    """What the rules of this name do; None if they are not of Google's family."""
    return _GOOGLE.get(rules)


def lowers(rules: str) -> bool:
    """Whether the rules of this name lower-case."""
    family = _GOOGLE.get(rules)
    return rules == "korean" or (family is not None and family.lower)


def named_by(settings: Any) -> str:
    """The rules that a folder's `tokenizer_config.json` asks for.

    Args:
        settings: Its content. `text_rules` is albertkit's own key; `do_lower_case` (default true) and `keep_accents`
            (default false) are those of transformers' `AlbertTokenizer`.
    """
    if not isinstance(settings, dict):
        return "google"
    if "text_rules" in settings:
        return settings["text_rules"]
    wanted = GoogleRules(bool(settings.get("do_lower_case", True)), not settings.get("keep_accents", False))
    return next(name for name, family in _GOOGLE.items() if family == wanted)


# --- the rules --------------------------------------------------------------------------------------------------------


def encodable(text: str) -> str:
    """The text with U+FFFD in place of lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)
    return text


def _google(text: str, lower: bool, strip: bool) -> str:
    text = " ".join(text.split())
    if not text.isascii():
        text = encodable(text)
        if strip:
            text = unicodedata.normalize("NFKD", text)
            # Asking each kind of character once is twice as fast as asking every character of a line.
            for mark in filter(unicodedata.combining, set(_BEYOND_ASCII.findall(text))):
                text = text.replace(mark, "")
    return text.lower() if lower else text


def _multilingual(text: str) -> str:
    text = " ".join(text.split())
    return text if text.isascii() else unicodedata.normalize("NFC", encodable(text))


def _korean(text: str) -> str:
    return _multilingual(text.lower())


def _none(text: str) -> str:
    return text if text.isascii() else encodable(text)


_RULES: dict[str, Callable[[str], str]] = {
    **{name: partial(_google, lower=family.lower, strip=family.strip) for name, family in _GOOGLE.items()},
    "multilingual": _multilingual,
    "korean": _korean,
    "none": _none,
}
NAMES = tuple(_RULES)


# --- where the characters come from -----------------------------------------------------------------------------------


def _align_none(text: str) -> AlignedText:
    return AlignedText(text, list(range(len(text))), list(range(1, len(text) + 1)))


def _collapse(text: str) -> AlignedText:
    """`" ".join(text.split())`: `\\s` in a str pattern is `str.isspace`, which is what `split` uses."""
    if " ".join(text.split()) == text:
        return _align_none(text)
    kept: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for word in re.finditer(r"\S+", text):
        if kept:
            kept.append(" ")
            starts.append(ends[-1])
            ends.append(word.start())
        kept.append(word.group())
        starts.extend(range(word.start(), word.end()))
        ends.extend(range(word.start() + 1, word.end() + 1))
    return AlignedText("".join(kept), starts, ends)


def _align_google(text: str, lower: bool, strip: bool) -> AlignedText:
    aligned = _collapse(text)
    if strip and not aligned.text.isascii():
        aligned = _without_marks(aligned)
    return _lowered(aligned) if lower else aligned


def _lowered(aligned: AlignedText) -> AlignedText:
    # Lower-casing the whole, since a final sigma depends on its neighbours. One character, U+0130, becomes two.
    lowered = aligned.text.lower()
    if len(lowered) == len(aligned.text):
        return aligned._replace(text=lowered)
    widths = [len(character.lower()) for character in aligned.text]
    starts = [start for start, width in zip(aligned.starts, widths, strict=True) for _ in range(width)]
    ends = [end for end, width in zip(aligned.ends, widths, strict=True) for _ in range(width)]
    return AlignedText(lowered, starts, ends)


def _without_marks(text: AlignedText) -> AlignedText:
    kept: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    place = 0
    # Character by character is NFKD of the whole: the two differ only in the order of marks, and those go.
    for found in _BEYOND_ASCII.finditer(text.text):
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


def _composed(collapsed: AlignedText) -> AlignedText:
    if unicodedata.is_normalized("NFC", collapsed.text):
        return collapsed
    kept: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for first, last in _composing_runs(collapsed.text):
        composed = unicodedata.normalize("NFC", collapsed.text[first:last])
        kept.append(composed)
        if composed == collapsed.text[first:last]:
            starts.extend(collapsed.starts[first:last])
            ends.extend(collapsed.ends[first:last])
        else:
            starts.extend([collapsed.starts[first]] * len(composed))
            ends.extend([collapsed.ends[last - 1]] * len(composed))
    return AlignedText("".join(kept), starts, ends)


def _composing_runs(text: str) -> list[tuple[int, int]]:
    """Spans that NFC treats on their own: no character composes or changes places with one of another span."""
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


_ALIGNMENTS: dict[str, Callable[[str], AlignedText]] = {
    **{name: partial(_align_google, lower=family.lower, strip=family.strip) for name, family in _GOOGLE.items()},
    "multilingual": lambda text: _composed(_collapse(text)),
    "korean": lambda text: _composed(_lowered(_collapse(text))),
    "none": _align_none,
}
