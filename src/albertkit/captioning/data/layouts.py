"""Published layouts of captions: MSR-VTT, COCO, VATEX, MSVD, YouCook2 and TVC, read to one form of record."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from albertkit.captioning.data.clip import as_captions, spanned

LAYOUTS = "MSR-VTT, COCO, VATEX, MSVD, YouCook2 or TVC"
_KINETICS_SPAN = re.compile(r"(.+)_(\d{6})_(\d{6})")  # VATEX's videoID: the video, and the seconds of the clip

Report = Callable[[int, str, str], None]  # number of the record from 1, what it is called, what is wrong


class Place(NamedTuple):
    """A clip's file, named with or without its ending, and its span in seconds."""

    name: str
    start: Any = None
    end: Any = None


class Record(NamedTuple):
    """One clip as a data set names it."""

    number: int
    where: str
    split: str
    key: str
    places: tuple[Place, ...]  # the first that exists is taken
    captions: list[str]


def records(content: Any, report: Report, note: Callable[[str], None]) -> Iterator[Record] | None:
    """Recognise the layout of a file's content."""
    if isinstance(content, dict):
        lists = {name: value for name, value in content.items() if isinstance(value, list)}
        if {"videos", "sentences"} <= lists.keys():
            return _joined(lists["videos"], lists["sentences"], "video_id", "video_id", report)
        if {"images", "annotations"} <= lists.keys():
            return _joined(lists["images"], lists["annotations"], "id", "image_id", report)
        if isinstance(content.get("database"), dict):
            return _youcook2(content["database"], report)
        if lists and len(lists) == len(content) and all(_has(rows, "video", "caption") for rows in lists.values()):
            return (record for split, rows in lists.items() for record in _msvd(split, rows, report))
    if isinstance(content, list) and _has(content, "videoID"):
        return _vatex(content, report, note)
    if isinstance(content, list) and _has(content, "vid_name", "ts"):
        return _tvc(content, report)
    return None


def _has(rows: list[Any], *names: str) -> bool:
    """Return whether the first row is an object with these names."""
    return bool(rows) and isinstance(rows[0], dict) and all(name in rows[0] for name in names)


def _get(record: Any, name: str) -> Any:
    if not isinstance(record, dict) or record.get(name) is None:
        raise ValueError(f"it has no `{name}`")
    return record[name]


def _each(
    rows: Iterable[Any], what: str, report: Report, read: Callable[[int, str, Any], Iterable[Record]]
) -> Iterator[Record]:
    """Read rows one by one and report those that cannot be read."""
    for number, row in enumerate(rows, 1):
        where = f"{what} {number:,}"
        try:
            yield from read(number, where, row)
        except ValueError as error:
            report(number, where, str(error))


def _joined(videos: list[Any], sentences: list[Any], name: str, owner: str, report: Report) -> Iterator[Record]:
    """MSR-VTT's and COCO's two lists: videos, and sentences that name them."""
    known = {str(video[name]) for video in videos if isinstance(video, dict) and video.get(name) is not None}
    captions: dict[str, list[str]] = defaultdict(list)
    for number, sentence in enumerate(sentences, 1):
        try:
            video = str(_get(sentence, owner))
            if video not in known:
                raise ValueError(f"there is no video `{video}`")
            captions[video] += _texts(sentence.get("caption"))
        except ValueError as error:
            report(number, f"caption {number:,}", str(error))

    def read(number: int, where: str, video: Any) -> Iterator[Record]:
        key = str(_get(video, name))
        split = str(video.get("split", "")) if name == "video_id" else ""
        yield Record(number, where, split, key, (Place(str(video.get("file_name", key))),), captions[key])

    yield from _each(videos, "video", report, read)


def _vatex(rows: list[Any], report: Report, note: Callable[[str], None]) -> Iterator[Record]:
    if any(isinstance(row, dict) and row.get("chCap") for row in rows):
        note("`chCap`, VATEX's Chinese captions, is not used")

    def read(number: int, where: str, row: Any) -> Iterator[Record]:
        key = str(_get(row, "videoID"))
        whole = _KINETICS_SPAN.fullmatch(key)
        places = [Place(key)] + ([Place(whole[1], int(whole[2]), int(whole[3]))] if whole else [])
        yield Record(number, where, "", key, tuple(places), _texts(row.get("enCap", [])))

    return _each(rows, "video", report, read)


def _msvd(split: str, rows: list[Any], report: Report) -> Iterator[Record]:
    """Yield a row a caption; rows of one video belong together."""
    clips: dict[str, Record] = {}

    def read(number: int, where: str, row: Any) -> Iterator[Record]:
        key, captions = str(_get(row, "video")), _texts(_get(row, "caption"))
        first = clips.setdefault(key, Record(number, where, split, key, (Place(key),), []))
        first.captions.extend(captions)
        return iter(())

    for _ in _each(rows, f"caption of {split}", report, read):
        pass
    yield from clips.values()


def _youcook2(videos: Mapping[str, Any], report: Report) -> Iterator[Record]:
    """Steps of whole videos; files are the videos, or the steps cut out of them as SwinBERT's data has it."""

    def read(number: int, where: str, row: Any) -> Iterator[Record]:
        name, video = row
        for step in _get(video, "annotations"):
            span = _get(step, "segment")
            if not isinstance(span, list) or len(span) != 2:
                raise ValueError(f"segment is {span!r}, it must be two numbers of seconds")
            key = f"{name}_{_get(step, 'id')}"
            places = (Place(key), Place(name, *span))
            yield Record(number, where, str(video.get("subset", "")), key, places, _texts(_get(step, "sentence")))

    return _each(videos.items(), "video", report, read)


def _tvc(rows: list[Any], report: Report) -> Iterator[Record]:
    """Moments of episodes; those of the public test have no captions."""

    def read(number: int, where: str, row: Any) -> Iterator[Record]:
        name, span = str(_get(row, "vid_name")), _get(row, "ts")
        if not isinstance(span, list) or len(span) != 2:
            raise ValueError(f"ts is {span!r}, it must be two numbers of seconds")
        captions = _texts([_get(description, "desc") for description in row.get("descs") or []])
        yield Record(number, where, "", spanned(name, *span), (Place(name, *span),), captions)

    return _each(rows, "line", report, read)


def _texts(value: Any) -> list[str]:
    """Return the captions of a list, or the one that a text is."""
    return list(as_captions(value if isinstance(value, list) else [value]))
