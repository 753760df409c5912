"""Tensor bundles: the checkpoints of TensorFlow 1 and 2, `prefix.index` and `prefix.data-00000-of-00001`.

The index says of every tensor what it is and where; the shards are the tensors' bytes, end to end.
Source: tensorflow/core/util/tensor_bundle/tensor_bundle.cc.
"""

import math
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from albertkit.errors import CheckpointError
from albertkit.files import atomic_file
from albertkit.tensorflow_files.dtypes import STRING, from_storage, storage_type, type_name, type_number
from albertkit.tensorflow_files.encoding import MalformedError, crc32c, masked, reading
from albertkit.tensorflow_files.index import MAX_INDEX_BYTES, MESSAGES, VERSION, Entry, read_index
from albertkit.tensorflow_files.locating import find_prefix
from albertkit.tensorflow_files.object_graph import OBJECT_GRAPH, read_variable_names
from albertkit.tensorflow_files.strings import decode_strings, encode_strings
from albertkit.tensorflow_files.table import write_table


class TensorBundle:
    """A checkpoint opened for reading; use `TensorBundle.open`.

    Attributes:
        prefix: The path without `.index`.
        names: Every tensor, in the order of the bytes of its name, without the object graph.
    """

    def __init__(self, prefix: str, entries: Mapping[str, Entry], shards: Mapping[int, NDArray[np.uint8]]) -> None:
        self.prefix = prefix
        self.names = [name for name in entries if name != OBJECT_GRAPH]
        self._entries = entries
        self._shards = shards

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "TensorBundle":
        """Open a checkpoint: read its index, map its shards into memory, and check that every tensor lies inside them.

        Args:
            path: A prefix (`model.ckpt-best`), its `.index` file, or a folder that holds one checkpoint, itself or in
                `variables/`. Of several, the folder's `checkpoint` file chooses.

        Raises:
            DataError: not-found.
            CheckpointError: several-checkpoints, broken-tensorflow-file, missing-shard.
        """
        prefix = find_prefix(path)
        index = Path(f"{prefix}.index")
        with reading(index):
            size = index.stat().st_size
            if size > MAX_INDEX_BYTES:
                raise MalformedError(f"has {size:,} bytes; an index of more than {MAX_INDEX_BYTES:,} is not read")
            num_shards, entries = read_index(index.read_bytes())
        shards = {}
        for number in sorted({entry.shard for entry in entries.values()}):
            file = shard_file(prefix, number, num_shards)
            shards[number] = _map(file)
            with reading(file):
                _check_sizes(entries, number, len(shards[number]))
        return cls(prefix, entries, shards)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor; () is a scalar."""
        return self._entries[name].shape

    def dtype(self, name: str) -> str:
        """TensorFlow's name of a tensor's type: "float32", "bfloat16", "int64", "string", …"""
        return type_name(self._entries[name].dtype)

    def read(self, name: str) -> NDArray[Any]:
        """A tensor's values, with their checksum verified.

        Args:
            name: One of `names`.

        Returns:
            An array of its own, of the tensor's shape and type. bfloat16 and float16 become float32, which holds all
            their values; strings become an object array of bytes.

        Raises:
            CheckpointError: bad-checksum, sliced-variable, unsupported-dtype, broken-tensorflow-file.
        """
        entry = self._entries[name]
        if entry.sliced:
            raise CheckpointError(
                "sliced-variable", f"`{name}` in `{self.prefix}` is stored in slices (a partitioned variable)",
                "load it in TensorFlow and save it again without a partitioner",
            )  # fmt: skip
        if entry.dtype != STRING and storage_type(entry.dtype) is None:
            raise CheckpointError(
                "unsupported-dtype", f"`{name}` in `{self.prefix}` is of the type {self.dtype(name)}",
                "floats, integers, bool and strings are read",
            )  # fmt: skip
        stored = np.array(self._shards[entry.shard][entry.offset : entry.offset + entry.size])
        if entry.dtype == STRING:
            with reading(self.prefix):
                values, checksum = decode_strings(stored.tobytes(), math.prod(entry.shape))
        else:
            checksum = crc32c(stored)
        if masked(checksum) != entry.checksum:
            raise CheckpointError(
                "bad-checksum", f"the bytes of `{name}` in `{self.prefix}` are not those that were written",
                "copy or download the checkpoint again",
            )  # fmt: skip
        if entry.dtype != STRING:
            values = from_storage(stored, entry.dtype)
        return values.reshape(entry.shape)

    @cached_property
    def variable_names(self) -> dict[str, str]:
        """Every one of `names` with the name of its variable.

        TensorFlow 2 keys its checkpoints by the path of a variable in a graph of Python objects and writes that graph
        into them. A checkpoint of TensorFlow 1 has none: there, a key is the variable's name.

        Raises:
            CheckpointError: what `read` raises.
        """
        if OBJECT_GRAPH not in self._entries:
            return {name: name for name in self.names}
        graph = self.read(OBJECT_GRAPH)
        with reading(self.prefix):
            known = read_variable_names(graph)
        return {name: known.get(name, name) for name in self.names}


def shard_file(prefix: str, number: int, num_shards: int) -> str:
    """Name of a file of tensors' bytes."""
    return f"{prefix}.data-{number:05d}-of-{num_shards:05d}"


