"""Encodings that TensorFlow's files share, and the files of records that are made of nothing else; without TensorFlow.

Encodings are varints, masked checksums (CRC-32C) and protobuf messages. A TFRecord file is a chain
of records: length (8 bytes, little-endian), its checksum (4), the payload, its checksum (4).
Sources: tensorflow/core/lib/io/record_reader.h and tensorflow/core/example/example.proto.
"""

import hashlib
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from albertkit.errors import CheckpointError, DataError
from albertkit.files import StrPath

_Field = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "int32": _Field.TYPE_INT32, "int64": _Field.TYPE_INT64, "float": _Field.TYPE_FLOAT, "bool": _Field.TYPE_BOOL,
    "string": _Field.TYPE_STRING, "bytes": _Field.TYPE_BYTES, "fixed32": _Field.TYPE_FIXED32,
}  # fmt: skip
_MASK = 0xA282EAD8  # tensorflow/core/lib/hash/crc32c.h


class MalformedError(ValueError):
    """Bytes that no writer of TensorFlow's makes; the message completes "the file …"."""


@contextmanager
def parser_errors_name_file(path: str | Path) -> Iterator[None]:
    """Turn what a parser finds wrong with bytes into an error that names their file."""
    try:
        yield
    except (MalformedError, DecodeError) as error:
        fact = (
            error
            if isinstance(error, MalformedError)
            else f"holds a message that protobuf cannot parse ({error})"
        )
        raise CheckpointError(
            "corrupt",
            f"`{path}` {fact}",
            "copy or download it again; compare its size with the source's",
        ) from None


def crc32c(*parts: bytes | NDArray[np.uint8]) -> int:
    """Compute the CRC-32C (Castagnoli) of parts laid end to end, about 11 GB/s a core."""
    checksum = 0
    for part in parts:
        checksum = google_crc32c.extend(checksum, part)
    return checksum


def mask_checksum(checksum: int) -> int:
    """Return a checksum as it is stored: rotated and shifted, so that checksums of bytes that hold checksums stay good ones."""
    return (((checksum >> 15) | (checksum << 17)) + _MASK) & 0xFFFFFFFF


def read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Decode seven bits a byte, lowest first, the eighth set where more follow."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            raise MalformedError("ends inside a number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64 or (byte == 0 and shift):
                break
            return value, position
    raise MalformedError("holds a number of more than 64 bits, or in more bytes than it needs")


