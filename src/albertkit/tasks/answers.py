"""Answers to questions as spans of a text: windows, scores of anybody's predictions, the task."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from torch import Tensor

from albertkit.batches.features import Features, LabelledBatch
from albertkit.batches.packed import PackedBatch
from albertkit.errors import ConfigError, DataError
from albertkit.files import write_json
from albertkit.model import AlbertForBeamQuestionAnswering, AlbertForQuestionAnswering, SummedLoss
from albertkit.model.heads import span_loss
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tables.bad_rows import BadRows, pluralize
from albertkit.tables.records import DataFile, DataFiles
from albertkit.tasks.metrics import (
    Version,
    are_korean_answers,
    bootstrap_intervals,
    question_scores,
    squad_scores,
)
from albertkit.tasks.nbest import (
    TopPositions,
    best_beam_answers,
    best_span_answers,
    make_answer_record,
    official_nbest,
    top_beam_positions,
    top_span_positions,
    window_of_sequence,
)
from albertkit.tasks.options import ScoreOptions
from albertkit.tasks.predictions import (
    SAME_FILE,
    File,
    index_by_id,
    read_json_document,
    read_predictions,
)
from albertkit.tasks.questions import QuestionExample, find_question_files, read_questions
from albertkit.tasks.task import Prediction, PredictionRecords, Task
from albertkit.tokenizer import AlbertTokenizer
from albertkit.validation import Positive, list_wrong_fields

SPECIAL_TOKENS = 3
UNHELD = "no window holds the answer"
SMALLEST_ROOM = 16  # tokens of the text that a window holds at least, however long the question


class Paragraph(NamedTuple):
    """The tokens of a text, and the characters that each stands for."""

    ids: np.ndarray  # int32 [P]
    starts: np.ndarray  # int32 [P], first character
    ends: np.ndarray  # int32 [P], one past the last

    @classmethod
    def of(cls, text: str, tokenizer: AlbertTokenizer) -> "Paragraph":
        """Tokenize a text."""
        # Google aligns approximately: it drops texts that are all Hangul, and loses a decomposed
        # accent at the end.
        ids, spans = tokenizer.encode_with_offsets(text)
        bounds = np.array(spans, np.int32).reshape(-1, 2)
        return cls(
            np.array(ids, np.int32),
            np.ascontiguousarray(bounds[:, 0]),
            np.ascontiguousarray(bounds[:, 1]),
        )

    def token_range_of_characters(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the first and the last token of the characters `start:end`; None if no token stands for any of them."""
        first = int(np.searchsorted(self.ends, start, "right"))
        last = int(np.searchsorted(self.starts, end, "left")) - 1
        return (first, last) if first <= last else None


class Window(NamedTuple):
    """A part of a paragraph."""

    start: int  # its first token
    stop: int  # one past its last
    # bool [stop - start]; whether no other window shows more of what stands around the token ("max
    # context")
    is_best: np.ndarray


@lru_cache(maxsize=4096)
def context_windows(num_pieces: int, window_tokens: int, stride: int) -> tuple[Window, ...]:
    """Cut a paragraph of P tokens into windows of `window_tokens`; at least one, which is empty if there are no tokens.

    A window begins every `stride` tokens, at most every `window_tokens`, so that no token is left out; such
    windows do not overlap, and an answer where two meet is in neither.
    """
    bounds = [(0, min(window_tokens, num_pieces))]
    start = 0
    while bounds[-1][1] < num_pieces:
        start += min(window_tokens, stride)
        bounds.append((start, min(start + window_tokens, num_pieces)))
    best_score = np.full(num_pieces, -1.0)
    best_window = np.zeros(num_pieces, np.int64)
    for number, (start, stop) in enumerate(bounds):
        positions = np.arange(stop - start)
        # BERT's "max context": the shorter side, and a little for the length
        score = np.minimum(positions, stop - start - 1 - positions) + 0.01 * (stop - start)
        better = score > best_score[start:stop]  # of equally good windows the first stays
        best_score[start:stop][better] = score[better]
        best_window[start:stop][better] = number
    return tuple(Window(a, b, best_window[a:b] == number) for number, (a, b) in enumerate(bounds))


