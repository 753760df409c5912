"""Records of Parquet files, with texts as bytes: one that is not UTF-8 spoils its own row, not the file."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

from albertkit.data.inputs import ByteStream
from albertkit.errors import DataError, MissingExtraError

_ROWS = 256  # at a time; a row may be a whole document


class ParquetFile:
    """A Parquet file, opened. It is read from its end, so a compressed or piped one goes through the disk first.

    Attributes:
        schema: Its columns, a `pyarrow.Schema`.
    """

    def __init__(self, stream: ByteStream) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise MissingExtraError.of("pyarrow", "parquet", "reading Parquet") from None
        self._arrow: Any = pyarrow
        self._path = stream.file.path
        file: IO[bytes] | None = stream.seekable_file()
        if file is None:
            file = tempfile.TemporaryFile()  # noqa: SIM115  (it lives as long as the table)
            shutil.copyfileobj(stream, file, 1 << 20)
        file.seek(0)
        with self._reading():
            self._table = pyarrow.parquet.ParquetFile(file)
            self.schema: Any = self._table.schema_arrow

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (self._arrow.ArrowException, OSError, UnicodeDecodeError) as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise DataError("corrupt", f"`{self._path}`: {reason}", "copy or download it again") from None

    def records(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the rows, each with these columns by name."""
        arrow = self._arrow
        batches = self._table.iter_batches(batch_size=_ROWS, columns=list(columns))
        while True:
            with self._reading():
                if (batch := next(batches, None)) is None:
                    return
                strings = (arrow.string(), arrow.large_string())
                fields = [f.with_type(arrow.large_binary()) if f.type in strings else f for f in batch.schema]
                rows = batch.cast(arrow.schema(fields)).to_pylist()
            yield from rows
