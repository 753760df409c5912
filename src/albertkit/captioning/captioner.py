"""`VideoCaptioner`: a backbone, ALBERT and a tokenizer, from files of video to captions."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from albertkit.captioning.backbone import Backbone, TokenGrid, pool_grid
from albertkit.captioning.backbones import load_backbone
from albertkit.captioning.generate import generate
from albertkit.captioning.layers import Context
from albertkit.captioning.model import AlbertForImageCaptioning
from albertkit.captioning.settings import CaptionIds, GenerationSettings
from albertkit.captioning.video import FrameSampling, sample_frames
from albertkit.conversion.classes import read_model_tokenizer
from albertkit.errors import AlbertKitError, CheckpointError, ConfigError
from albertkit.files import check_regular_file, read_typed, write_json
from albertkit.model.files import write_tensors
from albertkit.model_paths import CAPTIONER_FILE, local_folder
from albertkit.tokenizer import AlbertTokenizer
from albertkit.training.processes import join_world

BACKBONE_WEIGHTS = "backbone.safetensors"


@dataclass
class _SavedBackbone:
    """A backbone of `captioner.json`; without a fingerprint its weights lie in the folder."""

    name: str
    settings: dict[str, Any]
    fingerprint: str | None
    from_here: str | None = None


@dataclass
class _CaptionerFile:
    """`captioner.json`."""

    format: Literal[1]
    backbone: _SavedBackbone | None
    sampling: FrameSampling | None
    grid: TokenGrid | None
    generation: GenerationSettings = field(default_factory=GenerationSettings)


def _read_captioner_file(folder: Path) -> _CaptionerFile:
    return read_typed(folder / CAPTIONER_FILE, _CaptionerFile, "captioner", "copy the folder again")


def load_saved_backbone(folder: Path) -> Backbone | None:
    """Return the backbone whose weights a captioner's folder holds; None for any other folder."""
    if not (folder / CAPTIONER_FILE).exists() or not (folder / BACKBONE_WEIGHTS).exists():
        return None
    saved = _read_captioner_file(folder).backbone
    return None if saved is None or saved.fingerprint else _load_backbone(folder, saved, None)


def _load_backbone(path: Path, saved: _SavedBackbone, elsewhere: str | None) -> Backbone:
    """Load the backbone with the weights in the folder; or a frozen one from where it lies, or from `elsewhere`."""
    if saved.fingerprint is not None:
        name = elsewhere or saved.name
        kind, _, location = saved.name.partition(":")
        relative_location = path / (saved.from_here or location)
        if (
            not elsewhere
            and location
            and not Path(location).exists()
            and relative_location.exists()
        ):
            # Captioner and backbone were moved together
            name = f"{kind}:{relative_location.resolve()}"
        return reload_backbone(
            name, saved.settings, saved.fingerprint, f"the captioner in `{path}`"
        ).eval()
    if elsewhere is not None:
        raise ConfigError(
            "bad-value",
            f"the captioner in `{path}` keeps the weights of its backbone `{saved.name}` itself",
            "leave --backbone out",
        )
    try:
        weights = load_file(check_regular_file(path / BACKBONE_WEIGHTS))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            "corrupt", f"`{path / BACKBONE_WEIGHTS}`: {error}", "copy the whole captioner again"
        ) from None
    backbone = load_backbone(saved.name, saved.settings, weights)
    backbone.saves_weights = True
    return backbone.eval()


def reload_backbone(
    name: str,
    settings: dict[str, Any],
    fingerprint: str | None,
    user: str,
) -> Backbone:
    """Load the frozen backbone that a captioner or clips were made with, from where it lies now."""
    try:
        backbone = load_backbone(name, settings)
    except AlbertKitError as error:
        # Anything else is wrong with the backbone itself, wherever it lies.
        if error.slug not in ("not-found", "unreachable"):
            raise
        raise CheckpointError(
            "not-found",
            f"{user} needs its backbone `{name}`, which cannot be loaded: {error.message}",
            f"say where it lies now: --backbone {name.partition(':')[0]}:PLACE",
        ) from None
    if fingerprint not in (None, backbone.fingerprint()):
        raise CheckpointError(
            "changed",
            f"`{name}` has other weights than {user} was made with",
            "put the weights back that it had, name their place with --backbone, or train the captioner on these",
        )
    return backbone


# Clips of 32 frames of 224 pixels: 8 of them are 39 MB, and 154 MB as the numbers of a backbone.
_CLIPS_PER_BATCH = 8


