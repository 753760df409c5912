"""Learning rate by step: linear warm-up, then polynomial, cosine or no decay."""

import math


def learning_rate(
    step: int,
    *,
    peak: float,
    total_steps: int = 1,
    progress: float | None = None,
    warmup_steps: int = 0,
    warmup_share: float = 0.0,
    schedule: str = "polynomial",
    end_lr: float = 0.0,
    power: float = 1.0,
    start_warmup_step: int = 0,
) -> float:
    """Return the learning rate of update `step`, counted from 0, as Google's and Model Garden's optimization.py compute it.

    The decay runs from step 0, not from the end of the warm-up, so with the paper's settings the rate drops from
    0.00176 to 0.001716 where the warm-up ends. The first update of a warm-up has rate 0.

    `start_warmup_step` is an argument of the original that its scripts leave at this default; it is here to be compared with
    it and no setting of a run reaches it. Before `start_warmup_step` the rate is negative, as there.

    Args:
        step: Number of updates made before this one.
        peak: Rate that the warm-up aims at.
        total_steps: Steps after which the rate is `end_lr` (polynomial, cosine).
        progress: Share of the decay that is done, 0 to 1. Default: `step / total_steps`.
        warmup_steps: Length of the linear warm-up; 0 for none.
        warmup_share: Share of the decay in which a warm-up ends at the latest: the learning rate rises with the updates made or
            with `progress`, whichever is further. 0 for no such bound; without `warmup_steps` it alone is the warm-up.
        schedule: "polynomial", "cosine" or "constant".
        end_lr: Where the decay ends; Model Garden's `end_lr`.
        power: Exponent of the polynomial decay.
        start_warmup_step: Step at which the warm-up begins; it ends at `start_warmup_step + warmup_steps`.

    Returns:
        The learning rate as a float.
    """
    if progress is None:
        progress = min(step, total_steps) / total_steps
    if warmup_share:
        risen = max(step / warmup_steps if warmup_steps else 0.0, progress / warmup_share)
        if risen < 1:
            return peak * risen
    elif warmup_steps and step - start_warmup_step < warmup_steps:
        return peak * (step - start_warmup_step) / warmup_steps
    if schedule == "constant":
        return peak
    remaining = 0.5 * (1 + math.cos(math.pi * progress)) if schedule == "cosine" else (1 - progress) ** power
    return end_lr + (peak - end_lr) * remaining
