"""Predicted labels, numbers and choices as records of their task, and tables of one's own."""

from collections.abc import Iterator, Sequence
from typing import Any

from albertkit.errors import ConfigError, DataError
from albertkit.tasks.choices import ChoiceExample
from albertkit.tasks.columns import IDS
from albertkit.tasks.faults import Faults
from albertkit.tasks.scoring.files import (
    File,
    join,
    list_of,
    numbers,
    read_choices,
    read_table,
    wrong_label,
)
from albertkit.tasks.tables import Table
from albertkit.tasks.texts import MultiLabelClassification, TextClassification, TextExample, TextRegression, TextTask
from albertkit.tasks.texts.label_names import NO_NUMBER, sorted_labels

Records = list[dict[str, Any]]

TABLES: dict[str, type[TextTask]] = {
    "classify": TextClassification, "regress": TextRegression, "multilabel": MultiLabelClassification,
}  # fmt: skip


def text_records(task: TextTask, file: File, names: Sequence[str]) -> Records:
    """The records of a file, in the order of the examples.

    Args:
        task: With its labels.
        file: A table with the column `prediction`, or records of `albertkit predict`.
        names: Ids of the examples.

    Raises:
        DataError: unknown-label, wrong-predictions, and what `read_table` and `join` raise.
    """
    records = _records(task.kind, file, names, ("prediction", "label", "labels", "value"), IDS)
    known = getattr(task, "labels", ())
    if known and (strange := [label for record in records for label in _labels(record) if label not in known]):
        raise wrong_label(file, strange, known)
    return records


def choice_records(examples: Sequence[ChoiceExample], file: File) -> Records:
    """The records of a file of choices; a choice has its name, or its number from 1.

    Raises:
        DataError: unknown-label, and what `read_choices` and `join` raise.
    """
    records = []
    for example, value in zip(examples, join([e.id for e in examples], read_choices(file), file), strict=True):
        numbered = [str(number) for number in range(1, len(example.choices) + 1)]
        known = example.names if value in example.names else numbered
        if value not in known:
            raise wrong_label(file, [value], example.names)
        place = known.index(value)
        records.append({"id": example.id, "label": example.names[place], "index": place})
    return records


def table_records(
    kind: str, file: File, gold: File, label: str | None, id: str | None, faults: Faults
) -> tuple[TextTask, list[TextExample], Records, list[str]]:
    """A table of one's own against another: the texts play no part, and the labels are those that occur.

    Args:
        kind: A key of `TABLES`.
        file: Of predictions.
        gold: With the labels.
        label: Column of the labels.
        id: Column of the ids; None: one of `IDS`.
        faults: Told of rows of the gold table that cannot be used.

    Returns:
        The task, its examples without texts, the records, and what to say.

    Raises:
        ConfigError: missing-column.
        DataError: no-examples, unknown-label, wrong-predictions, and what reading and `join` raise.
    """
    if label is None:
        raise ConfigError(
            "missing-column", f"no column is named for the label of `{kind}`", "name it with --label-column"
        )
    examples = list(_labelled_rows(kind, gold, label, id, faults))
    if not examples:
        raise DataError("no-examples", f"`{gold}` has no row that can be used", "name the labelled file")
    columns = ("prediction", label, "label", "labels", "value")
    records = _records(TABLES[kind].kind, file, [e.id for e in examples], columns, (id, *IDS) if id else IDS)
    if kind == "regress":
        return TextRegression(name=kind), examples, records, []
    own = {name for example in examples for name in _labels({"label": example.label})}
    given = {name for record in records for name in _labels(record)}
    if not own & given:
        raise wrong_label(file, (name for record in records for name in _labels(record)), sorted(own))
    strange = ", ".join(f"`{name}`" for name in sorted(given - own)[:12])
    notes = [f"predicted, but the label of no example: {strange}"] if strange else []
    return TABLES[kind](name=kind).with_changes(labels=sorted_labels(own | given)), examples, records, notes


def _labelled_rows(kind: str, gold: File, label: str, id: str | None, faults: Faults) -> Iterator[TextExample]:
    with Table(gold, quoted="look", faults=faults) as table:
        ids = [id] if id else [name for name in IDS if name in table.columns and name != label][:1]
        for row in table.rows([label, *ids]):
            text = row.values[label].strip()
            try:
                value = (
                    float(text) if kind == "regress" else tuple(list_of(text, gold)) if kind == "multilabel" else text
                )
            except ValueError:
                table.add_fault(row.line, f"`{label}` is `{text}`, not a number", NO_NUMBER)
            else:
                yield TextExample(row.values[ids[0]] if ids else str(row.number), "", None, value)


def _records(kind: str, file: File, names: Sequence[str], columns: Sequence[str], ids: Sequence[str]) -> Records:
    values = join(names, read_table(file, columns, ids), file)
    if kind == "regression":
        return [{"id": n, "value": value} for n, value in zip(names, numbers(values, file), strict=True)]
    if kind == "multilabel":
        return [{"id": name, "labels": list_of(value, file)} for name, value in zip(names, values, strict=True)]
    return [{"id": name, "label": value} for name, value in zip(names, values, strict=True)]


def _labels(record: dict[str, Any]) -> Sequence[str]:
    labels = record["labels"] if "labels" in record else record["label"]
    return (labels,) if isinstance(labels, str) else labels
