"""A video or image model of transformers as a backbone."""

import json
from typing import Any

import torch
from torch import Tensor, nn

from albertkit.captioning.backbones.backbone import Backbone, Grid, hash_weights
from albertkit.captioning.backbones.kinds import Extent, VisionKind
from albertkit.captioning.backbones.pixels import PixelValues
from albertkit.errors import ConfigError

_AT_ONCE = 32 * 224 * 224  # pixels of all frames in one forward: 32 frames or 2 clips of VideoMAE
# What a configuration says that changes no number.
_NO_MATTER = {
    "_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "id2label", "label2id", "num_labels",
    "problem_type", "transformers_version", "output_attentions", "output_hidden_states", "return_dict",
}  # fmt: skip


class TransformersBackbone(Backbone):
    """One of `kinds.KINDS`. Visual tokens are the last states of the patches; class and register tokens are dropped.

    Frozen and in eval mode until `requires_grad_()`; while frozen, `train()` leaves it in eval mode, because dropout in it would
    only be noise.

    Args:
        name: `hf:` and a folder or a model of the hub.
        model: transformers' model.
        kind: Its type.
        pixels: Its scaling of pixels.
        frame_size: Size of a frame in pixels that its folder names; None for the configuration's.
    """

    def __init__(self, name: str, model: Any, kind: VisionKind, pixels: PixelValues, frame_size: int | None) -> None:
        super().__init__()
        self.name, self.model, self.kind, self.pixels = name, model, kind, pixels
        self.config = model.config
        self.extent = Extent.of(self.config, kind, name)
        self.out_dim = int(self.config.hidden_size)
        self.frame_size = frame_size if frame_size and self._fits(frame_size) else self.extent.size
        self._hashed: tuple[int, str] | None = None
        for path in kind.unused:
            _drop(model, path)
        self.requires_grad_(False).eval()

    def grid(self, num_frames: int, size: int) -> Grid:
        """How the tokens lie.

        Raises:
            ConfigError: unsuitable-frames, with what is suitable.
        """
        extent, who = self.extent, f"`{self.name}` ({self.config.model_type})"
        fixed = self.kind.fixed_frames and num_frames != extent.num_frames
        if num_frames < 1 or num_frames % extent.tubelet or fixed:
            many = f"a multiple of {extent.tubelet} frames" if extent.tubelet > 1 else "at least 1 frame"
            raise ConfigError(
                "unsuitable-frames", f"{who} cannot take {num_frames} frames a clip",
                f"give it {extent.num_frames} frames" if self.kind.fixed_frames else f"give it {many}",
            )  # fmt: skip
        if not self._fits(size):
            also = "" if self.kind.fixed_size else f", or a multiple of {extent.patch}"
            raise ConfigError(
                "unsuitable-frames", f"{who} cannot take frames of {size} pixels", f"give it {extent.size}{also}"
            )
        return Grid(num_frames // extent.tubelet, size // extent.patch, size // extent.patch)

    def forward(self, frames: Tensor) -> Tensor:
        """uint8 [B, T, S, S, 3], RGB, to fp32 [B, M, D], as many at once as memory bears.

        Raises:
            ConfigError: bad-value; unsuitable-frames.
        """
        if (
            frames.ndim != 5
            or frames.shape[4] != 3
            or frames.shape[2] != frames.shape[3]
            or frames.dtype != torch.uint8
        ):
            raise ConfigError(
                "bad-value", f"frames are {frames.dtype} {list(frames.shape)}", "give uint8 [clips, frames, S, S, 3]"
            )
        batch, num_frames, size = frames.shape[:3]
        grid = self.grid(num_frames, size)
        inputs = frames if self.kind.video else frames.flatten(0, 1)
        at_once = _AT_ONCE // (size * size * (num_frames if self.kind.video else 1))
        tokens = torch.cat([self._tokens(part) for part in inputs.split(max(1, at_once))])
        return tokens.reshape(batch, grid.num_tokens, self.out_dim)

    def _tokens(self, frames: Tensor) -> Tensor:
        hidden = self.model(self.pixels.apply(frames), **self.kind.call).last_hidden_state[:, self.extent.leading :]
        if getattr(self.config, "attention_type", "space_only") != "space_only":  # TimeSformer: time is the inner order
            hidden = hidden.unflatten(1, (-1, frames.shape[1])).transpose(1, 2).flatten(1, 2)
        return hidden

    def _fits(self, size: int) -> bool:
        multiple = size >= self.extent.patch and size % self.extent.patch == 0
        return size == self.extent.size or (not self.kind.fixed_size and multiple)

    def settings(self) -> dict[str, Any]:
        """`config`, what differs from transformers' defaults; `pixels`; `frame_size`."""
        config = {name: value for name, value in self.config.to_diff_dict().items() if name not in _NO_MATTER}
        model_type = {"model_type": self.config.model_type}
        settings = {"config": {**config, **model_type}, "pixels": self.pixels.to_dict(), "frame_size": self.frame_size}
        return json.loads(json.dumps(settings))  # lists for tuples: as they come back from a file

    def fingerprint(self) -> str:
        """Sha256 over settings and weights, not over where they lie. Computed when it is first asked for, and again only if
        weights were written since."""
        state = self.model.state_dict(keep_vars=True)
        written = sum(0 if tensor.is_inference() else tensor._version for tensor in state.values())
        if self._hashed is None or self._hashed[0] != written:
            self._hashed = written, hash_weights(json.dumps(self.settings(), sort_keys=True), state)
        return self._hashed[1]


def _drop(model: nn.Module, path: str) -> None:
    *parents, leaf = path.split(".")
    parent = model.get_submodule(".".join(parents))
    setattr(parent, leaf, None if isinstance(getattr(parent, leaf), nn.Parameter | None) else nn.Identity())
