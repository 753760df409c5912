"""SwinBERT's data sets: a YAML that names TSVs of pictures and captions. Source: src/datasets/vision_language_tsv.py, prepro/."""

import json
import reprlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from albertkit.captioning.data.clip import Clip, as_captions, as_key, as_span, find_above, spanned
from albertkit.captioning.data.tsv import TsvFile
from albertkit.data.bad_rows import BadRows
from albertkit.errors import DataError
from albertkit.files import plain_file

_READ = ("img", "label", "caption", "caption_linelist", "caption_coco_format", "composite")
_HEAD = 1 << 16  # a row that is longer holds pictures, not a path

Samples = dict[tuple[int, int], list[int] | None]  # (shard, row) -> numbers of its captions; None for all


class Shard(NamedTuple):
    """TSVs whose rows belong together."""

    images: TsvFile
    captions: TsvFile | None
    prefix: str  # of the keys: in a composite the name of the caption file, as SwinBERT has it


def read_swinbert(yaml: str | Path, bad_rows: BadRows | None = None) -> list[Clip]:
    """Return the clips of a SwinBERT data set.

    A row of the `img` file is a path, which is looked for from the YAML's folder and the folders above it, or holds frames; then
    the clip is a row of that file. Captions of one path that have different spans (`start`, `end`) are different clips. Where
    there is a `caption_linelist`, it says which rows and captions are read.
    """
    path, bad_rows = Path(yaml), BadRows() if bad_rows is None else bad_rows
    settings = _settings(path)
    for name in settings:
        if name not in _READ:
            bad_rows.note(f"`{path}`: `{name}` is not used")
    shards = _shards(path, settings)
    clips: dict[str, Clip] = {}
    for (shard, row), numbers in _samples(path, settings, shards, bad_rows).items():
        try:
            for clip in _clips(shards[shard], row, numbers, path.parent):
                if clip.key in clips:
                    raise ValueError(f"the key `{clip.key}` is that of another clip")
                clips[clip.key] = clip
        except DataError:
            raise
        except ValueError as error:
            bad_rows.add(shards[shard].images.path, row + 1, str(error))
    return list(clips.values())


