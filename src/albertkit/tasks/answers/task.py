"""The task: answers to questions as spans of a text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from albertkit.data.bad_rows import BadRows
from albertkit.data.features import Features, LabelledBatch
from albertkit.data.given import DataFile, DataFiles
from albertkit.errors import ConfigError
from albertkit.files import write_json
from albertkit.tasks.answers.questions import QuestionExample, find_files, read_questions
from albertkit.tasks.answers.scoring import (
    answer_details,
    best_texts,
    best_threshold,
    collapsed_answers,
    gold_pairs,
    hold_out_articles,
    official_version,
)
from albertkit.tasks.answers.windows import SMALLEST_ROOM, SPECIAL_TOKENS, answer_features
from albertkit.tasks.metrics.squad import question_scores, squad_scores
from albertkit.tasks.nbest import (
    answer_record,
    judge_beams,
    judge_spans,
    official_nbest,
    text_window,
)
from albertkit.tasks.task import Prediction, Task
from albertkit.validation import Positive, wrong_fields

if TYPE_CHECKING:
    from torch import Tensor

    from albertkit.model.outputs import SummedLoss
    from albertkit.model.pretrained import PretrainedAlbert
    from albertkit.tokenizer import AlbertTokenizer

UNDECIDED = 0.0  # the threshold as long as none is chosen: as likely as not
_CALIBRATION_SHARE, _CALIBRATION_SEED = 0.05, 0


@dataclass(frozen=True, kw_only=True)
class AnswerTask(Task[QuestionExample]):
    """Answers as spans of a text: SQuAD 1.1 and 2.0, and files of the same form.

    Attributes:
        version: 1: every question has an answer. 2: it may have none.
        head_kind: spans: a start and an end logit a token, which transformers knows, too. beam: Google's SQuAD 2 head, ends
            given the start and a logit for "no answer".
        stride: Pieces of the text from the start of a window to the start of the next.
        max_query_length: Pieces of a question that are kept, the first.
        n_best_size: Answers kept for a question; the span head also tries so many starts and ends of a window.
        max_answer_length: Longest answer, in tokens.
        threshold: Null odds up to which a question is answered (version 2). None: not chosen yet, 0 is used.
        threshold_from: What it was chosen on: train (questions kept from training) or dev (the very questions that are
            scored, as Google does).
    """

    kind: ClassVar[str] = "answers"
    version: Literal[1, 2] = 1
    head_kind: Literal["spans", "beam"] = "spans"
    length: int = 384
    metric: str = "f1"
    stride: Positive = 128
    max_query_length: Positive = 64
    n_best_size: Positive = 20
    max_answer_length: Positive = 30
    threshold: float | None = None
    threshold_from: str = "train"

    def __post_init__(self) -> None:
        found = wrong_fields(self)
        smallest = SPECIAL_TOKENS + SMALLEST_ROOM + 1
        if not found and self.length < smallest:
            found.append(f"length is {self.length}, a question and a text need {smallest}")
        if found:
            raise ConfigError("bad-value", "; ".join(found), "change these settings")

    # --- the model and the data ---------------------------------------------------------------------------------------

    @property
    def model_class(self) -> type[PretrainedAlbert]:
        from albertkit.tasks import heads

        beam = self.head_kind == "beam"
        return heads.AlbertForBeamQuestionAnswering if beam else heads.AlbertForQuestionAnswering

    def files(self, data: DataFiles) -> Mapping[str, DataFile]:
        """See `Task.files` and `find_files`."""
        return find_files(data, self.version)

    def examples(self, file: DataFile, *, split: str, labelled: bool, bad_rows: BadRows) -> Iterator[QuestionExample]:
        """See `Task.examples` and `read_questions`."""
        return read_questions(file, version=self.version, split=split, labelled=labelled, bad_rows=bad_rows)

    def features(self, examples: Sequence[QuestionExample], tokenizer: AlbertTokenizer, *, labelled: bool) -> Features:
        """See `Task.features` and `answer_features`."""
        return answer_features(
            examples,
            tokenizer,
            length=self.length,
            doc_stride=self.stride,
            max_query_length=self.max_query_length,
            labelled=labelled,
        )

    # --- the model on a batch -----------------------------------------------------------------------------------------

    def losses(
        self, model: PretrainedAlbert, batch: LabelledBatch, class_weights: Tensor | None = None
    ) -> dict[str, SummedLoss]:
        """Return `span`, half the start's and half the end's loss; of the beam head also `answerable`. Google adds them.

        A window without the whole answer is taught to start and end at its first token.
        """
        from albertkit.tasks import heads

        return heads.answer_losses(model, batch)

    def counts(self, batch: LabelledBatch) -> dict[str, int]:
        """See `Task.counts`: every window has a target."""
        count = batch.packed.num_sequences
        return {"span": count, "answerable": count} if self.head_kind == "beam" else {"span": count}

    def outputs(self, model: PretrainedAlbert, batch: LabelledBatch) -> list[Any]:
        """Return the best starts and ends of each window, `TopPositions`: a few hundred bytes each."""
        from albertkit.tasks import heads

        return heads.answer_outputs(model, batch, self.n_best_size)

    # --- the result ---------------------------------------------------------------------------------------------------

    def predictions(
        self, examples: Sequence[QuestionExample], features: Features, outputs: Sequence[Any]
    ) -> list[Prediction]:
        """Return a record a question.

        Returns:
            `id`; `answer`, "" for none; `score`, its probability among the n-best (of "no answer" by the beam head: the
            probability of that); `start` and `end`, its characters, None for none; in version 2 `null_odds`; `nbest`, a
            list of `text`, `probability`, `start`, `end`, `start_score`, `end_score`; and `question_cut` if the question
            was too long.
        """
        judge = judge_beams if self.head_kind == "beam" else judge_spans
        threshold = UNDECIDED if self.threshold is None else self.threshold
        bounds = features.sequences_of(len(examples))
        records = []
        for number, example in enumerate(examples):
            here = range(bounds[number], bounds[number + 1])
            verdict = judge(
                example.context,
                [text_window(features, m) for m in here],
                [outputs[m] for m in here],
                version=self.version,
                n_best_size=self.n_best_size,
                max_answer_length=self.max_answer_length,
            )
            cut = bool(features.per_sequence["question_cut"][here.start])
            records.append(answer_record(example.id, verdict, threshold) | ({"question_cut": True} if cut else {}))
        return records

    def score(self, examples: Sequence[QuestionExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Return what the official script prints: `exact_match` and `f1`; in version 2 `exact`, `f1`, `HasAns_…`, `NoAns_…`.

        Version 2 is scored as predicted: null odds play no part beyond the threshold, and no gold answer in the choice of it.
        """
        texts = {record["id"]: record["answer"] for record in predictions}
        return squad_scores(texts, gold_pairs(examples), official_version(self.version))

    def details(self, examples: Sequence[QuestionExample], predictions: Sequence[Prediction]) -> dict[str, Any]:
        """Return bootstrap intervals; in version 2 also the threshold, where it is from, and what the best one would reach."""
        found = answer_details(examples, predictions, self.version)
        if self.version == 2:
            found |= self._decision()
        return found

    def collapsed(self, examples: Sequence[QuestionExample], predictions: Sequence[Prediction]) -> str | None:
        """See `Task.collapsed`: every answer is empty, or stands at the same place."""
        return collapsed_answers(examples, predictions)

    def shown(self, example: QuestionExample) -> dict[str, Any]:
        """Return context and question, and the right answers."""
        answers = dict.fromkeys(answer.text for answer in example.answers)
        return {"texts": [example.context, example.question], "gold": " / ".join(answers) or "no answer"}

    def write(self, folder: Path, predictions: Sequence[Prediction], *, split: str) -> list[Path]:
        """Write `predictions.json`, `nbest_predictions.json` and in version 2 `null_odds.json`, in the official forms.

        In version 2 `threshold.json` says which threshold was used and what it was chosen on.
        """
        contents: dict[str, Any] = {
            "predictions.json": {record["id"]: record["answer"] for record in predictions},
            "nbest_predictions.json": {record["id"]: official_nbest(record) for record in predictions},
        }
        if self.version == 2:
            contents["null_odds.json"] = {record["id"]: record["null_odds"] for record in predictions}
            contents["threshold.json"] = self._decision()
        for name, content in contents.items():
            write_json(folder / name, content)
        return [folder / name for name in contents]

    def _decision(self) -> dict[str, Any]:
        if self.threshold is None:
            return {"threshold": UNDECIDED, "threshold_from": "default"}
        return {"threshold": self.threshold, "threshold_from": self.threshold_from}

    # --- the threshold ------------------------------------------------------------------------------------------------

    def calibration_split(
        self, train: Sequence[QuestionExample]
    ) -> tuple[list[QuestionExample], list[QuestionExample]]:
        """Keep whole articles from training, at least a twentieth of the questions, to choose the threshold on.

        Nothing is kept in version 1, or where there is one article only, or no question without an answer.
        """
        if self.version == 1 or not any(example.impossible for example in train):
            return list(train), []
        return hold_out_articles(train, _CALIBRATION_SHARE, _CALIBRATION_SEED)

    def calibrated(self, examples: Sequence[QuestionExample], predictions: Sequence[Prediction], source: str) -> Self:
        """Return this task with the threshold that gives the best F1; unchanged in version 1."""
        if self.version == 1 or not examples:
            return self
        best = best_texts(predictions)
        scores = question_scores(best, gold_pairs(examples), official_version(2))
        odds = {record["id"]: record["null_odds"] for record in predictions}
        names = [example.id for example in examples]
        chosen = best_threshold(
            [scores[name][1] for name in names], [odds[name] for name in names], [bool(e.answers) for e in examples]
        )
        return self.with_changes(threshold=chosen.threshold, threshold_from=source)
