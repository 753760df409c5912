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

In every rule a lone surrogate, which no UTF-8 can hold, becomes U+FFFD.
"""

import re
import unicodedata
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from albertkit.errors import ConfigError, near_miss
from albertkit.normalization import normalize
from albertkit.tokenizer.alignment import (
    BEYOND_ASCII,
    AlignedText,
    aligned,
    collapsed,
    composed,
    lowered,
    without_marks,
)

END = "\0"  # between texts that are worked on together: no rule looks across it
_SURROGATE = re.compile("[\ud800-\udfff]")
_FAR_BLANKS = tuple(c for c in map(chr, range(0x80, 0x3001)) if c.isspace())


class Step(NamedTuple):
    """One step of some rules.

    Attributes:
        apply: Changes a text.
        align: Does the same to a text whose characters know where they come from.
    """

    apply: Callable[[str], str]
    align: Callable[[AlignedText], AlignedText]


def _strip_marks(text: str) -> str:
    if text.isascii():
        return text
    text = normalize("NFKD", text)
    # Asking each kind of character once is twice as fast as asking every character of a line.
    marks = "".join(filter(unicodedata.combining, set(BEYOND_ASCII.findall(text))))
    return re.sub(f"[{marks}]", "", text) if marks else text


COLLAPSE = Step(lambda text: " ".join(text.split()), collapsed)
STRIP_MARKS = Step(_strip_marks, without_marks)
LOWER = Step(str.lower, lowered)
COMPOSE = Step(partial(normalize, "NFC"), composed)

_STEPS: dict[str, tuple[Step, ...]] = {
    "google": (COLLAPSE, STRIP_MARKS, LOWER),
    "google-cased": (COLLAPSE, STRIP_MARKS),
    "google-accents": (COLLAPSE, LOWER),
    "google-cased-accents": (COLLAPSE,),
    "multilingual": (COLLAPSE, COMPOSE),
    "korean": (COLLAPSE, LOWER, COMPOSE),
    "none": (),
}
NAMES = tuple(_STEPS)


def apply(rules: str, text: str) -> str:
    """Return the text as SentencePiece shall see it."""
    text = encodable(text)
    for step in _STEPS[rules]:
        text = step.apply(text)
    return text


def apply_but_for_blanks(rules: str, text: str) -> str:
    """Do as `apply`, but do not collapse white space: where the rules do, every other white space becomes a blank of ASCII.

    For a caller that separates words as `str.split` does. Splitting and joining the text takes five times as long.
    """
    text = encodable(text)
    for step in _STEPS[rules]:
        text = _with_near_blanks(text) if step is COLLAPSE else step.apply(text)
    return text


def _with_near_blanks(text: str) -> str:
    for blank in _FAR_BLANKS:
        if blank in text:
            text = text.replace(blank, " ")
    return text


def align(rules: str, text: str) -> AlignedText:
    """Do as `apply`, with the origin of every character; slower."""
    aligned_text = aligned(encodable(text))
    for step in _STEPS[rules]:
        aligned_text = step.align(aligned_text)
    return aligned_text


def encodable(text: str) -> str:
    """Return the text with U+FFFD in place of lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)
    return text


def check(rules: str) -> str:
    """Return the name itself, if there are rules of that name."""
    if not isinstance(rules, str) or rules not in _STEPS:  # a file may say anything
        raise ConfigError("unknown-name", f"there are no text rules `{rules}`", near_miss(str(rules), _STEPS))
    return rules


def steps(rules: str) -> tuple[Step, ...]:
    """Return the steps of the rules, in order."""
    return _STEPS[rules]


def is_google(rules: str) -> bool:
    """Return True for rules of Google's family, to which the digit-comma rule belongs."""
    return rules.startswith("google")


def lowers(rules: str) -> bool:
    """Return True if the rules of this name lower-case."""
    return LOWER in _STEPS[rules]


def named_by(settings: Any) -> str:
    """Return the rules that a folder's `tokenizer_config.json` asks for.

    `text_rules` is albertkit's own key; `do_lower_case` (default true) and `keep_accents` (default false) are those of
    transformers' `AlbertTokenizer`.
    """
    if not isinstance(settings, dict):
        return "google"
    if "text_rules" in settings:
        return settings["text_rules"]
    return _google(settings.get("do_lower_case", True), settings.get("keep_accents", False))


def _google(lower: bool, keep_accents: bool) -> str:
    return f"google{'' if lower else '-cased'}{'-accents' if keep_accents else ''}"


def with_flags(rules: str, do_lower_case: bool | None = None, keep_accents: bool | None = None) -> str:
    """Return the name of the rules that differ from others in transformers' flags alone; None keeps a flag."""
    lower, keep = lowers(rules), STRIP_MARKS not in _STEPS[rules]
    if do_lower_case in (None, lower) and keep_accents in (None, keep):
        return rules
    if do_lower_case is not None:
        lower = do_lower_case
    if keep_accents is not None:
        keep = keep_accents
    if is_google(rules):
        return _google(lower, keep)
    if rules in ("multilingual", "korean") and keep:
        return "korean" if lower else "multilingual"
    fact = f"there are no rules like `{rules}` with do_lower_case={lower} and keep_accents={keep}"
    raise ConfigError("unknown-name", fact, f"name rules with text_rules: {', '.join(NAMES)}")
