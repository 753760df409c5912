"""Parquet tables, by pyarrow."""

import itertools
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, Any

from albertkit.corpus.inputs import ByteStream
from albertkit.errors import DataError, MissingExtraError
from albertkit.tasks.tables.json_records import texts
from albertkit.tasks.tables.source import Source


def open_parquet(stream: ByteStream) -> Source:
    """A Parquet file.

    Args:
        stream: At its start. It is read from its end, so a compressed one goes through the disk first.

    Raises:
        DataError: broken-parquet.
        MissingExtraError: missing-extra.
    """
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise MissingExtraError.of("pyarrow", "parquet", "reading Parquet") from None
    file: IO[bytes] | None = stream.seekable_file()
    if file is None:
        file = tempfile.TemporaryFile()  # noqa: SIM115  (it lives as long as the table)
        shutil.copyfileobj(stream, file, 1 << 20)
    file.seek(0)

    strings = (arrow.string(), arrow.large_string())
    faults = (arrow.ArrowException, OSError, UnicodeDecodeError)

    def broken(error: Exception) -> DataError:
        reason = str(error).partition("\n")[0]
        return DataError("broken-parquet", f"`{stream.file.path}`: {reason}", "copy or download it again")

    def records(wanted: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
        try:
            number = itertools.count(1)
            for batch in table.iter_batches(batch_size=1024, columns=list(wanted)):
                # as bytes: one text that is not UTF-8 spoils its own row, not the file
                fields = [f.with_type(arrow.large_binary()) if f.type in strings else f for f in batch.schema]
                for record in batch.cast(arrow.schema(fields)).to_pylist():
                    yield next(number), texts(record)
        except faults as error:
            raise broken(error) from None

    try:
        table = parquet.ParquetFile(file)
    except faults as error:
        raise broken(error) from None
    return Source(tuple(_names(table.schema_arrow)), records, has_own_names=True)


def _names(fields: Any, prefix: str = "") -> Iterator[str]:
    """Names of Parquet columns; those within a structure as `labels.label`."""
    for field in fields:
        if str(field.type).startswith("struct"):
            yield from _names(field.type.fields, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name
