"""Files of vectors: NumPy's `.npy`, filled row by row in any order, and Parquet made of one.

E rows of D numbers.
"""

import io
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Self

import google_crc32c
import numpy as np

from albertkit.embeddings.encoding.text_input import Text
from albertkit.errors import MissingExtraError

_GROUP = 10_000  # rows of Parquet written at once: 30 MB of 768 numbers


class VectorRows:
    """A `.npy` file of E rows that is filled in any order.

    Rows are written by seeking, not through a memory map: where a disk is full, a map ends the process with SIGBUS.

    Args:
        file: Made if missing; else what it holds is kept.
        shape: (E, D).
        dtype: Of the file.

    Attributes:
        sum: Over the rows written or counted, of place and CRC-32C, whatever their order: another one is other vectors.
    """

    def __init__(self, file: Path, shape: tuple[int, int], dtype: np.dtype) -> None:
        header = io.BytesIO()
        facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(header, facts)
        self.dimension, self.dtype, self.sum = shape[1], dtype, 0
        self._first, self._row_bytes = len(header.getvalue()), shape[1] * dtype.itemsize
        self._stream = open(file, "r+b" if file.exists() else "w+b")  # noqa: SIM115
        self._stream.write(header.getvalue())

    def write(self, rows: np.ndarray, vectors: np.ndarray) -> None:
        """Write vectors [N, D], which have the file's dtype, to rows int64 [N]."""
        for row, vector in zip(rows.tolist(), vectors, strict=True):
            self._stream.seek(self._first + row * self._row_bytes)
            self._stream.write(vector.data)
            self._add(row, vector.tobytes())

    def count(self, rows: np.ndarray) -> None:
        """Add rows int64 [N] that were written before to the sum."""
        for row in rows.tolist():
            self._stream.seek(self._first + row * self._row_bytes)
            self._add(row, self._stream.read(self._row_bytes))

    def _add(self, row: int, content: bytes) -> None:
        self.sum = (self.sum + (row + 1) * google_crc32c.value(content)) % (1 << 64)

    def read(self, first: int, count: int) -> np.ndarray:
        """Vectors [count, D] of rows that follow each other."""
        self._stream.seek(self._first + first * self._row_bytes)
        numbers = np.frombuffer(self._stream.read(count * self._row_bytes), self.dtype)
        return numbers.reshape(count, self.dimension)

    def sync(self) -> None:
        """Bring everything to the disk."""
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self._stream.close()


def write_parquet(file: Path, texts: Iterator[Text], rows: VectorRows) -> None:
    """Write `id`, `text` and `vector`, a list of fixed size, a row.

    Args:
        file: The file.
        texts: Of the rows, in their order. Where they have no `id` it is their place.
        rows: Filled.

    Raises:
        MissingExtraError: missing-extra.
    """
    arrow, parquet = pyarrow()
    vector = arrow.list_(arrow.from_numpy_dtype(rows.dtype), rows.dimension)
    done, writer = 0, None
    with open(file, "wb") as stream:
        while group := list(islice(texts, _GROUP)):
            numbers = arrow.array(rows.read(done, len(group)).reshape(-1))
            columns = {
                "id": [text.number if text.id is None else text.id for text in group],
                "text": [text.text for text in group],
                "vector": arrow.FixedSizeListArray.from_arrays(numbers, type=vector),
            }
            table = arrow.table(columns)
            # Dictionaries are for values that come again; vectors do not.
            writer = writer or parquet.ParquetWriter(stream, table.schema, use_dictionary=False, compression="zstd")
            writer.write_table(table)
            done += len(group)
        if writer is not None:
            writer.close()
        stream.flush()
        os.fsync(stream.fileno())


def pyarrow() -> tuple[Any, Any]:
    """The package and its Parquet.

    Raises:
        MissingExtraError: missing-extra.
    """
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise MissingExtraError.of("pyarrow", "parquet", "writing Parquet") from None
    return arrow, parquet
