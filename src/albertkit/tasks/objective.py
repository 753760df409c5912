"""What fine-tuning learns, in the form the training loop wants it."""

import torch

from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tasks.distillation import DistillationLosses
from albertkit.tasks.exits import ExitLosses
from albertkit.tasks.features import LabelledBatch
from albertkit.tasks.task import Task
from albertkit.training.loop import LossPart, no_losses


class FinetuningObjective:
    """The losses of a task, of a student of a teacher, or of a classifier with early exits.

    Args:
        model: What is trained.
        task: Its task.
        class_weights: fp32 [C], what a target of each class counts.
        teaching: A student's losses, or those of early exits, in place of the task's own.
    """

    def __init__(
        self,
        model: PretrainedAlbert,
        task: Task,
        class_weights: torch.Tensor | None = None,
        teaching: DistillationLosses | ExitLosses | None = None,
    ) -> None:
        self.model, self.task, self.class_weights, self.teaching = model, task, class_weights, teaching

    def counts(self, batch: LabelledBatch) -> dict[str, int]:
        """Targets of each loss."""
        return (self.teaching or self.task).counts(batch)

    def losses(self, batch: LabelledBatch) -> dict[str, LossPart]:
        """The losses of a batch as sums."""
        if not batch.num_tokens:
            return no_losses(self.counts(batch), batch.packed.input_ids.device)
        if self.teaching:
            return self.teaching.losses(batch)
        counts = self.task.counts(batch)
        losses = self.task.losses(self.model, batch, self.class_weights)
        return {name: LossPart(loss.loss_sum, counts[name], loss.correct) for name, loss in losses.items()}

    def flops(self, batch: LabelledBatch) -> float:
        """Floating-point operations of a training step on this batch's real tokens, heads and teacher left out."""
        squares = sum(n * n for n in batch.packed.lengths)
        return batch.num_tokens * self.model.config.train_flops_per_token(squares / batch.num_tokens, 0.0)
