"""Which parameters a run trains: those that its losses reach, or only the rows of new pieces."""

from functools import partial

from torch import Tensor, nn

from albertkit.errors import ConfigError
from albertkit.model import AlbertForPreTraining
from albertkit.pretraining.settings import PretrainSettings


def trained_part(model: AlbertForPreTraining, settings: PretrainSettings, first_new: int) -> nn.Module:
    """What the loop is to train.

    A head without a loss is left out. Its gradients would be 0, but decay would still shrink it, under LAMB by the whole
    learning rate at every update: the trust ratio of an update that is nothing but decay is 1 / 0.01.

    Args:
        model: On its device.
        settings: Of the run.
        first_new: Where the rows begin that the continued model did not have, or had got and not trained.

    Raises:
        ConfigError: bad-settings if there are no new rows.
    """
    if settings.train_only == "all":
        for name, parameter in model.named_parameters():
            if name.startswith(_without_loss(settings)):
                parameter.requires_grad_(False)
        return model
    first, rows = settings.new_rows_from or first_new, model.config.vocab_size
    if not 0 < first < rows:
        raise ConfigError(
            "bad-settings", f"there is no new row: the model has {rows:,}, new ones would begin at {first:,}",
            "say where the new ones begin with --new-rows-from, or leave --train-only out",
        )  # fmt: skip
    return NewRows(model, first)


def _without_loss(settings: PretrainSettings) -> tuple[str, ...]:
    """How the names of parameters begin that no loss reaches; the decoder's matrix is the embeddings'."""
    order = () if settings.pair_task != "none" else ("albert.pooler.", "sop_classifier.")
    prediction = ("predictions.dense.", "predictions.LayerNorm.", "predictions.bias")
    return order if settings.masked_lm_prob else (*order, *prediction)


class NewRows(nn.Module):
    """The last rows of a model's embeddings and of the bias in its prediction, as the only parameters.

    They share the memory of the whole tensors, whose other rows no optimizer ever sees: no decay, no moments, and neither
    the norm that gradients are clipped by nor LAMB's trust ratio counts them.

    Args:
        model: On its device; everything else in it is frozen.
        first: Id of the first row.
    """

    def __init__(self, model: AlbertForPreTraining, first: int) -> None:
        super().__init__()
        self._whole = (model,)  # in a tuple, so that its parameters are not this module's
        model.requires_grad_(False)
        for name, whole in (("words", model.get_input_embeddings().weight), ("bias", model.predictions.bias)):
            rows = nn.Parameter(whole.data[first:])
            self.register_parameter(name, rows)
            whole.requires_grad_(True)
            whole.register_post_accumulate_grad_hook(partial(_hand_over, rows=rows, first=first))

    def train(self, mode: bool = True) -> "NewRows":
        """Of the whole model."""
        self._whole[0].train(mode)
        return super().train(mode)


def _hand_over(whole: Tensor, rows: nn.Parameter, first: int) -> None:
    """Add the rows' part of a gradient to theirs; the rest is dropped."""
    assert whole.grad is not None
    part = whole.grad[first:]
    rows.grad = part.clone() if rows.grad is None else rows.grad + part
    whole.grad = None
