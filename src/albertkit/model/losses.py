"""Losses of the heads, as sums with counts, in fp32 or wider.

M predictions, C labels, N rows of S places.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from albertkit.data import IGNORED
from albertkit.model.outputs import SummedLoss


def class_loss(logits: Tensor, labels: Tensor) -> SummedLoss:
    """Return the cross-entropy of logits [M, C] where labels [M] are not -100."""
    logits = _exact(logits)
    there = labels != IGNORED
    loss_sum = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    return SummedLoss(loss_sum, ((logits.argmax(-1) == labels) & there).sum(), there.sum())


def regression_loss(values: Tensor, targets: Tensor) -> SummedLoss:
    """Return the squared error of values [M, C] against targets [M, C], or [M] where C is 1; each of the M·C counts."""
    values = _exact(values)
    targets = targets.reshape(values.shape).to(values.dtype)
    return SummedLoss(F.mse_loss(values, targets, reduction="sum"), None, _count(values))


def multi_label_loss(logits: Tensor, labels: Tensor) -> SummedLoss:
    """Return the binary cross-entropy of logits [M, C] against labels [M, C], 0 or 1; each of the M·C decisions counts."""
    logits = _exact(logits)
    loss_sum = F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="sum")
    return SummedLoss(loss_sum, ((logits > 0) == (labels > 0.5)).sum(), _count(logits))


def span_loss(logits: Tensor, positions: Tensor) -> SummedLoss:
    """Return the cross-entropy over the places of each row.

    Args:
        logits: [N, S], one logit a place.
        positions: int64 [N] or [N, 1]. S and above have no target: the answer lies outside what was read. Below 0 means 0,
            as in transformers.
    """
    width = logits.shape[1]
    positions = positions.reshape(-1).clamp(0, width)
    return class_loss(logits, torch.where(positions < width, positions, IGNORED))


def ragged_log_softmax(logits: Tensor, groups: Tensor) -> Tensor:
    """Return the log-softmax of logits [M] within groups, int64 [M], from 0, ascending; the host does not wait for the device."""
    top = torch.full_like(logits, -torch.inf).scatter_reduce(0, groups, logits.detach(), "amax")
    shifted = logits - top[groups]
    return shifted - torch.zeros_like(logits).index_add(0, groups, shifted.exp())[groups].log()


def _exact(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _count(values: Tensor) -> Tensor:
    return torch.full((), values.numel(), dtype=torch.int64, device=values.device)
