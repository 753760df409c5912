"""Base class of tasks: reading of examples, features, predictions, scores."""

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
from torch import Tensor

from albertkit.batches.features import Features, LabelledBatch
from albertkit.errors import ConfigError, DataError, format_list, suggest_name
from albertkit.model.padded import SummedLoss
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tables.bad_rows import BadRows, pluralize
from albertkit.tables.columns import Columns
from albertkit.tables.layouts import is_number
from albertkit.tables.records import DataFile, DataFiles
from albertkit.tokenizer import AlbertTokenizer
from albertkit.validation import field_types, list_wrong_values

NO_NUMBER = "if the labels are names of classes, the task is `classify`; else correct the row, or --on-error skip"
_MAX_LABELS_NAMED = 5  # labels in a message


def head_config_for_labels(labels: Sequence[str], problem_type: str) -> dict[str, Any]:
    """Return the configuration of a head with an output a label."""
    if not labels:
        raise ConfigError(
            "bad-value",
            "the labels of the task are not known yet",
            "fit it to training examples first",
        )
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
    # `1` and `1.0` are two labels of one size.
    return tuple(sorted(labels, key=(lambda label: (float(label), label)) if numbers else None))


# Of 90 `ok` and 10 `fraud` the class that sorts last had an f1 of 0.95, and `fraud` 0.40.
def rarer_of_two_classes(counts: Mapping[str, int]) -> str:
    """Return of two classes the one with fewer examples, of equal ones the last; "" if there are not two."""
    return min(reversed(sorted_labels(counts)), key=counts.__getitem__) if len(counts) == 2 else ""


def values_of_labelled_examples(
    examples: Sequence[Any], attribute: str = "label", missing: Any = None
) -> list[Any]:
    """Return the labels of examples, or what else is called `attribute`; an example without any is an error."""
    labels = [getattr(example, attribute) for example in examples]
    if without := [
        example.id for example, label in zip(examples, labels, strict=True) if label == missing
    ]:
        raise DataError(
            "bad-label",
            f"{len(without):,} of {len(examples):,} examples have no {attribute}, the first is `{without[0]}`",
            "score on data with labels",
        )
    return labels


def format_counts(counts: Mapping[str, int]) -> str:
    """Return labels and how many there are of each, the most frequent first: "`a` (12), `b` (1) and 3 more"."""
    sorted_counts = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return format_list(
        [f"`{label}` ({count:,})" for label, count in sorted_counts],
        _MAX_LABELS_NAMED,
    )


def label_indices(labels: Sequence[str], label_names: Sequence[str]) -> np.ndarray:
    """Return the index of each label in the label names, int64; an unknown label is refused."""
    index_of_label = {label: index for index, label in enumerate(label_names)}
    indices = np.array([index_of_label.get(label, -1) for label in labels], np.int64)
    if (indices < 0).any():
        strange = Counter(label for label in labels if label not in index_of_label)
        raise DataError(
            "bad-label",
            f"{pluralize(len(strange), 'label')} that the model was not trained with: {format_counts(strange)}",
            f"{suggest_name(next(iter(strange)), label_names)}; leave such examples out, or train with some",
        )
    return indices


class Example(Protocol):
    """One thing to be judged; each task has its own kind, a frozen dataclass."""

    @property
    def id(self) -> str:
        """Name in prediction files: the id that the data give, else the number of the row, from 0."""


AnyExample = TypeVar("AnyExample", bound=Example)
Prediction = dict[str, Any]  # plain values for JSON, `id` first
PredictionRecords = Sequence[Prediction]  # one an example, in their order


def columns_as_task_fields(columns: Columns) -> dict[str, Any]:
    """Return the columns that are named as fields of a task: `text_column`, …, `columns`, `quoted`."""
    unsuffixed = ("columns", "quoted")
    return {
        name if name in unsuffixed else f"{name}_column": value
        for name, value in columns.settings().items()
    }


