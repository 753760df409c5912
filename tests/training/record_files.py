"""JSONL files: metrics of a run, predictions, tables of a task."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def read_records(file: Path) -> list[Any]:
    """The value of each line."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def write_records(file: Path, records: Iterable[Any]) -> Path:
    """Write a value on each line."""
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file