def _map(file: str) -> NDArray[np.uint8]:
    """A file's bytes, mapped into memory."""
    path = Path(file)
    if not path.is_file():
        raise CheckpointError(
            "missing-shard", f"there is no `{file}`, which holds the tensors of the index",
            "put the .index and every .data file of the checkpoint into one folder",
        )  # fmt: skip
    return np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)


def _check_sizes(entries: Mapping[str, Entry], shard: int, size: int) -> None:
    for name, entry in entries.items():
        if entry.shard == shard and entry.offset + entry.size > size:
            raise MalformedError(
                f"is cut short: it has {size:,} bytes, and `{name}` ends at byte {entry.offset + entry.size:,}"
            )


def write_bundle(prefix: str | os.PathLike[str], tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write a checkpoint of one shard that TensorFlow's own readers accept, byte for byte what its writer makes.

    Args:
        prefix: The path without `.index`; its folder is made if missing.
        tensors: Name to values: floats of 16, 32 or 64 bits, bfloat16 of the package ml_dtypes, integers, bool, or an
            object array of bytes for strings.

    Raises:
        CheckpointError: unsupported-dtype.
    """
    table = [(b"", MESSAGES["Header"](num_shards=1, version={"producer": VERSION}).SerializeToString())]
    with (
        atomic_file(f"{prefix}.index") as index,  # renamed last: without the index there is no checkpoint
        atomic_file(shard_file(str(prefix), 0, 1)) as shard,
    ):
        offset = 0
        for name in sorted(tensors):
            values = np.asarray(tensors[name])
            number = type_number(values)
            if number is None:
                raise CheckpointError(
                    "unsupported-dtype", f"`{name}` is an array of {values.dtype}, which cannot be written",
                    "floats, integers, bool and strings can: convert it with astype",
                )  # fmt: skip
            parts, checksum = _encode(values, number)
            for part in parts:
                shard.write(part)
            size = sum(map(len, parts))
            entry = MESSAGES["Entry"](
                dtype=number, shape={"dim": [{"size": length} for length in values.shape]}, offset=offset, size=size,
                crc32c=masked(checksum),
            )  # fmt: skip
            table.append((name.encode(), entry.SerializeToString()))
            offset += size
        index.write(write_table(table))


def _encode(values: NDArray[Any], number: int) -> tuple[Sequence[bytes | NDArray[np.uint8]], int]:
    """The bytes of a tensor, and their checksum."""
    if number == STRING:
        return encode_strings(values.ravel().tolist())
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)
    return [little], crc32c(little)
