"""Data as a caller gives them: a path, an address, standard input, or rows in memory, which readers take as JSON lines."""

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albertkit.errors import AlbertKitError, ConfigError, DataError, format_list
from albertkit.files import StrPath
from albertkit.model_paths import file_system_and_path, is_remote, network_errors_as_ours

STANDARD_INPUT = Path("/dev/stdin")
STANDARD_OUTPUT = Path("/dev/stdout")
Data = Any  # a path, an address, rows, or a mapping of splits to rows
ROWS_HINT = 'give rows such as {"text": "a text", "label": "good"}'


@dataclass(frozen=True, eq=False)
class Records:
    """Rows in memory, which readers take in the place of a file.

    Attributes:
        name: What messages call them: "the data", or "the split `train`".
        content: The rows as JSON lines.
    """

    name: str
    content: bytes

    def __str__(self) -> str:
        return self.name


# What a split is called, best first, in the names of files and in mappings of rows.
SPLIT_NAMES = {
    "train": ("train", "training"),
    "dev": ("dev", "validation", "valid", "val", "validate"),
    "test": ("test", "testing"),
}


class SplitRecords(dict[str, Records]):
    """Rows in memory by split."""

    def __str__(self) -> str:
        return "the data"


DataFile = Path | Records
DataFiles = DataFile | SplitRecords  # a file, or files by split: a folder, or rows by split


def is_standard_output(out: StrPath) -> bool:
    """Return whether an output is "-", or the path that stands for it."""
    return os.fspath(out) in ("-", str(STANDARD_OUTPUT))


def is_in_memory(data: Data) -> bool:
    """Return whether data are rows, and no path, address or standard input."""
    return not isinstance(data, str | os.PathLike)


def list_rows(rows: Any, subject_for_errors: str = "the data") -> list[dict[str, Any]]:
    """Return rows in memory as dictionaries of columns.

    Args:
        rows: A DataFrame of pandas or polars, a `datasets.Dataset`, or any iterable of
            dictionaries.
        subject_for_errors: What they are, for messages.

    Raises:
        ConfigError: bad-value, for anything else. DataError: ambiguous, if a frame has a column
            twice.
    """
    hint = f"{ROWS_HINT}, a DataFrame, a Dataset, or the path of a file"
    if hasattr(rows, "collect"):
        raise ConfigError(
            "bad-value",
            f"{subject_for_errors} are a {type(rows).__name__}, which is not computed yet",
            "call .collect() on it",
        )
    # By what they have: neither pandas nor polars need be installed.
    if hasattr(rows, "iloc") and hasattr(rows, "columns"):
        if not rows.columns.is_unique:
            twice = rows.columns[rows.columns.duplicated()][0]
            raise DataError(
                "ambiguous",
                f"{subject_for_errors} have the column `{twice}` twice",
                "rename one of the two",
            )
        records: list[Any] = rows.to_dict("records")
    elif hasattr(rows, "iter_rows"):
        records = list(rows.iter_rows(named=True))
    elif (
        isinstance(rows, Iterable)
        and not isinstance(rows, bytes | bytearray | str)
        and not hasattr(rows, "iloc")
    ):
        records = list(rows)
    else:
        raise ConfigError(
            "bad-value",
            f"{subject_for_errors} are a {type(rows).__name__}, and hold no rows",
            hint,
        )
    for number, row in enumerate(records):
        if not isinstance(row, Mapping):
            fact = f"row {number:,} of {subject_for_errors} is a {type(row).__name__}, not a dictionary of columns"
            raise ConfigError("bad-value", fact, hint)
    return records


def convert_like(data_of_that_kind: Any, records: Sequence[dict[str, Any]]) -> Any:
    """Return records in the kind that was given: a DataFrame of pandas or polars, a `datasets.Dataset`, else a list."""
    if hasattr(data_of_that_kind, "iloc"):
        return type(data_of_that_kind)(records)
    if hasattr(data_of_that_kind, "from_list") and hasattr(data_of_that_kind, "select"):
        return type(data_of_that_kind).from_list(records)
    if hasattr(data_of_that_kind, "iter_rows"):
        # By itself polars looks at 100 rows, and refuses a type that comes later.
        return type(data_of_that_kind)(records, infer_schema_length=None)
    return list(records)


def with_added_columns(
    original: Any,
    rows: Sequence[dict[str, Any]],
    selected: Sequence[int],
    added: Sequence[dict[str, Any]],
) -> Any:
    """Return the kept rows of the data, with their types, with further columns.

    Args:
        original: The data as the caller gave them. A DataFrame or a `datasets.Dataset` comes back
            as one; of other data, such as a generator or a stream, which can be read only once, the
            result is a list.
        rows: Its rows, as `list_rows` returns them.
        selected: Numbers of the rows to return.
        added: The further columns of each of these rows.
    """
    columns = {name: [row.get(name) for row in added] for name in (added[0] if added else ())}
    if hasattr(original, "iloc"):
        return original.iloc[list(selected)].assign(**columns)
    if hasattr(original, "iter_rows"):
        return original[list(selected)].hstack(convert_like(original, added))
    if hasattr(original, "add_column") and hasattr(original, "select"):
        dataset = original.select(selected)
        for name, values in columns.items():
            dataset = dataset.add_column(name, values)
        return dataset
    return [{**rows[number], **further} for number, further in zip(selected, added, strict=True)]


