"""SavedModels and TF-Hub modules: a folder, or a tar archive of it, with a checkpoint in `variables/` and files in `assets/`."""

import errno
import gzip
import os
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from albertkit.conversion.tensorflow.bundle import TensorBundle
from albertkit.conversion.tensorflow.encoding import MalformedError, reading
from albertkit.errors import AlbertKitError, DataError

_GZIP_MAGIC = b"\x1f\x8b"
_MAX_MEMBERS = 1000
_MAX_EXPANSION = 20  # a SavedModel's graph packs 9 to 1, its weights 1.1 to 1, a hostile archive 1000 to 1
_FREE_BYTES = 64 << 20


@contextmanager
def open_saved_model(path: str | os.PathLike[str]) -> Iterator[tuple[TensorBundle, dict[str, Path]]]:
    """Open a SavedModel or a TF-Hub module, of TensorFlow 1 or 2."""
    given = Path(path)
    if given.is_dir():
        yield TensorBundle.open(given), _assets(given)
        return
    if not given.is_file():
        raise DataError("not-found", f"there is no SavedModel `{given}`", "give its folder or its .tar.gz")
    with tempfile.TemporaryDirectory(prefix="albertkit-") as temporary:
        with reading(given):
            _unpack(given, temporary)
        inside = list(Path(temporary).iterdir())
        wrapped = len(inside) == 1 and inside[0].is_dir() and inside[0].name != "variables"
        folder = inside[0] if wrapped else Path(temporary)  # some archives hold the folder, most what is in it
        try:
            yield TensorBundle.open(folder), _assets(folder)
        except AlbertKitError as error:  # name the archive: the temporary folder is gone when this is read
            error.message = error.message.replace(str(folder), str(given))
            raise


def _assets(folder: Path) -> dict[str, Path]:
    assets = folder / "assets"
    return {file.relative_to(assets).as_posix(): file for file in sorted(assets.rglob("*")) if file.is_file()}


def _unpack(archive: Path, folder: str) -> None:
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
            raise MalformedError(f"is not a complete tar archive of a SavedModel: {error}") from None


class _BoundedStream:
    """A stream that ends with an error when more is read than allowed: a tar header can ask for gigabytes."""

    def __init__(self, stream: Any, allowance: int) -> None:
        self._stream = stream
        self._allowed = self._left = allowance

    def read(self, size: int) -> bytes:
        data = self._stream.read(min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise MalformedError(f"unpacks to more than {self._allowed:,} bytes")
        return data
