"""Captions of dev clips while a captioner is trained, and how good they are."""

from collections.abc import Mapping
from typing import Any

import torch

from albertkit.captioning.captioner import Caption, VideoCaptioner
from albertkit.captioning.data import PreparedClips
from albertkit.captioning.generation import GenerationSettings
from albertkit.captioning.metrics import CaptionScores, score_captions
from albertkit.captioning.training.objective import stack_visual
from albertkit.errors import DataError
from albertkit.training.distributed import World

CLIPS_AT_ONCE = 32


@torch.inference_mode()
def caption_clips(
    captioner: VideoCaptioner,
    clips: PreparedClips,
    split: str,
    settings: GenerationSettings,
    world: World | None = None,
) -> list[list[Caption]]:
    """Return captions of all clips of a split, in their order; several processes share the work and all get the whole."""
    rank, size = (world.rank, world.size) if world else (0, 1)
    count = len(clips.clips(split))
    starts = range(0, count, CLIPS_AT_ONCE)
    own: dict[int, list[list[Caption]]] = {}
    for start in starts[rank::size]:
        numbers = range(start, min(start + CLIPS_AT_ONCE, count))
        visual, mask = stack_visual([clips.visual(split, number) for number in numbers])
        grids = None if clips.kind == "frames" else [clips.grid_of(split, number) for number in numbers]
        own[start] = captioner.describe(captioner.context(visual, mask, grids), settings)
    if world:
        own = {start: captions for part in world.gather(own) for start, captions in part.items()}
    return [caption for start in starts for caption in own[start]]


def references_of(clips: PreparedClips, split: str) -> dict[str, tuple[str, ...]]:
    """Key of each clip to its captions, which others are compared with."""
    found = {clip.key: clip.captions for clip in clips.clips(split)}
    if bare := [key for key, captions in found.items() if not captions]:
        raise DataError(
            "bad-label",
            f"the clip `{bare[0]}` of {split} in `{clips.folder}` has no caption to compare with",
            f"add captions to it, or leave it out of {split}, and prepare again",
        )
    return found


class CaptionEvaluator:
    """Scores captioners on the clips of a split, whose captions are the references."""

    def __init__(self, clips: PreparedClips, split: str, settings: GenerationSettings, world: World) -> None:
        self.clips, self.split, self.settings, self.world = clips, split, settings, world
        self.references = references_of(clips, split)

    def captions(self, captioner: VideoCaptioner) -> dict[str, Caption]:
        """Return the best caption of each clip."""
        found = caption_clips(captioner, self.clips, self.split, self.settings, self.world)
        return {key: captions[0] for key, captions in zip(self.references, found, strict=True)}

    def scores(self, captioner: VideoCaptioner) -> dict[str, float]:
        """Return the scores of `caption_scores`."""
        return caption_scores(self.references, {key: one.text for key, one in self.captions(captioner).items()})[0]


def caption_scores(
    references: Mapping[str, Any], captions: Mapping[str, str]
) -> tuple[dict[str, float], CaptionScores]:
    """Scores by the names of `CaptionSettings.metric`, and all there is.

    `exact_match` is the share of captions that are one of their references, letter for letter but for case and outer blanks.
    """
    full = score_captions(references, captions)
    exact = sum(
        caption.strip().lower() in {reference.strip().lower() for reference in references[key]}
        for key, caption in captions.items()
    )
    named = {
        "cider": full["CIDEr"],
        "bleu_4": full["Bleu_4"],
        "rouge_l": full["ROUGE_L"],
        "exact_match": exact / len(captions),
        **full.diversity,
    }
    return named, full
