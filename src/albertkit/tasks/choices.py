"""The task of multiple choice: a score for each choice, and a softmax over as many as an example has."""

import contextlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import ascii_uppercase
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from albertkit.batches.features import Features, LabelledBatch, tokens_left_for_text
from albertkit.errors import DataError, suggest_name
from albertkit.files import atomic_file, check_regular_file, parse_json, write_json, write_lines
from albertkit.model import AlbertForMultipleChoice, SummedLoss
from albertkit.model.heads import at_least_fp32, ragged_log_softmax
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tables.bad_rows import BadRows, pluralize
from albertkit.tables.columns import Columns
from albertkit.tables.files import ByteStream, find_input_file
from albertkit.tables.layouts import IDS, check_one_file, files_by_split, find_split_files
from albertkit.tables.records import SPLIT_NAMES, DataFile, DataFiles, Records, quoted_name
from albertkit.tables.table import JSON_DECODER, ListText, Table
from albertkit.tables.text_lines import NOT_UTF8, has_half_characters, json_problem, lines
from albertkit.tasks.metrics import bootstrap_intervals
from albertkit.tasks.predictions import (
    Predicted,
    join_predictions,
    read_json_document,
    read_predictions,
    wrong_label_error,
)
from albertkit.tasks.task import (
    Prediction,
    PredictionRecords,
    Task,
    columns_as_task_fields,
    values_of_labelled_examples,
)
from albertkit.tasks.texts import is_whole_float, note_unread_texts
from albertkit.tokenizer import AlbertTokenizer


@dataclass(frozen=True, slots=True)
class ChoiceExample:
    """A question with choices.

    Attributes:
        id: What the data say, else the number of the row, from 0.
        context: The text to read first; "" for none.
        question: May be empty, if there is a context that the choices continue.
        choices: Two or more, none empty.
        label: Place of the right choice, from 0; None if not read.
        names: What the choices are called, one each; mostly A, B, C, …
        first: What the numbers of labels begin with in the file; None if the label is a name.
        level: Part of the data that is scored for itself, too: "middle" or "high" of RACE; "" for
            none.
    """

    id: str
    context: str
    question: str
    choices: tuple[str, ...]
    label: int | None
    names: tuple[str, ...]
    level: str = ""
    first: int | None = field(default=0, compare=False)


def make_choice_example(
    example_id: str,
    context: str,
    question: str,
    choices: Sequence[Any],
    label: Any = None,
    *,
    first: int = 0,
    choice_names: Sequence[str] = (),
    level: str = "",
) -> ChoiceExample:
    """Return an example, if it is one."""
    for text in (context, question, *choices):
        if not isinstance(text, str):
            raise ValueError(f"{text!r} is not a text")
        if has_half_characters(text):
            raise ValueError(NOT_UTF8)
    texts = list(choices)
    # A table of five columns may have questions of four choices.
    while texts and not texts[-1].strip():
        texts.pop()
    choice_names = tuple(choice_names) or tuple(ascii_uppercase[: len(texts)])
    if len(texts) < 2:
        raise ValueError(f"{len(texts)} choices that are not empty")
    if len(choice_names) < len(texts):
        raise ValueError(f"{len(texts)} choices, {len(choice_names)} names of choices")
    if empty := [name for name, text in zip(choice_names, texts, strict=False) if not text.strip()]:
        raise ValueError(f"choice {empty[0]} is empty")
    if not context.strip() and not question.strip():
        raise ValueError("no context and no question")
    choice_names = choice_names[: len(texts)]
    label_index = None
    number_base: int | None = first
    if label is not None:
        label = str(label).strip()
        number = label.removesuffix(".0") if is_whole_float(label) else label
        last = first + len(choice_names) - 1
        if label in choice_names:
            label_index = choice_names.index(label)
            number_base = None
        # (`int` reads the digits of other scripts, too.)
        elif number.isascii() and number.isdigit() and first <= int(number) <= last:
            label_index = int(number) - first
        else:
            reason = f"label `{number}` is none of {', '.join(choice_names)}, and no number from {first} to {last}"
            is_of_other_base = number == ("0" if first else str(last + 1))
            raise ValueError(reason, *([_OTHER_BASE] if is_of_other_base else []))
    return ChoiceExample(
        example_id,
        context.strip() and context,
        question,
        tuple(texts),
        label_index,
        choice_names,
        level,
        number_base,
    )


