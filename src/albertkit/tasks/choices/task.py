"""The task of multiple choice: a score for each choice, and a softmax over as many as an example has."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from albertkit.errors import ConfigError, DataError
from albertkit.files import atomic_file, write_json
from albertkit.model import AlbertForMultipleChoice
from albertkit.model.losses import ragged_log_softmax
from albertkit.model.outputs import SummedLoss
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tasks.choices.example import ChoiceExample
from albertkit.tasks.choices.features import choice_features
from albertkit.tasks.choices.race import LEVELS, race_files, read_race
from albertkit.tasks.choices.tables import read_choices
from albertkit.tasks.faults import Faults
from albertkit.tasks.features import Features, LabelledBatch
from albertkit.tasks.metrics.bootstrap import bootstrap_intervals
from albertkit.tasks.tables.layouts import TABLE_FILES, find_files
from albertkit.tasks.task import Prediction, Task
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
    "choice": TABLE_FILES,
}
CHOICE_TASKS = ("race", *_FILES)


@dataclass(frozen=True, kw_only=True)
class ChoiceTask(Task[ChoiceExample]):
    """Choose one of several answers. The number of choices may differ from example to example.

    Attributes:
        max_qa_length: Pieces of question and choice at most; see `choice_features`.
        cloze: Whether a `_` in a question is a gap for the choice, as in RACE.
        levels: Which parts of RACE are read.
    """

    kind: ClassVar[str] = "choice"
    grouped: ClassVar[bool] = True
    max_qa_length: int = 128
    cloze: bool = False
    levels: tuple[str, ...] = LEVELS

    @property
    def model_class(self) -> type[PretrainedAlbert]:
        """A number for each sequence."""
        return AlbertForMultipleChoice

    # --- the data -----------------------------------------------------------------------------------------------------

    def files(self, data: Path) -> dict[str, Path]:
        """See `Task.files`; of RACE folders. ARC's two sets are such as "dev" (challenge) and "dev_easy"."""
        return race_files(data) if self.name == "race" else find_files(data, _FILES.get(self.name, TABLE_FILES))

    def examples(self, file: Path, *, split: str, labelled: bool, faults: Faults) -> Iterator[ChoiceExample]:
        """See `Task.examples`, `read_race` and `read_choices`."""
        if self.name == "race":
            return read_race(file, self.levels, labelled=labelled, faults=faults)
        return read_choices(file, labelled=labelled, faults=faults)

    def features(self, examples: Sequence[ChoiceExample], tokenizer: AlbertTokenizer, *, labelled: bool) -> Features:
        """A sequence a choice, see `choice_features`. `labels` are per sequence: whether the choice is right, 0 or 1.

        Raises:
            ConfigError: bad-settings.
            DataError: no-labels.
        """
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
        """Cross-entropy over the choices of each example.

        Raises:
            ConfigError: bad-settings for class weights: a place among the choices is no class.
        """
        if class_weights is not None:
            raise ConfigError(
                "bad-settings", "the choices of a question are no classes to weigh", "leave class weights out"
            )
        assert isinstance(model, AlbertForMultipleChoice)
        logits = model.packed_logits(batch.packed).squeeze(1)
        return {"choice": choice_loss(logits, batch.examples, batch.per_sequence["labels"] == 1)}

    def counts(self, batch: LabelledBatch) -> dict[str, int]:
        """Examples."""
        return {"choice": int((batch.per_sequence["labels"] == 1).sum())}

    def outputs(self, model: PretrainedAlbert, batch: LabelledBatch) -> list[float]:
        """The logit of each sequence."""
        assert isinstance(model, AlbertForMultipleChoice)
        return model.packed_logits(batch.packed).squeeze(1).float().tolist()

    # --- the result ---------------------------------------------------------------------------------------------------

    def predictions(
        self, examples: Sequence[ChoiceExample], features: Features, outputs: Sequence[float]
    ) -> list[Prediction]:
        """Of each example id, label (the name of the choice), index, and the probability of each choice by name."""
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
        """accuracy.

        Raises:
            DataError: no-labels.
        """
        return {"accuracy": float(_right(examples, predictions).mean()) if examples else float("nan")}

    def details(self, examples: Sequence[ChoiceExample], predictions: Sequence[Prediction]) -> dict[str, Any]:
        """Accuracy of each level, such as accuracy_high, and bootstrap intervals of all."""
        right, levels = _right(examples, predictions), np.array([example.level for example in examples])
        parts = {f"accuracy_{level}": levels == level for level in sorted(set(levels.tolist()) - {""})}
        scores = _accuracies(right, {"accuracy": np.ones(len(right), bool), **parts})
        whole = scores(np.arange(len(right)))
        sizes = {name: int(part.sum()) for name, part in parts.items()}
        intervals = bootstrap_intervals(scores, len(right), sizes=sizes)
        return {**{name: whole[name] for name in parts}, "intervals": intervals}

    def collapsed(self, examples: Sequence[ChoiceExample], predictions: Sequence[Prediction]) -> str | None:
        """Whether the same place is always chosen, and is not always right."""
        places = {record["index"] for record in predictions}
        if len(places) != 1 or len({example.label for example in examples}) < 2:
            return None
        return f"all {len(predictions):,} answers are choice {places.pop() + 1}"

    def error(self, example: ChoiceExample, prediction: Prediction) -> float:
        """The probability of the chosen answer, where it is wrong."""
        return 0.0 if prediction["index"] == example.label else max(prediction["probabilities"].values())

    def shown(self, example: ChoiceExample) -> dict[str, Any]:
        """Context, question and choices, and the right one's name."""
        choices = [f"{name}: {choice}" for name, choice in zip(example.names, example.choices, strict=True)]
        texts = [text for text in (example.context, example.question, "; ".join(choices)) if text]
        return {"texts": texts, "gold": "" if example.label is None else example.names[example.label]}

    def write(self, folder: Path, predictions: Sequence[Prediction], *, split: str) -> list[Path]:
        """Write `predictions.jsonl`, and what the benchmark takes.

        RACE: `answers.json`, passage to letters, as its own files have them. SocialIQA: `predictions.lst`, a number from 1 a
        line. ARC: `predictions.csv`, `id,label`.
        """
        records = folder / "predictions.jsonl"
        with atomic_file(records, "w") as stream:
            stream.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in predictions)
        if self.name == "race":
            answers: dict[str, list[str]] = {}
            for record in predictions:
                answers.setdefault(record["id"].rpartition("-")[0], []).append(record["label"])
            write_json(folder / "answers.json", answers)
            return [records, folder / "answers.json"]
        official = {
            "siqa": ("predictions.lst", "{index}\n"), "arc": ("predictions.csv", "{id},{label}\n"),
        }  # fmt: skip
        if self.name not in official:
            return [records]
        name, line = official[self.name]
        with atomic_file(folder / name, "w") as stream:
            stream.writelines(line.format(**record | {"index": record["index"] + 1}) for record in predictions)
        return [records, folder / name]


