"""A question with choices, however it is written down."""

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from albertkit.data.bad_rows import BadRows
from albertkit.data.columns import IDS, Columns
from albertkit.data.given import SPLIT_NAMES, DataFile, DataFiles, Records
from albertkit.data.inputs import ByteStream, find_inputs
from albertkit.data.layouts import split_files
from albertkit.data.lines import NOT_UTF8, has_half_characters, lines, not_json
from albertkit.data.tables import ListText, Table
from albertkit.errors import DataError, near_miss
from albertkit.files import plain_file
from albertkit.tasks.column_values import is_whole_float, note_unread_texts


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
        first: What the numbers of choices begin with in the file.
        level: Part of the data that is scored for itself, too: "middle" or "high" of RACE; "" for none.
    """

    id: str
    context: str
    question: str
    choices: tuple[str, ...]
    label: int | None
    names: tuple[str, ...]
    level: str = ""
    first: int = field(default=0, compare=False)


def checked_example(
    name: str,
    context: str,
    question: str,
    choices: Sequence[Any],
    label: Any = None,
    *,
    first: int = 0,
    names: Sequence[str] = (),
    level: str = "",
) -> ChoiceExample:
    """Return an example, if it is one."""
    for text in (context, question, *choices):
        if not isinstance(text, str):
            raise ValueError(f"{text!r} is not a text")
        if has_half_characters(text):
            raise ValueError(NOT_UTF8)
    kept = list(choices)
    while kept and not kept[-1].strip():
        kept.pop()
    names = tuple(names) or tuple(ascii_uppercase[: len(kept)])
    if len(kept) < 2:
        raise ValueError(f"{len(kept)} choices that are not empty")
    if len(names) < len(kept):
        raise ValueError(f"{len(kept)} choices, {len(names)} names of choices")
    if empty := [name for name, text in zip(names, kept, strict=False) if not text.strip()]:
        raise ValueError(f"choice {empty[0]} is empty")
    if not context.strip() and not question.strip():
        raise ValueError("no context and no question")
    place = None if label is None else _place(str(label).strip(), names[: len(kept)], first)
    return ChoiceExample(
        name, context.strip() and context, question, tuple(kept), place, names[: len(kept)], level, first
    )


def _place(label: str, names: tuple[str, ...], first: int) -> int:
    if label in names:
        return names.index(label)
    if is_whole_float(label):
        label = label.removesuffix(".0")
    if label.isascii() and label.isdigit() and first <= int(label) < first + len(names):
        return int(label) - first
    last = first + len(names) - 1
    raise ValueError(f"label `{label}` is none of {', '.join(names)}, and no number from {first} to {last}")


_NUMBERED = re.compile(r"(choice|option|answer|ending|alternative|sol)[ _]?(\d+)")
_LABEL = re.compile("[A-E1-5]")
_CONTEXTS = ("context", "premise", "passage", "article", "document", "paragraph", "text", "support")  # in any case
_LABELS = ("label", "answer")
_WINOGRANDE = {"sentence", "option1", "option2"}


@dataclass(frozen=True)
class Form:
    """The columns of one form in which questions are found."""

    question: str  # column of the question; "" for none
    # columns of the choices, in order; one alone holds a list, of texts or of objects with `text` and `label`
    choices: tuple[str, ...]
    labels: tuple[str, ...]  # columns that may hold the label
    names: str = ""  # column of a list of the choices' names; "" for none
    first: int = 0  # what the numbers of labels begin with
    context: str = ""  # column of the text to read first; "": one of `_CONTEXTS`
    passage: str = ""  # column of the name of the passage, by which its questions are numbered; "" for none
    repeated: tuple[str, ...] = ()  # columns with parts of what is read
    right_choice: str = ""  # column of the choice that is right in every row, in place of a label; "" for none
    has_gap: bool = False  # whether `_` in the question stands for the right choice
    labels_beside: bool = False  # whether the labels may be in a file of their own
    header: bool = True  # whether the first line of the file has the names of the columns

    @property
    def columns(self) -> list[str]:
        """The columns that a table of this form has, but for the label."""
        return [*filter(None, (self.question, *self.choices, self.names, self.context, self.passage))]


_RACE = Form("question", ("options",), ("answer", "label"), passage="example_id")  # on the hub
FORMS = (
    Form("question", ("answerA", "answerB", "answerC"), ("correct", "label"), first=1, labels_beside=True),  # SocialIQA
    Form("goal", ("sol1", "sol2"), ("label",), labels_beside=True),  # PIQA
    _RACE,
    Form("question.stem", ("question.choices",), ("answerKey",)),  # ARC, OpenBookQA
    Form("question", ("choices.text",), ("answerKey",), names="choices.label"),  # ARC, CommonsenseQA on the hub
    Form("question_stem", ("choices.text",), ("answerKey",), names="choices.label"),  # OpenBookQA on the hub
    Form("", ("endings",), ("label",), context="ctx", repeated=("ctx_a", "ctx_b")),  # HellaSwag
    Form(
        "sent2", tuple(f"ending{n}" for n in range(4)), ("label",), context="sent1", repeated=("startphrase",)
    ),  # SWAG
    Form(
        "question", ("distractor1", "distractor2", "distractor3", "correct_answer"), (), right_choice="correct_answer"
    ),  # SciQ
    Form("question", ("choices",), _LABELS),  # MMLU has `answer`
    Form("question", ("options",), (*_LABELS, "correct")),  # AQuA has `correct`
    Form("question", ("answers",), (*_LABELS, "correct_answer_id")),  # ReClor, QuAIL
    Form("query", ("options",), ("correct_option",)),  # LogiQA
    Form("question", tuple("ABCDE"), _LABELS, first=1),
    Form("question", tuple("ABCD"), _LABELS, first=1),  # KMMLU
)


def read_choices(
    file: DataFile, columns: Columns | None = None, *, split: str = "dev", labelled: bool, bad_rows: BadRows
) -> Iterator[ChoiceExample]:
    """Read the questions of a table.

    It has one of `FORMS`; or `choice1`, `choice2`, … (also `ending_1`, `alternative_1`, …), `label`, and a `question`, a text to
    read first, or both. `columns` names others for the text, the question (`pair`), the label and the id.

    A label is the name of a choice (A, B, …), that of its column, or its number: from 0; SocialIQA's, ARC's and WinoGrande's own
    from 1. SciQ has none: the right choice is the last. A CSV without header is question, choices, label. The labels of
    SocialIQA and PIQA may be in a file beside it, `dev-labels.lst` of `dev.jsonl`.
    """
    named = columns or Columns()
    with Table(file, quoted=named.quoted, bad_rows=bad_rows) as table:
        if named.columns is not None:
            table.without_header(tuple(name.strip() for name in named.columns.split(",")))
        form = _form(table, named)
        label = next((name for name in form.labels if name in table.columns), "")
        beside = _labels_beside(file) if labelled and not label and form.labels_beside else []
        if labelled and not label and not beside and not form.right_choice:
            table.check([form.labels[0]])
        ids = [name for name in IDS if name in table.columns and name not in form.columns]
        id_column = named.id or next(iter(ids), "")
        if (labelled and split == "train") or not form.context:  # which a model may have been trained with
            read = [*form.columns, *form.repeated, label, id_column]
            has_header = form.header and named.columns is None
            note_unread_texts(file, table.columns, read, bad_rows, quoted=named.quoted, header=has_header)
        optional = [name for name in (id_column, form.context, *form.choices[2:]) if name]
        wanted = [name for name in (*form.columns, label if labelled else "") if name and name not in optional]
        lines: dict[str, int] = {}  # of each id
        questions = Counter[str]()  # of each passage
        lists = [form.names, *(form.choices if len(form.choices) == 1 else ())]
        for row in table.rows(wanted, optional, lists):
            answer = None
            if labelled and label:
                answer = row.values[label]
            elif labelled:
                answer = beside[row.number] if row.number < len(beside) else form.right_choice
            name = row.values[id_column] if id_column else ""
            if form.passage:
                passage = row.values[form.passage]
                name = f"{passage}-{questions[passage]}"
                questions[passage] += 1
            try:
                if name and (before := lines.setdefault(name, row.line)) != row.line:
                    raise ValueError(f"id `{name}` again, as in {table.place(before)}")
                example = _example(name or str(row.number), row.values, form, answer)
            except ValueError as error:
                table.add_bad_row(row.line, *error.args)
            else:
                yield example


def _form(table: Table, named: Columns) -> Form:
    """Return the form of a table, with the columns that the caller names in place of its own."""
    table.check([name for name in (named.text, named.pair, named.label, named.id) if name])
    for form in (*FORMS, *_numbered_forms(table.columns)):
        labels = (named.label,) if named.label else form.labels
        form = replace(form, question=named.pair or form.question, labels=labels, context=named.text or form.context)
        if set(form.columns) <= set(table.columns):
            context = form.context or _context(table)
            if form.question or context:
                return replace(form, context=context)
    width = len(table.columns)
    if not table.has_own_names and width >= 4 and _LABEL.fullmatch(table.columns[-1].strip()):
        names = tuple(f"choice{number}" for number in range(1, width - 1))
        table.without_header(("question", *names, "label"))
        return Form("question", names, ("label",), first=1, header=False)
    shown = ", ".join(f"`{name[:40]}`" for name in table.columns)
    missing = "choices" if "question" in table.columns else "question"
    raise DataError(
        "missing-column",
        f"{table.name} has no column `{missing}`, only {shown}",
        f"{near_miss(missing, table.columns)}; name them question, choices (a list) or choice1, choice2, …, label, context",
    )


def _numbered_forms(columns: Sequence[str]) -> Iterator[Form]:
    """Yield forms with a column for each choice, in the order of their numbers, not as they stand."""
    numbered: dict[str, list[tuple[int, str]]] = {}
    for name in columns:
        if parts := _NUMBERED.fullmatch(name):
            numbered.setdefault(parts[1], []).append((int(parts[2]), name))
    for choices in numbered.values():
        if len(choices) > 1:
            names = tuple(name for _, name in sorted(choices))
            yield Form("question", names, _LABELS)
            yield Form("", names, _LABELS)
            if set(columns) >= _WINOGRANDE:
                yield Form("sentence", names, ("answer",), first=1, has_gap=True)


def _context(table: Table) -> str:
    """Return the column of the text to read first, by its name; "" for none."""
    contexts = [name for name in table.columns if name.lower() in _CONTEXTS]
    if len(contexts) > 1:
        fact = f"{table.name} has several texts to read first: {', '.join(f'`{name}`' for name in contexts)}"
        raise DataError("missing-column", fact, f"name the one to read: --text-column {contexts[0]}")
    return next(iter(contexts), "")


def _example(name: str, values: dict[str, str], form: Form, label: str | None) -> ChoiceExample:
    names: Sequence[str] = ()
    choices: list[Any] = [values[column] for column in form.choices]
    if len(form.choices) == 1:
        choices = _list(choices[0], form.choices[0])
        if choices and all(isinstance(choice, dict) and {"text", "label"} <= set(choice) for choice in choices):
            names, choices = [str(c["label"]) for c in choices], [c["text"] for c in choices]
    elif label in form.choices:  # as a ClassLabel of KoBEST and COPA names it
        label = str(form.first + form.choices.index(label))
    if form.names:
        names = [str(name) for name in _list(values[form.names], form.names)]
    context = values[form.context] if form.context else ""
    question = values[form.question] if form.question else ""
    if form.has_gap:  # as WinoGrande's authors do: the text before the gap, then each choice with what follows
        if "_" not in question:
            raise ValueError(f"no `_` in `{form.question}`, where the choices belong")
        question, _, rest = question.partition("_")
        choices = [choice.strip() and f"_ {rest.strip()}".replace("_", choice) for choice in choices]
    if isinstance(context, ListText):
        raise ValueError(f"`{form.context}` is a list, not a text")
    level = _LEVEL.match(values[form.passage]) if form.passage else None
    part = level[1] if level else ""
    return checked_example(name, context, question, choices, label, first=form.first, names=names, level=part)


def _list(value: Any, name: str) -> list[Any]:
    """Return a list, as it is or as the JSON text that a table holds."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value)
    if not isinstance(value, list):
        raise ValueError(f"`{name}` is not a list")
    return value


