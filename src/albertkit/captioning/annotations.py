"""Captions as MSR-VTT, COCO, VATEX, MSVD, YouCook2 and TVC publish them; the videos lie below the file's folder."""

import re
import unicodedata
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from albertkit.captioning.clips import (
    VIDEO_ENDINGS,
    Clip,
    clip_key,
    find_file_above,
    parse_captions,
    parse_span,
    validate_key,
)
from albertkit.errors import DataError
from albertkit.files import check_regular_file, parse_json, read_json
from albertkit.tables.bad_rows import BadRows, pluralize
from albertkit.tables.table import Table

MSVD_TEXT, _MAPPING = "AllVideoDescriptions.txt", "youtube_mapping.txt"
_MSVD_TABLE = ("VideoID", "Start", "End", "Language", "Description")
_JSFUSION = ("vid_key", "video_id", "sentence")
_CLIP = re.compile(r"[\w-]{11}_\d+_\d+")  # MSVD's clips: the id of YouTube, and the seconds


def read_caption_table(path: Path, bad_rows: BadRows) -> dict[str, list[dict[str, str]]]:
    """Read such a file into the form of MSVD's JSON: splits, in them a row a caption; other files are empty.

    MSVD's authors publish no splits. Those of the literature are taken where its
    `youtube_mapping.txt` lies beside the file.
    """
    mapping = path.with_name(_MAPPING)
    text = mapping.read_text(encoding="utf-8", errors="replace") if mapping.is_file() else ""
    splits = {}
    for clip, number in re.findall(r"^(\S+) vid(\d{1,4})\s*$", text, re.MULTILINE):
        # up to vid1200, up to vid1300, and the rest: Venugopalan et al. 2015
        splits[clip] = ("train", "dev", "test")[bisect_left((1200, 1300), int(number))]
    rows_by_split: dict[str, list[dict[str, str]]] = defaultdict(list)
    for line, clip, caption in _read_caption_rows(path, bad_rows):
        if not caption.strip():
            bad_rows.add(path, line, "a caption is empty")
        elif splits and clip not in splits and _CLIP.fullmatch(clip):
            bad_rows.note(f"clips that `{_MAPPING}` does not name are not used")
        else:
            rows_by_split[splits.get(clip, "")].append({"video": clip, "caption": caption})
    return dict(rows_by_split)


def _read_caption_rows(path: Path, bad_rows: BadRows) -> Iterator[tuple[int, str, str]]:
    """Yield line, clip and caption."""
    with Table(
        check_regular_file(path, "annotations"), bad_rows=bad_rows, lines_unless=[("line",)]
    ) as table:
        if table.is_lines:
            # MSVD's text, `CLIP CAPTION`; none if the first line after the comments is another one
            recognised = False
            for row in table.rows():
                clip, _, caption = row.values["line"].strip().partition(" ")
                if clip and not clip.startswith("#"):
                    recognised = recognised or bool(_CLIP.fullmatch(clip))
                    if not recognised:
                        return
                    yield row.line, clip, caption
        elif {*_JSFUSION} <= {*table.columns}:
            for row in table.rows(_JSFUSION):
                yield row.line, row.values["video_id"], row.values["sentence"]
        elif {*_MSVD_TABLE} <= {*table.columns}:
            for row in table.rows(_MSVD_TABLE):
                video, start, end, language, caption = row.values.values()
                if language == "English":
                    yield row.line, f"{video}_{start}_{end}", caption
                else:
                    bad_rows.note("MSVD's descriptions that are not English are not used")


LAYOUTS = "MSR-VTT, COCO, VATEX, MSVD, YouCook2 or TVC"
# VATEX's and MSVD's clips: the video, and the seconds of the clip
_SPAN = re.compile(r"(.+)_(\d{1,6})_(\d{1,6})")

# Number of the record from 1, what it is called, what is wrong
Report = Callable[[int, str, str], None]


class VideoReference(NamedTuple):
    """A clip's file, named with or without its ending, and its span in seconds."""

    name: str
    start: Any = None
    end: Any = None


