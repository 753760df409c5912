"""SwinBERT's data sets: a YAML that names TSVs of pictures and captions. Source: src/datasets/vision_language_tsv.py, prepro/."""

import json
import reprlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from yaml import YAMLError

from albertkit.captioning.clips import (
    Clip,
    Span,
    clip_key,
    find_file_above,
    parse_captions,
    parse_span,
    validate_key,
)
from albertkit.errors import DataError
from albertkit.files import check_regular_file, parse_yaml
from albertkit.tables.bad_rows import BadRows

_CHUNK = 1 << 24


class TsvFile:
    """The rows of a TSV by number, for any number of threads; its index is checked, without one its lines are searched once."""

    def __init__(self, path: Path) -> None:
        self.path = check_regular_file(path)
        size = path.stat().st_size
        index, binary = _index_files(path)
        indices: list[np.ndarray] = []
        try:
            if index.is_file():
                indices.append(np.asarray(index.read_text().split(), np.uint64).astype(np.int64))
            if binary.is_file():
                indices.append(np.frombuffer(binary.read_bytes(), "<u8").astype(np.int64))
        except (ValueError, OverflowError) as error:
            raise _index_error(path, f"it is not a list of numbers: {error}") from None
        if len(indices) == 2 and not np.array_equal(indices[0], indices[1]):
            raise _index_error(path, f"`{index.name}` and `{binary.name}` say different things")
        if indices:
            begins = indices[0]
            if (size == 0) != (len(begins) == 0):
                raise _index_error(path, f"it names {len(begins):,} rows of {size:,} bytes")
            if size and (begins[0] != 0 or (begins[1:] <= begins[:-1]).any() or begins[-1] >= size):
                raise _index_error(
                    path,
                    f"its numbers do not rise from 0 to below the size of the file, {size:,}",
                )
            # An index of another version of the file is noticed here: every row must follow a line
            # end, byte 10.
            content = np.memmap(path, np.uint8, "r") if size else np.zeros(0, np.uint8)
            misses = np.flatnonzero(content[begins[1:] - 1] != 10)
            if len(misses):
                raise _index_error(
                    path,
                    f"line {misses[0] + 2:,} says byte {begins[misses[0] + 1]:,}, where no row begins",
                )
        else:  # its lines are searched
            starts = [np.zeros(1, np.int64)]
            offset = 0
            with open(path, "rb") as stream:
                while chunk := stream.read(_CHUNK):
                    line_ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == 10)
                    starts.append(line_ends + (offset + 1))
                    offset += len(chunk)
            begins = np.concatenate(starts)
            begins = begins[begins < size]
        self._ends = np.append(begins, size)  # where the rows begin, and the end: int64 [N+1]

    @staticmethod
    def open_cached(path: Path) -> "TsvFile":
        """Return the file, opened once as long as it stays the same."""
        status = check_regular_file(path).stat()
        return _opened(path, status.st_size, status.st_mtime_ns)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def columns_and_whether_whole(self, number: int, max_bytes: int) -> tuple[list[bytes], bool]:
        """Return the columns in the first `max_bytes` bytes of a row, and whether these are all."""
        if not 0 <= number < len(self):
            raise DataError(
                "bad-row",
                f"`{self.path}` has {len(self):,} rows, there is no row {number:,}",
                "rows are counted from 0",
            )
        begin, end = self._ends[number : number + 2].tolist()
        with open(self.path, "rb") as stream:
            stream.seek(begin)
            line = stream.read(min(end - begin, max_bytes))
        is_whole = end - begin <= max_bytes
        if b"\n" in line.removesuffix(b"\n"):
            raise _index_error(self.path, f"row {number:,} is more than one line")
        return [column.strip() for column in line.split(b"\t")], is_whole

    def row(self, number: int) -> list[bytes]:
        """Return all columns of a row, without spaces around them."""
        return self.columns_and_whether_whole(number, 1 << 62)[0]


# By size and time, too: a file that is written again gets its index read again.
_opened = lru_cache(maxsize=16)(lambda path, _size, _modified: TsvFile(path))


def _index_files(path: Path) -> tuple[Path, Path]:
    return path.with_suffix(".lineidx"), path.with_suffix(".lineidx.8b")


