"""Draw contact sheets, one picture a clip: the sampled frames, the caption, and where each word looked."""

import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from albertkit.errors import MissingExtraError, listed
from albertkit.frame.plots import GRID, INK, MUTED

if TYPE_CHECKING:
    from PIL import Image

_MARGIN, _GAP, _BETWEEN = 24, 8, 12  # pixels, as all that follows; between: parts
_CAPTION, _TEXT = 22, 14  # sizes of text
_LEAST_WIDTH = 592  # of the lines of a caption
_IN_A_ROW = 8  # frames; a table under one row lies under its frames
_FRAME, _FEW_FRAMES = 144, 224  # width of a frame, and of one of at most four
_CELL, _CELLS_IN_A_ROW = 36, 32  # of a table beneath several rows of frames
_WORD = 180  # the widest a column of words gets
_OWN_LETTERS = "(no caption) score of attention: 0123456789.,%-"
_SHADES = np.array([[255, 255, 255], [107, 174, 214], [8, 48, 107]])  # 0, 0.5 and 1: blue, evenly darker also in grey
_EVEN_SHADE = 0.25  # of the even share: a table of equal shares is light, not one dark block
_ALIKE = 0.005  # words whose shares differ by less are drawn with the same percent
_WHITE_FROM = 0.6  # letters are white on shades darker than this

# Pillow looks for these where the system keeps its fonts; the first that has all letters is taken.
FONTS = (
    "DejaVuSans.ttf", "NotoSans-Regular.ttf", "NotoSansCJK-Regular.ttc", "NotoSansKR-Regular.otf", "NanumGothic.ttf",
    "AppleSDGothicNeo.ttc", "malgun.ttf", "segoeui.ttf", "Arial Unicode.ttf",
)  # fmt: skip
_NOT_DRAWN = ("Zs", "Zl", "Zp", "Cf", "Mn", "Me")  # kinds of characters that are nothing by themselves
_NO_LETTER = "\U0010fffd"  # what a font draws for it, it draws for every letter that it lacks


def contact_sheet(
    frames: np.ndarray,
    times: np.ndarray,
    caption: str,
    *,
    score: float | None = None,
    words: Sequence[str] | None = None,
    attention: np.ndarray | None = None,
) -> "Image.Image":
    """Draw the frames of a clip with their numbers and times, the caption beneath, and where its words looked.

    Shares of attention are written as percent and shaded on one scale for the whole table: white is 0, light blue the even
    share of a frame, and the darkest blue the largest share, or twice the even one if none is larger.

    Args:
        frames: uint8 [T, S, S, 3], RGB.
        times: [T], in seconds; NaN where a time is not known.
        caption: In any script. It is wrapped. Letters that no font of this machine has are named beneath it: Hangul needs
            one such as Nanum Gothic or Noto Sans CJK.
        score: Of the caption.
        words: L words of the caption.
        attention: [L, T], how much each word looked at each frame; rows add up to 1.

    Returns:
        An RGB picture, 640 to about 1,400 pixels wide.
    """
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise MissingExtraError.of("pillow", "caption", "drawing a contact sheet") from None
    shares = np.asarray(attention, dtype=np.float64) if words else None
    return _Sheet(frames, times, clean(caption), [clean(word) for word in words or ()], shares).drawn(score)


