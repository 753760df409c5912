"""A small 3-D convolution network, trained along with the captioner: for machines without any weights, and for tests."""

from typing import Any

from torch import Tensor, nn

from albertkit.captioning.backbones.backbone import Backbone, Grid
from albertkit.errors import ConfigError


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
        first, second, third = width // 8, width // 4, width // 2
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
        places = -(-size // 16)
        return Grid(-(-num_frames // 2), places, places)

    def forward(self, frames: Tensor) -> Tensor:
        """uint8 [B, T, S, S, 3] to [B, M, D]."""
        values = frames.permute(0, 4, 1, 2, 3).float() / 127.5 - 1
        return self.layers(values).flatten(2).transpose(1, 2)

    def settings(self) -> dict[str, Any]:
        """Return the width."""
        return {"width": self.out_dim}