def max_question_tokens(max_tokens: int, max_query_length: int) -> int:
    """Return how many tokens of a question are kept, the first, so that a window has room for some of the text."""
    return min(max_query_length, max_tokens - SPECIAL_TOKENS - SMALLEST_ROOM)


def answer_features(
    examples: Sequence[QuestionExample],
    tokenizer: AlbertTokenizer,
    *,
    length: int,
    doc_stride: int,
    max_query_length: int,
    labelled: bool,
) -> Features:
    """Return windows of all questions. Each text is tokenized once, however many questions there are about it.

    Returns:
        Features. Per token: `char_starts` and `char_ends`, int32, the characters of the text that
        the token stands for, -1 outside the text; `max_context`, bool, whether no other window
        shows more around it. Per sequence: `text_starts`, int64, the place of the first token of
        the text; `question_cut`, bool, whether the question was longer than kept; with labels,
        `start_positions` and `end_positions`, int64, the first and last token of the answer, and
        `impossible`, int64. A window that does not hold the whole answer is labelled 0, 0 and
        impossible, in SQuAD 1.1, too. `left_out` counts the tokens of each question beyond the
        limit.
    """
    limit = max_question_tokens(length, max_query_length)
    questions = tokenizer.encode_batch([example.question for example in examples])
    left_out = np.maximum(np.diff(questions.offsets) - limit, 0)
    paragraphs: dict[str, Paragraph] = {}
    cls = np.array([tokenizer.cls_id], np.int32)
    sep = np.array([tokenizer.sep_id], np.int32)
    rows: list[tuple[np.ndarray, int]] = []
    owners: list[int] = []
    windows: list[tuple[Paragraph, Window]] = []  # that the sequences show
    targets: list[tuple[int, int, int]] = []
    for number, example in enumerate(examples):
        if example.context not in paragraphs:
            paragraphs[example.context] = Paragraph.of(example.context, tokenizer)
        paragraph = paragraphs[example.context]
        head = np.concatenate([cls, questions.ids_of_text(number)[:limit], sep])
        answer = None
        if labelled and example.target is not None:
            start = example.target.start
            answer = paragraph.token_range_of_characters(
                start, start + len(example.target.text_in_context)
            )
        for window in context_windows(len(paragraph.ids), length - len(head) - 1, doc_stride):
            rows.append(
                (np.concatenate([head, paragraph.ids[window.start : window.stop], sep]), len(head))
            )
            owners.append(number)
            windows.append((paragraph, window))
            target = (0, 0, 1)
            if answer is not None and window.start <= answer[0] and answer[1] < window.stop:
                shift = len(head) - window.start
                target = (answer[0] + shift, answer[1] + shift, 0)
            targets.append(target)
    features = Features.from_sequences(rows, owners, left_out=left_out)
    text_starts = np.array([first for _, first in rows], np.int64)
    per_sequence = {"text_starts": text_starts, "question_cut": left_out[features.examples] > 0}
    if labelled:
        columns = np.array(targets, np.int64).reshape(-1, 3).T
        names = ("start_positions", "end_positions", "impossible")
        per_sequence |= {
            name: np.ascontiguousarray(column) for name, column in zip(names, columns, strict=True)
        }
    char_starts = np.full(len(features.input_ids), -1, np.int32)
    char_ends = char_starts.copy()
    max_context = np.zeros(len(char_starts), np.bool_)
    for first, (paragraph, (start, stop, is_best)) in zip(
        features.offsets[:-1] + text_starts, windows, strict=True
    ):
        tokens = slice(first, first + stop - start)
        char_starts[tokens] = paragraph.starts[start:stop]
        char_ends[tokens] = paragraph.ends[start:stop]
        max_context[tokens] = is_best
    per_token = {"char_starts": char_starts, "char_ends": char_ends, "max_context": max_context}
    return replace(features, per_sequence=per_sequence, per_token=per_token)


class Unrecoverable(NamedTuple):
    """A question whose answer does not come back whole from its labels."""

    id: str  # of the question
    answer: str  # what should come back
    recovered: str  # what comes back; "" if nothing
    reason: str  # why


