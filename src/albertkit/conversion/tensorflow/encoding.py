"""Encodings that TensorFlow's files share: varints, masked checksums, protobuf messages, and errors that name the file."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import google_crc32c
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from albertkit.errors import CheckpointError

_Field = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "int32": _Field.TYPE_INT32, "int64": _Field.TYPE_INT64, "float": _Field.TYPE_FLOAT, "bool": _Field.TYPE_BOOL,
    "string": _Field.TYPE_STRING, "bytes": _Field.TYPE_BYTES, "fixed32": _Field.TYPE_FIXED32,
}  # fmt: skip
_MASK = 0xA282EAD8  # tensorflow/core/lib/hash/crc32c.h


class MalformedError(ValueError):
    """Bytes that no writer of TensorFlow's makes; the message completes "the file …"."""


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
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


def masked(checksum: int) -> int:
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
