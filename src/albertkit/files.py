"""Files that appear whole or not at all, checksums, and paths that may be remote.

Everything albertkit leaves behind is written under a temporary name in the same folder, flushed to the disk and renamed,
so that a process killed at any moment leaves either the old file or the new one.
"""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from albertkit.errors import DataError

_TEMPORARY = ".partial-"


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Flush a folder's entries, so that a rename in it survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_file(path: str | os.PathLike[str], mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a file for writing that takes its name only when the block ends without an error.

    Args:
        path: The final name. Its folder is made if missing.
        mode: "wb" or "w" (UTF-8, newlines untouched).
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f"{_TEMPORARY}{target.name}-{uuid.uuid4().hex[:8]}"
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    try:
        with open(temporary, mode, **text) as stream:  # type: ignore[call-overload]
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
        sync_folder(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Fill a folder that takes its name only when the block ends without an error.

    A folder already there is moved aside first and removed last, so its files are lost only once the new ones are in place.

    Yields:
        The temporary folder to fill; a sibling of the final one.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f"{_TEMPORARY}{target.name}-{uuid.uuid4().hex[:8]}"
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                with open(file, "rb") as stream:
                    os.fsync(stream.fileno())
        old = None
        if target.exists():
            old = target.parent / f"{_TEMPORARY}old-{target.name}-{uuid.uuid4().hex[:8]}"
            os.replace(target, old)
        os.replace(temporary, target)
        sync_folder(target.parent)
        if old is not None:
            shutil.rmtree(old)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_leftovers(folder: str | os.PathLike[str]) -> None:
    """Delete what killed processes left half-written in a folder."""
    for leftover in Path(folder).glob(f"{_TEMPORARY}*"):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write JSON atomically: UTF-8, indented, keys in the order given, newline at the end."""
    with atomic_file(path, "w") as stream:
        stream.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: str | os.PathLike[str], what: str = "file") -> Any:
    """Read JSON.

    Raises:
        DataError: not-found, or broken-json with the place of the fault.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError("not-found", f"no {what} at `{path}`", "check the path") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError("broken-json", f"`{path}` is not valid JSON: {error}", "restore it or make it anew") from None


def sha256_bytes(data: bytes) -> str:
    """SHA-256 as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file as 64 hexadecimal digits, read in pieces of 1 MiB."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
