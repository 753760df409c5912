"""RACE's files: a JSON object a passage, each in a file of its own, or merged, one a line."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from albertkit.corpus.inputs import ByteStream, find_inputs
from albertkit.errors import DataError
from albertkit.files import plain_file
from albertkit.tasks.choices.example import ChoiceExample, checked_example
from albertkit.tasks.faults import Faults
from albertkit.tasks.tables.source import lines, not_json

LEVELS = ("middle", "high")  # Google's order
SPLITS = ("train", "dev", "test")
_MERGED = "all.txt"
_LEVEL = re.compile("(middle|high|college)")
_FIELDS = ("article", "questions", "options", "answers")


def race_files(data: Path) -> dict[str, Path]:
    """The folders of the splits.

    Args:
        data: Folder with train, dev or test, or the folder RACE with them; or one of them, a level of one of them, or a file,
            which is then "train".

    Raises:
        DataError: not-found, unknown-layout.
    """
    if data.is_file():
        return {"train": data}
    if not data.is_dir():
        raise DataError("not-found", f"no such file or folder: `{data}`", "check the path")
    root = data / "RACE" if (data / "RACE").is_dir() else data
    found = {split: root / split for split in SPLITS if (root / split).is_dir()}
    if not found and (any((data / level).is_dir() for level in LEVELS) or any(data.glob("*.txt"))):
        found = {"train": data}
    if not found:
        there = ", ".join(sorted(path.name for path in data.iterdir())[:8]) or "nothing"
        raise DataError(
            "unknown-layout", f"`{data}` has none of the folders train, dev, test of RACE; it holds {there}",
            "name the folder that holds them",
        )  # fmt: skip
    return found


def read_race(path: Path, levels: Sequence[str], *, labelled: bool, faults: Faults) -> Iterator[ChoiceExample]:
    """The questions of RACE, those of a passage together; the id is the passage's and the number of the question, from 0.

    Args:
        path: Of a split, with a folder a level; of a level; or one file of passages, one a line.
        levels: Which of them to read, in this order.
        labelled: Whether the answers are wanted.
        faults: Told of each passage and question that cannot be used.

    Raises:
        DataError: bad-row, no-examples if no passage is there, several-files for merged and single passages in one folder.
    """
    for file, level in _passages(path, levels):
        source = file if file == path else plain_file(file, "passage")  # a stream may be named, not lie among passages
        with ByteStream(find_inputs([source])[0]) as stream:
            for number, line in lines(stream):
                if line.strip():
                    yield from _questions(file, number, line, level, labelled, faults)


def _passages(path: Path, levels: Sequence[str]) -> list[tuple[Path, str]]:
    """The files, each with the level that its folder says."""
    if path.is_file():
        return [(path, path.parent.name if path.parent.name in levels else "")]
    folders = [path / level for level in levels if (path / level).is_dir()] or [path]
    found = []
    for folder in folders:
        names = sorted(folder.glob("*.txt"), key=lambda file: (len(file.name), file.name))  # 9.txt before 10.txt
        if len(names) > 1 and folder / _MERGED in names:
            raise DataError(
                "several-files", f"`{folder}` has {_MERGED} and {len(names) - 1:,} single passages",
                "keep one or the other: every question would be there twice",
            )  # fmt: skip
        found += [(file, folder.name if folder.name in levels else "") for file in names]
    if not found:
        raise DataError(
            "no-examples",
            f"`{path}` has no passage (*.txt) of {' or '.join(levels)}",
            "name the folder that holds them",
        )
    return found


def _questions(
    file: Path, number: int, line: str, level: str, labelled: bool, faults: Faults
) -> Iterator[ChoiceExample]:
    try:
        passage, rows = _passage(line, labelled)
    except ValueError as error:
        faults.add(file, number, *error.args)
        return
    name = str(passage.get("id") or f"{level or file.parent.name}{file.stem}.txt")
    found = _LEVEL.match(name)
    for place, (question, options, answer) in enumerate(rows):
        try:
            example = checked_example(
                f"{name}-{place}", passage["article"], question, _listed(options, "options"), answer,
                level=level or (found[1] if found else ""),
            )  # fmt: skip
        except ValueError as error:
            faults.add(file, number, f"question {place} of {name}: {error}")
        else:
            yield example


def _passage(line: str, labelled: bool) -> tuple[dict[str, Any], list[tuple[Any, Any, Any]]]:
    """The object of a line, and its questions, options and answers (or None).

    Raises:
        ValueError: with what is wrong.
    """
    try:
        passage = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            not_json(error), "a passage of RACE is one line, an object of JSON; tables are for `choice`"
        ) from None
    if not isinstance(passage, dict):
        raise ValueError("not an object of JSON")
    fields = _FIELDS if labelled else _FIELDS[:3]
    if missing := [field for field in fields if field not in passage]:
        raise ValueError(f"no field `{missing[0]}`")
    columns = [_listed(passage[field], field) for field in fields[1:]]
    if len({len(column) for column in columns}) > 1:
        counts = ", ".join(f"{len(column)} {field}" for field, column in zip(fields[1:], columns, strict=True))
        raise ValueError(f"not as many of each: {counts}")
    if not labelled:
        columns.append([None] * len(columns[0]))
    return passage, list(zip(*columns, strict=True))


def _listed(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"`{name}` is not a list")
    return value
