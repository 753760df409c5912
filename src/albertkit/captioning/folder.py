"""Folders of captioners: a checkpoint folder, and beside it `captioner.json` and the weights of a backbone trained along."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from albertkit.captioning.backbones import load_backbone
from albertkit.captioning.backbones.backbone import Grid
from albertkit.captioning.generation import GenerationSettings
from albertkit.captioning.model import AlbertForImageCaptioning
from albertkit.captioning.video.sampling import FrameSampling
from albertkit.checkpoints import load_checkpoint, save_checkpoint, write_tensors
from albertkit.checkpoints.own_tokenizer import own_tokenizer
from albertkit.errors import CheckpointError
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
    own_weights = backbone is not None and any(p.requires_grad for p in backbone.parameters())
    if backbone is not None and own_weights:
        tensors = {name: t.detach().cpu().contiguous() for name, t in backbone.state_dict().items()}
        write_tensors(path / BACKBONE_WEIGHTS, tensors)
    known: dict[str, Any] = {"format": _FORMAT, "backbone": None, "sampling": None, "grid": None}
    if backbone is not None:
        # Of a frozen one the weights stay where they are; that they are the same is checked when it is loaded.
        fingerprint = None if own_weights else backbone.fingerprint()
        known["backbone"] = {"name": backbone.name, "settings": backbone.settings(), "fingerprint": fingerprint}
    if captioner.sampling is not None:
        known["sampling"] = captioner.sampling.to_dict()
    if captioner.grid is not None:
        known["grid"] = list(captioner.grid)
    write_json(path / CAPTIONER, {**known, "generation": captioner.generation.to_dict()})


def is_captioner_folder(folder: Path) -> bool:
    """Return whether a folder is a captioner's, or a run that left one."""
    return (or_model_of_run(folder) / CAPTIONER).exists()


def load_captioner(folder: str | Path) -> dict[str, Any]:
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
        backbone = _load_backbone(path, known["backbone"]) if known["backbone"] else None
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            "no-captioner",
            f"`{path / CAPTIONER}` is not what a captioner is saved as: {error!r}",
            "copy the folder again",
        ) from None
    model = load_checkpoint(path, AlbertForImageCaptioning)
    tokenizer = own_tokenizer(path, model.config)
    return dict(
        model=model, tokenizer=tokenizer, backbone=backbone, sampling=sampling, grid=grid, generation=generation
    )


def _load_backbone(path: Path, known: dict[str, Any]) -> Any:
    weights = None
    if known["fingerprint"] is None:
        try:
            weights = load_file(plain_file(path / BACKBONE_WEIGHTS))
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                "broken-weights", f"`{path / BACKBONE_WEIGHTS}`: {error}", "copy the whole captioner again"
            ) from None
    backbone = load_backbone(known["name"], known["settings"], weights)
    if known["fingerprint"] not in (None, backbone.fingerprint()):
        raise CheckpointError(
            "other-backbone", f"`{known['name']}` has other weights than the captioner was trained with",
            "put the weights back that it had, or train the captioner on these",
        )  # fmt: skip
    return backbone.eval()
