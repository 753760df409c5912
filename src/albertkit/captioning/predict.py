"""Captions of videos on the disk, and contact sheets: pictures of the frames that the captioner saw, with the caption."""

import base64
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from io import BytesIO
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from albertkit.captioning.captioner import ScoredCaption, VideoCaptioner, open_captioner
from albertkit.captioning.clips import Clip
from albertkit.captioning.options import PredictCaptionsOptions
from albertkit.captioning.prepare import decode_clip_frames
from albertkit.captioning.settings import GenerationSettings
from albertkit.captioning.sources import read_splits
from albertkit.captioning.video import Frames, sample_frames
from albertkit.command import takes
from albertkit.errors import AlbertKitError, ConfigError, DataError, format_list, requires_package
from albertkit.files import check_new_file, write_file, write_lines
from albertkit.output.plots import GRID, INK, MUTED
from albertkit.output.sections import Paragraph, Result, Section
from albertkit.printable import join_lines
from albertkit.tables.bad_rows import BadRows
from albertkit.validation import check_options

LIST_SUFFIXES = (".jsonl", ".yaml", ".yml", ".json")  # these name clips; anything else is a video


@dataclass(frozen=True)
class PredictedClip:
    """A clip and what is said of it.

    Attributes:
        key: Its name.
        captions: The best first.
        sheet: The picture that was written, if one was.
        notes: What decoding noticed.
    """

    key: str
    captions: list[ScoredCaption]
    sheet: Path | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        record: dict[str, Any] = {
            "key": self.key,
            "caption": self.captions[0].text if self.captions else "",
        }
        record["captions"] = [
            {
                "caption": c.text,
                "score": round(c.score, 6),
                "log_probability": round(c.log_probability, 6),
            }
            for c in self.captions
        ]
        if self.sheet:
            record["sheet"] = str(self.sheet)
        if self.notes:
            record["notes"] = list(self.notes)
        return record


@dataclass(frozen=True)
class CaptionReport(Result):
    """Captions of clips, and the clips that could not be read.

    Attributes:
        clips: In order.
        skipped: Key and error of those that could not be read.
    """

    clips: list[PredictedClip] = field(default_factory=list)
    skipped: list[tuple[str, AlbertKitError]] = field(default_factory=list)

    @property
    def warnings(self) -> tuple[str, ...]:  # type: ignore[override]
        """Name the clips that could not be read."""
        return tuple(f"skipped: {key}: {error.message}" for key, error in self.skipped)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        skipped = [
            {"key": key, "slug": error.slug, "reason": error.message} for key, error in self.skipped
        ]
        return {"clips": [clip.to_dict() for clip in self.clips], "skipped": skipped}

    def sections(self) -> list[Section]:
        """Return each clip with its captions and their scores, notes and contact sheet."""
        lines = []
        for clip in self.clips:
            lines += [
                clip.key,
                *(f"  {caption.score:8.3f}  {caption.text}" for caption in clip.captions),
            ]
            lines += [f"            {line}" for line in (*clip.notes, clip.sheet) if line]
        return [Paragraph(join_lines(lines), form="code")]


@takes(PredictCaptionsOptions)
def predict_captions(options: PredictCaptionsOptions) -> CaptionReport:
    """Caption videos and lists of clips, one clip after the other."""
    out = options.out
    if not options.videos:
        raise ConfigError("bad-value", "no video is named", "albertkit caption predict MODEL VIDEO")
    if out is not None:
        check_new_file(out)
    captioner = open_captioner(options.model, options.backbone, options.device)
    _, sampling = captioner.require_backbone()
    clips: list[Clip] = []
    bad_rows = BadRows("skip")
    for path in map(Path, options.videos):
        if path.is_dir() or path.suffix.lower() in LIST_SUFFIXES:
            for split, split_clips in read_splits(path, bad_rows=bad_rows).items():
                repeated = {clip.key for clip in clips} & {clip.key for clip in split_clips}
                clips += [
                    replace(clip, key=f"{split}-{clip.key}") if clip.key in repeated else clip
                    for clip in split_clips
                ]
        else:
            clips.append(Clip(key=path.stem, source=path))
    keys: set[str] = set()
    clips = [replace(clip, key=unique_name(clip.key, keys)) for clip in clips]
    predicted_clips: list[PredictedClip] = []
    skipped: list[tuple[str, AlbertKitError]] = [
        (
            bad_row.where,
            DataError("bad-row", f"`{bad_row.file}`, {bad_row.where}: {bad_row.reason}"),
        )
        for bad_row in bad_rows.rows
    ]
    names: set[str] = set()
    for clip in clips:
        try:
            frames = decode_clip_frames(clip, sampling)
        except DataError as error:
            skipped.append((clip.key, error))
            continue
        context = captioner.context(torch.from_numpy(frames.pixels[None]))
        captions = captioner.describe(context, options.generation)[0]
        sheet = None
        if not options.no_sheets and captions:
            sheet = Path(options.sheets) / f"{unique_sheet_stem(clip.key, names)}.png"
            write_file(sheet, sheet_png(frames, captions[0]))
        predicted_clips.append(PredictedClip(clip.key, captions, sheet, tuple(frames.notes)))
    if not predicted_clips:
        raise skipped[0][1] if skipped else DataError("empty", "no clip is named", "name videos")
    if out is not None:
        write_lines(out, (clip.to_dict() for clip in predicted_clips))
    return CaptionReport(predicted_clips, skipped)


