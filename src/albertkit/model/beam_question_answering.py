"""Google's SQuAD 2 model: the likeliest starts, the likeliest ends of each, and whether there is an answer at all.

B rows of S places, H hidden, K starts, M ends of each. Source: google-research/albert
`squad_utils.create_v2_model` and `v2_model_fn_builder`, after XLNet.
"""

from typing import NamedTuple, Unpack

import torch
from torch import Tensor, nn

from albertkit.batches.packed import PackedBatch
from albertkit.config import AlbertConfig
from albertkit.model.heads import at_least_fp32, check_span, multi_label_loss, span_loss
from albertkit.model.layers import layer_norm_function, linear_function, widen_to_head_dtype
from albertkit.model.padded import BeamQuestionAnsweringOutput, PaddedPass, PassOptions, SummedLoss
from albertkit.model.pretrained import AlbertModel, PretrainedAlbert

_FORBIDDEN = -1e30  # the logit of a position outside the mask of answers


class StartLogits(nn.Module):
    """One linear layer."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, 1)

    def forward(self, states: Tensor) -> Tensor:
        """Map [B, S, H] to [B, S]."""
        return linear_function(states.dtype, self.dense)(states).squeeze(-1)


class EndLogits(nn.Module):
    """A tanh layer on each token together with the token at the start, layer norm, a linear layer."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.dense_0 = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dense_1 = nn.Linear(config.hidden_size, 1)

    def forward(self, states: Tensor, starts: Tensor) -> Tensor:
        """Map states [B, S, H] and positions [B, K] of starts to logits [B, K, S]."""
        dtype = states.dtype
        rows, width, hidden_size = states.shape
        beams = starts.shape[1]
        start_states = states.gather(1, starts[..., None].expand(-1, -1, hidden_size))
        pair = (
            states[:, None].expand(-1, beams, -1, -1),
            start_states[:, :, None].expand(-1, -1, width, -1),
        )
        inner = torch.tanh(linear_function(dtype, self.dense_0)(torch.cat(pair, -1)))
        return linear_function(dtype, self.dense_1)(
            layer_norm_function(dtype, self.LayerNorm)(inner)
        ).view(rows, beams, width)


