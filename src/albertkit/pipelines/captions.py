"""Caption files of video. Clips are no sequences and share no batch with others."""

import base64
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from albertkit.captioning.captioner import ScoredCaption, VideoCaptioner
from albertkit.captioning.predict import sheet_png
from albertkit.captioning.settings import GenerationSettings
from albertkit.captioning.video import sample_frames
from albertkit.pipelines.pipeline import check_options


class CaptionPipeline:
    """Caption videos with any captioner that has a backbone."""

    kind = "caption"
    options = tuple(field.name for field in fields(GenerationSettings))
    example = "clip.mp4"

    def __init__(self, captioner: VideoCaptioner) -> None:
        captioner.require_backbone()  # refuses one that cannot see
        self.captioner = captioner
        self.precision = "fp32"
        self.notes = ()

    def __call__(
        self, videos: str | Path | Sequence[str | Path], sheet: bool = False, **options: Any
    ) -> Any:
        """Return `captions` of each video, the best first: `text`, `score`, `log_probability`.

        Args:
            videos: One file or a list.
            sheet: Return the contact sheet, too, as `sheet`: a PNG in base64, "" where there is no
                caption.
            **options: Settings of generation, for example `num_captions=3`.
        """
        check_options(self.kind, options, self.options)
        captioner = self.captioner
        records = []
        if sheet:  # which is drawn of the frames that the captioner saw
            _, sampling = captioner.require_backbone()
            for file in [videos] if isinstance(videos, str | Path) else videos:
                frames = sample_frames(file, sampling)
                context = captioner.context(torch.from_numpy(frames.pixels[None]))
                captions = captioner.describe(context, replace(captioner.generation, **options))[0]
                png = sheet_png(frames, captions[0]) if captions else b""
                encoded = base64.b64encode(png).decode("ascii")
                records.append({**_captions_record(captions), "sheet": encoded})
        else:
            records += map(_captions_record, captioner.caption(videos, **options))
        return records[0] if isinstance(videos, str | Path) else records


def _captions_record(captions: Sequence[ScoredCaption]) -> dict[str, Any]:
    return {
        "captions": [
            {"text": c.text, "score": c.score, "log_probability": c.log_probability}
            for c in captions
        ]
    }
