"""Captions of videos on the disk, with a picture of what the captioner saw."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from albertkit.captioning.attention import word_attention
from albertkit.captioning.captioner import Caption, VideoCaptioner
from albertkit.captioning.contact_sheet import write_contact_sheet
from albertkit.captioning.data import Clip, frames_of
from albertkit.captioning.data.reading import read_splits
from albertkit.captioning.generation import GenerationSettings
from albertkit.errors import AlbertKitError, DataError
from albertkit.files import atomic_file, check_new_file
from albertkit.tasks.faults import Fault, Faults

LISTS = (".jsonl", ".yaml", ".yml", ".json")  # these name clips; anything else is a video


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
    captions: list[Caption]
    sheet: Path | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        own: dict[str, Any] = {"key": self.key, "caption": self.captions[0].text if self.captions else ""}
        own["captions"] = [
            {"caption": c.text, "score": round(c.score, 6), "log_probability": round(c.log_probability, 6)}
            for c in self.captions
        ]
        if self.sheet:
            own["sheet"] = str(self.sheet)
        return own | ({"notes": list(self.notes)} if self.notes else {})


@dataclass
class PredictReport:
    """What was captioned.

    Attributes:
        clips: In order.
        skipped: Key and error of those that could not be read.
    """

    clips: list[PredictedClip] = field(default_factory=list)
    skipped: list[tuple[str, AlbertKitError]] = field(default_factory=list)


def predict_captions(
    captioner: VideoCaptioner,
    inputs: Sequence[str | Path],
    *,
    out: str | Path | None = None,
    sheets: str | Path | None = None,
    settings: GenerationSettings | None = None,
) -> PredictReport:
    """Caption videos and lists of clips, one clip after the other.

    A clip that cannot be read is skipped and reported; if none can, that is an error.

    Args:
        captioner: With a backbone.
        inputs: Files of video; manifests and what else `read_clips` reads, with all their splits; folders.
        out: A JSONL file to write: a line for each clip, whole or not at all.
        sheets: Folder for a contact sheet of each clip (PNG).
        settings: Of generation. Default: the captioner's own.

    Raises:
        DataError: what the first clip raised, if none can be read. ConfigError: no-backbone.
    """
    if out is not None:
        check_new_file(out)
    _, sampling = captioner.eyes()
    report = PredictReport()
    clips, faults = _clips(inputs)
    report.skipped += [
        (fault.where, DataError("bad-row", f"`{fault.file}`, {fault.where}: {fault.reason}")) for fault in faults
    ]
    captioner.model.eval()
    names: set[str] = set()
    for clip in clips:
        try:
            frames = frames_of(clip, sampling)
        except DataError as error:
            report.skipped.append((clip.key, error))
            continue
        context = captioner.context(torch.from_numpy(frames.pixels[None]))
        captions = captioner.describe(context, settings)[0]
        sheet = None
        if sheets is not None and captions:
            sheet = Path(sheets) / f"{sheet_name(clip.key, names)}.png"
            _write_sheet(sheet, captioner, context, frames, captions)
        report.clips.append(PredictedClip(clip.key, captions, sheet, tuple(frames.notes)))
    if not report.clips:
        raise report.skipped[0][1] if report.skipped else DataError("empty-input", "no clip is named", "name videos")
    if out is not None:
        with atomic_file(out, "w") as stream:
            _write_lines(stream, report)
    return report


def _clips(inputs: Sequence[str | Path]) -> tuple[list[Clip], list[Fault]]:
    """The clips that inputs name, each with a key of its own, and what of lists cannot be used."""
    clips: list[Clip] = []
    faults = Faults("skip")
    for given in map(Path, inputs):
        if given.is_dir() or given.suffix.lower() in LISTS:
            for split, of_split in read_splits(given, faults=faults).items():
                several = {clip.key for clip in clips} & {clip.key for clip in of_split}
                clips += [
                    replace(clip, key=f"{split}-{clip.key}") if clip.key in several else clip for clip in of_split
                ]
        else:
            clips.append(Clip(key=given.stem, source=given))
    keys: set[str] = set()
    return [replace(clip, key=unused(clip.key, keys)) for clip in clips], faults.found


def unused(name: str, taken: set[str]) -> str:
    """A name that is not among those taken, by a number at its end if need be; it is then one of them."""
    found = next(one for one in chain([name], (f"{name}-{n}" for n in count(2))) if one not in taken)
    taken.add(found)
    return found


def sheet_name(key: str, taken: set[str]) -> str:
    """The name of a clip's picture: letters and digits of any script, no folder, not hidden, not one of those taken."""
    return unused(re.sub(r"[^\w.-]+", "_", key).lstrip("._-") or "clip", taken)


def _write_lines(stream: IO[str], report: PredictReport) -> None:
    for clip in report.clips:
        stream.write(json.dumps(clip.to_dict(), ensure_ascii=False) + "\n")


def _write_sheet(file: Path, captioner: VideoCaptioner, context: Any, frames: Any, captions: Sequence[Caption]) -> None:
    best = captions[0]
    words, attention = None, None
    if best.ids:
        seen = word_attention(captioner, context, best)
        words, attention = seen.words, _to_sampled_frames(seen.shares, len(frames.pixels))
    write_contact_sheet(
        file, frames.pixels, frames.times, best.text, score=best.score, words=words, attention=attention
    )


def _to_sampled_frames(shares: np.ndarray, num_frames: int) -> np.ndarray:
    """[L, F] of the frames of visual tokens to [L, T] of the frames that were decoded, which may be more: each gets its part."""
    own = np.arange(num_frames) * shares.shape[1] // num_frames
    counts = np.bincount(own, minlength=shares.shape[1])
    return shares[:, own] / counts[own]
