"""Folders of captioners: a checkpoint folder, and in it `captioner.json` and the weights of a backbone that it keeps."""

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file

from albertkit.captioning.backbones import load_backbone
from albertkit.captioning.backbones.backbone import Backbone, Grid
from albertkit.captioning.generation import GenerationSettings
from albertkit.captioning.model import AlbertForImageCaptioning
from albertkit.captioning.video.sampling import FrameSampling
from albertkit.conversion.own_tokenizer import own_tokenizer
from albertkit.errors import AlbertKitError, CheckpointError, ConfigError
from albertkit.files import load, plain_file, write_json
from albertkit.model.folder import write_tensors
from albertkit.model_folder import CAPTIONER, local_folder
from albertkit.tokenizer import AlbertTokenizer

BACKBONE_WEIGHTS = "backbone.safetensors"


class CaptionerParts(NamedTuple):
    """Parts of a captioner; the fields are the arguments of `VideoCaptioner`."""

    model: AlbertForImageCaptioning
    tokenizer: AlbertTokenizer
    backbone: Backbone | None
    sampling: FrameSampling | None
    grid: Grid | None
    generation: GenerationSettings


@dataclass
class _SavedBackbone:
    """A backbone of `captioner.json`; without a fingerprint its weights lie in the folder."""

    name: str
    settings: dict[str, Any]
    fingerprint: str | None
    from_here: str | None = None


@dataclass
class _Saved:
    """`captioner.json`."""

    format: Literal[1]
    backbone: _SavedBackbone | None
    sampling: FrameSampling | None
    grid: Grid | None
    generation: GenerationSettings = field(default_factory=GenerationSettings)


def save_captioner(folder: str | Path, parts: CaptionerParts) -> None:
    """Write a captioner; see `VideoCaptioner.save_pretrained`. `captioner.json` comes last."""
    path, backbone = Path(folder), parts.backbone
    parts.model.save_pretrained(path, parts.tokenizer)
    saved = _Saved(1, None, parts.sampling, parts.grid, parts.generation)
    if backbone is not None:
        own_weights = backbone.kept or any(p.requires_grad for p in backbone.parameters())
        if own_weights:
            tensors = {name: t.detach().cpu().contiguous() for name, t in backbone.state_dict().items()}
            write_tensors(path / BACKBONE_WEIGHTS, tensors)
        # Of a frozen one the weights stay where they are; that they are the same is checked when it is loaded.
        fingerprint = None if own_weights else backbone.fingerprint()
        saved.backbone = _SavedBackbone(backbone.name, backbone.settings(), fingerprint)
        place = Path(backbone.name.partition(":")[2])
        if fingerprint is not None and place.is_absolute():  # both may be moved together
            saved.backbone.from_here = os.path.relpath(place, path.resolve())
    known = asdict(saved) | {"generation": parts.generation.to_dict()}
    if known["backbone"] and known["backbone"]["from_here"] is None:
        del known["backbone"]["from_here"]
    write_json(path / CAPTIONER, known)


def load_captioner(folder: str | Path, backbone: str | None = None) -> CaptionerParts:
    """Read a captioner; see `VideoCaptioner.from_pretrained`."""
    path = local_folder(folder)
    if not (path / CAPTIONER).exists():
        raise CheckpointError(
            "wrong-model", f"there is no {CAPTIONER} in `{path}`", "name a folder that `albertkit caption train` wrote"
        )
    saved = load(path / CAPTIONER, _Saved, "captioner", "copy the folder again")
    if backbone is not None and saved.backbone is None:
        fact = f"the captioner in `{path}` has no backbone that --backbone could name the place of"
        raise ConfigError("bad-value", fact, "leave --backbone out")
    own = None if saved.backbone is None else _load_backbone(path, saved.backbone, backbone)
    model = AlbertForImageCaptioning.from_pretrained(path, strict=True)
    tokenizer = own_tokenizer(path, model.config)
    return CaptionerParts(model, tokenizer, own, saved.sampling, saved.grid, saved.generation)


def kept_backbone(folder: Path) -> Backbone | None:
    """Return the backbone whose weights a captioner's folder holds; None for any other folder."""
    if not (folder / CAPTIONER).exists() or not (folder / BACKBONE_WEIGHTS).exists():
        return None
    saved = load(folder / CAPTIONER, _Saved, "captioner", "copy the folder again").backbone
    return None if saved is None or saved.fingerprint else _load_backbone(folder, saved, None)


def _load_backbone(path: Path, saved: _SavedBackbone, elsewhere: str | None) -> Backbone:
    """Load the backbone with the weights in the folder; or a frozen one from where it lies, or from `elsewhere`."""
    if saved.fingerprint is not None:
        place, user = elsewhere or _place(path, saved), f"the captioner in `{path}`"
        return find_backbone(place, saved.settings, saved.fingerprint, user).eval()
    if elsewhere is not None:
        fact = f"the captioner in `{path}` keeps the weights of its backbone `{saved.name}` itself"
        raise ConfigError("bad-value", fact, "leave --backbone out")
    try:
        weights = load_file(plain_file(path / BACKBONE_WEIGHTS))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            "corrupt", f"`{path / BACKBONE_WEIGHTS}`: {error}", "copy the whole captioner again"
        ) from None
    backbone = load_backbone(saved.name, saved.settings, weights)
    backbone.kept = True
    return backbone.eval()


def find_backbone(name: str, settings: dict[str, Any], fingerprint: str | None, user: str) -> Backbone:
    """Load the frozen backbone that a captioner or clips were made with, from where it lies now."""
    try:
        backbone = load_backbone(name, settings)
    except AlbertKitError as error:
        if error.slug not in ("not-found", "unreachable"):
            raise
        fact = f"{user} needs its backbone `{name}`, which cannot be loaded: {error.message}"
        hint = f"say where it lies now: --backbone {name.partition(':')[0]}:PLACE"
        raise CheckpointError("not-found", fact, hint) from None
    if fingerprint not in (None, backbone.fingerprint()):
        fact = f"`{name}` has other weights than {user} was made with"
        hint = "put the weights back that it had, name their place with --backbone, or train the captioner on these"
        raise CheckpointError("changed", fact, hint)
    return backbone


def _place(path: Path, saved: _SavedBackbone) -> str:
    """Return the name of a frozen backbone: of where it was, or else of where it is as seen from the captioner's folder."""
    kind, _, place = saved.name.partition(":")
    from_here = path / (saved.from_here or place)
    if place and not Path(place).exists() and from_here.exists():
        return f"{kind}:{from_here.resolve()}"
    return saved.name
