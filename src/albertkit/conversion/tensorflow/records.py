"""TFRecord files and the tf.train.Example messages in them, without TensorFlow.

A file is a chain of records: length (8 bytes, little-endian), its checksum (4), the payload, its
checksum (4). Checksums are masked CRC-32C. Source: tensorflow/core/lib/io/record_reader.h and
tensorflow/core/example/example.proto.
"""

import hashlib
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from albertkit.conversion.tensorflow.encoding import crc32c, define_messages, masked
from albertkit.errors import DataError
from albertkit.files import StrPath

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
                    raise self._bad_checksum("length", number, position)
                if end > size:
                    raise self._truncated(number, position, size)
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
                yield self._payload(stream.fileno(), number)

    def __getitem__(self, number: int) -> bytes:
        """Return the payload of a record, its checksum verified."""
        # Not kept open: there may be more files than descriptors
        with open(self.path, "rb", buffering=0) as stream:
            return self._payload(stream.fileno(), number)

    def _payload(self, descriptor: int, number: int) -> bytes:
        start, end = self._starts[number : number + 2].tolist()
        payload = os.pread(descriptor, end - start - _HEAD.size, start + _HEAD.size)
        if len(payload) != end - start - _HEAD.size:  # the file has changed since it was indexed
            raise self._truncated(number, start, start + _HEAD.size + len(payload))
        payload, foot = payload[: -_FOOT.size], payload[-_FOOT.size :]
        if masked(crc32c(payload)) != _FOOT.unpack(foot)[0]:
            raise self._bad_checksum("content", number, start)
        return payload

    def _truncated(self, number: int, position: int, size: int) -> DataError:
        return DataError(
            "corrupt",
            f"`{self.path}` ends at byte {size:,}, inside record {number:,}, which starts at byte {position:,}",
            "copy or download it again; compare its size with the source's",
        )

    def _bad_checksum(self, part: str, number: int, position: int) -> DataError:
        return DataError(
            "corrupt",
            f"the {part} of record {number:,} of `{self.path}`, at byte {position:,}, does not match its checksum",
            "copy or download it again",
        )


def begins_with_record(file: StrPath) -> bool:
    """Return whether a file is empty, compressed, or begins with the length of a record and its checksum."""
    with open(file, "rb") as stream:
        head = stream.read(_HEAD.size)
    if not head or head.startswith(_GZIP):
        return True
    return _is_head(head)


def _is_head(head: bytes) -> bool:
    return len(head) == _HEAD.size and masked(crc32c(head[:8])) == _HEAD.unpack(head)[1]


def frame(payload: bytes) -> bytes:
    """Return a payload as a record: with its length and the two checksums."""
    length = struct.pack("<Q", len(payload))
    return b"".join(
        (length, _FOOT.pack(masked(crc32c(length))), payload, _FOOT.pack(masked(crc32c(payload))))
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
def example(features: Mapping[str, Any]) -> bytes:
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