def _index_error(path: Path, reason: str) -> DataError:
    index, binary = _index_files(path)
    return DataError(
        "bad-file",
        f"the index `{index}` does not fit `{path.name}`: {reason}",
        f"delete `{index.name}` and `{binary.name}`: without them the file is searched",
    )


_KNOWN_SETTINGS = (
    "img",
    "label",
    "caption",
    "caption_linelist",
    "caption_coco_format",
    "composite",
)
_MAX_PATH_BYTES = 1 << 16  # a row that is longer holds pictures, not a path

# (shard, row) -> numbers of its captions; None for all
CaptionNumbers = dict[tuple[int, int], list[int] | None]


class Shard(NamedTuple):
    """TSVs whose rows belong together."""

    images: TsvFile
    captions: TsvFile | None
    prefix: str  # of the keys: in a composite the name of the caption file, as SwinBERT has it


def read_swinbert(yaml: str | Path, bad_rows: BadRows | None = None) -> list[Clip]:
    """Return the clips of a SwinBERT data set.

    A row of the `img` file is a path, which is looked for from the YAML's folder and the folders
    above it, or holds frames; then the clip is a row of that file. Captions of one path that have
    different spans (`start`, `end`) are different clips. Where there is a `caption_linelist`, it
    says which rows and captions are read.
    """
    path = Path(yaml)
    bad_rows = BadRows() if bad_rows is None else bad_rows
    content = check_regular_file(path).read_bytes()
    try:
        settings = parse_yaml(content)
    except (YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            "bad-file",
            f"`{path}` is not valid YAML: {reason}",
            "restore it or make it again",
        ) from None
    if not isinstance(settings, dict) or not settings.get("img"):
        raise DataError(
            "missing-file",
            f"`{path}` names no `img` file",
            "a SwinBERT YAML has img, label, caption, caption_linelist",
        )
    for name in settings:
        if name not in _KNOWN_SETTINGS:
            bad_rows.note(f"`{path}`: `{name}` is not used")
    shards = _open_shards(path, settings)
    clips: dict[str, Clip] = {}
    linelist = _read_linelist(path, settings, shards, bad_rows)
    for (shard_index, row), caption_numbers in linelist.items():
        shard = shards[shard_index]
        try:
            for clip in _read_clips(shard, row, caption_numbers, path.parent):
                if clip.key in clips:
                    raise ValueError(f"the key `{clip.key}` is that of another clip")
                clips[clip.key] = clip
        except DataError:
            raise
        except ValueError as error:
            bad_rows.add(shard.images.path, row + 1, str(error))
    return list(clips.values())


def _open_shards(path: Path, settings: Mapping[str, Any]) -> list[Shard]:
    is_composite = bool(settings.get("composite"))
    image_names = _expand_file_names(path, settings.get("img"))
    caption_names = _expand_file_names(path, settings.get("caption"))
    if (caption_names and len(caption_names) != len(image_names)) or (
        len(image_names) > 1 and not is_composite
    ):
        raise DataError(
            "missing-file",
            f"`{path}` names {len(image_names)} img and {len(caption_names)} caption files",
            "one of each, or `composite: true` and as many of one as of the other",
        )
    shards = []
    for index, image_name in enumerate(image_names):
        captions = TsvFile(_file_beside_yaml(path, caption_names[index])) if caption_names else None
        prefix = ""
        if is_composite:
            prefix = f"{caption_names[index] if caption_names else image_name}_"
        shards.append(Shard(TsvFile(_file_beside_yaml(path, image_name)), captions, prefix))
    for shard in shards:
        if shard.captions is not None and len(shard.captions) != len(shard.images):
            rows = f"{len(shard.captions):,} rows, `{shard.images.path}` {len(shard.images):,}"
            raise DataError(
                "missing-file",
                f"`{shard.captions.path}` has {rows}",
                "row n of one belongs to row n of the other",
            )
    return shards


def _expand_file_names(path: Path, value: Any) -> list[str]:
    """Return a file, several, or what a file lists, as `composite` allows."""
    if not value:
        return []
    names = value if isinstance(value, list) else [value]
    if not all(isinstance(name, str) for name in names):
        raise DataError(
            "missing-file",
            f"`{path}`: {reprlib.repr(value)} names no files",
            "name files from the folder of the YAML",
        )
    if len(names) == 1 and not names[0].endswith(".tsv"):
        lines = _file_beside_yaml(path, names[0]).read_text(encoding="utf-8").splitlines()
        names = [line.strip() for line in lines if line.strip()]
    return names