def _labels_beside(file: DataFile) -> list[str]:
    if isinstance(file, Records):
        return []
    path = file.with_name(file.name.split(".")[0] + "-labels.lst")
    return path.read_text(encoding="utf-8").split() if path.is_file() else []


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


def race_files(data: DataFiles) -> Mapping[str, DataFile]:
    """Return the folders of the splits, or the hub's tables."""

    def find(data: Path) -> dict[str, Path]:
        root = data / "RACE" if (data / "RACE").is_dir() else data
        found = {split: root / split for split in ("train", "dev", "test") if (root / split).is_dir()}
        if not found and (any((data / level).is_dir() for level in LEVELS) or any(data.glob("*.txt"))):
            return {"train": data}
        tables = {
            split: path for split, names in SPLIT_NAMES.items() for name in names for path in data.glob(f"{name}.*")
        }
        return found or tables

    wanted = "none of the folders train, dev, test of RACE"
    return split_files(data, find, wanted, "name the folder that holds them")


def read_race(path: DataFile, levels: Sequence[str], *, labelled: bool, bad_rows: BadRows) -> Iterator[ChoiceExample]:
    """Yield the questions of RACE by passage; the id is the passage's and the number of the question, from 0."""
    for file, level in _passages(path, levels):
        # A stream may be named, not lie among passages.
        source = plain_file(file, "passage") if isinstance(file, Path) and file != path else file
        with ByteStream(find_inputs([source])[0]) as stream:
            for number, line in lines(stream):
                if line.strip():
                    yield from _questions(file, number, line, level, labelled, bad_rows)


