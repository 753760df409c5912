"""Caption files of video. Clips are no sequences and share no batch with others."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from albertkit.captioning.captioner import VideoCaptioner
from albertkit.captioning.generation import GenerationSettings
from albertkit.inference.pipeline import check_options


class CaptionPipeline:
    """Caption videos with any captioner that has a backbone."""

    kind = "caption"
    options = tuple(field.name for field in fields(GenerationSettings))
    example = "clip.mp4"

    def __init__(self, captioner: VideoCaptioner) -> None:
        captioner.require_backbone()  # refuses one that cannot see
        self.captioner = captioner
        self.precision, self.notes = "fp32", ()

    def __call__(self, videos: str | Path | Sequence[str | Path], **options: Any) -> Any:
        """Return `captions` of each video, the best first: `text`, `score`, `log_probability`.

        Args:
            videos: One file or a list.
            **options: Settings of generation, for example `num_captions=3`.
        """
        check_options(self.kind, options, self.options)
        found = [
            {"captions": [{"text": c.text, "score": c.score, "log_probability": c.log_probability} for c in captions]}
            for captions in self.captioner.caption(videos, **options)
        ]
        return found[0] if isinstance(videos, str | Path) else found
