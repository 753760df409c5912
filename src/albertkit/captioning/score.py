"""`score_caption_files`: captions out of anybody's files against references out of anybody's files."""

import io
import re
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from albertkit.captioning.clips import clip_key, parse_span
from albertkit.captioning.metrics import CaptionScores, score_captions
from albertkit.captioning.options import ScoreCaptionsOptions
from albertkit.command import takes
from albertkit.encodings import file_encoding_advice
from albertkit.errors import DataError
from albertkit.files import StrPath, check_new_file, check_regular_file, parse_json, write_lines
from albertkit.tables.bad_rows import pluralize
from albertkit.tables.files import ByteStream, find_input_file
from albertkit.tables.text_lines import json_problem

_NAMES = ("key", "video", "features", "frames", "image_id")
# How it begins; `[UNK] man` is a caption
_JSON = re.compile(r'\s*(?:\{\s*(?:"|\}|$)|\[\s*(?:\{|\]|$))')


class CaptionRow(NamedTuple):
    """Captions of a clip in a file, where a message places them; the key of a plain line is its number, from 1."""

    key: str
    captions: list[str]
    location: str


class CaptionFile(NamedTuple):
    """A file of captions and its rows in their order; a key may come again."""

    path: StrPath
    layout: Literal["tsv", "json", "lines"]
    rows: list[CaptionRow]


@takes(ScoreCaptionsOptions)
def score_caption_files(options: ScoreCaptionsOptions) -> CaptionScores:
    """Score a file of captions, by keys that are compared as text, or line by line."""
    predictions = options.predictions
    details = options.details
    if details is not None:
        check_new_file(details)
    predicted = read_caption_file(predictions)
    reference_files = [read_caption_file(file) for file in options.references]
    for file in reference_files:
        if (file.layout == "lines") != (predicted.layout == "lines"):
            keyed, plain = (file, predicted) if predicted.layout == "lines" else (predicted, file)
            raise DataError(
                "predictions-mismatch",
                f"`{keyed.path}` has keys, `{plain.path}` is plain lines",
                "give keys to both, or write both as lines in the same order",
            )
        if predicted.layout == "lines" and len(file.rows) != len(predicted.rows):
            raise DataError(
                "predictions-mismatch",
                f"`{predictions}` has {pluralize(len(predicted.rows), 'line')}, `{file.path}` has {len(file.rows):,}",
                "line n of one belongs to line n of the other",
            )
    candidates: dict[str, str] = {}
    for key, captions, location in predicted.rows:
        if predicted.layout != "tsv" and len(captions) > 1:
            raise DataError(
                "bad-row",
                f"`{predictions}`, {location}: {len(captions)} captions of clip `{key}`",
                "leave the best",
            )
        # The same one again is ignored: processes that share clips unevenly caption some twice.
        if candidates.setdefault(key, captions[0]) != captions[0]:
            raise DataError(
                "bad-row",
                f"`{predictions}`, {location}: clip `{key}` again",
                "leave one caption",
            )
    references: dict[str, list[str]] = {}
    for file in reference_files:
        for row in file.rows:
            references.setdefault(row.key, []).extend(row.captions)
    scores = score_captions(references, candidates)
    if details is not None:
        write_lines(
            details,
            (
                {"key": key, "caption": candidates[key], "references": references[key], **values}
                for key, values in scores.per_clip.items()
            ),
        )
    return scores


