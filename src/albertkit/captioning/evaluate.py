"""How good a captioner is on prepared clips with references."""

import json
from dataclasses import dataclass
from typing import Any

from albertkit.captioning.captioner import VideoCaptioner, open_captioner
from albertkit.captioning.data import PreparedClips
from albertkit.captioning.options import EvaluateCaptionerOptions
from albertkit.captioning.training.dev import caption_clips, caption_scores, references_of
from albertkit.errors import CheckpointError
from albertkit.files import atomic_file, check_new_file
from albertkit.frame.command import takes
from albertkit.frame.result import Result
from albertkit.frame.section import Facts, Section


@dataclass(frozen=True)
class CaptionEvaluation(Result):
    """Scores of a captioner on the clips of a split.

    Attributes:
        scores: By name.
        captions: Key of a clip to its caption.
        clips: Number of clips.
    """

    scores: dict[str, float]
    captions: dict[str, str]
    clips: int

    def sections(self) -> list[Section]:
        """Return the number of clips and the scores."""
        return [Facts(self.to_dict())]

    def to_dict(self) -> dict[str, Any]:
        """Return the number of clips and the scores."""
        return {"clips": self.clips, **self.scores}


@takes(EvaluateCaptionerOptions)
def evaluate_captioner(options: EvaluateCaptionerOptions) -> CaptionEvaluation:
    """Caption the clips of a split and score the captions."""
    split, out = options.split, options.out
    if out is not None:
        check_new_file(out)
    captioner = open_captioner(options.model, options.backbone, options.device)
    clips = PreparedClips.open(options.data)
    check_fits(captioner, clips)
    references = references_of(clips, split)
    captioner.model.eval()
    found = caption_clips(captioner, clips, split, options.generation or captioner.generation)
    captions = {key: of_clip[0].text for key, of_clip in zip(references, found, strict=True)}
    if out is not None:
        with atomic_file(out, "w") as stream:
            for key, text in captions.items():
                stream.write(json.dumps({"key": key, "caption": text}, ensure_ascii=False) + "\n")
    scores, full = caption_scores(references, captions)
    bleu = {name.lower(): value for name, value in full.items() if name.startswith("Bleu") and name != "Bleu_4"}
    return CaptionEvaluation({**scores, **bleu}, captions, len(captions))


def check_fits(captioner: VideoCaptioner, clips: PreparedClips) -> None:
    """Make sure that clips were prepared as a captioner was trained: backbone, frames, sampling."""
    backbone = captioner.backbone
    pairs: dict[str, tuple[Any, Any]] = {"sampling": (captioner.sampling, clips.sampling)}
    if backbone is None or clips.backbone == "features":
        pairs["backbone"] = ("features" if backbone is None else backbone.name, clips.backbone)
    elif clips.kind == "features" and backbone.fingerprint() != clips.backbone_fingerprint:  # frames are any backbone's
        prints = (backbone.fingerprint()[:12], str(clips.backbone_fingerprint)[:12])
        same = backbone.name == clips.backbone
        pairs["weights of the backbone" if same else "backbone"] = prints if same else (backbone.name, clips.backbone)
    if clips.kind == "features" and None not in (captioner.grid, clips.grid):  # of frames the captioner makes its own
        grids = [" x ".join(map(str, grid)) for grid in (captioner.grid, clips.grid) if grid]
        pairs["visual tokens"] = (grids[0], grids[1])
    differing = [f"{name} {own}, not {theirs}" for name, (own, theirs) in pairs.items() if own != theirs]
    if differing:
        raise CheckpointError(
            "changed",
            f"the captioner was trained with {'; '.join(differing)} as the clips in `{clips.folder}`",
            "prepare the clips as those that it was trained on",
        )
