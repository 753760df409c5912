"""Losses on vectors, and the objective of an encoder for the training loop.

Losses are sentence-transformers' own where they can be called on vectors, and the few that cannot.
E examples of an update, K texts each, D numbers a vector. All are means over the examples, but
CoSENT and AnglE, which are one log-sum-exp over all pairs of examples of an update.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albertkit.batches.features import LabelledBatch
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.metrics import normalize_vectors
from albertkit.embeddings.settings import EmbeddingLoss, TeacherLoss
from albertkit.errors import ConfigError, MissingExtraError
from albertkit.training.loop import LossPart, zero_losses
from albertkit.training.processes import World

_CLASSES = {
    "cosine": "CosineSimilarityLoss",
    "cosent": "CoSENTLoss",
    "angle": "AnglELoss",
    "mnrl": "MultipleNegativesRankingLoss",
}

# Losses that compare an example with the others of its update; none has parameters. The rest are
# means over examples.
IN_BATCH = frozenset({"cosent", "angle", "mnrl"})

NUM_CLASSES = 3  # of a pair in natural-language inference


class SoftmaxNLI(nn.Module):
    """Classifies pairs by one linear layer on [u, v, |u - v|], which is trained with the model and thrown away.

    sentence-transformers' `SoftmaxLoss` takes texts, not vectors, and asks a model for its device.

    Source: Reimers and Gurevych 2019, section 3.
    """

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(3 * dimension, NUM_CLASSES)

    def forward(self, vectors: Sequence[Tensor], targets: Tensor | None) -> Tensor:
        """Return the cross-entropy of two [E, D] and int64 [E]."""
        assert targets is not None
        u, v = vectors
        return F.cross_entropy(self.classifier(torch.cat([u, v, (u - v).abs()], dim=1)), targets)


class TeacherDistance(nn.Module):
    """Measures how far vectors of each text are from a teacher's one: mean over the texts of an example, times `scale`.

    Source: sentence-transformers `EmbedDistillLoss`, which 5.2 does not have.
    """

    def __init__(self, distance: TeacherLoss, scale: float = 1.0) -> None:
        super().__init__()
        self.distance = distance
        self.scale = scale

    def forward(self, vectors: Sequence[Tensor], targets: Tensor | None) -> Tensor:
        """Return the loss of K times [E, D] and [E, D]."""
        assert targets is not None
        # The squared differences of D numbers that make a vector of length 1 have a mean near 1 /
        # D, and gradients so small that AdamW's epsilon of 1e-6 outweighs them: an H 256 student
        # learned nothing in 300 updates. Times D it is the squared distance.
        if self.distance == "mse":
            distances = [F.mse_loss(v, targets) for v in vectors]
        else:
            distances = [1 - F.cosine_similarity(v, targets) for v in vectors]
        return self.scale * torch.stack(distances).mean()


class SentenceTransformersLoss(nn.Module):
    """Computes a loss of sentence-transformers, with its own defaults; `scale` multiplies cosines, by default 20."""

    def __init__(self, name: str, scale: float | None = None) -> None:
        super().__init__()
        arguments = {} if scale is None else {"scale": scale}
        losses: Any = None
        # Since 6.0 the module has the first name
        for path in ("sentence_transformer.losses", "losses"):
            with suppress(ImportError):
                losses = losses or import_module(f"sentence_transformers.{path}")
        if losses is None:
            raise MissingExtraError.for_package(
                "sentence-transformers", "embed", "training of sentence embeddings"
            )
        # On vectors none asks a model for anything
        self.loss = getattr(losses, _CLASSES[name])(None, **arguments)

    def forward(self, vectors: Sequence[Tensor], targets: Tensor | None) -> Tensor:
        """Return the loss of K times [E, D] and, where the loss wants them, fp32 [E]."""
        return self.loss.compute_loss_from_embeddings(list(vectors), targets)


class Matryoshka(nn.Module):
    """Sums a loss over the first d numbers of the vectors, cut and made of length 1, for several d.

    Source: sentence-transformers `MatryoshkaLoss` with equal weights; Kusupati et al. 2022.
    """

    def __init__(self, loss: nn.Module, dims: Sequence[int]) -> None:
        super().__init__()
        self.loss = loss
        self.dims = tuple(dims)

    def forward(self, vectors: Sequence[Tensor], targets: Tensor | None) -> Tensor:
        """Return the sum; targets that are vectors are cut, too."""
        parts = []
        for d in self.dims:
            cut = targets[:, :d] if targets is not None and targets.dim() == 2 else targets
            parts.append(self.loss([F.normalize(v[:, :d], dim=1) for v in vectors], cut))
        return torch.stack(parts).sum()


def make_loss(
    name: EmbeddingLoss,
    dimension: int,
    dims: Sequence[int] = (),
    scale: float | None = None,
) -> nn.Module:
    """Return the loss of a training: called with K vectors [E, D] and their targets, it gives a 0-d tensor.

    cosine: squared error of the cosine; cosent and angle: order of the cosines of all pairs (angle:
    of an angle in complex space); mnrl: the right text among those of all examples, softmax: a
    class of the pair. With `dims` of Matryoshka whole vectors are trained only if D is among them.
    Cosines are multiplied by `scale`, 20 by default.
    """
    if name == "softmax" and dims:
        raise ConfigError(
            "bad-value",
            "the loss `softmax` cannot be combined with Matryoshka's dimensions",
            "use --loss mnrl, or leave --matryoshka out",
        )
    loss = SoftmaxNLI(dimension) if name == "softmax" else SentenceTransformersLoss(name, scale)
    return matryoshka_loss(loss, dimension, dims)


def matryoshka_loss(loss: nn.Module, dimension: int, dims: Sequence[int]) -> nn.Module:
    """Return the loss itself, or its Matryoshka."""
    if not dims:
        return loss
    if max(dims) > dimension:
        raise ConfigError(
            "bad-value",
            f"matryoshka asks for {max(dims)} numbers of vectors of {dimension}",
            f"use at most {dimension}, with commas between",
        )
    return Matryoshka(loss, dims)


@dataclass(frozen=True)
class TeacherSpace:
    """Projection of a teacher's vectors of W numbers: less `mean` [W] and of length 1, times `components` [W, D]."""

    mean: np.ndarray | None = None
    components: np.ndarray | None = None

    def project(self, vectors: np.ndarray) -> np.ndarray:
        """Return the learned part of vectors [E, W]: fp32 [E, D]."""
        learned = np.asarray(vectors, np.float32)
        if self.mean is not None:
            learned = normalize_vectors(learned - self.mean)
        return learned if self.components is None else learned @ self.components


