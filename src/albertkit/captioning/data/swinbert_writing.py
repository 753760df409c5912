"""Clips as SwinBERT's files, which its own code reads."""

import base64
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from albertkit.captioning.data.clip import FEATURE_ENDINGS, Clip, spanned
from albertkit.captioning.data.frames import frames_of
from albertkit.captioning.data.manifest import add_key
from albertkit.captioning.data.tsv import TsvFile, write_tsv
from albertkit.captioning.video.sampling import FrameSampling
from albertkit.errors import DataError
from albertkit.files import atomic_file

TRAIN = "train"
_LINELIST = "caption.linelist.tsv"
_JPEG_QUALITY = 95  # OpenCV's, with which SwinBERT wrote them

Row = tuple[str, list[Clip]]


def write_swinbert(clips: Iterable[Clip], folder: str | Path, split: str, frames: FrameSampling | None = None) -> Path:
    """Write `{split}.img.tsv`, `.caption.tsv`, `.label.tsv`, `.caption_coco_format.json`, the YAML and, for train, the linelist.

    SwinBERT takes a row for a path where its key is the path, so the key of a video is its path, in full; the clip's own key
    and its span stand with the captions, where SwinBERT passes over the key. Clips of one video share a row, in train only:
    evaluation takes one caption a row for its span and scores it against all. The linelist (`.caption.linelist.tsv`) makes a
    training example of every caption; in evaluation SwinBERT would decode a clip once for each, and its scorer stops at the
    repeated keys.

    Args:
        clips: The clips, each with captions.
        folder: Where to write; made if missing.
        split: train, val or test.
        frames: Write these frames as JPEGs instead of paths. Rows of frames are copied as they are without it.

    Returns:
        The YAML, written last.
    """
    rows = swinbert_rows(clips, split, with_frames=frames is not None)
    base = Path(folder) / f"{split}.caption"
    captions = [
        (name, [record for clip in members for record in _records(name, clip, members)]) for name, members in rows
    ]
    write_tsv(base.with_name(f"{split}.img.tsv"), (_image(name, members[0], frames) for name, members in rows))
    for kind in ("caption", "label"):
        write_tsv(base.with_name(f"{split}.{kind}.tsv"), ((name, json.dumps(records)) for name, records in captions))
    names = {"img": "img.tsv", "label": "label.tsv", "caption": "caption.tsv"}
    names |= {"caption_coco_format": "caption_coco_format.json"}
    linelist = base.with_name(f"{split}.{_LINELIST}")
    if split == TRAIN:
        lines = [f"{row}\t{number}" for row, (_, records) in enumerate(captions) for number in range(len(records))]
        with atomic_file(linelist, "w") as stream:
            stream.write("\n".join(lines))
        names["caption_linelist"] = _LINELIST
    with atomic_file(base.with_name(f"{split}.caption_coco_format.json"), "w") as stream:
        json.dump(_coco(captions), stream)
    target = base.with_name(f"{split}.yaml")
    with atomic_file(target, "w") as stream:
        yaml.dump({name: f"{split}.{ending}" for name, ending in names.items()}, stream)
    return target


def swinbert_rows(clips: Iterable[Clip], split: str, with_frames: bool) -> list[Row]:
    """Return the key of each row and the clips in it."""
    rows: dict[str, list[Clip]] = defaultdict(list)
    keys: set[str] = set()
    for clip in clips:
        if not clip.captions:
            raise DataError(
                "bad-label",
                f"the clip `{clip.key}` has no caption",
                "SwinBERT needs a caption for every clip: leave this clip out or add a caption",
            )
        if clip.source.suffix.lower() in FEATURE_ENDINGS:
            raise DataError(
                "not-expressible", f"the clip `{clip.key}` is features", "SwinBERT reads videos and frames only"
            )
        add_key(keys, clip)
        rows[clip.key if with_frames or clip.row is not None else str(clip.source.absolute())].append(clip)
    if not rows:
        raise DataError("empty", "there are no clips to write", "name data with clips")
    if split != TRAIN:
        _check_unshared(list(rows.items()), split)
    return list(rows.items())


def _check_unshared(rows: Sequence[Row], split: str) -> None:
    """Refuse clips that share a row, which SwinBERT's evaluation takes for one clip."""
    for name, members in rows:
        if len(members) > 1:
            keys = " and ".join(f"`{clip.key}`" for clip in members[:2])
            raise DataError(
                "not-expressible",
                f"{len(members)} clips of {split} are parts of `{name}`, among them {keys}: SwinBERT's evaluation knows a "
                "video by its path, and would caption it once and score that against the captions of all its parts",
                "write frames, which give each clip a row and a key of its own: add --frames 32",
            )


def _records(name: str, clip: Clip, members: Sequence[Clip]) -> list[dict[str, Any]]:
    """Return captions with what SwinBERT keeps beside them, and the key if reading would give another one."""
    read_as = name if len(members) < 2 else spanned(name, clip.start, clip.end)
    beside = {"start": clip.start, "end": clip.end, "key": clip.key if clip.key != read_as else None}
    return [
        {"caption": text} | {key: value for key, value in beside.items() if value is not None} for text in clip.captions
    ]


def _image(name: str, clip: Clip, frames: FrameSampling | None) -> Sequence[bytes | str]:
    if frames is None and clip.row is None:
        return name, name
    if frames is None:
        return name, *TsvFile.opened(clip.source).row(clip.row or 0)[1:]
    shape = json.dumps({"class": -1, "width": frames.size, "height": frames.size})
    return name, shape, *_jpegs(frames_of(clip, frames).pixels)


def _jpegs(pixels: Any) -> Iterator[bytes]:
    from PIL import Image

    for picture in pixels:
        stream = io.BytesIO()
        Image.fromarray(picture).save(stream, "JPEG", quality=_JPEG_QUALITY)
        yield base64.b64encode(stream.getvalue())


def _coco(captions: Sequence[tuple[str, Sequence[dict[str, Any]]]]) -> dict[str, Any]:
    texts = [(name, record["caption"]) for name, records in captions for record in records]
    return {
        "annotations": [{"image_id": name, "caption": text, "id": number} for number, (name, text) in enumerate(texts)],
        "images": [{"id": name, "file_name": name} for name, _ in captions],
        "type": "captions",
        "info": "dummy",
        "licenses": "dummy",
    }