_NUMBERED = re.compile(r"(choice|option|answer|ending|alternative|sol)[ _]?(\d+)")
_LABEL = re.compile("[A-E1-5]")
_OTHER_BASE = "if numbers begin with another one here, write the names of the choices: A, B, …"
# In any case
_CONTEXTS = ("context", "premise", "passage", "article", "document", "paragraph", "text", "support")
_LABELS = ("label", "answer")
_WINOGRANDE = {"sentence", "option1", "option2"}


@dataclass(frozen=True)
class QuestionForm:
    """The columns of one form in which questions are found."""

    question: str  # column of the question; "" for none
    # columns of the choices, in order; one alone holds a list, of texts or of objects with `text`
    # and `label`
    choices: tuple[str, ...]
    labels: tuple[str, ...]  # columns that may hold the label
    names: str = ""  # column of a list of the choices' names; "" for none
    first: int = 0  # what the numbers of labels begin with
    context: str = ""  # column of the text to read first; "": one of `_CONTEXTS`
    # Column of the name of the passage, by which its questions are numbered; "" for none
    passage: str = ""
    repeated: tuple[str, ...] = ()  # columns with parts of what is read
    # Column of the choice that is right in every row, in place of a label; "" for none
    right_choice: str = ""
    has_gap: bool = False  # whether `_` in the question stands for the right choice
    labels_beside: bool = False  # whether the labels may be in a file of their own

    @property
    def columns(self) -> list[str]:
        """The columns that a table of this form has, but for the label."""
        return [
            *filter(None, (self.question, *self.choices, self.names, self.context, self.passage))
        ]


# On the hub
_RACE = QuestionForm("question", ("options",), ("answer", "label"), passage="example_id")
FORMS = (
    QuestionForm(
        "question",
        ("answerA", "answerB", "answerC"),
        ("correct", "label"),
        first=1,
        labels_beside=True,
    ),  # SocialIQA
    QuestionForm("goal", ("sol1", "sol2"), ("label",), labels_beside=True),  # PIQA
    _RACE,
    QuestionForm("question.stem", ("question.choices",), ("answerKey",)),  # ARC, OpenBookQA
    QuestionForm(
        "question", ("choices.text",), ("answerKey",), names="choices.label"
    ),  # ARC, CommonsenseQA on the hub
    QuestionForm(
        "question_stem", ("choices.text",), ("answerKey",), names="choices.label"
    ),  # OpenBookQA on the hub
    QuestionForm(
        "", ("endings",), ("label",), context="ctx", repeated=("ctx_a", "ctx_b")
    ),  # HellaSwag
    QuestionForm(
        "sent2",
        tuple(f"ending{n}" for n in range(4)),
        ("label",),
        context="sent1",
        repeated=("startphrase",),
    ),  # SWAG
    QuestionForm(
        "question",
        ("distractor1", "distractor2", "distractor3", "correct_answer"),
        (),
        right_choice="correct_answer",
    ),  # SciQ
    QuestionForm("question", ("choices",), _LABELS),  # MMLU has `answer`
    QuestionForm("question", ("options",), (*_LABELS, "correct")),  # AQuA has `correct`
    QuestionForm("question", ("answers",), (*_LABELS, "correct_answer_id")),  # ReClor, QuAIL
    QuestionForm("query", ("options",), ("correct_option",)),  # LogiQA
    QuestionForm("question", tuple("ABCDE"), _LABELS, first=1),
    QuestionForm("question", tuple("ABCD"), _LABELS, first=1),  # KMMLU
)


