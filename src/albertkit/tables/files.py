"""Which files a corpus consists of, and their bytes: globs, folders and URLs, gzip, xz and zstandard, streamed."""

import glob
import gzip
import io
import lzma
import os
import re
import shlex
import shutil
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import fsspec
import zstandard

from albertkit.encodings import check_path_is_utf8
from albertkit.errors import DataError, closest_name, format_list, suggest_existing_path
from albertkit.files import StrPath, check_not_folder
from albertkit.model_paths import file_system_and_path, is_remote, network_errors_as_ours
from albertkit.tables.records import DataFile, DataFiles, Records, SplitRecords

_CLOSE = 0.75  # `nope.txt` is 0.67 to `out.txt`, `corpsu.txt` 0.9 to `corpus.txt`
_LISTED = 5  # files in a hint
_READ_BYTES = 1 << 20
_MAGIC = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstandard"}
# Skippable frames of zstandard: pzstd and seekable files begin with one.
_MAGIC |= {bytes([0x50 + n]) + b"\x2a\x4d\x18": "zstandard" for n in range(16)}
_TAR = re.compile(r"\.(tar\.\w+|t[gx]z)$")
_BZIP2, _LZMA, _OLD_EXCEL = re.compile(rb"BZh[1-9]1AY&SY"), b"\x5d\0\0", b"\xd0\xcf\x11\xe0"
_POINTER = re.compile(rb"version https://git-lfs|/annex/objects/|(\.\./)*\.git/annex/objects/")
_SHEETS = (".xlsx", ".xlsm", ".ods", ".xls")
_LARGEST_WINDOW = 1 << 31  # bytes, zstd --long=31: dumps of Reddit, the Pile
_LITTER = {"thumbs.db", "ehthumbs.db", "desktop.ini"}  # what file managers leave in folders
_BROKEN = (gzip.BadGzipFile, zlib.error, lzma.LZMAError, zstandard.ZstdError)


@dataclass(frozen=True)
class InputFile:
    """One file of a corpus.

    Args:
        path: Local path or URL.
        size: Bytes as stored (compressed), 0 if unknown.
        modified: Time of the last change in nanoseconds, 0 if unknown.
        records: Rows in memory in the place of a file; their name is the path.
    """

    path: str
    size: int
    modified: int = 0
    records: Records | None = None

    @property
    def source(self) -> Records | str:
        """Return what the file is in messages: rows in memory, or its path."""
        return self.records or self.path

    @property
    def name(self) -> str:
        """Return the last part of the path, whose ending tells the format; rows in memory are `rows.jsonl`."""
        if self.records is not None:
            return "rows.jsonl"
        return self.path.rstrip("/").rsplit("/", 1)[-1]


def find_inputs(inputs: Sequence[StrPath | Records]) -> list[InputFile]:
    """Return the files that paths, globs, folders and URLs name.

    Arguments keep their order; the files of a folder (with its subfolders) or of a glob are sorted
    by path. Names in a folder that begin with a dot are passed over, as are `Thumbs.db` and
    `desktop.ini`; links that are broken or lead back are refused. A file named twice is read once.

    Args:
        inputs: Paths, globs (`**` for any depth), folders, URLs that fsspec knows (`s3://…`,
            `https://…`), or rows in memory.
    """
    files: dict[str, InputFile] = {}
    for item in inputs:
        if isinstance(item, Records):
            files[item.name] = InputFile(item.name, len(item.content), records=item)
            continue
        name = os.fspath(item)
        for file in _list_remote_files(name) if is_remote(name) else _find_local_files(name):
            files.setdefault(file.path, file)
    if not files:
        patterns = ", ".join(f"`{item}`" for item in inputs) or "no input"
        raise DataError("not-found", f"{patterns}: no file there", "name files, folders or globs")
    return list(files.values())


