"""Predictions out of files (submissions, records of `albertkit predict`), and how they are joined to examples."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from albertkit.errors import DataError, format_list
from albertkit.files import parse_json
from albertkit.tables.bad_rows import pluralize
from albertkit.tables.files import ByteStream, find_input_file
from albertkit.tables.layouts import IDS
from albertkit.tables.table import Table
from albertkit.tables.text_lines import BLANKS
from albertkit.tasks.task import format_counts

File = str | os.PathLike[str]
SAME_FILE = "predict the very file that is scored"

# names that only predictions have, compared in lower case; where one stands, it is what is scored
PREDICTION_NAMES = tuple(
    """prediction prediction_text predictions predicted pred preds y_pred predicted_label pred_label predicted_labels
    pred_labels predicted_tags pred_tags predicted_answer pred_answer""".split()
)
# columns beside a prediction that cannot be another one: inputs, and the fields of `albertkit
# predict`
COMPANIONS = set(
    """text texts sentence sentence1 sentence2 question question1 question2 premise hypothesis pair context tokens words
    title choices probabilities probability score scores logits entities start end nbest null_odds document index
    layers truncated""".split()
)

_SHARES = ("probabilities", "logits")


class Predicted(NamedTuple):
    """A prediction as the file has it."""

    id: str | None  # of the example; None if the file has no ids
    value: str  # a label, a number, or a list in JSON
    line: int  # of the file


def read_predictions(
    file: File, fallback_columns: Sequence[str], id_columns: Sequence[str] = IDS, bare: bool = False
) -> list[Predicted]:
    """Read the predictions of a table with a header, or of JSON records.

    A column of `PREDICTION_NAMES` wins. `fallback_columns` are names that labels have, too: one of
    them is read only if no other column could hold the predictions, another one of them among
    those.
    """
    with Table(file, quoted="look") as table:
        prediction_columns = [name for name in table.columns if name.lower() in PREDICTION_NAMES]
        value = next(
            (name for name in (*prediction_columns, *fallback_columns) if name in table.columns),
            None,
        )
        other_uses = {*COMPANIONS - set(fallback_columns), *IDS, *id_columns}
        if value is not None and len(prediction_columns) < 2:
            other_uses.add(value)
        candidates = [
            n
            for n in table.columns
            if n not in other_uses and n.lower().partition(".")[0] not in other_uses
        ]
        if value is not None and (
            len(prediction_columns) > 1 or (not prediction_columns and candidates)
        ):
            names = format_list(
                [f"`{name}`" for name in (prediction_columns or [value, *candidates])]
            )
            raise DataError(
                "predictions-mismatch",
                f"`{file}` may have its predictions in any of {names}",
                "call the right column, and no other, `prediction`",
            )
        if value is None and bare and not table.has_own_names and len(table.columns) <= 2:
            table.without_header(("id", "prediction")[-len(table.columns) :])
            value = "prediction"
        if value is None:
            names = format_list([f"`{name}`" for name in table.columns])
            raise DataError(
                "missing-column",
                f"`{file}` has no column of predictions, only {names}",
                "call it `prediction`; a file of predictions begins with the names of its columns",
            )
        name = next((name for name in id_columns if name in table.columns and name != value), None)
        shares = [
            n
            for n in table.columns
            if n.partition(".")[0] in _SHARES and value.lower() not in PREDICTION_NAMES
        ]
        rows = [*table.rows([value, *([name] if name else [])], shares, lists=[value, *shares])]
        _check_labels_are_likeliest(
            [row.values[value] for row in rows],
            [[row.values[n] for n in shares] for row in rows],
            shares,
            file,
        )
        return [
            Predicted(row.values[name] if name else None, row.values[value], row.line)
            for row in rows
        ]


def check_same_order(file: File, gold: File, id_columns: Sequence[str], hint: str) -> None:
    """Refuse predictions without ids that have a column of the gold file, such as its texts, in another order."""
    columns: dict[str, list[list[str]]] = {}
    # What cannot be read is told where it is read to be scored.
    with (
        suppress(DataError),
        Table(file, quoted="look") as table,
        Table(gold, quoted="look") as golds,
    ):
        if not {*id_columns}.isdisjoint(table.columns):
            return
        labels = ("label", "labels", "value", "tags")
        shared = [name for name in table.columns if name in golds.columns and name not in labels]
        rows = [[row.values for row in source.rows([], shared)] for source in (table, golds)]
        columns = {name: [[values[name] for values in part] for part in rows] for name in shared}
    for name, (values, gold_values) in columns.items():
        is_other_order = values != gold_values and sorted(values) == sorted(gold_values)
        if is_other_order and len(set(values)) > len(values) / 2:
            fact = f"`{file}` has the values of `{name}` in another order than `{gold}`, and no ids"
            raise DataError("predictions-mismatch", fact, hint.format(name=name))


def _check_labels_are_likeliest(
    labels: Sequence[str], rows: Sequence[Sequence[str]], columns: Sequence[str], file: File
) -> None:
    """Refuse labels that are not the likeliest ones by the probabilities or logits beside them: they may be the gold's."""
    names = [column.partition(".")[2] for column in columns]
    if not names or any(not label or "," in label for label in labels):
        return  # of a task with several labels
    num_classes = 0
    decided_labels = []  # of rows that have no tie
    likeliest = []
    for label, values in zip(labels, rows, strict=True):
        try:
            shares = (
                parse_json(values[0])
                if names == [""]
                else [float(value or "-inf") for value in values]
            )
            best = max(shares)
            num_classes = len(shares)
            is_tie = num_classes < 2 or shares.count(best) > 1
        except (ValueError, TypeError, AttributeError):
            return
        if not is_tie:
            likeliest.append(shares.index(best))
            decided_labels.append(label)
    label_of_index = dict(zip(likeliest, decided_labels, strict=True))
    is_renamed = len({*zip(likeliest, decided_labels, strict=True)}) == len(
        {*label_of_index.values()}
    )
    if set(decided_labels) <= set(names):
        expected_labels = [names[index] for index in likeliest]
    elif (
        "0" in decided_labels
        and set(decided_labels) <= set(map(str, range(num_classes)))
        and not is_renamed  # numbers of another order than that of the columns
    ):
        expected_labels = [str(index) for index in likeliest]
    else:  # called otherwise, each by one name
        expected_labels = [label_of_index[index] for index in likeliest]
    differing = [
        label
        for label, expected in zip(decided_labels, expected_labels, strict=True)
        if label != expected
    ]
    if differing:
        column = columns[0].partition(".")[0]
        fact = f"`{file}`: {pluralize(len(differing), 'label')} other than the likeliest by `{column}`: `{differing[0]}`"
        hint = "if these labels are the gold's, call the predicted ones `prediction`; else leave the column out"
        raise DataError("predictions-mismatch", fact, hint)


