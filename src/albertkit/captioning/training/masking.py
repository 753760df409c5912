"""What of a caption is predicted: SwinBERT's masks, drawn anew whenever a caption is read.

Source: microsoft/SwinBERT `caption_tensorizer.py`, `CaptionTensorizer.tensorize_example_e2e`.
"""

from collections.abc import Sequence

import numpy as np

_MASKED, _RANDOM = 0.8, 0.1  # of the predicted pieces; the rest stays as it is


def num_masked(length: int, mask_prob: float, max_masked: int) -> int:
    """How many pieces are predicted: round(mask_prob * length), to even at .5, from 1 to `max_masked`, and never [CLS].

    Args:
        length: Of the caption, [CLS] and [SEP] included.
        mask_prob: Share.
        max_masked: Most.
    """
    return min(max(round(mask_prob * length), 1), max_masked, length - 1)


def mask_caption(
    ids: Sequence[int] | np.ndarray,
    mask_id: int,
    replacements: np.ndarray,
    mask_prob: float,
    max_masked: int,
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Replace pieces and say which are predicted. [SEP] may be one of them, because it ends a caption; [CLS] may not.

    Args:
        ids: From [CLS] to [SEP], at least 2.
        mask_id: [MASK].
        replacements: int64, the pieces that a random one is drawn from. SwinBERT draws from all, and one beyond the last.
        mask_prob: As `num_masked`.
        max_masked: As `num_masked`.
        generator: Draws.

    Returns:
        int64 [L] with the replacements; int64 [P] rising, the places to predict.
    """
    masked = np.array(ids, np.int64)
    count = num_masked(len(masked), mask_prob, max_masked)
    places = np.sort(1 + generator.permutation(len(masked) - 1)[:count])
    fate = generator.random(count)
    masked[places[fate < _MASKED]] = mask_id
    random = places[(fate >= _MASKED) & (fate < _MASKED + _RANDOM)]
    masked[random] = generator.choice(replacements, len(random))
    return masked, places