def _settings(path: Path) -> dict[str, Any]:
    try:
        settings = yaml.safe_load(plain_file(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise DataError("bad-file", f"`{path}` is not valid YAML: {reason}", "restore it or make it again") from None
    if not isinstance(settings, dict) or not settings.get("img"):
        fact = f"`{path}` names no `img` file"
        raise DataError("missing-file", fact, "a SwinBERT YAML has img, label, caption, caption_linelist")
    return settings


def _shards(path: Path, settings: Mapping[str, Any]) -> list[Shard]:
    images, captions = (_named(path, settings.get(name)) for name in ("img", "caption"))
    if (captions and len(captions) != len(images)) or (len(images) > 1 and not settings.get("composite")):
        fact = f"`{path}` names {len(images)} img and {len(captions)} caption files"
        raise DataError("missing-file", fact, "one of each, or `composite: true` and as many of one as of the other")
    shards = []
    for number, image in enumerate(images):
        caption = TsvFile(_file(path, captions[number])) if captions else None
        prefix = f"{captions[number] if captions else image}_" if settings.get("composite") else ""
        shards.append(Shard(TsvFile(_file(path, image)), caption, prefix))
    for shard in shards:
        if shard.captions is not None and len(shard.captions) != len(shard.images):
            rows = f"{len(shard.captions):,} rows, `{shard.images.path}` {len(shard.images):,}"
            raise DataError(
                "missing-file", f"`{shard.captions.path}` has {rows}", "row n of one belongs to row n of the other"
            )
    return shards


def _named(path: Path, value: Any) -> list[str]:
    """Return a file, several, or what a file lists, as `composite` allows."""
    if not value:
        return []
    names = value if isinstance(value, list) else [value]
    if not all(isinstance(name, str) for name in names):
        fact = f"`{path}`: {reprlib.repr(value)} names no files"
        raise DataError("missing-file", fact, "name files from the folder of the YAML")
    if len(names) == 1 and not names[0].endswith(".tsv"):
        names = [
            line.strip() for line in _file(path, names[0]).read_text(encoding="utf-8").splitlines() if line.strip()
        ]
    return names


def _file(path: Path, name: str) -> Path:
    file = path.parent / str(name)
    if Path(str(name)).is_absolute() or ".." in Path(str(name)).parts:
        fact = f"`{path}` names `{name}`, which leaves its folder"
        raise DataError("missing-file", fact, "put the files beside the YAML, or links to them")
    if "\0" in str(name) or not file.is_file():
        raise DataError(
            "not-found", f"`{path}` names `{name}`: no file `{file}`", "paths begin at the folder of the YAML"
        )
    return file


def _samples(path: Path, settings: Mapping[str, Any], shards: list[Shard], bad_rows: BadRows) -> Samples:
    name = settings.get("caption_linelist")
    if not name:
        return {(number, row): None for number, shard in enumerate(shards) for row in range(len(shard.images))}
    file, width = _file(path, name), 3 if settings.get("composite") else 2
    chosen: dict[tuple[int, int], list[int]] = defaultdict(list)
    for line, text in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        fields = text.split("\t")
        if len(fields) != width or not all(field.strip().isdecimal() for field in fields):
            bad_rows.add(file, line, f"{text[:40]!r}, not {width} numbers with tabs between")
            continue
        shard, row, caption = map(int, fields if width == 3 else ["0", *fields])
        if shard >= len(shards) or row >= len(shards[shard].images):
            bad_rows.add(file, line, f"there is no row {row:,} of file {shard}")
            continue
        chosen[shard, row].append(caption)
    return dict(chosen)


def _clips(shard: Shard, row: int, numbers: list[int] | None, folder: Path) -> Iterator[Clip]:
    columns, is_whole = shard.images.head(row, _HEAD)
    key = as_key(columns[0].decode())
    records = [] if shard.captions is None else _captions(shard.captions, row, key)
    if numbers is not None and shard.captions is not None:
        if missing := [number for number in numbers if number >= len(records)]:
            raise ValueError(f"the linelist asks for caption {missing[0]}, `{key}` has {len(records)}")
        records = [records[number] for number in numbers]
    if is_whole and columns[0] == columns[-1]:
        source, suffix = _video(folder, key)
        spans: dict[tuple[Any, Any, Any], list[Any]] = defaultdict(list)
        for record in records:
            spans[record.get("key"), record.get("start"), record.get("end")].append(record.get("caption"))
        for (name, start, end), captions in (spans or {(None, None, None): []}).items():
            start, end = as_span(start, end) if (start, end) != (None, None) else suffix
            own = as_key(name) if name is not None else key if len(spans) < 2 else spanned(key, start, end)
            yield Clip(key=shard.prefix + own, source=source, start=start, end=end, captions=as_captions(captions))
    else:
        texts = as_captions([record.get("caption") for record in records])
        yield Clip(key=shard.prefix + key, source=shard.images.path, row=row, captions=texts)


def _captions(file: TsvFile, row: int, key: str) -> list[dict[str, Any]]:
    columns = file.row(row)
    if columns[0].decode() != key:
        raise ValueError(f"its key is `{key}`, in `{file.path.name}` it is `{columns[0].decode()}`")
    try:
        records = json.loads(columns[-1])
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"`{file.path.name}` holds no JSON here: {error}") from None
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise ValueError(f"`{file.path.name}` holds no list of objects here")
    return records


def _video(folder: Path, name: str) -> tuple[Path, tuple[float | None, float | None]]:
    """Return the video that a row names; TVC's names have `_start_end` behind them."""
    stem, *times = name.rsplit("_", 2)
    video = find_above(folder, [name])
    if video is not None:
        return video, (None, None)
    if len(times) == 2 and (video := find_above(folder, [stem])) is not None:
        return video, as_span(*map(float, times))
    raise ValueError(f"no file `{name}` in `{folder}` or a folder above it")
