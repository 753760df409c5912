"""The sorted table of LevelDB that a tensor bundle keeps its `.index` in.

    data block …, metaindex block (empty), index block, footer of 48 bytes
    block    entries, uint32 offset of every restart point, uint32 number of them; then its type in one byte (0: not
             compressed) and a masked CRC-32C of block and type
    entry    varints: bytes shared with the key before, bytes not shared, bytes of the value; then those key bytes, the value.
             At a restart point, every 16 entries, nothing is shared
    index    a key at or behind the last of each data block, with its handle: varint offset, varint size
    footer   handle of the metaindex, handle of the index, zeros up to byte 40, magic number

TensorFlow reads tables compressed with snappy, but its bundles were never written so
(`TableBuilderOptions` in tensorflow/core/util/tensor_bundle/tensor_bundle.cc), and neither are they
read here.
"""

import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from albertkit.conversion.tensorflow.records import (
    MalformedError,
    crc32c,
    define_messages,
    mask_checksum,
    read_varint,
    write_varint,
)

# Bytes from which on a data block is closed; tensorflow/core/lib/io/table_options.h
BLOCK_SIZE = 262_144
# LevelDB's format: keys of 16 entries in a row share beginnings; at the end of the file stand two
# handles, padded to 40 bytes, and the magic number; behind each block its type and its checksum.
RESTART_INTERVAL = 16
_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
_FOOTER_SIZE = 48
_TRAILER_SIZE = 5
_UNCOMPRESSED, _SNAPPY = 0, 1
# Keys rebuilt from what they share, over the bytes of their block; about 4 in real files
_MAX_EXPANSION = 16


