"""`convert_clips`: manifests to SwinBERT's files, and anything that can be read to manifests."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from albertkit.captioning.data.manifest import write_manifest
from albertkit.captioning.data.reading import read_splits
from albertkit.captioning.data.swinbert_writing import swinbert_rows, write_swinbert
from albertkit.captioning.video.sampling import FrameSampling
from albertkit.errors import ConfigError
from albertkit.tasks.faults import Fault, Faults


@dataclass(frozen=True)
class ClipConversion:
    """What `convert_clips` did.

    Attributes:
        files: The manifests, or the YAMLs.
        clips: In each split.
        captions: In all.
        left_out: Rows of the source that could not be used.
        notes: What was passed over in files.
        seconds: It took.
    """

    files: tuple[Path, ...]
    clips: dict[str, int]
    captions: int
    left_out: tuple[Fault, ...]
    notes: tuple[str, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        faults = [f"{fault.file}, {fault.where}: {fault.reason}" for fault in self.left_out]
        return asdict(self) | {
            "files": [str(file) for file in self.files],
            "left_out": faults,
            "notes": list(self.notes),
        }


def convert_clips(
    source: str | Path,
    target: str | Path,
    split: str | None = None,
    frames: FrameSampling | None = None,
    faults: Faults | None = None,
) -> ClipConversion:
    """Write clips in the other form.

    Args:
        source: As `read_clips`.
        target: `NAME.jsonl`, a manifest of one split; or a folder, for SwinBERT's files of every split (its `val` is dev).
        split: Convert this one. Default: all there are.
        frames: Write these frames of each clip, as JPEGs, instead of the path of its video; for a folder.
        faults: Told of what is no clip. Default: stop at the first.

    Raises:
        ConfigError: bad-argument.
        DataError: what reading and writing raise.
        MissingExtraError: missing-extra.
    """
    began, place, faults = time.perf_counter(), Path(target), Faults() if faults is None else faults
    splits = read_splits(source, split, faults)
    if place.suffix.lower() == ".jsonl":
        if frames is not None:
            raise ConfigError("bad-argument", f"`{place}` is a manifest, which holds no frames", "name a folder")
        if len(splits) > 1:
            raise ConfigError("bad-argument", f"`{source}` has {', '.join(splits)}", "name one of them with --split")
        write_manifest(place, next(iter(splits.values())))
        files = [place]
    else:
        names = {"dev": "val"}
        for name, clips in splits.items():  # before the first file is written
            swinbert_rows(clips, names.get(name, name), frames is not None)
        files = [write_swinbert(clips, place, names.get(name, name), frames) for name, clips in splits.items()]
    captions = sum(len(clip.captions) for clips in splits.values() for clip in clips)
    return ClipConversion(
        tuple(files), {name: len(clips) for name, clips in splits.items()}, captions, tuple(faults.found),
        tuple(faults.notes), round(time.perf_counter() - began, 3),
    )  # fmt: skip
