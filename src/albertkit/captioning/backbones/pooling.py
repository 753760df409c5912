"""Fewer visual tokens: the mean of neighbours in space, and in time only where that is not enough."""

from torch import Tensor
from torch.nn.functional import adaptive_avg_pool3d

from albertkit.captioning.backbones.backbone import Grid
from albertkit.errors import ConfigError


def pooled_grid(grid: Grid, most_tokens: int) -> Grid:
    """The grid that `pool_grid` makes of a grid.

    Space is reduced first, because frames matter (SwinBERT's paper: CIDEr on MSRVTT is 47.6 with 8 frames, 52.3 with 32): the
    longer of height and width loses one, the height where they are equal, until the tokens fit. Only when one token is left of
    a frame are there fewer frames.

    Args:
        grid: How the tokens lie.
        most_tokens: Tokens a clip may have, at least 1.

    Raises:
        ConfigError: bad-value.
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

    Raises:
        ConfigError: bad-value.
    """
    target = pooled_grid(grid, most_tokens)
    if features.ndim != 3 or features.shape[1] != grid.num_tokens:
        raise ConfigError(
            "bad-value", f"features are {list(features.shape)}, the grid {tuple(grid)} has {grid.num_tokens:,} tokens",
            "give features [clips, tokens, width] and the grid that they lie on",
        )  # fmt: skip
    if target == grid:
        return features, grid
    pooled = adaptive_avg_pool3d(features.transpose(1, 2).unflatten(2, grid), target)
    return pooled.flatten(2).transpose(1, 2), target
