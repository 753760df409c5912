"""Captions of videos on the disk, with a picture of the frames that the captioner saw."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch

from albertkit.captioning.captioner import ScoredCaption, open_captioner
from albertkit.captioning.clips import Clip
from albertkit.captioning.contact_sheet import contact_sheet
from albertkit.captioning.options import PredictCaptionsOptions
from albertkit.captioning.prepare import frames_of
from albertkit.captioning.sources import read_splits
from albertkit.captioning.video import Frames
from albertkit.command import takes
from albertkit.errors import AlbertKitError, ConfigError, DataError
from albertkit.files import atomic_file, check_new_file, write_lines
from albertkit.output.sections import Paragraph, Result, Section
from albertkit.tables.bad_rows import BadRow, BadRows

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
        record: dict[str, Any] = {"key": self.key, "caption": self.captions[0].text if self.captions else ""}
        record["captions"] = [
            {"caption": c.text, "score": round(c.score, 6), "log_probability": round(c.log_probability, 6)}
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
        skipped = [{"key": key, "slug": error.slug, "reason": error.message} for key, error in self.skipped]
        return {"clips": [clip.to_dict() for clip in self.clips], "skipped": skipped}

    def sections(self) -> list[Section]:
        """Return each clip with its captions and their scores, notes and contact sheet."""
        lines = []
        for clip in self.clips:
            lines += [clip.key, *(f"  {caption.score:8.3f}  {caption.text}" for caption in clip.captions)]
            lines += [f"            {line}" for line in (*clip.notes, *([str(clip.sheet)] if clip.sheet else []))]
        return [Paragraph("\n".join(lines), form="code")]


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
    clips, bad_rows = _read_clips(options.videos)
    predicted_clips: list[PredictedClip] = []
    skipped: list[tuple[str, AlbertKitError]] = [
        (bad_row.where, DataError("bad-row", f"`{bad_row.file}`, {bad_row.where}: {bad_row.reason}"))
        for bad_row in bad_rows
    ]
    captioner.model.eval()
    names: set[str] = set()
    for clip in clips:
        try:
            frames = frames_of(clip, sampling)
        except DataError as error:
            skipped.append((clip.key, error))
            continue
        context = captioner.context(torch.from_numpy(frames.pixels[None]))
        captions = captioner.describe(context, options.generation)[0]
        sheet = None
        if not options.no_sheets and captions:
            sheet = Path(options.sheets) / f"{sheet_name(clip.key, names)}.png"
            with atomic_file(sheet) as stream:
                stream.write(sheet_png(frames, captions[0]))
        predicted_clips.append(PredictedClip(clip.key, captions, sheet, tuple(frames.notes)))
    if not predicted_clips:
        raise skipped[0][1] if skipped else DataError("empty", "no clip is named", "name videos")
    if out is not None:
        write_lines(out, (clip.to_dict() for clip in predicted_clips))
    return CaptionReport(predicted_clips, skipped)


def _read_clips(inputs: Sequence[str | Path]) -> tuple[list[Clip], list[BadRow]]:
    """Return the clips that inputs name, each with a key of its own, and what of lists cannot be used."""
    clips: list[Clip] = []
    bad_rows = BadRows("skip")
    for path in map(Path, inputs):
        if path.is_dir() or path.suffix.lower() in LIST_SUFFIXES:
            for split, split_clips in read_splits(path, bad_rows=bad_rows).items():
                repeated = {clip.key for clip in clips} & {clip.key for clip in split_clips}
                clips += [
                    replace(clip, key=f"{split}-{clip.key}") if clip.key in repeated else clip for clip in split_clips
                ]
        else:
            clips.append(Clip(key=path.stem, source=path))
    keys: set[str] = set()
    return [replace(clip, key=unique_name(clip.key, keys)) for clip in clips], bad_rows.rows


def unique_name(name: str, used_names: set[str]) -> str:
    """Return a name that is not among those taken, by a number at its end if need be; it is then one of them."""
    names = chain([name], (f"{name}-{n}" for n in count(2)))
    unique = next(candidate for candidate in names if candidate not in used_names)
    used_names.add(unique)
    return unique


def sheet_name(key: str, used_names: set[str]) -> str:
    """Return the name of a clip's picture: letters and digits of any script, no folder, not hidden, not one of those taken."""
    return unique_name(re.sub(r"[^\w.-]+", "_", key).lstrip("._-") or "clip", used_names)


def sheet_png(frames: Frames, best: ScoredCaption) -> bytes:
    """Draw the contact sheet of a clip: its frames and its best caption."""
    png = BytesIO()
    contact_sheet(frames.pixels, frames.times, best.text, score=best.score).save(png, "PNG", optimize=True)
    return png.getvalue()
