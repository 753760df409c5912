"""Recipe of an item: frames as they are, frames through a frozen backbone, or features computed elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from albertkit.captioning.backbones.backbone import Backbone, Grid, pool_grid, pooled_grid
from albertkit.captioning.data.clip import FEATURE_ENDINGS, Clip
from albertkit.captioning.data.frames import content_hash, frames_of, read_features
from albertkit.captioning.data.items import item_name
from albertkit.captioning.data.prepared import FORMAT
from albertkit.captioning.video.sampling import FrameSampling
from albertkit.errors import ConfigError, MachineError


@dataclass(frozen=True)
class Recipe:
    """Recipe of a stored item: frames uint8 [T, S, S, 3] to be trained on, or features float16 [M, D]."""

    kind: Literal["features", "frames"]
    sampling: FrameSampling | None  # None for features computed elsewhere, as are the next two
    backbone: Backbone | None
    grid: Grid | None  # of the tokens of a clip, after pooling

    @classmethod
    def of(
        cls, backbone: Backbone | None, sampling: FrameSampling | None, max_tokens: int, train_backbone: bool = False
    ) -> "Recipe":
        """Return the recipe for a backbone; the frames themselves where it is trained along."""
        if backbone is None:
            return cls("features", None, None, None)
        if sampling is None:
            fact = f"the backbone `{backbone.name}` needs frames, no sampling is given"
            raise ConfigError("bad-value", fact, "give a FrameSampling")
        grid = backbone.grid(sampling.num_frames, sampling.size)
        if backbone.trained_from_scratch or train_backbone:
            return cls("frames", sampling, backbone, grid)
        return cls("features", sampling, backbone.eval(), pooled_grid(grid, max_tokens))

    @property
    def dtype(self) -> str:
        """Return the type of the items: uint8 frames or float16 features."""
        return "uint8" if self.kind == "frames" else "float16"

    def settings(self) -> dict[str, Any]:
        """Return what `prepared.json` says of it."""
        backbone = self.backbone
        return {
            "format": FORMAT,
            "kind": self.kind,
            "backbone": "features" if backbone is None else backbone.name,
            "backbone_fingerprint": None if backbone is None else backbone.fingerprint(),
            "backbone_settings": {} if backbone is None else backbone.settings(),
            "sampling": None if self.sampling is None else self.sampling.to_dict(),
            "grid": None if self.grid is None else list(self.grid),
        }

    def check(self, clip: Clip) -> None:
        """Refuse a clip of another kind."""
        if (clip.source.suffix.lower() in FEATURE_ENDINGS) != (self.backbone is None):
            what, say = ("frames", "conv3d or hf:FOLDER") if self.backbone is None else ("features", "features")
            name = "features" if self.backbone is None else self.backbone.name
            fact = f"the clip `{clip.key}` is a file of {what}, the backbone is `{name}`"
            hint = f"--backbone {say}; clips of features and of videos are prepared into two folders"
            raise ConfigError("conflicting-options", fact, hint)

    def item(self, clip: Clip, settings: dict[str, Any]) -> str:
        """Return the name of a clip's item, by the content of its file."""
        decisive = ("format", "kind", "sampling") if self.kind == "frames" else (*settings,)
        if settings["backbone_fingerprint"]:  # says which backbone it is, wherever it lies
            decisive = tuple(name for name in decisive if name != "backbone")
        own = {"content": content_hash(clip), "start": clip.start, "end": clip.end}
        return item_name(own | {name: settings[name] for name in decisive})

    def fits(self, shape: tuple[int, ...] | None) -> bool:
        """Return whether an item of this shape can be one of its own."""
        if shape is None or self.backbone is None or self.sampling is None or self.grid is None:
            return shape is not None and len(shape) == 2
        if self.kind == "frames":
            return shape == (self.sampling.num_frames, self.sampling.size, self.sampling.size, 3)
        return shape == (self.grid.num_tokens, self.backbone.out_dim)

    def read(self, clip: Clip) -> tuple[np.ndarray, tuple[str, ...]]:
        """Return the frames uint8 [T, S, S, 3] of a clip, or its features float16 [M, D]; and what was not as its file says."""
        if self.sampling is None:
            return read_features(clip.source), ()
        frames = frames_of(clip, self.sampling)
        return frames.pixels, frames.notes

    @property
    def is_read_only(self) -> bool:
        """Return whether what is read are the items already."""
        return self.backbone is None or self.kind == "frames"

    def computed(self, frames: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return clips through the backbone, pooled: B times float16 [M, D] of B times uint8 [T, S, S, 3]."""
        assert self.backbone is not None
        assert self.sampling is not None
        assert self.grid is not None
        device = next((parameter.device for parameter in self.backbone.parameters()), torch.device("cpu"))
        with torch.inference_mode():
            features = self.backbone(torch.from_numpy(np.stack(frames)).to(device)).float()
            grid = self.backbone.grid(self.sampling.num_frames, self.sampling.size)
            half = pool_grid(features, grid, self.grid.num_tokens)[0].to("cpu", torch.float16)
        if not torch.isfinite(half).all():
            fact = f"the backbone `{self.backbone.name}` gives numbers that are not finite in float16"
            hint = "look at its weights; features above 65,504 need a normalisation in the backbone"
            raise MachineError("not-finite", fact, hint)
        return list(half.numpy())
