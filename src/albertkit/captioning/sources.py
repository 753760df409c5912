"""`read_splits`: manifests, folders, SwinBERT's files and published annotations, by what lies there."""

import re
from collections import defaultdict
from pathlib import Path
from typing import TypeVar

from albertkit.captioning.annotations import LAYOUTS, MSVD_TEXT, is_annotations, read_annotations
from albertkit.captioning.clips import (
    VIDEO_ENDINGS,
    Clip,
    parse_captions,
    read_manifest,
    validate_key,
)
from albertkit.captioning.swinbert_files import read_swinbert
from albertkit.errors import DataError, suggest_existing_path
from albertkit.tables.bad_rows import BadRows, pluralize
from albertkit.tables.files import check_no_broken_links
from albertkit.tables.layouts import check_one_file
from albertkit.tables.records import SPLIT_NAMES, canonical_split

_SUFFIXES = (".jsonl", ".yaml", ".yml")
_T = TypeVar("_T")


def read_splits(
    path: str | Path,
    split: str | None = None,
    bad_rows: BadRows | None = None,
) -> dict[str, list[Clip]]:
    """Read every split, or one: name to clips; clips of no named split are called train, or as `split` says.

    Args:
        path: A manifest (`.jsonl`), a SwinBERT YAML, captions as MSR-VTT, COCO, VATEX, MSVD,
            YouCook2 or TVC publish them, a folder of videos with their captions beside them
            (`clip.txt` of `clip.mp4`, one a line); or a folder with one of these for each split:
            train, dev (or val), test.
        split: Which one of them. Default: all.
        bad_rows: Collects what is no clip. Default: stop at the first.
    """
    path = Path(path)
    bad_rows = BadRows() if bad_rows is None else bad_rows
    if not path.exists():
        raise DataError(
            "not-found",
            f"no such file or folder: `{path}`",
            suggest_existing_path(path, "check the path"),
        )
    annotations = _published_caption_files(path)
    if annotations:
        clips_by_split: dict[str, list[Clip]] = {}
        file_of_split: dict[str, Path] = {}
        for file in annotations:
            for file_split, clips in read_annotations(file, bad_rows).items():
                # A file that names no split is called as its own name says.
                name = (
                    canonical_split(file_split)
                    if file_split
                    else _split_from_filename(file) or split or "train"
                )
                if name in clips_by_split:
                    raise DataError(
                        "ambiguous",
                        f"`{file_of_split[name]}` and `{file}` both hold clips of {name}",
                        "name the file itself",
                    )
                clips_by_split[name] = clips
                file_of_split[name] = file
        if not any(clips_by_split.values()):
            raise _no_clips_error(path, "any split", bad_rows)
        clips_by_split = _select_split(path, clips_by_split, split)
    else:
        paths = _split_paths(path) if path.is_dir() else {}
        if not paths:
            paths = {_split_from_filename(path) or split or "train": path}
        paths = _select_split(path, paths, split)
        clips_by_split = {}
        for name, split_path in paths.items():
            suffix = split_path.suffix.lower()
            if split_path.is_dir():
                clips_by_split[name] = read_video_folder(split_path, bad_rows)
            elif suffix == ".jsonl":
                clips_by_split[name] = read_manifest(split_path, bad_rows)
            elif suffix in (".yaml", ".yml"):
                clips_by_split[name] = read_swinbert(split_path, bad_rows)
            else:
                raise DataError(
                    "missing-file",
                    f"`{split_path}` is not a supported data set of clips",
                    f"name a .jsonl, a SwinBERT .yaml, captions of {LAYOUTS}, or a folder",
                )
    for name, clips in clips_by_split.items():
        if not clips:
            raise _no_clips_error(path, name, bad_rows)
    return clips_by_split


def _no_clips_error(path: Path, split: str, bad_rows: BadRows) -> DataError:
    first = next((f"; the first: {row.where}: {row.reason}" for row in bad_rows.rows), "")
    counts = f" ({len(bad_rows.rows):,} bad rows)" if len(bad_rows.rows) > 1 else ""
    return DataError(
        "empty",
        f"`{path}` has no clip that can be used for {split}{counts}{first}",
        "correct the rows" if first else "name data with clips",
    )


def _published_caption_files(path: Path) -> list[Path]:
    """Return the file, or those of a folder, that hold published captions; none where there are files for each split."""
    if path.is_file():
        suffix = path.suffix.lower()
        is_published = suffix in (".json", ".csv", ".txt") or (
            suffix == ".jsonl" and is_annotations(path)
        )
        return [path] if is_published else []
    if any(split_path.is_file() for split_path in _split_paths(path).values()):
        return []
    suffixes = (".json", ".jsonl", ".csv")  # other texts hold the captions of a video beside them
    files = [
        file
        for file in sorted(path.iterdir())
        if file.suffix.lower() in suffixes or file.name == MSVD_TEXT
    ]
    return [file for file in files if file.is_file() and is_annotations(file)]


def _select_split(path: Path, splits: dict[str, _T], split: str | None) -> dict[str, _T]:
    """Return one split, or all where none is named."""
    if split is None:
        return splits
    name = canonical_split(split)
    if name not in splits:
        raise DataError(
            "missing-file",
            f"`{path}` has no {split}, only {', '.join(splits) or 'nothing'}",
            "name one of these",
        )
    return {name: splits[name]}


def _split_from_filename(path: Path) -> str | None:
    """Return the split that a name tells: `val.jsonl`, and also `val_32frames.yaml` and `vatex_validation_v1.0.json`."""
    parts = [path.stem] if path.is_dir() else re.split(r"[-_. ]", path.stem)
    return next((name for name in map(canonical_split, parts) if name in SPLIT_NAMES), None)


def _split_paths(folder: Path) -> dict[str, Path]:
    """Return the file or folder that a folder has for each split."""
    check_no_broken_links(folder)
    paths: dict[str, Path] = {}
    for name, stems in SPLIT_NAMES.items():
        files = [folder / f"{stem}{suffix}" for stem in stems for suffix in _SUFFIXES]
        candidates = [
            file
            for file in files
            if file.is_file() and not (file.suffix == ".jsonl" and is_annotations(file))
        ]
        if not candidates:
            candidates = [folder / stem for stem in stems if (folder / stem).is_dir()]
        if candidates:
            paths[name] = check_one_file(folder, name, candidates)
    return paths


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
        text = stem.with_suffix(".txt")
        has_text = text in texts
        try:
            if len(files) > 1:
                raise ValueError(f"{' and '.join(file.name for file in files)} have one name")
            key = validate_key(stem.relative_to(folder).as_posix())
            captions: tuple[str, ...] = ()
            if has_text:
                lines = text.read_bytes().decode("utf-8-sig").split("\n")
                filled_lines = [line for line in lines if line.strip()]
                if not filled_lines:
                    raise ValueError("no caption")
                captions = parse_captions(filled_lines)
            clips.append(Clip(key=key, source=files[0], captions=captions))
        except UnicodeDecodeError:
            bad_rows.add(text, 1, "bytes that are not UTF-8")
        except ValueError as error:
            bad_rows.add(text if has_text else files[0], 1, str(error))
    if clips and not any(clip.captions for clip in clips):
        bad_rows.note(
            f"`{folder}`: no text lies beside a video, so none of the {pluralize(len(clips), 'clip')} has a caption"
        )
    return clips
