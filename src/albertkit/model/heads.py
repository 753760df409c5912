"""Pretraining heads, and the cross-entropy over the vocabulary that never holds all logits.

P predictions, E embedding, H hidden, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError
from albertkit.model import cpu_loops
from albertkit.model.layers import (
    ACTIVATIONS,
    apply_head,
    layer_norm_function,
    linear_function,
    widen_to_head_dtype,
)
from albertkit.model.padded import SummedLoss, is_recorded_or_transformed
from albertkit.tables import IGNORED


def class_loss(logits: Tensor, labels: Tensor, class_weights: Tensor | None = None) -> SummedLoss:
    """Return the cross-entropy of logits [M, C] where labels [M] are not -100, times the weight [C] of each label's class."""
    logits = at_least_fp32(logits)
    has_label = labels != IGNORED
    loss_sum = F.cross_entropy(logits, labels, class_weights, ignore_index=IGNORED, reduction="sum")
    return SummedLoss(loss_sum, ((logits.argmax(-1) == labels) & has_label).sum(), has_label.sum())


def regression_loss(values: Tensor, targets: Tensor) -> SummedLoss:
    """Return the squared error of values [M, C] against targets [M, C], or [M] where C is 1; each of the M·C counts."""
    values = at_least_fp32(values)
    targets = targets.reshape(values.shape).to(values.dtype)
    return SummedLoss(F.mse_loss(values, targets, reduction="sum"), None, _num_values(values))


def multi_label_loss(logits: Tensor, labels: Tensor) -> SummedLoss:
    """Return the binary cross-entropy of logits [M, C] against labels [M, C], 0 or 1; each of the M·C decisions counts."""
    logits = at_least_fp32(logits)
    loss_sum = F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="sum")
    return SummedLoss(loss_sum, ((logits > 0) == (labels > 0.5)).sum(), _num_values(logits))


def check_span(start_positions: Tensor | None, end_positions: Tensor | None) -> None:
    """Refuse one end of a span alone, which positional arguments in transformers 4's order give.

    Raises:
        ConfigError: bad-value.
    """
    if (start_positions is None) != (end_positions is None):
        present = "start_positions" if end_positions is None else "end_positions"
        raise ConfigError(
            "bad-value", f"{present} alone", "name both: start_positions=…, end_positions=…"
        )


def span_loss(logits: Tensor, positions: Tensor) -> SummedLoss:
    """Return the cross-entropy over the places of each row.

    Args:
        logits: [N, S], one logit a place.
        positions: int64 [N] or [N, 1]. S and above have no target: the answer lies outside what was
            read. Below 0 means 0, as in transformers.
    """
    width = logits.shape[1]
    positions = positions.reshape(-1).clamp(0, width)
    return class_loss(logits, torch.where(positions < width, positions, IGNORED))


def ragged_log_softmax(logits: Tensor, groups: Tensor) -> Tensor:
    """Return the log-softmax of logits [M] within groups, int64 [M], from 0, ascending; the host does not wait for the device."""
    top = torch.full_like(logits, -torch.inf).scatter_reduce(0, groups, logits.detach(), "amax")
    shifted = logits - top[groups]
    return shifted - torch.zeros_like(logits).index_add(0, groups, shifted.exp())[groups].log()


def at_least_fp32(values: Tensor) -> Tensor:
    """Return values in fp32, or in their own dtype where that is wider."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _num_values(values: Tensor) -> Tensor:
    return torch.full((), values.numel(), dtype=torch.int64, device=values.device)


# Logits at a time. CPU: 666 rows of 30,000, 40 MB in bf16, so that a usual batch multiplies the
# table once. 600 predictions of H 256 with gradients, ms on two cores with AMX: 47 (8 million
# logits at a time 63, 32 million 52; 128 rows, with sums and copies for each, 92).
_LOGITS_ON_CPU = 20_000_000
_IN_CACHE = 500_000  # of these, as many exponentials in fp32 as a core's cache holds
_LOGITS_ON_ACCELERATOR = 4096 * 30_000


class TiedDecoder(nn.Linear):
    """The output matrix. Its parameters are other modules', which store and load them."""

    def _save_to_state_dict(self, *_: Any) -> None:
        pass

    def _load_from_state_dict(self, *_: Any) -> None:
        pass


