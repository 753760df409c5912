"""What a captioner saw and said, as one picture: the sampled frames, the caption, and where each word looked."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from albertkit.captioning.sheet_text import clean, font_for, wrapped
from albertkit.errors import MissingExtraError
from albertkit.files import atomic_file
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
# Shades 0, 0.5 and 1: blue, and evenly darker when printed in grey.
_SHADES = np.array([[255, 255, 255], [107, 174, 214], [8, 48, 107]])
_EVEN_SHADE = 0.25  # of the even share: a table of equal shares is light, not one dark block
_ALIKE = 0.005  # words whose shares differ by less are drawn with the same percent
_WHITE_FROM = 0.6  # letters are white on shades darker than this


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


def write_contact_sheet(path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Path:
    """Write a contact sheet as PNG, whole or not at all."""
    target = Path(path)
    sheet = contact_sheet(*args, **kwargs)
    with atomic_file(target) as stream:
        sheet.save(stream, "PNG", optimize=True)
    return target


class _Sheet:
    """A sheet in the making: its sizes; then strips of its whole width, one for each part, laid under each other."""

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
        frames_width = self.columns * (width + _GAP) - _GAP
        self.frames_left, table_width = 0, 0
        self.cell, self.cells = _CELL, min(total, _CELLS_IN_A_ROW)
        if shares is not None:
            self.word_width = round(min(max(map(self.small.getlength, words)), _WORD)) + 2 * _GAP
            if total <= _IN_A_ROW:  # the table's columns continue those of the frames
                self.frames_left, self.cell = self.word_width, width + _GAP
            table_width = self.word_width + self.cells * self.cell
        self.width = max(_LEAST_WIDTH, self.frames_left + frames_width, table_width)

    def drawn(self, score: float | None) -> "Image.Image":
        """Return the whole sheet."""
        from PIL import Image

        strips = [self._frames(), self._text(self.caption or "(no caption)", self.large, INK)]
        if score is not None:
            strips.append(self._text(f"score {score:.3f}", self.small, MUTED))
        if self.lacking:
            codes = ", ".join(f"U+{ord(letter):04X}" for letter in self.lacking[:8])
            more = f" and {len(self.lacking) - 8} more" if len(self.lacking) > 8 else ""
            note = f"No known font of this machine has all letters of this caption; the one used lacks {codes}{more}. "
            note += "Noto Sans has most scripts; Noto Sans CJK and Nanum Gothic have Hangul."
            strips.append(self._text(note, self.small, MUTED))
        if self.shares is not None:
            even, darkest = self._scale(self.shares)
            note = (
                f"Where each word looked: percent of its attention to the frames. White is 0, light blue the even share "
                f"({100 * even:.0f}), the darkest blue {100 * darkest:.0f} or more."
            )
            if len(self.words) > 1 and np.ptp(self.shares, axis=0).max() < _ALIKE:
                note += " The cells of each column are equal: all words looked alike, so no word depends on a frame of its own."
            strips.append(self._text(note, self.small, MUTED))
            strips += [self._table(self.shares, first) for first in range(0, len(self.frames), self.cells)]
        height = sum(strip.height + _BETWEEN for strip in strips) - _BETWEEN
        sheet = Image.new("RGB", (self.width + 2 * _MARGIN, height + 2 * _MARGIN), "white")
        top = _MARGIN
        for strip in strips:
            sheet.paste(strip, (_MARGIN, top))
            top += strip.height + _BETWEEN
        return sheet

    def _scale(self, shares: np.ndarray) -> tuple[float, float]:
        """Return the even share of a frame, and the share that is drawn darkest."""
        even = 1 / len(self.frames)
        return even, min(max(float(shares.max()), 2 * even), 1.0)

    def _shade(self, share: float, even: float, darkest: float) -> float:
        if darkest <= even:  # a single frame
            return _EVEN_SHADE * share
        return float(np.interp(share, (0, even, darkest), (0, _EVEN_SHADE, 1)))

    def _strip(self, height: int) -> tuple["Image.Image", Any]:
        from PIL import Image, ImageDraw

        strip = Image.new("RGB", (self.width, height), "white")
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

    def _table(self, shares: np.ndarray, first: int) -> "Image.Image":
        """Return the columns of `cells` frames, from number `first`."""
        columns = range(first, min(first + self.cells, len(self.frames)))
        labels = [wrapped(word, self.small, self.word_width - _GAP) for word in self.words]
        heights = [self.line * len(label) + _GAP for label in labels]
        strip, pen = self._strip(self.line + sum(heights) + 1)
        for place, number in enumerate(columns):
            middle = self.word_width + place * self.cell + self.cell // 2
            pen.text((middle, 0), f"{number + 1}", MUTED, self.small, anchor="ma")
        top = self.line
        for label, height, row in zip(labels, heights, shares, strict=True):
            for number, line in enumerate(label):
                place = top + height / 2 + (number - (len(label) - 1) / 2) * self.line
                pen.text((0, place), line, INK, self.small, anchor="lm")
            for column, number in enumerate(columns):
                left = self.word_width + column * self.cell
                shade = self._shade(float(row[number]), *self._scale(shares))
                colour = tuple(round(float(np.interp(shade, (0, 0.5, 1), levels))) for levels in _SHADES.T)
                pen.rectangle((left, top, left + self.cell - 1, top + height), fill=colour, outline=GRID)
                ink = "white" if shade > _WHITE_FROM else INK
                pen.text(
                    (left + self.cell // 2, top + height // 2), f"{100 * row[number]:.0f}", ink, self.small, anchor="mm"
                )
            top += height
        return strip


def _clock(seconds: float) -> str:
    """1.24 s, 2:03.4, 1:02:03.4, or nothing where it is not known."""
    if not np.isfinite(seconds):
        return ""
    if seconds < 59.995:
        return f"{seconds:.2f} s"
    tenths = round(10 * float(seconds))
    hours, minutes, rest = tenths // 36000, tenths // 600 % 60, tenths % 600 / 10
    return f"{hours}:{minutes:02d}:{rest:04.1f}" if hours else f"{minutes}:{rest:04.1f}"
