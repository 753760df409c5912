"""The base of backbones: frames to visual tokens on a grid of time and space, which can be pooled."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple, Self

from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool3d

from albertkit.errors import CheckpointError, ConfigError


class Grid(NamedTuple):
    """Grid of the M = frames x height x width visual tokens of a clip, stored in this order."""

    frames: int
    height: int
    width: int

    @property
    def num_tokens(self) -> int:
        """Return M."""
        return self.frames * self.height * self.width


class Backbone(nn.Module, ABC):
    """Base of the backbones.

    Attributes:
        name: As it is written on the command line and in a captioner's folder, for example `conv3d` or `hf:FOLDER`.
        out_dim: Width of a visual token (D).
        frame_size: Height and width in pixels that it wants by itself.
        trained_from_scratch: Whether it has no weights of its own and must be trained with the captioner.
        kept: Whether its weights are saved with the captioner also while it is frozen.
    """

    name: str
    out_dim: int
    frame_size: int
    trained_from_scratch: bool = False
    kept: bool = False

    @abstractmethod
    def grid(self, num_frames: int, size: int) -> Grid:
        """Return how the tokens of `num_frames` frames of `size` pixels lie."""

    @abstractmethod
    def forward(self, frames: Tensor) -> Tensor:
        """Map uint8 [B, T, S, S, 3], RGB, to [B, M, D]. Scaling and normalising of values is done here."""

    def train(self, mode: bool = True) -> Self:
        """Set training mode, unless frozen: dropout would only be noise then."""
        super().train(mode and any(parameter.requires_grad for parameter in self.parameters()))
        return self

    def settings(self) -> dict[str, Any]:
        """Return the arguments that make the backbone again, with `name`; nothing by default."""
        return {}

    def fingerprint(self) -> str:
        """Return Sha256 over name, settings and weights, 64 hex digits: features made by another backbone are not the same.

        The weights of one that is trained from scratch do not count: the frames that are prepared for it do not depend on them.
        """
        state = {} if self.trained_from_scratch else self.state_dict()
        return hash_weights(f"{self.name} {self.settings()}", state)


def hash_weights(text: str, state: Mapping[str, Tensor]) -> str:
    """Return Sha256 over a text and the names, types, shapes and numbers of tensors."""
    digest = sha256(text.encode())
    for key, tensor in sorted(state.items()):
        digest.update(f"{key} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def check_unchanged(name: str, before: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Refuse a model with other settings than the captioner was made with."""
    if differing := sorted(key for key in {*before, *found} if before.get(key) != found.get(key)):
        raise CheckpointError(
            "changed",
            f"`{name}` is not the model that was used before (differing: {', '.join(differing)})",
            "name the model that the captioner was made with, or prepare and train again",
        )


def pooled_grid(grid: Grid, most_tokens: int) -> Grid:
    """Return the grid that `pool_grid` makes of a grid.

    Space is reduced first, because frames matter (SwinBERT's paper: CIDEr on MSRVTT is 47.6 with 8 frames, 52.3 with 32): the
    longer of height and width loses one, the height where they are equal, until the tokens fit. Only when one token is left of
    a frame are there fewer frames.
    """
    if most_tokens < 1:
        raise ConfigError("bad-value", f"most_tokens is {most_tokens}, it must be at least 1", "196 is a good number")
    frames, height, width = grid
    while frames * height * width > most_tokens and height * width > 1:
        if height >= width:
            height -= 1
        else:
            width -= 1
    return Grid(min(frames, most_tokens) if height * width == 1 else frames, height, width)


def pool_grid(features: Tensor, grid: Grid, most_tokens: int) -> tuple[Tensor, Grid]:
    """Average visual tokens that lie near each other until a clip has at most `most_tokens`.

    Token i of n along a side is the mean of the places from floor(i·N/n) to ceil((i+1)·N/n) of N, as torch's adaptive pooling
    has it; where N is no multiple of n, neighbours share a place.

    Args:
        features: fp [B, M, D], M tokens in the order frames, height, width.
        grid: How they lie; its M is theirs.
        most_tokens: Tokens a clip may have, at least 1. At M or more nothing is changed.

    Returns:
        fp [B, m, D] with m <= most_tokens, and their grid (`pooled_grid`).
    """
    target = pooled_grid(grid, most_tokens)
    if features.ndim != 3 or features.shape[1] != grid.num_tokens:
        raise ConfigError(
            "bad-value",
            f"features are {list(features.shape)}, the grid {tuple(grid)} has {grid.num_tokens:,} tokens",
            "give features [clips, tokens, width] and the grid that they lie on",
        )
    if target == grid:
        return features, grid
    pooled = adaptive_avg_pool3d(features.transpose(1, 2).unflatten(2, grid), target)
    return pooled.flatten(2).transpose(1, 2), target