def read_choices(
    file: DataFile, task: "ChoiceTask", *, split: str, labelled: bool, bad_rows: BadRows
) -> Iterator[ChoiceExample]:
    """Read the questions of a table.

    It has one of `FORMS`; or `choice1`, `choice2`, … (also `ending_1`, `alternative_1`, …),
    `label`, and a `question`, a text to read first, or both. The task may name others for the text,
    the question (`pair`), the label and the id.

    A label is the name of a choice (A, B, …), that of its column, or its number: from 0;
    SocialIQA's, ARC's and WinoGrande's own from 1. SciQ has none: the right choice is the last. A
    CSV without header is question, choices, label. The labels of SocialIQA and PIQA may be in a
    file beside it, `dev-labels.lst` of `dev.jsonl`.
    """
    with Table(file, quoted=task.quoted, bad_rows=bad_rows) as table:
        if task.columns:
            table.without_header(task.columns)
        form = _find_question_form(table, task)
        label = next((name for name in form.labels if name in table.columns), "")
        separate_labels: list[str] = []
        if labelled and not label and form.labels_beside and isinstance(file, Path):
            labels_file = file.with_name(f"{file.name.split('.')[0]}-labels.lst")
            if labels_file.is_file():
                separate_labels = labels_file.read_text(encoding="utf-8").split()
        if labelled and not label and not separate_labels and not form.right_choice:
            table.check([form.labels[0]])
        ids = [name for name in IDS if name in table.columns and name not in form.columns]
        id_column = task.id_column or next(iter(ids), "")
        # Which a model may have been trained with
        if (labelled and split == "train") or not form.context:
            read_columns = [*form.columns, *form.repeated, label, id_column]
            note_unread_texts(table, read_columns, bad_rows)
        optional = [name for name in (id_column, form.context, *form.choices[2:]) if name]
        required = [
            name
            for name in (*form.columns, label if labelled else "")
            if name and name not in optional
        ]
        questions = Counter[str]()  # of each passage
        # Labels that are numbers only if they begin with 0, or only if with 1
        num_of_base = num_of_other_base = 0
        lists = [form.names, *(form.choices if len(form.choices) == 1 else ())]
        for row in table.rows(required, optional, lists):
            answer = None
            if labelled and label:
                answer = row.values[label]
            elif labelled:
                answer = (
                    separate_labels[row.number]
                    if row.number < len(separate_labels)
                    else form.right_choice
                )
            name = row.values[id_column] if id_column else ""
            if form.passage:
                passage = row.values[form.passage]
                name = f"{passage}-{questions[passage]}"
                questions[passage] += 1
            try:
                if name:
                    table.check_id(name, row.line)
                example = _make_row_example(name or str(row.number), row.values, form, answer)
            except ValueError as error:
                num_of_other_base += _OTHER_BASE in error.args
                table.add_bad_row(row.line, *error.args)
            else:
                decisive = len(example.choices) - 1 if form.first else 0
                num_of_base += example.first is not None and example.label == decisive
                yield example
        if num_of_other_base and not num_of_base:
            fact = f"{table.name}: labels that are numbers begin with {1 - form.first}, not with {form.first}"
            raise DataError("bad-label", fact, "write the names of the choices: A, B, …")


def _find_question_form(table: Table, task: "ChoiceTask") -> QuestionForm:
    """Return the form of a table, with the columns that the task names in place of its own."""
    table.check(
        [
            name
            for name in (task.text_column, task.pair_column, task.label_column, task.id_column)
            if name
        ]
    )
    forms = [*FORMS]
    # With a column for each choice, in the order of their numbers, not as they stand
    numbered: dict[str, list[tuple[int, str]]] = {}
    for name in table.columns:
        if parts := _NUMBERED.fullmatch(name):
            numbered.setdefault(parts[1], []).append((int(parts[2]), name))
    for choices in numbered.values():
        if len(choices) > 1:
            names = tuple(name for _, name in sorted(choices))
            forms += [QuestionForm("question", names, _LABELS), QuestionForm("", names, _LABELS)]
            if set(table.columns) >= _WINOGRANDE:
                forms.append(QuestionForm("sentence", names, ("answer",), first=1, has_gap=True))
    for form in forms:
        labels = (task.label_column,) if task.label_column else form.labels
        question = task.pair_column or form.question
        form = replace(
            form,
            question=question,
            labels=labels,
            context=task.text_column or form.context,
        )
        if set(form.columns) <= set(table.columns):
            contexts = [name for name in table.columns if name.lower() in _CONTEXTS]
            if len(contexts) > 1 and not form.context:
                raise DataError(
                    "missing-column",
                    f"{table.name} has several texts to read first: {', '.join(f'`{name}`' for name in contexts)}",
                    f"name the one to read: --text-column {contexts[0]}",
                )
            context = form.context or next(iter(contexts), "")
            if form.question or context:
                return replace(form, context=context)
    width = len(table.columns)
    if not table.has_own_names and width >= 4 and _LABEL.fullmatch(table.columns[-1].strip()):
        names = tuple(f"choice{number}" for number in range(1, width - 1))
        table.without_header(("question", *names, "label"))
        return QuestionForm("question", names, ("label",), first=1)
    names_in_table = ", ".join(f"`{name[:40]}`" for name in table.columns)
    missing = "choices" if "question" in table.columns else "question"
    raise DataError(
        "missing-column",
        f"{table.name} has no column `{missing}`, only {names_in_table}",
        f"{suggest_name(missing, table.columns)}; name them question, choices (a list) or choice1, choice2, …, label, context",
    )


