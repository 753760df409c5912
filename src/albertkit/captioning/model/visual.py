"""The projection of a backbone's visual tokens to the width of ALBERT's layers, and their places in time and space."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albertkit.captioning.backbones.backbone import Grid
from albertkit.captioning.model.config import CaptionConfig
from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError
from albertkit.model.projections import layer_norm, linear


class VisualProjector(nn.Module):
    """Layer norm, linear D to H, plus an embedding of the frame and one of the place in it; then dropout.

    The tables begin at zero, so a captioner begins as one that knows no places. Without norm and tables it is SwinBERT's
    `img_embedding`, and with `backbone_dim` it begins with SwinBERT's `fc`.
    """

    def __init__(self, config: AlbertConfig, caption: CaptionConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.grid = None if caption.grid is None else Grid(*caption.grid)
        self.fc = nn.Linear(caption.backbone_dim, caption.img_feature_dim) if caption.backbone_dim else None
        self.width = caption.visual_width
        self.LayerNorm = nn.LayerNorm(caption.img_feature_dim, eps=1e-6) if caption.visual_norm else None
        self.projection = nn.Linear(caption.img_feature_dim, width)
        if self.grid is not None:
            self.time_embeddings = nn.Parameter(torch.zeros(self.grid.frames, width))
            self.space_embeddings = nn.Parameter(torch.zeros(self.grid.height * self.grid.width, width))
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, visual: Tensor, grid: Grid | Sequence[Grid] | None = None) -> Tensor:
        """Map [B, M, D] to [B, M, H], in the dtype of `visual`."""
        if visual.shape[-1] != self.width:
            raise ConfigError(
                "bad-value",
                f"visual tokens have width {visual.shape[-1]}, the model reads {self.width}",
                "use the backbone that the model was trained with",
            )
        if self.fc is not None:
            visual = linear(visual.dtype, self.fc)(visual)
        if self.LayerNorm is not None:
            visual = layer_norm(visual.dtype, self.LayerNorm)(visual)
        hidden = linear(visual.dtype, self.projection)(visual)
        if self.grid is not None:
            hidden = hidden + self._places(grid or self.grid, visual.shape[1]).to(hidden.dtype)
        return self.dropout(hidden)

    def _places(self, grid: Grid | Sequence[Grid], tokens: int) -> Tensor:
        """Return [M, H], or [B, M, H] with zeros where a clip has fewer tokens than M."""
        if isinstance(grid, Grid):
            if grid.num_tokens != tokens:
                raise ConfigError("bad-value", f"{tokens} visual tokens for a grid of {' x '.join(map(str, grid))}")
            return self.places(grid)
        known = {of_clip: self.places(of_clip) for of_clip in dict.fromkeys(grid)}
        return torch.stack([F.pad(known[of_clip], (0, 0, 0, tokens - of_clip.num_tokens)) for of_clip in grid])

    def places(self, grid: Grid) -> Tensor:
        """Return what is added to the tokens of a grid, [M, H]. Times are interpolated to another number of frames."""
        assert self.grid is not None
        if grid[1:] != self.grid[1:]:
            raise ConfigError(
                "bad-value",
                f"frames have {grid.height} x {grid.width} visual tokens, the model has places for "
                f"{self.grid.height} x {self.grid.width}",
                "prepare the clips with the frame size and pooling that the model was trained with",
            )
        times: Tensor = self.time_embeddings
        if grid.frames != len(times):
            times = F.interpolate(times.t()[None], size=grid.frames, mode="linear", align_corners=False)[0].t()
        return (times[:, None] + self.space_embeddings).flatten(0, 1)
