"""Data as a caller gives them: a path, an address, standard input, or rows in memory; all become files that tasks read."""

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from albertkit.addresses import file_system, is_remote, reaching
from albertkit.errors import AlbertKitError, ConfigError, DataError

STANDARD_INPUT = Path("/dev/stdin")
STANDARD_OUTPUT = Path("/dev/stdout")
Data = Any  # a path, an address, rows, or a mapping of splits to rows
_MADE = "albertkit-rows-"  # how folders begin that hold rows in memory as files


def is_standard_output(out: str | os.PathLike[str]) -> bool:
    """Return whether an output is "-", or the path that stands for it."""
    return os.fspath(out) in ("-", str(STANDARD_OUTPUT))


def is_in_memory(data: Data) -> bool:
    """Return whether data are rows, and no path, address or standard input."""
    return not isinstance(data, str | os.PathLike)


def listed(rows: Any, what: str = "the data") -> list[dict[str, Any]]:
    """Return rows in memory as dictionaries of columns.

    Args:
        rows: A DataFrame of pandas or polars, a `datasets.Dataset`, or any iterable of dictionaries.
        what: What they are, for messages.

    Raises:
        ConfigError: bad-value, for anything else. DataError: ambiguous, if a frame has a column twice.
    """
    hint = 'give rows such as {"text": "a text", "label": "good"}, a DataFrame, a Dataset, or the path of a file'
    if hasattr(rows, "collect"):
        raise ConfigError(
            "bad-value", f"{what} are a {type(rows).__name__}, which is not computed yet", "call .collect() on it"
        )
    if hasattr(rows, "iloc") and hasattr(rows, "columns"):
        if not rows.columns.is_unique:
            twice = rows.columns[rows.columns.duplicated()][0]
            raise DataError("ambiguous", f"{what} have the column `{twice}` twice", "rename one of the two")
        found: list[Any] = rows.to_dict("records")
    elif hasattr(rows, "iter_rows"):
        found = list(rows.iter_rows(named=True))
    elif isinstance(rows, Iterable) and not isinstance(rows, bytes | bytearray | str) and not hasattr(rows, "iloc"):
        found = list(rows)
    else:
        raise ConfigError("bad-value", f"{what} are a {type(rows).__name__}, and hold no rows", hint)
    for number, row in enumerate(found):
        if not isinstance(row, Mapping):
            fact = f"row {number:,} of {what} is a {type(row).__name__}, not a dictionary of columns"
            raise ConfigError("bad-value", fact, hint)
    return found


def like(given: Any, records: Sequence[dict[str, Any]]) -> Any:
    """Return records in the kind that was given: a DataFrame of pandas or polars, a `datasets.Dataset`, else a list."""
    if hasattr(given, "iloc"):
        return type(given)(records)
    if hasattr(given, "from_list") and hasattr(given, "select"):
        return type(given).from_list(records)
    return type(given)(records, infer_schema_length=None) if hasattr(given, "iter_rows") else list(records)


def with_added_columns(
    given: Any, rows: Sequence[dict[str, Any]], kept: Sequence[int], added: Sequence[dict[str, Any]]
) -> Any:
    """Return the kept rows of the data, with their types, with further columns.

    Args:
        given: The data as the caller gave them. A DataFrame or a `datasets.Dataset` comes back as one; of other data, such as
            a generator or a stream, which can be read only once, the result is a list.
        rows: Its rows, as `listed` returns them.
        kept: Numbers of the rows to return.
        added: The further columns of each of these rows.
    """
    columns = {name: [row.get(name) for row in added] for name in (added[0] if added else ())}
    if hasattr(given, "iloc"):
        return given.iloc[list(kept)].assign(**columns)
    if hasattr(given, "iter_rows"):
        return given[list(kept)].hstack(like(given, added))
    if hasattr(given, "add_column") and hasattr(given, "select"):
        found = given.select(kept)
        for name, values in columns.items():
            found = found.add_column(name, values)
        return found
    return [{**rows[number], **own} for number, own in zip(kept, added, strict=True)]


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
    with tempfile.TemporaryDirectory(prefix=_MADE) as folder:
        if isinstance(data, Mapping):
            for split, rows in data.items():
                if not str(split).isidentifier():
                    raise ConfigError("bad-value", f"a split is named `{split}`", "name splits train, dev and test")
                _write(rows, Path(folder, f"{split}.jsonl"), f"the split `{split}`")
            with _naming_rows():
                yield Path(folder)
        else:
            file = Path(folder, "rows.jsonl")
            _write(data, file, "the data")
            if not file.stat().st_size:
                raise DataError(
                    "empty", "the data have no rows", 'give rows such as {"text": "a text", "label": "good"}'
                )
            with _naming_rows():
                yield file


