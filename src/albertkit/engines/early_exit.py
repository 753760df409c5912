"""Early exit: a classifier after every layer, and when its answer is believed.

L layers, N sequences, C classes, H hidden. Sources: Zhou et al. 2020, PABEE, section 3 (patience); Xin et al. 2020, DeeBERT,
section 3 (entropy).
"""

from typing import NamedTuple

import numpy as np
from torch import Tensor

from albertkit.engines.arithmetic import f32, loops, within


class Exits(NamedTuple):
    """Linear layers over the pooler's output after every layer, the last the model's own, and a rule."""

    weight: np.ndarray  # fp32 [L, C, H]
    bias: np.ndarray  # fp32 [L, C]
    patience: int  # leave after so many layers in a row with the same label as the layer before; 0: by entropy
    threshold: float  # leave as soon as the entropy, as a share of its maximum, is below


class Exited(NamedTuple):
    """Answers of sequences that left as soon as they could."""

    logits: Tensor  # fp32 [N, C]
    layers: Tensor  # int64 [N], how many they had


@within
def is_sure(logits, exits, n, labels, agreed):
    """Return whether sequence n may leave, given its logits [C] after one more layer.

    `labels` and `agreed` hold for every sequence, int64 [N], its label (-1 at first), and how many layers agreed in a row.
    """
    if not exits.patience:
        return entropy_share(logits) < exits.threshold
    label = 0
    for c in range(1, len(logits)):
        if logits[c] > logits[label]:
            label = c
    agreed[n] = agreed[n] + 1 if labels[n] == label else 0
    labels[n] = label
    return agreed[n] >= exits.patience


@loops
def select_sure(logits, exits, numbers, labels, agreed):
    """Return whether sequences `numbers`, int64 [n], may leave, bool [n], given their logits [n, C]; see `is_sure`."""
    sure = np.zeros(len(numbers), np.bool_)
    for i in range(len(numbers)):
        sure[i] = is_sure(logits[i], exits, numbers[i], labels, agreed)
    return sure


@within
def entropy_share(logits):
    """Return the entropy of softmax(logits [C]) as a share of its maximum, log C."""
    top, total, entropy = logits[0], f32(0), f32(0)
    for c in range(1, len(logits)):
        top = max(top, logits[c])
    for c in range(len(logits)):
        total += np.exp(logits[c] - top)
    for c in range(len(logits)):
        log_share = logits[c] - top - np.log(total)
        entropy -= np.exp(log_share) * log_share
    return entropy / np.log(f32(max(2, len(logits))))