def unique_name(name: str, used_names: set[str]) -> str:
    """Return a name that is not among those taken, by a number at its end if need be; it is then one of them."""
    names = chain([name], (f"{name}-{n}" for n in count(2)))
    unique = next(candidate for candidate in names if candidate not in used_names)
    used_names.add(unique)
    return unique


def unique_sheet_stem(key: str, used_names: set[str]) -> str:
    """Return the name of a clip's picture: letters and digits of any script, no folder, not hidden, not one of those taken."""
    return unique_name(re.sub(r"[^\w.-]+", "_", key).lstrip("._-") or "clip", used_names)


def sheet_png(frames: Frames, best: ScoredCaption) -> bytes:
    """Draw the contact sheet of a clip: its frames and its best caption."""
    png = BytesIO()
    contact_sheet(frames.pixels, frames.times, best.text, score=best.score).save(
        png,
        "PNG",
        optimize=True,
    )
    return png.getvalue()


# --- contact sheets -------------------------------------------------------------------------------

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
# Kinds of characters that are nothing by themselves
_NOT_DRAWN = ("Zs", "Zl", "Zp", "Cf", "Mn", "Me")
_NO_LETTER = "\U0010fffd"  # what a font draws for it, it draws for every letter that it lacks


def contact_sheet(
    frames: np.ndarray,
    times: np.ndarray,
    caption: str,
    *,
    score: float | None = None,
) -> "Image.Image":
    """Draw the frames of a clip with their numbers and times, and the caption beneath.

    Args:
        frames: uint8 [T, S, S, 3], RGB.
        times: [T], in seconds; NaN where a time is not known.
        caption: In any script. It is wrapped. Letters that no font of this machine has are named
            beneath it: Hangul needs one such as Nanum Gothic or Noto Sans CJK.
        score: Of the caption.

    Returns:
        An RGB picture, 640 to about 1,300 pixels wide.
    """
    with requires_package("pillow", "caption", "drawing a contact sheet"):
        import PIL  # noqa: F401
    caption = drawable_line(caption)
    font, missing_letters = find_font_and_missing_letters(caption + _OWN_LETTERS)
    large = font.font_variant(size=_CAPTION_SIZE)
    small = font.font_variant(size=_TEXT_SIZE)
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
    sheet, _ = _new_picture_and_pen(width + 2 * _MARGIN, height + 2 * _MARGIN)
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
    picture, pen = _new_picture_and_pen(width, num_rows * row_height - _GAP)
    for index, (frame, time) in enumerate(zip(frames, times, strict=True)):
        row, column = divmod(index, columns)
        x = column * (frame_width + _GAP)
        y = row * row_height
        resized = Image.fromarray(frame).resize(
            (frame_width, frame_height),
            Image.Resampling.BICUBIC,
        )
        picture.paste(resized, (x, y))
        pen.rectangle((x, y, x + frame_width - 1, y + frame_height - 1), outline=GRID)
        number = f"{index + 1}"
        text_y = y + frame_height + 2
        pen.text((x, text_y), number, INK, font)
        shown_time = ""  # 1.24 s, 2:03.4 or 1:02:03.4; nothing where it is not known
        if np.isfinite(time) and time < 59.995:  # else it would be rounded to 60.00 s
            shown_time = f"{time:.2f} s"
        elif np.isfinite(time):
            tenths = round(10 * float(time))
            hours = tenths // 36000
            shown_time = f"{tenths // 600 % 60}:{tenths % 600 / 10:04.1f}"
            if hours:
                shown_time = f"{hours}:{tenths // 600 % 60:02d}:{tenths % 600 / 10:04.1f}"
        pen.text((x + font.getlength(number) + _GAP, text_y), shown_time, MUTED, font)
    return picture


