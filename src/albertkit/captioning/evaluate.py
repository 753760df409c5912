"""Evaluate a captioner on prepared clips with references."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from albertkit.captioning.captioner import VideoCaptioner, open_captioner
from albertkit.captioning.metrics import CaptionScores, score_captions
from albertkit.captioning.options import EvaluateCaptionerOptions
from albertkit.captioning.prepared import PreparedClips, stack_visual
from albertkit.captioning.settings import GenerationSettings
from albertkit.command import takes
from albertkit.errors import CheckpointError, DataError
from albertkit.files import check_new_file, write_lines
from albertkit.output.sections import FactList, Result, Section
from albertkit.training.processes import World

# Of features: 784 tokens of 1,024 numbers, as Swin-B gives them, are 51 MB for 32 clips.
CLIPS_PER_BATCH = 32


class CaptionEvaluator:
    """Captions and scores the clips of a split, whose captions are the references."""

    def __init__(
        self,
        clips: PreparedClips,
        split: str,
        settings: GenerationSettings,
        world: World | None = None,
    ) -> None:
        self.clips = clips
        self.split = split
        self.settings = settings
        self.world = world
        self.references = {clip.key: clip.captions for clip in clips.clips(split)}
        bare_keys = [key for key, captions in self.references.items() if not captions]
        if bare_keys:
            raise DataError(
                "bad-label",
                f"the clip `{bare_keys[0]}` of {split} in `{clips.folder}` has no caption to compare with",
                f"add captions to it, or leave it out of {split}, and prepare again",
            )

    @torch.inference_mode()
    def best_captions(self, captioner: VideoCaptioner) -> dict[str, str]:
        """Return the best caption of each clip by its key; several processes share the work and all get the whole."""
        clips = self.clips
        split = self.split
        world = self.world
        rank, size = (world.rank, world.size) if world else (0, 1)
        count = len(clips.clips(split))
        texts: dict[int, str] = {}
        for start in range(0, count, CLIPS_PER_BATCH)[rank::size]:
            numbers = range(start, min(start + CLIPS_PER_BATCH, count))
            visual, mask = stack_visual([clips.visual(split, number) for number in numbers])
            grids = None
            if clips.kind == "features":
                grids = [clips.grid_of(split, number) for number in numbers]
            context = captioner.context(visual, mask, grids)
            captions_per_clip = captioner.describe(context, self.settings)
            for number, captions in zip(numbers, captions_per_clip, strict=True):
                texts[number] = captions[0].text
        if world:
            texts = {number: text for part in world.gather(texts) for number, text in part.items()}
        return dict(zip(self.references, [texts[n] for n in range(count)], strict=True))

    def scores(self, captioner: VideoCaptioner) -> dict[str, float]:
        """Return the scores of `score_caption_mappings`."""
        return score_caption_mappings(self.references, self.best_captions(captioner))[0]


def score_caption_mappings(
    references: Mapping[str, Any], captions: Mapping[str, str]
) -> tuple[dict[str, float], CaptionScores]:
    """Return scores by the names of `CaptionSettings.metric`, and all there are.

    `exact_match` is the share of captions that are one of their references, letter for letter but
    for case and outer blanks.
    """
    full = score_captions(references, captions)
    exact = 0
    for key, caption in captions.items():
        exact += caption.strip().lower() in {
            reference.strip().lower() for reference in references[key]
        }
    scores = {
        "cider": full["CIDEr"],
        "bleu_4": full["Bleu_4"],
        "rouge_l": full["ROUGE_L"],
        "exact_match": exact / len(captions),
        **full.diversity,
    }
    return scores, full


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
        return [FactList(self.to_dict())]

    def to_dict(self) -> dict[str, Any]:
        """Return the number of clips and the scores."""
        return {"clips": self.clips, **self.scores}


@takes(EvaluateCaptionerOptions)
def evaluate_captioner(options: EvaluateCaptionerOptions) -> CaptionEvaluation:
    """Caption the clips of a split and score the captions."""
    split = options.split
    out = options.out
    if out is not None:
        check_new_file(out)
    captioner = open_captioner(options.model, options.backbone, options.device)
    clips = PreparedClips.open(options.data)
    check_clips_match_captioner(captioner, clips)
    evaluator = CaptionEvaluator(clips, split, options.generation or captioner.generation)
    captions = evaluator.best_captions(captioner)
    if out is not None:
        write_lines(out, ({"key": key, "caption": text} for key, text in captions.items()))
    scores, full = score_caption_mappings(evaluator.references, captions)
    bleu = {
        name.lower(): value
        for name, value in full.items()
        if name.startswith("Bleu") and name != "Bleu_4"
    }
    return CaptionEvaluation({**scores, **bleu}, captions, len(captions))


def check_clips_match_captioner(captioner: VideoCaptioner, clips: PreparedClips) -> None:
    """Make sure that clips were prepared as a captioner was trained: backbone, frames, sampling."""
    backbone = captioner.backbone
    pairs: dict[str, tuple[Any, Any]] = {"sampling": (captioner.sampling, clips.sampling)}
    if backbone is None or clips.backbone == "features":
        pairs["backbone"] = ("features" if backbone is None else backbone.name, clips.backbone)
    # Frames are any backbone's.
    elif clips.kind == "features" and backbone.fingerprint() != clips.backbone_fingerprint:
        if backbone.name == clips.backbone:
            pairs["weights of the backbone"] = (
                backbone.fingerprint()[:12],
                str(clips.backbone_fingerprint)[:12],
            )
        else:
            pairs["backbone"] = (backbone.name, clips.backbone)
    # Of frames the captioner makes its own
    if clips.kind == "features" and None not in (captioner.grid, clips.grid):
        grids = [" x ".join(map(str, grid)) for grid in (captioner.grid, clips.grid) if grid]
        pairs["visual tokens"] = (grids[0], grids[1])
    differing = [
        f"{name} {expected}, not {actual}"
        for name, (expected, actual) in pairs.items()
        if expected != actual
    ]
    if differing:
        raise CheckpointError(
            "changed",
            f"the captioner was trained with {'; '.join(differing)} as the clips in `{clips.folder}`",
            "prepare the clips as those that it was trained on",
        )