def unrecoverable_answers(
    examples: Sequence[QuestionExample], features: Features
) -> Iterator[Unrecoverable]:
    """Yield the questions whose answer, cut from the text by the labels of no window, is exactly the one to learn.

    White space around either does not count. Unanswerable questions have nothing to recover.
    """
    bounds = features.sequence_bounds(len(examples))
    has_answer = features.per_sequence["impossible"] == 0
    first = features.offsets[:-1] + features.per_sequence["start_positions"]
    last = features.offsets[:-1] + features.per_sequence["end_positions"]
    starts = features.per_token["char_starts"][first]
    ends = features.per_token["char_ends"][last]
    for number, example in enumerate(examples):
        target = example.target
        if target is None:
            continue
        expected = target.text_in_context.strip()
        windows = [
            window for window in range(bounds[number], bounds[number + 1]) if has_answer[window]
        ]
        recovered_texts = {
            example.context[starts[window] : ends[window]].strip() for window in windows
        }
        if recovered_texts != {expected}:
            text = min(recovered_texts, default="")
            before, match, after = text.partition(expected)
            if not text:
                reason = UNHELD
            elif not match:
                reason = "a token stands for other characters"
            elif before and after:
                reason = "starts and ends inside a token"
            else:
                reason = "starts inside a token" if before else "ends inside a token"
            yield Unrecoverable(example.id, expected, text, reason)


def count_reasons(unrecoverable_questions: Sequence[Unrecoverable]) -> dict[str, int]:
    """Return how many of each reason, most frequent first."""
    return dict(Counter(question.reason for question in unrecoverable_questions).most_common())


def gold_answers_by_id(examples: Sequence[QuestionExample]) -> list[tuple[str, list[str]]]:
    """Return id and right answers of each question, as the official scripts take them."""
    return [(example.id, [answer.text for answer in example.answers]) for example in examples]


def best_nonempty_answers(predictions: PredictionRecords) -> dict[str, str]:
    """Return the best answer with a text, whatever the threshold was; "" if there is none."""
    texts = {}
    for record in predictions:
        texts[record["id"]] = next(
            (entry["text"] for entry in record["nbest"] if entry["text"]), ""
        )
    return texts


def best_threshold(
    scores: Sequence[float],
    null_odds: Sequence[float],
    answerable: Sequence[bool],
) -> float:
    """Return the null odds up to which answering has the best mean score, of several the lowest.

    Of equal odds all are answered or none; odds below all others say that it is best to answer
    none. `scores` are of the best answers that are not empty, 0 to 1; for a question without an
    answer 0 if the model has any answer for it, 1 if not. Not answering scores 1 where there is no
    answer.
    """
    odds = np.array(null_odds, np.float64)
    gained = np.array(scores, np.float64) - ~np.array(answerable)  # by answering rather than not
    order = np.argsort(odds, kind="stable")
    odds = odds[order]
    total = np.cumsum(gained[order])
    possible = np.flatnonzero(np.append(odds[1:] != odds[:-1], True))
    best = possible[np.argmax(total[possible])]
    # Where answering nothing is best, the official threshold is 0; this one reaches the score that
    # was found.
    if total[best] <= 0:
        return float(np.nextafter(odds[0], -np.inf))
    return float(odds[best])


def hold_out_articles(
    examples: Sequence[QuestionExample], share: float, seed: int
) -> tuple[list[QuestionExample], list[QuestionExample]]:
    """Divide questions by whole articles: what is chosen on the second part must not have been trained on.

    The second, smaller part is empty if there is one article only.
    """
    sizes = Counter(example.article for example in examples)
    articles = list(sizes)
    held_out_articles: set[str] = set()
    # One article stays, whatever the share.
    for number in np.random.default_rng(seed).permutation(len(articles))[:-1]:
        if sum(sizes[article] for article in held_out_articles) >= share * len(examples):
            break
        held_out_articles.add(articles[number])
    remaining = [example for example in examples if example.article not in held_out_articles]
    return remaining, [example for example in examples if example.article in held_out_articles]


