"""Google's four numbers on held-out documents, compared with what token frequencies alone would give."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch

from albertkit.corpus import TokenStore
from albertkit.errors import DataError
from albertkit.jit import compiled
from albertkit.model import AlbertForPreTraining, PackedBatch
from albertkit.output.sections import Result
from albertkit.pretraining.examples import foreign_id, without_memmap
from albertkit.pretraining.objective import PretrainingObjective
from albertkit.training.monitor import wilson_interval
from albertkit.training.processes import World

_GUESSES = 512  # enough to see that all are one token; 61 MB of logits with 30,000 tokens


@dataclass(frozen=True)
class Evaluation(Result):
    """Scores of a model on text that it was not trained on.

    Attributes:
        masked_lm_loss: Cross-entropy of masked tokens, in nats; None, as all that is about them, if nothing was masked.
        masked_lm_perplexity: Its exponential: as many equally likely tokens would be as hard to guess.
        masked_lm_accuracy: Share of masked tokens whose first guess is right.
        most_guessed: Share of the guesses at the first masked tokens, at most 512, that are one and the same token.
        sentence_order_loss: Cross-entropy of the order of two segments, in nats; None without pairs.
        sentence_order_accuracy: Share of pairs whose order is recognised; None without pairs.
        sentence_order_interval: 95 % interval of that share (Wilson).
        masked_lm_interval: 95 % interval of masked_lm_accuracy.
        unigram_loss: Cross-entropy of the same masked tokens under the token frequencies of the training documents.
        most_frequent_accuracy: Share right when always guessing the training documents' most frequent token.
        masked_lm_count: Masked tokens scored.
        sentence_order_count: Pairs scored.
    """

    masked_lm_loss: float | None
    masked_lm_perplexity: float | None
    masked_lm_accuracy: float | None
    most_guessed: float | None
    sentence_order_loss: float | None
    sentence_order_accuracy: float | None
    sentence_order_interval: tuple[float, float] | None
    masked_lm_interval: tuple[float, float] | None
    unigram_loss: float | None
    most_frequent_accuracy: float | None
    masked_lm_count: int
    sentence_order_count: int

    def numbers(self) -> dict[str, float]:
        """Return the scalar metrics, for logs; counts are whole numbers."""
        return {k: v for k, v in asdict(self).items() if isinstance(v, int | float)}


class Unigram:
    """Token frequencies, the least a language model must beat.

    Args:
        store: The store.
        left_out: Per shard, documents that are not counted; None counts all.
        world: The processes share the counting, shard by shard: a core counts some 700 million tokens a second.

    Attributes:
        counts: int64 [V], how often each token occurs.
        most_frequent: The token that occurs most.
    """

    def __init__(self, store: TokenStore, left_out: list[np.ndarray] | None = None, world: World | None = None) -> None:
        rank, size = (world.rank, world.size) if world else (0, 1)
        counts = np.zeros(store.vocab_size, np.int64)
        for shard in range(rank, store.num_shards, size):
            counts += _count(store.tokens[shard], store.vocab_size)
            if left_out is not None:
                starts = store.sentence_offsets[shard][store.document_offsets[shard]]
                for document in np.flatnonzero(left_out[shard]):
                    tokens = store.tokens[shard][starts[document] : starts[document + 1]]
                    counts -= _count(tokens, store.vocab_size)
        self._set(world.sum(torch.from_numpy(counts).to(world.device)).cpu().numpy() if world else counts)

    @classmethod
    def of_counts(cls, counts: np.ndarray) -> "Unigram":
        """Return the frequencies of counts, int64 [V]."""
        unigram = cls.__new__(cls)
        unigram._set(counts)
        return unigram

    def _set(self, counts: np.ndarray) -> None:
        self.counts = counts
        self.most_frequent = int(counts.argmax())
        # Add-one smoothing: a token that occurs only in held-out documents must not cost infinity.
        self.log_probabilities = torch.from_numpy(np.log((counts + 1) / (counts.sum() + len(counts))))

    def score(self, labels: torch.Tensor) -> tuple[float, int]:
        """Return the sum of negative log probabilities of labels, and how many of them are the most frequent token."""
        return -float(self.log_probabilities[labels].sum()), int((labels == self.most_frequent).sum())


def _count(tokens: np.ndarray, vocab_size: int) -> np.ndarray:
    counts = np.zeros(vocab_size, np.int64)
    if (foreign := int(_add_counts(without_memmap(tokens), counts))) >= 0:
        raise foreign_id(foreign, vocab_size)
    return counts


@compiled
def _add_counts(tokens: np.ndarray, counts: np.ndarray) -> np.int64:
    """Count tokens and return -1, or the first id that has no count: a damaged file may hold any.

    This is four times as fast as `numpy.bincount`, which copies ids of 16 bits to 64: a terabyte of text is 230e9 of them.
    """
    for i in range(len(tokens)):
        if tokens[i] >= len(counts):
            return np.int64(tokens[i])
        counts[tokens[i]] += 1
    return np.int64(-1)


@torch.inference_mode()
def evaluate_batches(
    model: AlbertForPreTraining, batches: Iterable[PackedBatch], unigram: Unigram, world: World
) -> Evaluation:
    """Score a model on batches; each process scores its own, the result is of all."""
    objective = PretrainingObjective(model)
    # All sums in one tensor: a process without a batch of its own must join the same single reduction as the others.
    baseline = torch.zeros(2, dtype=torch.float64)  # unigram loss, most frequent right
    guesses = torch.zeros(2, dtype=torch.float64)  # those that are the same token, and all
    scored = {
        name: torch.zeros(3, dtype=torch.float64, device=world.device) for name in ("masked_lm", "sentence_order")
    }
    for batch in batches:
        on_device = batch.to(world.device)
        if batch.masked_labels is not None:
            baseline += torch.tensor(unigram.score(batch.masked_labels), dtype=torch.float64)
            if not guesses[1]:
                positions, labels = (targets[:_GUESSES] for targets in on_device.masked_targets())
                logits, _ = model.packed_logits(replace(on_device, masked_positions=positions, masked_labels=labels))
                guessed_ids = logits.argmax(-1)
                if len(guessed_ids):
                    guesses[0] = int(torch.bincount(guessed_ids).max())
                    guesses[1] = len(guessed_ids)
        for name, part in objective.losses(on_device).items():
            assert part.correct is not None  # both losses are classifications
            scored[name] += torch.stack([part.total, part.correct, torch.full_like(part.total, part.count)])
    sums = world.sum(torch.cat([baseline.to(world.device), guesses.to(world.device), *scored.values()])).tolist()
    (
        unigram_loss,
        most_frequent,
        commonest_guesses,
        guessed,
        loss,
        right,
        predictions,
        order_loss,
        order_right,
        pairs,
    ) = sums
    if not predictions and not pairs:
        raise DataError(
            "too-little-data",
            "there is no held-out document with two sentences to evaluate on",
            "hold out a larger share of documents with --held-out, or use a larger corpus",
        )

    def share(total: float, count: float) -> float | None:
        return total / count if count else None

    mean = share(loss, predictions)
    return Evaluation(
        masked_lm_loss=mean,
        masked_lm_perplexity=None if mean is None else math.exp(min(mean, 700.0)),
        masked_lm_accuracy=share(right, predictions),
        most_guessed=share(commonest_guesses, guessed),
        sentence_order_loss=share(order_loss, pairs),
        sentence_order_accuracy=share(order_right, pairs),
        sentence_order_interval=wilson_interval(int(order_right), int(pairs)) if pairs else None,
        masked_lm_interval=wilson_interval(int(right), int(predictions)) if predictions else None,
        unigram_loss=share(unigram_loss, predictions),
        most_frequent_accuracy=share(most_frequent, predictions),
        masked_lm_count=int(predictions),
        sentence_order_count=int(pairs),
    )