class ClipRecord(NamedTuple):
    """One clip as a data set names it."""

    number: int
    location: str
    split: str
    key: str
    sources: tuple[VideoReference, ...]  # the first that exists is taken
    captions: list[str]


def read_annotations(path: Path, bad_rows: BadRows) -> dict[str, list[Clip]]:
    """Read such a file.

    A video is the one file below the file's folder with the name that the annotations give it;
    COCO's `file_name` is looked for from that folder and those above it, too. VATEX's, MSVD's and
    YouCook2's clips may be cut out already (`ID_000010_000020.mp4`, `ID_10_20.avi`, `ID_0.mp4`) or
    lie in the whole video (`ID.mp4`). MSR-VTT's `start time` and `end time` count in films that the
    files were cut from, and are not used.
    """

    def report(number: int, location: str, reason: str) -> None:
        bad_rows.add(path, number, reason, where=location)

    records = read_clip_records(_read_content(path, bad_rows), report, bad_rows.note)
    if records is None:
        raise DataError(
            "missing-file",
            f"`{path}` is not captions of {LAYOUTS}",
            "write a manifest instead: one JSON object a line with video and captions",
        )
    files: dict[str, list[Path]] = defaultdict(list)  # with and without ending
    for file in sorted(path.parent.rglob("*")):
        if file.suffix.lower() in VIDEO_ENDINGS:
            for name in {_normalize_name(file.stem), _normalize_name(file.name)}:
                files[name].append(file)
    splits: dict[str, list[Clip]] = defaultdict(list)
    clip_counts: Counter[str] = Counter()
    clips: dict[str, tuple[str, int]] = {}  # of each key the split, and the clip's index in it
    for record in records:
        clip_counts[record.split] += 1
        try:
            clip = _locate_clip(record, path.parent, files)
        except ValueError as error:
            report(record.number, record.location, str(error))
            continue
        split, index = clips.setdefault(clip.key, (record.split, len(splits[record.split])))
        if index == len(splits[split]):
            splits[split].append(clip)
            continue
        earlier = splits[split][index]
        if split != record.split or replace(clip, captions=()) != replace(earlier, captions=()):
            report(
                record.number,
                record.location,
                f"`{clip.key}` is the name of another clip already",
            )
            continue
        splits[split][index] = replace(
            earlier,
            captions=tuple(dict.fromkeys((*earlier.captions, *clip.captions))),
        )
        bad_rows.note(
            f"`{path}`: clips that are named several times have the captions of all their rows"
        )
    for split, count in clip_counts.items():
        if split not in splits and splits:
            bad_rows.note(
                f"`{path}`: none of the {pluralize(count, 'clip')} of {split} can be used, the split is left out"
            )
    return dict(splits)


def is_annotations(path: Path) -> bool:
    """Return whether a file holds captions in a published layout; of a JSONL the first line decides."""
    try:
        jsonl = path.suffix.lower() == ".jsonl"
        content = (
            [next(_read_json_lines(path))[1]] if jsonl else _read_content(path, BadRows("skip"))
        )
    except (DataError, StopIteration):
        # A split must not be left out because its file is broken
        if path.suffix.lower() == ".json":
            raise
        return False
    return read_clip_records(content, lambda *_: None, lambda _: None) is not None


def _read_content(path: Path, bad_rows: BadRows) -> Any:
    if path.suffix.lower() == ".jsonl":
        return [record for _, record in _read_json_lines(path)]
    if path.suffix.lower() in (".csv", ".txt"):
        return read_caption_table(path, bad_rows)
    return read_json(path, "annotations", parse_json)


def _read_json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    with open(check_regular_file(path, "annotations"), "rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                if line.strip():
                    yield number, parse_json(line)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    "bad-file",
                    f"`{path}`, line {number:,}: {error}",
                    "restore the file",
                ) from None


