"""Correlations and squared error of numbers, by scipy."""

import warnings
from collections.abc import Sequence

import numpy as np

Numbers = Sequence[float] | np.ndarray


def regression_scores(labels: Numbers, predictions: Numbers) -> dict[str, float]:
    """The scores of predicted numbers.

    Args:
        labels: E numbers.
        predictions: E numbers.

    Returns:
        pearson, spearman, pearson_and_spearman (the mean of the two) and mse, the mean squared error. A correlation
        with constants, or of fewer than two numbers, is NaN.
    """
    from scipy.stats import pearsonr, spearmanr

    gold, predicted = np.asarray(labels, np.float64), np.asarray(predictions, np.float64)
    pearson = spearman = float("nan")
    if len(gold) >= 2:
        with warnings.catch_warnings():  # scipy warns of constants, and says NaN
            warnings.simplefilter("ignore")
            pearson, spearman = float(pearsonr(gold, predicted)[0]), float(spearmanr(gold, predicted)[0])
    return {
        "pearson": pearson,
        "spearman": spearman,
        "pearson_and_spearman": (pearson + spearman) / 2,
        "mse": float(np.mean((gold - predicted) ** 2)),
    }
