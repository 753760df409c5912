"""Lines of text files, whatever they are packed with, and what to say of lines that are no text."""

import io
import json
import os
import re
from collections.abc import Iterator
from functools import lru_cache

from albertkit.addresses import is_remote
from albertkit.data.given import DataFile, Records
from albertkit.data.inputs import ByteStream, InputFile
from albertkit.encodings import encoding_advice, file_encoding_advice
from albertkit.errors import AlbertKitError, DataError

LONGEST = 64 << 20  # characters of a line or a record
NOT_UTF8 = "bytes that are not UTF-8"  # see `not_utf8`
_HALF = re.compile("[\ud800-\udfff]")


def blocks(stream: ByteStream, number: int = 1) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines, each with the number of its first line; `number` is that of the first block's.

    A file whose lines end in CR alone, as those of the first Macintoshes and of Excel's "CSV (Macintosh)", has LF in its place.
    """
    rest, cr_alone = b"", None
    while chunk := stream.read():
        if cr_alone is None:
            cr_alone = number == 1 and b"\n" not in chunk and b"\r" in chunk[:-1]
        block = rest + (chunk.replace(b"\r", b"\n") if cr_alone else chunk)
        end = block.rfind(b"\n") + 1
        block, rest = block[:end], block[end:]
        if block:
            yield number, block
            number += block.count(b"\n")
        if len(rest) > LONGEST:
            fact = f"`{stream.file.path}`: line {number:,} is longer than {LONGEST:,} bytes"
            raise DataError("bad-row", fact, "break it into several lines")
    if rest:
        yield number, rest


def byte_lines(stream: ByteStream) -> Iterator[bytes]:
    """Yield lines with their ends."""
    for _, block in blocks(stream):
        yield from io.BytesIO(block)


def lines(stream: ByteStream) -> Iterator[tuple[int, str]]:
    """Yield line numbers from 1 and lines without their ends. Bytes that are not UTF-8 become lone surrogates."""
    for first, block in blocks(stream):
        text = block.decode("utf-8", "surrogateescape")  # lines are whole, so no character is cut in two
        if first == 1:
            text = text.removeprefix("\ufeff")
        if text:
            for number, line in enumerate(text.removesuffix("\n").split("\n"), first):
                yield number, line.removesuffix("\r")


def has_half_characters(text: str) -> bool:
    """Return whether a text holds lone surrogates: what `lines` makes of bytes that are not UTF-8, and what JSON can spell."""
    return not text.isascii() and _HALF.search(text) is not None


def not_json(error: ValueError | RecursionError) -> str:
    """Return what is wrong with one line of JSON. Its line number is left out: there it is always 1."""
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg}, column {error.colno}"
    return NOT_UTF8 if isinstance(error, UnicodeDecodeError) else f"not JSON: {error}"


def not_utf8(file: DataFile | str) -> str:
    """Return what to do about rows that are not UTF-8."""
    in_memory = isinstance(file, Records)
    hint = 'make it UTF-8: text.encode("utf-8", "replace").decode()' if in_memory else encoding_hint(str(file))
    return f"{hint}; or leave such rows out with --on-error skip"


@lru_cache(maxsize=8)
def encoding_hint(path: str, sample: bytes = b"") -> str:
    """Return what to do about a file that is not UTF-8, by all of its lines. Asked for every bad row.

    Args:
        path: Of the file.
        sample: Lines that are not UTF-8, for what can be read only once.
    """
    if not (is_remote(path) or os.path.isfile(path)):
        return encoding_advice(sample)
    try:
        with ByteStream(InputFile(path, 0)) as stream:
            if stream.peek(4) == b"PAR1":
                return "write its texts as UTF-8"
            return file_encoding_advice(byte_lines(stream), path)
    except (OSError, AlbertKitError):  # what is wrong with the file is reported elsewhere
        return encoding_advice(sample)