def read_caption_file(file: StrPath) -> CaptionFile:
    """Read captions; the content says how, whatever the file is called.

    - SwinBERT's TSV: key, tab, a JSON list of objects with `caption`.
    - JSON lines: `key`, or in its place `video`, `features`, `frames` (as a manifest has them) or `image_id`; and `captions`, a
      list, or `caption`.
    - One JSON: a list of such objects (COCO's results), an object with `annotations` (COCO), or of keys and captions.
    - Else plain text, a caption a line.
    """
    text = _read_text(file)
    if not text:
        raise DataError("empty", f"`{file}` is empty", "name a file of captions")
    lines = [
        (number, line.removesuffix("\r"))
        for number, line in enumerate(text.removesuffix("\n").split("\n"), 1)
    ]
    filled = [(number, line) for number, line in lines if line.strip()]
    first = filled[0][1] if filled else ""
    is_json_lines = False
    if first.partition("\t")[2].lstrip().startswith("["):
        rows = []
        for number, line in filled:
            key, _, value = line.partition("\t")
            records = _as_list(_parse_line(file, number, value))
            captions = [
                record.get("caption") if isinstance(record, dict) else record for record in records
            ]
            rows.append(_make_caption_row(file, f"line {number:,}", key, captions))
        return CaptionFile(file, "tsv", rows)
    if not _JSON.match(first):
        return CaptionFile(
            file,
            "lines",
            [CaptionRow(str(number), [line], f"line {number:,}") for number, line in lines],
        )
    if len(filled) > 1:
        with suppress(ValueError, RecursionError):
            parse_json(first)
            is_json_lines = True
    if is_json_lines:
        rows = [
            _row_of_record(file, f"line {number:,}", _parse_line(file, number, line))
            for number, line in filled
        ]
        return CaptionFile(file, "json", rows)
    try:
        content = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise DataError(
            "bad-file",
            f"`{file}` begins as JSON and is not: {error}",
            "write it again; a JSON object a line, or one for the whole file",
        ) from None
    if isinstance(content, dict) and not {"annotations", "caption", "captions"} & content.keys():
        rows = [
            _make_caption_row(file, f"`{key}`", key, _as_list(captions))
            for key, captions in content.items()
        ]
        return CaptionFile(file, "json", rows)
    records = _as_list(
        content.get("annotations", content) if isinstance(content, dict) else content
    )
    rows = [
        _row_of_record(file, f"record {number:,}", record)
        for number, record in enumerate(records, 1)
    ]
    return CaptionFile(file, "json", rows)


def _read_text(file: StrPath) -> str:
    source = find_input_file(file)
    if "://" not in source.path:
        # Read whole: a pipe or a device might never end
        check_regular_file(source.path, "captions")
    with ByteStream(source) as stream:
        content = b"".join(iter(stream.read, b""))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            "bad-encoding",
            f"`{file}` is not UTF-8, at byte {error.start:,}",
            file_encoding_advice(io.BytesIO(content), str(file)),
        ) from None


def _row_of_record(file: StrPath, location: str, record: Any) -> CaptionRow:
    if not isinstance(record, dict):
        raise _bad_row_error(file, location, f"a {type(record).__name__}, not an object")
    name = next((name for name in _NAMES if record.get(name) is not None), None)
    if name is None:
        raise _bad_row_error(file, location, f"it has none of {', '.join(_NAMES)}")
    key = record[name]
    if name in _NAMES[1:4]:  # as in a manifest: two clips of one video have different keys
        try:
            key = clip_key(
                f"{key}:{record['row']}" if "row" in record else key,
                *parse_span(record.get("start"), record.get("end")),
            )
        except ValueError as error:
            raise _bad_row_error(file, location, str(error)) from None
    captions = record.get("captions", record.get("caption"))
    if isinstance(captions, list) and any(isinstance(caption, dict) for caption in captions):
        # Of `caption predict`: the best beside all of them with scores
        captions = record.get("caption")
    return _make_caption_row(file, location, key, _as_list(captions))


def _make_caption_row(file: StrPath, location: str, key: Any, captions: list[Any]) -> CaptionRow:
    """Return a row, if it is one: a key of text or a whole number, and at least one caption."""
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise _bad_row_error(
            file,
            location,
            f"the key is {key!r}, it must be text or a whole number",
        )
    for caption in captions or [None]:
        if not isinstance(caption, str):
            raise _bad_row_error(
                file,
                location,
                f"a caption is {caption!r}, it must be text" if captions else "it has no caption",
            )
    return CaptionRow(str(key), captions, location)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _parse_line(file: StrPath, number: int, text: str) -> Any:
    try:
        return parse_json(text)
    except (ValueError, RecursionError) as error:
        raise _bad_row_error(file, f"line {number:,}", json_problem(error)) from None


def _bad_row_error(file: StrPath, location: str, reason: str) -> DataError:
    return DataError(
        "bad-row",
        f"`{file}`, {location}: {reason}",
        "correct the row: every clip needs a key and a caption",
    )
