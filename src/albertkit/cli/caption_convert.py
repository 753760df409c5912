"""albertkit caption convert"""

import sys
from pathlib import Path
from typing import Literal


def convert(
    source: Path,
    target: Path,
    *,
    split: str | None = None,
    frames: int | None = None,
    size: int = 256,
    rounding: Literal["floor", "round", "middle"] = "round",
    on_error: Literal["stop", "skip"] = "stop",
    json: bool = False,
) -> None:
    """Turn a manifest of clips into SwinBERT's files, or any data of clips into a manifest.

    Args:
        source: A manifest (.jsonl), a SwinBERT .yaml, captions as MSR-VTT, COCO, VATEX, MSVD, YouCook2 or TVC publish them, or
            a folder: of videos with texts beside them, with one of these for train, dev (or val) and test, or with
            published captions and their videos.
        target: NAME.jsonl for a manifest; else a folder for TSVs, their indices and a YAML a split.
        split: Convert this split. Default: all there are.
        frames: Write so many frames of each clip, as JPEGs, instead of the path of its video.
        size: Height and width of these frames in pixels.
        rounding: Which frames: floor or round of even places from the first to the last, or the middles of equal parts.
        on_error: Clips that cannot be used: stop, or skip, count and name them.
        json: Print one JSON object.
    """
    from albertkit.captioning.data.convert import convert_clips
    from albertkit.captioning.video.sampling import FrameSampling
    from albertkit.cli.printing import print_left_out, print_result
    from albertkit.tasks.faults import Faults

    sampling = None if frames is None else FrameSampling(num_frames=frames, size=size, rounding=rounding)
    report = convert_clips(source, target, split, sampling, Faults(on_error))
    for note in report.notes:
        print(note, file=sys.stderr)
    left_out = [f"left out: {fault.file}, {fault.where}: {fault.reason}" for fault in report.left_out]
    print_left_out(left_out, "--json lists all")
    shown = report.to_dict()
    if not json:
        splits = [f"{name} {count:,}" for name, count in report.clips.items()]
        shown |= {"clips": splits, "left_out": len(report.left_out) or None, "notes": None}
    print_result(shown, json)
