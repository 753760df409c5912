"""What an encoder learns, in the form the training loop wants it."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from albertkit.embeddings.distillation.teacher_vectors import TeacherRows
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.tasks.features import LabelledBatch
from albertkit.training.loop import LossPart


class EmbeddingObjective(nn.Module):
    """One loss on the vectors of all texts of an update. It holds what is trained: the encoder, and the loss's own layer.

    Args:
        encoder: To train.
        name: Of the loss, in metrics.
        loss: Called with K vectors [E, D] and the targets of E examples.
        columns: K, texts of an example. Sequence n of the features is text n % K of example n // K, and those of an example
            are always together.
        targets: Of all examples: [examples], or rows of a teacher. None if the loss needs none.
        texts: int64 [examples, K], which distinct text each is: given where the other examples of an update are negatives.
            An example that has a text in common with one before it in the update is then left out, because it would be
            taught that the text is unlike itself. None if that does not matter.
    """

    def __init__(
        self,
        encoder: SentenceEncoder,
        name: str,
        loss: nn.Module,
        columns: int,
        targets: np.ndarray | TeacherRows | None = None,
        texts: np.ndarray | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.loss = encoder, loss
        self.name, self.columns, self.targets, self.texts = name, columns, targets, texts

    def counts(self, batch: LabelledBatch) -> dict[str, int]:
        """Examples that count."""
        return {self.name: len(self._kept(self._examples(batch)))}

    def losses(self, batch: LabelledBatch) -> dict[str, LossPart]:
        """The loss times the number of examples: the loop divides by that of all processes."""
        examples = self._examples(batch)
        kept = self._kept(examples)
        vectors = self.encode(batch).view(len(examples), self.columns, -1)
        if len(kept) < len(examples):
            vectors = vectors[torch.from_numpy(kept).to(vectors.device)]
        targets = None
        if self.targets is not None:
            targets = torch.from_numpy(np.ascontiguousarray(self.targets[examples[kept]])).to(vectors.device)
        loss = self.loss(vectors.unbind(1), targets)
        return {self.name: LossPart(loss * len(kept), len(kept))}

    def encode(self, batch: LabelledBatch) -> Tensor:
        """fp32 [N, D], in the order of the batch."""
        return self.encoder(batch.packed)

    def flops(self, batch: LabelledBatch) -> float:
        """Floating-point operations of a training step on this batch's real tokens, in the encoder."""
        squares = sum(n * n for n in batch.packed.lengths)
        return batch.num_tokens * self.encoder.config.train_flops_per_token(squares / batch.num_tokens, 0.0)

    def _examples(self, batch: LabelledBatch) -> np.ndarray:
        return batch.sequences[:: self.columns] // self.columns

    def _kept(self, examples: np.ndarray) -> np.ndarray:
        """Places of the examples that share no text with one before them."""
        if self.texts is None:
            return np.arange(len(examples))
        return without_repeats(self.texts[examples].tolist())


def without_repeats(texts: Sequence[Sequence[int]]) -> np.ndarray:
    """Places, int64, of the examples that have no text in common with one that is kept before them."""
    seen: set[int] = set()
    kept = []
    for place, own in enumerate(texts):
        if seen.isdisjoint(own):
            seen.update(own)
            kept.append(place)
    return np.array(kept, np.int64)
