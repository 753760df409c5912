"""Clips as `prepare` left them: their captions, and what a model sees of each."""

import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import google_crc32c
import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from albertkit.captioning.backbone import TokenGrid
from albertkit.captioning.video import FrameSampling
from albertkit.errors import DataError, suggest_existing_path
from albertkit.files import (
    atomic_file,
    check_regular_file,
    read_typed,
    remove_leftovers,
    sha256_bytes,
    write_json,
)

ITEMS = "items"
_PREPARE_HINT = "run the same `albertkit caption prepare` again: it makes what is missing or broken"
_CHECKSUM_BYTES = 4
# numpy reads the header of a .npy file with `ast`, which fails now and then when two threads do so
# at once (CPython issue 106905, seen with 3.11.7: "AST constructor recursion depth mismatch").
PARSING = Lock()


def hash_item_facts(facts: dict[str, Any]) -> str:
    """Hash everything that decides an item's numbers to 64 hex digits."""
    return sha256_bytes(json.dumps(facts, sort_keys=True).encode())


def item_file(folder: Path, name: str) -> Path:
    """Return where an item lies."""
    # In 256 folders: one with tens of thousands of files is slow to list on many systems.
    return folder / ITEMS / name[:2] / f"{name}.npy"


def write_item(folder: Path, name: str, array: np.ndarray) -> None:
    """Write an item, whole or not at all."""
    values = np.ascontiguousarray(array)
    with atomic_file(item_file(folder, name)) as stream:
        # Not with `write_array`: it ends in `tofile`, which says nothing when the disk is full at
        # its last flush.
        np.lib.format.write_array_header_1_0(
            stream,
            np.lib.format.header_data_from_array_1_0(values),
        )
        stream.write(values.tobytes())
        stream.write(_checksum(values))


def write_notes(folder: Path, name: str, notes: Sequence[str]) -> None:
    """Write what decoding noticed about a file, next to the item and before it."""
    if notes:
        write_json(
            item_file(folder, name).with_suffix(".json"),
            {"notes": list(notes), "sha256": _notes_digest(list(notes))},
        )


@dataclass
class _Notes:
    notes: list[str]
    sha256: str


def read_notes(folder: Path, name: str) -> list[str]:
    """Read the notes stored with an item; usually there are none."""
    file = item_file(folder, name).with_suffix(".json")
    if not file.exists():
        return []
    stored = read_typed(file, _Notes, "notes of a clip", _PREPARE_HINT)
    if stored.sha256 != _notes_digest(stored.notes):
        raise DataError("corrupt", f"`{file}` is corrupted: sha256 mismatch", _PREPARE_HINT)
    return stored.notes


def _notes_digest(notes: Any) -> str:
    return sha256_bytes(json.dumps(notes).encode())


def item_shape(folder: Path, name: str, dtype: str) -> tuple[int, ...] | None:
    """Return the shape of an item by its first bytes; None where it is missing, cut off, or of another dtype."""
    file = item_file(folder, name)
    try:
        with open(check_regular_file(file), "rb") as stream:
            shape, stored_dtype = _read_header(stream)
            size = stream.tell() + math.prod(shape) * stored_dtype.itemsize + _CHECKSUM_BYTES
    except (OSError, ValueError):
        return None
    return shape if stored_dtype == np.dtype(dtype) and file.stat().st_size == size else None


def is_item_intact(folder: Path, name: str, dtype: str) -> bool:
    """Return whether an item and its notes are there and not corrupted."""
    try:
        read_item(folder, name, dtype)
        read_notes(folder, name)
    except DataError:
        return False
    return True


def read_item(folder: Path, name: str, dtype: str) -> np.ndarray:
    """Read an item."""
    file = item_file(folder, name)
    if not file.exists():
        raise DataError("missing-file", f"`{file}` is not there", _PREPARE_HINT)
    try:
        with open(check_regular_file(file, "item"), "rb") as stream:
            shape, stored_dtype = _read_header(stream)
            # Bytes, whatever the header says
            num_bytes = os.fstat(stream.fileno()).st_size - stream.tell()
            count = num_bytes // stored_dtype.itemsize
            values = np.fromfile(stream, stored_dtype, min(count, math.prod(shape)))
            checksum = stream.read()
    except DataError:
        raise
    except ValueError as error:
        raise DataError(
            "corrupt",
            f"`{file}` is not an array of numbers: {error}",
            _PREPARE_HINT,
        ) from None
    if stored_dtype != np.dtype(dtype) or values.size != math.prod(shape):
        raise DataError(
            "corrupt",
            f"`{file}` holds {values.size:,} numbers of {stored_dtype}, not {math.prod(shape):,} of {dtype}",
            _PREPARE_HINT,
        )
    if checksum != _checksum(values):
        raise DataError("corrupt", f"`{file}` is corrupted: CRC-32C mismatch", _PREPARE_HINT)
    return values.reshape(shape)


