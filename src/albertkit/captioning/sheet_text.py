"""Text for pictures: a font that has the letters, and lines that fit."""

import unicodedata
from bisect import bisect_right
from typing import Any

# Pillow looks for these where the system keeps its fonts; the first that has all letters is taken.
FONTS = (
    "DejaVuSans.ttf", "NotoSans-Regular.ttf", "NotoSansCJK-Regular.ttc", "NotoSansKR-Regular.otf", "NanumGothic.ttf",
    "AppleSDGothicNeo.ttc", "malgun.ttf", "segoeui.ttf", "Arial Unicode.ttf",
)  # fmt: skip
_NOT_DRAWN = ("Zs", "Zl", "Zp", "Cf", "Mn", "Me")  # kinds of characters that are nothing by themselves
_MOST = 1000  # letters that are looked at for one line
_NO_LETTER = "\U0010fffd"  # what a font draws for it, it draws for every letter that it lacks


def clean(text: str) -> str:
    """Return a text as one line, without what cannot be drawn: control characters, half characters."""
    return " ".join("".join(" " if unicodedata.category(c) in ("Cc", "Cs") else c for c in text).split())


def font_for(text: str) -> tuple[Any, list[str]]:
    """Return the known font that lacks the fewest letters of a text, and these letters.

    Of Pillow's font `font_variant(size=…)` makes every size. Hangul, for example, is in Nanum Gothic and Noto Sans CJK.
    """
    from PIL import ImageFont

    needed = sorted({c for c in text if unicodedata.category(c) not in _NOT_DRAWN})
    found = []
    for name in FONTS:
        try:
            font = ImageFont.truetype(name, 16)
        except OSError:
            continue  # not on this machine
        found.append((font, _lacking(font, needed)))
        if not found[-1][1]:
            break
    own = ImageFont.load_default(16)
    return min([*found, (own, _lacking(own, needed))], key=lambda one: len(one[1]))


def _lacking(font: Any, letters: list[str]) -> list[str]:
    box = _drawn(font, _NO_LETTER)
    return [letter for letter in letters if _drawn(font, letter) == box]


def _drawn(font: Any, letter: str) -> tuple[tuple[int, int], bytes]:
    mask = font.getmask(letter, mode="L")
    return mask.size, bytes(mask)


def wrapped(text: str, font: Any, width: float) -> list[str]:
    """Return lines no wider than `width` pixels: broken at spaces, and within what is wider than a line by itself."""
    lines: list[str] = []
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and font.getlength(longer) <= width:
            lines[-1] = longer
            continue
        while font.getlength(word) > width and len(word) > 1:
            lengths = [font.getlength(word[:end]) for end in range(1, min(len(word), _MOST))]
            end = max(bisect_right(lengths, width), 1)
            while end > 1 and unicodedata.combining(word[end]):  # marks stay with the letter that they stand on
                end -= 1
            lines.append(word[:end])
            word = word[end:]
        lines.append(word)
    return lines
