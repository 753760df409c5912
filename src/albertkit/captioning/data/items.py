"""Items: one array a file, named by the hash of what it was made from, so that nothing is computed twice."""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import google_crc32c
import numpy as np

from albertkit.errors import DataError
from albertkit.files import atomic_file, load, plain_file, remove_leftovers, sha256_bytes, write_json

ITEMS = "items"
_AGAIN = "run the same `albertkit caption prepare` again: it makes what is missing or broken"
_CHECKSUM_BYTES = 4
# numpy reads the header of a .npy file with `ast`, which fails now and then when two threads do so at once (CPython issue
# 106905, seen with 3.11.7: "AST constructor recursion depth mismatch").
PARSING = Lock()


def item_name(facts: dict[str, Any]) -> str:
    """Hash everything that decides an item's numbers to 64 hex digits."""
    return sha256_bytes(json.dumps(facts, sort_keys=True).encode())


def item_file(folder: Path, name: str) -> Path:
    """Return where an item lies."""
    return folder / ITEMS / name[:2] / f"{name}.npy"


def write_item(folder: Path, name: str, array: np.ndarray) -> None:
    """Write an item, whole or not at all."""
    values = np.ascontiguousarray(array)
    with atomic_file(item_file(folder, name)) as stream:
        # Not with `write_array`: it ends in `tofile`, which says nothing when the disk is full at its last flush.
        np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(values))
        stream.write(values.tobytes())
        stream.write(_checksum(values))


def write_notes(folder: Path, name: str, notes: Sequence[str]) -> None:
    """Write what decoding noticed about a file, next to the item and before it."""
    if notes:
        write_json(item_file(folder, name).with_suffix(".json"), {"notes": list(notes), "sha256": _digest(list(notes))})


@dataclass
class _Notes:
    notes: list[str]
    sha256: str


def read_notes(folder: Path, name: str) -> list[str]:
    """Read the notes stored with an item; usually there are none."""
    file = item_file(folder, name).with_suffix(".json")
    if not file.exists():
        return []
    kept = load(file, _Notes, "notes of a clip", _AGAIN)
    if kept.sha256 != _digest(kept.notes):
        raise DataError("corrupt", f"`{file}` is corrupted: sha256 mismatch", _AGAIN)
    return kept.notes


def _digest(notes: Any) -> str:
    return sha256_bytes(json.dumps(notes).encode())


def item_shape(folder: Path, name: str, dtype: str) -> tuple[int, ...] | None:
    """Return the shape of an item by its first bytes; None where it is missing, cut off, or of another dtype."""
    file = item_file(folder, name)
    try:
        with open(plain_file(file), "rb") as stream:
            shape, found = _header(stream)
            size = stream.tell() + math.prod(shape) * found.itemsize + _CHECKSUM_BYTES
    except (OSError, ValueError):
        return None
    return shape if found == np.dtype(dtype) and file.stat().st_size == size else None


def is_sound(folder: Path, name: str, dtype: str) -> bool:
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
        raise DataError("missing-file", f"`{file}` is not there", _AGAIN)
    try:
        with open(plain_file(file, "item"), "rb") as stream:
            shape, found = _header(stream)
            there = os.fstat(stream.fileno()).st_size - stream.tell()  # bytes, whatever the header says
            count = there // found.itemsize
            values = np.fromfile(stream, found, min(count, math.prod(shape)))
            checksum = stream.read()
    except DataError:
        raise
    except ValueError as error:
        raise DataError("corrupt", f"`{file}` is not an array of numbers: {error}", _AGAIN) from None
    if found != np.dtype(dtype) or values.size != math.prod(shape):
        fact = f"`{file}` holds {values.size:,} numbers of {found}, not {math.prod(shape):,} of {dtype}"
        raise DataError("corrupt", fact, _AGAIN)
    if checksum != _checksum(values):
        raise DataError("corrupt", f"`{file}` is corrupted: CRC-32C mismatch", _AGAIN)
    return values.reshape(shape)


def _checksum(values: np.ndarray) -> bytes:
    """Compute CRC-32C, 1 ms for 5 MB; it stands behind the numbers, where no reader of .npy looks."""
    return google_crc32c.value(values.tobytes()).to_bytes(_CHECKSUM_BYTES, "little")


def remove_unfinished(folder: Path) -> None:
    """Delete what a killed process left half-written."""
    for place in (folder, *(folder / ITEMS).glob("*")):
        remove_leftovers(place)


def _header(stream: Any) -> tuple[tuple[int, ...], np.dtype]:
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("another version of .npy")
    with PARSING:
        try:
            shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        except Exception as error:  # ValueError is declared; TokenError, RecursionError and others come too
            raise ValueError(f"its header: {error}") from None
    if not dtype.itemsize or any(size < 0 for size in shape) or math.prod(shape) > 2**40:
        raise ValueError(f"a shape of {shape}")
    if is_fortran or dtype.hasobject:
        raise ValueError("another layout")
    return shape, dtype
