"""Outputs of models, and padded rows at their edge: taken apart for the encoder, and laid out again for the output.

B rows of S places. There are two ways to compute them, which agree at every real token:

- packed, which is the rule: the real tokens are taken out, computed, and laid out again with zeros at padding;
- padded: every place is computed, and no token attends to padding. No shape depends on a value, which `torch.compile` and
  `torch.export` ask for; and question answering needs what transformers computes at padding (see
  `classes.py`).

A mask may have holes: the tokens around a hole keep their positions. A row is pooled from its first
real token.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypedDict, TypeVar

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.utils._pytree import register_pytree_node

from albertkit.batches.packed import PackedBatch, check_padded_shapes, unpack
from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError, DataError
from albertkit.tables import IGNORED


def is_recorded_or_transformed() -> bool:
    """Return whether a compiler, a tracer or torch.func sees the operations: none may hide its own or look at values."""
    # A compiler follows the first alone
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
    )


class ModelOutput(OrderedDict):
    """A dictionary of the computed fields, in order; also attributes by name, and `output[0]`.

    It is a dictionary because transformers' Trainer, accelerate and `DataParallel` take outputs
    apart as one, and rebuild them from one; FSDP rebuilds an ordered one alone. Reading an
    attribute that was not computed gives None.

    Attributes:
        hidden_states: num_hidden_layers + 1 tensors [B, S, H]; the first is the projected
            embedding.
        attentions: One tensor [B, A, S, S] a layer.
    """

    hidden_states: tuple[Tensor, ...] | None
    attentions: tuple[Tensor, ...] | None

    def __init__(
        self,
        values: Mapping[str, Any] | Iterable[tuple[str, Any]] | None = None,
        **fields_by_name: Any,
    ) -> None:
        all_values = dict(values or (), **fields_by_name)
        fields = self.fields()
        if unknown := set(all_values) - set(fields):
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}")
        super().__init__(
            {name: all_values[name] for name in fields if all_values.get(name) is not None}
        )

    def __init_subclass__(cls) -> None:
        # `torch.export` takes outputs apart by it.
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
        logits: [B, S, V] or [B, S, C] of tokens, zeros at padding; [B, C] of sequences; [B,
            choices].
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
        loss: 0-d. With labels there are `start_log_probs` and `end_log_probs`, without them the
            beams.
        start_top_log_probs: [B, K], the likeliest starts, best first.
        start_top_index: int64 [B, K], their places in the row.
        end_top_log_probs: [B, K·M], for start k at k·M the likeliest ends given that start, best
            first.
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
    """A loss over the labels: sum (fp32), number of right predictions, number of labels; 0-d each."""

    loss_sum: Tensor
    correct: Any  # a Tensor; None where nothing is right or wrong: regression
    label_count: Tensor

    def mean(self) -> Tensor:
        """Return the mean loss; 0, not NaN, when there is no label."""
        return self.loss_sum / self.label_count.clamp(min=1)


class PretrainingLosses(NamedTuple):
    """Sums over one packed batch; the training loop divides by the counts of the whole batch."""

    masked_lm: SummedLoss  # over the P predictions
    sentence_order: SummedLoss  # over the sequences that have a label


Output = TypeVar("Output", bound=ModelOutput)


@dataclass(frozen=True, eq=False)
class PaddedBatch:
    """Rows computed with their padding: T = B·S tokens, row after row.

    Attributes:
        input_ids: int64 [B·S].
        token_type_ids: int64 [B·S].
        position_ids: int64 [B·S].
        mask: bool [B, S], False at padding.
    """

    input_ids: Tensor
    token_type_ids: Tensor
    position_ids: Tensor
    mask: Tensor

    @property
    def longest(self) -> int:
        """Length of the rows, padding included."""
        return self.mask.shape[1]

    @property
    def starts(self) -> Tensor:
        """int64 [B], index of the first real token of each row."""
        rows, width = self.mask.shape
        # (torch has no argmax of bool.)
        return torch.arange(rows, device=self.mask.device) * width + self.mask.int().argmax(1)


class PassOptions(TypedDict, total=False):
    """Options of every padded forward pass, by name.

    Attributes:
        output_hidden_states: Return the output of every layer. Default: no.
        output_attentions: Return the attention probabilities of every layer. Default: no.
        return_dict: False returns a plain tuple of the computed fields. The default of these three
            stands in the configuration.
        head_mask: None, which transformers 4's callers pass.
        num_items_in_batch: Labels in the whole batch of which this is a part; the loss is then the
            sum over this part divided by it, so that accumulated parts are one big batch.
            transformers' Trainer passes it.
    """

    output_hidden_states: bool | None
    output_attentions: bool | None
    return_dict: bool | None
    head_mask: None
    num_items_in_batch: Tensor | int | None


class Trace:
    """Lists that collect hidden states and attentions, each None unless requested."""

    def __init__(self, hidden_states: bool | None, attentions: bool | None) -> None:
        self.hidden_states: list[Tensor] | None = [] if hidden_states else None
        self.attentions: list[list[Tensor] | Tensor] | None = [] if attentions else None


class Encodes(Protocol):
    """The encoder that `PaddedPass` runs: an `AlbertModel`."""

    config: AlbertConfig

    def encode(
        self, batch: PaddedBatch | PackedBatch, trace: Trace | None, *, words: Tensor | None
    ) -> PackedOutput:
        """Run a batch; see `AlbertModel.encode`."""


class PaddedPass:
    """One forward pass over padded rows, and the conversion of its results to rows.

    Args:
        model: The model whose encoder runs.
        input_ids: int64 [B, S].
        attention_mask: [B, S], 0 at padding. Default: no padding.
        token_type_ids: int64 [B, S]. Default: 0.
        position_ids: int64 [S] or [B, S]. Default: 0 to S-1.
        inputs_embeds: [B, S, E], word embeddings in place of `input_ids`.
        keep_padding: Compute padding too.

    Attributes:
        hidden: [T, H].
        pooled: [B, H], or None without a pooler.
    """

    def __init__(
        self,
        model: Encodes,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        position_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        keep_padding: bool = False,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        head_mask: None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> None:
        if (input_ids is None) == (inputs_embeds is None):
            subject = "neither" if input_ids is None else "both"
            hint = "give one of the two, by name: transformers 4 had head_mask before inputs_embeds"
            raise ConfigError("bad-value", f"{subject} of input_ids and inputs_embeds given", hint)
        if head_mask is not None:
            raise ConfigError(
                "bad-value", "head_mask: heads cannot be switched off", "leave it out"
            )
        if inputs_embeds is not None:
            input_ids = torch.zeros(
                inputs_embeds.shape[:-1], dtype=torch.int64, device=inputs_embeds.device
            )
        assert input_ids is not None
        if token_type_ids is not None and token_type_ids.shape == (1, *input_ids.shape[1:]):
            token_type_ids = token_type_ids.expand_as(input_ids)
        # Where a pass is recorded no shape may depend on a value.
        self.packed = not (keep_padding or is_recorded_or_transformed())
        self.mask = (
            torch.ones_like(input_ids, dtype=torch.bool)
            if attention_mask is None
            else attention_mask != 0
        )
        outputs = {
            "output_hidden_states": output_hidden_states,
            "output_attentions": output_attentions,
            "return_dict": return_dict,
        }
        outputs = {
            name: model.config.foreign.get(name) if value is None else value
            for name, value in outputs.items()
        }
        self.return_dict = outputs["return_dict"] is not False
        self.num_items = num_items_in_batch
        self.trace = Trace(outputs["output_hidden_states"], outputs["output_attentions"])
        batch: PackedBatch | PaddedBatch
        if self.packed:
            batch = PackedBatch.from_padded(input_ids, attention_mask, token_type_ids, position_ids)
        else:
            batch = self._with_padding(input_ids, token_type_ids, position_ids)
        words = None if inputs_embeds is None else self._tokens(inputs_embeds)
        self.hidden, self.pooled = model.encode(batch, self.trace, words=words)

    def _with_padding(
        self, input_ids: Tensor, token_type_ids: Tensor | None, position_ids: Tensor | None
    ) -> PaddedBatch:
        check_padded_shapes(input_ids, attention_mask=self.mask, token_type_ids=token_type_ids)
        if (
            not is_recorded_or_transformed()
            # A recorded pass cannot look at values.
            and not self.mask.any(1).all()
        ):
            raise DataError("empty", "a row is all padding", "leave empty rows out of the batch")
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)
        position_ids = position_ids.expand_as(input_ids)
        return PaddedBatch(
            input_ids.flatten(), token_type_ids.flatten(), position_ids.flatten(), self.mask
        )

    def _tokens(self, values: Tensor) -> Tensor:
        """Map [B, S, ...] to [T, ...]."""
        return values[self.mask] if self.packed else values.flatten(0, 1)

    def flat_labels(self, padded_labels: Tensor) -> Tensor:
        """Return the labels [T] of token labels [B, S]; those at padding do not count."""
        if padded_labels.shape != self.mask.shape:
            raise ConfigError(
                "bad-value",
                f"labels has shape {list(padded_labels.shape)}, input {list(self.mask.shape)}",
            )
        return self._tokens(
            padded_labels if self.packed else padded_labels.masked_fill(~self.mask, IGNORED)
        )

    def rows(self, values: Tensor) -> Tensor:
        """Map [T, ...] to [B, S, ...], zeros at padding."""
        if self.packed:
            return unpack(values, self.mask)
        rows = values.view(*self.mask.shape, *values.shape[1:])
        return rows.masked_fill(~self.mask.view(*self.mask.shape, *[1] * (values.dim() - 1)), 0)

    def mean(self, loss: SummedLoss) -> Tensor:
        """Return the mean over the labels, or this part's share of it: see `num_items_in_batch`."""
        return loss.mean() if self.num_items is None else loss.loss_sum / self.num_items

    def output(self, kind: type[Output], **values: Any) -> Output:
        """Return the output of a forward pass, with the requested hidden states and attentions."""
        hidden = self.trace.hidden_states
        if hidden is not None:
            values["hidden_states"] = tuple(self.rows(of_layer) for of_layer in hidden)
        if self.trace.attentions is not None:
            attentions = []  # [B, A, S, S] of each layer, zeros wherever padding is involved
            for probabilities in self.trace.attentions:
                if isinstance(probabilities, Tensor):
                    is_real = self.mask[:, None, :, None] & self.mask[:, None, None]
                    attentions.append(probabilities * is_real)
                    continue
                rows, width = self.mask.shape
                padded = probabilities[0].new_zeros(rows, probabilities[0].shape[0], width, width)
                for row, of_sequence in enumerate(probabilities):
                    real = self.mask[row].nonzero().squeeze(1)
                    padded[row, :, real[:, None], real] = of_sequence
                attentions.append(padded)
            values["attentions"] = tuple(attentions)
        output = kind(**values)
        return output if self.return_dict else output.to_tuple()  # type: ignore[return-value]