def _locate_clip(record: ClipRecord, folder: Path, files: dict[str, list[Path]]) -> Clip:
    for reference in record.sources:
        source = find_file_above(folder, [reference.name]) if Path(reference.name).suffix else None
        if source is None:
            matching_files = files.get(_normalize_name(reference.name), [])
            if len(matching_files) > 1:
                names = " and ".join(f"`{file}`" for file in matching_files)
                raise ValueError(
                    f"below `{folder}` one video should be called `{reference.name}`, there is {names}"
                )
            source = next(iter(matching_files), None)
        if source is not None:
            start, end = parse_span(reference.start, reference.end)
            captions = tuple(record.captions)
            return Clip(
                key=validate_key(record.key),
                source=source,
                start=start,
                end=end,
                captions=captions,
            )
    names = " or ".join(f"`{reference.name}`" for reference in record.sources)
    raise ValueError(f"no video {names} below `{folder}`")


def _normalize_name(name: str) -> str:
    """Return a file's name in NFC: a Mac writes names in NFD."""
    return unicodedata.normalize("NFC", name)


def read_clip_records(
    content: Any,
    report: Report,
    note: Callable[[str], None],
) -> Iterator[ClipRecord] | None:
    """Recognise the layout of a file's content."""
    if isinstance(content, dict):
        lists = {name: value for name, value in content.items() if isinstance(value, list)}
        if {"videos", "sentences"} <= lists.keys():
            return _read_joined_lists(
                lists["videos"],
                lists["sentences"],
                "video_id",
                "video_id",
                report,
            )
        if {"images", "annotations"} <= lists.keys():
            return _read_joined_lists(
                lists["images"],
                lists["annotations"],
                "id",
                "image_id",
                report,
            )
        if isinstance(content.get("database"), dict):
            return _read_youcook2(content["database"], report)
        if (
            lists
            and len(lists) == len(content)
            and all(_first_row_has_keys(rows, "video", "caption") for rows in lists.values())
        ):
            return (
                record
                for split, rows in lists.items()
                for record in _read_msvd(split, rows, report)
            )
    if isinstance(content, list) and _first_row_has_keys(content, "videoID"):
        return _read_vatex(content, report, note)
    if isinstance(content, list) and _first_row_has_keys(content, "vid_name", "ts"):
        return _read_tvc(content, report)
    return None


def _first_row_has_keys(rows: list[Any], *names: str) -> bool:
    """Return whether the first row is an object with these names."""
    return bool(rows) and isinstance(rows[0], dict) and all(name in rows[0] for name in names)


def _require_value(record: Any, name: str) -> Any:
    if not isinstance(record, dict) or record.get(name) is None:
        raise ValueError(f"it has no `{name}`")
    return record[name]


def _require_span(record: Any, name: str) -> list[Any]:
    span = _require_value(record, name)
    if not isinstance(span, list) or len(span) != 2:
        raise ValueError(f"{name} is {span!r}, it must be two numbers of seconds")
    return span


@contextmanager
def _report_bad_row(report: Report, number: int, location: str) -> Iterator[None]:
    """Report a row that cannot be read, and go on."""
    try:
        yield
    except ValueError as error:
        report(number, location, str(error))


def _read_joined_lists(
    videos: list[Any], sentences: list[Any], id_key: str, video_id_key: str, report: Report
) -> Iterator[ClipRecord]:
    """Read the two lists of MSR-VTT and COCO: videos, and sentences that name them."""
    video_names = {
        str(video[id_key])
        for video in videos
        if isinstance(video, dict) and video.get(id_key) is not None
    }
    captions: dict[str, list[str]] = defaultdict(list)
    for number, sentence in enumerate(sentences, 1):
        with _report_bad_row(report, number, f"caption {number:,}"):
            video = str(_require_value(sentence, video_id_key))
            if video not in video_names:
                raise ValueError(f"there is no video `{video}`")
            captions[video] += parse_captions([sentence.get("caption")])
    for number, row in enumerate(videos, 1):
        location = f"video {number:,}"
        with _report_bad_row(report, number, location):
            key = str(_require_value(row, id_key))
            split = str(row.get("split", "")) if id_key == "video_id" else ""
            sources = (VideoReference(str(row.get("file_name", key))),)
            yield ClipRecord(number, location, split, key, sources, captions[key])