def record_id(record: dict[str, Any]) -> Any:
    """Return the id of a JSON record, under the first of its usual names; None if it has none."""
    return next((record[name] for name in IDS if record.get(name) is not None), None)


def index_by_id(predictions: Sequence[Predicted], file: File) -> dict[str, str]:
    """Return predictions by id, each of which may occur once."""
    values: dict[str, str] = {}
    for name, value, line in predictions:
        if name in values:
            raise DataError(
                "bad-row",
                f"`{file}`, line {line:,}: id `{name}` again",
                "leave one of them",
            )
        values[name or ""] = value
    return values


def join_predictions(
    names: Sequence[str],
    predictions: Sequence[Predicted],
    file: File,
) -> list[str]:
    """Return predictions in the order of the examples: by id if the ids are theirs, else by position."""
    values = [prediction.value for prediction in predictions]
    if predictions and predictions[0].id is not None:
        value_of_id = index_by_id(predictions, file)
        if value_of_id.keys() == set(names):
            return [value_of_id[name] for name in names]
        # Ids that count from 0 say no more than the order does.
        if list(value_of_id) != [str(number) for number in range(len(value_of_id))]:
            missing = [n for n in names if n not in value_of_id]
            strange = list(value_of_id.keys() - set(names))
            parts = []
            if missing:
                parts.append(
                    f"{pluralize(len(missing), 'example')} without a prediction, for example `{missing[0]}`"
                )
            if strange:
                parts.append(
                    f"{pluralize(len(strange), 'prediction')} of no example, for example `{strange[0]}`"
                )
            raise DataError("predictions-mismatch", f"`{file}`: {'; '.join(parts)}", SAME_FILE)
    if len(values) != len(names):
        raise DataError(
            "predictions-mismatch",
            f"`{file}` has {pluralize(len(values), 'prediction')}, for {pluralize(len(names), 'example')}",
            SAME_FILE,
        )
    return values


def parse_labels(text: str) -> list[str]:
    """Return the names in a JSON list, in one of Label Studio (`{"choices": […]}`), or with commas between them.

    A list that is no JSON, or of other things than names, is a ValueError.
    """
    names = text.split(",")
    if text.startswith(("[", "{")):
        try:
            value = parse_json(text)
            names = value["choices"] if isinstance(value, dict) else value
        except (ValueError, KeyError):
            fact = f"`{text[:40]}` is not a list of labels"
            raise ValueError(
                fact, 'write JSON, as `json.dumps` does: ["a", "b"]; pandas writes Python\'s form'
            ) from None
        if any(isinstance(name, list | dict) for name in names):
            raise ValueError(f"`{text[:40]}` is no list of names")
    return [name for part in names if part is not None and (name := str(part).strip(BLANKS))]


def parse_predicted_labels(text: str, file: File) -> list[str]:
    """Return the predicted names in a text."""
    try:
        return parse_labels(text)
    except ValueError as error:
        raise DataError(
            "predictions-mismatch", f"`{file}`: {error.args[0]}", "write a JSON list"
        ) from None


def wrong_label_error(file: File, strange: Iterable[str], labels: Sequence[str]) -> DataError:
    """Return the error for predicted labels that are none, each as often as it is predicted."""
    return DataError(
        "bad-label",
        f"`{file}`: predicted, but no label: {format_counts(Counter(strange))}",
        f"the labels are {format_list(labels, 12)}",
    )


def read_json_document(file: File) -> Any:
    """Return the JSON of a file; None if it is JSON lines or another format. A broken object is an error."""
    with ByteStream(find_input_file(file)) as stream:
        content = b"".join(iter(stream.read, b""))
    try:
        return parse_json(content)
    except (ValueError, RecursionError) as error:
        try:
            # JSON lines are no document, but their first line is one.
            is_lines = isinstance(parse_json(content.split(b"\n", 1)[0]), dict)
        except (ValueError, RecursionError):
            is_lines = False
        if is_lines or not content.lstrip().startswith(b"{"):
            return None
        raise DataError(
            "bad-file",
            f"`{file}` is not valid JSON: {error}",
            "write or fetch it again",
        ) from None