def _draw_text(text: str, font: Any, colour: str, width: int) -> "Image.Image":
    lines = wrap_text(text, font, width)
    picture, pen = _new_picture_and_pen(width, _line_height(font) * len(lines))
    for index, line in enumerate(lines):
        pen.text((0, index * _line_height(font)), line, colour, font)
    return picture


def _line_height(font: Any) -> int:
    return round(1.1 * sum(font.getmetrics()))


def _new_picture_and_pen(width: int, height: int) -> tuple["Image.Image", Any]:
    """Return a white picture and the pen that draws on it."""
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (width, height), "white")
    return picture, ImageDraw.Draw(picture)


def drawable_line(text: str) -> str:
    """Return a text as one line, without what cannot be drawn: control characters, half characters."""
    return " ".join(
        "".join(" " if unicodedata.category(c) in ("Cc", "Cs") else c for c in text).split()
    )


def find_font_and_missing_letters(text: str) -> tuple[Any, list[str]]:
    """Return the font of this machine that lacks the fewest letters of a text, and these letters.

    `font_variant` makes every size.
    """
    from PIL import ImageFont

    needed = sorted({c for c in text if unicodedata.category(c) not in _NOT_DRAWN})
    candidates = []
    for name in (*FONTS, None):
        try:
            font = ImageFont.load_default(16) if name is None else ImageFont.truetype(name, 16)
        except OSError:
            continue  # not on this machine
        no_letter = _draw_glyph(font, _NO_LETTER)
        candidates.append(
            (font, [letter for letter in needed if _draw_glyph(font, letter) == no_letter])
        )
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
            # Marks stay with the letter that they stand on
            while end > 1 and unicodedata.combining(word[end]):
                end -= 1
            lines.append(word[:end])
            word = word[end:]
        lines.append(word)
    return lines


class CaptionPipeline:
    """Caption videos with any captioner that has a backbone. Clips are no sequences and share no batch with others."""

    kind = "caption"
    options = tuple(field.name for field in fields(GenerationSettings))
    example = "clip.mp4"

    def __init__(self, captioner: VideoCaptioner) -> None:
        captioner.require_backbone()  # refuses one that cannot see
        self.captioner = captioner
        self.precision = "fp32"
        self.notes = ()

    def __call__(
        self, videos: str | Path | Sequence[str | Path], sheet: bool = False, **options: Any
    ) -> Any:
        """Return `captions` of each video, the best first: `text`, `score`, `log_probability`.

        Args:
            videos: One file or a list.
            sheet: Return the contact sheet, too, as `sheet`: a PNG in base64, "" where there is no
                caption.
            **options: Settings of generation, for example `num_captions=3`.
        """
        check_options(self.kind, options, self.options)
        captioner = self.captioner
        records = []
        if sheet:  # which is drawn of the frames that the captioner saw
            _, sampling = captioner.require_backbone()
            for file in [videos] if isinstance(videos, str | Path) else videos:
                frames = sample_frames(file, sampling)
                context = captioner.context(torch.from_numpy(frames.pixels[None]))
                captions = captioner.describe(context, replace(captioner.generation, **options))[0]
                png = sheet_png(frames, captions[0]) if captions else b""
                encoded = base64.b64encode(png).decode("ascii")
                records.append({**_captions_record(captions), "sheet": encoded})
        else:
            records += map(_captions_record, captioner.caption(videos, **options))
        return records[0] if isinstance(videos, str | Path) else records


def _captions_record(captions: Sequence[ScoredCaption]) -> dict[str, Any]:
    return {
        "captions": [
            {"text": c.text, "score": c.score, "log_probability": c.log_probability}
            for c in captions
        ]
    }