@dataclass(frozen=True, kw_only=True)
class Task(ABC, Generic[AnyExample]):
    """A task with its settings. Frozen, and all of it is plain values: `task.json` beside the weights holds it.

    Attributes:
        kind: classification, regression, multilabel, tagging, choice or answers.
        grouped: Whether all sequences of an example must be in one batch, because they compete.
        name: Of the task, for example "mrpc".
        length: Longest sequence, in tokens, special tokens included.
        metric: The score that says which model is best; larger is better.
    """

    kind: ClassVar[str]
    grouped: ClassVar[bool] = False
    name: str
    length: int = 512
    metric: str = "accuracy"

    # --- the model --------------------------------------------------------------------------------

    @property
    @abstractmethod
    def model_class(self) -> type[PretrainedAlbert]:
        """The class to fine-tune."""

    def head(self) -> dict[str, Any]:
        """Return configuration fields of the head: num_labels, id2label, label2id, problem_type."""
        return {}

    # --- the data ---------------------------------------------------------------------------------

    @abstractmethod
    def files(self, data: DataFiles) -> Mapping[str, DataFile]:
        """Return the files of a folder in the task's layout: split ("train", "dev", "test", or such as "dev_mismatched") to path.

        Args:
            data: The folder, or rows by split; or one file, which is then "train".
        """

    @abstractmethod
    def examples(
        self,
        file: DataFile,
        *,
        split: str,
        labelled: bool,
        bad_rows: BadRows,
    ) -> Iterator[AnyExample]:
        """Read a file, one example at a time, in its order.

        Args:
            file: One of `files`, any file of the task's form, which may be compressed, or rows in
                memory.
            split: Which it is: some layouts have other columns in "test".
            labelled: Whether the labels are wanted. Without, a file need not have them.
            bad_rows: Collects the rows that cannot be used.
        """

    def fitted(self, train: Sequence[AnyExample]) -> Self:
        """Return this task with what only the training examples say, for example the names of the labels."""
        return self

    def label_counts(self, examples: Sequence[AnyExample]) -> list[int] | None:
        """Return how many targets each class has, for balanced class weights; None for tasks without classes."""
        return None

    def calibration_split(
        self, train: Sequence[AnyExample]
    ) -> tuple[list[AnyExample], list[AnyExample]]:
        """Return the training examples, and those kept from training because a decision is calibrated on them; mostly none."""
        return list(train), []

    def calibrated(
        self,
        examples: Sequence[AnyExample],
        predictions: PredictionRecords,
        source: str,
    ) -> Self:
        """Return this task with what is decided by looking at predictions, such as the threshold for "no answer".

        Args:
            examples: Labelled.
            predictions: Of them.
            source: "train" for examples kept from training, "dev" for those that are scored; named
                in every result.
        """
        return self

    @abstractmethod
    def features(
        self,
        examples: Sequence[AnyExample],
        tokenizer: AlbertTokenizer,
        *,
        labelled: bool,
    ) -> Features:
        """Return the tokens of examples as the model reads them.

        Args:
            examples: Any number of them.
            tokenizer: The model's.
            labelled: Whether to make labels for `losses`.
        """

    # --- the model on a batch ---------------------------------------------------------------------

    @abstractmethod
    def losses(
        self, model: PretrainedAlbert, batch: LabelledBatch, class_weights: Tensor | None = None
    ) -> dict[str, SummedLoss]:
        """Return the losses of a batch as sums; the means over all batches of an update are added.

        Args:
            model: Of `model_class`.
            batch: On the model's device, made from labelled features.
            class_weights: fp32 [C], what an example of each class counts; their mean over the
                training examples is 1.
        """

    @abstractmethod
    def count_targets(self, batch: LabelledBatch) -> dict[str, int]:
        """Count the targets of each loss of `losses`, known before anything is computed."""

    @abstractmethod
    def outputs(self, model: PretrainedAlbert, batch: LabelledBatch) -> list[Any]:
        """Return the model's output for each of the N sequences, on the host, in the form that `predictions` reads.

        The sequences of an example may come in different batches.
        """

    # --- the result -------------------------------------------------------------------------------

    @abstractmethod
    def predictions(
        self, examples: Sequence[AnyExample], features: Features, outputs: Sequence[Any]
    ) -> list[Prediction]:
        """Return a record an example, in their order.

        Args:
            examples: E of them.
            features: Of these examples.
            outputs: M, one a sequence of the features.
        """

    @abstractmethod
    def score(
        self, examples: Sequence[AnyExample], predictions: PredictionRecords
    ) -> dict[str, float]:
        """Return the task's metrics. NaN where one is not defined, such as a correlation with constant predictions."""

    def details(
        self, examples: Sequence[AnyExample], predictions: PredictionRecords
    ) -> dict[str, Any]:
        """Return more than one number: per-class table, confusion matrix, bootstrap intervals; plain values for JSON."""
        return {}

    def collapsed(
        self, examples: Sequence[AnyExample], predictions: PredictionRecords
    ) -> str | None:
        """Return a note if the model has learned nothing, for example that all predictions are the same."""
        return None

    @abstractmethod
    def write(self, folder: Path, predictions: PredictionRecords, *, split: str) -> list[Path]:
        """Write the task's submission files, each whole or not at all, and name them.

        Args:
            folder: Made if missing.
            predictions: Of `predictions`.
            split: Of which data; part of names such as `MNLI-m.tsv`.
        """

    def read_predictions(
        self,
        file: str | os.PathLike[str],
        examples: Sequence[AnyExample],
    ) -> list[Prediction]:
        """Read anybody's predictions of these examples, in their order, as far as `score` needs them."""
        raise ConfigError(
            "bad-value",
            f"`{self.name}` cannot read predictions",
            "give its class `read_predictions`",
        )

    def error(self, example: AnyExample, prediction: Prediction) -> float:
        """Return how wrong a prediction is: 0 where it is right, larger for worse; to sort by."""
        return 0.0

    def describe_example(self, example: AnyExample) -> dict[str, Any]:
        """Return an example for readers: its `texts` in the order in which they are read, and its label, `gold`, as text."""
        return {"texts": [], "gold": ""}

    # --- files ------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for `task.json`."""
        return {"kind": self.kind, **asdict(self)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the task that `to_dict` described; lists become tuples."""
        fields: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k != "kind"
        }
        if problems := list_wrong_values(fields, field_types(cls)):
            raise TypeError("; ".join(problems))
        return cls(**fields)

    def with_changes(self, **changes: Any) -> Self:
        """Return a copy with other settings."""
        return replace(self, **changes)
