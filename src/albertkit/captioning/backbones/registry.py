"""Backbones by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from albertkit.captioning.backbones.backbone import Backbone
from albertkit.errors import ConfigError


def load_backbone(
    name: str, settings: Mapping[str, Any] | None = None, weights: Mapping[str, Tensor] | None = None
) -> Backbone:
    """Make or load a backbone.

    Args:
        name: `conv3d`, a small network of our own without weights; or `hf:` and a folder or `org/name` of the hub: a video or
            image model of transformers, frozen.
        settings: As a backbone's `settings()` gave them. Default: of conv3d its defaults, of a model those of its folder.
        weights: As a backbone's `state_dict()` gave them. Default: of conv3d random ones, of a model those of its folder.

    Raises:
        ConfigError: unknown-backbone, and as `load_transformers_backbone`, which raises the rest too.
    """
    if name == "conv3d":
        from albertkit.captioning.backbones.conv3d import Conv3dBackbone

        backbone = Conv3dBackbone(**(settings or {}))
        if weights is not None:
            backbone.load_state_dict(weights)
        return backbone
    if name.startswith("hf:") and len(name) > len("hf:"):
        from albertkit.captioning.backbones.transformers_backbone import load_transformers_backbone

        return load_transformers_backbone(name, settings, weights)
    hint = f"`hf:{name}`" if "/" in name or Path(name).is_dir() else "`conv3d`, or `hf:` and a folder or `org/name`"
    raise ConfigError("unknown-backbone", f"there is no backbone `{name}`", f"write {hint}")
