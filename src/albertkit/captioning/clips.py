"""Clips, their keys and captions; manifests: JSONL with one clip a line, their files named from the folder of the manifest."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albertkit.errors import suggest_name
from albertkit.files import check_regular_file, parse_json
from albertkit.tables.bad_rows import BadRows
from albertkit.tables.text_lines import json_problem

VIDEO_ENDINGS = frozenset(
    ".mp4 .m4v .mov .mkv .webm .avi .mpg .mpeg .ts .wmv .flv .ogv .3gp .gif .y4m".split()
)
FEATURE_ENDINGS = frozenset((".npy", ".safetensors"))

# Where a clip begins and ends, in seconds; None where it is not said
Span = tuple[float | None, float | None]


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
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
            or value < 0
        ):
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


_SOURCES = ("video", "features", "frames")
_NAMES = (*_SOURCES, "row", "key", "start", "end", "captions", "caption")


def read_manifest(path: Path, bad_rows: BadRows) -> list[Clip]:
    """Read a manifest.

    A line is an object with one of `video`, `features` (`.npy`, `.safetensors`) and `frames` (a TSV
    of frames, with the `row` of it, from 0), which are paths from the manifest's folder; and, where
    wanted, `start` and `end` in seconds, `captions` (a list) or `caption` (one text), and `key`,
    which otherwise is the path, with the span behind it where there is one.
    """
    clips: dict[str, tuple[Clip, int]] = {}
    with open(check_regular_file(path, "manifest"), "rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                # A byte order mark, with which editors on Windows begin a file.
                clip = _parse_clip(parse_json(line.removeprefix(b"\xef\xbb\xbf")), path.parent)
                if clip.key in clips:
                    raise ValueError(
                        f"the key `{clip.key}` is that of line {clips[clip.key][1]:,} already: put all its captions into "
                        "one line, or give it a key of its own"
                    )
            except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
                bad_rows.add(path, number, json_problem(error))
            except ValueError as error:
                bad_rows.add(path, number, str(error))
            else:
                clips[clip.key] = clip, number
    return [clip for clip, _ in clips.values()]


def _parse_clip(record: Any, folder: Path) -> Clip:
    if not isinstance(record, dict):
        raise ValueError(f"a {type(record).__name__}, not an object")
    if unknown := [name for name in record if name not in _NAMES]:
        raise ValueError(f"the key `{unknown[0]}` is not known, {suggest_name(unknown[0], _NAMES)}")
    source_names = [name for name in _SOURCES if name in record]
    if len(source_names) != 1:
        raise ValueError(
            f"it has {' and '.join(source_names) or 'none'} of {', '.join(_SOURCES)}, it needs one"
        )
    if "captions" in record and "caption" in record:
        raise ValueError("it has both `caption` and `captions`")
    if ("row" in record) != (source_names == ["frames"]):
        raise ValueError("`frames` and `row` belong together")
    name = record[source_names[0]]
    row = record.get("row")
    # JSON's `true` is a whole number to Python.
    if row is not None and (isinstance(row, bool) or not isinstance(row, int) or row < 0):
        raise ValueError(f"row is {row!r}, it must be a number of a line, from 0")
    if not isinstance(name, str) or not name.strip() or "\0" in name:
        raise ValueError(f"{name!r} is not the path of a file")
    source = folder / name
    if not source.is_file():
        raise ValueError(f"no file `{source}`")
    if (source.suffix.lower() in FEATURE_ENDINGS) != (source_names == ["features"]):
        raise ValueError(
            f"`{name}` is named as {source_names[0]}; features are {' or '.join(sorted(FEATURE_ENDINGS))}, and nothing else is"
        )
    start, end = parse_span(record.get("start"), record.get("end"))
    if source_names != ["video"] and (start, end) != (None, None):
        raise ValueError(f"`start` and `end` are for videos, this is {source_names[0]}")
    key = record.get("key", clip_key(name if row is None else f"{name}:{row}", start, end))
    captions = parse_captions(
        [record["caption"]] if "caption" in record else record.get("captions", [])
    )
    return Clip(
        key=validate_key(key),
        source=source,
        start=start,
        end=end,
        row=row,
        captions=captions,
    )