def _read_vatex(
    rows: list[Any],
    report: Report,
    note: Callable[[str], None],
) -> Iterator[ClipRecord]:
    if any(isinstance(row, dict) and row.get("chCap") for row in rows):
        note("`chCap`, VATEX's Chinese captions, is not used")
    for number, row in enumerate(rows, 1):
        location = f"video {number:,}"
        with _report_bad_row(report, number, location):
            key = str(_require_value(row, "videoID"))
            captions = _parse_usable_captions(row.get("enCap", []), number, location, report)
            yield ClipRecord(number, location, "", key, _clip_and_video_references(key), captions)


def _clip_and_video_references(key: str) -> tuple[VideoReference, ...]:
    """Return the clip's own file, and the whole video that its name tells."""
    references = [VideoReference(key)]
    if span := _SPAN.fullmatch(key):
        references.append(VideoReference(span[1], int(span[2]), int(span[3])))
    return tuple(references)


def _read_msvd(split: str, rows: list[Any], report: Report) -> Iterator[ClipRecord]:
    """Yield a row a caption; rows of one video belong together."""
    clips: dict[str, ClipRecord] = {}
    row_name = f"caption of {split}" if split else "caption"
    for number, row in enumerate(rows, 1):
        location = f"{row_name} {number:,}"
        with _report_bad_row(report, number, location):
            key = str(_require_value(row, "video"))
            captions = _parse_usable_captions(
                _require_value(row, "caption"), number, location, report
            )
            first = clips.setdefault(
                key,
                ClipRecord(number, location, split, key, _clip_and_video_references(key), []),
            )
            first.captions.extend(captions)
    yield from clips.values()


def _read_youcook2(videos: Mapping[str, Any], report: Report) -> Iterator[ClipRecord]:
    """Read steps of whole videos; files are the videos, or the steps cut out of them as SwinBERT's data has it.

    Those of the test have no captions.
    """
    for number, (name, video) in enumerate(videos.items(), 1):
        location = f"video {number:,}"
        with _report_bad_row(report, number, location):
            for index, step in enumerate(_require_value(video, "annotations"), 1):
                part = f"{location} (`{name}`), step {index:,}"
                with _report_bad_row(report, number, part):
                    key = f"{name}_{_require_value(step, 'id')}"
                    span = _require_span(step, "segment")
                    captions = _parse_usable_captions(
                        step.get("sentence", []),
                        number,
                        part,
                        report,
                    )
                    sources = (VideoReference(key), VideoReference(name, *span))
                    yield ClipRecord(
                        number, part, str(video.get("subset", "")), key, sources, captions
                    )


def _read_tvc(rows: list[Any], report: Report) -> Iterator[ClipRecord]:
    """Read moments of episodes; those of the public test have no captions."""
    for number, row in enumerate(rows, 1):
        location = f"line {number:,}"
        with _report_bad_row(report, number, location):
            name = str(_require_value(row, "vid_name"))
            span = _require_span(row, "ts")
            descriptions = row.get("descs") or []
            texts = [item.get("desc") if isinstance(item, dict) else item for item in descriptions]
            captions = _parse_usable_captions(texts, number, location, report)
            yield ClipRecord(
                number,
                location,
                "",
                clip_key(name, *span),
                (VideoReference(name, *span),),
                captions,
            )


def _parse_usable_captions(values: Any, number: int, location: str, report: Report) -> list[str]:
    """Return the captions of a list, or the one that a text is; of several, those that cannot be used are reported."""
    captions: list[str] = []
    errors: dict[int, ValueError] = {}
    for index, value in enumerate(values if isinstance(values, list) else [values], 1):
        try:
            captions += parse_captions([value])
        except ValueError as error:
            errors[index] = error
    if errors and not captions:
        raise next(iter(errors.values()))
    for index, reason in errors.items():
        report(number, f"{location}, caption {index:,}", str(reason))
    return captions