def find_input_file(item: StrPath | Records | SplitRecords) -> InputFile:
    """Return the one file that a path, glob or URL names, or rows in memory; a folder is refused."""
    files = find_inputs([require_one_file(item)])
    if len(files) > 1:
        ending = "".join(PurePosixPath(files[0].name).suffixes)
        hint = "name one of them, or join them in one file"
        if not is_remote(str(item)) and ending.startswith((".jsonl", ".txt", ".conll", ".parquet")):
            # Blanks and quotes are escaped, but not what the shell fills in.
            pattern = re.sub(r"([^\w*?\[\]./@%+=:-])", r"\\\1", str(item))
            command = f"cat {pattern} > joined{ending}"
            if ending == ".parquet":
                code = f"p.concat(map(p.read_parquet, sorted(glob.glob({str(item)!r})))).to_parquet('joined.parquet')"
                command = f"python -c {shlex.quote(f'import glob, pandas as p; {code}')}"
            hint = f"join them in one file: {command}"
        raise DataError("ambiguous", f"`{item}` names {len(files)} files, one was expected", hint)
    return files[0]


def require_one_file(item: StrPath | Records | SplitRecords) -> StrPath | Records:
    """Return what is one file; refuse a folder, or rows by split."""
    if isinstance(item, SplitRecords):
        fact = f"rows of one split were expected, these are of {', '.join(item) or 'none'}"
        raise DataError("wrong-kind", fact, "give the rows of one split")
    if not isinstance(item, Records):
        check_not_folder(item)
    return item


def as_file(data: DataFiles | str) -> DataFile:
    """Return the path of a file, or rows in memory; a folder and rows by split are refused."""
    file = require_one_file(data)
    return file if isinstance(file, Records) else Path(file)


def _find_local_files(name: str) -> list[InputFile]:
    path = os.path.abspath(os.path.expanduser(name))
    if os.path.exists(path):
        names = _files_below(path) if os.path.isdir(path) else [path]
    else:
        names = []
        for match in sorted(glob.glob(path, recursive=True)):
            names += _files_below(match) if os.path.isdir(match) else [match]
        if not names:
            raise DataError("not-found", f"no such file or folder: `{name}`", _suggest_file(path))
    files = []
    for match in names:
        check_path_is_utf8(match)
        _check_link_target(match)
        if not os.access(match, os.R_OK):
            raise DataError(
                "no-permission",
                f"no permission to read `{match}`",
                f"chmod +r '{match}'",
            )
        status = os.stat(match)
        files.append(InputFile(match, status.st_size, status.st_mtime_ns))
    return files


def _files_below(root: str) -> list[str]:
    paths = []
    for parent, folders, names in os.walk(root, followlinks=True):
        check_not_saved_dataset(parent, names)
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in folders:  # a link to a folder that it lies in would be read again and again
            folder = os.path.join(parent, name)
            target = os.path.realpath(folder)
            if os.path.islink(folder) and target in map(os.path.realpath, Path(folder).parents):
                fact = (
                    f"`{folder}` is a link that leads back to `{target}`, a folder that it lies in"
                )
                raise DataError("wrong-kind", fact, f"remove the link: rm '{folder}'")
        for name in names:
            if not name.startswith(".") and name.lower() not in _LITTER:
                paths.append(os.path.join(parent, name))
    for name in sorted(paths):
        _check_link_target(name)
    return sorted(name for name in paths if os.path.isfile(name))


def _check_link_target(path: str) -> None:
    if os.path.islink(path) and not os.path.exists(path):
        fact = f"`{path}` is a link to `{os.readlink(path)}`, which does not exist"
        raise DataError("not-found", fact, f"restore the file, or remove the link: rm '{path}'")


def check_no_broken_links(folder: Path) -> None:
    """Refuse a folder with a broken link."""
    # A split would be missing without a word.
    for path in sorted(folder.iterdir()):
        if not path.name.startswith("."):
            _check_link_target(str(path))


def check_not_saved_dataset(folder: StrPath, names: Sequence[str]) -> None:
    """Refuse a folder of `datasets.save_to_disk`, whose Arrow files are read by that library."""
    if "dataset_dict.json" in names or {"dataset_info.json", "state.json"} <= set(names):
        fact = f"`{os.fspath(folder)}` was written by save_to_disk of datasets, whose files are not read"
        loaded = f"datasets.load_from_disk('{os.fspath(folder)}')"
        hint = f"give {loaded} to the Python function, or write it as Parquet: {loaded}.to_parquet('train.parquet')"
        if "dataset_dict.json" in names:
            hint = hint.replace(".to_parquet", "['train'].to_parquet")
        raise DataError("wrong-kind", fact, hint)


