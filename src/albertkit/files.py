"""Files that appear whole or not at all, checksums, the lock of a folder, and files of others read safely.

Everything albertkit leaves behind is written under a temporary name in the same folder, flushed to
the disk and renamed, so that a process killed at any moment leaves either the old file or the new
one.
"""

import errno
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import stat
import tempfile
import tomllib
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from albertkit.encodings import file_encoding_advice
from albertkit.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    MachineError,
    format_list,
    restore_url,
    suggest_existing_path,
)

_TEMPORARY = ".partial-"
_OLD = f"{_TEMPORARY}old-"  # a folder that another takes the place of
MAX_FILE_BYTES = 256 << 20  # of a JSON or TOML file; the longest of ours are index files of records

T = TypeVar("T")

_MOVED_ASIDE = re.compile(re.escape(_OLD) + r"(.+)-[0-9a-f]{8}")

StrPath = str | os.PathLike[str]  # a path, as callers give it


def cache_folder() -> Path:
    """Return where fetched files, unfinished builds of remote stores and compiled loops lie.

    `ALBERTKIT_CACHE`, else `~/.cache/albertkit`.
    """
    if folder := os.environ.get("ALBERTKIT_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "albertkit"


def sync_folder(folder: StrPath) -> None:
    """Flush a folder's entries, so that a rename in it survives a power cut; Windows opens no folders and has no such call."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_local(path: StrPath) -> Path:
    """Return a path to write to; `Path("gs://bucket/run")` would be the folder `gs:` here, and the bucket stay empty."""
    if address := restore_url(path):
        raise ConfigError(
            "bad-value",
            f"`{address}` is an address: this is written to folders of this machine",
            "name a folder, and copy it there when it is finished; a token store may have an address as --out",
        )
    return Path(path)


@contextmanager
def atomic_file(path: StrPath, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a file for writing that takes its name only when the block ends without an error.

    Args:
        path: The final name. Its folder is made if missing.
        mode: "wb" or "w" (UTF-8, newlines untouched).
    """
    target = check_local(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers_of(target)
    temporary = _temporary_path(target)
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    try:
        with open(temporary, mode, **text) as stream:  # type: ignore[call-overload]
            _try_lock(stream.fileno())
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
        sync_folder(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: StrPath) -> Iterator[Path]:
    """Fill a folder that takes its name only when the block ends without an error.

    A folder already there is moved aside first and removed last, so its files are lost only once
    the new ones are in place.

    Yields:
        The temporary folder to fill; a sibling of the final one.
    """
    target = check_local(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers_of(target)
    temporary = _temporary_path(target)
    temporary.mkdir()
    old = None
    descriptor = _open_lock_file(temporary)
    try:
        _try_lock(descriptor)
        yield temporary
        # A rename may reach the disk before what was written: each file is flushed first.
        for file in temporary.rglob("*"):
            if file.is_file():
                with open(file, "rb") as stream:
                    os.fsync(stream.fileno())
        if target.exists():
            old = target.parent / f"{_OLD}{target.name}-{uuid.uuid4().hex[:8]}"
            os.replace(target, old)
        os.replace(temporary, target)
        sync_folder(target.parent)
        if old is not None:
            shutil.rmtree(old)
    except BaseException:
        if old is not None and not target.exists():
            os.replace(old, target)
        raise
    finally:
        os.close(descriptor)
        shutil.rmtree(temporary, ignore_errors=True)


def check_writable(path: StrPath) -> None:
    """Make sure that a file or folder can be made at a path, before work is spent on what shall lie there."""
    existing_folder = Path(os.path.abspath(check_local(path))).parent
    while not existing_folder.exists():
        existing_folder = existing_folder.parent
    os.rmdir(tempfile.mkdtemp(prefix=_TEMPORARY, dir=existing_folder))


def remove_folder(path: StrPath) -> None:
    """Remove a folder so that a process killed meanwhile leaves nothing that looks like it."""
    target = Path(path)
    # Removed file by file, a killed process would leave half a checkpoint under its name.
    doomed = _temporary_path(target)
    os.replace(target, doomed)
    shutil.rmtree(doomed)


def remove_leftovers(folder: StrPath) -> None:
    """Delete what killed processes left half-written in a folder; what was moved aside for nothing goes back."""
    for leftover in Path(folder).glob(f"{_TEMPORARY}*"):
        _remove_or_restore_leftover(leftover)


def _remove_or_restore_leftover(leftover: Path) -> None:
    """Remove what a dead process has left; a folder whose successor never came takes its name again."""
    moved = _MOVED_ASIDE.fullmatch(leftover.name)
    if moved and not (target := leftover.with_name(moved[1])).exists():
        os.replace(leftover, target)
    elif leftover.is_dir():
        shutil.rmtree(leftover, ignore_errors=True)
    else:
        leftover.unlink(missing_ok=True)


def _temporary_path(target: Path) -> Path:
    return target.parent / f"{_TEMPORARY}{target.name}-{uuid.uuid4().hex[:8]}"


def _remove_leftovers_of(target: Path) -> None:
    """Settle what killed processes have left of a target; what a living one is writing is locked."""
    name = re.compile(f"{re.escape(_TEMPORARY)}(old-)?{re.escape(target.name)}-[0-9a-f]{{8}}")
    for leftover in [
        file for file in target.parent.glob(f"{_TEMPORARY}*") if name.fullmatch(file.name)
    ]:
        try:
            descriptor = _open_lock_file(leftover)
        except OSError:  # gone meanwhile, or another user's
            continue
        try:
            if _try_lock(descriptor):
                _remove_or_restore_leftover(leftover)
        finally:
            os.close(descriptor)


def _open_lock_file(path: Path) -> int:
    """Open a file or folder; for a folder on Windows, which opens none, a file beside it that stays there."""
    if os.name == "nt" and path.is_dir():
        return os.open(path.with_name(f".lock-{path.name}"), os.O_RDWR | os.O_CREAT)
    return os.open(path, os.O_RDONLY)


def _try_lock(descriptor: int) -> bool:
    """Lock a file or folder for as long as this process lives and has it open; False if another process has locked it.

    True, too, where the system or the file system has no locks for it (folders of NFS).
    """
    from filelock import lock_descriptor  # 20 ms, which a help page does without

    try:
        return lock_descriptor(descriptor, blocking=False)
    except OSError:
        return True


@contextmanager
def lock_folder(
    folder: StrPath,
    enabled: bool = True,
    displayed_path: StrPath | None = None,
) -> Iterator[None]:
    """Keep other processes from writing to a folder, by a lock that ends with this process, however it ends.

    Args:
        folder: Made if missing, and removed again if it is empty at the end.
        enabled: False where another process of the same command holds the lock.
        displayed_path: What an error calls it.
    """
    if not enabled:
        yield
        return
    path = Path(os.path.abspath(check_local(folder)))
    new_folders = [new_folder for new_folder in (path, *path.parents) if not new_folder.exists()]
    while True:
        path.mkdir(parents=True, exist_ok=True)
        descriptor = _open_lock_file(path)
        locked = _try_lock(descriptor)
        if not locked or _is_descriptor_of(path, descriptor):
            break
        os.close(descriptor)  # another process has just removed what it had made
    try:
        if not locked:
            raise MachineError(
                "in-use",
                f"another process is writing to `{displayed_path or folder}`",
                "wait until it has ended, or choose another --out",
            )
        yield
    finally:
        if locked and (not path.exists() or _is_descriptor_of(path, descriptor)):
            for new_folder in filter(Path.exists, new_folders):
                with suppress(OSError):  # not empty
                    new_folder.rmdir()
        os.close(descriptor)


def _is_descriptor_of(folder: Path, descriptor: int) -> bool:
    """Return whether a descriptor still stands for what lies at a path."""
    return os.name == "nt" or (
        folder.exists() and os.path.samestat(os.fstat(descriptor), os.stat(folder))
    )


def write_file(path: StrPath, content: str | bytes) -> None:
    """Write a file, whole or not at all."""
    with atomic_file(path, "w" if isinstance(content, str) else "wb") as stream:
        stream.write(content)


def write_json(path: StrPath, value: Any) -> None:
    """Write JSON atomically: UTF-8, indented, keys in the order given, newline at the end."""
    write_file(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """Return JSON as `write_json` writes it."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def write_lines(path: StrPath, records: Iterable[Any]) -> None:
    """Write JSON lines atomically: UTF-8, a record a line."""
    with atomic_file(path, "w") as stream:
        stream.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


_LFS_POINTER = b"version https://git-lfs"


def check_regular_file(path: StrPath, kind: str = "file") -> Path:
    """Return the path, if a regular file is there: a pipe may stay empty, and a device has no end."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise DataError(
            "not-found",
            f"no {kind} at `{path}`",
            suggest_existing_path(path, "check the path"),
        ) from None
    except ValueError:  # a zero byte in the name
        raise DataError(
            "not-found",
            f"no {kind} can be called {str(path)!r}",
            "check the path",
        ) from None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR):
            raise
        raise DataError(
            "not-found",
            f"no {kind} at `{path}`: {error.strerror}",
            "check the path",
        ) from None
    if not stat.S_ISREG(mode):
        actual_kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise DataError(
            "wrong-kind",
            f"a file was expected, this is {actual_kind}: `{path}`",
            "name the file",
        )
    with open(path, "rb") as stream:
        if stream.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise DataError(
                "bad-file",
                f"`{path}` is a pointer of Git LFS, not the file itself",
                f"fetch the file: git -C {shlex.quote(str(Path(path).parent))} lfs pull",
            )
    return Path(path)


def check_not_folder(path: StrPath) -> None:
    """Refuse a folder where a file is expected."""
    if os.path.isdir(path):
        raise DataError(
            "wrong-kind",
            f"a file was expected, this is a folder: `{path}`",
            "name the file",
        )


def check_new_file(path: StrPath) -> Path:
    """Refuse an output file that is there already: nothing of a user's is overwritten."""
    check_local(path)
    if os.path.lexists(path):
        raise CheckpointError(
            "exists",
            f"`{path}` exists already, and is not overwritten",
            f"choose another --out, or keep it under another name: mv -n {shlex.quote(str(path))} {shlex.quote(f'{path}.old')}",
        )
    return Path(path)


# Ends of names that files alone have: `run-1.5`, `albert.ko` and `model.v2` are folders as good as
# others.
_FILE_SUFFIXES = frozenset(
    f".{suffix}"
    for suffix in (
        "7z arrow avi bin bz2 ckpt conll csv doc docx feather gif gz h5 htm html ipynb jpeg jpg json jsonl log md mkv model mov "
        "mp4 ndjson npy npz onnx parquet pb pdf pickle pkl png pq pt pth py rar safetensors srt svg tar tfrecord tfrecords tgz "
        "tmp toml tsv txt vocab webm webp xls xlsx xml xz yaml yml zip zst"
    ).split()
)


def check_folder_name(path: StrPath, hint: str = "") -> Path:
    """Refuse a new output folder that is called a file, such as `results.json`."""
    name = os.fspath(path)
    stem, suffix = os.path.splitext(name)
    # `corpus.txt.gz` has two.
    while suffix.lower() in _FILE_SUFFIXES:
        name = stem
        stem, suffix = os.path.splitext(name)
    if name != os.fspath(path) and not os.path.exists(path):
        raise ConfigError(
            "bad-value",
            f"`{path}` is called a file, and a folder is written",
            hint or f"name a folder, such as {name}",
        )
    return Path(path)


def check_new_folder(path: StrPath, hint: str = "") -> Path:
    """Refuse an output folder that holds something, such as a run or earlier results, or that is called a file."""
    if not os.path.isdir(path):
        check_new_file(path)
        return check_folder_name(path, hint)
    if os.listdir(path):
        raise CheckpointError(
            "exists",
            f"`{path}` is not empty",
            "name a folder that does not exist yet with --out",
        )
    return Path(path)


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed at the end."""
    check_new_folder(out)
    with atomic_folder(out) as folder:
        yield folder


def check_other_files(folder: StrPath, allowed_patterns: Sequence[str], owner: str) -> None:
    """Refuse an output folder that holds other files than those allowed, which could be overwritten.

    Args:
        folder: The folder; it need not exist.
        allowed_patterns: Patterns of the names that may be there.
        owner: What those files are part of, for the message: "a run".
    """
    other_files = sorted(
        file.name for file in Path(folder).glob("*") if not any(map(file.match, allowed_patterns))
    )
    if other_files:
        raise CheckpointError(
            "exists",
            f"`{folder}` holds files that are not part of {owner}: {format_list(other_files, 5)}",
            "choose an empty folder, or one that does not exist",
        )


def check_page_file(path: StrPath) -> Path:
    """Refuse an output page that would overwrite something other than a page; a page is replaced by a new one."""
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise ConfigError(
            "bad-value",
            f"`{path}` does not end in .html, and one HTML page is written",
            f"name it {Path(path).with_suffix('.html')}",
        )
    check_not_folder(path)
    if os.path.isfile(path):
        with open(path, "rb") as stream:
            if stream.read(64).lstrip().lower().startswith((b"<!doctype html", b"<html")):
                return Path(path)
    return check_new_file(path)


def read_text(path: StrPath, kind: str = "file") -> str:
    """Return the text of a file in UTF-8, a mark at its beginning left out; line ends as Python reads them."""
    try:
        return check_regular_file(path, kind).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            "bad-encoding",
            f"`{path}` is not UTF-8: byte {error.start:,} is 0x{error.object[error.start]:02x}",
            file_encoding_advice(io.BytesIO(error.object), str(path)),
        ) from None


def object_with_unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; a key given twice is a ValueError."""
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(
            f"the key `{next(name for name in names if names.count(name) > 1)}` occurs twice in an object"
        )
    return record


def parse_json(text: str | bytes) -> Any:
    """Return the value of JSON that holds data: `json.loads` keeps the last value of a key given twice, this refuses it."""
    return json.loads(text, object_pairs_hook=object_with_unique_keys)


def parse_yaml(text: str | bytes) -> Any:
    """Return the value of YAML: `yaml.safe_load` keeps the last value of a key given twice, this is a ValueError."""
    import yaml  # 15 ms, which a help page does without

    class UniqueKeyLoader(yaml.SafeLoader):
        def compose_mapping_node(
            self, anchor: str | None
        ) -> yaml.MappingNode:  # before `<<` adds the keys of another
            node = super().compose_mapping_node(anchor)
            object_with_unique_keys([(str(key.value), value) for key, value in node.value])
            return node

    return yaml.load(text, UniqueKeyLoader)


def read_json(path: StrPath, kind: str = "file", parse: Callable[[str], Any] = json.loads) -> Any:
    """Read JSON."""
    try:
        return parse(check_regular_file(path, kind).read_text(encoding="utf-8"))
    except (
        ValueError,
        RecursionError,
    ) as error:  # no JSON, no UTF-8, a number of 5,000 digits; nested without end
        if isinstance(error, DataError):
            raise
        raise DataError(
            "bad-file",
            f"`{path}` is not valid JSON: {error}",
            "restore it or create it again",
        ) from None


def read_typed(
    path: StrPath,
    value_type: type[T],
    kind: str = "file",
    hint: str = "restore it or create it again",
) -> T:
    """Read one of our own JSON or TOML files (by its suffix) as a value of a type.

    This is the one place that checks the types of what we read back. Keys that a dataclass does not
    name are ignored; one that it names without a default must be there.

    Args:
        path: The file.
        value_type: A dataclass, a NamedTuple, or a plain type such as `dict[str, int]`.
        kind: What the file is, for messages.
        hint: What to do if it is broken.
    """
    import msgspec  # 25 ms, which a help page does without

    file = check_regular_file(path, kind)
    if (size := file.stat().st_size) > MAX_FILE_BYTES:
        raise DataError("bad-file", f"`{path}` has {size:,} bytes, no {kind} has as many", hint)
    try:
        text = file.read_text(encoding="utf-8")
        # Not by msgspec's own parser: it refuses -Infinity, which the state of a training may hold.
        values = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
        return msgspec.convert(values, value_type)
    except msgspec.ValidationError as error:
        fact, _, key_path = str(error).partition(" - at `$")
        fact = fact.replace("Expected", "expected").replace(
            "Object missing required field",
            "lacks the key",
        )
        key = f"`{key_path.strip('`.')}`: " if key_path else ""
        raise DataError(
            "bad-file",
            f"`{path}`: {key}{fact.replace(', got', ', found')}",
            hint,
        ) from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # not of the format, not UTF-8, a number of 5,000 digits; nested without end
        raise DataError(
            "bad-file",
            f"`{path}` is not valid {file.suffix[1:].upper()}: {error}",
            hint,
        ) from None


CHECKSUMS = "SHA256SUMS"  # what `sha256sum -c` reads


def write_checksums(folder: StrPath) -> None:
    """Write the SHA-256 of every file below a folder beside them: `sha256sum -c SHA256SUMS` checks them, too."""
    names = sorted(
        str(file.relative_to(folder)) for file in Path(folder).rglob("*") if file.is_file()
    )
    # (Its own sum cannot stand in it.)
    lines = [f"{sha256_file(Path(folder, name))}  {name}\n" for name in names if name != CHECKSUMS]
    with atomic_file(Path(folder, CHECKSUMS), "w") as stream:
        stream.writelines(lines)


def files_not_matching_checksums(folder: StrPath, patterns: Sequence[str] = ("*",)) -> list[str]:
    """List files of a folder that differ from its `SHA256SUMS` or are missing; none if there is no such file.

    Args:
        folder: The folder.
        patterns: Which files to look at.
    """
    sums = Path(folder, CHECKSUMS)
    if not sums.is_file():
        return []
    lines = sums.read_text(encoding="utf-8", errors="replace").splitlines()
    digests = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    return [
        name
        for name, digest in digests.items()
        if any(map(Path(name).match, patterns))
        if not Path(folder, name).is_file() or sha256_file(Path(folder, name)) != digest
    ]


def folder_digest(folder: Path) -> str:
    """Return the SHA-256 of all files of a model."""
    files = sorted(
        p
        for p in folder.rglob("*")
        # Not its card and logs, which do not change what it computes
        if p.is_file() and p.suffix in (".json", ".safetensors", ".bin", ".txt", ".model")
    )
    return sha256_bytes(
        "".join(f"{p.relative_to(folder)} {sha256_file(p)}\n" for p in files).encode()
    )


def sha256_bytes(data: bytes) -> str:
    """Return the SHA-256 as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: StrPath) -> str:
    """Return the SHA-256 of a file as 64 hexadecimal digits, read in chunks."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