@contextmanager
def as_files(data: Data) -> Iterator[DataFiles]:
    """Yield data as readers take them, wherever they are; copies are removed at the end.

    Args:
        data: A path; an address that fsspec knows (`gs://bucket/MRPC`), which is copied; "-" for
            standard input; rows in memory: a list of dictionaries, a DataFrame of pandas or polars,
            a `datasets.Dataset`; or several of these by split, as a dictionary or a
            `datasets.DatasetDict`: "train", and perhaps "dev" (or "validation") and "test".
    """
    if isinstance(data, Mapping):
        splits = SplitRecords()
        for name, rows in data.items():
            split = canonical_split(str(name))
            if split in splits:
                fact = f"the data have {split} twice, as {splits[split]} and the split `{name}`"
                raise DataError("ambiguous", fact, "leave one of them out")
            splits[split] = _rows_as_records(rows, f"the split `{name}`")
        yield splits
    elif is_in_memory(data):
        yield as_records(data)
    elif is_remote(data):
        with tempfile.TemporaryDirectory(prefix="albertkit-") as folder:
            url = os.fspath(data)
            system, path = file_system_and_path(url)
            target = Path(folder, path.rpartition("/")[2] or "data")
            with network_errors_as_ours(url):
                if system.isdir(path):
                    system.get(f"{path}/", f"{target}/", recursive=True)
                else:
                    system.get_file(path, str(target))
            yield target
    else:
        yield STANDARD_INPUT if data == "-" else Path(data)


def as_records(rows: Any) -> Records:
    """Return rows in memory as readers take them; see `as_files`."""
    records = _rows_as_records(rows, "the data")
    if not records.content:
        raise DataError("empty", "the data have no rows", ROWS_HINT)
    return records


def canonical_split(name: str) -> str:
    """Return the name that tasks use for a split: "dev" of "validation", "dev_matched" of "validation_matched"."""
    for split, names in SPLIT_NAMES.items():
        if name in names:
            return split
    return name.replace("validation", "dev", 1)


def as_source(data: DataFiles | StrPath) -> DataFiles:
    """Return what `as_files` yielded as it is, anything else as a path."""
    return data if isinstance(data, Records | SplitRecords) else Path(data)


def quoted_name(data: DataFiles | str) -> str:
    """Return data as messages name them: a path in backticks, rows in memory by their name."""
    return f"`{data}`" if isinstance(data, str | Path) else str(data)


def row_name(file: DataFiles | str, line: int) -> str:
    """Return how messages call a line of a file, from 1: "line 5"; of rows in memory, which count from 0, "row 4"."""
    return f"row {line - 1:,}" if isinstance(file, Records) else f"line {line:,}"


def file_name(file: DataFile) -> str:
    """Return the name of a file of data, for reports."""
    return "rows in memory" if isinstance(file, Records) else file.name


def _rows_as_records(rows: Any, name: str) -> Records:
    """Return rows as JSON lines; see `name_classes`."""
    class_names: dict[str, Sequence[str]] = {}
    for column, kind in (getattr(rows, "features", None) or {}).items():
        kind = getattr(kind, "feature", kind)  # of a list
        if hasattr(kind, "int2str"):
            class_names[column] = kind.names

    content = bytearray()
    for number, row in enumerate(list_rows(rows, name)):
        record = {str(column): value for column, value in row.items()}
        for column, names in class_names.items():
            if column in row:
                record[column] = name_classes(row[column], names)
        try:
            line = json.dumps(record, ensure_ascii=False, default=_json_value_or_text)
        except AlbertKitError:  # of `_json_value_or_text`; a ConfigError is a ValueError
            raise
        except (TypeError, ValueError, RecursionError) as error:
            fact = f"row {number:,} of {name} cannot be written as JSON: {error}"
            raise ConfigError(
                "bad-value",
                fact,
                "leave out the columns that are not read",
            ) from None
        # Half characters are left as they are: the reader names the row that has them.
        content += line.encode("utf-8", "surrogatepass") + b"\n"
    return Records(name, bytes(content))


def name_classes(value: Any, names: Sequence[str]) -> Any:
    """Return numbers of a `ClassLabel` of datasets, alone or in lists, as the names of the labels."""
    if hasattr(value, "tolist"):  # with_format("numpy") or "torch"
        value = value.tolist()
    if isinstance(value, list):
        return [name_classes(item, names) for item in value]
    if value is None or value != value or value < 0:  # the hub has -1 where there is no label
        return None
    if value >= len(names):
        fact = f"the class {value} has no name, there are {len(names):,}: {format_list(names, 5)}"
        raise DataError("bad-label", fact, "correct the features of the data set")
    return names[int(value)]


def _json_value_or_text(value: Any) -> Any:
    """Return a value that JSON does not know in a form that it does.

    Numbers and arrays of numpy become those of Python, missing values (NaT and NA of pandas) None,
    all else but bytes text.
    """
    if isinstance(value, bytes | bytearray):
        fact = f"`{bytes(value[:40])!r}` in the data is bytes, not text"
        raise ConfigError("bad-value", fact, "decode it: text.decode('utf-8')")
    if hasattr(value, "tolist"):
        return value.tolist()
    is_missing = type(value).__name__ == "NAType" or (value != value) is True
    return None if is_missing else str(value)
