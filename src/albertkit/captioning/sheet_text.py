"""Text for pictures: a font that has the letters, on whatever machine this is, and lines that fit."""

import os
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

# Tried first, because they look alike everywhere; then every font of the system, plain ones before bold ones.
_PREFERRED = (
    "DejaVuSans.ttf", "NotoSans-Regular.ttf", "NotoSansCJK-Regular.ttc", "NotoSansKR-Regular.otf", "NanumGothic.ttf",
    "AppleSDGothicNeo.ttc", "malgun.ttf", "segoeui.ttf",
)  # fmt: skip
_FOLDERS = (
    "/usr/share/fonts", "/usr/local/share/fonts", "~/.local/share/fonts", "~/.fonts",
    "/System/Library/Fonts", "/Library/Fonts", "~/Library/Fonts", "C:/Windows/Fonts",
)  # fmt: skip
_NOT_DRAWN = ("Zs", "Zl", "Zp", "Cf", "Mn", "Me")  # kinds of characters that are nothing by themselves
_NO_LETTER = "\U0010fffd"  # what a font draws for it, it draws for every letter that it lacks


def clean(text: str) -> str:
    """A text as one line, without what cannot be drawn: control characters, half characters."""
    return " ".join("".join(" " if unicodedata.category(c) in ("Cc", "Cs") else c for c in text).split())


def font_for(text: str) -> tuple[Any, list[str]]:
    """The first font of this machine that has all letters of a text, or else the one that has the most.

    Args:
        text: Everything that it is to draw.

    Returns:
        Pillow's font, of which `font_variant(size=…)` makes every size; the characters that it lacks. Hangul, for example,
        is in Nanum Gothic and Noto Sans CJK, not in DejaVu Sans or the font that comes with Pillow.
    """
    from PIL import ImageFont

    needed = sorted({c for c in text if unicodedata.category(c) not in _NOT_DRAWN})
    best: Any = ImageFont.load_default(16)
    lacking = _lacking(best, needed)
    own = True  # Pillow's own, which is the last choice
    for name in _fonts():
        if not own and not lacking:
            break
        try:
            font = ImageFont.truetype(name, 16)
        except OSError:
            continue  # not on this machine, or pictures in one size only
        without = _lacking(font, needed)
        if (own and len(without) <= len(lacking)) or len(without) < len(lacking):
            best, lacking, own = font, without, False
    return best, lacking


def _lacking(font: Any, letters: list[str]) -> list[str]:
    box = _drawn(font, _NO_LETTER)
    return [letter for letter in letters if _drawn(font, letter) == box]


def _drawn(font: Any, letter: str) -> tuple[tuple[int, int], bytes]:
    mask = font.getmask(letter, mode="L")
    return mask.size, bytes(mask)


def _fonts() -> Iterator[str]:
    yield from _PREFERRED
    yield from _system_fonts()


@cache
def _system_fonts() -> list[str]:
    folders = [Path(os.path.expanduser(folder)) for folder in _FOLDERS]
    files = [
        file for folder in folders for file in folder.rglob("*") if file.suffix.lower() in (".ttf", ".otf", ".ttc")
    ]
    return [
        str(file) for file in sorted(files, key=lambda file: ("Regular" not in file.stem, len(file.stem), str(file)))
    ]


def wrapped(text: str, font: Any, width: float) -> list[str]:
    """Lines no wider than `width` pixels: broken at spaces, and within what is wider than a line by itself."""
    lines: list[str] = []
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and font.getlength(longer) <= width:
            lines[-1] = longer
            continue
        while font.getlength(word) > width and len(word) > 1:
            end = _fitting(word, font, width)
            lines.append(word[:end])
            word = word[end:]
        lines.append(word)
    return lines


def _fitting(word: str, font: Any, width: float) -> int:
    """How many letters of a word fit, at least one; marks stay with the letter that they stand on."""
    low, high = 1, len(word)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if font.getlength(word[:middle]) <= width else (low, middle)
    end = low
    while end > 1 and unicodedata.combining(word[end]):
        end -= 1
    return end
