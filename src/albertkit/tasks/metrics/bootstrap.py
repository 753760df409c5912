"""How far a score could be from what more data would give: percentile bootstrap over the examples."""

from collections.abc import Callable

import numpy as np


def bootstrap_intervals(
    scores: Callable[[np.ndarray], dict[str, float]],
    num_examples: int,
    samples: int = 1000,
    seed: int = 0,
    share: float = 0.95,
) -> dict[str, tuple[float, float]]:
    """Intervals of several scores, all from the same samples.

    Args:
        scores: The scores of the examples with these numbers, int64 [E], drawn with replacement.
        num_examples: E.
        samples: How often to draw.
        seed: Of the drawing.
        share: Of the samples' scores that lie in the interval, as many left out below as above.

    Returns:
        Low and high by name. NaN if the score was defined in no sample; samples where it was not are left out.

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
        intervals[name] = (float(low), float(high))
    return intervals