def is_record_name(name: str) -> bool:
    """Return whether a file is named as TFRecords are."""
    return "tfrecord" in name.replace("_", "").lower()


def check_not_records(data: Path) -> None:
    """Refuse the TFRecords that the Model Garden and google-research/albert make for fine-tuning."""
    names = (
        sorted(entry.name for entry in data.iterdir() if entry.is_file())
        if data.is_dir()
        else [data.name]
    )
    records = [name for name in names if is_record_name(name)]
    if records and all("meta_data" in name for name in names if name not in records):
        fact = f"`{data}` holds TFRecords for fine-tuning ({format_list(records, 3)}): ids without the texts, which are needed"
        hint = "give the tables that create_finetuning_data.py or run_classifier.py read (--input_data_dir, --data_dir)"
        raise DataError("wrong-kind", fact, hint)


def _suggest_file(path: str) -> str:
    folder, name = os.path.split(path)
    otherwise = "check the path; quote a glob if the shell should leave it alone"
    if any(sign in name for sign in "*?["):
        return otherwise
    if not os.path.isdir(folder):
        return suggest_existing_path(path, otherwise)
    is_hidden = name.startswith(".")
    names = sorted(entry for entry in os.listdir(folder) if is_hidden or not entry.startswith("."))
    close = closest_name(name, names[:1000], _CLOSE)
    if close:
        return f"did you mean `{close}`?"
    return (
        f"`{folder}` holds {format_list(names, _LISTED)}"
        if names
        else f"the folder `{folder}` is empty"
    )


def _list_remote_files(url: str) -> list[InputFile]:
    system, path = file_system_and_path(url)
    with network_errors_as_ours(url):
        if any(sign in path for sign in "*?["):
            details = system.glob(path, detail=True)
        elif system.isdir(path):
            details = system.find(path, detail=True)
        else:
            details = {path: system.info(path)}
    if not details:
        raise DataError("not-found", f"no file matches `{url}`", "check the address")
    return [
        InputFile(system.unstrip_protocol(name), int(info.get("size") or 0))
        for name, info in sorted(details.items())
        if info.get("type") != "directory"
    ]


