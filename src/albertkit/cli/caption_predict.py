"""albertkit caption predict, albertkit caption evaluate"""

import json as json_module
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from albertkit.captioning.generation.settings import GenerationSettings


def predict(
    model: str,
    *videos: Path,
    out: Path | None = None,
    sheets: Path = Path("sheets"),
    no_sheets: bool = False,
    backbone: str | None = None,
    device: str = "auto",
    json: bool = False,
    generation: Annotated[
        GenerationSettings | None, Parameter(name="*", group="Generation", negative_bool="no-")
    ] = None,
) -> None:
    """Say what videos show, and draw what the captioner looked at.

    Args:
        model: Captioner: a folder that `albertkit caption train` wrote, or `org/name` of the hub.
        videos: Files of video, manifests (.jsonl), or folders of videos.
        out: A JSONL file for the captions, a line for each clip.
        sheets: Folder for the contact sheets (PNG): the frames that were looked at, the caption, and how much each word looked
            at each frame.
        no_sheets: Draw none.
        backbone: Where the frozen backbone lies now, for example hf:FOLDER. Default: where it lay when the captioner was made.
        device: auto, cpu, cuda or cuda:N.
        json: Print one JSON object.
    """
    from albertkit.captioning.captioner import VideoCaptioner
    from albertkit.captioning.predict import predict_captions
    from albertkit.errors import ConfigError
    from albertkit.training.distributed import join_world

    if not videos:
        raise ConfigError("bad-argument", "no video is named", "albertkit caption predict MODEL VIDEO")
    captioner = VideoCaptioner.from_pretrained(model, backbone).to(join_world(device).device)
    report = predict_captions(captioner, videos, out=out, sheets=None if no_sheets else sheets, settings=generation)
    for key, error in report.skipped:
        print(f"skipped: {key}: {error.message}", file=sys.stderr)
    if json:
        skipped = [{"key": key, "slug": error.slug, "reason": error.message} for key, error in report.skipped]
        values = {"clips": [clip.to_dict() for clip in report.clips], "skipped": skipped}
        print(json_module.dumps(values, ensure_ascii=False))
        return
    for clip in report.clips:
        print(clip.key)
        for caption in clip.captions:
            print(f"  {caption.score:8.3f}  {caption.text}")
        for line in (*clip.notes, *([f"{clip.sheet}"] if clip.sheet else [])):
            print(f"            {line}")


def evaluate(
    model: str,
    data: Path,
    *,
    split: str = "test",
    out: Path | None = None,
    backbone: str | None = None,
    device: str = "auto",
    json: bool = False,
    generation: Annotated[
        GenerationSettings | None, Parameter(name="*", group="Generation", negative_bool="no-")
    ] = None,
) -> None:
    """Caption prepared clips and score the captions: BLEU, ROUGE-L, CIDEr-D, exact match.

    Args:
        model: Captioner: a folder that `albertkit caption train` wrote, or `org/name` of the hub.
        data: Folder that `albertkit caption prepare` wrote.
        split: Which clips.
        out: A JSONL file for the captions, a line for each clip.
        backbone: Where the frozen backbone lies now, for example hf:FOLDER. Default: where it lay when the captioner was made.
        device: auto, cpu, cuda or cuda:N.
        json: Print one JSON object.
    """
    from albertkit.captioning.captioner import VideoCaptioner
    from albertkit.captioning.evaluate import evaluate_captioner
    from albertkit.cli.printing import print_result
    from albertkit.training.distributed import join_world

    captioner = VideoCaptioner.from_pretrained(model, backbone).to(join_world(device).device)
    result = evaluate_captioner(captioner, data, split, out=out, settings=generation)
    print_result(result.to_dict(), json)
