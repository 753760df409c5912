"""Confidence intervals of scores: percentile bootstrap over the examples."""

import re
from collections.abc import Callable, Mapping

import numpy as np

from albertkit.training.metrics import wilson_interval

_OF_RIGHT_ANSWERS = re.compile(
    "accuracy|exact|f1|precision|recall"
)  # 1 (or 100) where all answers are right, 0 where none is


def bootstrap_intervals(
    scores: Callable[[np.ndarray], dict[str, float]],
    num_examples: int,
    samples: int = 1000,
    seed: int = 0,
    share: float = 0.95,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, tuple[float, float]]:
    """Return intervals of several scores, all from the same samples.

    Args:
        scores: The scores of the examples with these numbers, int64 [E], drawn with replacement.
        num_examples: E.
        samples: How often to draw.
        seed: Of the drawing.
        share: Of the samples' scores that lie in the interval, as many left out below as above.
        sizes: Of how many examples a score is, where it is not of all.

    Returns:
        Low and high by name. NaN if the score was defined in no sample; samples where it was not are left out. Where all
        answers are right, or none, no sample knows of another: then it is Wilson's interval, of 80 right answers of 80 from
        0.954 to 1.

    Source: Efron and Tibshirani 1993, chapter 13, the percentile interval.
    """
    random = np.random.default_rng(seed)
    drawn = [scores(random.integers(0, num_examples, num_examples)) for _ in range(samples)]
    edges = [(1 - share) / 2, (1 + share) / 2]
    intervals = {}
    for name in drawn[0]:
        values = np.array([values[name] for values in drawn])
        values = values[~np.isnan(values)]
        low, high = np.quantile(values, edges) if len(values) else (np.nan, np.nan)
        if low == high and low in (0, 1, 100) and share == 0.95 and _OF_RIGHT_ANSWERS.search(name):
            total, scale = (sizes or {}).get(name, num_examples), max(1.0, float(high))
            low, high = (scale * bound for bound in wilson_interval(total if low else 0, total))
        intervals[name] = (float(low), float(high))
    return intervals
