"""Objective of an encoder, for the training loop. E examples of an update, K texts each, D numbers a vector."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from albertkit.data.features import LabelledBatch
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.learning.losses import IN_BATCH
from albertkit.training.distributed import World
from albertkit.training.loop import LossPart, no_losses


class TeacherRows:
    """Reads vectors of M texts when they are asked for: `rows` [M] of `vectors` [E, W], times `components` [W, D] if given."""

    def __init__(self, vectors: np.ndarray, rows: np.ndarray, components: np.ndarray | None = None) -> None:
        self._vectors, self._rows, self._components = vectors, rows, components

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        """Return the vectors of places from 0 to M - 1, fp32 [len(places), D]."""
        found = np.asarray(self._vectors[self._rows[places]], np.float32)
        return found if self._components is None else found @ self._components


class EmbeddingObjective(nn.Module):
    """Computes one loss on the vectors of all texts of an update; holds what is trained: encoder, and the loss's own layer.

    Losses that compare examples with one another (`losses.IN_BATCH`) compare those of all processes: each encodes its own, has
    the vectors of the others without gradient, and computes the loss of the whole update, so that the sum of all gradients is
    that of one process.

    Where the other examples of an update are negatives, `texts`, int64 [examples, K], numbers the distinct texts: an example
    that has a text in common with one before it in the update is left out, because it would be taught that the text is unlike
    itself.
    """

    def __init__(
        self,
        encoder: SentenceEncoder,
        name: str,
        loss: nn.Module,
        columns: int,
        targets: np.ndarray | TeacherRows | None = None,
        texts: np.ndarray | None = None,
        world: World | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.loss = encoder, loss
        self.world = world if world and world.size > 1 and name in IN_BATCH else None
        self.name, self.targets, self.texts = name, targets, texts
        self.columns = columns  # K; sequence n of the features is text n % K of example n // K

    def counts(self, batch: LabelledBatch) -> dict[str, int]:
        """Count the examples of this process that the loss sees."""
        kept = self._kept(self._examples(batch))
        if self.world:
            kept = kept[kept % self.world.size == self.world.rank]
        return {self.name: len(kept)}

    def losses(self, batch: LabelledBatch) -> dict[str, LossPart]:
        """Return the loss times the number of examples: the loop divides by that of all processes."""
        counts = self.counts(batch)
        if not batch.num_tokens and not self.world:
            return no_losses(counts, batch.packed.input_ids.device)
        examples = self._examples(batch)
        kept = self._kept(examples)
        vectors = self._vectors(batch, len(examples))
        if len(kept) < len(examples):
            vectors = vectors[torch.from_numpy(kept).to(vectors.device)]
        targets = None
        if self.targets is not None:
            targets = torch.from_numpy(np.ascontiguousarray(self.targets[examples[kept]])).to(vectors.device)
        total = self.loss(vectors.unbind(1), targets) * len(kept)
        if self.world:  # all processes have this sum: each reports its share of it, and gives the gradient of the whole
            total = total - total.detach() * (1 - 1 / self.world.size)
        return {self.name: LossPart(total, counts[self.name])}

    def _vectors(self, batch: LabelledBatch, count: int) -> Tensor:
        """Return the vectors of the examples that are compared, fp32 [E, K, D]."""
        if not self.world:
            return self.encoder(batch.packed).view(count, self.columns, -1)
        vectors = torch.zeros(count, self.columns, self.encoder.dimension, device=batch.packed.input_ids.device)
        places = slice(self.world.rank, None, self.world.size)
        own = vectors[places]
        if batch.num_tokens:
            own = self.encoder(batch.packed).view(-1, self.columns, self.encoder.dimension)
        vectors[places] = own.detach()
        vectors = self.world.sum(vectors).clone()
        vectors[places] = own
        return vectors

    def flops(self, batch: LabelledBatch) -> float:
        """Return the floating-point operations of a training step on this batch's real tokens, in the encoder."""
        squares = sum(n * n for n in batch.packed.lengths)
        return batch.num_tokens * self.encoder.config.train_flops_per_token(squares / batch.num_tokens, 0.0)

    def _examples(self, batch: LabelledBatch) -> np.ndarray:
        """Return the examples that are compared: those of the batch, or of the whole update."""
        if self.world:
            assert batch.update_examples is not None
            return batch.update_examples
        return batch.sequences[:: self.columns] // self.columns

    def _kept(self, examples: np.ndarray) -> np.ndarray:
        """Return the places of the examples that share no text with one before them."""
        if self.texts is None:
            return np.arange(len(examples))
        return without_repeats(self.texts[examples].tolist())


def without_repeats(texts: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the places, int64, of the examples that have no text in common with one that is kept before them."""
    seen: set[int] = set()
    kept = []
    for place, own in enumerate(texts):
        if seen.isdisjoint(own):
            seen.update(own)
            kept.append(place)
    return np.array(kept, np.int64)
