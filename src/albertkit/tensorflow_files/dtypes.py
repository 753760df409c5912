"""TensorFlow's types of numbers, and what they are in numpy."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

STRING = 7

# tensorflow/core/framework/types.proto: number, name, how an element is stored. None: it is not read here.
_TYPES = (
    (1, "float32", "<f4"), (2, "float64", "<f8"), (3, "int32", "<i4"), (4, "uint8", "u1"), (5, "int16", "<i2"),
    (6, "int8", "i1"), (STRING, "string", None), (8, "complex64", None), (9, "int64", "<i8"), (10, "bool", "u1"),
    (11, "qint8", None), (12, "quint8", None), (13, "qint32", None), (14, "bfloat16", "<u2"), (15, "qint16", None),
    (16, "quint16", None), (17, "uint16", "<u2"), (18, "complex128", None), (19, "float16", "<f2"),
    (20, "resource", None), (21, "variant", None), (22, "uint32", "<u4"), (23, "uint64", "<u8"),
)  # fmt: skip
_NAMES = {number: name for number, name, _ in _TYPES}
_STORAGE = {number: np.dtype(storage) for number, _, storage in _TYPES if storage}
_NUMBERS = {name: number for number, name, storage in _TYPES if storage}


def type_name(number: int) -> str:
    """TensorFlow's name of a type, or "type N" for one that is not known."""
    return _NAMES.get(number, f"type {number}")


def type_number(values: NDArray[Any]) -> int | None:
    """TensorFlow's number of an array's type; None for one that cannot be written."""
    if values.dtype.kind == "O" and all(isinstance(value, bytes) for value in values.flat):
        return STRING
    return _NUMBERS.get(values.dtype.name)


def storage_type(number: int) -> np.dtype | None:
    """How an element lies in the file, little-endian; None for strings and what is not read."""
    return _STORAGE.get(number)


def from_storage(stored: NDArray[np.uint8], number: int) -> NDArray[Any]:
    """Make stored bytes numbers: bool and the 16-bit floats in wider types, everything else in place.

    Args:
        stored: uint8 [bytes], aligned.
        number: The type.

    Returns:
        [elements], float32 for bfloat16 and float16.
    """
    values = stored.view(_STORAGE[number])
    name = _NAMES[number]
    if name == "bfloat16":  # the upper half of a float32
        wide = np.zeros(len(values), "<u4")
        wide.view("<u2")[1::2] = values
        return wide.view("<f4")
    if name == "float16":
        return values.astype("<f4")
    return values != 0 if name == "bool" else values
