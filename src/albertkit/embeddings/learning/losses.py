"""Losses on vectors: sentence-transformers' own where they can be called on vectors, and the few that cannot.

E examples of K texts each, vectors of D numbers. All are means over the examples, but CoSENT and AnglE, which are one
log-sum-exp over all pairs of examples of an update.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albertkit.errors import ConfigError, MissingExtraError

EmbeddingLoss = Literal["cosine", "cosent", "angle", "mnrl", "softmax"]
TeacherLoss = Literal["mse", "cosine"]

_CLASSES = {
    "cosine": "CosineSimilarityLoss", "cosent": "CoSENTLoss", "angle": "AnglELoss", "mnrl": "MultipleNegativesRankingLoss",
}  # fmt: skip

# Losses that compare an example with the others of its update; none has parameters. The rest are means over examples.
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


class ToTeacher(nn.Module):
    """Measures how far vectors of each text are from a teacher's one: mean over the texts of an example, times `scale`.

    The squared differences of D numbers that make a vector of length 1 have a mean near 1 / D, and gradients so small that
    AdamW's epsilon of 1e-6 outweighs them: an H 256 student learned nothing in 300 updates. Times D it is the squared
    distance. The other distance is 1 - cosine.

    Source: sentence-transformers `EmbedDistillLoss`, which 5.2 does not have.
    """

    def __init__(self, distance: TeacherLoss, scale: float = 1.0) -> None:
        super().__init__()
        self.distance, self.scale = distance, scale

    def forward(self, vectors: Sequence[Tensor], targets: Tensor | None) -> Tensor:
        """Return the loss of K times [E, D] and [E, D]."""
        assert targets is not None
        if self.distance == "mse":
            return self.scale * torch.stack([F.mse_loss(v, targets) for v in vectors]).mean()
        return self.scale * torch.stack([1 - F.cosine_similarity(v, targets) for v in vectors]).mean()


class Theirs(nn.Module):
    """Computes a loss of sentence-transformers, with its own defaults; `scale` multiplies cosines, by default 20."""

    def __init__(self, name: str, scale: float | None = None) -> None:
        super().__init__()
        given = {} if scale is None else {"scale": scale}
        self.loss = getattr(_their_losses(), _CLASSES[name])(None, **given)  # on vectors none asks a model for anything

    def forward(self, vectors: Sequence[Tensor], targets: Tensor | None) -> Tensor:
        """Return the loss of K times [E, D] and, where the loss wants them, fp32 [E]."""
        return self.loss.compute_loss_from_embeddings(list(vectors), targets)


class Matryoshka(nn.Module):
    """Sums a loss over the first d numbers of the vectors, cut and made of length 1, for several d.

    Source: sentence-transformers `MatryoshkaLoss` with equal weights; Kusupati et al. 2022.
    """

    def __init__(self, loss: nn.Module, dims: Sequence[int]) -> None:
        super().__init__()
        self.loss, self.dims = loss, tuple(dims)

    def forward(self, vectors: Sequence[Tensor], targets: Tensor | None) -> Tensor:
        """Return the sum; targets that are vectors are cut, too."""
        parts = []
        for d in self.dims:
            cut = targets[:, :d] if targets is not None and targets.dim() == 2 else targets
            parts.append(self.loss([F.normalize(v[:, :d], dim=1) for v in vectors], cut))
        return torch.stack(parts).sum()


def make_loss(name: EmbeddingLoss, dimension: int, dims: Sequence[int] = (), scale: float | None = None) -> nn.Module:
    """Return the loss of a training: called with K vectors [E, D] and their targets, it gives a 0-d tensor.

    cosine: squared error of the cosine; cosent and angle: order of the cosines of all pairs (angle: of an angle in complex
    space); mnrl: the right text among those of all examples, softmax: a class of the pair. With `dims` of Matryoshka
    whole vectors are trained only if D is among them. Cosines are multiplied by `scale`, 20 by default.
    """
    if name == "softmax" and dims:
        raise ConfigError(
            "bad-value", "softmax classifies whole vectors: there is no Matryoshka of it", "use --loss mnrl"
        )
    return shortened(SoftmaxNLI(dimension) if name == "softmax" else Theirs(name, scale), dimension, dims)


def shortened(loss: nn.Module, dimension: int, dims: Sequence[int]) -> nn.Module:
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


def _their_losses() -> Any:
    """Return the module of losses: since 6.0 it has another name."""
    for name in ("sentence_transformers.sentence_transformer.losses", "sentence_transformers.losses"):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise MissingExtraError.of("sentence-transformers", "embed", "training of sentence embeddings")
