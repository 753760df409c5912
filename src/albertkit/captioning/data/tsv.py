"""TSV files with an index of their lines, in which SwinBERT keeps everything: one row a line, its key first.

Beside `train.img.tsv` lie `train.img.lineidx`, the byte at which each row begins, one decimal number a line, and
`train.img.lineidx.8b`, the same as little-endian uint64.
"""

from functools import lru_cache
from pathlib import Path

import numpy as np

from albertkit.errors import DataError
from albertkit.files import plain_file

_CHUNK = 1 << 24


class TsvFile:
    """The rows of a TSV by number, for any number of threads; its index is checked, without one its lines are searched once."""

    def __init__(self, path: Path) -> None:
        self.path = plain_file(path)
        self._ends = _row_ends(path)

    @staticmethod
    def opened(path: Path) -> "TsvFile":
        """Return the file, opened once as long as it stays the same."""
        status = plain_file(path).stat()
        return _opened(path, status.st_size, status.st_mtime_ns)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def head(self, number: int, most: int) -> tuple[list[bytes], bool]:
        """Return the columns in the first `most` bytes of a row, and whether these are all."""
        if not 0 <= number < len(self):
            fact = f"`{self.path}` has {len(self):,} rows, there is no row {number:,}"
            raise DataError("bad-row", fact, "rows are counted from 0")
        begin, end = self._ends[number : number + 2].tolist()
        with open(self.path, "rb") as stream:
            stream.seek(begin)
            line = stream.read(min(end - begin, most))
        is_whole = end - begin <= most
        if b"\n" in line.removesuffix(b"\n"):
            raise _wrong(self.path, f"row {number:,} is more than one line")
        return [column.strip() for column in line.split(b"\t")], is_whole

    def row(self, number: int) -> list[bytes]:
        """Return all columns of a row, without spaces around them."""
        return self.head(number, 1 << 62)[0]


_opened = lru_cache(maxsize=16)(lambda path, _size, _modified: TsvFile(path))


def _index_files(path: Path) -> tuple[Path, Path]:
    return path.with_suffix(".lineidx"), path.with_suffix(".lineidx.8b")


def _row_ends(path: Path) -> np.ndarray:
    """Return where the rows begin, and the size of the file: int64 [N+1]."""
    size = path.stat().st_size
    index, binary = _index_files(path)
    found: list[tuple[Path, np.ndarray]] = []
    try:
        if index.is_file():
            found.append((index, np.asarray(index.read_text().split(), np.uint64).astype(np.int64)))
        if binary.is_file():
            found.append((binary, np.frombuffer(binary.read_bytes(), "<u8").astype(np.int64)))
    except (ValueError, OverflowError) as error:
        raise _wrong(path, f"it is not a list of numbers: {error}") from None
    if not found:
        return np.append(_searched(path, size), size)
    if len(found) == 2 and not np.array_equal(found[0][1], found[1][1]):
        raise _wrong(path, f"`{index.name}` and `{binary.name}` say different things")
    begins = found[0][1]
    if size == 0 or len(begins) == 0:
        if size or len(begins):
            raise _wrong(path, f"it names {len(begins):,} rows of {size:,} bytes")
        return np.zeros(1, np.int64)
    if begins[0] != 0 or (begins[1:] <= begins[:-1]).any() or begins[-1] >= size:
        raise _wrong(path, f"its numbers do not rise from 0 to below the size of the file, {size:,}")
    content = np.memmap(path, np.uint8, "r")
    misses = np.flatnonzero(content[begins[1:] - 1] != 10)  # 10: the end of a line
    if len(misses):
        raise _wrong(path, f"line {misses[0] + 2:,} says byte {begins[misses[0] + 1]:,}, where no row begins")
    return np.append(begins, size)


def _searched(path: Path, size: int) -> np.ndarray:
    """Search a file for the beginnings of its lines: int64 [N]."""
    found, place = [np.zeros(1, np.int64)], 0
    with open(path, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            found.append(np.flatnonzero(np.frombuffer(chunk, np.uint8) == 10) + (place + 1))
            place += len(chunk)
    begins = np.concatenate(found)
    return begins[begins < size]


def _wrong(path: Path, reason: str) -> DataError:
    index, binary = _index_files(path)
    fact = f"the index `{index}` does not fit `{path.name}`: {reason}"
    return DataError("bad-file", fact, f"delete `{index.name}` and `{binary.name}`: without them the file is searched")
