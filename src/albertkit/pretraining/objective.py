"""Objectives of a pretraining, and what a model reaches on held-out documents: Google's four numbers.

Masked tokens and sentence order, all parameters or new rows, all layers or a growing number: all
layers of an ALBERT share one set of weights, so it can be trained with few layers first, which cost
less.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from albertkit.config import AlbertConfig
from albertkit.corpus import TokenStore
from albertkit.errors import ConfigError, DataError
from albertkit.jit import compiled
from albertkit.model import AlbertForPreTraining, PackedBatch
from albertkit.model.padded import Trace
from albertkit.output.sections import Result
from albertkit.pretraining.examples import foreign_id_error, without_memmap
from albertkit.pretraining.settings import PretrainSettings
from albertkit.training.loop import LossPart, zero_losses
from albertkit.training.monitor import wilson_interval
from albertkit.training.processes import World


class PretrainingObjective:
    """Masked tokens and sentence order, each weighted 1 (paper, section 3.1)."""

    def __init__(self, model: AlbertForPreTraining) -> None:
        self.model = model

    def count_targets(self, batch: PackedBatch) -> dict[str, int]:
        """Count the predictions of each kind in a batch; a kind that is not learned is left out."""
        counts = {}
        if batch.masked_labels is not None:
            counts["masked_lm"] = len(batch.masked_labels)
        if batch.sentence_order_labels is not None:
            counts["sentence_order"] = batch.num_sequences
        return counts

    def losses(self, batch: PackedBatch) -> dict[str, LossPart]:
        """Return the two losses of a batch as sums."""
        if not batch.num_tokens:
            return zero_losses(self.count_targets(batch), batch.input_ids.device)
        return self.predictions(batch)

    def predictions(self, batch: PackedBatch, trace: Trace | None = None) -> dict[str, LossPart]:
        """Return the losses of a batch that is not empty, and its hidden states in `trace`."""
        counts = PretrainingObjective.count_targets(self, batch)
        losses = self.model.pretraining_losses(batch, trace)._asdict()
        return {
            name: LossPart(losses[name].loss_sum, count, losses[name].correct)
            for name, count in counts.items()
        }

    def flops(self, batch: PackedBatch) -> float:
        """Return the floating-point operations of a training step on this batch, real tokens only, nothing recomputed."""
        share = self.count_targets(batch).get("masked_lm", 0) / batch.num_tokens
        a_token = self.model.config.train_flops_per_token(
            batch.mean_length, share, self.model.albert.encoder.depth
        )
        return batch.num_tokens * a_token


def num_layers_at(progress: float, settings: PretrainSettings, layers: int) -> int:
    """Return the number of layers of an update: `start_layers` for a share of the run, then twice as many, and again, each for an
    equal part of the rest; `progress` is the share of the run that is done before it, `layers` what the model has."""
    if settings.start_layers is None:
        return layers
    # More layers cost much and teach little at first: 12 TFLOP with one layer reach the training
    # loss of 40 with four. The loss rises from about 6.7 to 6.85 where two layers begin, and is
    # below again within 60 updates.
    grown = (progress - settings.start_share) / (1 - settings.start_share)
    if grown < 0:
        return settings.start_layers
    doublings = math.ceil(math.log2(layers / settings.start_layers))
    return min(layers, settings.start_layers << 1 + int(grown * doublings + 1e-9))


def check_start_layers(settings: PretrainSettings, config: AlbertConfig) -> None:
    """Refuse settings that begin with fewer layers where the model cannot."""
    if settings.start_layers is None:
        return
    fact = ""
    if config.num_hidden_groups > 1:
        fact = f"start_layers is for a model whose layers share one group of weights, this one has {config.num_hidden_groups}"
    if settings.start_layers >= config.num_hidden_layers:
        fact = f"start_layers is {settings.start_layers}, the model has {config.num_hidden_layers} layers"
    if fact:
        raise ConfigError("bad-value", fact, "leave out --start-layers, or name fewer layers")


def set_num_layers(model: AlbertForPreTraining, layers: int | None) -> None:
    """Let a model use so many layers; None for all."""
    model.albert.encoder.depth = layers


def make_trained_module(
    model: AlbertForPreTraining,
    settings: PretrainSettings,
    first_new: int,
) -> nn.Module:
    """Return what the loop is to train; new rows begin at `first_new` unless the settings name another id.

    A head without a loss is left out. Its gradients would be 0, but decay would still shrink it,
    under LAMB by the whole learning rate at every update: the trust ratio of an update that is
    nothing but decay is 1 / 0.01.
    """
    if settings.train_only == "all":
        without_loss: tuple[str, ...] = ()
        if settings.pair_task == "none":
            without_loss += ("albert.pooler.", "sop_classifier.")
        if not settings.masked_lm_prob:  # the decoder's matrix is the embeddings'
            without_loss += ("predictions.dense.", "predictions.LayerNorm.", "predictions.bias")
        for name, parameter in model.named_parameters():
            if name.startswith(without_loss):
                parameter.requires_grad_(False)
        return model
    first = settings.new_rows_from or first_new
    rows = model.config.vocab_size
    if not 0 < first < rows:
        raise ConfigError(
            "bad-value",
            f"there is no new row: the model has {rows:,}, new ones would begin at {first:,}",
            "say where the new ones begin with --new-rows-from, or leave --train-only out",
        )
    return NewRows(model, first)


class NewRows(nn.Module):
    """The last rows of a model's embeddings and of the bias in its prediction, as the only parameters.

    They share the memory of the whole tensors, whose other rows no optimizer ever sees: no decay,
    no moments, and neither the norm that gradients are clipped by nor LAMB's trust ratio counts
    them.

    Everything else in the model, which is on its device, is frozen; `first` is the id of the first
    row.
    """

    def __init__(self, model: AlbertForPreTraining, first: int) -> None:
        super().__init__()
        self._models = (model,)  # in a tuple, so that its parameters are not this module's
        model.requires_grad_(False)
        for name, parameter in (
            ("words", model.get_input_embeddings().weight),
            ("bias", model.predictions.bias),
        ):
            rows = nn.Parameter(parameter.data[first:])
            self.register_parameter(name, rows)
            parameter.requires_grad_(True)
            parameter.register_post_accumulate_grad_hook(
                partial(_move_gradient_to_rows, rows=rows, first=first)
            )

    def train(self, mode: bool = True) -> "NewRows":
        """Set the mode of the whole model, whose dropout counts."""
        self._models[0].train(mode)
        return super().train(mode)


def _move_gradient_to_rows(parameter: Tensor, rows: nn.Parameter, first: int) -> None:
    """Add the gradient of the parameter's rows from `first` to that of `rows`, and clear the parameter's own."""
    assert parameter.grad is not None
    part = parameter.grad[first:]
    rows.grad = part.clone() if rows.grad is None else rows.grad + part
    parameter.grad = None


# --- evaluation -----------------------------------------------------------------------------------

_GUESSES = 512  # enough to see that all are one token; 61 MB of logits with 30,000 tokens


@dataclass(frozen=True)
class Evaluation(Result):
    """Scores of a model on text that it was not trained on.

    Attributes:
        masked_lm_loss: Cross-entropy of masked tokens, in nats; None, as all that is about them, if
            nothing was masked.
        masked_lm_perplexity: Its exponential: as many equally likely tokens would be as hard to
            guess.
        masked_lm_accuracy: Share of masked tokens whose first guess is right.
        most_guessed: Share of the guesses at the first masked tokens, at most 512, that are one and
            the same token.
        sentence_order_loss: Cross-entropy of the order of two segments, in nats; None without
            pairs.
        sentence_order_accuracy: Share of pairs whose order is recognised; None without pairs.
        sentence_order_interval: 95 % interval of that share (Wilson).
        masked_lm_interval: 95 % interval of masked_lm_accuracy.
        unigram_loss: Cross-entropy of the same masked tokens under the token frequencies of the
            training documents.
        most_frequent_accuracy: Share right when always guessing the training documents' most
            frequent token.
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

    def scalar_metrics(self) -> dict[str, float]:
        """Return the scalar metrics, for logs; counts are whole numbers."""
        return {k: v for k, v in asdict(self).items() if isinstance(v, int | float)}


