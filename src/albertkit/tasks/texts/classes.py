"""Tasks on texts and pairs of texts: a class or a number for each; several labels are in `multilabel`."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from albertkit.errors import DataError
from albertkit.model import AlbertForSequenceClassification
from albertkit.model.losses import class_loss
from albertkit.model.outputs import SummedLoss
from albertkit.model.packing import IGNORED
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tasks.features import Features, LabelledBatch
from albertkit.tasks.metrics.bootstrap import bootstrap_intervals
from albertkit.tasks.metrics.classification import class_scores, class_scores_of, class_table, confusion
from albertkit.tasks.metrics.regression import regression_scores, regression_scores_of
from albertkit.tasks.tables.layouts import Form, is_number
from albertkit.tasks.task import Prediction
from albertkit.tasks.texts.label_names import NO_NUMBER, label_indices, named_outputs, sorted_labels
from albertkit.tasks.texts.official import OFFICIAL
from albertkit.tasks.texts.task import TextExample, TextTask, labels_of

_CONSTANT = 0.02  # of the labels' standard deviation; a model that has learned anything has 0.3 and more


@dataclass(frozen=True, kw_only=True)
class TextClassification(TextTask):
    """One of several classes.

    Attributes:
        labels: Their names in the order of their indices; () until `fitted`, official tasks have theirs.
    """

    kind: ClassVar[str] = "classification"
    labels: tuple[str, ...] = ()

    def head(self) -> dict[str, Any]:
        """An output a class."""
        return named_outputs(self.labels, "single_label_classification")

    def _known_labels(self) -> tuple[str, ...]:
        return self.labels if self.layout else ()

    def _label(self, values: dict[str, str], form: Form) -> str:
        label = values[form.label].strip()
        if not label:
            raise ValueError(f"`{form.label}` is empty")
        if form.numbered and label.isdecimal() and int(label) < len(form.numbered):
            return form.numbered[int(label)]
        if self.layout and label not in self.labels:
            raise ValueError(f"label `{label}` is none of {', '.join(self.labels)}")
        return label

    def fitted(self, train: Sequence[TextExample]) -> Self:
        """With the labels of the training examples, sorted, numbers by size; official tasks keep theirs.

        Raises:
            DataError: one-class.
        """
        found = Counter(labels_of(train))
        if len(found) < 2:
            raise DataError(
                "one-class", f"all {len(train):,} training examples have the label `{next(iter(found), '')}`",
                "name the right column with --label-column, or add examples of another class",
            )  # fmt: skip
        return self if self.layout else self.with_changes(labels=sorted_labels(found))

    def label_counts(self, examples: Sequence[TextExample]) -> list[int]:
        """Examples of each class."""
        counts = Counter(example.label for example in examples)
        return [counts[label] for label in self.labels]

    def _targets(self, examples: Sequence[TextExample]) -> np.ndarray:
        return label_indices(labels_of(examples), self.labels)

    def losses(
        self, model: PretrainedAlbert, batch: LabelledBatch, class_weights: Tensor | None = None
    ) -> dict[str, SummedLoss]:
        """Cross-entropy; with weights that of each example times the weight of its class."""
        if class_weights is None:
            return super().losses(model, batch)
        assert isinstance(model, AlbertForSequenceClassification)
        logits, labels = model.packed_logits(batch.packed).float(), batch.per_sequence["labels"]
        weighted = F.cross_entropy(logits, labels, class_weights, ignore_index=IGNORED, reduction="sum")
        return {self.kind: class_loss(logits, labels)._replace(loss_sum=weighted)}

    def predictions(
        self, examples: Sequence[TextExample], features: Features, outputs: Sequence[Any]
    ) -> list[Prediction]:
        """Of each example id, label, index, and the probability of each label."""
        logits = self._logits(examples, features, outputs)
        shares = np.exp(logits - logits.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        return [
            {"id": e.id, "label": self.labels[best], "index": best, "probabilities": dict(zip(self.labels, row, strict=True))}
            for e, best, row in zip(examples, logits.argmax(1).tolist(), shares.tolist(), strict=True)
        ]  # fmt: skip

    def score(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        """accuracy, f1, f1_macro, precision, recall, matthews_correlation, accuracy_and_f1; see `class_scores`.

        Raises:
            DataError: no-labels, unknown-label.
        """
        return class_scores(*self._indices(examples, predictions), len(self.labels))

    def details(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> dict[str, Any]:
        """The scores of each class, the confusion matrix, bootstrap intervals."""
        gold, predicted = self._indices(examples, predictions)
        return {
            "classes": class_table(gold, predicted, self.labels),
            "confusion": {"names": list(self.labels), "counts": confusion(gold, predicted, len(self.labels))},
            "intervals": bootstrap_intervals(class_scores_of(gold, predicted, len(self.labels)), len(gold)),
        }

    def collapsed(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> str | None:
        """Whether all predictions are one class, and the labels are not."""
        predicted = {record["label"] for record in predictions}
        if len(predicted) != 1 or len({example.label for example in examples}) < 2:
            return None
        return f"all {len(predictions):,} predictions are `{predicted.pop()}`"

    def error(self, example: TextExample, prediction: Prediction) -> float:
        """The probability of the predicted class, where it is not the label."""
        return 0.0 if prediction["label"] == example.label else prediction["probabilities"][prediction["label"]]

    def _indices(
        self, examples: Sequence[TextExample], predictions: Sequence[Prediction]
    ) -> tuple[np.ndarray, np.ndarray]:
        return self._targets(examples), label_indices([record["label"] for record in predictions], self.labels)

    def answer_of(self, prediction: Prediction) -> str:
        return prediction["label"]


@dataclass(frozen=True, kw_only=True)
class TextRegression(TextTask):
    """A number."""

    kind: ClassVar[str] = "regression"
    metric: str = "pearson_and_spearman"

    def head(self) -> dict[str, Any]:
        """One output."""
        return {"num_labels": 1, "problem_type": "regression"}

    def _label(self, values: dict[str, str], form: Form) -> float:
        if not is_number(values[form.label]):
            raise ValueError(f"`{form.label}` is `{values[form.label]}`, not a number", NO_NUMBER)
        return float(values[form.label])

    def fitted(self, train: Sequence[TextExample]) -> Self:
        """This task.

        Raises:
            DataError: one-class if all numbers are the same.
        """
        if len(found := set(labels_of(train))) < 2:
            raise DataError(
                "one-class", f"all {len(train):,} training examples have the number {next(iter(found), '')}",
                "name the right column with --label-column",
            )  # fmt: skip
        return self

    def _targets(self, examples: Sequence[TextExample]) -> np.ndarray:
        return np.array(labels_of(examples), np.float32)

    def predictions(
        self, examples: Sequence[TextExample], features: Features, outputs: Sequence[Any]
    ) -> list[Prediction]:
        """Of each example id and value."""
        values = self._logits(examples, features, outputs)[:, 0].tolist()
        return [{"id": example.id, "value": value} for example, value in zip(examples, values, strict=True)]

    def score(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        """pearson, spearman, pearson_and_spearman, mse, see `regression_scores`; and where the benchmark decides which pairs are
        similar, the f1 of that.

        Raises:
            DataError: no-labels.
        """
        scores = self._scores(examples, predictions)(np.arange(len(predictions)))
        return scores | regression_scores(labels_of(examples), [record["value"] for record in predictions])

    def details(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> dict[str, Any]:
        """Pairs of label and prediction, bootstrap intervals."""
        pairs = [[label, record["value"]] for label, record in zip(labels_of(examples), predictions, strict=True)]
        return {"pairs": pairs, "intervals": bootstrap_intervals(self._scores(examples, predictions), len(pairs))}

    def _scores(
        self, examples: Sequence[TextExample], predictions: Sequence[Prediction]
    ) -> Callable[[np.ndarray], dict[str, float]]:
        """The scores as a function of numbers of examples."""
        labels = np.array(labels_of(examples), np.float64)
        values = np.array([record["value"] for record in predictions], np.float64)
        scores = regression_scores_of(labels, values)
        bound = OFFICIAL[self.layout].similar_from if self.layout else None
        if bound is None:
            return scores
        similar = class_scores_of((labels >= bound).astype(int), (values >= bound).astype(int), 2)
        return lambda rows: {**scores(rows), "f1": similar(rows)["f1"]}

    def collapsed(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> str | None:
        """Whether the predictions differ by less than a fiftieth of what the labels differ by."""
        values = np.array([record["value"] for record in predictions])
        labels = np.array([example.label for example in examples], np.float64)
        if labels.std() == 0 or values.std() >= _CONSTANT * labels.std():
            return None
        low, high = f"{values.min():.3f}", f"{values.max():.3f}"
        every = f"{low}" if low == high else f"between {low} and {high}"
        return f"all {len(values):,} predictions are {every}"

    def error(self, example: TextExample, prediction: Prediction) -> float:
        """The distance from the label."""
        assert isinstance(example.label, float)
        return abs(prediction["value"] - example.label)

    def answer_of(self, prediction: Prediction) -> str:
        return f"{prediction['value']:.6f}"
