"""Captions as data sets publish them, in one JSON or JSONL; the videos lie below the file's folder."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from albertkit.captioning.data.clip import VIDEO_ENDINGS, Clip, as_key, as_span, find_above
from albertkit.captioning.data.layouts import LAYOUTS, Place, Record, records
from albertkit.data.bad_rows import BadRows, counted
from albertkit.errors import DataError
from albertkit.files import plain_file, read_json


def read_annotations(path: Path, bad_rows: BadRows) -> dict[str, list[Clip]]:
    """Read such a file.

    A video is the one file below the file's folder with the name that the annotations give it; COCO's `file_name` is looked
    for from that folder and those above it, too. VATEX's and YouCook2's clips may be cut out already (`ID_000010_000020.mp4`,
    `ID_0.mp4`) or lie in the whole video (`ID.mp4`). MSR-VTT's `start time` and `end time` count in films that the files were
    cut from, and are not used.
    """
    found = records(
        _content(path), lambda number, where, reason: bad_rows.add(path, number, reason, where=where), bad_rows.note
    )
    if found is None:
        fact = f"`{path}` is not captions of {LAYOUTS}"
        hint = "write a manifest instead: one JSON object a line with video and captions"
        raise DataError("missing-file", fact, hint)
    files = _by_name(path.parent)
    splits: dict[str, list[Clip]] = defaultdict(list)
    named: Counter[str] = Counter()
    seen: set[str] = set()
    for record in found:
        named[record.split] += 1
        try:
            clip = _clip(record, path.parent, files)
            if clip.key in seen:
                raise ValueError(f"`{clip.key}` is named twice")
        except ValueError as error:
            bad_rows.add(path, record.number, str(error), where=record.where)
            continue
        seen.add(clip.key)
        splits[record.split].append(clip)
    for split, count in named.items():
        if split not in splits and splits:
            bad_rows.note(
                f"`{path}`: none of the {counted(count, 'clip')} of {split} can be used, the split is left out"
            )
    return dict(splits)


def is_annotations(path: Path) -> bool:
    """Return whether a file holds captions in a published layout; of a JSONL the first line decides."""
    try:
        content = [next(_lines(path))[1]] if path.suffix.lower() == ".jsonl" else _content(path)
    except (DataError, StopIteration):
        return False
    return records(content, lambda *_: None, lambda _: None) is not None


def _content(path: Path) -> Any:
    if path.suffix.lower() == ".jsonl":
        return [record for _, record in _lines(path)]
    return read_json(path, "annotations")


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    with open(plain_file(path, "annotations"), "rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                if line.strip():
                    yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError("bad-file", f"`{path}`, line {number:,}: {error}", "restore the file") from None


def _clip(record: Record, folder: Path, files: dict[str, list[Path]]) -> Clip:
    for place in record.places:
        source = _file(folder, place, files)
        if source is not None:
            start, end = as_span(place.start, place.end)
            captions = tuple(record.captions)
            return Clip(key=as_key(record.key), source=source, start=start, end=end, captions=captions)
    names = " or ".join(f"`{place.name}`" for place in record.places)
    raise ValueError(f"no video {names} below `{folder}`")


def _by_name(folder: Path) -> dict[str, list[Path]]:
    """Index the videos below a folder by their name, with and without ending."""
    files: dict[str, list[Path]] = defaultdict(list)
    for file in sorted(folder.rglob("*")):
        if file.suffix.lower() in VIDEO_ENDINGS:
            files[file.stem].append(file)
            files[file.name].append(file)
    return files


def _file(folder: Path, place: Place, files: dict[str, list[Path]]) -> Path | None:
    if Path(place.name).suffix and (found := find_above(folder, [place.name])):
        return found
    if len(files.get(place.name, [])) > 1:
        there = " and ".join(f"`{file}`" for file in files[place.name])
        raise ValueError(f"below `{folder}` one video should be called `{place.name}`, there is {there}")
    return files[place.name][0] if place.name in files else None
