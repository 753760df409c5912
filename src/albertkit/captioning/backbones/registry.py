"""Backbones by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from albertkit.captioning.backbones.backbone import Backbone
from albertkit.errors import CheckpointError, ConfigError


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
        ConfigError: unknown-backbone, bad-settings. CheckpointError: broken-weights. And what
            `load_transformers_backbone` raises.
    """
    if name == "conv3d":
        from albertkit.captioning.backbones.conv3d import load_conv3d

        try:
            return load_conv3d(settings or {}, weights)
        except TypeError as error:
            raise ConfigError("bad-settings", f"conv3d: {error}", "its settings are those it was saved with") from None
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise CheckpointError(
                "broken-weights", f"the weights are not those of conv3d: {reason}", "copy the whole captioner again"
            ) from None
    if name.startswith("hf:") and len(name) > len("hf:"):
        from albertkit.captioning.backbones.transformers_loading import load_transformers_backbone

        return load_transformers_backbone(name, settings, weights)
    hint = f"`hf:{name}`" if "/" in name or Path(name).is_dir() else "`conv3d`, or `hf:` and a folder or `org/name`"
    raise ConfigError("unknown-backbone", f"there is no backbone `{name}`", f"write {hint}")
