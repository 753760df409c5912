"""Several labels for a text or a pair of texts."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from albertkit.errors import DataError
from albertkit.tasks.features import Features
from albertkit.tasks.metrics.bootstrap import bootstrap_intervals
from albertkit.tasks.metrics.classification import label_scores
from albertkit.tasks.tables.layouts import Form
from albertkit.tasks.task import Prediction
from albertkit.tasks.texts.label_names import label_indices, named_outputs, sorted_labels
from albertkit.tasks.texts.task import TextExample, TextTask, labels_of


@dataclass(frozen=True, kw_only=True)
class MultiLabelClassification(TextTask):
    """Any number of labels for each text.

    The labels are in one column, with commas between them or as a JSON list; or each has a column that holds 0 or 1.

    Attributes:
        labels: Their names in the order of their indices; () until `fitted`.
        label_columns: Columns of 0 and 1, each called as its label; () for one column, `label_column`.
    """

    kind: ClassVar[str] = "multilabel"
    metric: str = "f1_micro"
    labels: tuple[str, ...] = ()
    label_columns: tuple[str, ...] = ()

    def head(self) -> dict[str, Any]:
        """An output a label."""
        return named_outputs(self.labels, "multi_label_classification")

    @property
    def _has_labels(self) -> bool:
        return bool(self.label_column or self.label_columns)

    def _wanted(self, form: Form, labelled: bool) -> list[str]:
        return [*form.wanted(labelled), *(self.label_columns if labelled else ())]

    def _label(self, values: dict[str, str], form: Form) -> tuple[str, ...]:
        if not self.label_columns:
            return _label_set(values[form.label])
        for name in self.label_columns:
            if values[name] not in ("0", "1"):
                raise ValueError(f"`{name}` is `{values[name]}`, neither 0 nor 1")
        return tuple(name for name in self.label_columns if values[name] == "1")

    def fitted(self, train: Sequence[TextExample]) -> Self:
        """With the labels of the training examples, sorted, numbers by size; or those that have a column.

        Raises:
            DataError: one-class if all examples have the same labels.
        """
        sets = {frozenset(labels) for labels in labels_of(train)}
        if len(sets) < 2:
            alike = ", ".join(sorted(next(iter(sets), ()))) or "no label"
            raise DataError(
                "one-class", f"all {len(train):,} training examples have the same labels: {alike}",
                "name the right column with --label-column",
            )  # fmt: skip
        return self.with_changes(labels=self.label_columns or sorted_labels(frozenset().union(*sets)))

    def _targets(self, examples: Sequence[TextExample]) -> np.ndarray:
        sets = labels_of(examples)
        return self._matrix(sets).astype(np.float32)

    def _matrix(self, sets: Sequence[Sequence[str]]) -> np.ndarray:
        """0 or 1, int64 [E, C]."""
        columns = label_indices([label for labels in sets for label in labels], self.labels)
        matrix = np.zeros((len(sets), len(self.labels)), np.int64)
        matrix[np.repeat(np.arange(len(sets)), [len(labels) for labels in sets]), columns] = 1
        return matrix

    def predictions(
        self, examples: Sequence[TextExample], features: Features, outputs: Sequence[Any]
    ) -> list[Prediction]:
        """Of each example id, the labels whose probability is above one half, and the probability of each label."""
        logits = self._logits(examples, features, outputs)
        shares = 1 / (1 + np.exp(-logits))
        return [
            {
                "id": example.id,
                "labels": [label for label, share in zip(self.labels, row, strict=True) if share > 0.5],
                "probabilities": dict(zip(self.labels, row, strict=True)),
            }
            for example, row in zip(examples, shares.tolist(), strict=True)
        ]

    def score(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        """f1_micro, f1_macro, subset_accuracy; see `label_scores`.

        Raises:
            DataError: no-labels, unknown-label.
        """
        return label_scores(self._matrix(labels_of(examples)), self._matrix([r["labels"] for r in predictions]))

    def details(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> dict[str, Any]:
        """Bootstrap intervals."""
        gold, predicted = self._matrix(labels_of(examples)), self._matrix([r["labels"] for r in predictions])
        return {"intervals": bootstrap_intervals(label_scores_of(gold, predicted), len(gold))}

    def collapsed(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> str | None:
        """Whether all predictions are the same labels, and the labels are not."""
        predicted = {frozenset(record["labels"]) for record in predictions}
        if len(predicted) != 1 or len({frozenset(labels) for labels in labels_of(examples)}) < 2:
            return None
        return (
            f"all {len(predictions):,} predictions are the same labels: {', '.join(sorted(predicted.pop())) or 'none'}"
        )

    def error(self, example: TextExample, prediction: Prediction) -> float:
        """How many labels are predicted wrongly, or not predicted."""
        assert isinstance(example.label, tuple)
        return float(len(set(prediction["labels"]) ^ set(example.label)))

    def answer_of(self, prediction: Prediction) -> str:
        return ",".join(prediction["labels"])


def label_scores_of(labels: np.ndarray, predictions: np.ndarray) -> Callable[[np.ndarray], dict[str, float]]:
    """`label_scores` as a function of numbers of examples, for `bootstrap_intervals`: sums, and scikit-learn's numbers.

    Args:
        labels: 0 or 1, int64 [E, C].
        predictions: 0 or 1, int64 [E, C].
    """
    right, either, whole = labels & predictions, labels + predictions, (labels == predictions).all(1)

    def scores(rows: np.ndarray) -> dict[str, float]:
        both, any_ = right[rows].sum(0), either[rows].sum(0)
        return {
            "f1_micro": float(2 * both.sum() / max(any_.sum(), 1)),
            "f1_macro": float(np.mean(2 * both / np.maximum(any_, 1))),
            "subset_accuracy": float(whole[rows].mean()),
        }

    return scores


def _label_set(text: str) -> tuple[str, ...]:
    """The labels in a text: a JSON list, or names with commas between them; none if it is empty."""
    if text.startswith("["):
        try:
            labels = json.loads(text)
        except ValueError:
            raise ValueError(f"`{text[:40]}` is no list of labels") from None
    else:
        labels = text.split(",")
    return tuple(dict.fromkeys(name for label in labels if (name := str(label).strip())))