# --- anybody's predictions ------------------------------------------------------------------------


def score_answers(
    options: ScoreOptions,
    questions: Sequence[QuestionExample],
    version: Version,
) -> dict[str, Any]:
    """Score a file of answers: the official script's dictionary, `exact_match` in both versions, and intervals."""
    file: File = options.predictions
    if options.f1_of != "words" and are_korean_answers(
        answer.text for question in questions for answer in question.answers
    ):
        raise ConfigError(
            "doubtful",
            "the answers are Korean: KorQuAD's F1 counts characters, SQuAD's counts words",
            "use KorQuAD's own script, or say --f1-of words for SQuAD's",
        )
    if options.null_odds is not None and version == 1:
        raise ConfigError(
            "conflicting-options",
            "SQuAD 1.1 has no null odds",
            "leave out --null-odds, or score squad2",
        )
    gold = gold_answers_by_id(questions)
    answers = _read_answers(file)
    odds: dict[str, float] | None = None
    if options.null_odds is not None:
        odds = read_json_document(options.null_odds)
        if not isinstance(odds, dict) or any(
            type(value) not in (int, float) for value in odds.values()
        ):
            raise DataError(
                "predictions-mismatch",
                f"`{options.null_odds}` does not map question ids to numbers",
                "name null_odds.json",
            )
    scores = squad_scores(answers, gold, version, odds, options.null_threshold)
    names = {name for name, _ in gold}
    missing = len(names - answers.keys())
    extra = len(answers.keys() - names)
    if missing == len(names):
        raise DataError(
            "predictions-mismatch",
            f"`{file}` has an answer to none of {pluralize(missing, 'question')}",
            SAME_FILE,
        )
    overruled = (
        sum(odds[name] > options.null_threshold and bool(answers.get(name)) for name in names)
        if odds
        else 0
    )
    ruled = f"counted as none, with null odds above {options.null_threshold:g}; --null-threshold says which are"
    notes = [
        (missing, "question", "without a prediction, counted as wrong"),
        (extra, "prediction", "for questions that the gold file lacks, counted for nothing"),
        (overruled, "answer", ruled),
    ]
    columns = np.array(list(question_scores(answers, gold, version).values())).T

    def sample_scores(rows: np.ndarray) -> dict[str, float]:
        return {
            name: 100 * float(column[rows].mean())
            for name, column in zip(("exact_match", "f1"), columns, strict=True)
        }

    return {
        "metric": "f1",
        "exact_match": scores.get("exact_match", scores.get("exact")),
        **scores,
        "examples": len(gold),
        "missing": missing,
        "extra": extra,
        "intervals": {} if overruled else bootstrap_intervals(sample_scores, len(gold)),
        "notes": [f"{pluralize(count, unit)} {remark}" for count, unit, remark in notes if count],
    }


def _read_answers(file: File) -> dict[str, str]:
    """Read answers by question id: SQuAD's `predictions.json`, or records with `id` and `answer`."""
    content = read_json_document(file)
    if not isinstance(content, dict) or ("answer" in content and "id" in content):
        return index_by_id(read_predictions(file, ("answer",)), file)
    for name, answer in content.items():
        if not isinstance(answer, str):
            raise DataError(
                "predictions-mismatch",
                f"`{file}`: the answer to `{name}` is a {type(answer).__name__}, not a text",
                "name predictions.json, not nbest_predictions.json or null_odds.json",
            )
    return content


UNDECIDED = 0.0  # the threshold as long as none is chosen: as likely as not
_CALIBRATION_SHARE, _CALIBRATION_SEED = 0.05, 0


