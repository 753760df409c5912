"""Clips as `prepare` left them: their captions, and what a model sees of each."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from albertkit.captioning.backbones.backbone import Grid
from albertkit.captioning.data.items import item_shape, read_item
from albertkit.captioning.video.sampling import FrameSampling
from albertkit.errors import DataError
from albertkit.files import load, plain_file

PREPARED = "prepared.json"
FORMAT = 1  # of the folder and of what is hashed; another number makes everything again
_ITEM = re.compile(r"[0-9a-f]{64}")  # names are hashes, and nothing that leads out of the folder
_AGAIN = "run the same `albertkit caption prepare` again"


def clips_file(split: str) -> str:
    """Return the name of the list of a split's clips."""
    return f"clips-{split}.jsonl"


@dataclass(frozen=True)
class PreparedClip:
    """One clip: `origin` has `source`, and `start`, `end` or `row`; `notes` say what decoding noticed, such as an early end."""

    key: str
    captions: tuple[str, ...]
    item: str
    origin: dict[str, Any]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Settings that clips were prepared with.

    Attributes:
        kind: "features": of a frozen backbone, or computed elsewhere; "frames": of a backbone that is trained along.
        backbone: Its name, for `load_backbone`; "features" where it is unknown.
        backbone_fingerprint: As `Backbone.fingerprint()`; None where it is unknown.
        backbone_settings: As `Backbone.settings()`.
        sampling: Of the frames; None for features computed elsewhere.
        grid: Of the visual tokens; None where each clip has its own (`grid_of`).
    """

    kind: Literal["features", "frames"]
    backbone: str
    backbone_fingerprint: str | None
    backbone_settings: dict[str, Any]
    sampling: FrameSampling | None
    grid: Grid | None


@dataclass(frozen=True)
class _Split:
    clips: int


@dataclass(frozen=True, kw_only=True)
class _Prepared(Preparation):
    """`prepared.json`."""

    format: int
    splits: dict[str, _Split]


@dataclass(frozen=True, kw_only=True)
class PreparedClips(Preparation):
    """A folder of prepared clips.

    Attributes:
        folder: Where they lie.
        splits: Name to its clips.
    """

    folder: Path
    splits: dict[str, tuple[PreparedClip, ...]]

    @classmethod
    def open(cls, folder: str | Path) -> "PreparedClips":
        """Open a folder."""
        place = Path(folder)
        if not (place / PREPARED).is_file():
            if (place / "items").is_dir():
                raise DataError("unfinished", f"`{place}` holds clips that are not all prepared", _AGAIN)
            hint = "albertkit caption prepare DATA --out FOLDER"
            raise DataError("wrong-kind", f"`{place}` holds no prepared clips", hint)
        facts = load(place / PREPARED, _Prepared, "prepared clips", "delete it and prepare again")
        if facts.format != FORMAT:
            fact = f"`{place}` is of format {facts.format}, this albertkit reads {FORMAT}"
            raise DataError("changed", fact, "prepare it again")
        splits = {split: _clips(place, split, counts.clips) for split, counts in facts.splits.items()}
        how = {field.name: getattr(facts, field.name) for field in fields(Preparation)}
        return cls(folder=place, splits=splits, **how)

    @property
    def dtype(self) -> str:
        """Return the type of the items: uint8 frames or float16 features."""
        return "uint8" if self.kind == "frames" else "float16"

    @property
    def width(self) -> int:
        """Numbers of a visual token (D) of features; 3 of frames."""
        return self.visual(next(iter(self.splits)), 0).shape[-1]

    def clips(self, split: str) -> tuple[PreparedClip, ...]:
        """Return the clips of a split."""
        if split not in self.splits:
            fact = f"`{self.folder}` has no {split}, only {', '.join(self.splits)}"
            hint = "prepare it too, or name one that is there: --dev-split in training, --split in evaluation"
            raise DataError("missing-file", fact, hint)
        return self.splits[split]

    def visual(self, split: str, number: int) -> np.ndarray:
        """Return what a model sees of a clip.

        Returns:
            float16 [M, D], M tokens in the order frames, height, width; or uint8 [T, S, S, 3].
        """
        return read_item(self.folder, self.clips(split)[number].item, self.dtype)

    def grid_of(self, split: str, number: int) -> Grid:
        """Return how the visual tokens of a clip lie; those of unknown features one behind the other in time."""
        if self.grid is not None:
            return self.grid
        shape = item_shape(self.folder, self.clips(split)[number].item, self.dtype)
        return Grid(shape[0] if shape else len(self.visual(split, number)), 1, 1)


def _clips(folder: Path, split: str, count: int) -> tuple[PreparedClip, ...]:
    file = folder / clips_file(split)
    if file.parent != folder:
        raise DataError("bad-file", f"the split `{split}` of `{folder}` leaves the folder", "prepare it again")
    try:
        lines = plain_file(file).read_bytes().splitlines() if file.exists() else []
        clips = tuple(msgspec.json.decode(line, type=PreparedClip) for line in lines)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise DataError("bad-file", f"`{file}` is not what `prepare` writes: {error}", "prepare it again") from None
    if wrong := [clip.item for clip in clips if not _ITEM.fullmatch(clip.item)]:
        raise DataError("bad-file", f"`{file}`: `{wrong[0]}` is not the name of an item", "prepare it again")
    if len(clips) != count:
        raise DataError("unfinished", f"`{file}` has {len(clips):,} clips, `{PREPARED}` counts {count:,}", _AGAIN)
    return clips


def stack_visual(items: Sequence[np.ndarray]) -> tuple[Tensor, Tensor | None]:
    """Stack features [M, D], padded with zeros, or frames of clips; return a mask bool [B, M], too, if any M is shorter."""
    values = pad_sequence([torch.from_numpy(np.ascontiguousarray(item)) for item in items], batch_first=True)
    mask = torch.arange(values.shape[1]) < torch.tensor([len(item) for item in items])[:, None]
    return values, None if mask.all() else mask