class Unigram:
    """Token frequencies, the least a language model must beat.

    Args:
        counts: int64 [V], how often each token occurs.

    Attributes:
        most_frequent: The token that occurs most.
    """

    def __init__(self, counts: np.ndarray) -> None:
        self.counts = counts
        self.most_frequent = int(counts.argmax())
        # Add-one smoothing: a token that occurs only in held-out documents must not cost infinity.
        self.log_probabilities = torch.from_numpy(
            np.log((counts + 1) / (counts.sum() + len(counts)))
        )

    @classmethod
    def of_store(
        cls,
        store: TokenStore,
        left_out: list[np.ndarray] | None = None,
        world: World | None = None,
    ) -> "Unigram":
        """Count the tokens of a store.

        Args:
            store: The store.
            left_out: Per shard, documents that are not counted; None counts all.
            world: The processes share the counting, shard by shard: a core counts some 700 million
                tokens a second.
        """
        rank, size = (world.rank, world.size) if world else (0, 1)
        counts = np.zeros(store.vocab_size, np.int64)
        for shard in range(rank, store.num_shards, size):
            counts += _count_tokens(store.tokens[shard], store.vocab_size)
            if left_out is not None:
                starts = store.sentence_offsets[shard][store.document_offsets[shard]]
                for document in np.flatnonzero(left_out[shard]):
                    tokens = store.tokens[shard][starts[document] : starts[document + 1]]
                    counts -= _count_tokens(tokens, store.vocab_size)
        if world:
            counts = world.sum(torch.from_numpy(counts).to(world.device)).cpu().numpy()
        return cls(counts)

    def score(self, labels: torch.Tensor) -> tuple[float, int]:
        """Return the sum of negative log probabilities of labels, and how many of them are the most frequent token."""
        return -float(self.log_probabilities[labels].sum()), int(
            (labels == self.most_frequent).sum()
        )