def _make_row_example(
    example_id: str,
    values_by_column: dict[str, str],
    form: QuestionForm,
    label: str | None,
) -> ChoiceExample:
    names: Sequence[str] = ()
    choices: list[Any] = [values_by_column[column] for column in form.choices]
    if len(form.choices) == 1:
        choices = _parse_list_of_field(choices[0], form.choices[0])
        if choices and all(
            isinstance(choice, dict) and {"text", "label"} <= set(choice) for choice in choices
        ):
            names = [str(c["label"]) for c in choices]
            choices = [c["text"] for c in choices]
    elif label in form.choices:  # as a ClassLabel of KoBEST and COPA names it
        label = str(form.first + form.choices.index(label))
    if form.names:
        names = list(map(str, _parse_list_of_field(values_by_column[form.names], form.names)))
    context = values_by_column[form.context] if form.context else ""
    question = values_by_column[form.question] if form.question else ""
    # As WinoGrande's authors do: the text before the gap, then each choice with what follows
    if form.has_gap:
        if "_" not in question:
            raise ValueError(f"no `_` in `{form.question}`, where the choices belong")
        question, _, after_gap = question.partition("_")
        choices = [
            choice.strip() and f"_ {after_gap.strip()}".replace("_", choice) for choice in choices
        ]
    if isinstance(context, ListText):
        raise ValueError(f"`{form.context}` is a list, not a text")
    level = _LEVEL.match(values_by_column[form.passage]) if form.passage else None
    part = level[1] if level else ""
    return make_choice_example(
        example_id,
        context,
        question,
        choices,
        label,
        first=form.first,
        choice_names=names,
        level=part,
    )


def _parse_list_of_field(value: Any, field_name: str) -> list[Any]:
    """Return a list, as it is or as the JSON text that a table holds."""
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"`{field_name}` is not a list: {json_problem(error)}") from None
    if not isinstance(value, list):
        raise ValueError(f"`{field_name}` is not a list")
    return value


LEVELS = ("middle", "high")  # Google's order
_MERGED = "all.txt"
_LEVEL = re.compile("(middle|high|college)")
_FIELDS = ("article", "questions", "options", "answers")


def is_race_table(file: DataFile) -> bool:
    """Return whether a file has the hub's form of RACE, a row a question; the original's is a passage a line."""
    if isinstance(file, Records) or file.is_file():
        with contextlib.suppress(DataError), Table(file, bad_rows=BadRows("skip")) as table:
            return set(_RACE.columns) <= set(table.columns)
    return False


def race_files_by_split(data: DataFiles) -> Mapping[str, DataFile]:
    """Return the folders of the splits, or the hub's tables."""

    def find(data: Path) -> dict[str, Path]:
        root = data / "RACE" if (data / "RACE").is_dir() else data
        folders = {
            split: root / split for split in ("train", "dev", "test") if (root / split).is_dir()
        }
        if not folders and (
            any((data / level).is_dir() for level in LEVELS) or any(data.glob("*.txt"))
        ):
            return {"train": data}
        tables: dict[str, Path] = {}
        for split, names in SPLIT_NAMES.items():
            if candidates := [path for name in names for path in sorted(data.glob(f"{name}.*"))]:
                tables[split] = check_one_file(data, split, candidates)
        return folders or tables

    description = "none of the folders train, dev, test of RACE"
    return files_by_split(data, find, description, "name the folder that holds them")


