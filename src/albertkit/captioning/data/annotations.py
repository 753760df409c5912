"""Captions in one JSON: MSR-VTT's (`videos`, `sentences`) and COCO's (`images`, `annotations`)."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from albertkit.captioning.data.clip import Clip
from albertkit.captioning.data.fields import VIDEO_ENDINGS, as_captions, as_key, find_above
from albertkit.errors import DataError
from albertkit.files import read_json
from albertkit.tasks.faults import Faults


def read_annotations(path: Path, faults: Faults) -> dict[str, list[Clip]]:
    """Read such a file.

    MSR-VTT names videos by `video_id` and the split of each: the video is the one file below the JSON's folder with that
    name. Its `start time` and `end time` count in films that the files were cut from, and are not used. COCO names files
    (`file_name`), looked for from the JSON's folder and those above it.

    Args:
        path: The JSON.
        faults: Told of videos and captions that cannot be used, with the number of the record, from 1.

    Returns:
        Split to clips, in the order of the file; "" where the file names no splits.

    Raises:
        DataError: broken-json, unknown-layout; bad-row, if the faults are to stop.
    """
    content = read_json(path, "annotations")
    lists = (
        {name: value for name, value in content.items() if isinstance(value, list)} if isinstance(content, dict) else {}
    )
    if {"videos", "sentences"} <= lists.keys():
        videos, sentences, name, owner = lists["videos"], lists["sentences"], "video_id", "video_id"
        files = _by_stem(path.parent)
    elif {"images", "annotations"} <= lists.keys():
        videos, sentences, name, owner, files = lists["images"], lists["annotations"], "id", "image_id", None
    else:
        raise DataError(
            "unknown-layout", f"`{path}` has neither videos and sentences (MSR-VTT) nor images and annotations (COCO)",
            "write a manifest instead: one JSON object a line with video and captions",
        )  # fmt: skip
    known = {str(video[name]) for video in videos if isinstance(video, dict) and video.get(name) is not None}
    captions = _captions(path, sentences, owner, known, faults)
    splits: dict[str, list[Clip]] = defaultdict(list)
    seen: set[str] = set()
    for number, video in enumerate(videos, 1):
        try:
            key = as_key(str(_get(video, name)))
            source = _file(path.parent, str(video.get("file_name", key)), files)
            if key in seen:
                raise ValueError(f"`{key}` is named twice")
        except ValueError as error:
            faults.add(path, number, str(error), where=f"video {number:,}")
            continue
        seen.add(key)
        split = video.get("split", "") if files is not None else ""
        splits[str(split)].append(Clip(key=key, source=source, captions=tuple(captions[key])))
    return dict(splits)


def _captions(path: Path, sentences: list[Any], owner: str, known: set[str], faults: Faults) -> dict[str, list[str]]:
    captions: dict[str, list[str]] = defaultdict(list)
    for number, sentence in enumerate(sentences, 1):
        try:
            video = str(_get(sentence, owner))
            if video not in known:
                raise ValueError(f"there is no video `{video}`")
            captions[video] += as_captions([sentence.get("caption")])
        except ValueError as error:
            faults.add(path, number, str(error), where=f"caption {number:,}")
    return captions


def _get(record: Any, name: str) -> Any:
    if not isinstance(record, dict) or record.get(name) is None:
        raise ValueError(f"it has no `{name}`")
    return record[name]


def _by_stem(folder: Path) -> dict[str, list[Path]]:
    """The videos below a folder by name without ending."""
    files: dict[str, list[Path]] = defaultdict(list)
    for file in sorted(folder.rglob("*")):
        if file.suffix.lower() in VIDEO_ENDINGS:
            files[file.stem].append(file)
    return files


def _file(folder: Path, name: str, files: dict[str, list[Path]] | None) -> Path:
    if files is None:
        if (found := find_above(folder, [name])) is None:
            raise ValueError(f"no file `{name}` in `{folder}` or a folder above it")
        return found
    if len(files.get(name, [])) != 1:
        there = " and ".join(f"`{file}`" for file in files.get(name, [])) or "none"
        raise ValueError(f"below `{folder}` one video should be called `{name}`, there is {there}")
    return files[name][0]
