"""Tables of JSON objects: one a line, or one array of them. A value that is no text becomes one."""

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

from albertkit.corpus.inputs import ByteStream
from albertkit.errors import DataError
from albertkit.tasks.tables.source import LONGEST, Bad, Source, lines, not_json

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"\s*")


def open_json(stream: ByteStream, array: bool, bad: Bad) -> Source:
    """A table of JSON objects; its columns are the names in the first.

    Args:
        stream: At its start.
        array: Whether it is one array; else it has an object on every line, and empty lines are passed over.
        bad: Told of every record that is no object.

    Raises:
        DataError: empty-table; broken-json in an array, because nothing after the fault can be read.
    """
    records = _of_objects(_items(stream) if array else _item_lines(stream, bad), bad)
    first = next(records, None)
    if first is None:
        raise DataError("empty-table", f"`{stream.file.path}` has no record", "name a file with rows")
    return Source(tuple(first[1]), lambda _: itertools.chain([first], records), has_own_names=True)


def _of_objects(items: Iterator[tuple[int, Any]], bad: Bad) -> Iterator[tuple[int, dict[str, str]]]:
    for number, item in items:
        if isinstance(item, dict):
            yield number, texts(item)
        else:
            bad(number, f"a {type(item).__name__}, not an object", "")


def _item_lines(stream: ByteStream, bad: Bad) -> Iterator[tuple[int, Any]]:
    for number, line in lines(stream):
        if line and not line.isspace():
            try:
                item = json.loads(line)
            except (ValueError, RecursionError) as error:
                bad(number, not_json(error), "")
            else:
                yield number, item


def _items(stream: ByteStream) -> Iterator[tuple[int, Any]]:
    """The items of one array, decoded one at a time."""
    rest = lines(stream)
    text, place, number = "", 0, 0
    while True:
        try:
            item = _next_item(text, place, "," if number else "[")
        except (ValueError, RecursionError) as error:  # it is broken, or goes on in what is not read yet
            text, place = text[place:], 0
            more = _characters(rest, max(1 << 20, len(text)))  # twice as much: no long record is decoded over and over
            if not more or len(text) > LONGEST:
                raise DataError(
                    "broken-json", f"`{stream.file.path}`, record {number + 1:,}: {error}",
                    "mend the file: one array of objects, or one object on every line",
                ) from None  # fmt: skip
            text += more
            continue
        if item is None:
            return
        number, place = number + 1, item[1]
        yield number, item[0]


def _next_item(text: str, place: int, before: str) -> tuple[Any, int] | None:
    """The item after `before`, and where it ends; None at the end of the array."""
    start = _SPACE.match(text, place).end()  # type: ignore[union-attr]
    if before == "," and text.startswith("]", start):
        return None
    if not text.startswith(before, start):
        raise ValueError(f"expected `{before}`, found `{text[start : start + 10]}`")
    start = _SPACE.match(text, start + 1).end()  # type: ignore[union-attr]
    if before == "[" and text.startswith("]", start):
        return None
    return _DECODER.raw_decode(text, start)


def _characters(rest: Iterator[tuple[int, str]], wanted: int) -> str:
    """Whole lines, of at least so many characters in all."""
    taken = []
    while wanted > 0 and (line := next(rest, None)) is not None:
        taken.append(line[1] + "\n")
        wanted -= len(taken[-1])
    return "".join(taken)


def texts(record: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Name to text; an object within the object gives names such as `labels.label`."""
    values: dict[str, str] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            values |= texts(value, f"{prefix}{name}.")
        else:
            values[prefix + name] = as_text(value)
    return values


def as_text(value: Any) -> str:
    """A value of JSON or Parquet as text: nothing and NaN are "", a list is JSON, true is "true", 4.0 is "4.0"."""
    if isinstance(value, str):
        return value
    if value is None or value != value:  # NaN: pandas' word for nothing
        return ""
    if isinstance(value, bool | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