class MaskedLMHead(nn.Module):
    """Dense H to E, activation, layer norm, then the word embeddings as output matrix."""

    def __init__(self, config: AlbertConfig, word_embeddings: nn.Embedding) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.LayerNorm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.dense = nn.Linear(config.hidden_size, config.embedding_size)
        self.decoder = TiedDecoder(config.embedding_size, config.vocab_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.tie(word_embeddings)

    def tie(self, word_embeddings: nn.Embedding) -> None:
        """Let the decoder use the word embeddings and the head's bias."""
        self.decoder.weight, self.decoder.bias = word_embeddings.weight, self.bias
        self.decoder.out_features = len(self.bias)

    def transform(self, hidden: Tensor) -> Tensor:
        """Map [P, H] to [P, E]; in the dtype of the states in training, of the parameters in evaluation.

        The products over the vocabulary are a large part of an update, and rounding averages out
        over its predictions: in bf16 they take half the time (see above). An evaluation makes them
        once, and compares models by them.
        """
        if not torch.is_grad_enabled():
            hidden = widen_to_head_dtype(hidden, self)
        inner = self.activation(linear_function(hidden.dtype, self.dense)(hidden))
        return layer_norm_function(hidden.dtype, self.LayerNorm)(inner)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits [..., V] for hidden states [..., H]."""
        inner = self.transform(hidden)
        return linear_function(inner.dtype, self.decoder)(inner)

    def summed_loss(self, hidden: Tensor, labels: Tensor) -> SummedLoss:
        """Return the cross-entropy over the vocabulary, whose logits are computed in chunks.

        Compiled, transformed, or with a decoder that was replaced, they are computed as a whole.

        Args:
            hidden: [P, H].
            labels: int64 [P].
        """
        if is_recorded_or_transformed() or type(self.decoder) is not TiedDecoder:
            return class_loss(self(hidden), labels)
        loss_sum, correct = vocabulary_loss(
            self.transform(hidden), self.decoder.weight, self.bias, labels
        )
        return SummedLoss(loss_sum, correct, torch.full_like(correct, len(labels)))


class SentenceOrderHead(nn.Module):
    """Two classes from the pooled output. No dropout before it: the original has none (transformers has)."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.classifier = nn.Linear(config.hidden_size, 2)

    def forward(self, pooled: Tensor) -> Tensor:
        """Map [N, H] to [N, 2]: 0 original order, 1 swapped."""
        return apply_head(self.classifier, pooled)


def top_and_correct_on_cpu(
    logits: Tensor, label_logits: Tensor, target: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the largest of each row's logits [P, 1], and how many rows have their label there; of equal ones the first counts.

    Few labels reach the top. Only for their rows is the index of the first largest logit found,
    which is slower than `amax`.
    """
    top = logits.amax(1, keepdim=True)
    at_top = (label_logits >= top).squeeze(1).nonzero().squeeze(1)
    return top, (logits[at_top].max(1).indices == target[at_top]).sum()


def top_and_correct_on_accelerator(
    logits: Tensor, label_logits: Tensor, target: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the same in one pass, with shapes that depend on no value: the host does not wait for the device."""
    top, best = logits.max(1, keepdim=True)
    return top, (best.squeeze(1) == target).sum()


def exponentials_and_losses_with_torch(
    logits: Tensor, target: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Replace logits [P, V] by exp(logit - largest of its row), computed and summed in fp32, then rounded to their own dtype.

    Returns:
        Row sums [P, 1]; sum of the cross-entropies, 0-d; number of right predictions, 0-d.
    """
    if cpu_loops.is_supported_by_loops(logits):
        return cpu_loops.exponentials_and_losses_in_place(logits, target)
    on_cpu = logits.device.type == "cpu"
    rows = max(1, _IN_CACHE // logits.shape[1] if on_cpu else len(logits))
    totals = []
    losses = []
    right = []
    for chunk, labels in zip(logits.split(rows), target.split(rows), strict=True):
        label_logits = chunk.gather(1, labels[:, None])
        top, correct = (top_and_correct_on_cpu if on_cpu else top_and_correct_on_accelerator)(
            chunk, label_logits, labels
        )
        exponentials = at_least_fp32(chunk).sub_(top).exp_()
        total = exponentials.sum(1, keepdim=True)
        chunk.copy_(exponentials)
        totals.append(total)
        losses.append((total.log() + top - label_logits).sum())
        right.append(correct)
    return torch.cat(totals), torch.stack(losses).sum(), torch.stack(right).sum()


def vocabulary_loss(
    hidden: Tensor, table: Tensor, bias: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the sum of the cross-entropies of `hidden @ table.T + bias` in fp32, and how many predictions are right.

    Args:
        hidden: [P, E].
        table: [V, E].
        bias: [V].
        labels: int64 [P].
    """
    return _VocabularyCrossEntropy.apply(hidden, table, bias, labels)


class _VocabularyCrossEntropy(torch.autograd.Function):
    """Cross-entropy of a linear layer over a large vocabulary."""

    # torch's F.linear_cross_entropy takes 109 ms in bf16 and 298 in fp32 for 553 predictions, this
    # 125 and 230, all logits at once 211 and 297. This sums in fp32, and counts right predictions
    # exactly.

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, table: Tensor, bias: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        needs_gradient = any(ctx.needs_input_grad)
        dtype = hidden.dtype
        exact = torch.promote_types(dtype, torch.float32)
        weight, offset = table.to(dtype), bias.to(dtype)
        grads = (
            [torch.empty_like(x, dtype=exact) for x in (hidden, table, bias)]
            if needs_gradient
            else []
        )
        if not len(labels):
            for grad in grads:
                grad.zero_()
        loss = hidden.new_zeros((), dtype=exact)
        correct = torch.zeros((), dtype=torch.int64, device=hidden.device)
        # The gradient is made together with the loss, some rows at a time, so that of a large batch
        # neither the logits nor their gradient exist as a whole: P·V·4 bytes twice, 600 MB for
        # 2,500 predictions.
        at_once = _LOGITS_ON_CPU if hidden.device.type == "cpu" else _LOGITS_ON_ACCELERATOR
        rows = max(1, at_once // len(table))
        for start in range(0, len(labels), rows):
            chunk, target = hidden[start : start + rows], labels[start : start + rows]
            exponentials = torch.addmm(offset, chunk, weight.t())
            total, chunk_loss, right = exponentials_and_losses_with_torch(exponentials, target)
            loss += chunk_loss
            correct += right
            if needs_gradient:
                # The gradient of the logits is exponentials / total, less 1 at the label. Dividing
                # the narrow factors of the products instead, and subtracting at the labels
                # afterwards, saves reading rows x V numbers twice.
                share = 1 / total
                grads[0][start : start + rows] = (exponentials @ weight) * share - weight[target]
                product = exponentials.t() @ (chunk * share).to(dtype)
                grads[1] = grads[1].add_(product) if start else product.to(exact)
                grads[1].index_add_(0, target, chunk.to(exact), alpha=-1)
                summed = exponentials.t() @ share.squeeze(1).to(dtype)
                grads[2] = grads[2].add_(summed) if start else summed.to(exact)
                grads[2].index_add_(0, target, torch.ones_like(share[:, 0]), alpha=-1)
        ctx.grads = grads
        ctx.dtypes = hidden.dtype, table.dtype, bias.dtype
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    @cpu_loops.differentiable_once
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.grads is None:
            raise RuntimeError(
                "the vocabulary's gradient is given out once: compute the loss again, not backward twice"
            )
        # No other reference: autograd takes them as they are, without a copy
        grads, ctx.grads = ctx.grads, None
        return *(
            grad.mul_(grad_loss).to(dtype) for grad, dtype in zip(grads, ctx.dtypes, strict=True)
        ), None
