"""Tensor bundles: the checkpoints of TensorFlow 1 and 2, `prefix.index` and `prefix.data-00000-of-00001`.

The index says of every tensor what it is and where; the shards are the tensors' bytes, end to end.
Source: tensorflow/core/util/tensor_bundle/tensor_bundle.cc.
"""

import errno
import gzip
import math
import re
import struct
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from albertkit.conversion.tensorflow.records import (
    MalformedError,
    crc32c,
    define_messages,
    mask_checksum,
    parser_errors_name_file,
    read_varint,
    write_varint,
)
from albertkit.conversion.tensorflow.table import (
    MAX_INDEX_BYTES,
    MESSAGES,
    STRING,
    VERSION,
    Entry,
    numbers_of_stored_bytes,
    read_num_shards_and_entries,
    storage_type,
    type_name,
    type_number,
    write_table,
)
from albertkit.errors import AlbertKitError, CheckpointError, DataError
from albertkit.files import StrPath, atomic_file

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# About 15,000 variables. A graph of nothing but empty nodes takes 30 times its bytes
MAX_GRAPH_BYTES = 4 << 20

_ObjectGraph: Any = define_messages(
    "object_graph",
    {
        "ObjectGraph": {"nodes": (1, "repeated Node")},
        "Node": {
            "children": (1, "repeated Child"),
            "attributes": (2, "repeated Attribute"),
            "has_checkpoint_values": (5, "BoolValue"),
        },
        "Child": {"node_id": (1, "int32"), "local_name": (2, "string")},
        "Attribute": {
            "name": (1, "string"),
            "full_name": (2, "string"),
            "checkpoint_key": (3, "string"),
        },
        "BoolValue": {"value": (1, "bool")},
    },
)["ObjectGraph"]
_ATTRIBUTE = "VARIABLE_VALUE"


@dataclass(frozen=True)
class Variable:
    """A variable in a graph of objects.

    Attributes:
        path: Names of the attributes that lead to it from the root; its key is made of them.
        name: The variable's own name.
        other_paths: More paths to it.
    """

    path: tuple[str, ...]
    name: str
    other_paths: tuple[tuple[str, ...], ...] = ()

    @property
    def key(self) -> str:
        """The key of its values in the checkpoint; dots and slashes in a name are escaped with a dot."""
        escaped = (part.replace(".", "..").replace("/", ".S") for part in self.path)
        return f"{'/'.join(escaped)}/.ATTRIBUTES/{_ATTRIBUTE}"


def write_object_graph(variables: Iterable[Variable]) -> bytes:
    """Make the graph of objects that a checkpoint with these variables holds, under `OBJECT_GRAPH`.

    Paths with the same names lead through the same objects; two paths to a variable end at one
    node.
    """
    graph = _ObjectGraph()
    graph.nodes.add()
    children: list[dict[str, int]] = [{}]  # of each node: name to node

    def node_at(path: tuple[str, ...], end: int | None = None) -> int:
        node = 0
        for index, part in enumerate(path):
            if part not in children[node]:
                last = index == len(path) - 1
                following = end if last and end is not None else len(children)
                if following == len(children):
                    graph.nodes.add()
                    children.append({})
                children[node][part] = following
                graph.nodes[node].children.add(node_id=following, local_name=part)
            node = children[node][part]
        return node

    for variable in variables:
        node = node_at(variable.path)
        graph.nodes[node].attributes.add(
            name=_ATTRIBUTE,
            full_name=variable.name,
            checkpoint_key=variable.key,
        )
        for other_path in variable.other_paths:
            node_at(other_path, node)
    for node in graph.nodes:
        node.has_checkpoint_values.value = True  # every node leads to a variable
    return graph.SerializeToString()


def read_variable_names(graph: NDArray[Any]) -> dict[str, str]:
    """Read the variable names by checkpoint key."""
    if graph.shape != () or not isinstance(graph.item(), bytes):
        raise MalformedError(
            f"has an object graph that is not one string but {graph.dtype} {list(graph.shape)}"
        )
    if len(graph.item()) > MAX_GRAPH_BYTES:
        raise MalformedError(
            f"has an object graph of {len(graph.item()):,} bytes; more than {MAX_GRAPH_BYTES:,} are not read"
        )
    nodes = _ObjectGraph.FromString(graph.item()).nodes
    return {a.checkpoint_key: a.full_name for node in nodes for a in node.attributes if a.full_name}


