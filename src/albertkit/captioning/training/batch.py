"""A micro-batch of clips with their captions, and how a batch is put together from rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from albertkit.captioning.backbones.backbone import Grid


@dataclass(frozen=True, eq=False)
class CaptionBatch:
    """B rows, each a clip and a caption of S places.

    Attributes:
        visual: Features fp16 or fp32 [B, M, D], or frames uint8 [B, T, S, S, 3] for a backbone that is trained along.
        visual_mask: bool [B, M], False at padding; None without any.
        grid: How visual tokens lie, in all rows or in each; None for frames, whose backbone says it.
        input_ids: int64 [B, S], as the model reads them.
        places: int64 [P] into B * S, where pieces are predicted.
        labels: int64 [P], the pieces.
        text_tokens: Pieces that are no padding.
        update: Number of updates before this one.
    """

    visual: Tensor
    visual_mask: Tensor | None
    grid: Grid | Sequence[Grid] | None
    input_ids: Tensor
    places: Tensor
    labels: Tensor
    text_tokens: int
    update: int

    @property
    def num_tokens(self) -> int:
        """Visual tokens, or frames, and pieces."""
        visual = (
            self.visual.shape[0] * self.visual.shape[1] if self.visual_mask is None else int(self.visual_mask.sum())
        )
        return visual + self.text_tokens

    def to(self, device: torch.device) -> "CaptionBatch":
        """The same on a device."""
        if device.type == "cpu":
            return self
        tensors: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **tensors)


def stack_visual(items: Sequence[np.ndarray]) -> tuple[Tensor, Tensor | None]:
    """Features [M, D] or frames [T, S, S, 3] of several clips as one tensor; features of unlike M are padded with zeros.

    Returns:
        [B, M, D] or [B, T, S, S, 3], and the mask bool [B, M] or None.
    """
    most = max(len(item) for item in items)
    if all(len(item) == most for item in items):
        return torch.from_numpy(np.stack(items)), None
    values = torch.zeros(len(items), most, *items[0].shape[1:], dtype=torch.from_numpy(items[0][:0]).dtype)
    mask = torch.zeros(len(items), most, dtype=torch.bool)
    for row, item in enumerate(items):
        values[row, : len(item)] = torch.from_numpy(np.ascontiguousarray(item))
        mask[row, : len(item)] = True
    return values, mask