# No maintained package reads these tables without TensorFlow.
def read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield every key with its value, in ascending order.

    Every byte of the table is checked: blocks have to lie end to end, as they are written, and each
    has a checksum.
    """
    if len(data) < _FOOTER_SIZE or not data.endswith(_MAGIC):
        raise MalformedError(
            "does not end like a table of TensorFlow's: it is another kind of file, or cut short"
        )
    footer = len(data) - _FOOTER_SIZE
    magic = len(data) - len(_MAGIC)
    metaindex, position = _read_handle(data, footer, magic)
    index, position = _read_handle(data, position, magic)
    if any(data[position:magic]):
        raise MalformedError("has a damaged footer")
    end = 0
    previous = None
    for _, value in _read_entries(_verified_block(data, index, footer)):
        handle, stop = _read_handle(value, 0, len(value))
        if handle.offset != end or stop != len(value):
            raise MalformedError(
                f"has blocks that do not lie end to end: one at byte {handle.offset:,}, not {end:,}"
            )
        end = handle.end
        for key, value in _read_entries(_verified_block(data, handle, footer)):
            if previous is not None and key <= previous:
                raise MalformedError(f"has keys out of order: {key!r} behind {previous!r}")
            previous = key
            yield key, value
    if (metaindex.offset, index.offset, footer) != (end, metaindex.end, index.end):
        raise MalformedError("has blocks that do not lie end to end up to its footer")
    # LevelDB keeps filters and statistics there, TensorFlow nothing.
    for key, _ in _read_entries(_verified_block(data, metaindex, footer)):
        raise MalformedError(f"has a block of a kind that is not known, {key!r}")


class _Handle(NamedTuple):
    offset: int
    size: int

    @property
    def end(self) -> int:
        """Return the offset at which the block ends, trailer included."""
        return self.offset + self.size + _TRAILER_SIZE


def _read_handle(data: bytes, position: int, end: int) -> tuple[_Handle, int]:
    """Return a handle, and the position behind it."""
    offset, position = read_varint(data, position, end)
    size, position = read_varint(data, position, end)
    return _Handle(offset, size), position


def _verified_block(data: bytes, handle: _Handle, footer: int) -> bytes:
    """Return a block without its trailer, verified."""
    if handle.end > footer:
        raise MalformedError(
            f"is cut short: a block should end at byte {handle.end:,} of {footer:,}"
        )
    stop = handle.offset + handle.size
    kind, checksum = struct.unpack_from("<BI", data, stop)
    if mask_checksum(crc32c(data[handle.offset : stop + 1])) != checksum:
        raise MalformedError(
            f"is damaged: the block at byte {handle.offset:,} does not fit its checksum"
        )
    if kind != _UNCOMPRESSED:
        name = "snappy" if kind == _SNAPPY else f"an unknown method ({kind})"
        raise MalformedError(f"is compressed with {name}, as no checkpoint of TensorFlow's is")
    return data[handle.offset : stop]


def _read_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    if len(block) < 4:
        raise MalformedError("has a block without restart points")
    (restarts,) = struct.unpack_from("<I", block, len(block) - 4)
    end = len(block) - 4 * (restarts + 1)
    if restarts < 1 or end < 0:
        raise MalformedError(
            f"has a block of {len(block):,} bytes with {restarts:,} restart points"
        )
    position = 0
    key = b""
    rebuilt = 0
    while position < end:
        shared, position = read_varint(block, position, end)
        unshared, position = read_varint(block, position, end)
        size, position = read_varint(block, position, end)
        value_at = position + unshared
        if shared > len(key) or value_at + size > end:
            raise MalformedError("has an entry that leaves its block")
        rebuilt += shared
        if rebuilt > _MAX_EXPANSION * len(block):
            raise MalformedError(
                f"has keys that take more than {_MAX_EXPANSION} times their block's bytes"
            )
        key = key[:shared] + block[position:value_at]
        position = value_at + size
        yield key, block[value_at:position]


def write_table(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a table of the same bytes that TensorFlow's `TableBuilder` writes."""
    table = bytearray()
    # As in LevelDB: its keys are searched by bisection, which goes from restart to restart.
    index = _BlockBuilder(restart_interval=1)
    block = _BlockBuilder()
    handle = b""
    last = b""
    for key, value in entries:
        if handle:  # the key of a block's place in the index is known only now
            # The index has a short key, at or behind the block's last and before the next.
            at = _common_prefix_length(last, key)
            if at < min(len(last), len(key)) and last[at] + 1 < key[at]:
                last = last[:at] + bytes([last[at] + 1])
            index.add(last, handle)
            handle = b""
        block.add(key, value)
        last = key
        if block.size >= BLOCK_SIZE:
            handle = _append_block(table, block)
            block = _BlockBuilder()
    if block.entries:
        handle = _append_block(table, block)
    metaindex = _append_block(table, _BlockBuilder())
    if handle:
        # The last key of the index is a short one at or behind the last key of the table.
        at = next((i for i, byte in enumerate(last) if byte != 0xFF), len(last))
        if at < len(last):
            last = last[:at] + bytes([last[at] + 1])
        index.add(last, handle)
    handles = metaindex + _append_block(table, index)
    return bytes(table + handles.ljust(_FOOTER_SIZE - len(_MAGIC), b"\0") + _MAGIC)


class _BlockBuilder:
    def __init__(self, restart_interval: int = RESTART_INTERVAL) -> None:
        self.entries = bytearray()
        self._restart_interval = restart_interval
        self._restarts = [0]
        self._since_restart = 0
        self._last = b""

    @property
    def size(self) -> int:
        return len(self.entries) + 4 * (len(self._restarts) + 1)

    def add(self, key: bytes, value: bytes) -> None:
        shared = 0
        if self._since_restart < self._restart_interval:
            shared = _common_prefix_length(self._last, key)
        else:
            self._restarts.append(len(self.entries))
            self._since_restart = 0
        for number in (shared, len(key) - shared, len(value)):
            self.entries += write_varint(number)
        self.entries += key[shared:] + value
        self._last = key
        self._since_restart += 1

    def finish(self) -> bytes:
        restarts = [*self._restarts, len(self._restarts)]
        return bytes(self.entries) + struct.pack(f"<{len(restarts)}I", *restarts)


def _append_block(table: bytearray, block: _BlockBuilder) -> bytes:
    """Add a block with its trailer; its handle."""
    contents = block.finish()
    handle = write_varint(len(table)) + write_varint(len(contents))
    typed = contents + bytes([_UNCOMPRESSED])
    table += typed + struct.pack("<I", mask_checksum(crc32c(typed)))
    return handle


def _common_prefix_length(first: bytes, second: bytes) -> int:
    length = min(len(first), len(second))
    return next((i for i in range(length) if first[i] != second[i]), length)


STRING = 7