def _file_beside_yaml(path: Path, name: str) -> Path:
    """Return the file that a YAML names, which lies beside it or below."""
    file = path.parent / str(name)
    if Path(str(name)).is_absolute() or ".." in Path(str(name)).parts:
        raise DataError(
            "missing-file",
            f"`{path}` names `{name}`, which leaves its folder",
            "put the files beside the YAML, or links to them",
        )
    if "\0" in str(name) or not file.is_file():
        raise DataError(
            "not-found",
            f"`{path}` names `{name}`: no file `{file}`",
            "paths begin at the folder of the YAML",
        )
    return file


def _read_linelist(
    path: Path,
    settings: Mapping[str, Any],
    shards: list[Shard],
    bad_rows: BadRows,
) -> CaptionNumbers:
    name = settings.get("caption_linelist")
    if not name:
        return {
            (index, row): None
            for index, shard in enumerate(shards)
            for row in range(len(shard.images))
        }
    file = _file_beside_yaml(path, name)
    width = 3 if settings.get("composite") else 2
    caption_numbers: dict[tuple[int, int], list[int]] = defaultdict(list)
    for line, text in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        fields = text.split("\t")
        if len(fields) != width or not all(field.strip().isdecimal() for field in fields):
            bad_rows.add(file, line, f"{text[:40]!r}, not {width} numbers with tabs between")
            continue
        shard, row, caption = map(int, fields if width == 3 else ["0", *fields])
        if shard >= len(shards) or row >= len(shards[shard].images):
            bad_rows.add(file, line, f"there is no row {row:,} of file {shard}")
            continue
        caption_numbers[shard, row].append(caption)
    return dict(caption_numbers)


def _read_clips(
    shard: Shard,
    row: int,
    caption_numbers: list[int] | None,
    folder: Path,
) -> Iterator[Clip]:
    columns, is_complete = shard.images.columns_and_whether_whole(row, _MAX_PATH_BYTES)
    row_key = validate_key(columns[0].decode())
    records = (
        []
        if shard.captions is None
        else _read_captions(shard.captions, row, row_key, caption_numbers)
    )
    if not (is_complete and columns[0] == columns[-1]):  # the row holds frames, not a path
        captions = parse_captions([record.get("caption") for record in records])
        yield Clip(key=shard.prefix + row_key, source=shard.images.path, row=row, captions=captions)
        return
    video = find_file_above(folder, [row_key])
    row_span: Span = (None, None)
    if video is None:  # TVC's rows have `_start_end`, in seconds, behind the name of an episode
        stem, *times = row_key.rsplit("_", 2)
        video = find_file_above(folder, [stem]) if len(times) == 2 else None
        if video is None:
            raise ValueError(f"no file `{row_key}` in `{folder}` or a folder above it")
        row_span = parse_span(*map(float, times))
    groups: dict[tuple[str | None, Span], list[Any]] = defaultdict(list)
    for record in records:
        name = record.get("key")
        span = parse_span(record.get("start"), record.get("end"))
        groups[None if name is None else validate_key(name), span].append(record.get("caption"))
    for (name, span), texts in (groups or {(None, (None, None)): []}).items():
        start, end = row_span if span == (None, None) else span
        key = name or row_key
        if name is None and len(groups) > 1:
            key = clip_key(row_key, start, end)
        yield Clip(
            key=shard.prefix + key,
            source=video,
            start=start,
            end=end,
            captions=parse_captions(texts),
        )


def _read_captions(
    file: TsvFile,
    row: int,
    key: str,
    caption_numbers: list[int] | None,
) -> list[dict[str, Any]]:
    """Return the captions of a row, or those that the linelist names."""
    columns = file.row(row)
    if columns[0].decode() != key:
        raise ValueError(f"its key is `{key}`, in `{file.path.name}` it is `{columns[0].decode()}`")
    try:
        records = json.loads(columns[-1])
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"`{file.path.name}` holds no JSON here: {error}") from None
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise ValueError(f"`{file.path.name}` holds no list of objects here")
    if caption_numbers is None:
        return records
    if missing := [number for number in caption_numbers if number >= len(records)]:
        raise ValueError(f"the linelist asks for caption {missing[0]}, `{key}` has {len(records)}")
    return [records[number] for number in caption_numbers]