_INDEX = ".index"
# The first line of tf.train.CheckpointState
_STATE = re.compile(r'^model_checkpoint_path: "(.*)"', re.MULTILINE)


class TensorBundle:
    """A checkpoint opened for reading; use `TensorBundle.open`.

    Attributes:
        prefix: The path without `.index`.
        names: Every tensor, in the order of the bytes of its name, without the object graph.
    """

    def __init__(
        self,
        prefix: str,
        entries: Mapping[str, Entry],
        shards: Mapping[int, NDArray[np.uint8]],
    ) -> None:
        self.prefix = prefix
        self.names = [name for name in entries if name != OBJECT_GRAPH]
        self._entries = entries
        self._shards = shards

    @classmethod
    def open(cls, path: StrPath) -> "TensorBundle":
        """Open a checkpoint: read its index, map its shards into memory, and check that every tensor lies inside them."""
        prefix = find_prefix(path)
        index = Path(f"{prefix}.index")
        with parser_errors_name_file(index):
            size = index.stat().st_size
            if size > MAX_INDEX_BYTES:
                raise MalformedError(
                    f"has {size:,} bytes; an index of more than {MAX_INDEX_BYTES:,} is not read"
                )
            num_shards, entries = read_num_shards_and_entries(index.read_bytes())
        shards = {}
        for number in sorted({entry.shard for entry in entries.values()}):
            file = bundle_shard_name(prefix, number, num_shards)
            path_of_shard = Path(file)
            if not path_of_shard.is_file():
                raise CheckpointError(
                    "missing-file",
                    f"there is no `{file}`, which holds the tensors of the index",
                    "put the .index and every .data file into one folder",
                )
            size = path_of_shard.stat().st_size
            # An empty file cannot be mapped.
            shards[number] = np.memmap(file, np.uint8, "r") if size else np.zeros(0, np.uint8)
            with parser_errors_name_file(file):
                for name, entry in entries.items():
                    end = entry.offset + entry.size
                    if entry.shard == number and end > size:
                        raise MalformedError(
                            f"is cut short: it has {size:,} bytes, and `{name}` ends at byte {end:,}"
                        )
        return cls(prefix, entries, shards)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor; () is a scalar."""
        return self._entries[name].shape

    def dtype(self, name: str) -> str:
        """Return TensorFlow's name of a tensor's type: "float32", "bfloat16", "int64", "string", …"""
        return type_name(self._entries[name].dtype)

    def read(self, name: str) -> NDArray[Any]:
        """Return a tensor's values, with their checksum verified."""
        entry = self._entries[name]
        if entry.sliced:
            raise CheckpointError(
                "unsupported",
                f"`{name}` in `{self.prefix}` is stored in slices (a partitioned variable)",
                "load it in TensorFlow and save it again without a partitioner",
            )
        if entry.dtype != STRING and storage_type(entry.dtype) is None:
            raise CheckpointError(
                "unsupported",
                f"`{name}` in `{self.prefix}` is of the type {self.dtype(name)}",
                "floats, integers, bool and strings are read",
            )
        # Copied: the file is read once, for checksum and values.
        stored = np.array(self._shards[entry.shard][entry.offset : entry.offset + entry.size])
        if entry.dtype == STRING:
            with parser_errors_name_file(self.prefix):
                values, checksum = decode_strings_and_checksum(
                    stored.tobytes(), math.prod(entry.shape)
                )
        else:
            checksum = crc32c(stored)
        if mask_checksum(checksum) != entry.checksum:
            raise CheckpointError(
                "corrupt",
                f"`{name}` in `{self.prefix}` is corrupted: crc32c mismatch",
                "copy or download the checkpoint again",
            )
        if entry.dtype != STRING:
            values = numbers_of_stored_bytes(stored, entry.dtype)
        return values.reshape(entry.shape)

    @cached_property
    def variable_names(self) -> dict[str, str]:
        """Every one of `names` with the name of its variable.

        TensorFlow 2 keys its checkpoints by the path of a variable in a graph of Python objects and
        writes that graph into them. A checkpoint of TensorFlow 1 has none: there, a key is the
        variable's name.
        """
        if OBJECT_GRAPH not in self._entries:
            return {name: name for name in self.names}
        graph = self.read(OBJECT_GRAPH)
        with parser_errors_name_file(self.prefix):
            names_by_key = read_variable_names(graph)
        return {name: names_by_key.get(name, name) for name in self.names}