def read_race(
    path: DataFile,
    levels: Sequence[str],
    *,
    labelled: bool,
    bad_rows: BadRows,
) -> Iterator[ChoiceExample]:
    """Yield the questions of RACE by passage; the id is the passage's and the number of the question, from 0."""
    passages: list[tuple[DataFile, str]] = []  # files, each with the level that its folder says
    if isinstance(path, Records):
        passages.append((path, ""))
    elif path.is_file():
        passages.append((path, path.parent.name if path.parent.name in levels else ""))
    else:
        for folder in [path / level for level in levels if (path / level).is_dir()] or [path]:
            # 9.txt before 10.txt
            names = sorted(folder.glob("*.txt"), key=lambda file: (len(file.name), file.name))
            if len(names) > 1 and folder / _MERGED in names:
                raise DataError(
                    "ambiguous",
                    f"`{folder}` has {_MERGED} and {len(names) - 1:,} single passages",
                    "keep one or the other: every question would be there twice",
                )
            passages += [(file, folder.name if folder.name in levels else "") for file in names]
    if not passages:
        raise DataError(
            "too-little-data",
            f"`{path}` has no passage (*.txt) of {' or '.join(levels)}",
            "name the folder that holds them",
        )
    for file, level in passages:
        # A stream may be named, not lie among passages.
        source = (
            check_regular_file(file, "passage") if isinstance(file, Path) and file != path else file
        )
        with ByteStream(find_input_file(source)) as stream:
            for line_number, line in lines(stream):
                if line.strip():
                    yield from _examples_of_passage(
                        file, line_number, line, level, labelled, bad_rows
                    )


def _examples_of_passage(
    file: DataFile, line_number: int, line: str, level: str, labelled: bool, bad_rows: BadRows
) -> Iterator[ChoiceExample]:
    try:
        passage, rows = _parse_passage_and_questions(line, labelled)
    except ValueError as error:
        bad_rows.add(file, line_number, *error.args)
        return
    stem = str(line_number - 1)
    if isinstance(file, Path):
        stem = f"{level or file.parent.name}{file.stem}"
    name = str(passage.get("id") or f"{stem}.txt")
    match = _LEVEL.match(name)
    part = level or (match[1] if match else "")
    for index, (question, options, answer) in enumerate(rows):
        try:
            choices = _parse_list_of_field(options, "options")
            example = make_choice_example(
                f"{name}-{index}",
                passage["article"],
                question,
                choices,
                answer,
                level=part,
            )
        except ValueError as error:
            bad_rows.add(file, line_number, f"question {index} of {name}: {error}")
        else:
            yield example


def _parse_passage_and_questions(
    line: str, labelled: bool
) -> tuple[dict[str, Any], list[tuple[Any, Any, Any]]]:
    """Return the object of a line, and its questions, options and answers (or None)."""
    try:
        passage = JSON_DECODER.decode(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            json_problem(error),
            "a passage of RACE is one line, an object of JSON; tables are for `choice`",
        ) from None
    if not isinstance(passage, dict):
        raise ValueError("not an object of JSON")
    fields = _FIELDS if labelled else _FIELDS[:3]
    if missing := [field for field in fields if field not in passage]:
        raise ValueError(f"no field `{missing[0]}`")
    columns = [_parse_list_of_field(passage[field], field) for field in fields[1:]]
    if len({len(column) for column in columns}) > 1:
        counts = ", ".join(
            f"{len(column)} {field}" for field, column in zip(fields[1:], columns, strict=True)
        )
        raise ValueError(f"not as many of each: {counts}")
    if not labelled:
        columns.append([None] * len(columns[0]))
    return passage, list(zip(*columns, strict=True))


