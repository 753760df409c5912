"""Outputs of forward passes. Field names are transformers'; fields that were not asked for are None.

B rows of S places, T tokens of N sequences, H hidden, A heads, V vocabulary, C labels.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._pytree import register_pytree_node


class ModelOutput(dict):
    """A dictionary of the fields that are there, in order; also attributes by name, and `output[0]`.

    It is a dictionary because transformers' Trainer, accelerate and `DataParallel` take outputs apart as one, and rebuild
    them from one. Reading an attribute that was not computed gives None.

    Attributes:
        hidden_states: num_hidden_layers + 1 tensors [B, S, H]; the first is the projected embedding.
        attentions: One tensor [B, A, S, S] a layer.
    """

    hidden_states: tuple[Tensor, ...] | None
    attentions: tuple[Tensor, ...] | None

    def __init__(self, values: Mapping[str, Any] | None = None, **named: Any) -> None:
        given = {**(values or {}), **named}
        fields = self.fields()
        if unknown := set(given) - set(fields):
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}")
        super().__init__({name: given[name] for name in fields if given.get(name) is not None})

    def __init_subclass__(cls) -> None:
        register_pytree_node(
            cls,
            lambda output: (list(output.values()), list(output)),
            lambda values, names: cls(dict(zip(names, values, strict=True))),
            serialized_type_name=f"{cls.__module__}.{cls.__name__}",
        )

    @classmethod
    def fields(cls) -> tuple[str, ...]:
        """Return the names of all fields, in order: its own, then those of every output."""
        return *cls.__annotations__, *ModelOutput.__annotations__

    def to_tuple(self) -> tuple[Any, ...]:
        """Return the values that are there, in order."""
        return tuple(self.values())

    def __getattr__(self, name: str) -> Any:
        if name in self.fields():
            return self.get(name)
        raise AttributeError(f"{type(self).__name__} has no field {name!r}")

    def __getitem__(self, key: int | slice | str) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]


class BaseModelOutput(ModelOutput):
    """Output of `AlbertModel`.

    Attributes:
        last_hidden_state: [B, S, H], zeros at padding.
        pooler_output: [B, H], or None without a pooler.
    """

    last_hidden_state: Tensor
    pooler_output: Tensor | None


class PreTrainingOutput(ModelOutput):
    """Output of `AlbertForPreTraining`.

    Attributes:
        loss: 0-d, mean masked-LM loss plus mean sentence-order loss, of the labels that were given.
        prediction_logits: [B, S, V], zeros at padding.
        sop_logits: [B, 2].
    """

    loss: Tensor | None
    prediction_logits: Tensor
    sop_logits: Tensor


class LogitsOutput(ModelOutput):
    """Output of masked LM, classification of sequences and tokens, and multiple choice.

    Attributes:
        loss: 0-d, mean over the labels.
        logits: [B, S, V] or [B, S, C] of tokens, zeros at padding; [B, C] of sequences; [B, choices].
        hidden_states: As in `ModelOutput`; of multiple choice [B·choices, S, H].
        attentions: As in `ModelOutput`; of multiple choice [B·choices, A, S, S].
    """

    loss: Tensor | None
    logits: Tensor


class QuestionAnsweringOutput(ModelOutput):
    """Output of `AlbertForQuestionAnswering`.

    Attributes:
        loss: 0-d, mean of the start and the end loss.
        start_logits: [B, S].
        end_logits: [B, S].
    """

    loss: Tensor | None
    start_logits: Tensor
    end_logits: Tensor


class BeamQuestionAnsweringOutput(ModelOutput):
    """Output of `AlbertForBeamQuestionAnswering`; K starts, and for each of them M ends. Log-probabilities are fp32.

    Attributes:
        loss: 0-d. With labels there are `start_log_probs` and `end_log_probs`, without them the beams.
        start_top_log_probs: [B, K], the likeliest starts, best first.
        start_top_index: int64 [B, K], their places in the row.
        end_top_log_probs: [B, K·M], for start k at k·M the likeliest ends given that start, best first.
        end_top_index: int64 [B, K·M].
        cls_logits: [B], above 0: rather no answer.
        start_log_probs: [B, S], -1e30 where no answer may lie.
        end_log_probs: [B, S], given the true start.
    """

    loss: Tensor | None
    start_top_log_probs: Tensor | None
    start_top_index: Tensor | None
    end_top_log_probs: Tensor | None
    end_top_index: Tensor | None
    cls_logits: Tensor
    start_log_probs: Tensor | None
    end_log_probs: Tensor | None


class PackedOutput(NamedTuple):
    """Output of the encoder on a packed batch."""

    hidden: Tensor  # [T, H]
    pooled: Tensor | None  # [N, H]


class SummedLoss(NamedTuple):
    """A loss over the labels that are there: sum (fp32), number of right predictions, number of labels; 0-d each."""

    loss_sum: Tensor
    correct: Any  # a Tensor; None where nothing is right or wrong: regression
    label_count: Tensor

    def mean(self) -> Tensor:
        """Return the mean loss; 0, not NaN, when there is no label."""
        return self.loss_sum / self.label_count.clamp(min=1)


class PretrainingLosses(NamedTuple):
    """Sums over one packed batch; the training loop divides by the counts of the whole batch.

    Attributes:
        masked_lm_loss_sum: 0-d, fp32, sum over the P predictions, in nats.
        sentence_order_loss_sum: 0-d, fp32, sum over the sequences that have a label.
        masked_lm_correct: 0-d, int64.
        sentence_order_correct: 0-d, int64.
        masked_lm_count: 0-d, int64, P.
        sentence_order_count: 0-d, int64.
    """

    masked_lm_loss_sum: Tensor
    sentence_order_loss_sum: Tensor
    masked_lm_correct: Tensor
    sentence_order_correct: Tensor
    masked_lm_count: Tensor
    sentence_order_count: Tensor
