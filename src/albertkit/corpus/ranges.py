"""Byte ranges of a file that hold whole documents, found without reading what lies before them.

A range from `start` to `end` holds the documents that begin from the first boundary at or after `start` on to the first one
at or after `end`. Any tiling of a file by such ranges gives every document once, in order.
"""

from typing import IO

# A longer line is taken for no boundary, whatever it holds: it is passed over without being held in memory.
_LINE_BYTES = 1 << 16
_LINES = ("jsonl", "paragraphs", "pairs")  # every line is a document
WHOLE_FORMATS = ("parquet", "csv", "tsv")  # that cannot be read from the middle


def document_bounds(file: IO[bytes], format: str, start: int, end: int | None) -> tuple[int, int | None]:
    """Return the first byte of the first document of a range and the first one after its last; 0 and 0 if it holds none.

    The file is seekable and not compressed; None is its end.
    """
    first = _boundary(file, format, start, end) if start else 0
    if first is None or (end is not None and first >= end and format in _LINES):
        return 0, 0
    return first, None if end is None else _boundary(file, format, end, None)


def _boundary(file: IO[bytes], format: str, start: int, limit: int | None) -> int | None:
    """Return the first byte after the first line that ends a document and begins from `start` on, before `limit`."""
    file.seek(start - 1)
    position = start - 1 + _line(file)[1]  # begins a line, be it at `start` itself
    if format in _LINES:
        return position
    while limit is None or position < limit:
        line, size = _line(file)
        if not size:
            return None
        position += size
        text = line.decode("utf-8", "replace").strip()
        if text == ("</doc>" if format == "wiki" else ""):
            return position
    return None


def _line(file: IO[bytes]) -> tuple[bytes, int]:
    """Return the next line, or `-` for a very long one, and its size."""
    line = piece = file.readline(_LINE_BYTES)
    size = len(line)
    while len(piece) == _LINE_BYTES and not piece.endswith(b"\n"):
        line, piece = b"-", file.readline(_LINE_BYTES)
        size += len(piece)
    return line, size
