"""Losses and outputs of the heads, for `Task`; apart from the tasks, whose data are read and scored without torch.

N sequences of T tokens, C classes. Losses are sums, outputs are on the host.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from albertkit.batches.features import LabelledBatch
from albertkit.batches.packed import PackedBatch
from albertkit.errors import ConfigError
from albertkit.model import (
    AlbertForBeamQuestionAnswering,
    AlbertForMultipleChoice,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
)
from albertkit.model.heads import class_loss, ragged_log_softmax, span_loss
from albertkit.model.padded import SummedLoss
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tables import IGNORED
from albertkit.tasks.nbest import TopPositions, top_beams, top_spans


def text_loss(model: PretrainedAlbert, batch: LabelledBatch, class_weights: Tensor | None, kind: str) -> SummedLoss:
    """Return the loss of a head on whole sequences; with weights, cross-entropy times the weight of each example's class."""
    assert isinstance(model, AlbertForSequenceClassification)
    if class_weights is not None and kind != "classification":
        raise ConfigError("bad-value", f"a {kind} has no class weights", "leave them out")
    logits, labels = model.packed_logits(batch.packed), batch.per_sequence["labels"]
    return model.task_loss(logits, labels) if class_weights is None else _weighted(logits, labels, class_weights)


def text_outputs(model: PretrainedAlbert, batch: LabelledBatch) -> list[np.ndarray]:
    """Return the logits of each sequence, float32 [C]."""
    assert isinstance(model, AlbertForSequenceClassification)
    return list(model.packed_logits(batch.packed).to(torch.float32).cpu().numpy())


def tag_loss(model: PretrainedAlbert, batch: LabelledBatch, class_weights: Tensor | None) -> SummedLoss:
    """Return the cross-entropy of the tags of the words that have a token of their own."""
    assert isinstance(model, AlbertForTokenClassification)
    logits, labels = model.packed_logits(batch.packed).float(), batch.per_token["labels"]
    return class_loss(logits, labels) if class_weights is None else _weighted(logits, labels, class_weights)


def tag_outputs(model: PretrainedAlbert, batch: LabelledBatch) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the likeliest tags of the words of each sequence, and their probabilities."""
    assert isinstance(model, AlbertForTokenClassification)
    tagged = batch.per_token["words"] >= 0
    probabilities, labels = model.packed_logits(batch.packed)[tagged].float().softmax(-1).max(-1)
    before = F.pad(tagged.cumsum(0), (1, 0))[batch.packed.offsets[1:-1]].cpu().numpy()
    columns = (np.split(values.cpu().numpy(), before) for values in (labels, probabilities))
    return list(zip(*columns, strict=True))


def _weighted(logits: Tensor, labels: Tensor, class_weights: Tensor) -> SummedLoss:
    logits = logits.float()
    weighted = F.cross_entropy(logits, labels, class_weights, ignore_index=IGNORED, reduction="sum")
    return class_loss(logits, labels)._replace(loss_sum=weighted)


# --- choices ----------------------------------------------------------------------------------------------------------


def choice_outputs(model: PretrainedAlbert, batch: LabelledBatch) -> Tensor:
    """Return the logit of each sequence, [N], still on the device."""
    assert isinstance(model, AlbertForMultipleChoice)
    return model.packed_logits(batch.packed).squeeze(1)


def choice_loss(logits: Tensor, groups: Tensor, right: Tensor) -> SummedLoss:
    """Return the cross-entropy of logits [N] by a softmax within groups of any size.

    `groups` int64 [N] has equal numbers for a group, together; `right` bool [N] has one True in each group with a label.
    Nothing waits for the device: there are at most N groups.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    positions = torch.arange(len(logits), device=logits.device)
    group = torch.cat([positions[:1], (groups[1:] != groups[:-1]).cumsum(0)])
    log_probs = ragged_log_softmax(logits, group)
    top = torch.full_like(logits, -torch.inf).scatter_reduce(0, group, logits.detach(), "amax")
    best = torch.where(
        logits == top[group], positions, len(positions)
    )  # of equal logits the first, as in `predictions`
    first = torch.full_like(positions, len(positions)).scatter_reduce(0, group, best, "amin")
    loss_sum = torch.where(right, -log_probs, 0).sum()
    return SummedLoss(loss_sum, (right & (first[group] == positions)).sum(), right.sum())


# --- answers ----------------------------------------------------------------------------------------------------------


def answer_losses(model: PretrainedAlbert, batch: LabelledBatch) -> dict[str, SummedLoss]:
    """Return `span`, half the start's and half the end's; of the beam head also `answerable`, halved."""
    starts, ends = batch.per_sequence["start_positions"], batch.per_sequence["end_positions"]
    if isinstance(model, AlbertForBeamQuestionAnswering):
        impossible = batch.per_sequence["impossible"]
        parts = model.packed_losses(batch.packed, starts, ends, impossible, outside_text(batch.packed))
        answerable = parts.answerable._replace(loss_sum=parts.answerable.loss_sum / 2)
        return {"span": _mean(parts.start, parts.end), "answerable": answerable}
    assert isinstance(model, AlbertForQuestionAnswering)
    start_logits, end_logits = model.packed_logits(batch.packed)
    return {"span": _mean(span_loss(start_logits, starts), span_loss(end_logits, ends))}


def answer_outputs(model: PretrainedAlbert, batch: LabelledBatch, count: int) -> list[TopPositions]:
    """Return the best starts and ends of each window, `count` of them for the span head."""
    if isinstance(model, AlbertForBeamQuestionAnswering):
        return top_beams(model.packed_beams(batch.packed, outside_text(batch.packed)))
    assert isinstance(model, AlbertForQuestionAnswering)
    return top_spans(*model.packed_logits(batch.packed), count)


def outside_text(batch: PackedBatch) -> Tensor:
    """Return Google's `p_mask`, bool [T]: where no answer may lie; False in the text and at the first token ("no answer")."""
    outside = batch.token_type_ids != 1
    outside = outside.index_fill(0, batch.offsets[1:] - 1, True)
    return outside.index_fill(0, batch.starts, False)


def _mean(start: SummedLoss, end: SummedLoss) -> SummedLoss:
    """Average two losses with as many targets."""
    return SummedLoss((start.loss_sum + end.loss_sum) / 2, (start.correct + end.correct) / 2, start.label_count)
