"""What training a captioner learns, in the form the training loop wants it."""

from collections.abc import Sequence

from torch import Tensor, nn

from albertkit.captioning.backbones.backbone import Backbone, Grid
from albertkit.captioning.model import AlbertForImageCaptioning
from albertkit.captioning.model.losses import num_kept
from albertkit.captioning.training.batch import CaptionBatch
from albertkit.training.loop import LossPart, no_losses


class CaptionObjective(nn.Module):
    """The caption loss, and the sparsity of a learned gate.

    Args:
        model: The captioning model.
        backbone: Trained along; None where batches hold features.
        sparsity_weight: Of the second loss.
    """

    def __init__(self, model: AlbertForImageCaptioning, backbone: Backbone | None, sparsity_weight: float) -> None:
        super().__init__()
        self.model, self.backbone, self.sparsity_weight = model, backbone, sparsity_weight
        self._sparse = model.caption.learned and sparsity_weight > 0

    def counts(self, batch: CaptionBatch) -> dict[str, int]:
        """Predictions that count. The gate's loss is one for each micro-batch, so accumulated it is their mean."""
        counts = {"caption": self._num_counted(batch)}
        return counts | {"sparsity": min(1, batch.num_tokens)} if self._sparse else counts

    def losses(self, batch: CaptionBatch) -> dict[str, LossPart]:
        """The losses of a batch as sums."""
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
        """Visual tokens [B, M, D] of a batch, and how they lie."""
        if batch.visual.dim() == 3:
            return batch.visual, batch.grid
        assert self.backbone is not None
        frames = batch.visual
        return self.backbone(frames), self.backbone.grid(frames.shape[1], frames.shape[2])

    def flops(self, batch: CaptionBatch) -> float:
        """Floating-point operations of a training step in ALBERT's passes; the backbone and the head are left out."""
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
