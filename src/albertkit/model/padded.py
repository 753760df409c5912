"""Padded rows at the edge of the model: taken apart for the encoder, and laid out again for the output.

B rows of S places. There are two ways to compute them, which agree at every real token:

- packed, which is the rule: the real tokens are taken out, computed, and laid out again with zeros at padding;
- padded: every place is computed, and no token attends to padding. No shape depends on a value, which `torch.compile` and
  `torch.export` ask for; and question answering needs what transformers computes at padding (see `tasks.py`).

A mask may have holes: the tokens around a hole keep their positions. A row is pooled from its first real token.
"""

from dataclasses import dataclass
from typing import Any, Protocol, TypedDict, TypeVar

import torch
from torch import Tensor

from albertkit.config import AlbertConfig
from albertkit.data import IGNORED
from albertkit.data.packing import PackedBatch, unpack
from albertkit.errors import ConfigError, DataError
from albertkit.model.outputs import ModelOutput, PackedOutput, SummedLoss

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
        """int64 [B], where the first real token of each row is."""
        rows, width = self.mask.shape
        return torch.arange(rows, device=self.mask.device) * width + self.mask.int().argmax(1)


class PassOptions(TypedDict, total=False):
    """Options of every padded forward pass, by name.

    Attributes:
        output_hidden_states: Return the output of every layer. Default: no.
        output_attentions: Return the attention probabilities of every layer. Default: no.
        return_dict: False returns a plain tuple of what there is. The default of these three stands in the configuration.
        head_mask: None, which transformers 4's callers pass.
        num_items_in_batch: Labels in the whole batch of which this is a part; the loss is then the sum over this part
            divided by it, so that accumulated parts are one big batch. transformers' Trainer passes it.
    """

    output_hidden_states: bool | None
    output_attentions: bool | None
    return_dict: bool | None
    head_mask: None
    num_items_in_batch: Tensor | int | None


class Trace:
    """Hidden states and attentions collected on the way, as far as they are asked for."""

    def __init__(self, hidden_states: bool | None, attentions: bool | None) -> None:
        self.hidden_states: list[Tensor] | None = [] if hidden_states else None
        self.attentions: list[list[Tensor] | Tensor] | None = [] if attentions else None


class Encodes(Protocol):
    """The encoder that `PaddedPass` runs: an `AlbertModel`."""

    config: AlbertConfig

    def encode(self, batch: PaddedBatch | PackedBatch, trace: Trace | None, *, words: Tensor | None) -> PackedOutput:
        """Run a batch; see `AlbertModel.encode`."""


class PaddedPass:
    """One forward pass over padded rows: what the encoder made of them, and the way back to rows.

    Args:
        model: Whose encoder is run.
        input_ids: int64 [B, S].
        attention_mask: [B, S], 0 at padding. Default: no padding.
        token_type_ids: int64 [B, S]. Default: 0.
        position_ids: int64 [S] or [B, S]. Default: 0 to S-1.
        inputs_embeds: [B, S, E], in place of `input_ids`: word embeddings made elsewhere.
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
            which = "neither" if input_ids is None else "both"
            raise ConfigError("bad-value", f"{which} of input_ids and inputs_embeds given", "give one of the two")
        if head_mask is not None:
            raise ConfigError("bad-value", "head_mask: heads cannot be switched off", "leave it out")
        if inputs_embeds is not None:
            input_ids = torch.zeros(inputs_embeds.shape[:-1], dtype=torch.int64, device=inputs_embeds.device)
        assert input_ids is not None
        if token_type_ids is not None and token_type_ids.shape == (1, *input_ids.shape[1:]):
            token_type_ids = token_type_ids.expand_as(input_ids)
        self.packed = not (keep_padding or torch.compiler.is_compiling() or torch.jit.is_tracing())
        self.mask = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask != 0
        asked = {
            "output_hidden_states": output_hidden_states, "output_attentions": output_attentions, "return_dict": return_dict,
        }  # fmt: skip
        asked = {name: model.config.foreign.get(name) if value is None else value for name, value in asked.items()}
        self.return_dict, self.num_items = asked["return_dict"] is not False, num_items_in_batch
        self.trace = Trace(asked["output_hidden_states"], asked["output_attentions"])
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
        if input_ids.dim() != 2:
            raise ConfigError("bad-value", f"input_ids has shape {list(input_ids.shape)}, expected [batch, length]")
        for name, given in (("attention_mask", self.mask), ("token_type_ids", token_type_ids)):
            if given is not None and given.shape != input_ids.shape:
                raise ConfigError(
                    "bad-value", f"{name} has shape {list(given.shape)}, input_ids has {list(input_ids.shape)}"
                )
        if not (torch.compiler.is_compiling() or torch.jit.is_tracing()) and not self.mask.any(1).all():
            raise DataError("empty", "a row is all padding", "leave empty rows out of the batch")
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)
        position_ids = position_ids.expand_as(input_ids)
        return PaddedBatch(input_ids.flatten(), token_type_ids.flatten(), position_ids.flatten(), self.mask)

    def _tokens(self, values: Tensor) -> Tensor:
        """Map [B, S, ...] to [T, ...]."""
        return values[self.mask] if self.packed else values.flatten(0, 1)

    def labels(self, labels: Tensor) -> Tensor:
        """Return the labels [T] of token labels [B, S]; those at padding do not count."""
        if labels.shape != self.mask.shape:
            raise ConfigError("bad-value", f"labels has shape {list(labels.shape)}, input {list(self.mask.shape)}")
        return self._tokens(labels if self.packed else labels.masked_fill(~self.mask, IGNORED))

    def rows(self, values: Tensor) -> Tensor:
        """Map [T, ...] to [B, S, ...], zeros at padding."""
        if self.packed:
            return unpack(values, self.mask)
        rows = values.view(*self.mask.shape, *values.shape[1:])
        return rows.masked_fill(~self.mask.view(*self.mask.shape, *[1] * (values.dim() - 1)), 0)

    def mean(self, loss: SummedLoss) -> Tensor:
        """Return the mean over the labels that are there, or this part's share of it: see `num_items_in_batch`."""
        return loss.mean() if self.num_items is None else loss.loss_sum / self.num_items

    def output(self, kind: type[Output], **values: Any) -> Output:
        """Return the output of a forward pass, with the hidden states and attentions that were asked for."""
        hidden, attentions = self.trace.hidden_states, self.trace.attentions
        output = kind(
            **values,
            hidden_states=None if hidden is None else tuple(self.rows(of_layer) for of_layer in hidden),
            attentions=None if attentions is None else tuple(self._attention_rows(of_layer) for of_layer in attentions),
        )
        return output if self.return_dict else output.to_tuple()  # type: ignore[return-value]

    def _attention_rows(self, probabilities: list[Tensor] | Tensor) -> Tensor:
        """Return [B, A, S, S], zeros wherever padding is involved."""
        if isinstance(probabilities, Tensor):
            return probabilities * (self.mask[:, None, :, None] & self.mask[:, None, None])
        rows, width = self.mask.shape
        padded = probabilities[0].new_zeros(rows, probabilities[0].shape[0], width, width)
        for row, of_sequence in enumerate(probabilities):
            real = self.mask[row].nonzero().squeeze(1)
            padded[row, :, real[:, None], real] = of_sequence
        return padded
