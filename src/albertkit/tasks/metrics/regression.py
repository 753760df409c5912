"""Correlations and squared error of numbers, by scipy."""

import warnings
from collections.abc import Callable, Sequence

import numpy as np

Numbers = Sequence[float] | np.ndarray


def regression_scores(labels: Numbers, predictions: Numbers) -> dict[str, float]:
    """Return the scores of predicted numbers.

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


def regression_scores_of(labels: Numbers, predictions: Numbers) -> Callable[[np.ndarray], dict[str, float]]:
    """Return `regression_scores` as a function of numbers of examples, for `bootstrap_intervals`.

    Ranks of a sample follow from how often each value was drawn, without sorting it: a thousand samples of 10,000 examples
    take 0.5 s, by scipy's functions 7 s.
    """
    gold, predicted = np.asarray(labels, np.float64), np.asarray(predictions, np.float64)
    order_of_gold, order_of_predicted = (np.unique(side, return_inverse=True)[1] for side in (gold, predicted))

    def scores(rows: np.ndarray) -> dict[str, float]:
        pearson = _correlation(gold[rows], predicted[rows])
        spearman = _correlation(_ranks(order_of_gold[rows]), _ranks(order_of_predicted[rows]))
        return {
            "pearson": pearson,
            "spearman": spearman,
            "pearson_and_spearman": (pearson + spearman) / 2,
            "mse": float(np.mean((gold[rows] - predicted[rows]) ** 2)),
        }

    return scores


def _ranks(places: np.ndarray) -> np.ndarray:
    """Return ranks from 1 of values given by their places in sorted order; equal ones share the mean of theirs."""
    counts = np.bincount(places)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    if not (np.ptp(a) and np.ptp(b)):
        return float("nan")
    a, b = a - a.mean(), b - b.mean()
    return float((a @ b) / np.sqrt((a @ a) * (b @ b)))
