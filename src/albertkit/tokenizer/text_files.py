"""Plain text files, a text a line; an even sample of texts."""

import itertools
import random
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from albertkit.data.inputs import ByteStream, find_file
from albertkit.data.lines import byte_lines, encoding_hint
from albertkit.data.running_text import HEAD_BYTES, check_running_text
from albertkit.encodings import SAMPLE_BYTES, check_mojibake, conversion, encoding_advice, likely_encoding
from albertkit.errors import DataError, near_path

_SAMPLE_LINES = 1000


def read_lines(path: Path) -> Iterator[str]:
    """Return the lines of a UTF-8 file, unpacked, without their ends; `-` is the standard input, read line by line."""
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
    with ByteStream(find_file(path)) as stream:
        check_mojibake(stream.peek(SAMPLE_BYTES), str(path))
        yield from _decoded(byte_lines(stream), f"`{path}`", str(path))


def check_is_running_text(path: Path, hints: dict[str, str]) -> None:
    """Refuse a structured file whose lines are to be read as texts; see `check_running_text`. A pipe is not looked at."""
    if path.is_file():
        with ByteStream(find_file(path)) as stream:
            check_running_text(stream.peek(HEAD_BYTES), str(path), hints, path.name)


def _decoded(lines: Iterable[bytes], source: str, path: str | None = None) -> Iterator[str]:
    place, lines = 0, iter(lines)
    for number, line in enumerate(lines, start=1):
        if b"\0" in line:
            at = place + line.index(b"\0")
            if name := likely_encoding(_sample(line, lines)):
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
                encoding_hint(path) if path else encoding_advice(_sample(line, lines)),
            ) from None
        place += len(line)
        yield text.rstrip("\r\n")


def _sample(line: bytes, following: Iterator[bytes]) -> bytes:
    return (line + b"".join(itertools.islice(following, _SAMPLE_LINES)))[:SAMPLE_BYTES]


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