class TeacherRows:
    """Reads a teacher's vectors of M texts when they are asked for: `rows` [M] of `vectors` [E, W]."""

    def __init__(
        self,
        vectors: np.ndarray,
        rows: np.ndarray,
        space: TeacherSpace | None = None,
    ) -> None:
        self._vectors_of_examples = vectors
        self._rows = rows
        self._space = space or TeacherSpace()

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        """Return the learned part of the vectors of indices from 0 to M - 1: fp32 [len(indices), D]."""
        return self._space.project(self._vectors_of_examples[self._rows[indices]])


class EmbeddingObjective(nn.Module):
    """Computes one loss on the vectors of all texts of an update; holds what is trained: encoder, and the loss's own layer.

    Losses that compare examples with one another (`losses.IN_BATCH`) compare those of all
    processes: each encodes its own, has the vectors of the others without gradient, and computes
    the loss of the whole update, so that the sum of all gradients is that of one process.

    Where the other examples of an update are negatives, `texts`, int64 [examples, K], numbers the
    distinct texts: an example that has a text in common with one before it in the update is left
    out, because it would be taught that the text is unlike itself.
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
        self.encoder = encoder
        self.loss = loss
        self.world = world if world and world.size > 1 and name in IN_BATCH else None
        self.name = name
        self.targets = targets
        self.texts = texts
        self.columns = columns  # K; sequence n of the features is text n % K of example n // K

    def count_targets(self, batch: LabelledBatch) -> dict[str, int]:
        """Count the examples of this process that the loss sees."""
        positions = self._compared_positions(self._compared_examples(batch))
        if self.world:
            # Examples of an update are dealt to the processes in turn.
            positions = positions[positions % self.world.size == self.world.rank]
        return {self.name: len(positions)}

    def losses(self, batch: LabelledBatch) -> dict[str, LossPart]:
        """Return the loss times the number of examples: the loop divides by that of all processes."""
        counts = self.count_targets(batch)
        # One of several processes that got no example takes part in the reduction all the same: the
        # others wait for it.
        if not batch.num_tokens and not self.world:
            return zero_losses(counts, batch.packed.input_ids.device)
        examples = self._compared_examples(batch)
        positions = self._compared_positions(examples)
        vectors = self._vectors_of_examples(batch, len(examples))
        if len(positions) < len(examples):
            vectors = vectors[torch.from_numpy(positions).to(vectors.device)]
        targets = None
        if self.targets is not None:
            targets = torch.from_numpy(np.ascontiguousarray(self.targets[examples[positions]])).to(
                vectors.device
            )
        total = self.loss(vectors.unbind(1), targets) * len(positions)
        # All processes have this sum: each reports its share of it, and gives the gradient of the
        # whole
        if self.world:
            total = total - total.detach() * (1 - 1 / self.world.size)
        return {self.name: LossPart(total, counts[self.name])}

    def _vectors_of_examples(self, batch: LabelledBatch, count: int) -> Tensor:
        """Return the vectors of the examples that are compared, fp32 [E, K, D]."""
        if not self.world:
            return self.encoder(batch.packed).view(count, self.columns, -1)
        vectors = torch.zeros(
            count,
            self.columns,
            self.encoder.dimension,
            device=batch.packed.input_ids.device,
        )
        rank_rows = slice(self.world.rank, None, self.world.size)
        rank_vectors = vectors[rank_rows]
        if batch.num_tokens:
            rank_vectors = self.encoder(batch.packed).view(-1, self.columns, self.encoder.dimension)
        vectors[rank_rows] = rank_vectors.detach()
        # One reduction of zeros and own rows: no autograd goes through collectives, and every
        # process has the same bits.
        # Then the own rows are put there again, with their gradient.
        vectors = self.world.sum(vectors).clone()
        vectors[rank_rows] = rank_vectors
        return vectors

    def flops(self, batch: LabelledBatch) -> float:
        """Return the floating-point operations of a training step on this batch's real tokens, in the encoder."""
        mean_length = batch.packed.mean_length
        return batch.num_tokens * self.encoder.config.train_flops_per_token(mean_length, 0.0)

    def _compared_examples(self, batch: LabelledBatch) -> np.ndarray:
        """Return the examples that are compared: those of the batch, or of the whole update."""
        if self.world:
            assert batch.update_examples is not None
            return batch.update_examples
        return batch.sequences[:: self.columns] // self.columns

    def _compared_positions(self, examples: np.ndarray) -> np.ndarray:
        """Return the positions of the examples that share no text with one before them."""
        if self.texts is None:
            return np.arange(len(examples))
        return positions_without_repeated_texts(self.texts[examples].tolist())


def positions_without_repeated_texts(texts: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the positions, int64, of the examples that have no text in common with a position before them."""
    earlier_texts: set[int] = set()
    positions = []
    for position, example_texts in enumerate(texts):
        if earlier_texts.isdisjoint(example_texts):
            earlier_texts.update(example_texts)
            positions.append(position)
    return np.array(positions, np.int64)
