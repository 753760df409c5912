"""Captions that are published as lines or as a table: MSVD's own two files, and MSR-VTT's split of JSFusion."""

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from albertkit.data.bad_rows import BadRows
from albertkit.data.tables import Table
from albertkit.files import plain_file

MSVD_TEXT, _MAPPING = "AllVideoDescriptions.txt", "youtube_mapping.txt"
_MSVD_TABLE = ("VideoID", "Start", "End", "Language", "Description")
_JSFUSION = ("vid_key", "video_id", "sentence")
_CLIP = re.compile(r"[\w-]{11}_\d+_\d+")  # MSVD's clips: the id of YouTube, and the seconds


def read_caption_table(path: Path, bad_rows: BadRows) -> dict[str, list[dict[str, str]]]:
    """Read such a file into the form of MSVD's JSON: splits, in them a row a caption; other files are empty.

    MSVD's authors publish no splits. Those of the literature are taken where its `youtube_mapping.txt` lies beside the file.
    """
    splits = _msvd_splits(path.with_name(_MAPPING))
    found: dict[str, list[dict[str, str]]] = defaultdict(list)
    for line, clip, caption in _rows(path, bad_rows):
        if not caption.strip():
            bad_rows.add(path, line, "a caption is empty")
        elif splits and clip not in splits and _CLIP.fullmatch(clip):
            bad_rows.note(f"clips that `{_MAPPING}` does not name are not used")
        else:
            found[splits.get(clip, "")].append({"video": clip, "caption": caption})
    return dict(found)


def _rows(path: Path, bad_rows: BadRows) -> Iterator[tuple[int, str, str]]:
    """Yield line, clip and caption."""
    with Table(plain_file(path, "annotations"), bad_rows=bad_rows, lines_unless=[("line",)]) as table:
        if table.is_lines:
            yield from _lines(table)
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


def _lines(table: Table) -> Iterator[tuple[int, str, str]]:
    """Yield the lines of MSVD's text, `CLIP CAPTION`; none if the first after the comments is another one."""
    recognised = False
    for row in table.rows():
        clip, _, caption = row.values["line"].strip().partition(" ")
        if clip and not clip.startswith("#"):
            recognised = recognised or bool(_CLIP.fullmatch(clip))
            if not recognised:
                return
            yield row.line, clip, caption


def _msvd_splits(mapping: Path) -> dict[str, str]:
    """Return the split of each clip: up to vid1200, up to vid1300, and the rest. Source: Venugopalan et al. 2015."""
    if not mapping.is_file():
        return {}
    named = re.findall(r"^(\S+) vid(\d{1,4})\s*$", mapping.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    return {clip: ("train", "dev", "test")[bisect_left((1200, 1300), int(number))] for clip, number in named}
