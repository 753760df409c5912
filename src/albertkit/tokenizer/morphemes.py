"""Find the morphemes of a Korean text, by kiwipiepy or python-mecab-ko. Only the surface is cut."""

import sys
import threading
import unicodedata
from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise
from typing import Any

from albertkit.errors import ConfigError, MissingExtraError, requires_package, suggest_name

# Characters a second on one core, and seconds to load: mecab 200,000 and 0.02, kiwi 26,000 and 5.
ANALYSERS = ("mecab", "kiwi")
Spans = Callable[[str], Iterable[tuple[int, int]]]


class Analyser:
    """Cuts Korean texts, by the spans of their morphemes. May be used by several threads, one at a time."""

    def __init__(self, name: str, spans: Spans) -> None:
        self.name = name
        self._spans = spans
        self._lock = threading.Lock()

    def boundaries(self, text: str) -> list[int]:
        """Return the positions inside words of a composed text (NFC) where one morpheme ends and the next begins, ascending."""
        if not any(map(is_hangul, text)):
            return []
        with self._lock:
            spans = list(self._spans(text))
        # kiwipiepy restores forms that the surface does not show and lets them overlap (예뻤다: 예쁘 at
        # 0 to 2, 었 at 1 to 2), so morphemes that share characters are one here. A boundary counts
        # only where it touches Hangul: of numbers and other scripts an analyser of Korean knows no
        # more than SentencePiece (mecab makes three of "3.14").
        inner_positions = {position for start, end in spans for position in range(start + 1, end)}
        boundaries = []
        for position in sorted(set().union(*spans) - inner_positions - {0, len(text)}):
            neighbours = text[position - 1 : position + 1]
            if any(map(is_hangul, neighbours)) and not any(map(str.isspace, neighbours)):
                boundaries.append(position)
        return boundaries

    def separated(self, text: str, mark: str) -> str:
        """Return the text with a mark at every boundary."""
        boundaries = [0, *self.boundaries(text), len(text)]
        return mark.join(text[start:end] for start, end in pairwise(boundaries))


@cache
def find_analyser(name: str) -> Analyser:
    """Return one of `ANALYSERS`, loaded once."""
    if name not in ANALYSERS:
        raise ConfigError(
            "bad-value",
            f"there is no analyser `{name}`",
            suggest_name(name, ANALYSERS),
        )
    if name == "mecab":
        return Analyser(name, load_mecab())
    kiwi = load_kiwi("cutting morphemes with kiwi")
    return Analyser(name, lambda text: [(token.start, token.end) for token in kiwi.tokenize(text)])


def load_mecab() -> Spans:
    try:
        from mecab import MeCab
    except ImportError:
        missing = MissingExtraError.for_package(
            "python-mecab-ko",
            "korean",
            "cutting morphemes with mecab",
        )
        if sys.version_info >= (3, 13):  # the extra leaves it out there: it has no wheels
            missing = MissingExtraError(
                "not-installed",
                "mecab is not available for Python 3.13",
                "--analyser kiwi",
            )
        raise missing from None
    tagger = MeCab()
    return lambda text: [
        (morpheme.span.start, morpheme.span.end) for morpheme in tagger.parse(text)
    ]


@cache
def load_kiwi(purpose: str) -> Any:
    """Load kiwi, once a process for each purpose."""
    # It takes a second and 300 MB, and may be used by several threads.
    with requires_package("kiwipiepy", "korean", purpose):
        from kiwipiepy import Kiwi
    return Kiwi(num_workers=1)


@cache
def is_hangul(character: str) -> bool:
    """Return True for a Hangul syllable or letter."""
    return unicodedata.name(character, "").startswith("HANGUL")
