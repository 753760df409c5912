"""A question with choices, however it is written down."""

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from albertkit.data.bad_rows import BadRows
from albertkit.data.inputs import ByteStream, find_inputs
from albertkit.data.layouts import split_files
from albertkit.data.lines import NOT_UTF8, has_half_characters, lines, not_json
from albertkit.data.tables import Table
from albertkit.errors import DataError, near_miss
from albertkit.files import plain_file


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
    if label.isascii() and label.isdigit() and first <= int(label) < first + len(names):
        return int(label) - first
    last = first + len(names) - 1
    raise ValueError(f"label `{label}` is none of {', '.join(names)}, and no number from {first} to {last}")


_CHOICE = re.compile(r"choice[ _]?(\d+)")
_LABEL = re.compile("[A-E1-5]")
_CONTEXTS = ("context", "premise", "passage", "article", "document", "paragraph", "text", "support")  # in any case


@dataclass(frozen=True)
class Form:
    """The columns of one form in which questions are found."""

    question: str  # column of the question
    # columns of the choices, in order; one alone holds a list, of texts or of objects with `text` and `label`
    choices: tuple[str, ...]
    labels: tuple[str, ...]  # columns that may hold the label
    names: str = ""  # column of a list of the choices' names; "" for none
    first: int = 0  # what the numbers of labels begin with


FORMS = (
    Form("question", ("answerA", "answerB", "answerC"), ("correct", "label"), first=1),  # SocialIQA
    Form("question.stem", ("question.choices",), ("answerKey",)),  # ARC
    Form("question", ("choices.text",), ("answerKey",), names="choices.label"),  # ARC on the hub
    Form("question", ("choices",), ("label",)),
)


def read_choices(file: Path, *, labelled: bool, bad_rows: BadRows) -> Iterator[ChoiceExample]:
    """Read the questions of a table.

    It is SocialIQA's, ARC's, or has `question`, `choices` or `choice1`, `choice2`, …, `label`, and perhaps `context` and `id`.

    A label is the name of a choice (A, B, …) or its number: from 0; SocialIQA's and ARC's own from 1. A CSV without header
    is question, choices, label. SocialIQA's labels may be in a file beside it, `dev-labels.lst` of `dev.jsonl`.
    """
    with Table(file, bad_rows=bad_rows) as table:
        form = _form(table)
        label = next((name for name in form.labels if name in table.columns), "")
        beside = _labels_beside(file) if labelled and not label and form is FORMS[0] else []
        if labelled and not label and not beside:
            table.check([form.labels[0]])
        contexts = [name for name in table.columns if name.lower() in _CONTEXTS]
        if len(contexts) > 1:
            fact = f"`{file}` has several texts to read first: {', '.join(f'`{name}`' for name in contexts)}"
            raise DataError("missing-column", fact, "keep one of them, and call it `context`")
        optional = [*(name for name in ("id", *contexts) if name in table.columns), *form.choices[2:]]
        wanted = [form.question, *form.choices[:2], *filter(None, (form.names, label if labelled else ""))]
        lines: dict[str, int] = {}  # of each id
        for row in table.rows(wanted, optional):
            answer = None
            if labelled:
                answer = row.values[label] if label else beside[row.number] if row.number < len(beside) else ""
            try:
                name = row.values.get("id", "")
                if name and (before := lines.setdefault(name, row.line)) != row.line:
                    raise ValueError(f"id `{name}` again, as in line {before:,}")
                example = _example(name or str(row.number), row.values, form, answer)
            except ValueError as error:
                table.add_bad_row(row.line, *error.args)
            else:
                yield example


def _form(table: Table) -> Form:
    numbered = sorted(
        (int(found[1]), name) for name in table.columns if (found := _CHOICE.fullmatch(name))
    )  # as they are numbered, not as they stand
    own = Form("question", tuple(name for _, name in numbered), ("label",))
    for form in (*FORMS, *([own] if numbered else [])):
        if {form.question, *form.choices} <= set(table.columns):
            return form
    width = len(table.columns)
    if not table.has_own_names and width >= 4 and _LABEL.fullmatch(table.columns[-1].strip()):
        names = tuple(f"choice{number}" for number in range(1, width - 1))
        table.without_header(("question", *names, "label"))
        return Form("question", names, ("label",), first=1)
    listed = ", ".join(f"`{name[:40]}`" for name in table.columns)
    missing = "choices" if "question" in table.columns else "question"
    raise DataError(
        "missing-column",
        f"`{table.path}` has no column `{missing}`, only {listed}",
        f"{near_miss(missing, table.columns)}; name them question, choices (a list) or choice1, choice2, …, label, context",
    )


def _example(name: str, values: dict[str, str], form: Form, label: str | None) -> ChoiceExample:
    names: Sequence[str] = ()
    choices: list[Any] = [values[name] for name in form.choices]
    if len(form.choices) == 1:
        choices = _list(choices[0], form.choices[0])
        if choices and all(isinstance(choice, dict) and {"text", "label"} <= set(choice) for choice in choices):
            names, choices = [str(c["label"]) for c in choices], [c["text"] for c in choices]
    if form.names:
        names = [str(name) for name in _list(values[form.names], form.names)]
    context = next((value for column, value in values.items() if column.lower() in _CONTEXTS), "")
    question = values[form.question]
    return checked_example(name, context, question, choices, label, first=form.first, names=names)


def _list(value: Any, name: str) -> list[Any]:
    """Return a list, as it is or as the JSON text that a table holds."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value)
    if not isinstance(value, list):
        raise ValueError(f"`{name}` is not a list")
    return value


def _labels_beside(file: Path) -> list[str]:
    path = file.with_name(file.name.split(".")[0] + "-labels.lst")
    return path.read_text(encoding="utf-8").split() if path.is_file() else []


LEVELS = ("middle", "high")  # Google's order
_MERGED = "all.txt"
_LEVEL = re.compile("(middle|high|college)")
_FIELDS = ("article", "questions", "options", "answers")


def race_files(data: Path) -> dict[str, Path]:
    """Return the folders of the splits."""

    def find(data: Path) -> dict[str, Path]:
        root = data / "RACE" if (data / "RACE").is_dir() else data
        found = {split: root / split for split in ("train", "dev", "test") if (root / split).is_dir()}
        if not found and (any((data / level).is_dir() for level in LEVELS) or any(data.glob("*.txt"))):
            return {"train": data}
        return found

    wanted = "none of the folders train, dev, test of RACE"
    return split_files(data, find, wanted, "name the folder that holds them")


def read_race(path: Path, levels: Sequence[str], *, labelled: bool, bad_rows: BadRows) -> Iterator[ChoiceExample]:
    """Yield the questions of RACE by passage; the id is the passage's and the number of the question, from 0."""
    for file, level in _passages(path, levels):
        source = file if file == path else plain_file(file, "passage")  # a stream may be named, not lie among passages
        with ByteStream(find_inputs([source])[0]) as stream:
            for number, line in lines(stream):
                if line.strip():
                    yield from _questions(file, number, line, level, labelled, bad_rows)


def _passages(path: Path, levels: Sequence[str]) -> list[tuple[Path, str]]:
    """Return the files, each with the level that its folder says."""
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
    file: Path, number: int, line: str, level: str, labelled: bool, bad_rows: BadRows
) -> Iterator[ChoiceExample]:
    try:
        passage, rows = _passage(line, labelled)
    except ValueError as error:
        bad_rows.add(file, number, *error.args)
        return
    name = str(passage.get("id") or f"{level or file.parent.name}{file.stem}.txt")
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
