"""What TensorFlow's files have in common: varints, masked checksums, and faults that are told with the file's name."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import google_crc32c
import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from albertkit.errors import CheckpointError

_MASK = 0xA282EAD8  # tensorflow/core/lib/hash/crc32c.h


class MalformedError(ValueError):
    """Bytes that no writer of TensorFlow's makes; the message completes "the file …"."""


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Turn what a parser finds wrong with bytes into an error that names their file.

    Raises:
        CheckpointError: broken-tensorflow-file.
    """
    try:
        yield
    except (MalformedError, DecodeError) as error:
        fact = error if isinstance(error, MalformedError) else f"holds a message that protobuf cannot parse ({error})"
        raise CheckpointError(
            "broken-tensorflow-file",
            f"`{path}` {fact}",
            "copy or download it again; compare its size with the source's",
        ) from None


def crc32c(*parts: bytes | NDArray[np.uint8]) -> int:
    """CRC-32C (Castagnoli) of parts laid end to end, about 11 GB/s a core."""
    checksum = 0
    for part in parts:
        checksum = google_crc32c.extend(checksum, part)
    return checksum


def masked(checksum: int) -> int:
    """A checksum as it is stored: rotated and shifted, so that checksums of bytes that hold checksums stay good ones."""
    return (((checksum >> 15) | (checksum << 17)) + _MASK) & 0xFFFFFFFF


def read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Decode seven bits a byte, lowest first, the eighth set where more follow.

    Args:
        data: Holds the number.
        position: Where it starts.
        end: Where `data` may not be read any more.

    Returns:
        The number, below 2**64, and the position behind it.

    Raises:
        MalformedError: It does not end before `end`, has more than 64 bits, or is not written as shortly as it can be.
    """
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