def _passages(path: DataFile, levels: Sequence[str]) -> Sequence[tuple[DataFile, str]]:
    """Return the files, each with the level that its folder says."""
    if isinstance(path, Records):
        return [(path, "")]
    if path.is_file():
        return [(path, path.parent.name if path.parent.name in levels else "")]
    folders = [path / level for level in levels if (path / level).is_dir()] or [path]
    found = []
    for folder in folders:
        names = sorted(folder.glob("*.txt"), key=lambda file: (len(file.name), file.name))  # 9.txt before 10.txt
        if len(names) > 1 and folder / _MERGED in names:
            raise DataError(
                "ambiguous",
                f"`{folder}` has {_MERGED} and {len(names) - 1:,} single passages",
                "keep one or the other: every question would be there twice",
            )
        found += [(file, folder.name if folder.name in levels else "") for file in names]
    if not found:
        fact = f"`{path}` has no passage (*.txt) of {' or '.join(levels)}"
        raise DataError("too-little-data", fact, "name the folder that holds them")
    return found


def _questions(
    file: DataFile, number: int, line: str, level: str, labelled: bool, bad_rows: BadRows
) -> Iterator[ChoiceExample]:
    try:
        passage, rows = _passage(line, labelled)
    except ValueError as error:
        bad_rows.add(file, number, *error.args)
        return
    stem = f"{level or file.parent.name}{file.stem}" if isinstance(file, Path) else str(number - 1)
    name = str(passage.get("id") or f"{stem}.txt")
    found = _LEVEL.match(name)
    part = level or (found[1] if found else "")
    for place, (question, options, answer) in enumerate(rows):
        try:
            choices = _list(options, "options")
            example = checked_example(f"{name}-{place}", passage["article"], question, choices, answer, level=part)
        except ValueError as error:
            bad_rows.add(file, number, f"question {place} of {name}: {error}")
        else:
            yield example


def _passage(line: str, labelled: bool) -> tuple[dict[str, Any], list[tuple[Any, Any, Any]]]:
    """Return the object of a line, and its questions, options and answers (or None)."""
    try:
        passage = json.loads(line)
    except (ValueError, RecursionError) as error:
        hint = "a passage of RACE is one line, an object of JSON; tables are for `choice`"
        raise ValueError(not_json(error), hint) from None
    if not isinstance(passage, dict):
        raise ValueError("not an object of JSON")
    fields = _FIELDS if labelled else _FIELDS[:3]
    if missing := [field for field in fields if field not in passage]:
        raise ValueError(f"no field `{missing[0]}`")
    columns = [_list(passage[field], field) for field in fields[1:]]
    if len({len(column) for column in columns}) > 1:
        counts = ", ".join(f"{len(column)} {field}" for field, column in zip(fields[1:], columns, strict=True))
        raise ValueError(f"not as many of each: {counts}")
    if not labelled:
        columns.append([None] * len(columns[0]))
    return passage, list(zip(*columns, strict=True))