def _checksum(values: np.ndarray) -> bytes:
    """Compute CRC-32C, 1 ms for 5 MB; it stands behind the numbers, where no reader of .npy looks."""
    return google_crc32c.value(values.tobytes()).to_bytes(_CHECKSUM_BYTES, "little")


def remove_unfinished(folder: Path) -> None:
    """Delete what a killed process left half-written."""
    for directory in (folder, *(folder / ITEMS).glob("*")):
        remove_leftovers(directory)


def _read_header(stream: Any) -> tuple[tuple[int, ...], np.dtype]:
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("another version of .npy")
    with PARSING:
        try:
            shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        except Exception as error:
            # ValueError is declared; TokenError, RecursionError and others come, too.
            raise ValueError(f"its header: {error}") from None
    if not dtype.itemsize or any(size < 0 for size in shape) or math.prod(shape) > 2**40:
        raise ValueError(f"a shape of {shape}")
    if is_fortran or dtype.hasobject:
        raise ValueError("another layout")
    return shape, dtype


PREPARED = "prepared.json"
FORMAT = 1  # of the folder and of what is hashed; another number makes everything again
_ITEM = re.compile(r"[0-9a-f]{64}")  # names are hashes, and nothing that leads out of the folder


def clips_file_name(split: str) -> str:
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
        kind: "features": of a frozen backbone, or computed elsewhere; "frames": of a backbone that
            is trained along.
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
    grid: TokenGrid | None


@dataclass(frozen=True)
class _Split:
    clips: int


@dataclass(frozen=True, kw_only=True)
class _PreparedManifest(Preparation):
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
        path = Path(folder)
        if not (path / PREPARED).is_file():
            if (path / "items").is_dir():
                raise DataError(
                    "unfinished",
                    f"`{path}` holds clips that are not all prepared",
                    _PREPARE_HINT,
                )
            raise DataError(
                "wrong-kind",
                f"`{path}` holds no prepared clips",
                suggest_existing_path(path, "albertkit caption prepare DATA --out FOLDER"),
            )
        facts = read_typed(
            path / PREPARED,
            _PreparedManifest,
            "prepared clips",
            "delete it and prepare again",
        )
        if facts.format != FORMAT:
            raise DataError(
                "changed",
                f"`{path}` is of format {facts.format}, this albertkit reads {FORMAT}",
                "prepare it again",
            )
        splits = {
            split: _read_clips(path, split, counts.clips) for split, counts in facts.splits.items()
        }
        settings = {field.name: getattr(facts, field.name) for field in fields(Preparation)}
        return cls(folder=path, splits=splits, **settings)

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
            raise DataError(
                "missing-file",
                f"`{self.folder}` has no {split}, only {', '.join(self.splits)}",
                "prepare it too, or name one that is there: --dev-split in training, --split in evaluation",
            )
        return self.splits[split]

    def visual(self, split: str, index: int) -> np.ndarray:
        """Return what a model sees of a clip.

        Returns:
            float16 [M, D], M tokens in the order frames, height, width; or uint8 [T, S, S, 3].
        """
        return read_item(self.folder, self.clips(split)[index].item, self.dtype)

    def grid_of(self, split: str, index: int) -> TokenGrid:
        """Return the grid of a clip's visual tokens; features of unknown layout are one row along time."""
        if self.grid is not None:
            return self.grid
        shape = item_shape(self.folder, self.clips(split)[index].item, self.dtype)
        return TokenGrid(shape[0] if shape else len(self.visual(split, index)), 1, 1)


def _read_clips(folder: Path, split: str, count: int) -> tuple[PreparedClip, ...]:
    file = folder / clips_file_name(split)
    # A split called `../x` would lead out of the folder.
    if file.parent != folder:
        raise DataError(
            "bad-file",
            f"the split `{split}` of `{folder}` leaves the folder",
            "prepare it again",
        )
    try:
        lines = check_regular_file(file).read_bytes().splitlines() if file.exists() else []
        clips = tuple(msgspec.json.decode(line, type=PreparedClip) for line in lines)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise DataError(
            "bad-file",
            f"`{file}` is not what `prepare` writes: {error}",
            "prepare it again",
        ) from None
    if wrong := [clip.item for clip in clips if not _ITEM.fullmatch(clip.item)]:
        raise DataError(
            "bad-file",
            f"`{file}`: `{wrong[0]}` is not the name of an item",
            "prepare it again",
        )
    if len(clips) != count:
        raise DataError(
            "unfinished",
            f"`{file}` has {len(clips):,} clips, `{PREPARED}` counts {count:,}",
            _PREPARE_HINT,
        )
    return clips


def stack_visual(items: Sequence[np.ndarray]) -> tuple[Tensor, Tensor | None]:
    """Stack features [M, D], padded with zeros, or frames of clips; return a mask bool [B, M], too, if any M is shorter."""
    values = pad_sequence(
        [torch.from_numpy(np.ascontiguousarray(item)) for item in items],
        batch_first=True,
    )
    mask = torch.arange(values.shape[1]) < torch.tensor([len(item) for item in items])[:, None]
    return values, None if mask.all() else mask
