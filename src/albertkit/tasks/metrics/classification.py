"""Accuracy, F1 and Matthews correlation of classes and of label sets, by scikit-learn. Zero divided by zero counts as 0."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Labels = Sequence[int] | np.ndarray


def class_scores(
    labels: Labels, predictions: Labels, num_classes: int, counts: np.ndarray | None = None
) -> dict[str, float]:
    """The scores of single classes.

    Args:
        labels: E classes, from 0.
        predictions: E classes, from 0.
        num_classes: C. With 2, f1, precision and recall are those of class 1, as GLUE has it; else the means over the
            classes that occur in the labels or the predictions.
        counts: How many examples each of the E pairs stands for. Default: one.

    Returns:
        accuracy, f1, f1_macro, precision, recall, matthews_correlation and accuracy_and_f1, the mean of the two.
    """
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef, precision_recall_fscore_support

    average = "binary" if num_classes == 2 else "macro"
    weighed = {"sample_weight": counts}
    accuracy = float(accuracy_score(labels, predictions, **weighed))
    precision, recall, f1, _ = precision_recall_fscore_support(
        labels, predictions, average=average, zero_division=0, **weighed
    )
    macro = f1 if average == "macro" else f1_score(labels, predictions, average="macro", zero_division=0, **weighed)
    return {
        "accuracy": accuracy,
        "f1": float(f1),
        "f1_macro": float(macro),
        "precision": float(precision),
        "recall": float(recall),
        "matthews_correlation": float(matthews_corrcoef(labels, predictions, **weighed)),
        "accuracy_and_f1": (accuracy + float(f1)) / 2,
    }


def class_scores_of(labels: Labels, predictions: Labels, num_classes: int) -> Callable[[np.ndarray], dict[str, float]]:
    """`class_scores` as a function of numbers of examples, for `bootstrap_intervals`.

    Every sample is counted into the C * C pairs of label and prediction first: 30 times faster than scoring 10,000
    examples a thousand times, and the same numbers.
    """
    pairs = np.asarray(labels) * num_classes + np.asarray(predictions)

    def scores(rows: np.ndarray) -> dict[str, float]:
        counts = np.bincount(pairs[rows], minlength=num_classes**2)
        occurring = np.flatnonzero(counts)
        return class_scores(occurring // num_classes, occurring % num_classes, num_classes, counts[occurring])

    return scores


def class_table(labels: Labels, predictions: Labels, names: Sequence[str]) -> list[dict[str, Any]]:
    """Scores of each class.

    Args:
        labels: E classes, from 0.
        predictions: E classes, from 0.
        names: Of the C classes.

    Returns:
        A row a class, in the order of the names: name, precision, recall, f1, support (how many examples have it).
    """
    from sklearn.metrics import precision_recall_fscore_support

    columns = precision_recall_fscore_support(labels, predictions, labels=range(len(names)), zero_division=0)
    return [
        {"name": name, "precision": float(p), "recall": float(r), "f1": float(f), "support": int(s)}
        for name, p, r, f, s in zip(names, *columns, strict=True)
    ]


def confusion(labels: Labels, predictions: Labels, num_classes: int) -> list[list[int]]:
    """How often class i (row) was predicted as class j (column): C rows of C counts."""
    from sklearn.metrics import confusion_matrix

    return confusion_matrix(labels, predictions, labels=range(num_classes)).tolist()


def label_scores(labels: Sequence[Sequence[int]] | np.ndarray, predictions: Any) -> dict[str, float]:
    """The scores of label sets.

    Args:
        labels: 0 or 1 [E, C]: which of the C labels each example has.
        predictions: 0 or 1 [E, C].

    Returns:
        f1_micro over all decisions, f1_macro over the labels, subset_accuracy: the share of sets that are right as a whole.
    """
    from sklearn.metrics import accuracy_score, f1_score

    labels, predictions = np.asarray(labels), np.asarray(predictions)
    return {
        "f1_micro": float(f1_score(labels, predictions, average="micro", zero_division=0)),
        "f1_macro": float(f1_score(labels, predictions, average="macro", zero_division=0)),
        "subset_accuracy": float(accuracy_score(labels, predictions)),
    }
