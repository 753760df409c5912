"""Backbones by name."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from albertkit.captioning.backbones.backbone import Backbone
from albertkit.errors import CheckpointError, ConfigError

MakeBackbone = Callable[..., Backbone]
_OWN: dict[str, MakeBackbone] = {}  # what `register_backbone` added


def register_backbone(name: str, make: MakeBackbone) -> None:
    """Add a backbone, to be named with `--backbone` and in the folders of captioners.

    Args:
        name: Not `conv3d`, and without a colon; the backbone's `name`, too.
        make: The class, or a function: keywords as its `settings()` gives them, to a backbone.

    Raises:
        ConfigError: bad-value for a name that is taken.
    """
    if name == "conv3d" or ":" in name or _OWN.get(name, make) is not make:
        raise ConfigError(
            "bad-value", f"there is a backbone `{name}` already, or it holds a colon", "choose another name"
        )
    _OWN[name] = make


def load_backbone(
    name: str, settings: Mapping[str, Any] | None = None, weights: Mapping[str, Tensor] | None = None
) -> Backbone:
    """Make or load a backbone.

    Args:
        name: `conv3d`, a small network of our own without weights; `hf:` and a folder or `org/name` of the hub: a video or
            image model of transformers, frozen; `video-swin:` and a file or folder of a checkpoint, frozen; or one that was
            registered. The name of what lies on this machine becomes that of its absolute path.
        settings: As a backbone's `settings()` gave them. Default: of conv3d its defaults, of a model those of its folder.
        weights: As a backbone's `state_dict()` gave them. Default: of conv3d random ones, of a model those of its folder.
    """
    kind, _, place = name.partition(":")
    if weights is None and place and Path(place).exists():
        name = f"{kind}:{Path(place).resolve()}"  # a captioner is used from other folders than it is made in
    if name in _OWN:
        return _made(name, _OWN[name], settings or {}, weights)
    if name == "conv3d":
        from albertkit.captioning.backbones.conv3d import Conv3dBackbone

        return _made(name, Conv3dBackbone, settings or {}, weights)
    if name.startswith("hf:") and len(name) > len("hf:"):
        from albertkit.captioning.backbones.transformers_backbone import load_transformers_backbone

        return load_transformers_backbone(name, settings, weights)
    if name.startswith("video-swin:") and (place or weights is not None):
        from albertkit.captioning.backbones.video_swin_checkpoint import load_video_swin

        return load_video_swin(name, settings, weights)
    hint = (
        f"`hf:{name}`"
        if "/" in name or Path(name).is_dir()
        else ("`conv3d`, `hf:` and a folder or `org/name`, or `video-swin:` and a file")
    )
    raise ConfigError("unknown-name", f"there is no backbone `{name}`", f"write {hint}")


def _made(name: str, make: MakeBackbone, settings: Mapping[str, Any], weights: Mapping[str, Tensor] | None) -> Backbone:
    """With the weights that were saved, or as it is made: fresh ones from torch's generator."""
    try:
        backbone = make(**settings)
        if weights is not None:
            with torch.no_grad():
                backbone.load_state_dict(dict(weights))
    except TypeError as error:
        raise ConfigError("bad-value", f"{name}: {error}", "its settings are those it was saved with") from None
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise CheckpointError(
            "corrupt", f"the weights are not those of {name}: {reason}", "copy the whole captioner again"
        ) from None
    return backbone
