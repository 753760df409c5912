"""Items: one array a file, named by the hash of what it was made from, so that nothing is computed twice."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from albertkit.errors import DataError
from albertkit.files import atomic_file, read_json, remove_leftovers, write_json

ITEMS = "items"
# numpy reads the header of a .npy file with `ast`, which fails now and then when two threads do so at once (CPython issue
# 106905, seen with 3.11.7: "AST constructor recursion depth mismatch").
PARSING = Lock()


def item_name(facts: dict[str, Any]) -> str:
    """Sha256 over everything that decides an item's numbers, 64 hex digits."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def item_file(folder: Path, name: str) -> Path:
    """Where an item lies."""
    return folder / ITEMS / name[:2] / f"{name}.npy"


def write_item(folder: Path, name: str, array: np.ndarray) -> None:
    """Write an item, whole or not at all."""
    with atomic_file(item_file(folder, name)) as stream:
        np.lib.format.write_array(stream, np.ascontiguousarray(array), allow_pickle=False)


def write_notes(folder: Path, name: str, notes: Sequence[str]) -> None:
    """Keep what was not as it should be with a file, beside the item and before it is there."""
    if notes:
        write_json(item_file(folder, name).with_suffix(".json"), list(notes))


def read_notes(folder: Path, name: str) -> list[str]:
    """What `write_notes` kept; mostly nothing.

    Raises:
        DataError: broken-json.
    """
    file = item_file(folder, name).with_suffix(".json")
    return read_json(file, "notes") if file.exists() else []


def item_shape(folder: Path, name: str, dtype: str) -> tuple[int, ...] | None:
    """The shape of an item by its first bytes; None where it is missing, cut off, or of another dtype."""
    file = item_file(folder, name)
    try:
        with open(file, "rb") as stream:
            shape, found = _header(stream)
            size = stream.tell() + int(np.prod(shape)) * found.itemsize
    except (OSError, ValueError):
        return None
    return shape if found == np.dtype(dtype) and file.stat().st_size == size else None


def read_item(folder: Path, name: str, dtype: str) -> np.ndarray:
    """Read an item.

    Raises:
        DataError: missing-item, broken-item.
    """
    file, hint = item_file(folder, name), "run the same `albertkit caption prepare` again: it makes what is missing"
    try:
        with open(file, "rb") as stream:
            shape, found = _header(stream)
            values = np.fromfile(stream, found)
    except FileNotFoundError:
        raise DataError("missing-item", f"`{file}` is not there", hint) from None
    except ValueError as error:
        raise DataError("broken-item", f"`{file}` is no array of numbers: {error}", hint) from None
    if found != np.dtype(dtype) or values.size != np.prod(shape):
        raise DataError(
            "broken-item",
            f"`{file}` holds {values.size:,} numbers of {found}, not {int(np.prod(shape)):,} of {dtype}",
            hint,
        )
    return values.reshape(shape)


def remove_unfinished(folder: Path) -> None:
    """Delete what a killed process left half-written."""
    for place in (folder, *(folder / ITEMS).glob("*")):
        remove_leftovers(place)


def _header(stream: Any) -> tuple[tuple[int, ...], np.dtype]:
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("another version of .npy")
    with PARSING:
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    if is_fortran or dtype.hasobject:
        raise ValueError("another layout")
    return shape, dtype