# tensorflow/core/framework/types.proto: number, name, how an element is stored. None: it is not
# read here.
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


def numbers_of_stored_bytes(stored: NDArray[np.uint8], dtype_number: int) -> NDArray[Any]:
    """Make stored bytes numbers: bool and the 16-bit floats in wider types, everything else in place."""
    values = stored.view(_STORAGE[dtype_number])
    name = _NAMES[dtype_number]
    if name == "bfloat16":  # the upper half of a float32
        wide = np.zeros(len(values), "<u4")
        wide.view("<u2")[1::2] = values
        return wide.view("<f4")
    if name == "float16":
        return values.astype("<f4")
    return values != 0 if name == "bool" else values


# About 70,000 tensors; an ALBERT has about 100 with its optimizer. Bounds what a hostile index
# takes.
MAX_INDEX_BYTES = 4 << 20
_MAX_RANK = 64  # numpy's
VERSION = 1  # kTensorBundleVersion

MESSAGES = define_messages(
    "tensor_bundle",
    {
        "Header": {
            "num_shards": (1, "int32"),
            "endianness": (2, "int32"),
            "version": (3, "Version"),
        },
        "Version": {"producer": (1, "int32"), "min_consumer": (2, "int32")},
        "Entry": {
            "dtype": (1, "int32"),
            "shape": (2, "Shape"),
            "shard_id": (3, "int32"),
            "offset": (4, "int64"),
            "size": (5, "int64"),
            "crc32c": (6, "fixed32"),
            "slices": (7, "repeated Slice"),
        },
        "Shape": {"dim": (2, "repeated Dimension"), "unknown_rank": (3, "bool")},
        "Dimension": {"size": (1, "int64")},
        "Slice": {},
    },
)


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


def read_num_shards_and_entries(data: bytes) -> tuple[int, dict[str, Entry]]:
    """Read a whole `.index` file."""
    table = read_table(data)
    key, value = next(table, (None, b""))
    if key != b"":
        raise MalformedError("has no header: it is not the index of a checkpoint")
    header = MESSAGES["Header"].FromString(value)
    if header.endianness != 0:
        raise MalformedError("was written on a big-endian machine")
    if header.version.min_consumer > VERSION:
        raise MalformedError(
            f"needs a reader of version {header.version.min_consumer}; this is version {VERSION}"
        )
    entries = {}
    for key, value in table:
        if key.startswith(b"\0"):  # a slice's own entry; reading the whole variable names it
            continue
        try:
            name = key.decode()
        except UnicodeDecodeError:
            raise MalformedError(f"has a name that is not text: {key!r}") from None
        stored = MESSAGES["Entry"].FromString(value)
        if stored.shape.unknown_rank or len(stored.shape.dim) > _MAX_RANK:
            raise MalformedError(f"has a tensor of {len(stored.shape.dim)} dimensions, `{name}`")
        shape = tuple(dimension.size for dimension in stored.shape.dim)
        # 2^59 numbers of 16 bytes are more than an int64 counts; a side of 0 must not hide the
        # others.
        if any(length < 0 for length in shape) or math.prod(length or 1 for length in shape) >> 59:
            raise MalformedError(f"has a tensor of an impossible shape, `{name}` {list(shape)}")
        if not 0 <= stored.shard_id < header.num_shards or stored.offset < 0 or stored.size < 0:
            raise MalformedError(
                f"has an impossible place for `{name}`: shard {stored.shard_id}, byte {stored.offset}"
            )
        elements = math.prod(shape)
        storage = storage_type(stored.dtype)
        sliced = bool(stored.slices)
        if storage is not None and not sliced and stored.size != elements * storage.itemsize:
            raise MalformedError(
                f"says that `{name}`, {type_name(stored.dtype)} {list(shape)}, has {stored.size:,} bytes"
                f" and not {elements * storage.itemsize:,}"
            )
        # A length has at least one byte
        if stored.dtype == STRING and not sliced and stored.size < elements:
            raise MalformedError(
                f"says that `{name}`, {elements:,} strings, has {stored.size:,} bytes"
            )
        entries[name] = Entry(
            stored.dtype,
            shape,
            stored.shard_id,
            stored.offset,
            stored.size,
            stored.crc32c,
            sliced,
        )
    return header.num_shards, entries