class ByteStream:
    """The bytes of an input file, decompressed, whatever it is called: the first bytes say how it is packed."""

    def __init__(self, file: InputFile) -> None:
        self.file = file
        if file.records is not None:
            raw: Any = io.BytesIO(file.records.content)
        elif is_remote(file.path):
            raw = fsspec.open(file.path, "rb").open()
        else:
            raw = open(file.path, "rb", buffering=0)  # noqa: SIM115
        self._raw: Any = io.BufferedReader(raw, _READ_BYTES)
        # A pipe can be read once: nothing is consumed.
        head = self._raw.peek(8)[:8]
        self.packing = next(
            (name for magic, name in _MAGIC.items() if head.startswith(magic)), None
        )
        # What holds or stands for another file is refused, with how to get at it
        head = self._raw.peek(512)[:512]
        path = file.path
        name = file.name.lower()
        if _POINTER.match(head):
            hint = f"fetch the file: git lfs pull, or git annex get '{path}'"
            raise DataError(
                "wrong-kind",
                f"`{path}` is a pointer of Git to a file that is stored elsewhere",
                hint,
            )
        if head.startswith((b"PK\x03\x04", _OLD_EXCEL)) and name.endswith(_SHEETS):
            code = (
                f"pandas.read_excel('{path}').to_csv('{path.rpartition('.')[0]}.csv', index=False)"
            )
            hint = f"save the sheet as CSV UTF-8, or in Python: {code}"
            raise DataError("wrong-kind", f"`{path}` is a spreadsheet, which is not read", hint)
        packings = (
            ("zip", "unzip", head.startswith(b"PK\x03\x04")),
            ("bzip2", "bunzip2 -k", _BZIP2.match(head)),
            ("lzma", "unlzma -k", head.startswith(_LZMA)),
            ("tar", "tar xf", head[257:262] == b"ustar" or (self.packing and _TAR.search(name))),
            ("7-Zip", "7z x", head.startswith(b"7z\xbc\xaf\x27\x1c")),
            ("RAR", "unrar x", head.startswith(b"Rar!\x1a\x07")),
            ("lz4", "unlz4 -k", head.startswith(b"\x04\x22\x4d\x18")),
            ("compress", "gunzip -k", head.startswith(b"\x1f\x9d")),
        )
        for packing, unpack, is_packed in packings:
            if is_packed:
                fact = f"`{path}` is packed with {packing}; gzip, xz and zstandard are read, and plain files"
                raise DataError("wrong-kind", fact, f"unpack it: {unpack} '{path}'")
        self._stream = self._unpack()
        self._ahead = b""
        self._remaining: int | None = None  # bytes still to be read, if there is a limit

    def _unpack(self) -> Any:
        if self.packing == "gzip":
            return gzip.GzipFile(fileobj=self._raw)
        if self.packing == "xz":
            return lzma.LZMAFile(self._raw)
        if self.packing == "zstandard":
            return _ZstandardStream(self._raw)
        return self._raw

    def limit(self, start: int, end: int | None) -> None:
        """Read only the bytes from `start` to before `end` (None: to the end) of a file that is not compressed."""
        self._ahead = b""
        self._raw.seek(start)
        self._remaining = None if end is None else end - start

    def peek(self, size: int) -> bytes:
        """Return the next bytes, at most `size`, without consuming them."""
        while len(self._ahead) < size:
            chunk = self._read_unpacked(size - len(self._ahead))
            if not chunk:
                break
            self._ahead += chunk
        return self._ahead[:size]

    def read(self, size: int = _READ_BYTES) -> bytes:
        """Return up to `size` bytes; none at the end."""
        if self._ahead:
            chunk = self._ahead[:size]
            self._ahead = self._ahead[size:]
            return chunk
        if self._remaining is None:
            return self._read_unpacked(size)
        chunk = self._read_unpacked(min(size, self._remaining))
        self._remaining -= len(chunk)
        return chunk

    def _read_unpacked(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except EOFError:
            problem = f"is cut off in the middle of its {self.packing} stream"
        except _BROKEN as error:
            problem = f"is not a sound {self.packing} file: {error}"
        raise DataError("corrupt", f"`{self.file.path}` {problem}", "copy or download it again")

    def make_rewindable(self) -> None:
        """Copy what can be read only once, such as a pipe, to the disk, so that `rewind` works."""
        if not self._raw.seekable():
            copy = tempfile.TemporaryFile()  # noqa: SIM115  (it lives as long as the stream)
            shutil.copyfileobj(self, copy, _READ_BYTES)
            self._raw = copy
            self.packing = None
            self.rewind()

    def rewind(self) -> None:
        """Go back to the first byte."""
        self._raw.seek(0)
        self._ahead = b""
        self._stream = self._unpack()

    def position(self) -> int:
        """Return the bytes of the stored (compressed) file consumed so far, for the progress display."""
        try:
            return self._raw.tell()
        except (OSError, ValueError):
            return 0

    def seekable_file(self) -> IO[bytes] | None:
        """Return the underlying file, if it is neither compressed nor a pipe."""
        return self._raw if self.packing is None and self._raw.seekable() else None

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
        self._raw.close()

    def __enter__(self) -> "ByteStream":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class _ZstandardStream(io.RawIOBase):
    """Reads frames one after the other."""

    # `zstandard.stream_reader` takes a truncated file for a whole one, this does not.

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._frame: Any = None
        self._packed = b""
        self._text = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while not self._text:
            if not self._packed:
                self._packed = self._raw.read(1 << 17)
                if not self._packed:
                    if self._frame is not None:
                        raise EOFError
                    return b""
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor(
                    max_window_size=_LARGEST_WINDOW
                ).decompressobj()
            self._text = self._frame.decompress(self._packed)
            self._packed = b""
            if self._frame.eof:
                self._packed = self._frame.unused_data
                self._frame = None
        chunk = self._text[:size]
        self._text = self._text[size:]
        return chunk
