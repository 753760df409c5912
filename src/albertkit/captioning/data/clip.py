"""A clip: where its pictures are, what people say of it, and what its fields may hold."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VIDEO_ENDINGS = frozenset(".mp4 .m4v .mov .mkv .webm .avi .mpg .mpeg .ts .wmv .flv .ogv .3gp .gif .y4m".split())
FEATURE_ENDINGS = frozenset((".npy", ".safetensors"))

Span = tuple[float | None, float | None]  # where a clip begins and ends, in seconds; None where it is not said


def validate_key(value: Any) -> str:
    """Return a key: text on one line without tabs, because it is a column of TSV files, and without spaces around it."""
    if not isinstance(value, str):
        raise ValueError(f"the key is {value!r}, it must be text")
    if not value.strip():
        raise ValueError("the key is empty")
    if value != value.strip() or any(sign in value for sign in "\t\n\r\0"):
        raise ValueError(f"the key {value!r} has a tab, a line end, or spaces around it")
    return _check_encodable(value, "the key")


def parse_captions(values: Any) -> tuple[str, ...]:
    """Return captions without the spaces around them."""
    if not isinstance(values, list):
        raise ValueError(f"the captions are {values!r}, they must be a list of texts")
    captions = []
    for value in values:
        if not isinstance(value, str):
            raise ValueError(f"a caption is {value!r}, it must be text")
        if not value.strip():
            raise ValueError("a caption is empty")
        captions.append(_check_encodable(value.strip(), "a caption"))
    return tuple(captions)


def parse_span(start: Any, end: Any) -> Span:
    """Return where a clip begins and ends, in seconds; None where it is not said."""
    for name, value in (("start", start), ("end", end)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise ValueError(f"{name} is {value!r}, it must be seconds from 0")
    start, end = (None if value is None else float(value) for value in (start, end))
    if end is not None and end <= (start or 0.0):
        raise ValueError(f"the clip ends at {end} s, before it begins at {start or 0.0} s")
    return start, end


def clip_key(key: str, start: float | None, end: float | None) -> str:
    """Return the key of a part: `key_start_end`, as TVC writes it; the key itself where it is the whole."""
    if start is None and end is None:
        return key
    return f"{key}_{0.0 if start is None else start:g}_{'end' if end is None else f'{end:g}'}"


def resolve_file(folder: Path, name: Any) -> Path:
    """Return a file, by its path from a folder."""
    if not isinstance(name, str) or not name.strip() or "\0" in name:
        raise ValueError(f"{name!r} is not the path of a file")
    path = folder / name
    if not path.is_file():
        raise ValueError(f"no file `{path}`")
    return path


def find_file_above(folder: Path, names: Iterable[str]) -> Path | None:
    """Return the first of some paths that is a file, looked for from a folder and then from those above it.

    SwinBERT's files name videos from the folder of its code, in which the folder of the data lies.
    """
    names = tuple(names)
    folder = folder.absolute()
    for parent in (folder, *folder.parents):
        for name in names:
            if (parent / name).is_file():
                return parent / name
    return None


def _check_encodable(value: str, subject: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{subject} {value!r} holds half a character (a lone surrogate)") from None
    return value


@dataclass(frozen=True, kw_only=True)
class Clip:
    """One example of captioning.

    Attributes:
        key: Its name, the same in every file about it.
        source: A file of video, of features (`.npy`, `.safetensors`), or a TSV of frames.
        start: Where it begins in the source, in seconds. Default: at its beginning.
        end: Where it ends, in seconds. Default: at its end.
        row: Of a TSV of frames: the number of its line.
        captions: What is said of it; none when it is only to be captioned.
    """

    key: str
    source: Path
    start: float | None = None
    end: float | None = None
    row: int | None = None
    captions: tuple[str, ...] = ()
