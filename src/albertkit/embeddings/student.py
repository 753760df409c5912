"""How a student fits what it is to learn: the texts to its tokenizer, the teacher's vectors to its own."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.pooling import Projection
from albertkit.embeddings.settings import DistillSettings
from albertkit.embeddings.teacher_vectors import principal_components
from albertkit.errors import ConfigError, DataError
from albertkit.tokenizer import AlbertTokenizer

MOST_UNKNOWN = 0.2  # of the words of a column, for a student to learn anything from them
_LOOKED_AT = 10_000  # texts of a column


def known_words(rows: Sequence[tuple[str, ...]], tokenizer: AlbertTokenizer, student: str | Path, force: bool) -> str:
    """How much of each column the student's tokenizer does not know, in words.

    Raises:
        DataError: unknown-words if it is more than `MOST_UNKNOWN` of a column's words, unless forced.
    """
    shares = [unknown_shares([row[k] for row in rows], tokenizer) for k in range(len(rows[0]))]
    said = "; ".join(
        f"column {k}: {words:.1%} of words, {pieces:.1%} of pieces" for k, (words, pieces) in enumerate(shares, 1)
    )
    if max(words for words, _ in shares) > MOST_UNKNOWN and not force:
        raise DataError(
            "unknown-words",
            f"too much is unknown to the tokenizer of `{student}`, more than {MOST_UNKNOWN:.0%} of words: {said}",
            "add pieces with `albertkit tokenizer extend --model`, choose another student, or train anyway with --force",
        )  # fmt: skip
    return f"unknown to the student's tokenizer: {said}"


def unknown_shares(texts: Sequence[str], tokenizer: AlbertTokenizer) -> tuple[float, float]:
    """Share of the words with an unknown piece, and of the unknown pieces, in up to 10,000 texts from all over."""
    sample = texts[:: max(1, len(texts) // _LOOKED_AT)]
    words = [word for text in sample for word in text.split()]
    ids, offsets = tokenizer.encode_batch(words)
    before = np.concatenate([[0], np.cumsum(ids == tokenizer.unk_id)])
    unknown = np.diff(before[offsets])
    return float(np.mean(unknown > 0)), float(before[-1] / max(len(ids), 1))


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


def matched(encoder: SentenceEncoder, width: int, student: str | Path, components: bool) -> str:
    """Make the student's vectors as wide as their targets, and say how.

    Raises:
        ConfigError: bad-settings.
    """
    if encoder.dimension == width:
        how = "the teacher's principal components" if components else "as many as the teacher's"
        return f"dimension: {width}, {how}"
    if encoder.projection is not None or encoder.normalize:
        raise ConfigError(
            "bad-settings", f"the vectors of `{student}` have {encoder.dimension} numbers, the teacher's {width}",
            "use --teacher-pca, or start from the checkpoint that it was made of",
        )  # fmt: skip
    before = encoder.dimension
    encoder.projection = Projection(before, width, "identity")
    return f"dimension: {before}, and a fresh linear layer to the teacher's {width}, saved with the model"