@dataclass(frozen=True)
class ScoredCaption:
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
        grid: TokenGrid | None = None,
        generation: GenerationSettings | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.backbone = backbone
        self.sampling = sampling
        self.grid = grid
        self.generation = generation or GenerationSettings(
            max_length=min(GenerationSettings().longest, model.config.max_position_embeddings)
        )

    @classmethod
    def from_pretrained(cls, folder: str | Path, backbone: str | None = None) -> Self:
        """Load a folder that `save_pretrained` or `caption train` wrote; a run means its `best`.

        Args:
            folder: The folder, or `org/name` of the hub.
            backbone: Where a frozen backbone lies now, for example `hf:FOLDER`. Default: where it
                lay before.

        Raises:
            CheckpointError: wrong-model, not-found, changed, and what loading a checkpoint and a
                backbone raises.
        """
        path = local_folder(folder)
        if not (path / CAPTIONER_FILE).exists():
            raise CheckpointError(
                "wrong-model",
                f"there is no {CAPTIONER_FILE} in `{path}`",
                "name a folder that `albertkit caption train` wrote",
            )
        saved = _read_captioner_file(path)
        if backbone is not None and saved.backbone is None:
            raise ConfigError(
                "bad-value",
                f"the captioner in `{path}` has no backbone whose place could be named",
                "leave --backbone out",
            )
        loaded_backbone = (
            None if saved.backbone is None else _load_backbone(path, saved.backbone, backbone)
        )
        model = AlbertForImageCaptioning.from_pretrained(path, strict=True)
        tokenizer = read_model_tokenizer(path, model.config)
        return cls(model, tokenizer, loaded_backbone, saved.sampling, saved.grid, saved.generation)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write model, tokenizer, how frames are sampled, and the weights of a backbone that was trained along."""
        path = Path(folder)
        backbone = self.backbone
        self.model.save_pretrained(path, self.tokenizer)
        saved = _CaptionerFile(1, None, self.sampling, self.grid)
        if backbone is not None:
            own_weights = backbone.saves_weights or any(
                p.requires_grad for p in backbone.parameters()
            )
            if own_weights:
                tensors = {
                    name: t.detach().cpu().contiguous() for name, t in backbone.state_dict().items()
                }
                write_tensors(path / BACKBONE_WEIGHTS, tensors)
            # Of a frozen one the weights stay where they are; that they are the same is checked
            # when it is loaded.
            fingerprint = None if own_weights else backbone.fingerprint()
            saved.backbone = _SavedBackbone(backbone.name, backbone.settings(), fingerprint)
            backbone_path = Path(backbone.name.partition(":")[2])
            # Both may be moved together
            if fingerprint is not None and backbone_path.is_absolute():
                saved.backbone.from_here = os.path.relpath(backbone_path, path.resolve())
        values = asdict(saved) | {"generation": self.generation.to_dict()}
        if values["backbone"] and values["backbone"]["from_here"] is None:
            del values["backbone"]["from_here"]
        write_json(path / CAPTIONER_FILE, values)  # last: a folder that has it is whole

    def to(self, device: str | torch.device) -> Self:
        """Move model and backbone to a device."""
        self.model.to(device)
        if self.backbone is not None:
            self.backbone.to(device)
        return self

    def require_backbone(self) -> tuple[Backbone, FrameSampling]:
        """Return the backbone and its frame sampling, which captions of videos need.

        Raises:
            ConfigError: wrong-model.
        """
        if self.backbone is None or self.sampling is None:
            raise ConfigError(
                "wrong-model",
                "this captioner was trained on features of another backbone",
                "prepare features of the clips with that backbone, and caption the prepared folder",
            )
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
    def context(
        self,
        visual: Tensor,
        mask: Tensor | None = None,
        grid: TokenGrid | Sequence[TokenGrid] | None = None,
    ) -> Context:
        """Return what the model reads a caption against, from frames uint8 [B, T, S, S, 3] or visual tokens [B, M, D].

        Args:
            visual: Frames or tokens.
            mask: bool [B, M], False at padding.
            grid: How tokens lie. Default: as the model's, with as many frames as there are.
        """
        self.model.eval()
        if visual.dim() == 5:
            visual = self.visual_tokens(visual)
        visual = visual.to(self.model.device)
        # With a mask each clip may have another grid, which only the caller knows.
        if grid is None and self.grid is not None and mask is None:
            grid = self.grid._replace(
                frames=visual.shape[1] // (self.grid.height * self.grid.width)
            )
        mask = None if mask is None else mask.to(self.model.device)
        return self.model.albert.encode_context(self.model.albert.project(visual, grid), mask)

    def describe(
        self,
        context: Context,
        settings: GenerationSettings | None = None,
    ) -> list[list[ScoredCaption]]:
        """Return captions of the clips of a context, the best first.

        Args:
            context: Of B clips.
            settings: Default: the captioner's own.
        """
        tokenizer = self.tokenizer
        settings = settings or self.generation
        if settings.max_length is None:
            settings = replace(settings, max_length=self.generation.longest)
        self.model.eval()
        # Of a word of several tokens the last is what a caption must not end in.
        last_tokens = {tokenizer.encode(word)[-1] for word in settings.bad_endings if word}
        bad_endings = torch.tensor(sorted(last_tokens), dtype=torch.int64, device=self.model.device)
        special_ids = CaptionIds(
            tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id, tokenizer.pad_id
        )
        generated = generate(self.model, context, settings, special_ids, bad_endings)
        captions: list[list[ScoredCaption]] = []
        columns = (
            generated.ids.tolist(),
            generated.scores.tolist(),
            generated.log_probabilities.tolist(),
        )
        for rows in zip(*columns, strict=True):
            captions.append([])
            for ids, score, total in zip(*rows, strict=True):
                if score > -np.inf:  # a search may find fewer than were asked for
                    tokens = ids[1 : ids.index(tokenizer.sep_id)]
                    text = tokenizer.decode(tokens, skip_special_tokens=True).strip()
                    captions[-1].append(ScoredCaption(text, score, total, tuple(tokens)))
        return captions

    def caption(
        self,
        videos: str | Path | Sequence[str | Path],
        settings: GenerationSettings | None = None,
        **changes: Any,
    ) -> list[list[ScoredCaption]]:
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
        captions: list[list[ScoredCaption]] = []
        for start in range(0, len(files), _CLIPS_PER_BATCH):
            pixels = [
                sample_frames(file, sampling).pixels
                for file in files[start : start + _CLIPS_PER_BATCH]
            ]
            captions += self.describe(self.context(torch.from_numpy(np.stack(pixels))), settings)
        return captions


def open_captioner(model: Any, backbone: str | None, device: str) -> VideoCaptioner:
    """Return a captioner as it is, or load it from a folder onto a device."""
    if isinstance(model, VideoCaptioner):
        return model
    return VideoCaptioner.from_pretrained(model, backbone).to(join_world(device).device)