def choice_task(name: str, **settings: Any) -> ChoiceTask:
    """A task by name.

    Args:
        name: race, siqa, arc or choice.
        **settings: Fields of `ChoiceTask`.
    """
    return ChoiceTask(name=name, **{"cloze": name == "race", **settings})


def choice_loss(logits: Tensor, groups: Tensor, right: Tensor) -> SummedLoss:
    """Cross-entropy of a softmax within groups of any size. Nobody waits for the device: there are at most N groups.

    Args:
        logits: [N].
        groups: int64 [N]; equal numbers stand together and make a group.
        right: bool [N], one True in each group that has a label.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    place = torch.arange(len(logits), device=logits.device)
    group = torch.cat([place[:1], (groups[1:] != groups[:-1]).cumsum(0)])
    log_probs = ragged_log_softmax(logits, group)
    top = torch.full_like(logits, -torch.inf).scatter_reduce(0, group, logits.detach(), "amax")
    first = torch.full_like(place, len(place)).scatter_reduce(
        0, group, torch.where(logits == top[group], place, len(place)), "amin"
    )  # of equal logits the first is chosen, as in `predictions`
    loss_sum = torch.where(right, -log_probs, 0).sum()
    return SummedLoss(loss_sum, (right & (first[group] == place)).sum(), right.sum())


def _labels(examples: Sequence[ChoiceExample]) -> np.ndarray:
    if missing := [example.id for example in examples if example.label is None]:
        raise DataError(
            "no-labels", f"{len(missing):,} of {len(examples):,} examples have no label, the first is `{missing[0]}`",
            "score on data with labels",
        )  # fmt: skip
    return np.array([example.label for example in examples], np.int64)


def _right(examples: Sequence[ChoiceExample], predictions: Sequence[Prediction]) -> np.ndarray:
    return _labels(examples) == np.array([record["index"] for record in predictions], np.int64)


def _accuracies(right: np.ndarray, parts: Mapping[str, np.ndarray]) -> Callable[[np.ndarray], dict[str, float]]:
    """The accuracy of each part as a function of numbers of examples; NaN of a part that is not drawn."""

    def scores(rows: np.ndarray) -> dict[str, float]:
        drawn = {name: right[rows][part[rows]] for name, part in parts.items()}
        return {name: float(values.mean()) if len(values) else float("nan") for name, values in drawn.items()}

    return scores
