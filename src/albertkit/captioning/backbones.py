"""Backbones by name, and `conv3d`, the one for machines without any weights and for tests."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from albertkit.captioning.backbone import Backbone, Grid
from albertkit.errors import CheckpointError, ConfigError


class Conv3dBackbone(Backbone):
    """Four convolutions over time, height and width, each of which halves the size; the frames come out halved in number.

    The first reads colours, edges and how they move, where a step of one pixel still shows. Each spans 3 frames, so a token knows
    of 13 frames around its own.

    Args:
        width: Width of a visual token, a multiple of 64; the layers before have an eighth, a quarter and a half of it.
    """

    trained_from_scratch = True
    frame_size = 64

    def __init__(self, width: int = 192) -> None:
        super().__init__()
        if width < 64 or width % 64:
            raise ConfigError("bad-value", f"width is {width}, it must be a multiple of 64", "use 128, 192 or 256")
        self.name, self.out_dim = "conv3d", width
        first = width // 8
        second = width // 4
        third = width // 2
        self.layers = nn.Sequential(
            nn.Conv3d(3, first, (3, 5, 5), (1, 2, 2), (1, 2, 2)),
            nn.GroupNorm(4, first),
            nn.GELU(),
            nn.Conv3d(first, second, 3, 2, 1),
            nn.GroupNorm(8, second),
            nn.GELU(),
            nn.Conv3d(second, third, 3, (1, 2, 2), 1),
            nn.GroupNorm(8, third),
            nn.GELU(),
            nn.Conv3d(third, width, 3, (1, 2, 2), 1),
        )

    def grid(self, num_frames: int, size: int) -> Grid:
        """Return frames halved, rounded up; a place is 16 pixels wide."""
        side = -(-size // 16)
        return Grid(-(-num_frames // 2), side, side)

    def forward(self, frames: Tensor) -> Tensor:
        """Map uint8 [B, T, S, S, 3] to [B, M, D]."""
        values = frames.permute(0, 4, 1, 2, 3).float() / 127.5 - 1
        return self.layers(values).flatten(2).transpose(1, 2)

    def settings(self) -> dict[str, Any]:
        """Return the width."""
        return {"width": self.out_dim}


MakeBackbone = Callable[..., Backbone]
_REGISTERED: dict[str, MakeBackbone] = {}  # what `register_backbone` added


def register_backbone(name: str, make: MakeBackbone) -> None:
    """Add a backbone, to be named with `--backbone` and in the folders of captioners.

    Args:
        name: Not `conv3d`, and without a colon; the backbone's `name`, too.
        make: The class, or a function: keywords as its `settings()` gives them, to a backbone.

    Raises:
        ConfigError: bad-value for a name that is taken.
    """
    if name == "conv3d" or ":" in name or _REGISTERED.get(name, make) is not make:
        raise ConfigError(
            "bad-value", f"there is a backbone `{name}` already, or it holds a colon", "choose another name"
        )
    _REGISTERED[name] = make


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
    kind, _, location = name.partition(":")
    if weights is None and location and Path(location).exists():
        name = f"{kind}:{Path(location).resolve()}"  # a captioner is used from other folders than it is made in
    if name in _REGISTERED:
        return _make_backbone(name, _REGISTERED[name], settings or {}, weights)
    if name == "conv3d":
        return _make_backbone(name, Conv3dBackbone, settings or {}, weights)
    if name.startswith("hf:") and len(name) > len("hf:"):
        from albertkit.captioning.transformers_backbone import load_transformers_backbone

        return load_transformers_backbone(name, settings, weights)
    if name.startswith("video-swin:") and (location or weights is not None):
        from albertkit.captioning.video_swin import load_video_swin

        return load_video_swin(name, settings, weights)
    hint = "`conv3d`, `hf:` and a folder or `org/name`, or `video-swin:` and a file"
    if "/" in name or Path(name).is_dir():
        hint = f"`hf:{name}`"
    raise ConfigError("unknown-name", f"there is no backbone `{name}`", f"write {hint}")


def _make_backbone(
    name: str, make: MakeBackbone, settings: Mapping[str, Any], weights: Mapping[str, Tensor] | None
) -> Backbone:
    """Make a backbone with the weights that were saved, or with fresh ones from torch's generator."""
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
