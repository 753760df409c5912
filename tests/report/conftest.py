"""A made-up run with a known shape."""

import math
import random

import pytest


@pytest.fixture(scope="session")
def records():
    """120 training records and 4 evaluations of a run that learns."""
    noise = random.Random(7)
    made = []
    for index in range(1, 121):
        step, share = 10 * index, index / 120
        loss = 4 + 5 * math.exp(-5 * share) + noise.gauss(0, 0.1)
        made.append(
            {"event": "step", "step": step, "loss": loss + 0.6, "masked_lm_loss": loss,
             "masked_lm_accuracy": 0.4 * share,
             "sentence_order_loss": 0.69 - 0.2 * share, "sentence_order_accuracy": 0.5 + 0.25 * share,
             "learning_rate": 1e-3 * (1 - share), "grad_norm": 1.0, "tokens_per_second": 9000.0,
             "tokens": 4096 * step, "seconds": 0.5 * step}
        )  # fmt: skip
        if index % 30 == 0:
            made.append(
                {"event": "eval", "step": step, "masked_lm_loss": loss, "sentence_order_accuracy": 0.5 + 0.2 * share}
            )
    return made
