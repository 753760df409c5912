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

In every rule a lone surrogate, which no UTF-8 can hold, becomes U+FFFD. Rules of one's own: `register_rules`.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from albertkit.errors import ConfigError, near_miss
from albertkit.tokenizer.alignment import (
    BEYOND_ASCII,
    AlignedText,
    aligned,
    collapsed,
    composed,
    lowered,
    replaced,
    without_marks,
)

_SURROGATE = re.compile("[\ud800-\udfff]")


def apply(rules: str, text: str) -> str:
    """Return the text as SentencePiece shall see it."""
    return _RULES[rules](text)


def align(rules: str, text: str) -> AlignedText:
    """`apply`, with the origin of every character; slower."""
    return _ALIGNMENTS[rules](aligned(encodable(text)))


def check(rules: str) -> str:
    """Return the name itself, if there are rules of that name."""
    if not isinstance(rules, str) or rules not in _RULES:  # a file may say anything
        raise ConfigError("unknown-name", f"there are no text rules `{rules}`", near_miss(str(rules), _RULES))
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


class OwnRules(NamedTuple):
    """Rules of one's own: what is replaced first, and the rules that follow."""

    replace: Mapping[str, str]
    then: str


_OWN: dict[str, OwnRules] = {}


def register_rules(name: str, replace: Mapping[str, str], then: str = "multilingual") -> None:
    """Add text rules: characters are replaced, then other rules follow.

    A folder keeps the name alone, so register them before it is loaded; its `tokenizer.json` has them built in.

    Args:
        name: Not one of `NAMES`. Of the same rules it may be registered again.
        replace: Character to what stands for it, which may be empty or longer.
        then: One of `NAMES`.

    Raises:
        ConfigError: bad-value for a name that is taken, or what is not a single character. unknown-name for `then`.
    """
    own = OwnRules(dict(replace), then)
    if name in NAMES or _OWN.get(name, own) != own:
        raise ConfigError("bad-value", f"there are text rules `{name}` already", "choose another name")
    if long := [text for text in replace if len(text) != 1]:
        raise ConfigError("bad-value", f"{long[0]!r} is not one character", "replace single characters")
    if then not in NAMES:
        raise ConfigError("unknown-name", f"there are no text rules `{then}` to follow", near_miss(then, NAMES))
    _OWN[name] = own
    table, rule, alignment = str.maketrans(dict(own.replace)), _RULES[then], _ALIGNMENTS[then]
    _RULES[name] = lambda text: rule(text.translate(table))
    _ALIGNMENTS[name] = lambda text: alignment(replaced(text, own.replace))


def own_rules(rules: str) -> OwnRules | None:
    """What was registered under this name; None for one of `NAMES`."""
    return _OWN.get(rules)


def google_family(rules: str) -> GoogleRules | None:
    """What the rules of this name do, or those that follow on own ones; None if they are not of Google's family."""
    return _GOOGLE.get(following(rules))


def following(rules: str) -> str:
    """Return the name itself, or of rules of one's own that of the rules that follow."""
    return _OWN[rules].then if rules in _OWN else rules


def lowers(rules: str) -> bool:
    """Return whether the rules of this name lower-case."""
    family = google_family(rules)
    return following(rules) == "korean" or (family is not None and family.lower)


def named_by(settings: Any) -> str:
    """Return the rules that a folder's `tokenizer_config.json` asks for.

    `text_rules` is albertkit's own key; `do_lower_case` (default true) and `keep_accents` (default false) are those of
    transformers' `AlbertTokenizer`.
    """
    if not isinstance(settings, dict):
        return "google"
    if "text_rules" in settings:
        return settings["text_rules"]
    wanted = GoogleRules(bool(settings.get("do_lower_case", True)), not settings.get("keep_accents", False))
    return next(name for name, family in _GOOGLE.items() if family == wanted)


def with_flags(rules: str, do_lower_case: bool | None = None, keep_accents: bool | None = None) -> str:
    """Return the name of the rules that differ from others in transformers' flags alone; None keeps a flag."""
    family = _GOOGLE.get(rules)
    lower = lowers(rules) if do_lower_case is None else do_lower_case
    keeps = family is None or not family.strip
    keep = keeps if keep_accents is None else keep_accents
    if (lower, keep) == (lowers(rules), keeps):
        return rules
    if family is not None:
        return next(name for name, other in _GOOGLE.items() if other == GoogleRules(lower, not keep))
    if rules in ("multilingual", "korean") and keep:
        return "korean" if lower else "multilingual"
    what = f"there are no rules like `{rules}` with do_lower_case={lower} and keep_accents={keep}"
    raise ConfigError("unknown-name", what, f"name rules with text_rules: {', '.join(NAMES)}")


# --- the rules --------------------------------------------------------------------------------------------------------


def encodable(text: str) -> str:
    """Return the text with U+FFFD in place of lone surrogates."""
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
            for mark in filter(unicodedata.combining, set(BEYOND_ASCII.findall(text))):
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


def _align_google(text: AlignedText, lower: bool, strip: bool) -> AlignedText:
    text = collapsed(text)
    if strip and not text.text.isascii():
        text = without_marks(text)
    return lowered(text) if lower else text


_ALIGNMENTS: dict[str, Callable[[AlignedText], AlignedText]] = {
    **{name: partial(_align_google, lower=family.lower, strip=family.strip) for name, family in _GOOGLE.items()},
    "multilingual": lambda text: composed(collapsed(text)),
    "korean": lambda text: composed(lowered(collapsed(text))),
    "none": lambda text: text,
}
