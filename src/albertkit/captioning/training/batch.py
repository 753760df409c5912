"""A micro-batch of clips with their captions, and how a batch is put together from rows."""

from collections.abc import Callable, Sequence
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
        num_tokens: Visual tokens, or frames, and pieces; padding is none.
        update: Number of updates before this one.
    """

    visual: Tensor
    visual_mask: Tensor | None
    grid: Grid | Sequence[Grid] | None
    input_ids: Tensor
    places: Tensor
    labels: Tensor
    num_tokens: int
    update: int

    @classmethod
    def empty(cls, update: int) -> "CaptionBatch":
        """No rows."""
        none = torch.zeros(0, dtype=torch.int64)
        return cls(torch.zeros(0, 0, 0), None, None, none.view(0, 0), none, none, 0, update)

    def to(self, device: torch.device, non_blocking: bool = False) -> "CaptionBatch":
        """The same on a device."""
        if device.type == "cpu":
            return self
        return self._map(lambda values: values.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "CaptionBatch":
        """The same in page-locked memory, from which copies to a GPU do not block."""
        return self._map(lambda values: values.pin_memory())

    def _map(self, change: Callable[[Tensor], Tensor]) -> "CaptionBatch":
        tensors: dict[str, Any] = {name: change(v) for name, v in vars(self).items() if isinstance(v, Tensor)}
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
