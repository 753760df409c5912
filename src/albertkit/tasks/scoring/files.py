"""Predictions out of files (submissions, records of `albertkit predict`, SQuAD's JSON), and how they are joined to examples."""

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from albertkit.corpus.inputs import ByteStream, find_inputs
from albertkit.errors import DataError
from albertkit.tasks.columns import IDS
from albertkit.tasks.faults import counted
from albertkit.tasks.tables import Table
from albertkit.tasks.texts.label_names import named_counts

File = str | os.PathLike[str]


class Predicted(NamedTuple):
    """A prediction as the file has it.

    Attributes:
        id: Of the example; None if the file has no ids.
        value: A label, a number, or a list in JSON.
        line: Of the file.
    """

    id: str | None
    value: str
    line: int


def read_table(
    file: File, value_columns: Sequence[str], id_columns: Sequence[str] = IDS, bare: bool = False
) -> list[Predicted]:
    """The predictions of a table with a header, or of JSON records.

    Args:
        file: May be compressed.
        value_columns: Names that the column of the predictions may have, the best first.
        id_columns: Names that the column of the ids may have, the best first.
        bare: Whether a table without any of them has no header: predictions, or ids and predictions.

    Raises:
        DataError: unknown-column, and what `Table` raises.
    """
    with Table(file, quoted="look") as table:
        value = next((name for name in value_columns if name in table.columns), None)
        if value is None and bare and not table.has_own_names and len(table.columns) <= 2:
            table.without_header(("id", value_columns[0])[-len(table.columns) :])
            value = value_columns[0]
        if value is None:
            raise DataError(
                "unknown-column", f"`{file}` has no column of predictions, only {_listed(table.columns)}",
                f"call it `{value_columns[0]}`; a file of predictions begins with the names of its columns",
            )  # fmt: skip
        name = next((name for name in id_columns if name in table.columns and name != value), None)
        rows = table.rows([value, *([name] if name else [])])
        return [Predicted(row.values[name] if name else None, row.values[value], row.line) for row in rows]


def read_answers(file: File) -> dict[str, str]:
    """Question id to answer: SQuAD's `predictions.json`, or records with `id` and `answer`.

    Raises:
        DataError: broken-json, wrong-predictions, duplicate-ids, unknown-column.
    """
    content = _read_json(file)
    if not isinstance(content, dict) or ("answer" in content and "id" in content):
        return by_id(read_table(file, ("answer", "prediction_text", "prediction"), ("id",)), file)
    for name, answer in content.items():
        if not isinstance(answer, str):
            raise DataError(
                "wrong-predictions", f"`{file}`: the answer to `{name}` is a {type(answer).__name__}, not a text",
                "name predictions.json, not nbest_predictions.json or null_odds.json",
            )  # fmt: skip
    return content


def read_odds(file: File) -> dict[str, float]:
    """Question id to null odds, a JSON object.

    Raises:
        DataError: broken-json, wrong-predictions.
    """
    content = _read_json(file)
    if not isinstance(content, dict) or any(type(odds) not in (int, float) for odds in content.values()):
        raise DataError("wrong-predictions", f"`{file}` does not map question ids to numbers", "name null_odds.json")
    return content


def read_choices(file: File) -> list[Predicted]:
    """Chosen answers: records or a table with `label`, ARC's `predictions.csv`, SocialIQA's `predictions.lst`, RACE's
    `answers.json`: passage to letters.

    Raises:
        DataError: broken-json, and what `read_table` raises.
    """
    content = _read_json(file)
    if isinstance(content, dict) and all(isinstance(letters, list) for letters in content.values()):
        return [
            Predicted(f"{passage}-{place}", str(letter), 0)
            for passage, letters in content.items()
            for place, letter in enumerate(letters)
        ]
    return read_table(file, ("prediction", "label"), bare=True)


def by_id(given: Sequence[Predicted], file: File) -> dict[str, str]:
    """Predictions by id.

    Raises:
        DataError: duplicate-ids.
    """
    found: dict[str, str] = {}
    for name, value, line in given:
        if name in found:
            raise DataError("duplicate-ids", f"`{file}`, line {line:,}: id `{name}` again", "leave one of them")
        found[name or ""] = value
    return found


def join(names: Sequence[str], given: Sequence[Predicted], file: File) -> list[str]:
    """Predictions in the order of the examples: by id if the ids are theirs, else by position.

    Args:
        names: Ids of the examples.
        given: Predictions. Ids 0, 1, 2, … are numbers of rows, as GLUE's submissions have them.
        file: Where they are from.

    Raises:
        DataError: wrong-number, ids-mismatch, duplicate-ids.
    """
    values = [prediction.value for prediction in given]
    if given and given[0].id is not None:
        found = by_id(given, file)
        if found.keys() == set(names):
            return [found[name] for name in names]
        if list(found) != [str(number) for number in range(len(found))]:
            missing, strange = [n for n in names if n not in found], list(found.keys() - set(names))
            parts = [
                f"{counted(len(ids), thing)} {what}, for example `{ids[0]}`"
                for ids, thing, what in (
                    (missing, "example", "without a prediction"), (strange, "prediction", "of no example"),
                )
                if ids
            ]  # fmt: skip
            raise DataError("ids-mismatch", f"`{file}`: {'; '.join(parts)}", "predict the very file that is scored")
    if len(values) != len(names):
        raise DataError(
            "wrong-number", f"`{file}` has {counted(len(values), 'prediction')}, for {counted(len(names), 'example')}",
            "predict the very file that is scored",
        )  # fmt: skip
    return values


def numbers(given: Sequence[str], file: File) -> list[float]:
    """Predictions as numbers.

    Raises:
        DataError: wrong-predictions.
    """
    found = []
    for place, text in enumerate(given):
        try:
            found.append(float(text))
        except ValueError:
            found.append(math.nan)
        if not math.isfinite(found[-1]):
            raise DataError(
                "wrong-predictions",
                f"`{file}`: prediction {place + 1:,} is `{text}`, not a finite number",
                "write numbers",
            )
    return found


def list_of(value: str, file: File) -> list[str]:
    """Names in a JSON list, or with commas between them.

    Raises:
        DataError: wrong-predictions.
    """
    if not value.startswith("["):
        return [name for part in value.split(",") if (name := part.strip())]
    try:
        return [str(name) for name in json.loads(value)]
    except ValueError:
        raise DataError("wrong-predictions", f"`{file}`: `{value[:40]}` is no list", "write a JSON list") from None


def wrong_label(file: File, strange: Iterable[str], known: Sequence[str]) -> DataError:
    """The error for predicted labels that are none, each as often as it is predicted."""
    return DataError(
        "unknown-label", f"`{file}`: predicted, but no label: {named_counts(Counter(strange))}",
        f"the labels are {', '.join(known[:12])}{' …' * (len(known) > 12)}",
    )  # fmt: skip


def _read_json(file: File) -> Any:
    """The JSON of a file; None if it is JSON lines or another format.

    Raises:
        DataError: broken-json, if it begins as an object and is neither.
    """
    with ByteStream(find_inputs([file])[0]) as stream:
        content = b"".join(iter(stream.read, b""))
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        try:
            whole = isinstance(json.loads(content.split(b"\n", 1)[0]), dict)
        except (ValueError, RecursionError):
            whole = False
        if whole or not content.lstrip().startswith(b"{"):
            return None
        raise DataError("broken-json", f"`{file}` is not valid JSON: {error}", "write or fetch it again") from None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names[:8])
