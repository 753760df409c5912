"""What an evaluation shows to be wrong is said while the run goes on, not only at its end."""

import math
from collections.abc import Mapping
from typing import Any

from albertkit.training.display import Display

CONSTANT = 0.99  # share of equal guesses from which the outputs are called constant


class GuardedDisplay(Display):
    """A display that also says when a model is worse than piece frequencies, or guesses the same piece everywhere.

    Both are normal while the learning rate still rises, so nothing is said before.

    Args:
        *arguments: As `Display`.
        warmup_steps: Updates of the warm-up.
        **options: As `Display`.
    """

    def __init__(self, *arguments: Any, warmup_steps: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._warmup_steps = warmup_steps

    def evaluation(self, step: int, metrics: dict[str, float]) -> None:
        """Report an evaluation, and what is wrong with it."""
        super().evaluation(step, metrics)
        if step > self._warmup_steps:
            for line in faults(metrics):
                self.note(f"step {step}: {line}")


def faults(metrics: Mapping[str, float]) -> list[str]:
    """What is wrong with a model that has these numbers, in words; nothing where they are not known."""
    found = []
    loss, baseline = metrics.get("masked_lm_loss", 0.0), metrics.get("unigram_loss", math.inf)
    if not loss < baseline:
        found.append(f"worse than guessing by frequency ({loss:.4g} nats, {baseline:.4g}): lower --lr or train longer")
    if (same := metrics.get("most_guessed", 0.0)) >= CONSTANT:
        found.append(
            f"outputs are constant: {same:.0%} of the guesses are the same piece; if that stays, lower --lr or lengthen "
            "--warmup-steps"
        )
    return found
