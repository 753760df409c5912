"""Tensors of strings: varint lengths, a masked checksum of the lengths, the strings end to end.

Checksums run over the lengths as fixed-width numbers, not as varints. Source: ReadStringTensor and WriteStringTensor of
tensorflow/core/util/tensor_bundle/tensor_bundle.cc.
"""

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from albertkit.tensorflow_files.encoding import MalformedError, crc32c, masked, read_varint, write_varint


def decode_strings(stored: bytes, count: int) -> tuple[NDArray[np.object_], int]:
    """Strings from their bytes.

    Args:
        stored: All bytes of the tensor.
        count: Number of strings.

    Returns:
        bytes [count], and the checksum of everything, which is for the caller to compare.

    Raises:
        MalformedError: The lengths do not fit the bytes.
    """
    lengths, position = [], 0
    for _ in range(count):
        length, position = read_varint(stored, position, len(stored))
        lengths.append(length)
    if stored or count:  # TensorFlow reads a tensor of no strings and no bytes as well
        end = position + 4
        if end + sum(lengths) != len(stored):
            raise MalformedError("has strings whose lengths do not fit their bytes")
        fixed = _fixed_width(lengths)
        if stored[position:end] != struct.pack("<I", masked(crc32c(fixed))):
            raise MalformedError("has strings whose lengths do not have the checksum written behind them")
        checksum, position = crc32c(fixed, stored[position:]), end
    else:
        checksum = 0
    values = np.empty(count, object)
    for i, length in enumerate(lengths):
        values[i] = stored[position : position + length]
        position += length
    return values, checksum


def encode_strings(strings: Sequence[bytes]) -> tuple[list[bytes], int]:
    """The bytes of a tensor of strings, in parts, and the checksum of everything."""
    lengths = [len(string) for string in strings]
    fixed = _fixed_width(lengths)
    behind = struct.pack("<I", masked(crc32c(fixed))) + b"".join(strings)
    return [b"".join(map(write_varint, lengths)), behind], crc32c(fixed, behind)


def _fixed_width(lengths: Sequence[int]) -> bytes:
    return b"".join(length.to_bytes(4 if length < 1 << 32 else 8, "little") for length in lengths)
