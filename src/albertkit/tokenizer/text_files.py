"""Plain text files, a text a line; an even sample of texts."""

import gzip
import random
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, cast

from albertkit.encodings import SAMPLE_BYTES, check_mojibake, conversion, encoding_advice, likely_encoding
from albertkit.errors import DataError, near_path


def read_lines(path: Path) -> Iterator[str]:
    """Return the lines of a UTF-8 file, without their ends; `.gz` is unpacked, `-` is the standard input."""
    if str(path) == "-":
        yield from _decoded(sys.stdin.buffer, "the standard input")
        return
    if re.match(r"[a-z][a-z0-9]+:/", str(path)):  # pathlib has made one slash of two
        what = f"`{path}` is an address; this file is read from this machine only"
        raise DataError("bad-value", what, "copy it here first, or pipe it in with `-`")
    if path.is_dir() or not path.exists():
        what = "is a folder, not a text file" if path.is_dir() else "does not exist"
        hint = near_path(path, "name files; a pattern such as `texts/*.txt` names many")
        raise DataError("not-found", f"`{path}` {what}", hint)
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as stream:
        try:
            check_mojibake(stream.peek(SAMPLE_BYTES), str(path))
            yield from _decoded(cast("IO[bytes]", stream), f"`{path}`", str(path))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError("corrupt", f"`{path}` cannot be unpacked: {error}", "fetch or pack it again") from None


def _decoded(stream: IO[bytes], source: str, path: str | None = None) -> Iterator[str]:
    place = 0
    for number, line in enumerate(stream, start=1):
        if b"\0" in line:
            at = place + line.index(b"\0")
            if name := likely_encoding(line + stream.read(SAMPLE_BYTES)):
                raise DataError("bad-encoding", f"{source} is {name}, not UTF-8", conversion(path or "FILE", name))
            raise DataError(
                "wrong-kind", f"{source} has a zero byte at {at:,}: it is not a text file", "name plain-text files"
            )
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                "bad-encoding",
                f"{source} is not UTF-8: byte 0x{line[error.start]:02x} at {place + error.start:,} (line {number:,})",
                encoding_advice(line + stream.read(SAMPLE_BYTES), path),
            ) from None
        place += len(line)
        yield text.rstrip("\r\n")


def even_sample(texts: Iterable[str], size: int, seed: int) -> list[str]:
    """Draw texts evenly (reservoir sampling); return all of them, in order, if there are no more than `size`.

    SentencePiece's own sampling (0.2.3) takes no seed: `SetRandomGeneratorSeed` leaves the sample as it is.
    """
    draw = random.Random(seed)
    sample: list[str] = []
    for number, text in enumerate(texts):
        if number < size:
            sample.append(text)
        elif (place := draw.randrange(number + 1)) < size:
            sample[place] = text
    return sample
