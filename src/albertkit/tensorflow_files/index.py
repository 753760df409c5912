"""The index of a tensor bundle: a sorted table of names and `BundleEntryProto`s, with a `BundleHeaderProto` under the empty name.

Source: tensorflow/core/protobuf/tensor_bundle.proto.
"""

import math
from dataclasses import dataclass
from typing import Any

from albertkit.tensorflow_files.dtypes import STRING, storage_type, type_name
from albertkit.tensorflow_files.encoding import MalformedError
from albertkit.tensorflow_files.messages import define_messages
from albertkit.tensorflow_files.table import read_table

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
    """What a tensor is and where. `checksum` is masked; `sliced`: only parts of the tensor are stored, under other names."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    sliced: bool


def read_index(data: bytes) -> tuple[int, dict[str, Entry]]:
    """Read a whole `.index` file.

    Args:
        data: Its bytes.

    Returns:
        The number of shards, and every tensor by name, in the order of the bytes of its name.

    Raises:
        MalformedError: It is damaged, or says what cannot be. DecodeError: It holds what protobuf cannot parse.
    """
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
