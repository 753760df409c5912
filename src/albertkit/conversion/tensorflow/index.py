"""The index of a tensor bundle: a sorted table of names and `BundleEntryProto`s, with a `BundleHeaderProto` under the empty name.

Source: tensorflow/core/protobuf/tensor_bundle.proto.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from albertkit.conversion.tensorflow.encoding import MalformedError, define_messages
from albertkit.conversion.tensorflow.table import read_table

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
    """Return TensorFlow's name of a type, or "type N" for one that is not known."""
    return _NAMES.get(number, f"type {number}")


def type_number(values: NDArray[Any]) -> int | None:
    """Return TensorFlow's number of an array's type; None for one that cannot be written."""
    if values.dtype.kind == "O" and all(isinstance(value, bytes) for value in values.flat):
        return STRING
    return _NUMBERS.get(values.dtype.name)


def storage_type(number: int) -> np.dtype | None:
    """Return how an element lies in the file, little-endian; None for strings and what is not read."""
    return _STORAGE.get(number)


def from_storage(stored: NDArray[np.uint8], number: int) -> NDArray[Any]:
    """Make stored bytes numbers: bool and the 16-bit floats in wider types, everything else in place."""
    values = stored.view(_STORAGE[number])
    name = _NAMES[number]
    if name == "bfloat16":  # the upper half of a float32
        wide = np.zeros(len(values), "<u4")
        wide.view("<u2")[1::2] = values
        return wide.view("<f4")
    if name == "float16":
        return values.astype("<f4")
    return values != 0 if name == "bool" else values


# About 70,000 tensors; an ALBERT has about 100 with its optimizer. Bounds what a hostile index takes.
MAX_INDEX_BYTES = 4 << 20
_MAX_RANK = 64  # numpy's
VERSION = 1  # kTensorBundleVersion

MESSAGES = define_messages(
    "tensor_bundle",
    {
        "Header": {"num_shards": (1, "int32"), "endianness": (2, "int32"), "version": (3, "Version")},
        "Version": {"producer": (1, "int32"), "min_consumer": (2, "int32")},
        "Entry": {
            "dtype": (1, "int32"), "shape": (2, "Shape"), "shard_id": (3, "int32"), "offset": (4, "int64"),
            "size": (5, "int64"), "crc32c": (6, "fixed32"), "slices": (7, "repeated Slice"),
        },
        "Shape": {"dim": (2, "repeated Dimension"), "unknown_rank": (3, "bool")},
        "Dimension": {"size": (1, "int64")},
        "Slice": {},
    },
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """Dtype, shape and place of a tensor. `checksum` is masked; `sliced`: only parts of the tensor are stored."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    sliced: bool


def read_index(data: bytes) -> tuple[int, dict[str, Entry]]:
    """Read a whole `.index` file."""
    table = read_table(data)
    key, value = next(table, (None, b""))
    if key != b"":
        raise MalformedError("has no header: it is not the index of a checkpoint")
    header = MESSAGES["Header"].FromString(value)
    if header.endianness != 0:
        raise MalformedError("was written on a big-endian machine")
    if header.version.min_consumer > VERSION:
        raise MalformedError(f"needs a reader of version {header.version.min_consumer}; this is version {VERSION}")
    entries = {}
    for key, value in table:
        if key.startswith(b"\0"):  # a slice's own entry; reading the whole variable names it
            continue
        try:
            name = key.decode()
        except UnicodeDecodeError:
            raise MalformedError(f"has a name that is not text: {key!r}") from None
        entries[name] = _entry(name, MESSAGES["Entry"].FromString(value), header.num_shards)
    return header.num_shards, entries


def _entry(name: str, stored: Any, num_shards: int) -> Entry:
    if stored.shape.unknown_rank or len(stored.shape.dim) > _MAX_RANK:
        raise MalformedError(f"has a tensor of {len(stored.shape.dim)} dimensions, `{name}`")
    shape = tuple(dimension.size for dimension in stored.shape.dim)
    if any(length < 0 for length in shape) or math.prod(length or 1 for length in shape) >> 59:
        raise MalformedError(f"has a tensor of an impossible shape, `{name}` {list(shape)}")
    if not 0 <= stored.shard_id < num_shards or stored.offset < 0 or stored.size < 0:
        raise MalformedError(f"has an impossible place for `{name}`: shard {stored.shard_id}, byte {stored.offset}")
    elements, storage, sliced = math.prod(shape), storage_type(stored.dtype), bool(stored.slices)
    if storage is not None and not sliced and stored.size != elements * storage.itemsize:
        raise MalformedError(
            f"says that `{name}`, {type_name(stored.dtype)} {list(shape)}, has {stored.size:,} bytes"
            f" and not {elements * storage.itemsize:,}"
        )
    if stored.dtype == STRING and not sliced and stored.size < elements:  # a length has at least one byte
        raise MalformedError(f"says that `{name}`, {elements:,} strings, has {stored.size:,} bytes")
    return Entry(stored.dtype, shape, stored.shard_id, stored.offset, stored.size, stored.crc32c, sliced)
