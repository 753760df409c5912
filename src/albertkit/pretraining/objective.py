"""What pretraining learns, in the form the training loop wants it."""

from albertkit.model import AlbertForPreTraining, PackedBatch
from albertkit.training.loop import LossPart, no_losses


class PretrainingObjective:
    """Masked pieces and sentence order, each weighted 1 (paper, section 3.1).

    Args:
        model: The model whose losses are computed.
    """

    def __init__(self, model: AlbertForPreTraining) -> None:
        self.model = model

    def counts(self, batch: PackedBatch) -> dict[str, int]:
        """Predictions of each kind in a batch; a kind that is not learned is left out."""
        counts = {}
        if batch.masked_labels is not None:
            counts["masked_lm"] = len(batch.masked_labels)
        if batch.sentence_order_labels is not None:
            counts["sentence_order"] = batch.num_sequences
        return counts

    def losses(self, batch: PackedBatch) -> dict[str, LossPart]:
        """The two losses of a batch as sums."""
        counts = self.counts(batch)
        if not batch.num_tokens:
            return no_losses(counts, batch.input_ids.device)
        losses = self.model.pretraining_losses(batch)
        parts = {}
        if "masked_lm" in counts:
            parts["masked_lm"] = LossPart(losses.masked_lm_loss_sum, counts["masked_lm"], losses.masked_lm_correct)
        if "sentence_order" in counts:
            parts["sentence_order"] = LossPart(
                losses.sentence_order_loss_sum, counts["sentence_order"], losses.sentence_order_correct
            )
        return parts

    def flops(self, batch: PackedBatch) -> float:
        """Floating-point operations of a training step on this batch, real tokens only, nothing recomputed."""
        squares = sum(n * n for n in batch.lengths)
        share = self.counts(batch).get("masked_lm", 0) / batch.num_tokens
        a_token = self.model.config.train_flops_per_token(
            squares / batch.num_tokens, share, self.model.albert.encoder.depth
        )
        return batch.num_tokens * a_token