def _count_tokens(tokens: np.ndarray, vocab_size: int) -> np.ndarray:
    counts = np.zeros(vocab_size, np.int64)
    if (foreign := int(_add_counts(without_memmap(tokens), counts))) >= 0:
        raise foreign_id_error(foreign, vocab_size)
    return counts


@compiled
def _add_counts(tokens: np.ndarray, counts: np.ndarray) -> np.int64:
    """Count tokens and return -1, or the first id that has no count: a damaged file may hold any.

    This is four times as fast as `numpy.bincount`, which copies ids of 16 bits to 64: a terabyte of
    text is 230e9 of them.
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
    # All sums in one tensor: a process without a batch of its own must join the same single
    # reduction as the others.
    baseline = torch.zeros(2, dtype=torch.float64)  # unigram loss, most frequent right
    guesses = torch.zeros(2, dtype=torch.float64)  # those that are the same token, and all
    scored = {
        name: torch.zeros(3, dtype=torch.float64, device=world.device)
        for name in ("masked_lm", "sentence_order")
    }
    for batch in batches:
        on_device = batch.to(world.device)
        if batch.masked_labels is not None:
            baseline += torch.tensor(unigram.score(batch.masked_labels), dtype=torch.float64)
            if not guesses[1]:
                positions, labels = (targets[:_GUESSES] for targets in on_device.masked_targets())
                logits, _ = model.packed_logits(
                    replace(on_device, masked_positions=positions, masked_labels=labels)
                )
                guessed_ids = logits.argmax(-1)
                if len(guessed_ids):
                    guesses[0] = int(torch.bincount(guessed_ids).max())
                    guesses[1] = len(guessed_ids)
        for name, part in objective.losses(on_device).items():
            assert part.correct is not None  # both losses are classifications
            scored[name] += torch.stack(
                [part.total, part.correct, torch.full_like(part.total, part.count)]
            )
    sums = world.sum(
        torch.cat([baseline.to(world.device), guesses.to(world.device), *scored.values()])
    ).tolist()
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
        # exp(709.8) is the largest that a float64 holds.
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
