"""How a student fits what it is to learn: the texts to its tokenizer, the teacher's vectors to its own."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from albertkit.embeddings.distillation.teacher_vectors import TeacherRows, principal_components
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.learning.settings import DistillSettings
from albertkit.embeddings.pooling import Projection
from albertkit.embeddings.unknown_words import MOST_UNKNOWN, unknown_shares
from albertkit.errors import ConfigError, DataError
from albertkit.tasks.columns import Columns
from albertkit.tokenizer import AlbertTokenizer
from albertkit.training.distributed import World

_FITTED = 4096  # texts that a layer is fitted to


def column_names(columns: Columns | None, count: int) -> list[str]:
    """Return the names of the columns of texts: as they were given, or by their places."""
    named = [name for name in (columns.text, columns.pair) if name is not None] if columns else []
    return [f"column `{name}`" for name in named] or [f"column {n}" for n in range(1, count + 1)]


def known_words(
    rows: Sequence[tuple[str, ...]],
    tokenizer: AlbertTokenizer,
    student: str | Path,
    force: bool,
    names: Sequence[str] | None = None,
) -> str:
    """How much of each column the student's tokenizer does not know, in words.

    Args:
        rows: K texts each.
        tokenizer: The student's.
        student: As it was given, for the message.
        force: Go on whatever is unknown.
        names: Of the K columns. Default: by their places.

    Raises:
        DataError: unknown-words if it is more than `MOST_UNKNOWN` of a column's words, unless forced.
    """
    shares = [unknown_shares([row[k] for row in rows], tokenizer) for k in range(len(rows[0]))]
    said = "; ".join(
        f"{name}: {words:.1%} of words, {pieces:.1%} of pieces"
        for name, (words, pieces) in zip(names or column_names(None, len(shares)), shares, strict=True)
    )
    if max(words for words, _ in shares) > MOST_UNKNOWN and not force:
        raise DataError(
            "unknown-words",
            f"too much is unknown to the tokenizer of `{student}`, more than {MOST_UNKNOWN:.0%} of words: {said}",
            "add pieces with `albertkit tokenizer extend --model`, choose another student, or train anyway with --force",
        )  # fmt: skip
    return f"unknown to the tokenizer: {said}"


def reduced(
    vectors: np.ndarray, train: Sequence[int], encoder: SentenceEncoder, settings: DistillSettings
) -> np.ndarray | None:
    """The principal components that a teacher's vectors are reduced to, fp32 [W, D]; None if they are taken as they are.

    Raises:
        ConfigError: bad-settings. DataError: too-few-texts.
    """
    if not settings.teacher_pca or vectors.shape[1] == encoder.dimension:
        return None
    if vectors.shape[1] < encoder.dimension:
        raise ConfigError(
            "bad-settings", f"the teacher's vectors have {vectors.shape[1]} numbers, the student's {encoder.dimension}",
            "leave --teacher-pca out: the student then learns a linear layer",
        )  # fmt: skip
    return principal_components(vectors[train[:100_000]], encoder.dimension)


def add_layer(encoder: SentenceEncoder, rows: Sequence[tuple[str, ...]], vectors: TeacherRows, world: World) -> str:
    """Give a student a linear layer to the teacher's vectors, if it has none of its own, and say so.

    It is there to match dimensions, and where they are equal because the teacher's directions are not the student's. It begins
    as the least-squares fit of the teacher's vectors of some texts. A random one spends hundreds of updates on becoming
    that: after 120 updates of 32 texts an H 256 student had cosine 0.08 with its teacher (Spearman 0.48 on STS-B dev), from
    the fit 0.60 (0.63). With no layer, and the teacher's vectors reduced to 256 numbers, it had 0.26 after 300 updates of 64.

    Args:
        encoder: The student; it gets the layer.
        rows: Training examples of K texts.
        vectors: The teacher's, of their first texts.
        world: The processes: the first fits, all get its layer.

    Raises:
        ConfigError: bad-settings for a student with a layer of its own to vectors of another length.
    """
    some = range(0, len(rows), max(1, len(rows) * len(rows[0]) // _FITTED))
    goals = vectors[np.array(some)]
    before, width = encoder.dimension, goals.shape[1]
    if encoder.projection is not None or encoder.normalize:
        if before != width:
            raise ConfigError(
                "bad-settings", f"the student makes vectors of {before} numbers by a layer of its own, the teacher of {width}",
                "start from the checkpoint that the student was made of",
            )  # fmt: skip
        return f"layer: the student's own, to the teacher's {width} numbers"
    layer = Projection(before, width, "identity").to(world.device)
    encoder.to(world.device)
    if world.is_main:
        features = encoder.features(list(chain.from_iterable(rows[n] for n in some)))
        ours = encoder.vectors_of(features, encoder.engine("fp32"))
        _fit(layer, ours, np.repeat(goals, len(rows[0]), axis=0))
    layer.load_state_dict(world.first({name: tensor.cpu() for name, tensor in layer.state_dict().items()}))
    encoder.projection = layer
    return f"layer: linear, {before} to the teacher's {width} numbers, first fitted to {len(some):,} examples"


def _fit(layer: Projection, ours: np.ndarray, goals: np.ndarray) -> None:
    """Least squares with the penalty that predicts left-out texts best; the bias is not penalised."""
    from sklearn.linear_model import RidgeCV

    fitted = RidgeCV(alphas=np.logspace(-3, 3, 7)).fit(ours, goals)
    with torch.no_grad():
        layer.linear.weight.copy_(torch.from_numpy(fitted.coef_))
        assert layer.linear.bias is not None
        layer.linear.bias.copy_(torch.from_numpy(fitted.intercept_))
