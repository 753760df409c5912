"""Dev examples of a training of sentence embeddings, and what vectors of them are worth.

E examples of K texts each, vectors of D numbers.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch

from albertkit.data.features import Features
from albertkit.data.stream import cut_by_tokens
from albertkit.embeddings.data import Examples
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.metrics import (
    constants,
    correlation_intervals,
    correlations,
    retrieval_figures,
    row_cosines,
    unit_vectors,
)
from albertkit.files import sha256_bytes
from albertkit.tasks.data import fingerprint
from albertkit.training.distributed import World
from albertkit.training.metrics import wilson_interval

_BATCH_TOKENS = 8192  # most tokens of dev texts computed at once
Metric = Literal["spearman", "retrieval", "negative_mse"]


class ScoredDev:
    """Scores pairs that people scored, on any scale: does the cosine follow their scores?"""

    metric: Metric = "spearman"

    def __init__(self, examples: Examples) -> None:
        assert examples.targets is not None
        self.texts, self.scores = examples.texts, examples.targets

    def score(self, vectors: np.ndarray) -> dict[str, float]:
        """Return spearman and pearson of the cosines of [E, 2, D] with the scores; NaN where not defined."""
        scores = correlations(self.scores, row_cosines(vectors[:, 0], vectors[:, 1]))
        return {name: math.nan if (value := scores[name]) is None else value for name in ("spearman", "pearson")}

    def intervals(self, vectors: np.ndarray) -> dict[str, tuple[float, float]]:
        """Return 95 % intervals, by bootstrap over the pairs."""
        return correlation_intervals(self.scores, row_cosines(vectors[:, 0], vectors[:, 1]))

    def constant(self, vectors: np.ndarray) -> list[str]:
        """List constant inputs, for which a correlation is undefined."""
        return constants(vectors[:, 0], vectors[:, 1], self.scores)


class PairDev:
    """Scores texts that mean the same: does a text find its own among those of all examples, from the first column to each
    other one and back?
    """

    metric: Metric = "retrieval"

    def __init__(self, texts: Sequence[tuple[str, ...]]) -> None:
        self.texts = texts

    def score(self, vectors: np.ndarray) -> dict[str, float]:
        """Return retrieval, the mean of retrieval_forward and retrieval_backward, of [E, K, D]; shares of the examples."""
        figures = []
        for column in range(1, vectors.shape[1]):
            sides = [row[0] for row in self.texts], [row[column] for row in self.texts]
            figures.append(retrieval_figures(unit_vectors(vectors[:, 0]), unit_vectors(vectors[:, column]), *sides))
        forward, backward = (
            float(np.mean([of_column[direction] for of_column in figures])) for direction in ("forward", "backward")
        )
        directions = {"retrieval_forward": forward, "retrieval_backward": backward}
        return {"retrieval": (forward + backward) / 2, **directions}

    def intervals(self, vectors: np.ndarray) -> dict[str, tuple[float, float]]:
        """Return 95 % intervals of the shares, by Wilson's formula."""
        shares, count = self.score(vectors), len(vectors)
        return {name: wilson_interval(round(shares[name] * count), count) for name in shares if name != self.metric}

    def constant(self, vectors: np.ndarray) -> list[str]:
        """List constant inputs, for which retrieval is undefined."""
        return constants(vectors[:, 0], vectors[:, 1])


class TeacherDev:
    """Scores E examples of K texts by a teacher's vectors of the first ones, fp32 [E, D]: how far are ours?"""

    metric: Metric = "negative_mse"

    def __init__(self, texts: Sequence[tuple[str, ...]], targets: np.ndarray) -> None:
        self.texts, self.targets = texts, targets

    def score(self, vectors: np.ndarray) -> dict[str, float]:
        """Return minus the mean squared difference (larger is better) of [E, K, D], and the mean cosine with the teacher."""
        error = float(np.mean((vectors - self.targets[:, None]) ** 2, dtype=np.float64))
        alike = [row_cosines(vectors[:, k], self.targets) for k in range(vectors.shape[1])]
        return {"negative_mse": -error, "cosine_to_teacher": float(np.mean(alike))}

    def intervals(self, vectors: np.ndarray) -> dict[str, tuple[float, float]]:
        """Return none: there is no formula for them."""
        return {}

    def constant(self, vectors: np.ndarray) -> list[str]:
        """List constant inputs, for which the measure is undefined."""
        return constants(vectors[:, 0], np.roll(vectors[:, 0], 1, axis=0))


AnyDev = ScoredDev | PairDev | TeacherDev


class Evaluator:
    """Makes vectors of dev texts with an encoder under training, and scores them.

    Metrics of a later dev set do not replace those of one before. The processes share the work, and each gets all.
    """

    def __init__(self, devs: Sequence[AnyDev], encoder: SentenceEncoder, world: World) -> None:
        self.devs, self._world = devs, world
        # By the identity of the texts, because dev sets may share theirs.
        self._features = {id(d.texts): encoder.features([text for row in d.texts for text in row]) for d in devs}
        self.constant: list[str] = []  # by the last `measure`

    @property
    def num_texts(self) -> int:
        """Number of texts of all dev sets; shared ones count once."""
        return sum(features.num_sequences for features in self._features.values())

    @property
    def num_truncated(self) -> int:
        """Number of them that are longer than the encoder reads and are cut."""
        return sum(features.num_truncated for features in self._features.values())

    def fingerprint(self) -> str:
        """Return the SHA-256 of the dev examples: a run is only resumed with the same."""
        content = "".join(fingerprint(self._features[id(dev.texts)]) for dev in self.devs).encode()
        for dev in self.devs:
            if isinstance(dev, ScoredDev):
                content += np.ascontiguousarray(dev.scores).tobytes()
        return sha256_bytes(content)

    def measure(self, encoder: SentenceEncoder, intervals: bool = False) -> tuple[dict[str, float], dict[str, Any]]:
        """Return all metrics and, if wanted, their intervals."""
        scores: dict[str, float] = {}
        all_intervals: dict[str, Any] = {}
        self.constant = []
        vectors_of = {texts_id: self._vectors(encoder, features) for texts_id, features in self._features.items()}
        for dev in self.devs:
            vectors = vectors_of[id(dev.texts)].reshape(len(dev.texts), len(dev.texts[0]), -1)
            scores = {**dev.score(vectors), **scores}
            all_intervals |= dev.intervals(vectors) if intervals else {}
            self.constant += [line for line in dev.constant(vectors) if line not in self.constant]
        return scores, all_intervals

    @torch.inference_mode()
    def _vectors(self, encoder: SentenceEncoder, features: Features) -> np.ndarray:
        """Return vectors of all texts of a dev set, fp32 [E K, D]."""
        vectors = np.zeros((features.num_sequences, encoder.dimension), np.float32)
        order = np.argsort(features.lengths, kind="stable")
        runs = cut_by_tokens(features.lengths[order], _BATCH_TOKENS, order)
        for run in runs[self._world.rank :: self._world.size]:
            vectors[run] = encoder(features.batch(run).packed.to(encoder.albert.device)).cpu().numpy()
        # A row is zero in all processes but one.
        return self._world.sum(torch.from_numpy(vectors).to(self._world.device)).cpu().numpy()
