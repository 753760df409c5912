"""Unicode's normal forms in time that grows with the text, whatever the text is."""

import re
import unicodedata
from functools import cache
from typing import Literal

NormalForm = Literal["NFC", "NFD", "NFKC", "NFKD"]
# The standard library sorts the marks behind a letter by insertion: 25,000 pairs of marks take 4 s.
# Real texts have a few.
_LONG_RUN = 32
_AFTER_THE_MARKS = 0x20000  # combining marks are in Unicode's first two planes


def normalize(form: NormalForm, text: str) -> str:
    """Return what `unicodedata.normalize` returns, in time linear in the length of the text.

    Long runs of combining marks are decomposed and put into canonical order first, which changes no
    normal form.

    Args:
        form: NFC, NFD, NFKC or NFKD.
        text: Any text.
    """
    if len(text) < _LONG_RUN or text.isascii():
        return unicodedata.normalize(form, text)
    decomposition: NormalForm = "NFKD" if "K" in form else "NFD"
    # A long run has a mark at one of these positions. To search every text for runs takes 0.4 us a
    # character.
    if _marks(decomposition).isdisjoint(text[::_LONG_RUN]):
        return unicodedata.normalize(form, text)

    def ordered(run: re.Match[str]) -> str:
        marks = "".join(unicodedata.normalize(decomposition, mark) for mark in run.group())
        return "".join(sorted(marks, key=unicodedata.combining))

    return unicodedata.normalize(form, _long_runs(decomposition).sub(ordered, text))


@cache
def _long_runs(decomposition: NormalForm) -> re.Pattern[str]:
    return re.compile(f"[{''.join(sorted(_marks(decomposition)))}]{{{_LONG_RUN},}}")


@cache
def _marks(decomposition: NormalForm) -> frozenset[str]:
    """Return the characters whose decomposition has combining marks alone. Takes 0.04 s once."""
    marks = []
    for code in range(_AFTER_THE_MARKS):
        decomposed = unicodedata.normalize(decomposition, chr(code))
        if all(map(unicodedata.combining, decomposed)):
            marks.append(chr(code))
    return frozenset(marks)
