"""`convert_clips`: manifests to SwinBERT's files, and anything that can be read to manifests."""

import time
from dataclasses import dataclass
from pathlib import Path

from albertkit.captioning.data.manifest import write_manifest
from albertkit.captioning.data.reading import read_splits
from albertkit.captioning.data.swinbert_writing import swinbert_rows, write_swinbert
from albertkit.captioning.options import ConvertClipsOptions
from albertkit.captioning.video.sampling import FrameSampling
from albertkit.data.bad_rows import BadRows, first_of
from albertkit.errors import ConfigError
from albertkit.frame.command import takes
from albertkit.frame.result import Result
from albertkit.frame.section import Facts, Section


@dataclass(frozen=True)
class ClipConversion(Result):
    """What `convert_clips` did.

    Attributes:
        files: The manifests, or the YAMLs.
        clips: Number of clips by split.
        captions: Number of captions.
        left_out: Rows of the source that could not be used.
        notes: What was passed over in files.
        seconds: It took.
    """

    files: tuple[Path, ...]
    clips: dict[str, int]
    captions: int
    left_out: tuple[str, ...]
    notes: tuple[str, ...]
    seconds: float

    @property
    def warnings(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the notes, and the first rows that were left out."""
        return (*self.notes, *first_of([f"left out: {row}" for row in self.left_out], "--json lists all"))

    def sections(self) -> list[Section]:
        """Return what a person is shown."""
        splits = [f"{name} {count:,}" for name, count in self.clips.items()]
        return [Facts({**vars(self), "clips": splits, "left_out": len(self.left_out) or None, "notes": None})]


@takes(ConvertClipsOptions)
def convert_clips(options: ConvertClipsOptions) -> ClipConversion:
    """Write clips in the other form: a manifest of one split, or SwinBERT's files of every split, whose `val` is dev."""
    began, target, bad_rows = time.perf_counter(), Path(options.target), BadRows(options.on_error)
    frames = None
    if options.frames is not None:
        frames = FrameSampling(num_frames=options.frames, size=options.size, rounding=options.rounding)
    splits = read_splits(options.source, options.split, bad_rows)
    if target.suffix.lower() == ".jsonl":
        if frames is not None:
            raise ConfigError("bad-value", f"`{target}` is a manifest, which holds no frames", "name a folder")
        if len(splits) > 1:
            listed = ", ".join(splits)
            raise ConfigError("bad-value", f"`{options.source}` has {listed}", "name one of them with --split")
        write_manifest(target, next(iter(splits.values())))
        files = [target]
    else:
        names = {"dev": "val"}
        for name, clips in splits.items():  # before the first file is written
            swinbert_rows(clips, names.get(name, name), frames is not None)
        files = [write_swinbert(clips, target, names.get(name, name), frames) for name, clips in splits.items()]
    captions = sum(len(clip.captions) for clips in splits.values() for clip in clips)
    counts = {name: len(clips) for name, clips in splits.items()}
    seconds = round(time.perf_counter() - began, 3)
    return ClipConversion(tuple(files), counts, captions, bad_rows.lines(), tuple(bad_rows.notes), seconds)
