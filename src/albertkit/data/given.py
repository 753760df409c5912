"""Data as a caller gives them: a path, an address, standard input, or rows in memory; all become files that tasks read."""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from albertkit.addresses import file_system, is_remote, reaching
from albertkit.errors import ConfigError

STANDARD_INPUT = Path("/dev/stdin")
STANDARD_OUTPUT = Path("/dev/stdout")
Data = Any  # a path, an address, rows, or a mapping of splits to rows


def is_standard_output(out: str | os.PathLike[str]) -> bool:
    """Return whether an output is "-", or the path that stands for it."""
    return os.fspath(out) in ("-", str(STANDARD_OUTPUT))


def is_in_memory(data: Data) -> bool:
    """Return whether data are rows, and no path, address or standard input."""
    return not isinstance(data, str | os.PathLike)


def listed(rows: Any) -> list[Any]:
    """Return rows as a list of dictionaries, if they are rows: of a DataFrame of pandas or polars, or any iterable."""
    if hasattr(rows, "iloc"):
        return list(rows.to_dict("records"))
    return list(rows.iter_rows(named=True) if hasattr(rows, "iter_rows") else rows)


def like(given: Any, rows: Sequence[dict[str, Any]]) -> Any:
    """Return rows in the kind that was given: a DataFrame of pandas or polars, a `datasets.Dataset`, else a list."""
    if hasattr(given, "iloc"):
        return type(given)(rows, index=given.index if len(rows) == len(given) else None)
    if hasattr(given, "from_list"):
        return type(given).from_list(rows)
    return type(given)(rows) if hasattr(given, "iter_rows") else list(rows)


@contextmanager
def as_files(data: Data) -> Iterator[Path]:
    """Yield the path of data, wherever they are; copies are removed at the end.

    Args:
        data: A path; an address that fsspec knows (`gs://bucket/MRPC`), which is copied; "-" for standard input; rows in
            memory: a list of dictionaries, a DataFrame of pandas or polars, a `datasets.Dataset`; or several of these by
            split, as a dictionary or a `datasets.DatasetDict`: "train", and perhaps "dev" (or "validation") and "test".
    """
    if not is_in_memory(data):
        if is_remote(data):
            with tempfile.TemporaryDirectory(prefix="albertkit-") as folder:
                yield _copied(os.fspath(data), Path(folder))
        else:
            yield STANDARD_INPUT if data == "-" else Path(data)
        return
    with tempfile.TemporaryDirectory(prefix="albertkit-") as folder:
        if isinstance(data, Mapping):
            for split, rows in data.items():
                _write(rows, Path(folder, f"{split}.jsonl"), f"the split `{split}`")
            yield Path(folder)
        else:
            file = Path(folder, "rows.jsonl")
            _write(data, file, "the data")
            yield file


def _copied(url: str, folder: Path) -> Path:
    system, path = file_system(url)
    target = folder / (path.rpartition("/")[2] or "data")
    with reaching(url):
        if system.isdir(path):
            system.get(f"{path}/", f"{target}/", recursive=True)
        else:
            system.get_file(path, str(target))
    return target


def _write(rows: Any, file: Path, what: str) -> None:
    """Write rows as JSON lines. Numbers of a `ClassLabel` of datasets become the names of the labels."""
    names = {
        name: kind.int2str for name, kind in (getattr(rows, "features", None) or {}).items() if hasattr(kind, "int2str")
    }
    with file.open("w", encoding="utf-8") as stream:
        for number, row in enumerate(listed(rows)):
            if not isinstance(row, Mapping):
                raise ConfigError(
                    "bad-value",
                    f"row {number:,} of {what} is a {type(row).__name__}, not a dictionary of columns",
                    'give rows such as {"text": "a text", "label": "good"}, or the path of a file',
                )
            record = {
                str(name): names[name](int(value)) if name in names and value is not None and value >= 0 else value
                for name, value in row.items()
            }
            stream.write(json.dumps(record, ensure_ascii=False, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    """Return a value that JSON does not know: numpy's numbers and arrays as Python's, anything else as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
