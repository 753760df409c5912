"""Objectives of a pretraining: masked tokens and sentence order, all parameters or new rows, all layers or a growing number.

All layers of an ALBERT share one set of weights, so it can be trained with few layers first, which cost less.
"""

import math
from functools import partial

from torch import Tensor, nn

from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError
from albertkit.model import AlbertForPreTraining, PackedBatch
from albertkit.pretraining.settings import PretrainSettings
from albertkit.training.loop import LossPart, no_losses


class PretrainingObjective:
    """Masked tokens and sentence order, each weighted 1 (paper, section 3.1)."""

    def __init__(self, model: AlbertForPreTraining) -> None:
        self.model = model

    def counts(self, batch: PackedBatch) -> dict[str, int]:
        """Count the predictions of each kind in a batch; a kind that is not learned is left out."""
        counts = {}
        if batch.masked_labels is not None:
            counts["masked_lm"] = len(batch.masked_labels)
        if batch.sentence_order_labels is not None:
            counts["sentence_order"] = batch.num_sequences
        return counts

    def losses(self, batch: PackedBatch) -> dict[str, LossPart]:
        """Return the two losses of a batch as sums."""
        counts = self.counts(batch)
        if not batch.num_tokens:
            return no_losses(counts, batch.input_ids.device)
        losses = self.model.pretraining_losses(batch)
        parts = {}
        if "masked_lm" in counts:
            parts["masked_lm"] = LossPart(losses.masked_lm_loss_sum, counts["masked_lm"], losses.masked_lm_correct)
        if "sentence_order" in counts:
            parts["sentence_order"] = LossPart(
                losses.sentence_order_loss_sum, counts["sentence_order"], losses.sentence_order_correct
            )
        return parts

    def flops(self, batch: PackedBatch) -> float:
        """Return the floating-point operations of a training step on this batch, real tokens only, nothing recomputed."""
        squares = sum(n * n for n in batch.lengths)
        share = self.counts(batch).get("masked_lm", 0) / batch.num_tokens
        a_token = self.model.config.train_flops_per_token(
            squares / batch.num_tokens, share, self.model.albert.encoder.depth
        )
        return batch.num_tokens * a_token


def layers_at(progress: float, settings: PretrainSettings, layers: int) -> int:
    """Return the number of layers of an update: `start_layers` for a share of the run, then twice as many, and again, each for an
    equal part of the rest; `progress` is the share of the run that is done before it, `layers` what the model has."""
    if settings.start_layers is None:
        return layers
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


def use_layers(model: AlbertForPreTraining, layers: int | None) -> None:
    """Let a model use so many layers; None for all."""
    model.albert.encoder.depth = layers


def trained_part(model: AlbertForPreTraining, settings: PretrainSettings, first_new: int) -> nn.Module:
    """Return what the loop is to train; new rows begin at `first_new` unless the settings name another id.

    A head without a loss is left out. Its gradients would be 0, but decay would still shrink it, under LAMB by the whole
    learning rate at every update: the trust ratio of an update that is nothing but decay is 1 / 0.01.
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
    first, rows = settings.new_rows_from or first_new, model.config.vocab_size
    if not 0 < first < rows:
        raise ConfigError(
            "bad-value",
            f"there is no new row: the model has {rows:,}, new ones would begin at {first:,}",
            "say where the new ones begin with --new-rows-from, or leave --train-only out",
        )
    return NewRows(model, first)


class NewRows(nn.Module):
    """The last rows of a model's embeddings and of the bias in its prediction, as the only parameters.

    They share the memory of the whole tensors, whose other rows no optimizer ever sees: no decay, no moments, and neither
    the norm that gradients are clipped by nor LAMB's trust ratio counts them.

    Everything else in the model, which is on its device, is frozen; `first` is the id of the first row.
    """

    def __init__(self, model: AlbertForPreTraining, first: int) -> None:
        super().__init__()
        self._models = (model,)  # in a tuple, so that its parameters are not this module's
        model.requires_grad_(False)
        for name, parameter in (("words", model.get_input_embeddings().weight), ("bias", model.predictions.bias)):
            rows = nn.Parameter(parameter.data[first:])
            self.register_parameter(name, rows)
            parameter.requires_grad_(True)
            parameter.register_post_accumulate_grad_hook(partial(_move_gradient, rows=rows, first=first))

    def train(self, mode: bool = True) -> "NewRows":
        """Set the mode of the whole model, whose dropout counts."""
        self._models[0].train(mode)
        return super().train(mode)


def _move_gradient(parameter: Tensor, rows: nn.Parameter, first: int) -> None:
    """Add the rows' part of a gradient to theirs; the rest is dropped."""
    assert parameter.grad is not None
    part = parameter.grad[first:]
    rows.grad = part.clone() if rows.grad is None else rows.grad + part
    parameter.grad = None
