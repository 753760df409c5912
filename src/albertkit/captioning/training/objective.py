"""A batch of clips with captions, and the losses that training a captioner learns from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from albertkit.captioning.backbones.backbone import Backbone, Grid
from albertkit.captioning.model import AlbertForImageCaptioning
from albertkit.captioning.model.captioning_model import num_kept
from albertkit.training.loop import LossPart, no_losses


@dataclass(frozen=True, eq=False)
class CaptionBatch:
    """B rows, each a clip and a caption of S places, of which P are predicted."""

    visual: (
        Tensor  # features fp16 or fp32 [B, M, D], or frames uint8 [B, T, S, S, 3] for a backbone that is trained along
    )
    visual_mask: Tensor | None  # bool [B, M], False at padding
    grid: Grid | Sequence[Grid] | None  # of the visual tokens, in all rows or in each; frames have the backbone's
    input_ids: Tensor  # int64 [B, S], as the model reads them
    places: Tensor  # int64 [P] into B * S, where tokens are predicted
    labels: Tensor  # int64 [P], the tokens
    num_tokens: int  # visual tokens, or frames, and tokens; without padding
    update: int  # number of updates before this one

    @classmethod
    def empty(cls, update: int) -> "CaptionBatch":
        """Return a batch without rows."""
        none = torch.zeros(0, dtype=torch.int64)
        return cls(torch.zeros(0, 0, 0), None, None, none.view(0, 0), none, none, 0, update)

    def to(self, device: torch.device, non_blocking: bool = False) -> "CaptionBatch":
        """Return the same on a device."""
        if device.type == "cpu":
            return self
        return self._map(lambda values: values.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "CaptionBatch":
        """Return the same in page-locked memory, from which copies to a GPU do not block."""
        return self._map(lambda values: values.pin_memory())

    def _map(self, change: Callable[[Tensor], Tensor]) -> "CaptionBatch":
        tensors: dict[str, Any] = {name: change(v) for name, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **tensors)


class CaptionObjective(nn.Module):
    """The caption loss, and the sparsity of a learned gate."""

    def __init__(self, model: AlbertForImageCaptioning, backbone: Backbone | None, sparsity_weight: float) -> None:
        super().__init__()
        self.model, self.backbone, self.sparsity_weight = model, backbone, sparsity_weight
        self._sparse = model.caption.learned and sparsity_weight > 0

    def counts(self, batch: CaptionBatch) -> dict[str, int]:
        """Count the predictions; the loss of the gate is one for each micro-batch, so accumulated it is their mean."""
        counts = {"caption": self._num_counted(batch)}
        return counts | {"sparsity": min(1, batch.num_tokens)} if self._sparse else counts

    def losses(self, batch: CaptionBatch) -> dict[str, LossPart]:
        """Return the losses of a batch as sums."""
        if not batch.num_tokens:
            return no_losses(self.counts(batch), batch.input_ids.device)
        visual, grid = self.visual(batch)
        context = self.model.albert.encode_context(self.model.albert.project(visual, grid), batch.visual_mask)
        hidden, _ = self.model.albert.read(self.model.albert.embed(batch.input_ids), context)
        total, correct = self._caption_loss(hidden.flatten(0, 1)[batch.places], batch)
        parts = {"caption": LossPart(total, self._num_counted(batch), correct)}
        if self._sparse:
            parts["sparsity"] = LossPart(self.sparsity_weight * self.model.albert.sparsity_loss(), 1)
        return parts

    def visual(self, batch: CaptionBatch) -> tuple[Tensor, Grid | Sequence[Grid] | None]:
        """Return the visual tokens [B, M, D] of a batch, and their grid."""
        if batch.visual.dim() == 3:
            return batch.visual, batch.grid
        assert self.backbone is not None
        frames = batch.visual
        return self.backbone(frames), self.backbone.grid(frames.shape[1], frames.shape[2])

    def flops(self, batch: CaptionBatch) -> float:
        """Estimate the floating-point operations of a training step in ALBERT's layers, without backbone and head."""
        tokens = batch.num_tokens
        return tokens * self.model.config.train_flops_per_token(tokens / len(batch.input_ids), 0.0)

    def _caption_loss(self, hidden: Tensor, batch: CaptionBatch) -> tuple[Tensor, Tensor]:
        caption = self.model.caption
        if not caption.label_smoothing and not caption.drop_worst_ratio:
            return self.model.predictions.loss(hidden, batch.labels)  # never holds all logits
        logits = self.model.predictions(hidden)
        total, _ = self.model.caption_loss(logits, batch.labels, batch.update)
        return total, (logits.argmax(-1) == batch.labels).sum()

    def _num_counted(self, batch: CaptionBatch) -> int:
        caption, predictions = self.model.caption, len(batch.labels)
        dropping = caption.drop_worst_ratio and batch.update >= caption.drop_worst_after
        return num_kept(predictions, caption.drop_worst_ratio) if dropping else predictions
