"""Names of labels and their indices."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from albertkit.data.bad_rows import counted
from albertkit.data.layouts import is_number
from albertkit.errors import ConfigError, DataError, listed, near_miss

NO_NUMBER = "if the labels are names of classes, the task is `classify`; else correct the row, or --on-error skip"
_MOST_NAMED = 5  # labels in a message


def named_outputs(labels: Sequence[str], problem_type: str) -> dict[str, Any]:
    """Return the configuration of a head with an output a label."""
    if not labels:
        raise ConfigError("bad-value", "the labels of the task are not known yet", "fit it to training examples first")
    return {
        "num_labels": len(labels),
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
        "problem_type": problem_type,
    }


def sorted_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Return labels in the order of their indices: sorted, numbers by size."""
    labels = list(labels)
    numbers = all(map(is_number, labels))
    return tuple(sorted(labels, key=(lambda label: (float(label), label)) if numbers else None))


def rarer_class(counts: Mapping[str, int]) -> str:
    """Return of two classes the one with fewer examples, of equal ones the last; "" if there are not two."""
    return min(reversed(sorted_labels(counts)), key=counts.__getitem__) if len(counts) == 2 else ""


def labels_of(examples: Sequence[Any], name: str = "label", missing: Any = None) -> list[Any]:
    """Return the labels of examples, or what else is called `name`; an example without any is an error."""
    labels = [getattr(example, name) for example in examples]
    if without := [example.id for example, label in zip(examples, labels, strict=True) if label == missing]:
        raise DataError(
            "bad-label",
            f"{len(without):,} of {len(examples):,} examples have no {name}, the first is `{without[0]}`",
            "score on data with labels",
        )
    return labels


def named_counts(counts: Mapping[str, int]) -> str:
    """Return labels and how many there are of each, the most frequent first: "`a` (12), `b` (1) and 3 more"."""
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return listed([f"`{label}` ({count:,})" for label, count in most], _MOST_NAMED)


def label_indices(labels: Sequence[str], known: Sequence[str]) -> np.ndarray:
    """Return the place of each label, int64."""
    places = {label: place for place, label in enumerate(known)}
    found = np.array([places.get(label, -1) for label in labels], np.int64)
    if (found < 0).any():
        strange = Counter(label for label in labels if label not in places)
        raise DataError(
            "bad-label",
            f"{counted(len(strange), 'label')} that the model was not trained with: {named_counts(strange)}",
            f"{near_miss(next(iter(strange)), known)}; leave such examples out, or train with some",
        )
    return found
