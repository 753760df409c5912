"""The model card of a captioner: how to use it, what it learned, how well."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from albertkit.captioning.captioner import VideoCaptioner
from albertkit.captioning.training.settings import CaptionSettings
from albertkit.frame.card import Card, code, literal, settings_sections, versions
from albertkit.frame.rendering import cell
from albertkit.frame.section import Section, Table, Text
from albertkit.training.results import score_table

REPORTED = ("objective", "video_attention", "length", "steps", "batch_size", "lr", "warmup", "weight_decay", "seed")
CAPTIONS = ("caption", "references")


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
        captioner: The captioner in it.
        settings: Of the run.
        start: The ALBERT that it was trained from.
        scores: On dev.
        examples: Captions of dev clips with their references.
    """
    sampling, backbone = captioner.sampling, captioner.backbone
    frames = f", {sampling.num_frames} frames of {sampling.size} pixels" if sampling else ""
    source = "features computed elsewhere" if backbone is None else f"the backbone `{cell(backbone.name)}`"
    place = literal(f"{name}/{Path(folder).name}")
    sections: list[Section] = [
        Text(
            f"Captions of videos by ALBERT: {captioner.model.num_parameters():,} parameters, and {source}{frames}.\n"
            f"Trained with albertkit from `{cell(start)}`.",
            form="markdown",
        ),
        code(
            "from albertkit import VideoCaptioner\n"
            f"captioner = VideoCaptioner.from_pretrained({place})\n"
            'print(captioner.caption("clip.mp4")[0][0].text)',
            title="Using it",
        ),
        Text("On the dev clips, which also chose the best of the run's models.", "Results"),
        score_table(scores, {}),
        Table(CAPTIONS, [[example["caption"], example["references"][0]] for example in examples[:5]]),
        *settings_sections({key: getattr(settings, key) for key in REPORTED}, versions()),
    ]
    fields = {
        "library_name": "albertkit",
        "pipeline_tag": "video-text-to-text",
        "tags": ["albert", "video-captioning", "albertkit"],
    }
    return Card(name, fields, sections).write(folder)
