"""Manifests: JSONL with one clip a line, their files named from the folder of the manifest."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from albertkit.captioning.data.clip import (
    FEATURE_ENDINGS,
    Clip,
    clip_key,
    parse_captions,
    parse_span,
    resolve_file,
    validate_key,
)
from albertkit.data.bad_rows import BadRows
from albertkit.data.lines import not_json
from albertkit.errors import DataError, near_miss
from albertkit.files import plain_file, write_lines

_SOURCES = ("video", "features", "frames")
_NAMES = (*_SOURCES, "row", "key", "start", "end", "captions", "caption")


def read_manifest(path: Path, bad_rows: BadRows) -> list[Clip]:
    """Read a manifest.

    A line is an object with one of `video`, `features` (`.npy`, `.safetensors`) and `frames` (a TSV of frames, with the `row`
    of it, from 0), which are paths from the manifest's folder; and, where wanted, `start` and `end` in seconds, `captions` (a
    list) or `caption` (one text), and `key`, which otherwise is the path, with the span behind it where there is one.
    """
    clips: dict[str, tuple[Clip, int]] = {}
    with open(plain_file(path, "manifest"), "rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                clip = _clip(json.loads(line.removeprefix(b"\xef\xbb\xbf")), path.parent)
                if clip.key in clips:
                    raise ValueError(
                        f"the key `{clip.key}` is that of line {clips[clip.key][1]:,} already: put all its captions into "
                        "one line, or give it a key of its own"
                    )
            except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
                bad_rows.add(path, number, not_json(error))
            except ValueError as error:
                bad_rows.add(path, number, str(error))
            else:
                clips[clip.key] = clip, number
    return [clip for clip, _ in clips.values()]


def _clip(record: Any, folder: Path) -> Clip:
    if not isinstance(record, dict):
        raise ValueError(f"a {type(record).__name__}, not an object")
    if unknown := [name for name in record if name not in _NAMES]:
        raise ValueError(f"the key `{unknown[0]}` is not known, {near_miss(unknown[0], _NAMES)}")
    given = [name for name in _SOURCES if name in record]
    if len(given) != 1:
        raise ValueError(f"it has {' and '.join(given) or 'none'} of {', '.join(_SOURCES)}, it needs one")
    if "captions" in record and "caption" in record:
        raise ValueError("it has both `caption` and `captions`")
    if ("row" in record) != (given == ["frames"]):
        raise ValueError("`frames` and `row` belong together")
    name, row = record[given[0]], record.get("row")
    if row is not None and (isinstance(row, bool) or not isinstance(row, int) or row < 0):
        raise ValueError(f"row is {row!r}, it must be a number of a line, from 0")
    source = resolve_file(folder, name)
    if (source.suffix.lower() in FEATURE_ENDINGS) != (given == ["features"]):
        raise ValueError(
            f"`{name}` is named as {given[0]}; features are {' or '.join(sorted(FEATURE_ENDINGS))}, and nothing else is"
        )
    start, end = parse_span(record.get("start"), record.get("end"))
    if given != ["video"] and (start, end) != (None, None):
        raise ValueError(f"`start` and `end` are for videos, this is {given[0]}")
    key = record.get("key", clip_key(name if row is None else f"{name}:{row}", start, end))
    captions = parse_captions([record["caption"]] if "caption" in record else record.get("captions", []))
    return Clip(key=validate_key(key), source=source, start=start, end=end, row=row, captions=captions)


def write_manifest(path: str | Path, clips: Iterable[Clip]) -> None:
    """Write clips as a manifest, whole or not at all."""
    target, clips, keys = Path(path), list(clips), set[str]()
    for clip in clips:
        add_key(keys, clip)
    write_lines(target, (_record(clip, target.parent) for clip in clips))


def add_key(keys: set[str], clip: Clip) -> None:
    """Add the key of a clip to the keys of others; refuse one that is there already."""
    if clip.key in keys:
        raise DataError("bad-row", f"two clips have the key `{clip.key}`", "give each its own key")
    keys.add(clip.key)


def _record(clip: Clip, folder: Path) -> dict[str, Any]:
    kind = "features" if clip.source.suffix.lower() in FEATURE_ENDINGS else "video" if clip.row is None else "frames"
    values = {
        kind: Path(os.path.relpath(clip.source, folder)).as_posix(),
        "row": clip.row,
        "key": clip.key,
        "start": clip.start,
        "end": clip.end,
        "captions": list(clip.captions),
    }
    return {name: value for name, value in values.items() if value is not None}