class _Sheet:
    """The sizes of a sheet, and its parts: strips of its whole width, which are laid under each other."""

    def __init__(
        self, frames: np.ndarray, times: np.ndarray, caption: str, words: list[str], shares: np.ndarray | None
    ) -> None:
        self.frames, self.times, self.caption, self.words, self.shares = frames, times, caption, words, shares
        font, self.lacking = font_for(f"{caption} {' '.join(words)} {_OWN_LETTERS}")
        self.large, self.small = font.font_variant(size=_CAPTION), font.font_variant(size=_TEXT)
        self.line = round(1.1 * sum(self.small.getmetrics()))
        total = len(frames)
        self.columns = -(-total // -(-total // _IN_A_ROW))  # rows of nearly one length
        width = _FEW_FRAMES if total <= 4 else _FRAME
        self.frame_size = width, max(1, round(width * frames.shape[1] / frames.shape[2]))
        self.frames_left, table_width = 0, 0
        self.cell, self.cells = _CELL, min(total, _CELLS_IN_A_ROW)
        if shares is not None:
            self.word_width = round(min(max(map(self.small.getlength, words)), _WORD)) + 2 * _GAP
            if total <= _IN_A_ROW:  # the table's columns continue those of the frames
                self.frames_left, self.cell = self.word_width, width + _GAP
            table_width = self.word_width + self.cells * self.cell
        frames_width = self.columns * (width + _GAP) - _GAP
        self.width = max(_LEAST_WIDTH, self.frames_left + frames_width, table_width)

    def drawn(self, score: float | None) -> "Image.Image":
        """Return the whole sheet."""
        strips = [self._frames(), self._text(self.caption or "(no caption)", self.large, INK)]
        if score is not None:
            strips.append(self._text(f"score {score:.3f}", self.small, MUTED))
        if self.lacking:
            codes = listed([f"U+{ord(letter):04X}" for letter in self.lacking])
            note = f"No known font of this machine has all letters of this caption; the one used lacks {codes}. "
            note += "Noto Sans has most scripts; Noto Sans CJK and Nanum Gothic have Hangul."
            strips.append(self._text(note, self.small, MUTED))
        if self.shares is not None:
            strips += self._attention(self.shares)
        sheet, top = self._strip(sum(strip.height + _BETWEEN for strip in strips) - _BETWEEN, _MARGIN)[0], _MARGIN
        for strip in strips:
            sheet.paste(strip, (_MARGIN, top))
            top += strip.height + _BETWEEN
        return sheet

    def _strip(self, height: int, margin: int = 0) -> tuple["Image.Image", Any]:
        from PIL import Image, ImageDraw

        strip = Image.new("RGB", (self.width + 2 * margin, height + 2 * margin), "white")
        return strip, ImageDraw.Draw(strip)

    def _text(self, text: str, font: Any, colour: str) -> "Image.Image":
        lines, step = wrapped(text, font, self.width), round(1.1 * sum(font.getmetrics()))
        strip, pen = self._strip(step * len(lines))
        for number, line in enumerate(lines):
            pen.text((0, number * step), line, colour, font)
        return strip

    def _frames(self) -> "Image.Image":
        from PIL import Image

        (width, height), rows = self.frame_size, -(-len(self.frames) // self.columns)
        step = height + self.line + _GAP
        strip, pen = self._strip(rows * step - _GAP)
        for number, (frame, time) in enumerate(zip(self.frames, self.times, strict=True)):
            left, top = self.frames_left + number % self.columns * (width + _GAP), number // self.columns * step
            strip.paste(Image.fromarray(frame).resize((width, height), Image.Resampling.BICUBIC), (left, top))
            pen.rectangle((left, top, left + width - 1, top + height - 1), outline=GRID)
            label = f"{number + 1}"
            pen.text((left, top + height + 2), label, INK, self.small)
            pen.text((left + self.small.getlength(label) + _GAP, top + height + 2), _clock(time), MUTED, self.small)
        return strip

    def _attention(self, shares: np.ndarray) -> list["Image.Image"]:
        """Return a note on the scale, and a table for each `cells` frames."""
        even = 1 / len(self.frames)
        darkest = max(float(shares.max()), 2 * even)
        note = (
            f"Where each word looked: percent of its attention to the frames. White is 0, light blue the even share "
            f"({100 * even:.0f}), the darkest blue {min(100 * darkest, 100):.0f} or more."
        )
        if len(self.words) > 1 and np.ptp(shares, axis=0).max() < _ALIKE:
            note += (
                " The cells of each column are equal: all words looked alike, so no word depends on a frame of its own."
            )
        shades = np.interp(shares, (0, even, darkest), (0, _EVEN_SHADE, 1))
        tables = [self._table(shares, shades, first) for first in range(0, len(self.frames), self.cells)]
        return [self._text(note, self.small, MUTED), *tables]

    def _table(self, shares: np.ndarray, shades: np.ndarray, first: int) -> "Image.Image":
        """Return the columns of `cells` frames, from number `first`."""
        colours = np.stack([np.interp(shades, (0, 0.5, 1), levels) for levels in _SHADES.T], -1).round().astype(int)
        columns = range(first, min(first + self.cells, len(self.frames)))
        labels = [wrapped(word, self.small, self.word_width - _GAP) for word in self.words]
        heights = [self.line * len(label) + _GAP for label in labels]
        strip, pen = self._strip(self.line + sum(heights) + 1)
        lefts = {number: self.word_width + place * self.cell for place, number in enumerate(columns)}
        for number, left in lefts.items():
            pen.text((left + self.cell // 2, 0), f"{number + 1}", MUTED, self.small, anchor="ma")
        top = self.line
        for row, (label, height) in enumerate(zip(labels, heights, strict=True)):
            for line, text in enumerate(label):
                middle = top + height / 2 + (line - (len(label) - 1) / 2) * self.line
                pen.text((0, middle), text, INK, self.small, anchor="lm")
            for number, left in lefts.items():
                box = (left, top, left + self.cell - 1, top + height)
                pen.rectangle(box, fill=tuple(colours[row, number].tolist()), outline=GRID)
                ink, centre = (
                    "white" if shades[row, number] > _WHITE_FROM else INK,
                    (left + self.cell // 2, top + height // 2),
                )
                pen.text(centre, f"{100 * shares[row, number]:.0f}", ink, self.small, anchor="mm")
            top += height
        return strip


def _clock(seconds: float) -> str:
    """Return a time as 1.24 s, 2:03.4 or 1:02:03.4; an empty text if it is not known."""
    if not np.isfinite(seconds):
        return ""
    if seconds < 59.995:
        return f"{seconds:.2f} s"
    tenths = round(10 * float(seconds))
    hours, minutes, rest = tenths // 36000, tenths // 600 % 60, tenths % 600 / 10
    return f"{hours}:{minutes:02d}:{rest:04.1f}" if hours else f"{minutes}:{rest:04.1f}"


def clean(text: str) -> str:
    """Return a text as one line, without what cannot be drawn: control characters, half characters."""
    return " ".join("".join(" " if unicodedata.category(c) in ("Cc", "Cs") else c for c in text).split())


def font_for(text: str) -> tuple[Any, list[str]]:
    """Return the known font that lacks the fewest letters of a text, and these letters; `font_variant` makes every size."""
    from PIL import ImageFont

    needed = sorted({c for c in text if unicodedata.category(c) not in _NOT_DRAWN})
    found = []
    for name in (*FONTS, None):
        try:
            font = ImageFont.load_default(16) if name is None else ImageFont.truetype(name, 16)
        except OSError:
            continue  # not on this machine
        no_letter = _drawn(font, _NO_LETTER)
        found.append((font, [letter for letter in needed if _drawn(font, letter) == no_letter]))
        if not found[-1][1]:
            break
    return min(found, key=lambda one: len(one[1]))


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
            ends = range(1, len(word))
            end = max(bisect_right(ends, width, key=lambda end: font.getlength(word[:end])), 1)
            while end > 1 and unicodedata.combining(word[end]):  # marks stay with the letter that they stand on
                end -= 1
            lines.append(word[:end])
            word = word[end:]
        lines.append(word)
    return lines
