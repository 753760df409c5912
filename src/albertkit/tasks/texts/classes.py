"""Tasks on texts and pairs of texts: a class or a number for each; several labels are in `multilabel`."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from albertkit.data.columns import Columns
from albertkit.data.features import Features
from albertkit.data.layouts import Form, is_number
from albertkit.data.tables import Null
from albertkit.errors import ConfigError, DataError, listed, near_miss
from albertkit.tasks.column_values import is_whole_float
from albertkit.tasks.label_names import NO_NUMBER, label_indices, labels_of, named_outputs, rarer_class, sorted_labels
from albertkit.tasks.metrics.bootstrap import bootstrap_intervals
from albertkit.tasks.metrics.classification import (
    class_scores,
    class_scores_of,
    class_table,
    confusion,
    label_scores,
    label_scores_of,
)
from albertkit.tasks.metrics.regression import regression_scores, regression_scores_of
from albertkit.tasks.prediction_files import File, label_list, list_of, wrong_label
from albertkit.tasks.task import Prediction
from albertkit.tasks.texts.official import OFFICIAL
from albertkit.tasks.texts.task import TextExample, TextTask

_NO, _YES = ("0", "0.0", "false"), ("1", "1.0", "true")  # pandas.get_dummies writes False and True, or floats
_CONSTANT = 0.02  # of the labels' standard deviation; a model that has learned anything has 0.3 and more


@dataclass(frozen=True, kw_only=True)
class TextClassification(TextTask):
    """One of several classes.

    Attributes:
        labels: Their names in the order of their indices; () until `fitted`, official tasks have theirs.
        positive_class: Of two classes the one whose f1, precision and recall are scored. "": the last of `labels`, as GLUE
            has it; `fitted` takes the rarer one in training.
    """

    kind: ClassVar[str] = "classification"
    labels: tuple[str, ...] = ()
    positive_class: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positive_class and self.labels and (len(self.labels) != 2 or self.positive_class not in self.labels):
            raise ConfigError(
                "bad-value",
                f"positive_class is `{self.positive_class}`, the classes are {listed([f'`{name}`' for name in self.labels], 5)}",
                near_miss(self.positive_class, self.labels)
                if len(self.labels) == 2
                else "it is for two classes; leave it out",
            )

    def with_changes(self, **changes: Any) -> Self:
        """Return a copy with other settings; other labels take the positive class away, unless it is one of two of them."""
        labels = changes.get("labels", self.labels)
        if labels and (len(labels) != 2 or self.positive_class not in labels):
            changes = {"positive_class": "", **changes}
        return super().with_changes(**changes)

    def head(self) -> dict[str, Any]:
        """Return the configuration of a head with an output for each class."""
        return named_outputs(self.labels, "single_label_classification")

    def _known_labels(self) -> tuple[str, ...]:
        return self.labels if self.layout else ()

    def _may_be_whole_float(self, label: str) -> bool:
        return is_whole_float(label) and label not in self.labels

    def read_label(self, values: dict[str, str], form: Form) -> str:
        label = values[form.label].strip()
        if not label:
            raise ValueError(f"`{form.label}` is empty")
        if form.numbered and label.isdecimal() and int(label) < len(form.numbered):
            return form.numbered[int(label)]
        if self.layout and label not in self.labels:
            names = OFFICIAL[self.layout].label_names
            if label in names:
                return self.labels[names.index(label)]
            raise ValueError(f"label `{label}` is none of {', '.join((*self.labels, *names))}")
        return label

    def fitted(self, train: Sequence[TextExample]) -> Self:
        """Return this task with the labels of the training examples, sorted, numbers by size; official tasks keep theirs."""
        found = Counter(labels_of(train))
        if len(found) < 2:
            raise DataError(
                "too-little-data",
                f"all {len(train):,} training examples have the label `{next(iter(found), '')}`",
                "name the right column with --label-column, or add examples of another class",
            )
        if self.layout:
            return self
        return self.with_changes(labels=sorted_labels(found), positive_class=self.positive_class or rarer_class(found))

    def label_counts(self, examples: Sequence[TextExample]) -> list[int]:
        """Count the examples of each class."""
        counts = Counter(example.label for example in examples)
        return [counts[label] for label in self.labels]

    def _targets(self, examples: Sequence[TextExample]) -> np.ndarray:
        return label_indices(labels_of(examples), self.labels)

    def predictions(
        self, examples: Sequence[TextExample], features: Features, outputs: Sequence[Any]
    ) -> list[Prediction]:
        """Return for each example id, label, index, and the probability of each label."""
        logits = self.logits(examples, features, outputs)
        shares = np.exp(logits - logits.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        return [
            {
                "id": e.id,
                "label": self.labels[best],
                "index": best,
                "probabilities": dict(zip(self.labels, row, strict=True)),
            }
            for e, best, row in zip(examples, logits.argmax(1).tolist(), shares.tolist(), strict=True)
        ]

    def score(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Return the scores of `class_scores`."""
        return class_scores(*self._indices(examples, predictions), len(self.labels), self._positive)

    def details(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> dict[str, Any]:
        """Return the positive one of two classes, the scores of each class, the confusion matrix, bootstrap intervals."""
        gold, predicted = self._indices(examples, predictions)
        scores = class_scores_of(gold, predicted, len(self.labels), self._positive)
        return {
            **({"positive_class": self.scored_class} if self.scored_class else {}),
            "classes": class_table(gold, predicted, self.labels),
            "confusion": {"names": list(self.labels), "counts": confusion(gold, predicted, len(self.labels))},
            "intervals": bootstrap_intervals(scores, len(gold)),
        }

    def collapsed(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> str | None:
        """Return a note if all predictions are one class, and the labels are not."""
        predicted = {record["label"] for record in predictions}
        if len(predicted) != 1 or len({example.label for example in examples}) < 2:
            return None
        return f"all {len(predictions):,} predictions are `{predicted.pop()}`"

    def error(self, example: TextExample, prediction: Prediction) -> float:
        """Return the probability of the predicted class, where it is not the label."""
        return 0.0 if prediction["label"] == example.label else prediction["probabilities"][prediction["label"]]

    @property
    def scored_class(self) -> str:
        """The class whose f1, precision and recall are scored; "" if there are not two."""
        return self.labels[self._positive] if len(self.labels) == 2 else ""

    @property
    def _positive(self) -> int:
        """The number of the class whose f1, precision and recall are scored, if there are two."""
        return self.labels.index(self.positive_class) if self.positive_class else 1

    def _indices(
        self, examples: Sequence[TextExample], predictions: Sequence[Prediction]
    ) -> tuple[np.ndarray, np.ndarray]:
        return self._targets(examples), label_indices([record["label"] for record in predictions], self.labels)

    def _parsed(self, values: Sequence[str], file: File) -> Iterator[dict[str, Any]]:
        if self.labels and (strange := [value for value in values if value not in self.labels]):
            raise wrong_label(file, strange, self.labels)
        return ({"label": value} for value in values)

    def answer_of(self, prediction: Prediction) -> str:
        return prediction["label"]


@dataclass(frozen=True, kw_only=True)
class TextRegression(TextTask):
    """A number.

    Attributes:
        activation: What is done with the model's output: "identity", or "sigmoid" as most CrossEncoders do.
    """

    kind: ClassVar[str] = "regression"
    metric: str = "pearson_and_spearman"
    activation: str = "identity"

    def head(self) -> dict[str, Any]:
        """Return the configuration of a head with one output."""
        return {"num_labels": 1, "problem_type": "regression"}

    def read_label(self, values: dict[str, str], form: Form) -> float:
        if not is_number(values[form.label]):
            raise ValueError(f"`{form.label}` is `{values[form.label]}`, not a number", NO_NUMBER)
        return float(values[form.label])

    def fitted(self, train: Sequence[TextExample]) -> Self:
        """Return this task; labels that are all the same are an error."""
        if len(found := set(labels_of(train))) < 2:
            raise DataError(
                "too-little-data",
                f"all {len(train):,} training examples have the number {next(iter(found), '')}",
                "name the right column with --label-column",
            )
        return self

    def _targets(self, examples: Sequence[TextExample]) -> np.ndarray:
        return np.array(labels_of(examples), np.float32)

    def predictions(
        self, examples: Sequence[TextExample], features: Features, outputs: Sequence[Any]
    ) -> list[Prediction]:
        """Return for each example id and value."""
        logits = self.logits(examples, features, outputs)[:, 0]
        values = (1 / (1 + np.exp(-logits)) if self.activation == "sigmoid" else logits).tolist()
        return [{"id": example.id, "value": value} for example, value in zip(examples, values, strict=True)]

    def score(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Return the scores of `regression_scores`; where the benchmark calls pairs similar, also the f1 of that."""
        scores = self._scores(examples, predictions)(np.arange(len(predictions)))
        return scores | regression_scores(labels_of(examples), [record["value"] for record in predictions])

    def details(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> dict[str, Any]:
        """Return pairs of label and prediction, bootstrap intervals; of pairs that are similar or not what f1 is of."""
        pairs = [[label, record["value"]] for label, record in zip(labels_of(examples), predictions, strict=True)]
        similar = {} if self._similar_from is None else {"positive_class": f"{self._similar_from:g} and more"}
        return {
            **similar,
            "pairs": pairs,
            "intervals": bootstrap_intervals(self._scores(examples, predictions), len(pairs)),
        }

    @property
    def _similar_from(self) -> float | None:
        return OFFICIAL[self.layout].similar_from if self.layout else None

    def _scores(
        self, examples: Sequence[TextExample], predictions: Sequence[Prediction]
    ) -> Callable[[np.ndarray], dict[str, float]]:
        """Return the scores as a function of numbers of examples."""
        labels = np.array(labels_of(examples), np.float64)
        values = np.array([record["value"] for record in predictions], np.float64)
        scores = regression_scores_of(labels, values)
        if (bound := self._similar_from) is None:
            return scores
        similar = class_scores_of((labels >= bound).astype(int), (values >= bound).astype(int), 2)
        return lambda rows: {**scores(rows), "f1": similar(rows)["f1"]}

    def collapsed(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> str | None:
        """Return a note if the predictions differ by less than a fiftieth of what the labels differ by."""
        values = np.array([record["value"] for record in predictions])
        labels = np.array([example.label for example in examples], np.float64)
        if labels.std() == 0 or values.std() >= _CONSTANT * labels.std():
            return None
        low, high = f"{values.min():.3f}", f"{values.max():.3f}"
        every = f"{low}" if low == high else f"between {low} and {high}"
        return f"all {len(values):,} predictions are {every}"

    def error(self, example: TextExample, prediction: Prediction) -> float:
        """Return the distance from the label."""
        assert isinstance(example.label, float)
        return abs(prediction["value"] - example.label)

    @property
    def _prediction_columns(self) -> tuple[str, ...]:
        return "score", "scores", "logits", "probability"

    def _parsed(self, values: Sequence[str], file: File) -> Iterator[dict[str, Any]]:
        for place, text in enumerate(values):
            if not is_number(text):
                fact = f"`{file}`: prediction {place + 1:,} is `{text}`, not a finite number"
                raise DataError("predictions-mismatch", fact, "write numbers")
            yield {"value": float(text)}

    def answer_of(self, prediction: Prediction) -> str:
        return f"{prediction['value']:.6f}"


@dataclass(frozen=True, kw_only=True)
class MultiLabelClassification(TextTask):
    """Any number of labels for each text.

    The labels are in one column, with commas between them or as a JSON list; or each has a column that holds 0 or 1,
    or false or true.

    Attributes:
        labels: Their names in the order of their indices; () until `fitted`.
        label_columns: Columns of 0 and 1, each called as its label; () for one column, `label_column`.
    """

    kind: ClassVar[str] = "multilabel"
    metric: str = "f1_micro"
    labels: tuple[str, ...] = ()
    label_columns: tuple[str, ...] = ()

    def head(self) -> dict[str, Any]:
        """Return the configuration of a head with an output for each label."""
        return named_outputs(self.labels, "multi_label_classification")

    def _changes(self, columns: Columns) -> dict[str, Any]:
        changes = super()._changes(columns)
        if columns.label is None:
            return changes
        names = tuple(name.strip() for name in columns.label.split(","))
        return changes | ({"label_columns": names, "label_column": ""} if len(names) > 1 else {"label_columns": ()})

    @property
    def _has_labels(self) -> bool:
        return bool(self.label_column or self.label_columns)

    @property
    def _list_columns(self) -> tuple[str, ...]:
        return (self.label_column,)

    def _wanted(self, form: Form, labelled: bool) -> list[str]:
        return [*form.wanted(labelled), *(self.label_columns if labelled else ())]

    def read_label(self, values: dict[str, str], form: Form) -> tuple[str, ...]:
        if not self.label_columns:
            if isinstance(values[form.label], Null):
                raise ValueError(f"`{form.label}` is null", "write [] where no label applies")
            names = label_list(values[form.label])
            if _is_multi_hot(names):
                fact = f"`{form.label}` is `{values[form.label][:40]}`, a 0 or 1 for each label, and nothing names the labels"
                hint = 'write the names of those that apply, such as ["toxic", "insult"], or a column of 0 and 1 for each label'
                raise DataError("bad-label", fact, f"{hint}: --label-column toxic,insult")
            return tuple(dict.fromkeys(names))
        for name in self.label_columns:
            if values[name].lower() not in (*_NO, *_YES):
                raise ValueError(f"`{name}` is `{values[name]}`, neither 0 nor 1")
        return tuple(name for name in self.label_columns if values[name].lower() in _YES)

    def fitted(self, train: Sequence[TextExample]) -> Self:
        """Return this task with the labels of the training examples, sorted, numbers by size; or those that have a column."""
        sets = {frozenset(labels) for labels in labels_of(train)}
        if len(sets) < 2:
            alike = ", ".join(sorted(next(iter(sets), ()))) or "no label"
            raise DataError(
                "too-little-data",
                f"all {len(train):,} training examples have the same labels: {alike}",
                "name the right column with --label-column",
            )
        return self.with_changes(labels=self.label_columns or sorted_labels(frozenset().union(*sets)))

    def _targets(self, examples: Sequence[TextExample]) -> np.ndarray:
        sets = labels_of(examples)
        return self._matrix(sets).astype(np.float32)

    def _matrix(self, sets: Sequence[Sequence[str]]) -> np.ndarray:
        """Return 0 or 1, int64 [E, C]."""
        columns = label_indices([label for labels in sets for label in labels], self.labels)
        matrix = np.zeros((len(sets), len(self.labels)), np.int64)
        matrix[np.repeat(np.arange(len(sets)), [len(labels) for labels in sets]), columns] = 1
        return matrix

    def predictions(
        self, examples: Sequence[TextExample], features: Features, outputs: Sequence[Any]
    ) -> list[Prediction]:
        """Return for each example id, the labels whose probability is above one half, and the probability of each label."""
        logits = self.logits(examples, features, outputs)
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
        """Return the scores of `label_scores`."""
        return label_scores(self._matrix(labels_of(examples)), self._matrix([r["labels"] for r in predictions]))

    def details(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> dict[str, Any]:
        """Return bootstrap intervals."""
        gold, predicted = self._matrix(labels_of(examples)), self._matrix([r["labels"] for r in predictions])
        return {"intervals": bootstrap_intervals(label_scores_of(gold, predicted), len(gold))}

    def collapsed(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> str | None:
        """Return a note if all predictions are the same labels, and the labels are not."""
        predicted = {frozenset(record["labels"]) for record in predictions}
        if len(predicted) != 1 or len({frozenset(labels) for labels in labels_of(examples)}) < 2:
            return None
        return (
            f"all {len(predictions):,} predictions are the same labels: {', '.join(sorted(predicted.pop())) or 'none'}"
        )

    def error(self, example: TextExample, prediction: Prediction) -> float:
        """Return how many labels are predicted wrongly, or not predicted."""
        assert isinstance(example.label, tuple)
        return float(len(set(prediction["labels"]) ^ set(example.label)))

    def _parsed(self, values: Sequence[str], file: File) -> Iterator[dict[str, Any]]:
        sets = [list_of(value, file) for value in values]
        if self.labels and (strange := [label for labels in sets for label in labels if label not in self.labels]):
            raise wrong_label(file, strange, self.labels)
        return ({"labels": labels} for labels in sets)

    def answer_of(self, prediction: Prediction) -> str:
        return ",".join(prediction["labels"])


def _is_multi_hot(names: Sequence[str]) -> bool:
    """Return whether a list says of each label by its place whether it applies. `[0, 1]` alone may be two numbers of classes."""
    flags = [name.lower() for name in names]
    is_binary = len(flags) > 1 and all(flag in (*_NO, *_YES) for flag in flags)
    return is_binary and (len(set(flags)) < len(flags) or not {"0", "1"}.issuperset(flags))


_CLASSES: dict[str, type[TextTask]] = {
    "classification": TextClassification, "regression": TextRegression, "multilabel": MultiLabelClassification,
}  # fmt: skip


def official_task(name: str, columns: Columns | None = None, **settings: Any) -> TextTask:
    """Return a task whose files are in the official layout, or have these columns."""
    if name not in OFFICIAL:
        raise ConfigError("unknown-name", f"there is no task `{name}`", near_miss(name, OFFICIAL))
    layout = OFFICIAL[name]
    known = {"labels": layout.labels} if layout.labels else {}
    settings = {"name": name, "layout": name, "metric": layout.metric, **known, **settings}
    return _CLASSES[layout.kind](**settings).with_columns(columns)


def table_task(kind: str, name: str, columns: Columns, **settings: Any) -> TextTask:
    """Return a task on a table of one's own."""
    return _CLASSES[kind](name=name, **settings).with_columns(columns)
