"""`VideoCaptioner`: a backbone, ALBERT and a tokenizer, from files of video to captions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from albertkit.captioning.backbones.backbone import Backbone, Grid, pool_grid
from albertkit.captioning.folder import CaptionerParts, load_captioner, save_captioner
from albertkit.captioning.generation import CaptionIds, GenerationSettings, generate
from albertkit.captioning.model import AlbertForImageCaptioning, Context
from albertkit.captioning.video import FrameSampling, sample_frames
from albertkit.errors import ConfigError
from albertkit.tokenizer import AlbertTokenizer
from albertkit.training.distributed import join_world

_CLIPS_AT_ONCE = 8


@dataclass(frozen=True)
class Caption:
    """A caption of a clip, with its score.

    Attributes:
        text: In words.
        score: Log-probability over length to the power of the length penalty.
        log_probability: Natural logarithm, of the whole caption with its end.
        ids: Its tokens, without [CLS] and [SEP].
    """

    text: str
    score: float
    log_probability: float
    ids: tuple[int, ...]


class VideoCaptioner:
    """Puts videos into words.

    Args:
        model: The captioning model.
        tokenizer: Of its vocabulary.
        backbone: Makes the visual tokens; None where they are computed elsewhere.
        sampling: Which frames the backbone sees; None without one.
        grid: Of the visual tokens as the model reads them; None where each clip has its own.
        generation: How captions are generated if nothing else is said.
    """

    def __init__(
        self,
        model: AlbertForImageCaptioning,
        tokenizer: AlbertTokenizer,
        backbone: Backbone | None = None,
        sampling: FrameSampling | None = None,
        grid: Grid | None = None,
        generation: GenerationSettings | None = None,
    ) -> None:
        self.model, self.tokenizer, self.backbone = model, tokenizer, backbone
        self.sampling, self.grid = sampling, grid
        self.generation = generation or GenerationSettings(
            max_length=min(GenerationSettings().longest, model.config.max_position_embeddings)
        )

    @classmethod
    def from_pretrained(cls, folder: str | Path, backbone: str | None = None) -> Self:
        """Load a folder that `save_pretrained` or `caption train` wrote; a run means its `best`.

        Args:
            folder: The folder, or `org/name` of the hub.
            backbone: Where a frozen backbone lies now, for example `hf:FOLDER`. Default: where it lay before.

        Raises:
            CheckpointError: wrong-model, not-found, changed, and what loading a checkpoint and a backbone raises.
        """
        return cls(*load_captioner(folder, backbone))

    def save_pretrained(self, folder: str | Path) -> None:
        """Write model, tokenizer, how frames are sampled, and the weights of a backbone that was trained along."""
        parts = CaptionerParts(self.model, self.tokenizer, self.backbone, self.sampling, self.grid, self.generation)
        save_captioner(folder, parts)

    def to(self, device: str | torch.device) -> Self:
        """Move model and backbone to a device."""
        self.model.to(device)
        if self.backbone is not None:
            self.backbone.to(device)
        return self

    @property
    def caption_ids(self) -> CaptionIds:
        """Return the special tokens that generation knows."""
        tokenizer = self.tokenizer
        return CaptionIds(tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id, tokenizer.pad_id)

    def require_backbone(self) -> tuple[Backbone, FrameSampling]:
        """Return the backbone and its frame sampling, which captions of videos need.

        Raises:
            ConfigError: wrong-model.
        """
        if self.backbone is None or self.sampling is None:
            fact = "this captioner was trained on features of another backbone"
            hint = "prepare features of the clips with that backbone, and caption the prepared folder"
            raise ConfigError("wrong-model", fact, hint)
        return self.backbone, self.sampling

    def visual_tokens(self, frames: Tensor) -> Tensor:
        """Turn frames uint8 [B, T, S, S, 3] into visual tokens [B, M, D], pooled to the model's grid."""
        backbone, _ = self.require_backbone()
        tokens = backbone(frames.to(self.model.device))
        grid = backbone.grid(frames.shape[1], frames.shape[2])
        if self.grid is None or grid[1:] == self.grid[1:]:
            return tokens
        return pool_grid(tokens, grid, grid.frames * self.grid.height * self.grid.width)[0]

    @torch.inference_mode()
    def context(self, visual: Tensor, mask: Tensor | None = None, grid: Grid | Sequence[Grid] | None = None) -> Context:
        """Return what the model reads a caption against, from frames uint8 [B, T, S, S, 3] or visual tokens [B, M, D].

        Args:
            visual: Frames or tokens.
            mask: bool [B, M], False at padding.
            grid: How tokens lie. Default: as the model's, with as many frames as there are.
        """
        if visual.dim() == 5:
            visual = self.visual_tokens(visual)
        visual = visual.to(self.model.device)
        if grid is None and self.grid is not None and mask is None:
            grid = self.grid._replace(frames=visual.shape[1] // (self.grid.height * self.grid.width))
        mask = None if mask is None else mask.to(self.model.device)
        return self.model.albert.encode_context(self.model.albert.project(visual, grid), mask)

    def describe(self, context: Context, settings: GenerationSettings | None = None) -> list[list[Caption]]:
        """Return captions of the clips of a context, the best first.

        Args:
            context: Of B clips.
            settings: Default: the captioner's own.
        """
        settings = settings or self.generation
        if settings.max_length is None:
            settings = replace(settings, max_length=self.generation.longest)
        self.model.eval()
        bad = torch.tensor(self._last_tokens(settings.bad_endings), dtype=torch.int64, device=self.model.device)
        found = generate(self.model, context, settings, self.caption_ids, bad)
        return [
            [
                self._caption(ids, score, total)
                for ids, score, total in zip(*rows, strict=True)
                if score > -np.inf  # a search may find fewer than were asked for
            ]
            for rows in zip(found.ids.tolist(), found.scores.tolist(), found.log_probabilities.tolist(), strict=True)
        ]

    def caption(
        self,
        videos: str | Path | Sequence[str | Path],
        settings: GenerationSettings | None = None,
        **changes: Any,
    ) -> list[list[Caption]]:
        """Return captions of files of video.

        Args:
            videos: One file or several.
            settings: Default: the captioner's own.
            **changes: Settings of generation to set otherwise, for example `num_captions=3`.

        Returns:
            For each video its captions, the best first.

        Raises:
            DataError: bad-file and what else `sample_frames` raises.
            ConfigError: wrong-model, bad-value.
        """
        _, sampling = self.require_backbone()
        settings = replace(settings or self.generation, **changes)
        files = [videos] if isinstance(videos, str | Path) else list(videos)
        captions: list[list[Caption]] = []
        for start in range(0, len(files), _CLIPS_AT_ONCE):
            pixels = [sample_frames(file, sampling).pixels for file in files[start : start + _CLIPS_AT_ONCE]]
            captions += self.describe(self.context(torch.from_numpy(np.stack(pixels))), settings)
        return captions

    def _caption(self, ids: list[int], score: float, total: float) -> Caption:
        tokens = ids[1 : ids.index(self.tokenizer.sep_id)]
        return Caption(self.tokenizer.decode(tokens, skip_special_tokens=True).strip(), score, total, tuple(tokens))

    def _last_tokens(self, words: Sequence[str]) -> list[int]:
        return sorted({self.tokenizer.encode(word)[-1] for word in words if word})


def open_captioner(model: Any, backbone: str | None, device: str) -> VideoCaptioner:
    """Return a captioner as it is, or load it from a folder onto a device."""
    if isinstance(model, VideoCaptioner):
        return model
    return VideoCaptioner.from_pretrained(model, backbone).to(join_world(device).device)