def bundle_shard_name(prefix: str, number: int, num_shards: int) -> str:
    """Name of a file of tensors' bytes."""
    return f"{prefix}.data-{number:05d}-of-{num_shards:05d}"


def write_bundle(prefix: StrPath, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write a checkpoint of one shard that TensorFlow's own readers accept, byte for byte what its writer makes."""
    table = [
        (b"", MESSAGES["Header"](num_shards=1, version={"producer": VERSION}).SerializeToString())
    ]
    with (
        # Renamed last: without the index there is no checkpoint.
        atomic_file(f"{prefix}.index") as index,
        atomic_file(bundle_shard_name(str(prefix), 0, 1)) as shard,
    ):
        offset = 0
        # The index wants the order of the bytes of names, which is that of their characters.
        for name in sorted(tensors):
            values = np.asarray(tensors[name])
            number = type_number(values)
            if number is None:
                raise CheckpointError(
                    "unsupported",
                    f"`{name}` is an array of {values.dtype}, which cannot be written",
                    "floats, integers, bool and strings can: convert it with astype",
                )
            parts: Sequence[bytes | NDArray[np.uint8]]
            if number == STRING:
                parts, checksum = encode_strings_and_checksum(values.ravel().tolist())
            else:
                little = (
                    np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
                    .reshape(-1)
                    .view(np.uint8)
                )
                parts = [little]
                checksum = crc32c(little)
            for part in parts:
                shard.write(part)
            size = sum(map(len, parts))
            shape = {"dim": [{"size": length} for length in values.shape]}
            entry = MESSAGES["Entry"](
                dtype=number,
                shape=shape,
                offset=offset,
                size=size,
                crc32c=mask_checksum(checksum),
            )
            table.append((name.encode(), entry.SerializeToString()))
            offset += size
        index.write(write_table(table))


def find_prefix(path: StrPath) -> str:
    """Return the prefix of the one checkpoint at a path: a prefix, an `.index` file, or a folder, itself or its `variables/`.

    Of several, the folder's file `checkpoint`, which `tf.train.Saver` keeps up to date, chooses.
    """
    location = Path(path)
    if not location.is_dir():
        prefix = str(location).removesuffix(_INDEX)
        if Path(prefix + _INDEX).is_file():
            return prefix
        raise DataError(
            "not-found",
            f"no TensorFlow checkpoint `{prefix}`: there is no file `{prefix}{_INDEX}`",
            "give the path without .index, or the folder"
            + _list_prefixes(_find_prefixes(location.parent)),
        )
    prefixes = [*_find_prefixes(location), *_find_prefixes(location / "variables")]
    state = location / "checkpoint"
    if len(prefixes) > 1 and state.is_file():
        match = _STATE.search(state.read_text(encoding="utf-8", errors="replace"))
        # Only the last part of the path counts, for folders are moved.
        if match and location / Path(match[1]).name in prefixes:
            return str(location / Path(match[1]).name)
    if len(prefixes) > 1:
        raise CheckpointError(
            "ambiguous",
            f"`{location}` holds {len(prefixes)} TensorFlow checkpoints",
            "name one of them" + _list_prefixes(prefixes),
        )
    if not prefixes:
        raise DataError(
            "not-found",
            f"no TensorFlow checkpoint in `{location}`: no file *{_INDEX}, there or in variables/",
            "give the folder that holds the .index and .data files",
        )
    return str(prefixes[0])


def _find_prefixes(folder: Path) -> list[Path]:
    return sorted(file.with_suffix("") for file in folder.glob(f"*{_INDEX}") if file.is_file())


def _list_prefixes(prefixes: list[Path]) -> str:
    return ": " + ", ".join(f"`{prefix}`" for prefix in prefixes) if prefixes else ""


def decode_strings_and_checksum(stored: bytes, count: int) -> tuple[NDArray[np.object_], int]:
    """Return `count` strings (object array of bytes) from their bytes, and the checksum of everything, for the caller to compare.

    Varint lengths, a masked checksum of the lengths, the strings end to end. Checksums run over the
    lengths as fixed-width numbers, not as varints. Source: ReadStringTensor and WriteStringTensor
    of tensor_bundle.cc.
    """
    lengths = []
    position = 0
    for _ in range(count):
        length, position = read_varint(stored, position, len(stored))
        lengths.append(length)
    if stored or count:  # TensorFlow reads a tensor of no strings and no bytes as well
        end = position + 4
        if end + sum(lengths) != len(stored):
            raise MalformedError("has strings whose lengths do not fit their bytes")
        fixed = _fixed_width(lengths)
        if stored[position:end] != struct.pack("<I", mask_checksum(crc32c(fixed))):
            raise MalformedError(
                "has strings whose lengths do not have the checksum written behind them"
            )
        checksum = crc32c(fixed, stored[position:])
        position = end
    else:
        checksum = 0
    values = np.empty(count, object)
    for i, length in enumerate(lengths):
        values[i] = stored[position : position + length]
        position += length
    return values, checksum


def encode_strings_and_checksum(strings: Sequence[bytes]) -> tuple[list[bytes], int]:
    """Return the bytes of a tensor of strings, in parts, and the checksum of everything."""
    lengths = [len(string) for string in strings]
    fixed = _fixed_width(lengths)
    tail = struct.pack("<I", mask_checksum(crc32c(fixed))) + b"".join(strings)
    return [b"".join(map(write_varint, lengths)), tail], crc32c(fixed, tail)


def _fixed_width(lengths: Sequence[int]) -> bytes:
    return b"".join(length.to_bytes(4 if length < 1 << 32 else 8, "little") for length in lengths)


_GZIP_MAGIC = b"\x1f\x8b"
_MAX_MEMBERS = 1000
# A SavedModel's graph packs 9 to 1, its weights 1.1 to 1, a hostile archive 1000 to 1
_MAX_EXPANSION = 20
_FREE_BYTES = 64 << 20


@contextmanager
def open_saved_model(path: StrPath) -> Iterator[tuple[TensorBundle, dict[str, Path]]]:
    """Open a SavedModel or a TF-Hub module, of TensorFlow 1 or 2."""
    source = Path(path)
    if source.is_dir():
        yield TensorBundle.open(source), _find_assets(source)
        return
    if not source.is_file():
        raise DataError(
            "not-found",
            f"there is no SavedModel `{source}`",
            "give its folder or its .tar.gz",
        )
    with tempfile.TemporaryDirectory(prefix="albertkit-") as temporary:
        with parser_errors_name_file(source):
            _unpack_archive(source, temporary)
        entries = list(Path(temporary).iterdir())
        wrapped = len(entries) == 1 and entries[0].is_dir() and entries[0].name != "variables"
        # Some archives hold the folder, most what is in it
        folder = entries[0] if wrapped else Path(temporary)
        try:
            yield TensorBundle.open(folder), _find_assets(folder)
        except AlbertKitError as error:
            # Name the archive: the temporary folder is gone when this is read.
            error.message = error.message.replace(str(folder), str(source))
            raise


def _find_assets(folder: Path) -> dict[str, Path]:
    assets = folder / "assets"
    return {
        file.relative_to(assets).as_posix(): file
        for file in sorted(assets.rglob("*"))
        if file.is_file()
    }


def _unpack_archive(archive: Path, folder: str) -> None:
    """Extract files and folders, never links or devices, never outside `folder`, and no more than a model packs to."""
    with open(archive, "rb") as packed:
        compressed = packed.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        packed.seek(0)
        stream = gzip.GzipFile(fileobj=packed) if compressed else packed
        bounded = _BoundedStream(stream, _FREE_BYTES + _MAX_EXPANSION * archive.stat().st_size)
        try:
            with tarfile.open(fileobj=bounded, mode="r|") as members:  # type: ignore[call-overload]
                for count, member in enumerate(members):
                    if count == _MAX_MEMBERS:
                        raise MalformedError(f"holds more than {_MAX_MEMBERS} files")
                    if not (member.isfile() or member.isdir()) or member.issparse():
                        raise MalformedError(f"holds `{member.name}`, which is not a plain file")
                    members.extract(member, folder, filter="data")
            while bounded.read(1 << 16):  # up to gzip's checksum, which assets have no other than
                pass
        except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise MalformedError(
                f"is not a complete tar archive of a SavedModel: {error}"
            ) from None


class _BoundedStream:
    """A stream that ends with an error when more is read than allowed: a tar header can ask for gigabytes."""

    def __init__(self, stream: Any, allowance: int) -> None:
        self._stream = stream
        self._allowed = self._remaining = allowance

    def read(self, size: int) -> bytes:
        data = self._stream.read(min(size, self._remaining + 1))
        self._remaining -= len(data)
        if self._remaining < 0:
            raise MalformedError(f"unpacks to more than {self._allowed:,} bytes")
        return data
