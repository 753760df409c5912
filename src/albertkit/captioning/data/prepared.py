"""Clips as `prepare` left them: their captions, and what a model sees of each."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from albertkit.captioning.backbones.backbone import Grid
from albertkit.captioning.data.items import item_shape, read_item
from albertkit.captioning.video.sampling import FrameSampling
from albertkit.errors import DataError
from albertkit.files import plain_file, read_json

PREPARED = "prepared.json"
_ITEM = re.compile(r"[0-9a-f]{64}")  # names are hashes, and nothing that leads out of the folder


def clips_file(split: str) -> str:
    """The list of a split's clips."""
    return f"clips-{split}.jsonl"


@dataclass(frozen=True)
class PreparedClip:
    """One clip.

    Attributes:
        key: Its name.
        captions: What is said of it.
        item: Name of its item.
        origin: `source`, and `start`, `end` or `row` where it has them.
        notes: What was not as its file says: frames that could not be decoded, an early end.
    """

    key: str
    captions: tuple[str, ...]
    item: str
    origin: dict[str, Any]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PreparedClips:
    """A folder of prepared clips.

    Attributes:
        folder: Where they lie.
        kind: "features": of a frozen backbone, or of somebody else; "frames": of a backbone that is trained along.
        backbone: Its name, for `load_backbone`; "features" where nobody knows which it was.
        backbone_fingerprint: As `Backbone.fingerprint()`; None where nobody knows.
        backbone_settings: As `Backbone.settings()`.
        sampling: Of the frames; None for features of somebody else.
        grid: Of the visual tokens; None where each clip has its own (`grid_of`).
        splits: Name to its clips.
    """

    folder: Path
    kind: Literal["features", "frames"]
    backbone: str
    backbone_fingerprint: str | None
    backbone_settings: dict[str, Any]
    sampling: FrameSampling | None
    grid: Grid | None
    splits: dict[str, tuple[PreparedClip, ...]]

    @classmethod
    def open(cls, folder: str | Path) -> "PreparedClips":
        """Open a folder.

        Raises:
            DataError: not-prepared, unfinished-preparation, other-format, broken-json.
        """
        place = Path(folder)
        if not (place / PREPARED).is_file():
            if (place / "items").is_dir():
                raise DataError(
                    "unfinished-preparation", f"`{place}` holds clips that are not all prepared",
                    "run the same `albertkit caption prepare` again",
                )  # fmt: skip
            raise DataError(
                "not-prepared", f"`{place}` holds no prepared clips", "albertkit caption prepare DATA --out FOLDER"
            )
        facts = read_json(place / PREPARED, "prepared clips")
        try:
            if facts["format"] != 1:
                raise DataError(
                    "other-format",
                    f"`{place}` is of format {facts['format']}, this albertkit reads 1",
                    "prepare it again",
                )
            return cls(
                place, facts["kind"], facts["backbone"], facts["backbone_fingerprint"], facts["backbone_settings"],
                FrameSampling(**facts["sampling"]) if facts["sampling"] else None,
                Grid(*facts["grid"]) if facts["grid"] else None,
                {split: _clips(place, split, counts["clips"]) for split, counts in facts["splits"].items()},
            )  # fmt: skip
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(
                "broken-json",
                f"`{place / PREPARED}` is not what `prepare` writes: {error!r}",
                "delete it and prepare again",
            ) from None

    @property
    def dtype(self) -> str:
        """Of the items."""
        return "uint8" if self.kind == "frames" else "float16"

    @property
    def width(self) -> int:
        """Numbers of a visual token (D) of features; 3 of frames.

        Raises:
            DataError: missing-item, broken-item.
        """
        split = next(iter(self.splits))
        return self.visual(split, 0).shape[-1]

    def clips(self, split: str) -> tuple[PreparedClip, ...]:
        """The clips of a split.

        Raises:
            DataError: unknown-split.
        """
        if split not in self.splits:
            raise DataError(
                "unknown-split",
                f"`{self.folder}` has no {split}, only {', '.join(self.splits)}",
                "prepare it too, or name one that is there: --dev-split in training, --split in evaluation",
            )
        return self.splits[split]

    def visual(self, split: str, number: int) -> np.ndarray:
        """What a model sees of a clip.

        Args:
            split: One of `splits`.
            number: Of the clip in it.

        Returns:
            float16 [M, D], M tokens in the order frames, height, width; or uint8 [T, S, S, 3].

        Raises:
            DataError: unknown-split, missing-item, broken-item.
        """
        return read_item(self.folder, self.clips(split)[number].item, self.dtype)

    def grid_of(self, split: str, number: int) -> Grid:
        """How the visual tokens of a clip lie; those of unknown features one behind the other in time.

        Raises:
            DataError: unknown-split, missing-item, broken-item.
        """
        if self.grid is not None:
            return self.grid
        shape = item_shape(self.folder, self.clips(split)[number].item, self.dtype)
        return Grid(shape[0] if shape else len(self.visual(split, number)), 1, 1)


def _clips(folder: Path, split: str, count: int) -> tuple[PreparedClip, ...]:
    file = folder / clips_file(split)
    try:
        if file.parent != folder:
            raise ValueError(f"the split `{split}` leaves the folder")
        lines = [json.loads(line) for line in plain_file(file).read_bytes().splitlines()] if file.exists() else []
        if wrong := [line["item"] for line in lines if not _ITEM.fullmatch(line["item"])]:
            raise ValueError(f"`{wrong[0]}` is no name of an item")
        clips = tuple(
            PreparedClip(
                line["key"], tuple(line["captions"]), line["item"], line["origin"], tuple(line.get("notes", ()))
            )
            for line in lines
        )
    except DataError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError) as error:
        raise DataError(
            "broken-json", f"`{file}` is not what `prepare` writes: {error!r}", "prepare it again"
        ) from None
    if not isinstance(count, int):
        raise DataError("broken-json", f"`{PREPARED}` counts {count!r} clips of {split}", "prepare it again")
    if len(clips) != count:
        raise DataError(
            "unfinished-preparation", f"`{file}` has {len(clips):,} clips, `{PREPARED}` counts {count:,}",
            "run the same `albertkit caption prepare` again",
        )  # fmt: skip
    return clips