class AnswerClass(nn.Module):
    """Predict whether there is an answer, from the expected start and the first token."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.dense_0 = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.dense_1 = nn.Linear(config.hidden_size, 1, bias=False)
        self.dropout = nn.Dropout(config.classifier_dropout_prob)

    def forward(self, states: Tensor, start_log_probs: Tensor, first: Tensor) -> Tensor:
        """Map states [B, S, H], log-probabilities [B, S] and the position [B] of the first token to logits [B]."""
        expected = torch.einsum("bs,bsh->bh", start_log_probs.exp().to(states.dtype), states)
        first_states = states[torch.arange(states.shape[0], device=states.device), first]
        inner = torch.tanh(
            linear_function(states.dtype, self.dense_0)(torch.cat([expected, first_states], -1))
        )
        return linear_function(states.dtype, self.dense_1)(self.dropout(inner)).squeeze(-1)


class BeamLosses(NamedTuple):
    """The losses of N rows; Google's is the mean of the first two and half of the third.

    Attributes:
        start: Cross-entropy of the start.
        end: Of the end, given the true start.
        answerable: Binary cross-entropy of "no answer".
    """

    start: SummedLoss
    end: SummedLoss
    answerable: SummedLoss


class AlbertForBeamQuestionAnswering(PretrainedAlbert):
    """Answers as spans found by a beam of starts and ends, and a logit for "no answer".

    Args:
        config: What to build; `classifier_dropout_prob` in the answerability layer.
        start_n_top: Starts in the beam (K).
        end_n_top: Ends for each start (M).
    """

    def __init__(self, config: AlbertConfig, start_n_top: int = 5, end_n_top: int = 5) -> None:
        super().__init__(config)
        self.start_n_top, self.end_n_top = start_n_top, end_n_top
        self.albert = AlbertModel(config, add_pooling_layer=False)
        self.start_logits = StartLogits(config)
        self.end_logits = EndLogits(config)
        self.answer_class = AnswerClass(config)
        self.initialize(ready=self.albert.parameters())

    def packed_beams(
        self, batch: PackedBatch, p_mask: Tensor | None = None
    ) -> BeamQuestionAnsweringOutput:
        """Return the beams of a packed batch.

        Args:
            batch: N sequences.
            p_mask: [T], 1 where no answer may lie. Default: anywhere.

        Returns:
            N rows; positions count from the start of each sequence.
        """
        return BeamQuestionAnsweringOutput(self._beams(*self._packed_rows(batch, p_mask)))

    def packed_losses(
        self,
        batch: PackedBatch,
        start_positions: Tensor,
        end_positions: Tensor,
        is_impossible: Tensor,
        p_mask: Tensor | None = None,
    ) -> BeamLosses:
        """Return the losses of a packed batch, of which `forward` with labels gives the mean.

        Args:
            batch: N sequences.
            start_positions: int64 [N], the position of the answer's first token in its sequence, 0
                where there is no answer.
            end_positions: int64 [N], of its last token, likewise.
            is_impossible: [N], 1 where there is no answer.
            p_mask: [T], 1 where no answer may lie. Default: anywhere.
        """
        states, allowed, first = self._packed_rows(batch, p_mask)
        logits = self._outputs_at_gold_starts(states, allowed, first, start_positions)
        return BeamLosses(
            span_loss(logits["start_log_probs"], start_positions),
            span_loss(logits["end_log_probs"], end_positions),
            multi_label_loss(logits["cls_logits"], is_impossible),
        )

    def _packed_rows(
        self, batch: PackedBatch, p_mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return states [N, longest, H], the mask of answers [N, longest], and the position [N] of the first token."""
        mask = batch.padding_mask()
        allowed = mask if p_mask is None else mask & (batch.unpack(p_mask) == 0)
        hidden = widen_to_head_dtype(self.albert.encode(batch).hidden, self.start_logits)
        return batch.unpack(hidden), allowed, torch.zeros_like(batch.starts)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        is_impossible: Tensor | None = None,
        p_mask: Tensor | None = None,
        **options: Unpack[PassOptions],
    ) -> BeamQuestionAnsweringOutput:
        """Run padded input: with positions the loss, the ends given the true start; without them the beams.

        `input_ids` to `inputs_embeds` as in `PaddedPass`, options as `PassOptions`.

        Args:
            start_positions: int64 [B], the position of the answer's first token, 0 where there is
                no answer. S and above do not count.
            end_positions: int64 [B], of its last token, likewise.
            is_impossible: [B], 1 where there is no answer. Default: the answerability logit is not
                trained.
            p_mask: [B, S], 1 where no answer may lie; padding never counts. Google: 0 at [CLS] and
                in the paragraph.
        """
        check_span(start_positions, end_positions)
        run = PaddedPass(
            self.albert,
            input_ids,
            attention_mask,
            token_type_ids,
            position_ids,
            inputs_embeds,
            **options,
        )
        allowed = run.mask if p_mask is None else run.mask & (p_mask == 0)
        states = run.rows(widen_to_head_dtype(run.hidden, self.start_logits))
        first = run.mask.int().argmax(1)
        if start_positions is None or end_positions is None:
            return run.output(BeamQuestionAnsweringOutput, **self._beams(states, allowed, first))
        logits = self._outputs_at_gold_starts(states, allowed, first, start_positions)
        start_loss = span_loss(logits["start_log_probs"], start_positions)
        end_loss = span_loss(logits["end_log_probs"], end_positions)
        loss = (run.mean(start_loss) + run.mean(end_loss)) / 2
        if is_impossible is not None:
            loss = (
                loss
                + run.mean(multi_label_loss(logits["cls_logits"], is_impossible.reshape(-1))) / 2
            )
        return run.output(BeamQuestionAnsweringOutput, loss=loss, **logits)

    def _outputs_at_gold_starts(
        self, states: Tensor, allowed: Tensor, first: Tensor, start_positions: Tensor
    ) -> dict[str, Tensor]:
        start_log_probs = _log_probs(self.start_logits(states), allowed)
        # Labels beyond the row do not count, but `gather` would read there.
        starts = start_positions.reshape(-1, 1).clamp(0, states.shape[1] - 1)
        return {
            "cls_logits": self.answer_class(states, start_log_probs, first),
            "start_log_probs": start_log_probs,
            "end_log_probs": _log_probs(self.end_logits(states, starts), allowed[:, None]).squeeze(
                1
            ),
        }

    def _beams(self, states: Tensor, allowed: Tensor, first: Tensor) -> dict[str, Tensor]:
        start_log_probs = _log_probs(self.start_logits(states), allowed)
        start_top, start_index = _largest_with_indices(start_log_probs, self.start_n_top)
        end_log_probs = _log_probs(self.end_logits(states, start_index), allowed[:, None])
        end_top, end_index = _largest_with_indices(end_log_probs, self.end_n_top)
        return {
            "start_top_log_probs": start_top,
            "start_top_index": start_index,
            "end_top_log_probs": end_top.flatten(1),
            "end_top_index": end_index.flatten(1),
            "cls_logits": self.answer_class(states, start_log_probs, first),
        }


def _log_probs(logits: Tensor, allowed: Tensor) -> Tensor:
    """Return the log-softmax over the last dimension where allowed; fp32 or wider."""
    # fp16 ends at 65,504.
    return torch.where(allowed, at_least_fp32(logits), _FORBIDDEN).log_softmax(-1)


def _largest_with_indices(log_probs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest and their indices; of equals the first, as `tf.nn.top_k`."""
    values, index = log_probs.sort(dim=-1, descending=True, stable=True)
    return values[..., :count], index[..., :count]
