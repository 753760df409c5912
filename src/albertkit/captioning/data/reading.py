"""`read_clips`: manifests, folders, SwinBERT's files and published annotations, by what lies there."""

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from albertkit.captioning.data.annotations import LAYOUTS, is_annotations, read_annotations
from albertkit.captioning.data.caption_tables import MSVD_TEXT
from albertkit.captioning.data.clip import VIDEO_ENDINGS, Clip, parse_captions, validate_key
from albertkit.captioning.data.manifest import read_manifest
from albertkit.captioning.data.swinbert_files import read_swinbert
from albertkit.data.bad_rows import BadRows, counted, first_of
from albertkit.errors import DataError, near_path
from albertkit.frame.result import Result
from albertkit.frame.section import Facts, Section

SPLITS = {
    "train": ("train", "training"), "dev": ("dev", "val", "valid", "validation", "validate"), "test": ("test", "testing"),
}  # fmt: skip
_ENDINGS = (".jsonl", ".yaml", ".yml")
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class ReadClips(Result):
    """Counts of the clips of a data set: used, skipped.

    Attributes:
        clips: Number of usable clips by split.
        captions: Number of their captions.
        left_out: Rows of the data that are no clips.
        notes: What was passed over in files.
        seconds: It took.
    """

    clips: dict[str, int]
    captions: int
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def warnings(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the notes, and the first rows that were left out."""
        return (*self.notes, *first_of([f"left out: {row}" for row in self.left_out], self.listed))

    @property
    def listed(self) -> str:
        """Return where everything that was left out is listed."""
        return "--json lists all"

    def facts(self) -> dict[str, Any]:
        """Return what a terminal shows."""
        splits = [f"{name} {count:,}" for name, count in self.clips.items()]
        return {**vars(self), "clips": splits, "left_out": len(self.left_out) or None, "notes": None}

    def sections(self) -> list[Section]:
        """Return the counts."""
        return [Facts(self.facts())]


def read_clips(path: str | Path, split: str | None = None, bad_rows: BadRows | None = None) -> list[Clip]:
    """Read the clips of one split.

    Args:
        path: A manifest (`.jsonl`), a SwinBERT YAML, captions as MSR-VTT, COCO, VATEX, MSVD, YouCook2 or TVC publish them, a
            folder of videos with their captions beside them (`clip.txt` of `clip.mp4`, one a line); or a folder with one of
            these for each split: train, dev (or val), test.
        split: Which one of them. Default: there is one only.
        bad_rows: Collects what is no clip. Default: stop at the first.
    """
    splits = read_splits(path, split, bad_rows)
    if len(splits) > 1:
        raise DataError("ambiguous", f"`{path}` has {', '.join(splits)}", f"name one, for example {next(iter(splits))}")
    return next(iter(splits.values()))


def read_splits(path: str | Path, split: str | None = None, bad_rows: BadRows | None = None) -> dict[str, list[Clip]]:
    """Read every split, or one: name to clips; clips of no named split are called train, or as `split` says."""
    place, bad_rows = Path(path), BadRows() if bad_rows is None else bad_rows
    if not place.exists():
        raise DataError("not-found", f"no such file or folder: `{place}`", near_path(place, "check the path"))
    annotations = _annotations(place)
    if annotations:
        found = _annotated(annotations, split, bad_rows)
        if not any(found.values()):
            raise _nothing(place, "any split", bad_rows)
        found = _one(place, found, split)
    else:
        places = {_named_by(place) or split or "train": place} if place.is_file() else _places(place, split)
        found = {name: _read(part, bad_rows) for name, part in _one(place, places, split).items()}
    for name, clips in found.items():
        if not clips:
            raise _nothing(place, name, bad_rows)
    return found


def _nothing(place: Path, split: str, bad_rows: BadRows) -> DataError:
    first = next((f"; the first: {row.where}: {row.reason}" for row in bad_rows.found), "")
    counts = f" ({len(bad_rows.found):,} bad rows)" if len(bad_rows.found) > 1 else ""
    fact = f"`{place}` has no clip that can be used for {split}{counts}{first}"
    return DataError("empty", fact, "correct the rows" if first else "name data with clips")


def _annotations(place: Path) -> list[Path]:
    """Return the file, or those of a folder, that hold published captions; none where there are files for each split."""
    if place.is_file():
        ending = place.suffix.lower()
        published = ending in (".json", ".csv", ".txt") or (ending == ".jsonl" and is_annotations(place))
        return [place] if published else []
    if any(part.is_file() for part in _by_split(place).values()):
        return []
    endings = (".json", ".jsonl", ".csv")  # other texts hold the captions of a video beside them
    files = [file for file in sorted(place.iterdir()) if file.suffix.lower() in endings or file.name == MSVD_TEXT]
    return [file for file in files if file.is_file() and is_annotations(file)]


def _annotated(files: list[Path], split: str | None, bad_rows: BadRows) -> dict[str, list[Clip]]:
    """Return the splits of one file or several; a file that names none is called as its own name says."""
    found: dict[str, list[Clip]] = {}
    origin: dict[str, Path] = {}
    for file in files:
        for said, clips in read_annotations(file, bad_rows).items():
            name = _standard(said) if said else _named_by(file) or split or "train"
            if name in found:
                raise DataError(
                    "ambiguous", f"`{origin[name]}` and `{file}` both hold clips of {name}", "name the file itself"
                )
            found[name], origin[name] = clips, file
    return found


def _one(place: Path, found: dict[str, _T], split: str | None) -> dict[str, _T]:
    if split is None:
        return found
    if _standard(split) not in found:
        raise DataError(
            "missing-file", f"`{place}` has no {split}, only {', '.join(found) or 'nothing'}", "name one of these"
        )
    return {_standard(split): found[_standard(split)]}


def _standard(name: str) -> str:
    """Return the standard name of a split: dev for val, validate and so on."""
    return next((split for split, names in SPLITS.items() if name in names), name)


def _named_by(place: Path) -> str | None:
    """Return the split that a name tells: `val.jsonl`, and also `val_32frames.yaml` and `vatex_validation_v1.0.json`."""
    parts = [place.stem] if place.is_dir() else re.split(r"[-_. ]", place.stem)
    return next((name for name in map(_standard, parts) if name in SPLITS), None)


def _places(folder: Path, split: str | None) -> dict[str, Path]:
    """Return the file or folder of each split; the folder itself where its own videos are the data."""
    return _by_split(folder) or {_named_by(folder) or split or "train": folder}


def _by_split(folder: Path) -> dict[str, Path]:
    """Return the file or folder that a folder has for each split."""
    found: dict[str, Path] = {}
    for name, stems in SPLITS.items():
        files = [folder / f"{stem}{ending}" for stem in stems for ending in _ENDINGS]
        there = [file for file in files if file.is_file() and not (file.suffix == ".jsonl" and is_annotations(file))]
        there = there or [folder / stem for stem in stems if (folder / stem).is_dir()]
        if len(there) > 1:
            listed = " and ".join(f"`{place.name}`" for place in there)
            raise DataError("ambiguous", f"`{folder}` has {listed} for {name}", "keep one, or name the file itself")
        if there:
            found[name] = there[0]
    return found


def _read(place: Path, bad_rows: BadRows) -> list[Clip]:
    if place.is_dir():
        return read_video_folder(place, bad_rows)
    if place.suffix.lower() == ".jsonl":
        return read_manifest(place, bad_rows)
    if place.suffix.lower() in (".yaml", ".yml"):
        return read_swinbert(place, bad_rows)
    fact = f"`{place}` is not a supported data set of clips"
    raise DataError("missing-file", fact, f"name a .jsonl, a SwinBERT .yaml, captions of {LAYOUTS}, or a folder")


def read_video_folder(folder: Path, bad_rows: BadRows) -> list[Clip]:
    """Read the videos of a folder and those below, sorted by path; the captions of `a.mp4` are the lines of `a.txt` beside it."""
    videos: dict[Path, list[Path]] = defaultdict(list)
    texts: set[Path] = set()
    for file in sorted(folder.rglob("*")):
        if file.suffix.lower() in VIDEO_ENDINGS and not file.name.startswith("."):
            videos[file.with_suffix("")].append(file)
        elif file.suffix == ".txt":
            texts.add(file)
    for text in sorted(texts):
        if text.with_suffix("") not in videos:
            bad_rows.add(text, 1, "captions without a video of that name beside them")
    clips = []
    for stem, files in videos.items():
        beside = stem.with_suffix(".txt") if stem.with_suffix(".txt") in texts else None
        try:
            if len(files) > 1:
                raise ValueError(f"{' and '.join(file.name for file in files)} have one name")
            key = validate_key(stem.relative_to(folder).as_posix())
            clips.append(Clip(key=key, source=files[0], captions=() if beside is None else _lines(beside)))
        except ValueError as error:
            bad_rows.add(beside or files[0], 1, str(error))
    if clips and not any(clip.captions for clip in clips):
        bad_rows.note(
            f"`{folder}`: no text lies beside a video, so none of the {counted(len(clips), 'clip')} has a caption"
        )
    return clips


def _lines(text: Path) -> tuple[str, ...]:
    try:
        captions = [line for line in text.read_bytes().decode("utf-8-sig").split("\n") if line.strip()]
    except UnicodeDecodeError:
        raise ValueError("bytes that are not UTF-8") from None
    if not captions:
        raise ValueError("no caption")
    return parse_captions(captions)