# What the files of a folder are called, without extension; RACE has folders. ARC is two sets.
_FILES: dict[str, Mapping[str, tuple[str, ...]]] = {
    "siqa": {split: (split, f"siqa-{split}") for split in ("train", "dev", "test")},
    "arc": {
        "train": (
            "train",
            "arc_challenge_train",
            "ARC-Challenge-Train",
            "ARC-Challenge/ARC-Challenge-Train",
        ),
        "dev": ("dev", "arc_challenge_dev", "ARC-Challenge-Dev", "ARC-Challenge/ARC-Challenge-Dev"),
        "test": (
            "test",
            "arc_challenge_test",
            "ARC-Challenge-Test",
            "ARC-Challenge/ARC-Challenge-Test",
        ),
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
        text_column: Column of the text to read first. "": the one with a known name, such as
            `context`.
        pair_column: Of the question, likewise.
        label_column: Of the label.
        id_column: Of the ids.
        columns: Names of all columns of a file that has no header.
        quoted: Whether fields may be in quotes, see `Table`.
    """

    kind: ClassVar[str] = "choice"
    model_class = AlbertForMultipleChoice
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

    # --- the data ---------------------------------------------------------------------------------

    def with_columns(self, columns: Columns | None) -> Self:
        """Return a task that reads a table with other columns; length and all else stay."""
        return self.with_changes(**columns_as_task_fields(columns or Columns()))

    def files(self, data: DataFiles) -> Mapping[str, DataFile]:
        """See `Task.files`; of RACE folders. ARC's two sets are such as "dev" (challenge) and "dev_easy"."""
        return (
            race_files_by_split(data)
            if self.name == "race"
            else find_split_files(data, _FILES.get(self.name, SPLIT_NAMES))
        )

    def examples(
        self,
        file: DataFile,
        *,
        split: str,
        labelled: bool,
        bad_rows: BadRows,
    ) -> Iterator[ChoiceExample]:
        """See `Task.examples`, `read_race` and `read_choices`; RACE may have the hub's form, a row a question."""
        if self.name == "race" and not is_race_table(file):
            examples = read_race(file, self.levels, labelled=labelled, bad_rows=bad_rows)
        else:
            examples = read_choices(file, self, split=split, labelled=labelled, bad_rows=bad_rows)
        num_doubtful = 0
        for example in examples:
            distinct_choices = {choice.strip().casefold() for choice in example.choices}
            num_doubtful += len(distinct_choices) < len(example.choices)
            yield example
        if num_doubtful:
            questions = pluralize(num_doubtful, "question")
            bad_rows.note(
                f"{quoted_name(file)}: {questions} with two choices that are equal, or differ only in case"
            )

    def features(
        self,
        examples: Sequence[ChoiceExample],
        tokenizer: AlbertTokenizer,
        *,
        labelled: bool,
    ) -> Features:
        """Return a sequence a choice, see `choice_features`. `labels` are per sequence: whether the choice is right, 0 or 1."""
        features = choice_features(examples, tokenizer, self.length, self.max_qa_length, self.cloze)
        if not labelled:
            return features
        labels = np.zeros(features.num_sequences, np.int64)
        labels[
            features.sequence_bounds(len(examples))[:-1]
            + np.array(values_of_labelled_examples(examples), np.int64)
        ] = 1
        return replace(features, per_sequence={"labels": labels})

    # --- the model on a batch ---------------------------------------------------------------------

    def losses(
        self, model: PretrainedAlbert, batch: LabelledBatch, class_weights: Tensor | None = None
    ) -> dict[str, SummedLoss]:
        """Return cross-entropy over the choices of each example."""
        assert isinstance(model, AlbertForMultipleChoice)
        logits = model.packed_logits(batch.packed).squeeze(1)
        return {"choice": choice_loss(logits, batch.examples, batch.per_sequence["labels"] == 1)}

    def count_targets(self, batch: LabelledBatch) -> dict[str, int]:
        """Return the number of examples."""
        return {"choice": int((batch.per_sequence["labels"] == 1).sum())}

    def outputs(self, model: PretrainedAlbert, batch: LabelledBatch) -> list[float]:
        """Return the logit of each sequence."""
        assert isinstance(model, AlbertForMultipleChoice)
        return model.packed_logits(batch.packed).squeeze(1).float().tolist()

    # --- the result -------------------------------------------------------------------------------

    def predictions(
        self, examples: Sequence[ChoiceExample], features: Features, outputs: Sequence[float]
    ) -> list[Prediction]:
        """Return for each example id, label (the name of the choice), index, and the probability of each choice by name."""
        bounds = features.sequence_bounds(len(examples))
        records = []
        for example, start, stop in zip(examples, bounds[:-1], bounds[1:], strict=True):
            logits = np.array(outputs[start:stop], np.float64)
            shares = np.exp(logits - logits.max())
            best = int(logits.argmax())
            probabilities = dict(zip(example.names, (shares / shares.sum()).tolist(), strict=True))
            records.append(
                {
                    "id": example.id,
                    "label": example.names[best],
                    "index": best,
                    "probabilities": probabilities,
                }
            )
        return records

    def score(
        self,
        examples: Sequence[ChoiceExample],
        predictions: PredictionRecords,
    ) -> dict[str, float]:
        """Return the accuracy."""
        return {
            "accuracy": float(_correct_choices(examples, predictions).mean())
            if examples
            else float("nan")
        }

    def details(
        self,
        examples: Sequence[ChoiceExample],
        predictions: PredictionRecords,
    ) -> dict[str, Any]:
        """Return accuracy of each level, such as accuracy_high, and bootstrap intervals of all."""
        right = _correct_choices(examples, predictions)
        levels = np.array([example.level for example in examples])
        parts = {
            f"accuracy_{level}": levels == level for level in sorted(set(levels.tolist()) - {""})
        }
        all_parts = {"accuracy": np.ones(len(right), bool), **parts}

        def scores(rows: np.ndarray) -> dict[str, float]:
            parts_right = {name: right[rows][part[rows]] for name, part in all_parts.items()}
            return {
                name: float(values.mean()) if len(values) else float("nan")
                for name, values in parts_right.items()
            }

        all_scores = scores(np.arange(len(right)))
        sizes = {name: int(part.sum()) for name, part in parts.items()}
        intervals = bootstrap_intervals(scores, len(right), sizes=sizes)
        return {**{name: all_scores[name] for name in parts}, "intervals": intervals}

    def collapsed(
        self, examples: Sequence[ChoiceExample], predictions: PredictionRecords
    ) -> str | None:
        """Return a note if the same place is always chosen, and is not always right."""
        indices = {record["index"] for record in predictions}
        if len(indices) != 1 or len({example.label for example in examples}) < 2:
            return None
        return f"all {len(predictions):,} answers are choice {indices.pop() + 1}"

    def read_predictions(
        self,
        file: str | os.PathLike[str],
        examples: Sequence[ChoiceExample],
    ) -> list[Prediction]:
        """Read records or a table with `label`, ARC's `predictions.csv`, SocialIQA's `predictions.lst`, or RACE's `answers.json`.

        A choice has its name, or its number. Numbers begin as those of the gold file do; if that
        has names, as the predictions show by a 0 or by the number of choices.
        """
        content = read_json_document(file)
        if isinstance(content, dict) and all(
            isinstance(letters, list) for letters in content.values()
        ):
            predictions = [
                Predicted(f"{name}-{number}", str(letter), 0)
                for name, letters in content.items()
                for number, letter in enumerate(letters)
            ]
        else:
            predictions = read_predictions(file, ("label",), bare=True)
        values = join_predictions([example.id for example in examples], predictions, file)
        bases = {example.first for example in examples} - {None}
        first = next(iter(bases), 0) or 0
        # Where the gold file has names, the numbers themselves say what they begin with.
        if len(bases) != 1:
            numbered = [
                (int(value), len(example.choices))
                for value, example in zip(values, examples, strict=True)
                if value.isdecimal() and value not in example.names
            ]
            fitting = [
                base
                for base in (0, 1)
                if all(base <= number < base + count for number, count in numbered)
            ]
            if numbered and len(fitting) > 1:
                raise DataError(
                    "predictions-mismatch",
                    f"`{file}` has numbers for choices that the gold file calls by name: they may begin with 0 or with 1",
                    f"write the names, such as {', '.join(examples[0].names)}",
                )
            first = next(iter(fitting), 0)
        records = []
        for example, value in zip(examples, values, strict=True):
            numbers = [str(first + number) for number in range(len(example.choices))]
            names = example.names if value in example.names else numbers
            if value not in names:
                raise wrong_label_error(file, [value], example.names)
            index = names.index(value)
            records.append({"id": example.id, "label": example.names[index], "index": index})
        return records

    def error(self, example: ChoiceExample, prediction: Prediction) -> float:
        """Return the probability of the chosen answer, where it is wrong."""
        return (
            0.0
            if prediction["index"] == example.label
            else max(prediction["probabilities"].values())
        )

    def describe_example(self, example: ChoiceExample) -> dict[str, Any]:
        """Return context, question and choices, and the right one's name."""
        choices = [
            f"{name}: {choice}" for name, choice in zip(example.names, example.choices, strict=True)
        ]
        texts = [text for text in (example.context, example.question, "; ".join(choices)) if text]
        return {
            "texts": texts,
            "gold": "" if example.label is None else example.names[example.label],
        }

    def write(self, folder: Path, predictions: PredictionRecords, *, split: str) -> list[Path]:
        """Write `predictions.jsonl`, and what the benchmark takes.

        RACE: `answers.json`, passage to letters, as its own files have them. SocialIQA:
        `predictions.lst`, a number from 1 a line. ARC: `predictions.csv`, `id,label`.
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
            stream.writelines(
                line.format(**record | {"index": record["index"] + 1}) for record in predictions
            )
        return [records, folder / name]


def choice_task(name: str, **settings: Any) -> ChoiceTask:
    """Return a task by name."""
    return ChoiceTask(name=name, **{"cloze": name == "race", **settings})


def _correct_choices(
    examples: Sequence[ChoiceExample], predictions: PredictionRecords
) -> np.ndarray:
    return np.array(values_of_labelled_examples(examples)) == np.array(
        [record["index"] for record in predictions]
    )


def choice_loss(logits: Tensor, groups: Tensor, right: Tensor) -> SummedLoss:
    """Return the cross-entropy of logits [N] by a softmax within groups of any size.

    `groups` int64 [N] has equal numbers for a group, together; `right` bool [N] has one True in
    each group with a label. Nothing waits for the device: there are at most N groups.
    """
    logits = at_least_fp32(logits)
    positions = torch.arange(len(logits), device=logits.device)
    group = torch.cat([positions[:1], (groups[1:] != groups[:-1]).cumsum(0)])
    log_probs = ragged_log_softmax(logits, group)
    top = torch.full_like(logits, -torch.inf).scatter_reduce(0, group, logits.detach(), "amax")
    # Of equal logits the first, as in `predictions`
    best = torch.where(logits == top[group], positions, len(positions))
    first = torch.full_like(positions, len(positions)).scatter_reduce(0, group, best, "amin")
    loss_sum = torch.where(right, -log_probs, 0).sum()
    return SummedLoss(loss_sum, (right & (first[group] == positions)).sum(), right.sum())


def choice_features(
    examples: Sequence[ChoiceExample],
    tokenizer: AlbertTokenizer,
    length: int,
    max_qa_length: int,
    cloze: bool,
) -> Features:
    """Return `[CLS] context [SEP] question choice [SEP]`, as Google has RACE.

    Without context it is `[CLS] question [SEP] choice [SEP]`. The second segment keeps its last
    `max_qa_length` tokens, the context loses what is too long at its end. A question that stands
    alone in the first segment loses it at its start: what is asked stands at the end.

    Returns:
        M sequences; the choices of an example stand together, in their order. `left_out` is of the
        choice that loses most.

    Source: google-research/albert, `race_utils.py`, `convert_single_example`.
    """
    room = tokens_left_for_text(length, 3)
    # Every text once: a passage of RACE has five questions of four choices
    texts: dict[str, int] = {}
    segments: list[tuple[int, int]] = []  # the two texts of each sequence
    owners: list[int] = []
    for number, example in enumerate(examples):
        for choice in example.choices:
            second_text = f"{example.question} {choice}"
            if not example.context:
                second_text = choice
            elif cloze and "_" in example.question:
                second_text = example.question.replace("_", choice)
            first = texts.setdefault(example.context or example.question, len(texts))
            segments.append((first, texts.setdefault(second_text, len(texts))))
            owners.append(number)
    encoded = tokenizer.encode_batch(list(texts))
    cls = np.array([tokenizer.cls_id], np.int32)
    sep = np.array([tokenizer.sep_id], np.int32)
    rows = []
    left_out = np.zeros(len(examples), np.int64)
    for segment, owner in zip(segments, owners, strict=True):
        text, answer = map(encoded.ids_of_text, segment)
        num_tokens = len(text) + len(answer)
        answer = answer[max(len(answer) - min(max_qa_length, room), 0) :]
        remaining = room - len(answer)
        text = (
            text[:remaining] if examples[owner].context else text[max(len(text) - remaining, 0) :]
        )
        rows.append((np.concatenate([cls, text, sep, answer, sep]), len(text) + 2))
        left_out[owner] = max(left_out[owner], num_tokens - len(text) - len(answer))
    return Features.from_sequences(rows, owners, left_out=left_out)
