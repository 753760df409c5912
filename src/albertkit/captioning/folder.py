"""Folders of captioners: a checkpoint folder, and beside it `captioner.json` and the weights of a backbone that it keeps."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from albertkit.captioning.backbones import load_backbone
from albertkit.captioning.backbones.backbone import Backbone, Grid
from albertkit.captioning.generation import GenerationSettings
from albertkit.captioning.model import AlbertForImageCaptioning
from albertkit.captioning.video.sampling import FrameSampling
from albertkit.checkpoints import load_checkpoint, save_checkpoint, write_tensors
from albertkit.checkpoints.own_tokenizer import own_tokenizer
from albertkit.errors import AlbertKitError, CheckpointError, ConfigError
from albertkit.files import plain_file, read_json, write_json
from albertkit.model_folder import local_folder, or_model_of_run

if TYPE_CHECKING:
    from albertkit.captioning.captioner import VideoCaptioner

CAPTIONER = "captioner.json"
BACKBONE_WEIGHTS = "backbone.safetensors"
_FORMAT = 1


def save_captioner(folder: str | Path, captioner: "VideoCaptioner") -> None:
    """Write a captioner; see `VideoCaptioner.save_pretrained`. `captioner.json` comes last."""
    path, backbone = Path(folder), captioner.backbone
    save_checkpoint(path, captioner.model, captioner.tokenizer)
    own_weights = backbone is not None and (backbone.kept or any(p.requires_grad for p in backbone.parameters()))
    if backbone is not None and own_weights:
        tensors = {name: t.detach().cpu().contiguous() for name, t in backbone.state_dict().items()}
        write_tensors(path / BACKBONE_WEIGHTS, tensors)
    known: dict[str, Any] = {"format": _FORMAT, "backbone": None, "sampling": None, "grid": None}
    if backbone is not None:
        # Of a frozen one the weights stay where they are; that they are the same is checked when it is loaded.
        fingerprint = None if own_weights else backbone.fingerprint()
        known["backbone"] = {"name": backbone.name, "settings": backbone.settings(), "fingerprint": fingerprint}
        place = Path(backbone.name.partition(":")[2])
        if fingerprint is not None and place.is_absolute():  # both may be moved together
            known["backbone"]["from_here"] = os.path.relpath(place, path.resolve())
    if captioner.sampling is not None:
        known["sampling"] = captioner.sampling.to_dict()
    if captioner.grid is not None:
        known["grid"] = list(captioner.grid)
    write_json(path / CAPTIONER, {**known, "generation": captioner.generation.to_dict()})


def is_captioner_folder(folder: Path) -> bool:
    """Return whether a folder is a captioner's, or a run that left one."""
    return (or_model_of_run(folder) / CAPTIONER).exists()


def load_captioner(folder: str | Path, backbone: str | None = None) -> dict[str, Any]:
    """The arguments of `VideoCaptioner` from a folder; see `VideoCaptioner.from_pretrained`."""
    path = local_folder(folder)
    if not (path / CAPTIONER).exists():
        raise CheckpointError(
            "no-captioner", f"there is no {CAPTIONER} in `{path}`", "name a folder that `albertkit caption train` wrote"
        )
    known = read_json(path / CAPTIONER, "captioner")
    try:
        if known["format"] != _FORMAT:
            raise CheckpointError(
                "no-captioner", f"`{path / CAPTIONER}` is of format {known['format']}, this albertkit reads {_FORMAT}",
                "use the albertkit that wrote it",
            )  # fmt: skip
        sampling = FrameSampling(**known["sampling"]) if known["sampling"] else None
        grid = Grid(*known["grid"]) if known["grid"] else None
        said: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in known["generation"].items()}
        generation = GenerationSettings(**said)
        if backbone is not None and not known["backbone"]:
            raise ConfigError(
                "bad-argument", f"the captioner in `{path}` has no backbone that --backbone could name the place of",
                "leave --backbone out",
            )  # fmt: skip
        own = _load_backbone(path, known["backbone"], backbone) if known["backbone"] else None
    except (KeyError, TypeError, AttributeError) as error:
        raise _no_captioner(path, error) from None
    model = load_checkpoint(path, AlbertForImageCaptioning)
    tokenizer = own_tokenizer(path, model.config)
    return dict(model=model, tokenizer=tokenizer, backbone=own, sampling=sampling, grid=grid, generation=generation)


def _load_backbone(path: Path, known: dict[str, Any], elsewhere: str | None) -> Any:
    """The backbone with the weights in the folder; or a frozen one from where it lies, or from `elsewhere`."""
    if known["fingerprint"] is None:
        if elsewhere is not None:
            raise ConfigError(
                "bad-argument", f"the captioner in `{path}` keeps the weights of its backbone `{known['name']}` itself",
                "leave --backbone out",
            )  # fmt: skip
        try:
            weights = load_file(plain_file(path / BACKBONE_WEIGHTS))
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                "broken-weights", f"`{path / BACKBONE_WEIGHTS}`: {error}", "copy the whole captioner again"
            ) from None
        backbone = load_backbone(known["name"], known["settings"], weights)
        backbone.kept = True
        return backbone.eval()
    return find_backbone(
        elsewhere or _place(path, known), known["settings"], known["fingerprint"], f"the captioner in `{path}`"
    ).eval()


def kept_backbone(folder: Path) -> Backbone | None:
    """The backbone whose weights a captioner's folder holds; None for any other folder.

    Raises:
        CheckpointError: no-captioner, broken-weights.
    """
    if not (folder / CAPTIONER).exists() or not (folder / BACKBONE_WEIGHTS).exists():
        return None
    known = read_json(folder / CAPTIONER, "captioner")
    try:
        return None if known["backbone"]["fingerprint"] else _load_backbone(folder, known["backbone"], None)
    except (KeyError, TypeError) as error:
        raise _no_captioner(folder, error) from None


def _no_captioner(folder: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        "no-captioner",
        f"`{folder / CAPTIONER}` is not what a captioner is saved as: {error!r}",
        "copy the folder again",
    )


def find_backbone(name: str, settings: dict[str, Any], fingerprint: str | None, user: str) -> Backbone:
    """Load a frozen backbone that somebody was made with, from where it lies now.

    Args:
        name: As for `load_backbone`.
        settings: That it had.
        fingerprint: That it had; None: its weights may be any.
        user: Who was made with it, for messages.

    Raises:
        CheckpointError: missing-backbone, other-backbone, and what loading raises.
    """
    try:
        backbone = load_backbone(name, settings)
    except AlbertKitError as error:
        if error.slug not in ("not-found", "hub-unreachable"):
            raise
        raise CheckpointError(
            "missing-backbone", f"{user} needs its backbone `{name}`, which cannot be loaded: {error.message}",
            f"say where it lies now: --backbone {name.partition(':')[0]}:PLACE",
        ) from None  # fmt: skip
    if fingerprint not in (None, backbone.fingerprint()):
        raise CheckpointError(
            "other-backbone", f"`{name}` has other weights than {user} was made with",
            "put the weights back that it had, name their place with --backbone, or train the captioner on these",
        )  # fmt: skip
    return backbone


def _place(path: Path, known: dict[str, Any]) -> str:
    """The name of a frozen backbone: of where it was, or else of where it is as seen from the captioner's folder."""
    kind, _, place = str(known["name"]).partition(":")
    beside = path / str(known.get("from_here", place))
    if place and not Path(place).exists() and beside.exists():
        return f"{kind}:{beside.resolve()}"
    return str(known["name"])
