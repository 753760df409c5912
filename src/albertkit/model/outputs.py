"""What forward passes return. Field names are transformers'; fields that were not asked for are None."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from torch import Tensor


@dataclass
class ModelOutput:
    """Attributes by name; also `output["logits"]`, and `output[0]` or unpacking over the fields that are not None."""

    def to_tuple(self) -> tuple[Any, ...]:
        """The fields that are not None, in order."""
        return tuple(value for f in fields(self) if (value := getattr(self, f.name)) is not None)

    def __getitem__(self, key: int | slice | str) -> Any:
        return getattr(self, key) if isinstance(key, str) else self.to_tuple()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_tuple())


@dataclass
class BaseModelOutput(ModelOutput):
    """Of `AlbertModel`.

    Attributes:
        last_hidden_state: [B, S, H], zeros at padding.
        pooler_output: [B, H], or None without a pooler.
        hidden_states: passes + 1 tensors [B, S, H]; the first is the projected embedding.
        attentions: One tensor [B, A, S, S] a pass.
    """

    last_hidden_state: Tensor
    pooler_output: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass
class PreTrainingOutput(ModelOutput):
    """Of `AlbertForPreTraining`.

    Attributes:
        loss: 0-d, mean masked-LM loss plus mean sentence-order loss, of the labels that were given.
        prediction_logits: [B, S, V], zeros at padding.
        sop_logits: [B, 2].
        hidden_states: As in `BaseModelOutput`.
        attentions: As in `BaseModelOutput`.
    """

    loss: Tensor | None
    prediction_logits: Tensor
    sop_logits: Tensor
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass
class MaskedLMOutput(ModelOutput):
    """Of `AlbertForMaskedLM`.

    Attributes:
        loss: 0-d, mean over the labels.
        logits: [B, S, V], zeros at padding.
        hidden_states: As in `BaseModelOutput`.
        attentions: As in `BaseModelOutput`.
    """

    loss: Tensor | None
    logits: Tensor
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class PackedOutput(NamedTuple):
    """Of the encoder on a packed batch."""

    hidden: Tensor  # [T, H]
    pooled: Tensor | None  # [N, H]


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