@contextmanager
def _naming_rows() -> Iterator[None]:
    """Let errors name the rows in memory in place of the file that was made of them."""
    try:
        yield
    except AlbertKitError as error:
        error.message, error.hint = named_as_given(error.message), named_as_given(error.hint)
        raise


def named_as_given(text: str) -> str:
    """Return a message with the rows in memory, counted from 0, in place of the files that `as_files` made of them."""
    made = re.escape(os.path.join(tempfile.gettempdir(), _MADE)) + r"\w+"
    named = re.sub(rf"`{made}/rows\.jsonl`", "the data", text)
    named = re.sub(rf"`{made}/(\w+)\.jsonl`", r"the split `\1`", named)
    named = re.sub(f"`{made}`", "the data", named)
    if named == text:
        return text
    line = r"((?:the data|the split `\w+`), |, as in )line (\d[\d,]*\b)"
    return re.sub(line, lambda m: f"{m[1]}row {int(m[2].replace(',', '')) - 1:,}", named)


def file_name(file: Path) -> str:
    """Return the name of a file of data, for messages."""
    return "rows in memory" if is_made_of_rows(str(file)) else file.name


def is_made_of_rows(path: str) -> bool:
    """Return whether `as_files` made a file of rows in memory."""
    return Path(path).parent.name.startswith(_MADE)


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
    """Write rows as JSON lines. Numbers of a `ClassLabel` of datasets become the names of the labels, alone or in lists."""
    names: dict[str, Callable[[int], str]] = {}
    for name, kind in (getattr(rows, "features", None) or {}).items():
        kind = getattr(kind, "feature", kind)  # of a list
        if hasattr(kind, "int2str"):
            names[name] = kind.int2str

    def named(name: str, value: Any) -> Any:
        if hasattr(value, "tolist"):  # with_format("numpy") or "torch"
            value = value.tolist()
        if isinstance(value, list):
            return [named(name, one) for one in value]
        if value is None or value != value or value < 0:  # the hub has -1 where there is no label
            return None
        return names[name](int(value))

    with file.open("w", encoding="utf-8", errors="surrogatepass") as stream:
        for number, row in enumerate(listed(rows, what)):
            record = {str(name): named(name, value) if name in names else value for name, value in row.items()}
            try:
                line = json.dumps(record, ensure_ascii=False, default=_plain)
            except AlbertKitError:  # of `_plain`; a ConfigError is a ValueError
                raise
            except (TypeError, ValueError, RecursionError) as error:
                fact = f"row {number:,} of {what} cannot be written as JSON: {error}"
                raise ConfigError("bad-value", fact, "leave out the columns that are not read") from None
            stream.write(line + "\n")


def _plain(value: Any) -> Any:
    """Return a value that JSON does not know in a form that it does.

    Numbers and arrays of numpy become those of Python, missing values (NaT and NA of pandas) None, all else but bytes text.
    """
    if isinstance(value, bytes | bytearray):
        fact = f"`{bytes(value[:40])!r}` in the data is bytes, not text"
        raise ConfigError("bad-value", fact, "decode it: text.decode('utf-8')")
    if hasattr(value, "tolist"):
        return value.tolist()
    return None if type(value).__name__ == "NAType" or (value != value) is True else str(value)
