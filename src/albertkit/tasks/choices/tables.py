"""Questions out of tables: SocialIQA, ARC as AI2 and as others give it, and rows of one's own."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albertkit.errors import DataError, near_miss
from albertkit.tasks.choices.example import ChoiceExample, checked_example
from albertkit.tasks.faults import Faults
from albertkit.tasks.tables import Table

_CHOICE = re.compile(r"choice[ _]?(\d+)")
_LABEL = re.compile("[A-E1-5]")


@dataclass(frozen=True)
class Form:
    """The columns of one form in which questions are found.

    Attributes:
        question: Column of the question.
        choices: Columns of the choices, in order; one alone holds a list, of texts or of objects with `text` and `label`.
        labels: Columns that may hold the label.
        names: Column of a list of the choices' names; "" for none.
        first: What the numbers of labels begin with.
    """

    question: str
    choices: tuple[str, ...]
    labels: tuple[str, ...]
    names: str = ""
    first: int = 0


FORMS = (
    Form("question", ("answerA", "answerB", "answerC"), ("correct", "label"), first=1),  # SocialIQA
    Form("question.stem", ("question.choices",), ("answerKey",)),  # ARC
    Form("question", ("choices.text",), ("answerKey",), names="choices.label"),  # ARC on the hub
    Form("question", ("choices",), ("label",)),
)


def read_choices(file: Path, *, labelled: bool, faults: Faults) -> Iterator[ChoiceExample]:
    """The questions of a table: SocialIQA's, ARC's, or one with `question`, `choices` or `choice1`, `choice2`, …, `label`, and
    perhaps `context` and `id`.

    A label is the name of a choice (A, B, …) or its number: from 0; SocialIQA's and ARC's own from 1. A CSV without header
    is question, choices, label. SocialIQA's labels may be in a file beside it, `dev-labels.lst` of `dev.jsonl`.

    Args:
        file: CSV, TSV, JSON lines, a JSON array or Parquet; may be compressed.
        labelled: Whether the labels are wanted.
        faults: Told of each row that cannot be used.

    Raises:
        DataError: unknown-column, and what `Table` raises.
    """
    with Table(file, faults=faults) as table:
        form = _form(table)
        label = next((name for name in form.labels if name in table.columns), "")
        beside = _labels_beside(file) if labelled and not label and form is FORMS[0] else []
        if labelled and not label and not beside:
            table.check([form.labels[0]])
        optional = [name for name in ("id", "context") if name in table.columns]
        wanted = [form.question, *form.choices, *optional, *filter(None, (form.names, label if labelled else ""))]
        lines: dict[str, int] = {}  # of each id
        for row in table.rows(wanted):
            answer = None
            if labelled:
                answer = row.values[label] if label else beside[row.number] if row.number < len(beside) else ""
            try:
                name = row.values.get("id", "")
                if name and (before := lines.setdefault(name, row.line)) != row.line:
                    raise ValueError(f"id `{name}` again, as in line {before:,}")
                example = _example(name or str(row.number), row.values, form, answer)
            except ValueError as error:
                table.add_fault(row.line, *error.args)
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
        "unknown-column", f"`{table.path}` has no column `{missing}`, only {listed}",
        f"{near_miss(missing, table.columns)}; name them question, choices (a list) or choice1, choice2, …, label, context",
    )  # fmt: skip


def _example(name: str, values: dict[str, str], form: Form, label: str | None) -> ChoiceExample:
    names: Sequence[str] = ()
    choices: list[Any] = [values[name] for name in form.choices]
    if len(form.choices) == 1:
        choices = _list(choices[0], form.choices[0])
        if choices and all(isinstance(choice, dict) and {"text", "label"} <= set(choice) for choice in choices):
            names, choices = [str(c["label"]) for c in choices], [c["text"] for c in choices]
    if form.names:
        names = [str(name) for name in _list(values[form.names], form.names)]
    return checked_example(
        name, values.get("context", ""), values[form.question], choices, label,
        first=form.first, names=names,
    )  # fmt: skip


def _list(text: str, name: str) -> list[Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, list):
        raise ValueError(f"`{name}` is not a list")
    return value


def _labels_beside(file: Path) -> list[str]:
    path = file.with_name(file.name.split(".")[0] + "-labels.lst")
    return path.read_text(encoding="utf-8").split() if path.is_file() else []