@dataclass(frozen=True, kw_only=True)
class AnswerTask(Task[QuestionExample]):
    """Answers as spans of a text: SQuAD 1.1 and 2.0, and files of the same form.

    Attributes:
        version: 1: every question has an answer. 2: it may have none.
        head_kind: spans: a start and an end logit a token, which transformers knows, too. beam:
            Google's SQuAD 2 head, ends given the start and a logit for "no answer".
        stride: Pieces of the text from the start of a window to the start of the next.
        max_query_length: Pieces of a question that are kept, the first.
        n_best_size: Answers kept for a question; the span head also tries so many starts and ends
            of a window.
        max_answer_length: Longest answer, in tokens.
        threshold: Null odds up to which a question is answered (version 2). None: not chosen yet, 0
            is used.
        threshold_from: What it was chosen on: train (questions kept from training) or dev (the very
            questions that are scored, as Google does).
    """

    kind: ClassVar[str] = "answers"
    version: Version = 1
    head_kind: Literal["spans", "beam"] = "spans"
    length: int = 384
    metric: str = "f1"
    # Google's, of both versions, as the three below.
    stride: Positive = 128
    max_query_length: Positive = 64
    n_best_size: Positive = 20
    max_answer_length: Positive = 30
    threshold: float | None = None
    threshold_from: str = "train"

    def __post_init__(self) -> None:
        problems = list_wrong_fields(self)
        smallest = SPECIAL_TOKENS + SMALLEST_ROOM + 1
        if not problems and self.length < smallest:
            problems.append(f"length is {self.length}, a question and a text need {smallest}")
        if problems:
            raise ConfigError("bad-value", "; ".join(problems), "change these settings")

    # --- the model and the data -------------------------------------------------------------------

    @property
    def model_class(self) -> type[PretrainedAlbert]:
        return (
            AlbertForBeamQuestionAnswering
            if self.head_kind == "beam"
            else AlbertForQuestionAnswering
        )

    def files(self, data: DataFiles) -> Mapping[str, DataFile]:
        """See `Task.files` and `find_files`."""
        return find_question_files(data, self.version)

    def examples(
        self,
        file: DataFile,
        *,
        split: str,
        labelled: bool,
        bad_rows: BadRows,
    ) -> Iterator[QuestionExample]:
        """See `Task.examples` and `read_questions`."""
        return read_questions(
            file,
            version=self.version,
            split=split,
            labelled=labelled,
            bad_rows=bad_rows,
        )

    def features(
        self,
        examples: Sequence[QuestionExample],
        tokenizer: AlbertTokenizer,
        *,
        labelled: bool,
    ) -> Features:
        """See `Task.features` and `answer_features`."""
        return answer_features(
            examples,
            tokenizer,
            length=self.length,
            doc_stride=self.stride,
            max_query_length=self.max_query_length,
            labelled=labelled,
        )

    # --- the model on a batch ---------------------------------------------------------------------

    def losses(
        self, model: PretrainedAlbert, batch: LabelledBatch, class_weights: Tensor | None = None
    ) -> dict[str, SummedLoss]:
        """Return `span`, half the start's and half the end's loss; of the beam head also `answerable`, halved. Google adds them.

        A window without the whole answer is taught to start and end at its first token.
        """
        starts = batch.per_sequence["start_positions"]
        ends = batch.per_sequence["end_positions"]
        if isinstance(model, AlbertForBeamQuestionAnswering):
            impossible = batch.per_sequence["impossible"]
            parts = model.packed_losses(
                batch.packed,
                starts,
                ends,
                impossible,
                mask_outside_text(batch.packed),
            )
            answerable = parts.answerable._replace(loss_sum=parts.answerable.loss_sum / 2)
            return {"span": _mean_of_losses(parts.start, parts.end), "answerable": answerable}
        assert isinstance(model, AlbertForQuestionAnswering)
        start_logits, end_logits = model.packed_logits(batch.packed)
        return {
            "span": _mean_of_losses(span_loss(start_logits, starts), span_loss(end_logits, ends))
        }

    def count_targets(self, batch: LabelledBatch) -> dict[str, int]:
        """See `Task.count_targets`: every window has a target."""
        count = len(batch.per_sequence["start_positions"])
        return {"span": count, "answerable": count} if self.head_kind == "beam" else {"span": count}

    def outputs(self, model: PretrainedAlbert, batch: LabelledBatch) -> list[TopPositions]:
        """Return the best starts and ends of each window, `TopPositions`: a few hundred bytes each."""
        if isinstance(model, AlbertForBeamQuestionAnswering):
            return top_beam_positions(
                model.packed_beams(batch.packed, mask_outside_text(batch.packed))
            )
        assert isinstance(model, AlbertForQuestionAnswering)
        return top_span_positions(*model.packed_logits(batch.packed), self.n_best_size)

    # --- the result -------------------------------------------------------------------------------

    def predictions(
        self, examples: Sequence[QuestionExample], features: Features, outputs: Sequence[Any]
    ) -> list[Prediction]:
        """Return a record a question.

        Returns:
            `id`; `answer`, "" for none; `score`, its probability among the n-best (of "no answer"
            by the beam head: the probability of that); `start` and `end`, its characters, None for
            none; in version 2 `null_odds`; `nbest`, a list of `text`, `probability`, `start`,
            `end`, `start_score`, `end_score`; and `question_cut` if the question was too long.
        """
        judge = best_beam_answers if self.head_kind == "beam" else best_span_answers
        threshold = UNDECIDED if self.threshold is None else self.threshold
        bounds = features.sequence_bounds(len(examples))
        records = []
        for number, example in enumerate(examples):
            windows = range(bounds[number], bounds[number + 1])
            verdict = judge(
                example.context,
                [window_of_sequence(features, m) for m in windows],
                [outputs[m] for m in windows],
                version=self.version,
                n_best_size=self.n_best_size,
                max_answer_length=self.max_answer_length,
            )
            cut = bool(features.per_sequence["question_cut"][windows.start])
            records.append(
                make_answer_record(example.id, verdict, threshold)
                | ({"question_cut": True} if cut else {})
            )
        return records

    def score(
        self,
        examples: Sequence[QuestionExample],
        predictions: PredictionRecords,
    ) -> dict[str, float]:
        """Return the scores of the official script: `exact_match` and `f1`; in version 2 `exact`, `f1`, `HasAns_…`, `NoAns_…`.

        Version 2 is scored as predicted: null odds play no part beyond the threshold, and no gold
        answer in the choice of it.
        """
        texts = {record["id"]: record["answer"] for record in predictions}
        return squad_scores(texts, gold_answers_by_id(examples), self.version)

    def details(
        self,
        examples: Sequence[QuestionExample],
        predictions: PredictionRecords,
    ) -> dict[str, Any]:
        """Return bootstrap intervals and what was done to the data; in version 2 the threshold and what the best would reach."""
        gold = gold_answers_by_id(examples)
        texts = {record["id"]: record["answer"] for record in predictions}
        scores = question_scores(texts, gold, self.version)
        of_question = 100 * np.array([scores[example.id] for example in examples])
        answerable = np.array([bool(example.answers) for example in examples])
        columns = {
            "exact" if self.version == 2 else "exact_match": of_question[:, 0],
            "f1": of_question[:, 1],
        }
        groups = {"HasAns": answerable, "NoAns": ~answerable} if self.version == 2 else {}

        def sample_scores(rows: np.ndarray) -> dict[str, float]:
            means = {name: float(values[rows].mean()) for name, values in columns.items()}
            for prefix, is_member in groups.items():
                members = rows[is_member[rows]]
                for name, values in columns.items():
                    means[f"{prefix}_{name}"] = (
                        float(values[members].mean()) if len(members) else np.nan
                    )
            return means

        sizes = {
            f"{prefix}_{name}": int(part.sum())
            for prefix, part in groups.items()
            for name in columns
        }
        intervals = bootstrap_intervals(sample_scores, len(examples), sizes=sizes)
        details: dict[str, Any] = {
            "intervals": {name: list(bounds) for name, bounds in intervals.items()},
            "questions_cut": sum(bool(record.get("question_cut")) for record in predictions),
            "answers_moved_to_where_the_text_has_them": sum(
                example.repaired for example in examples
            ),
        }
        if are_korean_answers(answer.text for example in examples for answer in example.answers):
            details["notes"] = [
                "f1 counts words, as SQuAD's script does; KorQuAD's own counts characters"
            ]
        if self.version == 2:
            odds = {record["id"]: record["null_odds"] for record in predictions}
            best = squad_scores(best_nonempty_answers(predictions), gold, self.version, odds)
            names = ("best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh")
            details["best_on_these_questions"] = {name: best[name] for name in names}
            details |= self._threshold_facts()
        return details

    def collapsed(
        self,
        examples: Sequence[QuestionExample],
        predictions: PredictionRecords,
    ) -> str | None:
        """Return a note if all answers are empty though some questions have one, or all stand at the same characters."""
        answer_spans = {(record["start"], record["end"]) for record in predictions}
        if len(predictions) < 2 or len(answer_spans) > 1:
            return None
        start, end = answer_spans.pop()
        if start is not None:
            return f"all {len(predictions):,} answers stand at characters {start} to {end} of their texts"
        num_answerable = sum(bool(example.answers) for example in examples)
        return (
            f"all {len(predictions):,} answers are empty, {num_answerable:,} questions have one"
            if num_answerable
            else None
        )

    def describe_example(self, example: QuestionExample) -> dict[str, Any]:
        """Return context and question, and the right answers."""
        answers = dict.fromkeys(answer.text for answer in example.answers)
        return {
            "texts": [example.context, example.question],
            "gold": " / ".join(answers) or "no answer",
        }

    def write(self, folder: Path, predictions: PredictionRecords, *, split: str) -> list[Path]:
        """Write `predictions.json`, `nbest_predictions.json` and in version 2 `null_odds.json`, in the official forms.

        In version 2 `threshold.json` says which threshold was used and what it was chosen on.
        """
        contents: dict[str, Any] = {
            "predictions.json": {record["id"]: record["answer"] for record in predictions},
            "nbest_predictions.json": {
                record["id"]: official_nbest(record) for record in predictions
            },
        }
        if self.version == 2:
            contents["null_odds.json"] = {
                record["id"]: record["null_odds"] for record in predictions
            }
            contents["threshold.json"] = self._threshold_facts()
        for name, content in contents.items():
            write_json(folder / name, content)
        return [folder / name for name in contents]

    def _threshold_facts(self) -> dict[str, Any]:
        if self.threshold is None:
            return {"threshold": UNDECIDED, "threshold_from": "default"}
        return {"threshold": self.threshold, "threshold_from": self.threshold_from}

    # --- the threshold ----------------------------------------------------------------------------

    def calibration_split(
        self, train: Sequence[QuestionExample]
    ) -> tuple[list[QuestionExample], list[QuestionExample]]:
        """Keep whole articles from training, at least a twentieth of the questions, to choose the threshold on.

        Nothing is kept in version 1, or where there is one article only, or no question without an
        answer.
        """
        if self.version == 1 or not any(example.impossible for example in train):
            return list(train), []
        # Google chooses the threshold on the questions that it then scores.
        return hold_out_articles(train, _CALIBRATION_SHARE, _CALIBRATION_SEED)

    def calibrated(
        self,
        examples: Sequence[QuestionExample],
        predictions: PredictionRecords,
        source: str,
    ) -> Self:
        """Return this task with the threshold that gives the best F1; unchanged in version 1."""
        if self.version == 1 or not examples:
            return self
        scores = question_scores(
            best_nonempty_answers(predictions), gold_answers_by_id(examples), self.version
        )
        odds = {record["id"]: record["null_odds"] for record in predictions}
        f1 = [scores[example.id][1] for example in examples]
        threshold = best_threshold(
            f1,
            [odds[e.id] for e in examples],
            [bool(e.answers) for e in examples],
        )
        return self.with_changes(threshold=threshold, threshold_from=source)


def mask_outside_text(batch: PackedBatch) -> Tensor:
    """Return Google's `p_mask`, bool [T]: where no answer may lie; False in the text and at the first token ("no answer")."""
    outside = batch.token_type_ids != 1
    # The last [SEP] has the type of the text.
    outside = outside.index_fill(0, batch.offsets[1:] - 1, True)
    return outside.index_fill(0, batch.starts, False)


def _mean_of_losses(start: SummedLoss, end: SummedLoss) -> SummedLoss:
    """Average two losses with as many targets."""
    return SummedLoss(
        (start.loss_sum + end.loss_sum) / 2,
        (start.correct + end.correct) / 2,
        start.label_count,
    )
