"""The task of multiple choice: a score for each choice, and a softmax over as many as an example has."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from albertkit.data.bad_rows import BadRows
from albertkit.data.columns import Columns
from albertkit.data.features import Features, LabelledBatch, tokens_for_text
from albertkit.data.given import SPLIT_NAMES, DataFile, DataFiles
from albertkit.data.layouts import find_files
from albertkit.errors import ConfigError
from albertkit.files import atomic_file, write_json, write_lines
from albertkit.tasks.choices.reading import LEVELS, ChoiceExample, is_race_table, race_files, read_choices, read_race
from albertkit.tasks.label_names import labels_of
from albertkit.tasks.metrics.bootstrap import bootstrap_intervals
from albertkit.tasks.prediction_files import Predicted, join, read_object, read_predictions, wrong_label
from albertkit.tasks.task import Prediction, Task, column_fields

if TYPE_CHECKING:
    from torch import Tensor

    from albertkit.model.outputs import SummedLoss
    from albertkit.model.pretrained import PretrainedAlbert
    from albertkit.tokenizer import AlbertTokenizer

# What the files of a folder are called, without extension; RACE has folders. ARC is two sets.
_FILES: dict[str, Mapping[str, tuple[str, ...]]] = {
    "siqa": {split: (split, f"siqa-{split}") for split in ("train", "dev", "test")},
    "arc": {
        "train": ("train", "arc_challenge_train", "ARC-Challenge-Train", "ARC-Challenge/ARC-Challenge-Train"),
        "dev": ("dev", "arc_challenge_dev", "ARC-Challenge-Dev", "ARC-Challenge/ARC-Challenge-Dev"),
        "test": ("test", "arc_challenge_test", "ARC-Challenge-Test", "ARC-Challenge/ARC-Challenge-Test"),
        "train_easy": ("arc_easy_train", "ARC-Easy-Train", "ARC-Easy/ARC-Easy-Train"),
        "dev_easy": ("arc_easy_dev", "ARC-Easy-Dev", "ARC-Easy/ARC-Easy-Dev"),
        "test_easy": ("arc_easy_test", "ARC-Easy-Test", "ARC-Easy/ARC-Easy-Test"),
    },
    "choice": SPLIT_NAMES,
}
CHOICE_TASKS = ("race", *_FILES)


@dataclass(frozen=True, kw_only=True)
class ChoiceTask(Task[ChoiceExample]):
    """Choose one of several answers. The number of choices may differ from example to example.

    Attributes:
        max_qa_length: Pieces of question and choice at most; see `choice_features`.
        cloze: Whether a `_` in a question is a gap for the choice, as in RACE.
        levels: Which parts of RACE are read.
        text_column: Column of the text to read first. "": the one with a known name, such as `context`.
        pair_column: Of the question, likewise.
        label_column: Of the label.
        id_column: Of the ids.
        columns: Names of all columns of a file that has no header.
        quoted: Whether fields may be in quotes, see `Table`.
    """

    kind: ClassVar[str] = "choice"
    grouped: ClassVar[bool] = True
    max_qa_length: int = 128
    cloze: bool = False
    levels: tuple[str, ...] = LEVELS
    text_column: str = ""
    pair_column: str = ""
    label_column: str = ""
    id_column: str = ""
    columns: tuple[str, ...] = ()
    quoted: bool | None = None

    @property
    def model_class(self) -> type[PretrainedAlbert]:
        from albertkit.tasks import heads

        return heads.AlbertForMultipleChoice

    # --- the data -----------------------------------------------------------------------------------------------------

    def with_columns(self, columns: Columns | None) -> Self:
        """Return a task that reads a table with other columns; length and all else stay."""
        return self.with_changes(**column_fields(columns or Columns()))

    def files(self, data: DataFiles) -> Mapping[str, DataFile]:
        """See `Task.files`; of RACE folders. ARC's two sets are such as "dev" (challenge) and "dev_easy"."""
        return race_files(data) if self.name == "race" else find_files(data, _FILES.get(self.name, SPLIT_NAMES))

    def examples(self, file: DataFile, *, split: str, labelled: bool, bad_rows: BadRows) -> Iterator[ChoiceExample]:
        """See `Task.examples`, `read_race` and `read_choices`; RACE may have the hub's form, a row a question."""
        if self.name == "race" and not is_race_table(file):
            return read_race(file, self.levels, labelled=labelled, bad_rows=bad_rows)
        columns = Columns(
            text=self.text_column or None,
            pair=self.pair_column or None,
            label=self.label_column or None,
            id=self.id_column or None,
            columns=",".join(self.columns) or None,
            quoted=self.quoted,
        )
        return read_choices(file, columns, split=split, labelled=labelled, bad_rows=bad_rows)

    def features(self, examples: Sequence[ChoiceExample], tokenizer: AlbertTokenizer, *, labelled: bool) -> Features:
        """Return a sequence a choice, see `choice_features`. `labels` are per sequence: whether the choice is right, 0 or 1."""
        made = choice_features(examples, tokenizer, self.length, self.max_qa_length, self.cloze)
        if not labelled:
            return made
        labels = np.zeros(made.num_sequences, np.int64)
        labels[made.sequences_of(len(examples))[:-1] + _labels(examples)] = 1
        return replace(made, per_sequence={"labels": labels})

    # --- the model on a batch -----------------------------------------------------------------------------------------

    def losses(
        self, model: PretrainedAlbert, batch: LabelledBatch, class_weights: Tensor | None = None
    ) -> dict[str, SummedLoss]:
        """Return cross-entropy over the choices of each example."""
        if class_weights is not None:
            raise ConfigError("bad-value", "class weights cannot be used for choices", "leave class weights out")
        from albertkit.tasks import heads

        logits = heads.choice_outputs(model, batch)
        return {"choice": heads.choice_loss(logits, batch.examples, batch.per_sequence["labels"] == 1)}

    def counts(self, batch: LabelledBatch) -> dict[str, int]:
        """Return the number of examples."""
        return {"choice": int((batch.per_sequence["labels"] == 1).sum())}

    def outputs(self, model: PretrainedAlbert, batch: LabelledBatch) -> list[float]:
        """Return the logit of each sequence."""
        from albertkit.tasks import heads

        return heads.choice_outputs(model, batch).float().tolist()

    # --- the result ---------------------------------------------------------------------------------------------------

    def predictions(
        self, examples: Sequence[ChoiceExample], features: Features, outputs: Sequence[float]
    ) -> list[Prediction]:
        """Return for each example id, label (the name of the choice), index, and the probability of each choice by name."""
        bounds = features.sequences_of(len(examples))
        records = []
        for example, start, stop in zip(examples, bounds[:-1], bounds[1:], strict=True):
            logits = np.array(outputs[start:stop], np.float64)
            shares = np.exp(logits - logits.max())
            best = int(logits.argmax())
            probabilities = dict(zip(example.names, (shares / shares.sum()).tolist(), strict=True))
            records.append(
                {"id": example.id, "label": example.names[best], "index": best, "probabilities": probabilities}
            )
        return records

    def score(self, examples: Sequence[ChoiceExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Return the accuracy."""
        return {"accuracy": float(_right(examples, predictions).mean()) if examples else float("nan")}

    def details(self, examples: Sequence[ChoiceExample], predictions: Sequence[Prediction]) -> dict[str, Any]:
        """Return accuracy of each level, such as accuracy_high, and bootstrap intervals of all."""
        right, levels = _right(examples, predictions), np.array([example.level for example in examples])
        parts = {f"accuracy_{level}": levels == level for level in sorted(set(levels.tolist()) - {""})}
        scores = _accuracies(right, {"accuracy": np.ones(len(right), bool), **parts})
        whole = scores(np.arange(len(right)))
        sizes = {name: int(part.sum()) for name, part in parts.items()}
        intervals = bootstrap_intervals(scores, len(right), sizes=sizes)
        return {**{name: whole[name] for name in parts}, "intervals": intervals}

    def collapsed(self, examples: Sequence[ChoiceExample], predictions: Sequence[Prediction]) -> str | None:
        """Return a note if the same place is always chosen, and is not always right."""
        places = {record["index"] for record in predictions}
        if len(places) != 1 or len({example.label for example in examples}) < 2:
            return None
        return f"all {len(predictions):,} answers are choice {places.pop() + 1}"

    def read_predictions(self, file: str | os.PathLike[str], examples: Sequence[ChoiceExample]) -> list[Prediction]:
        """Read records or a table with `label`, ARC's `predictions.csv`, SocialIQA's `predictions.lst`, or RACE's `answers.json`.

        A choice has its name, or its number, which begins as the numbers of the gold file do.
        """
        content = read_object(file)
        if isinstance(content, dict) and all(isinstance(letters, list) for letters in content.values()):
            questions = ((f"{name}-{n}", str(letter)) for name, own in content.items() for n, letter in enumerate(own))
            given = [Predicted(name, letter, 0) for name, letter in questions]
        else:
            given = read_predictions(file, ("label",), bare=True)
        records = []
        for example, value in zip(examples, join([e.id for e in examples], given, file), strict=True):
            numbers = [str(example.first + number) for number in range(len(example.choices))]
            known = example.names if value in example.names else numbers
            if value not in known:
                raise wrong_label(file, [value], example.names)
            place = known.index(value)
            records.append({"id": example.id, "label": example.names[place], "index": place})
        return records

    def error(self, example: ChoiceExample, prediction: Prediction) -> float:
        """Return the probability of the chosen answer, where it is wrong."""
        return 0.0 if prediction["index"] == example.label else max(prediction["probabilities"].values())

    def shown(self, example: ChoiceExample) -> dict[str, Any]:
        """Return context, question and choices, and the right one's name."""
        choices = [f"{name}: {choice}" for name, choice in zip(example.names, example.choices, strict=True)]
        texts = [text for text in (example.context, example.question, "; ".join(choices)) if text]
        return {"texts": texts, "gold": "" if example.label is None else example.names[example.label]}

    def write(self, folder: Path, predictions: Sequence[Prediction], *, split: str) -> list[Path]:
        """Write `predictions.jsonl`, and what the benchmark takes.

        RACE: `answers.json`, passage to letters, as its own files have them. SocialIQA: `predictions.lst`, a number from 1 a
        line. ARC: `predictions.csv`, `id,label`.
        """
        records = folder / "predictions.jsonl"
        write_lines(records, predictions)
        if self.name == "race":
            answers: dict[str, list[str]] = {}
            for record in predictions:
                answers.setdefault(record["id"].rpartition("-")[0], []).append(record["label"])
            write_json(folder / "answers.json", answers)
            return [records, folder / "answers.json"]
        official = {
            "siqa": ("predictions.lst", "{index}\n"),
            "arc": ("predictions.csv", "{id},{label}\n"),
        }
        if self.name not in official:
            return [records]
        name, line = official[self.name]
        with atomic_file(folder / name, "w") as stream:
            stream.writelines(line.format(**record | {"index": record["index"] + 1}) for record in predictions)
        return [records, folder / name]


def choice_task(name: str, **settings: Any) -> ChoiceTask:
    """Return a task by name."""
    return ChoiceTask(name=name, **{"cloze": name == "race", **settings})


def _labels(examples: Sequence[ChoiceExample]) -> np.ndarray:
    return np.array(labels_of(examples), np.int64)


def _right(examples: Sequence[ChoiceExample], predictions: Sequence[Prediction]) -> np.ndarray:
    return _labels(examples) == np.array([record["index"] for record in predictions], np.int64)


def _accuracies(right: np.ndarray, parts: Mapping[str, np.ndarray]) -> Callable[[np.ndarray], dict[str, float]]:
    """Return the accuracy of each part as a function of numbers of examples; NaN of a part that is not drawn."""

    def scores(rows: np.ndarray) -> dict[str, float]:
        drawn = {name: right[rows][part[rows]] for name, part in parts.items()}
        return {name: float(values.mean()) if len(values) else float("nan") for name, values in drawn.items()}

    return scores


def choice_features(
    examples: Sequence[ChoiceExample], tokenizer: AlbertTokenizer, length: int, max_qa_length: int, cloze: bool
) -> Features:
    """Return `[CLS] context [SEP] question choice [SEP]`, as Google has RACE.

    Without context it is `[CLS] question [SEP] choice [SEP]`.
    The second segment keeps its last `max_qa_length` tokens, the context loses what is too long at its end. A question that
    stands alone in the first segment loses it at its start: what is asked stands at the end.

    Returns:
        M sequences; the choices of an example stand together, in their order. `left_out` is of the choice that loses most.

    Source: google-research/albert, `race_utils.py`, `convert_single_example`.
    """
    room = tokens_for_text(length, 3)
    texts: dict[str, int] = {}  # every text once: a passage of RACE has five questions of four choices
    firsts, seconds, owners = [], [], []
    for number, example in enumerate(examples):
        for choice in example.choices:
            firsts.append(texts.setdefault(example.context or example.question, len(texts)))
            seconds.append(texts.setdefault(_second(example, choice, cloze), len(texts)))
            owners.append(number)
    encoded = tokenizer.encode_batch(list(texts))
    cls, sep = np.array([tokenizer.cls_id], np.int32), np.array([tokenizer.sep_id], np.int32)
    rows = []
    left_out = np.zeros(len(examples), np.int64)
    for first, second, owner in zip(firsts, seconds, owners, strict=True):
        whole = len(encoded.text(first)) + len(encoded.text(second))
        answer = encoded.text(second)
        answer = answer[max(len(answer) - min(max_qa_length, room), 0) :]
        text, left = encoded.text(first), room - len(answer)
        text = text[:left] if examples[owner].context else text[max(len(text) - left, 0) :]
        rows.append((np.concatenate([cls, text, sep, answer, sep]), len(text) + 2))
        left_out[owner] = max(left_out[owner], whole - len(text) - len(answer))
    return Features.of(rows, owners, left_out=left_out)


def _second(example: ChoiceExample, choice: str, cloze: bool) -> str:
    if not example.context:
        return choice
    return (
        example.question.replace("_", choice) if cloze and "_" in example.question else f"{example.question} {choice}"
    )