def write_varint(value: int) -> bytes:
    """Encode a number of at least 0 as `read_varint` decodes it."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def define_messages(
    file: str, messages: Mapping[str, Mapping[str, tuple[int, str]]]
) -> dict[str, type[Message]]:
    """Make message classes from a description; protobuf's own library parses them.

    Only the fields that are read or written are described, a parser keeps the others as unknown.
    Field numbers are those of tensorflow/core/protobuf and tensorflow/core/example.

    Args:
        file: A name for this set; no other set may have it.
        messages: Message name to field name to (number, type). A type is a scalar's name or another
            message's of the set, behind "repeated " for a list; "map KEY VALUE" is a map.

    Returns:
        Message name to class.
    """
    package = f"albertkit.{file}"
    described = descriptor_pb2.FileDescriptorProto(
        name=f"albertkit/{file}.proto",
        package=package,
        syntax="proto3",
    )
    for name, fields in messages.items():
        message = described.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            if kind.startswith("map "):
                _, key, value = kind.split()
                entry = message.nested_type.add(
                    name="".join(map(str.capitalize, field.split("_"))) + "Entry"
                )
                entry.options.map_entry = True
                _add_field(entry, package, "key", 1, key)
                _add_field(entry, package, "value", 2, value)
                kind = f"repeated {name}.{entry.name}"
            _add_field(message, package, field, number, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(described)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }


def _add_field(
    message: descriptor_pb2.DescriptorProto,
    package: str,
    name: str,
    number: int,
    kind: str,
) -> None:
    field = message.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
    if kind.startswith("repeated "):
        kind = kind.removeprefix("repeated ")
        field.label = _Field.LABEL_REPEATED
    if kind in _TYPES:
        field.type = _TYPES[kind]
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{package}.{kind}"


# --- records --------------------------------------------------------------------------------------

# Length and its checksum; checksum of the payload
_HEAD, _FOOT = struct.Struct("<QI"), struct.Struct("<I")
_GZIP = b"\x1f\x8b"

_Example = define_messages(
    "example",
    {
        "BytesList": {"value": (1, "repeated bytes")},
        "FloatList": {"value": (1, "repeated float")},
        "Int64List": {"value": (1, "repeated int64")},
        "Feature": {
            "bytes_list": (1, "BytesList"),
            "float_list": (2, "FloatList"),
            "int64_list": (3, "Int64List"),
        },
        "Features": {"feature": (1, "map string Feature")},
        "Example": {"features": (1, "Features")},
    },
)["Example"]
_DTYPES = {"bytes_list": object, "float_list": np.float32, "int64_list": np.int64}


class RecordFile:
    """The records of a file, found by one scan of their lengths and then read in any order.

    The scan reads the 16 bytes between two payloads, and keeps 8 bytes a record.

    Args:
        path: A TFRecord file that is not compressed.

    Attributes:
        path: Where it lies.
        fingerprint: SHA-256 of all lengths and checksums, and so of every payload as far as CRC-32C
            tells them apart.
    """

    def __init__(self, path: StrPath) -> None:
        self.path = Path(path)
        digest = hashlib.sha256()
        starts: list[int] = []
        with open(self.path, "rb") as stream:
            descriptor = stream.fileno()
            size = os.fstat(stream.fileno()).st_size
            position = 0
            head = os.pread(descriptor, _HEAD.size, 0)
            while position < size:
                number = len(starts)
                if head[:2] == _GZIP and not number:
                    raise DataError(
                        "unsupported",
                        f"`{self.path}` is compressed with gzip, which cannot be read in random order",
                        f"unpack it first: gzip -dc {self.path} > unpacked.tfrecord",
                    )
                is_complete = len(head) == _HEAD.size
                good = _is_head(head)
                if not good and not number:
                    raise DataError(
                        "corrupt",
                        f"`{self.path}` is not a TFRecord file: its first 12 bytes are not the start of a record",
                        "give files that TensorFlow's TFRecordWriter or `albertkit corpus export` wrote",
                    )
                length = _HEAD.unpack(head)[0] if is_complete else 0
                end = position + _HEAD.size + length + _FOOT.size
                if is_complete and not good:
                    raise self._bad_checksum_error("length", number, position)
                if end > size:
                    raise self._truncated_error(number, position, size)
                digest.update(head)
                starts.append(position)
                position = end
                foot_and_head = os.pread(descriptor, _FOOT.size + _HEAD.size, position - _FOOT.size)
                digest.update(foot_and_head[: _FOOT.size])
                head = foot_and_head[_FOOT.size :]
        self._starts = np.array([*starts, position], np.int64)
        self.fingerprint = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __iter__(self) -> Iterator[bytes]:
        with open(self.path, "rb") as stream:
            for number in range(len(self)):
                yield self._read_payload(stream.fileno(), number)

    def __getitem__(self, number: int) -> bytes:
        """Return the payload of a record, its checksum verified."""
        # Not kept open: there may be more files than descriptors
        with open(self.path, "rb", buffering=0) as stream:
            return self._read_payload(stream.fileno(), number)

    def _read_payload(self, descriptor: int, number: int) -> bytes:
        start, end = self._starts[number : number + 2].tolist()
        payload = os.pread(descriptor, end - start - _HEAD.size, start + _HEAD.size)
        if len(payload) != end - start - _HEAD.size:  # the file has changed since it was indexed
            raise self._truncated_error(number, start, start + _HEAD.size + len(payload))
        payload, foot = payload[: -_FOOT.size], payload[-_FOOT.size :]
        if mask_checksum(crc32c(payload)) != _FOOT.unpack(foot)[0]:
            raise self._bad_checksum_error("content", number, start)
        return payload

    def _truncated_error(self, number: int, position: int, file_size: int) -> DataError:
        return DataError(
            "corrupt",
            f"`{self.path}` ends at byte {file_size:,}, inside record {number:,}, which starts at byte {position:,}",
            "copy or download it again; compare its size with the source's",
        )

    def _bad_checksum_error(self, part: str, number: int, position: int) -> DataError:
        return DataError(
            "corrupt",
            f"the {part} of record {number:,} of `{self.path}`, at byte {position:,}, does not match its checksum",
            "copy or download it again",
        )


def may_hold_records(file: StrPath) -> bool:
    """Return whether a file is empty, compressed, or begins with the length of a record and its checksum."""
    with open(file, "rb") as stream:
        head = stream.read(_HEAD.size)
    if not head or head.startswith(_GZIP):
        return True
    return _is_head(head)


def _is_head(head: bytes) -> bool:
    return len(head) == _HEAD.size and mask_checksum(crc32c(head[:8])) == _HEAD.unpack(head)[1]


def frame_record(payload: bytes) -> bytes:
    """Return a payload as a record: with its length and the two checksums."""
    length = struct.pack("<Q", len(payload))
    return b"".join(
        (
            length,
            _FOOT.pack(mask_checksum(crc32c(length))),
            payload,
            _FOOT.pack(mask_checksum(crc32c(payload))),
        )
    )


def read_example(payload: bytes) -> dict[str, NDArray[Any]]:
    """Return the features of a tf.train.Example."""
    try:
        features = _Example.FromString(payload).features.feature
    except DecodeError as error:
        raise DataError(
            "corrupt",
            f"not a tf.train.Example ({error})",
            "copy it again, or write it again",
        ) from None
    arrays: dict[str, NDArray[Any]] = {}
    for name, feature in features.items():
        lists = feature.ListFields()  # one of the three; none for a feature without values
        arrays[name] = np.empty(0, np.int64)
        if lists:
            kind, numbers = lists[0]
            arrays[name] = np.array(numbers.value, _DTYPES[kind.name])
    return arrays


# The original's order is that of a hash map, over 100 orders in 200 records: whole files differ,
# every entry is equal.
def encode_example(features: Mapping[str, Any]) -> bytes:
    """Return a tf.train.Example, its features in order of their names, so that equal features make equal bytes."""
    message = _Example()
    for name, feature in features.items():
        values = feature.tolist() if isinstance(feature, np.ndarray) else list(feature)
        first = values[0] if values else 0
        kind = "int64_list"
        if isinstance(first, bytes):
            kind = "bytes_list"
        elif isinstance(first, float):
            kind = "float_list"
        getattr(message.features.feature[name], kind).value.extend(values)
    return message.SerializeToString(deterministic=True)
