"""The model card of a captioner: how to use it, what it learned, how well."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from albertkit.captioning.captioner import VideoCaptioner
from albertkit.captioning.training.settings import CaptionSettings
from albertkit.files import atomic_file
from albertkit.report.card import cell
from albertkit.report.templates import environment
from albertkit.report.versions import versions


def write_caption_card(
    folder: str | Path,
    name: str,
    captioner: VideoCaptioner,
    settings: CaptionSettings,
    start: str,
    scores: Mapping[str, float],
    examples: Sequence[Mapping[str, Any]],
) -> Path:
    """Write `README.md` into the folder of a captioner.

    Args:
        folder: The folder.
        name: Heading, and the folder that `folder` lies in.
        captioner: That lies there.
        settings: Of the run.
        start: The ALBERT that it was trained from.
        scores: On dev.
        examples: Captions of dev clips with their references.

    Returns:
        The file written.
    """
    telling = ("objective", "video_attention", "length", "steps", "batch_size", "lr", "warmup", "weight_decay", "seed")
    text = environment().get_template("caption_card.md.j2").render(
        name=" ".join(name.split()), place=f"{name}/{Path(folder).name}",
        parameters=captioner.model.num_parameters(),
        backbone="features of somebody else" if captioner.backbone is None else captioner.backbone.name,
        sampling=captioner.sampling, start=start, scores=scores, examples=examples[:5],
        settings={key: getattr(settings, key) for key in telling}, versions=versions(), cell=cell, literal=json.dumps,
    )  # fmt: skip
    path = Path(folder) / "README.md"
    with atomic_file(path, "w") as stream:
        stream.write(text)
    return path
