"""albertkit caption prepare"""

import sys
from pathlib import Path
from typing import Literal


def prepare(
    data: Path,
    *,
    out: Path,
    backbone: str = "conv3d",
    split: str | None = None,
    frames: int = 8,
    size: int | None = None,
    rounding: Literal["floor", "round", "middle"] = "middle",
    max_tokens: int = 196,
    train_backbone: bool = False,
    batch_size: int = 8,
    workers: int | None = None,
    on_error: Literal["stop", "skip"] = "skip",
    device: str = "auto",
    json: bool = False,
) -> None:
    """Decode the clips of a data set once and keep what a captioner sees of them. Interrupted, the same command goes on.

    Args:
        data: A manifest (.jsonl), a SwinBERT .yaml, captions as MSR-VTT, COCO, VATEX, MSVD, YouCook2 or TVC publish them, or
            a folder: of videos with texts beside them, with one of these for train, dev (or val) and test, or with
            published captions and their videos.
        out: Folder of the prepared clips.
        backbone: conv3d (frames are kept, the network is trained with the captioner), hf:FOLDER or hf:org/name (frozen: its
            features are kept), video-swin:FILE (frozen likewise), or features (the manifest names files of them).
        split: Prepare this split. Default: all there are.
        frames: Frames of a clip.
        size: Their height and width in pixels. Default: what the backbone wants.
        rounding: Which frames: the middles of equal parts, or floor or round of even places from the first to the last.
        max_tokens: Visual tokens of a clip at most; more are averaged with their neighbours in space.
        train_backbone: Keep frames for a model of transformers or Video Swin, too: `caption train` then trains it along.
        batch_size: Clips that go through the backbone at once.
        workers: Threads that decode. Default: one a core, 8 at most.
        on_error: Clips that cannot be used: skip, count and name them, or stop at the first.
        device: auto, cpu, cuda or cuda:N.
        json: Print one JSON object, and no progress.
    """
    from albertkit.captioning.data.prepare import SKIPPED
    from albertkit.captioning.data.prepare_data import prepare_data
    from albertkit.cli.printing import print_left_out, print_result

    report, faults = prepare_data(
        data, out, backbone, split=split, num_frames=frames, size=size, rounding=rounding, max_tokens=max_tokens,
        train_backbone=train_backbone,
        batch_size=batch_size, workers=workers, on_error=on_error, device=device, progress=not json,
    )  # fmt: skip
    for note in faults.notes:
        print(note, file=sys.stderr)
    left_out = [f"{fault.file}, {fault.where}: {fault.reason}" for fault in faults.found]
    listed = f"all are listed in {out / SKIPPED}"
    print_left_out([f"left out: {line}" for line in left_out], listed)
    print_left_out([f"skipped: {clip.split} `{clip.key}`: {clip.reason}" for clip in report.skipped], listed)
    shown = report.to_dict()
    if not json:
        splits = [f"{name} {count:,}" for name, count in report.clips.items()]
        shown |= {"skipped": len(report.skipped) or None, "clips": splits}
    print_result(shown | {"left_out": left_out if json else len(left_out) or None}, json)
