"""Draw contact sheets, one picture a clip: the sampled frames and the caption."""

import unicodedata
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np

from albertkit.errors import MissingExtraError, format_list
from albertkit.output.plots import GRID, INK, MUTED

if TYPE_CHECKING:
    from PIL import Image

_MARGIN = 24  # pixels, as all that follows
_GAP = 8
_PART_GAP = 12
_CAPTION_SIZE, _TEXT_SIZE = 22, 14
_MIN_WIDTH = 592  # of the lines of a caption
_MAX_COLUMNS = 8
_FRAME_WIDTH, _FEW_FRAMES_WIDTH = 144, 224  # the second of at most four frames
_OWN_LETTERS = "(no caption) score: 0123456789.,-"

# Pillow looks for these where the system keeps its fonts; the first that has all letters is taken.
FONTS = (
    "DejaVuSans.ttf", "NotoSans-Regular.ttf", "NotoSansCJK-Regular.ttc", "NotoSansKR-Regular.otf", "NanumGothic.ttf",
    "AppleSDGothicNeo.ttc", "malgun.ttf", "segoeui.ttf", "Arial Unicode.ttf",
)  # fmt: skip
_NOT_DRAWN = ("Zs", "Zl", "Zp", "Cf", "Mn", "Me")  # kinds of characters that are nothing by themselves
_NO_LETTER = "\U0010fffd"  # what a font draws for it, it draws for every letter that it lacks


def contact_sheet(frames: np.ndarray, times: np.ndarray, caption: str, *, score: float | None = None) -> "Image.Image":
    """Draw the frames of a clip with their numbers and times, and the caption beneath.

    Args:
        frames: uint8 [T, S, S, 3], RGB.
        times: [T], in seconds; NaN where a time is not known.
        caption: In any script. It is wrapped. Letters that no font of this machine has are named beneath it: Hangul needs
            one such as Nanum Gothic or Noto Sans CJK.
        score: Of the caption.

    Returns:
        An RGB picture, 640 to about 1,300 pixels wide.
    """
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise MissingExtraError.for_package("pillow", "caption", "drawing a contact sheet") from None
    caption = drawable_line(caption)
    font, missing_letters = find_font(caption + _OWN_LETTERS)
    large, small = font.font_variant(size=_CAPTION_SIZE), font.font_variant(size=_TEXT_SIZE)
    frame_width = _FEW_FRAMES_WIDTH if len(frames) <= 4 else _FRAME_WIDTH
    num_rows = -(-len(frames) // _MAX_COLUMNS)
    columns = -(-len(frames) // num_rows)  # rows of nearly one length
    width = max(_MIN_WIDTH, columns * (frame_width + _GAP) - _GAP)
    parts = [
        _draw_frames(frames, times, columns, frame_width, width, small),
        _draw_text(caption or "(no caption)", large, INK, width),
    ]
    if score is not None:
        parts.append(_draw_text(f"score {score:.3f}", small, MUTED, width))
    if missing_letters:
        codes = format_list([f"U+{ord(letter):04X}" for letter in missing_letters])
        note = f"No known font of this machine has all letters of this caption; the one used lacks {codes}. "
        note += "Noto Sans has most scripts; Noto Sans CJK and Nanum Gothic have Hangul."
        parts.append(_draw_text(note, small, MUTED, width))
    height = sum(part.height + _PART_GAP for part in parts) - _PART_GAP
    sheet, _ = _blank(width + 2 * _MARGIN, height + 2 * _MARGIN)
    top = _MARGIN
    for part in parts:
        sheet.paste(part, (_MARGIN, top))
        top += part.height + _PART_GAP
    return sheet


def _draw_frames(
    frames: np.ndarray, times: np.ndarray, columns: int, frame_width: int, width: int, font: Any
) -> "Image.Image":
    from PIL import Image

    frame_height = max(1, round(frame_width * frames.shape[1] / frames.shape[2]))
    row_height = frame_height + _line_height(font) + _GAP
    num_rows = -(-len(frames) // columns)
    picture, pen = _blank(width, num_rows * row_height - _GAP)
    for index, (frame, time) in enumerate(zip(frames, times, strict=True)):
        row, column = divmod(index, columns)
        x, y = column * (frame_width + _GAP), row * row_height
        resized = Image.fromarray(frame).resize((frame_width, frame_height), Image.Resampling.BICUBIC)
        picture.paste(resized, (x, y))
        pen.rectangle((x, y, x + frame_width - 1, y + frame_height - 1), outline=GRID)
        number, text_y = f"{index + 1}", y + frame_height + 2
        pen.text((x, text_y), number, INK, font)
        pen.text((x + font.getlength(number) + _GAP, text_y), _format_time(time), MUTED, font)
    return picture


def _draw_text(text: str, font: Any, colour: str, width: int) -> "Image.Image":
    lines = wrap_text(text, font, width)
    picture, pen = _blank(width, _line_height(font) * len(lines))
    for index, line in enumerate(lines):
        pen.text((0, index * _line_height(font)), line, colour, font)
    return picture


def _line_height(font: Any) -> int:
    return round(1.1 * sum(font.getmetrics()))


def _blank(width: int, height: int) -> tuple["Image.Image", Any]:
    """Return a white picture and the pen that draws on it."""
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (width, height), "white")
    return picture, ImageDraw.Draw(picture)


def _format_time(seconds: float) -> str:
    """Return a time as 1.24 s, 2:03.4 or 1:02:03.4; an empty text if it is not known."""
    if not np.isfinite(seconds):
        return ""
    if seconds < 59.995:
        return f"{seconds:.2f} s"
    tenths = round(10 * float(seconds))
    hours = tenths // 36000
    minutes = tenths // 600 % 60
    remainder = tenths % 600 / 10
    return f"{hours}:{minutes:02d}:{remainder:04.1f}" if hours else f"{minutes}:{remainder:04.1f}"


def drawable_line(text: str) -> str:
    """Return a text as one line, without what cannot be drawn: control characters, half characters."""
    return " ".join("".join(" " if unicodedata.category(c) in ("Cc", "Cs") else c for c in text).split())


def find_font(text: str) -> tuple[Any, list[str]]:
    """Return the known font that lacks the fewest letters of a text, and these letters; `font_variant` makes every size."""
    from PIL import ImageFont

    needed = sorted({c for c in text if unicodedata.category(c) not in _NOT_DRAWN})
    candidates = []
    for name in (*FONTS, None):
        try:
            font = ImageFont.load_default(16) if name is None else ImageFont.truetype(name, 16)
        except OSError:
            continue  # not on this machine
        no_letter = _draw_glyph(font, _NO_LETTER)
        candidates.append((font, [letter for letter in needed if _draw_glyph(font, letter) == no_letter]))
        if not candidates[-1][1]:
            break
    return min(candidates, key=lambda candidate: len(candidate[1]))


def _draw_glyph(font: Any, letter: str) -> tuple[tuple[int, int], bytes]:
    mask = font.getmask(letter, mode="L")
    return mask.size, bytes(mask)


def wrap_text(text: str, font: Any, width: float) -> list[str]:
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
