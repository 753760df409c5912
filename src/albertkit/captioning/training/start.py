"""The captioner that a training begins with: any ALBERT checkpoint, and a fresh visual side."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from albertkit.captioning.backbones.backbone import Backbone, Grid
from albertkit.captioning.captioner import VideoCaptioner
from albertkit.captioning.data import PreparedClips
from albertkit.captioning.folder import find_backbone, kept_backbone
from albertkit.captioning.model import AlbertForImageCaptioning, CaptionConfig
from albertkit.captioning.model.config import Objective, VideoAttention
from albertkit.captioning.training.settings import CaptionSettings
from albertkit.config import AlbertConfig
from albertkit.conversion.own_tokenizer import own_tokenizer
from albertkit.errors import ConfigError
from albertkit.model.folder import read_tensors
from albertkit.model.matching import HEADS
from albertkit.model_folder import local_folder

_PROJECTION, _GATE = "albert.img_embedding.", "albert.video_gate"
_TIMES = f"{_PROJECTION}time_embeddings"


def start_captioner(
    model: str | Path, clips: PreparedClips, settings: CaptionSettings, most_tokens: int, backbone: str | None = None
) -> tuple[VideoCaptioner, list[str]]:
    """Return a captioner for prepared clips."""
    path = local_folder(model)
    before = AlbertConfig.from_pretrained(path)
    before.check_length(settings.length, f"`{model}`")
    tokenizer = own_tokenizer(path, before, model)
    objective, attention, notes = _method(path, before, settings)
    backbone_of_clips = _backbone(path, clips, backbone, notes)
    width = backbone_of_clips.out_dim if backbone_of_clips and clips.kind == "frames" else clips.width
    grid = clips.grid or Grid(most_tokens, 1, 1)
    caption = _caption(before, settings, width, grid, (objective, attention))
    config = caption.put_into(before)
    if settings.dropout is not None:
        config = config.with_changes(
            hidden_dropout_prob=settings.dropout, attention_probs_dropout_prob=settings.dropout
        )
    captioning_model = _model(path, config, grid, notes)
    captioner = VideoCaptioner(captioning_model, tokenizer, backbone_of_clips, clips.sampling, clips.grid)
    return captioner, notes


def _method(path: Path, before: AlbertConfig, settings: CaptionSettings) -> tuple[Objective, VideoAttention, list[str]]:
    """Return objective and attention, those of a captioner unless the settings name others, and what to report."""
    known = CaptionConfig.of(before)
    objective, attention = settings.objective or known.objective, settings.video_attention or known.video_attention
    notes = []
    if "captioning" in before.foreign:
        pairs = {"objective": (known.objective, objective), "video_attention": (known.video_attention, attention)}
        for name, (was, now) in pairs.items():
            other = f" as asked; the captioner in `{path}` was trained with {was}"
            notes.append(f"{name}: {now}" + (f", as the captioner in `{path}` was trained" if was == now else other))
    return objective, attention, notes


def _caption(
    before: AlbertConfig, settings: CaptionSettings, width: int, grid: Grid, method: tuple[Objective, VideoAttention]
) -> CaptionConfig:
    """Return the visual side, loss and method; of a captioner that reads tokens of this width what the settings leave open."""
    known = CaptionConfig.of(before)
    objective, attention = method
    if "captioning" not in before.foreign or known.visual_width != width:
        known = replace(CaptionConfig(img_feature_dim=width), tie_weights=known.tie_weights, grid=grid)
    return replace(
        known,
        grid=None if known.grid is None else grid,  # SwinBERT's have no places
        video_attention=attention,
        num_visual_tokens=grid.num_tokens if attention in ("log", "legacy") else 0,
        objective=objective,
        label_smoothing=settings.label_smoothing,
        drop_worst_ratio=settings.drop_worst_ratio,
        drop_worst_after=settings.drop_worst_after,
    )


def _model(path: Path, config: AlbertConfig, grid: Grid, notes: list[str]) -> AlbertForImageCaptioning:
    wanted = {name: tensor.shape for name, tensor in AlbertForImageCaptioning(config).state_dict().items()}
    tensors, fitted = _for_frames(read_tensors(path), wanted, grid)
    notes += fitted
    for start, what in ((_PROJECTION, "visual side"), (_GATE, "learned gate")):
        own = [name for name in tensors if name.startswith(start)]
        asked = [name for name in wanted if name.startswith(start)]
        fits = own == [name for name in own if wanted.get(name) == tensors[name].shape] and set(own) == set(asked)
        if not fits:
            tensors = {name: tensor for name, tensor in tensors.items() if name not in own}
        if asked:
            notes.append(f"{what}: that of `{path}`" if fits else f"{what}: fresh")
    visual = (_PROJECTION, _GATE)
    allowed = {name for name in wanted if name.startswith((*visual, "albert.pooler.", *HEADS))}
    model, matched = AlbertForImageCaptioning.from_tensors(config, tensors, allowed, str(path))
    if any(name.startswith("predictions.") for name in matched.fresh):
        notes.append(f"prediction head: fresh, `{path}` has none")
    model.albert.pooler.requires_grad_(False)  # no caption goes through it
    return model


def _for_frames(
    tensors: Mapping[str, Tensor], wanted: Mapping[str, torch.Size], grid: Grid
) -> tuple[dict[str, Tensor], list[str]]:
    """Interpolate along time what depends on the number of frames; the gate [M * M, 1] only for as many tokens a frame."""
    fitted, notes = dict(tensors), list[str]()
    times = tensors.get(_TIMES)
    if times is not None and _TIMES in wanted and times.shape != wanted[_TIMES] and times.shape[1] == wanted[_TIMES][1]:
        frames = wanted[_TIMES][0]
        fitted[_TIMES] = F.interpolate(times.t()[None], size=frames, mode="linear", align_corners=False)[0].t()
        notes.append(f"places in time: {len(times)} interpolated to {frames}")
    gate, place = tensors.get(_GATE), grid.height * grid.width
    if gate is not None and _GATE in wanted and gate.shape != wanted[_GATE]:
        before, rest = divmod(round(len(gate) ** 0.5), place)
        if not rest and before:
            pairs = (
                gate.view(before, place, before, place).permute(1, 3, 0, 2).reshape(place * place, 1, before, before)
            )
            more = F.interpolate(pairs, size=(grid.frames, grid.frames), mode="bilinear", align_corners=False)
            more = more.view(place, place, grid.frames, grid.frames).permute(2, 0, 3, 1)
            fitted[_GATE] = more.reshape(-1, 1).contiguous()
            notes.append(f"learned gate: {before} frames interpolated to {grid.frames}")
    return fitted, notes


def _backbone(path: Path, clips: PreparedClips, elsewhere: str | None, notes: list[str]) -> Backbone | None:
    """Return what the clips were prepared for: frozen where they hold features, trained along where they hold frames."""
    trained = clips.kind == "frames"
    if clips.backbone == "features":
        if elsewhere is not None:
            fact = f"the clips in `{clips.folder}` are features of no known backbone"
            raise ConfigError("bad-value", fact, "leave --backbone out")
        return None
    how = "trained along" if trained else "frozen"
    kept = kept_backbone(path) if elsewhere is None else None
    if kept is not None and (
        kept.settings() == clips.backbone_settings if trained else kept.fingerprint() == clips.backbone_fingerprint
    ):
        notes.append(f"backbone: {clips.backbone} with the weights in `{path}`, {how}")
        return kept.requires_grad_(trained)
    fingerprint = None if trained else clips.backbone_fingerprint
    who = f"the preparation of the clips in `{clips.folder}`"
    backbone = find_backbone(elsewhere or clips.backbone, clips.backbone_settings, fingerprint, who)
    fresh = ", fresh" if backbone.trained_from_scratch else ""
    notes.append(f"backbone: {backbone.name}{fresh}, {how}")
    return backbone.requires_grad_(trained)
