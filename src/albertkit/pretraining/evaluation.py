"""Google's four numbers on held-out documents, beside what knowing nothing but piece frequencies would give."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from albertkit.corpus import TokenStore
from albertkit.errors import DataError
from albertkit.model import AlbertForPreTraining, PackedBatch
from albertkit.pretraining.objective import PretrainingObjective
from albertkit.report.results import wilson_interval
from albertkit.training.distributed import World

_CHUNK = 1 << 24  # tokens counted at a time: 32 MB of uint16


@dataclass(frozen=True)
class Evaluation:
    """What a model knows of text it was not trained on.

    Attributes:
        masked_lm_loss: Cross-entropy of masked pieces, in nats.
        masked_lm_accuracy: Share of masked pieces whose first guess is right.
        sentence_order_loss: Cross-entropy of the order of two segments, in nats; None without pairs.
        sentence_order_accuracy: Share of pairs told right; None without pairs.
        sentence_order_interval: 95 % interval of that share (Wilson).
        masked_lm_interval: 95 % interval of masked_lm_accuracy.
        unigram_loss: Cross-entropy of the same masked pieces under the piece frequencies of the training documents.
        most_frequent_accuracy: Share right when always guessing the training documents' most frequent piece.
        masked_lm_count: Masked pieces scored.
        sentence_order_count: Pairs scored.
    """

    masked_lm_loss: float
    masked_lm_accuracy: float
    sentence_order_loss: float | None
    sentence_order_accuracy: float | None
    sentence_order_interval: tuple[float, float] | None
    masked_lm_interval: tuple[float, float]
    unigram_loss: float
    most_frequent_accuracy: float
    masked_lm_count: int
    sentence_order_count: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def numbers(self) -> dict[str, float]:
        """The scalar metrics, for logs."""
        return {k: float(v) for k, v in asdict(self).items() if isinstance(v, int | float)}


class Unigram:
    """Piece frequencies, the least a language model must beat.

    Args:
        store: The store.
        left_out: Per shard, documents that are not counted; None counts all.
    """

    def __init__(self, store: TokenStore, left_out: list[np.ndarray] | None = None) -> None:
        counts = np.zeros(store.vocab_size, np.int64)
        for shard in range(store.num_shards):
            counts += _count(store.tokens[shard], store.vocab_size)
            if left_out is not None:
                starts = store.sentence_offsets[shard][store.document_offsets[shard]]
                for document in np.flatnonzero(left_out[shard]):
                    tokens = store.tokens[shard][starts[document] : starts[document + 1]]
                    counts -= _count(tokens, store.vocab_size)
        self._set(counts)

    @classmethod
    def of_counts(cls, counts: np.ndarray) -> "Unigram":
        """The same from counts, int64 [V]."""
        unigram = cls.__new__(cls)
        unigram._set(counts)
        return unigram

    def _set(self, counts: np.ndarray) -> None:
        self.most_frequent = int(counts.argmax())
        # Add-one smoothing: a piece that occurs only in held-out documents must not cost infinity.
        self.log_probabilities = torch.from_numpy(np.log((counts + 1) / (counts.sum() + len(counts))))

    def score(self, labels: torch.Tensor) -> tuple[float, int]:
        """Sum of negative log probabilities of labels, and how many of them are the most frequent piece."""
        return -float(self.log_probabilities[labels].sum()), int((labels == self.most_frequent).sum())


def _count(tokens: np.ndarray, vocab_size: int) -> np.ndarray:
    counts = np.zeros(vocab_size, np.int64)
    for start in range(0, len(tokens), _CHUNK):
        counts += np.bincount(tokens[start : start + _CHUNK], minlength=vocab_size)
    return counts


@torch.inference_mode()
def evaluate_batches(
    model: AlbertForPreTraining, batches: Iterable[PackedBatch], unigram: Unigram, world: World
) -> Evaluation:
    """Score a model on batches; each process scores its own, the result is of all.

    Raises:
        DataError: nothing-to-evaluate.
    """
    objective = PretrainingObjective(model)
    # All sums in one tensor: a process without a batch of its own must join the same single reduction as the others.
    baseline = torch.zeros(2, dtype=torch.float64)  # unigram loss, most frequent right
    scored = {
        name: torch.zeros(3, dtype=torch.float64, device=world.device) for name in ("masked_lm", "sentence_order")
    }
    for batch in batches:
        assert batch.masked_labels is not None  # the evaluation stream always masks
        baseline += torch.tensor(unigram.score(batch.masked_labels), dtype=torch.float64)
        for name, part in objective.losses(batch.to(world.device)).items():
            assert part.correct is not None  # both losses are classifications
            scored[name] += torch.stack([part.total, part.correct, torch.full_like(part.total, part.count)])
    sums = world.sum(torch.cat([baseline.to(world.device), *scored.values()])).tolist()
    unigram_loss, most_frequent, loss, right, predictions, order_loss, order_right, pairs = sums
    if not predictions:
        raise DataError(
            "nothing-to-evaluate", "there is no held-out document with two sentences to evaluate on",
            "hold out a larger share of documents with --held-out, or use a larger corpus",
        )  # fmt: skip
    return Evaluation(
        masked_lm_loss=loss / predictions,
        masked_lm_accuracy=right / predictions,
        sentence_order_loss=order_loss / pairs if pairs else None,
        sentence_order_accuracy=order_right / pairs if pairs else None,
        sentence_order_interval=wilson_interval(int(order_right), int(pairs)) if pairs else None,
        masked_lm_interval=wilson_interval(int(right), int(predictions)),
        unigram_loss=unigram_loss / predictions,
        most_frequent_accuracy=most_frequent / predictions,
        masked_lm_count=int(predictions),
        sentence_order_count=int(pairs),
    )
