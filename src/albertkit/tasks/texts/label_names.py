"""Names of labels and their indices."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from albertkit.errors import ConfigError, DataError, near_miss


def named_outputs(labels: Sequence[str], problem_type: str) -> dict[str, Any]:
    """The configuration of a head with an output a label.

    Raises:
        ConfigError: bad-settings if there is none.
    """
    if not labels:
        raise ConfigError(
            "bad-settings", "the labels of the task are not known yet", "fit it to training examples first"
        )
    return {
        "num_labels": len(labels),
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
        "problem_type": problem_type,
    }


def sorted_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """In the order of their indices: sorted, whole numbers by size."""
    labels = list(labels)
    whole = all(label.isdecimal() for label in labels)
    return tuple(sorted(labels, key=(lambda label: (int(label), label)) if whole else None))


def label_indices(labels: Sequence[str], known: Sequence[str]) -> np.ndarray:
    """int64, the place of each label.

    Raises:
        DataError: unknown-label.
    """
    places = {label: place for place, label in enumerate(known)}
    found = np.array([places.get(label, -1) for label in labels], np.int64)
    if (found < 0).any():
        label, count = Counter(label for label in labels if label not in places).most_common(1)[0]
        raise DataError(
            "unknown-label", f"label `{label}`, {count:,} times, is none of those the model was trained with",
            f"{near_miss(label, known)}; leave such examples out, or train with some",
        )  # fmt: skip
    return found
