"""SwinBERT's captioning loss: label smoothing, and leaving out the predictions that are hardest."""

import torch
from torch import Tensor


def smoothed_losses(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Divergence from a smoothed label for each prediction: the cross-entropy, less the entropy of the smoothed label.

    The label has 1 - smoothing, all other pieces together the rest; with no smoothing it is the cross-entropy.

    Args:
        logits: [P, V].
        labels: int64 [P].
        smoothing: At least 0 and below 1.

    Returns:
        fp32 or fp64 [P].

    Source: microsoft/SwinBERT `modeling_bert.py`, `BertCaptioningLoss`.
    """
    log_probabilities = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    at_label = log_probabilities.gather(1, labels[:, None]).squeeze(1)
    if not smoothing:
        return -at_label
    other = smoothing / (logits.shape[1] - 1)
    entropy = -(1 - smoothing) * _log(1 - smoothing) - smoothing * _log(other)
    cross_entropy = -(1 - smoothing - other) * at_label - other * log_probabilities.sum(1)
    return cross_entropy - entropy


def _log(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float64).log())


def keep_easiest(losses: Tensor, drop_ratio: float) -> Tensor:
    """The int(P * (1 - drop_ratio)) smallest of losses [P], at least one where there is one."""
    return losses.topk(num_kept(len(losses), drop_ratio), largest=False, sorted=False).values


def num_kept(predictions: int, drop_ratio: float) -> int:
    """How many of P predictions count."""
    return max(int(predictions * (1 - drop_ratio)), min(predictions, 1))
