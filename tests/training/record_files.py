"""JSON and JSONL files: metrics of a run, predictions, tables of a task."""

import json


def read_records(file):
    """The value of each line."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def write_records(file, records):
    """Write a value on each line."""
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


def write_json(file, value):
    """Write a value as JSON."""
    file.write_text(json.dumps(value), encoding="utf-8")
    return file


def write_lines(file, lines):
    """Write a text on each line."""
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return file
