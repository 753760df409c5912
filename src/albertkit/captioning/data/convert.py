"""`convert_clips`: manifests to SwinBERT's files, and anything that can be read to manifests."""

import time
from dataclasses import dataclass
from pathlib import Path

from albertkit.captioning.data.manifest import write_manifest
from albertkit.captioning.data.reading import ReadClips, read_splits
from albertkit.captioning.data.swinbert_writing import swinbert_rows, write_swinbert
from albertkit.captioning.options import ConvertClipsOptions
from albertkit.captioning.video.sampling import FrameSampling
from albertkit.data.bad_rows import BadRows
from albertkit.errors import ConfigError
from albertkit.frame.command import takes


@dataclass(frozen=True, kw_only=True)
class ClipConversion(ReadClips):
    """Result of `convert_clips`; `files` are the manifests, or the YAMLs."""

    files: tuple[Path, ...]


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
    return ClipConversion(
        clips={name: len(clips) for name, clips in splits.items()},
        captions=sum(len(clip.captions) for clips in splits.values() for clip in clips),
        left_out=bad_rows.lines(),
        notes=tuple(bad_rows.notes),
        seconds=round(time.perf_counter() - began, 3),
        files=tuple(files),
    )
