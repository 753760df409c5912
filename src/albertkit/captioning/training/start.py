"""The captioner that a training begins with: any ALBERT checkpoint, and a fresh visual side."""

from pathlib import Path

from albertkit.captioning.backbones import load_backbone
from albertkit.captioning.backbones.backbone import Backbone, Grid
from albertkit.captioning.captioner import VideoCaptioner
from albertkit.captioning.data import PreparedClips
from albertkit.captioning.folder import BACKBONE_WEIGHTS, CAPTIONER, load_captioner
from albertkit.captioning.model import AlbertForImageCaptioning, CaptionConfig
from albertkit.captioning.model.config import Objective, VideoAttention
from albertkit.captioning.training.settings import CaptionSettings
from albertkit.checkpoints.folder import fill, read_tensors
from albertkit.checkpoints.matching import HEADS
from albertkit.checkpoints.own_tokenizer import own_tokenizer
from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError
from albertkit.model_folder import local_folder

_VISUAL = ("albert.img_embedding.", "albert.video_gate")


def start_captioner(
    model: str | Path, clips: PreparedClips, settings: CaptionSettings, most_tokens: int
) -> tuple[VideoCaptioner, list[str]]:
    """A captioner for prepared clips.

    Args:
        model: Checkpoint folder, or `org/name` of the hub; pretrained, fine-tuned, or a captioner, whose visual side is kept
            where it fits.
        clips: Decide backbone, frames and grid.
        settings: Objective and attention, which a captioner to start from decides where they are None; loss, dropout.
        most_tokens: Visual tokens of the longest clip.

    Returns:
        The captioner on the CPU, and a line for each thing that a person should know.

    Raises:
        CheckpointError: weights-mismatch, no-weights, no-tokenizer, vocab-mismatch. ConfigError: bad-settings.
    """
    path = local_folder(model)
    before = AlbertConfig.from_pretrained(path)
    if settings.length > before.max_position_embeddings:
        raise ConfigError(
            "bad-settings", f"length is {settings.length}, the model in `{model}` has {before.max_position_embeddings} positions",
            f"use --length {before.max_position_embeddings} or less",
        )  # fmt: skip
    tokenizer = own_tokenizer(path, before, model)
    objective, attention, notes = _method(path, before, settings)
    backbone = _backbone(path, clips, notes)
    width = clips.width if backbone is None or clips.kind == "features" else backbone.out_dim
    caption = CaptionConfig(
        img_feature_dim=width,
        grid=clips.grid or Grid(most_tokens, 1, 1),
        video_attention=attention,
        num_visual_tokens=most_tokens if attention in ("log", "legacy") else 0,
        objective=objective,
        label_smoothing=settings.label_smoothing,
        drop_worst_ratio=settings.drop_worst_ratio,
        drop_worst_after=settings.drop_worst_after,
    )
    config = caption.put_into(before)
    if settings.dropout is not None:
        config = config.with_changes(
            hidden_dropout_prob=settings.dropout, attention_probs_dropout_prob=settings.dropout
        )
    captioning_model = _model(path, config, notes)
    captioner = VideoCaptioner(captioning_model, tokenizer, backbone, clips.sampling, clips.grid)
    return captioner, notes


def _method(path: Path, before: AlbertConfig, settings: CaptionSettings) -> tuple[Objective, VideoAttention, list[str]]:
    """Return objective and attention, those of a captioner unless the settings name others, and what to report."""
    known = CaptionConfig.of(before)
    objective, attention = settings.objective or known.objective, settings.video_attention or known.video_attention
    notes = []
    if "captioning" in before.foreign:
        for name, was, now in (
            ("objective", known.objective, objective), ("video_attention", known.video_attention, attention)
        ):  # fmt: skip
            notes.append(
                f"{name}: {now}, as the captioner in `{path}` was trained" if was == now
                else f"{name}: {now} as asked; the captioner in `{path}` was trained with {was}"
            )  # fmt: skip
    return objective, attention, notes


def _model(path: Path, config: AlbertConfig, notes: list[str]) -> AlbertForImageCaptioning:
    wanted = {name: tensor.shape for name, tensor in AlbertForImageCaptioning(config).state_dict().items()}
    tensors = dict(read_tensors(path))
    own = [name for name in tensors if name.startswith(_VISUAL)]
    fits = bool(own) and all(wanted.get(name) == tensors[name].shape for name in own)
    if not fits:
        tensors = {name: tensor for name, tensor in tensors.items() if name not in own}
    allowed = {name for name in wanted if name.startswith((*_VISUAL, "albert.pooler.", *HEADS))}
    model, matched = fill(AlbertForImageCaptioning, config, tensors, allowed, str(path))
    notes.append(f"visual side: that of `{path}`" if fits else "visual side: fresh")
    if any(name.startswith("predictions.") for name in matched.fresh):
        notes.append(f"prediction head: fresh, `{path}` has none")
    model.albert.pooler.requires_grad_(False)  # no caption goes through it
    return model


def _backbone(path: Path, clips: PreparedClips, notes: list[str]) -> Backbone | None:
    """What the clips were prepared for: frozen where they hold features, trained along where they hold frames."""
    if clips.backbone == "features":
        return None
    if (path / CAPTIONER).exists() and (path / BACKBONE_WEIGHTS).exists() and clips.kind == "frames":
        before = load_captioner(path)["backbone"]
        if (before.name, before.settings()) == (clips.backbone, clips.backbone_settings):
            notes.append(f"backbone: {clips.backbone} with the weights in `{path}`, trained along")
            return before.requires_grad_(True)
    backbone = load_backbone(clips.backbone, clips.backbone_settings)
    trained = clips.kind == "frames"
    fresh = ", fresh" if backbone.trained_from_scratch else ""
    notes.append(f"backbone: {clips.backbone}{fresh}, {'trained along' if trained else 'frozen'}")
    return backbone.requires_grad_(trained)
