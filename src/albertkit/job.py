"""Work that may be killed at any moment: the same call again goes on from the last commit and ends with the same bytes.

A job works in a folder of its own, in files of two kinds: a part is written whole and is done when
it is committed; a growing file is appended to. `commits.jsonl` has one line for what the work is
made from (the key), then one for every commit: size and SHA-256 of the files that changed, and
facts that say where to go on. When a job is taken up, every file is cut back to its last commit and
compared with its SHA-256; what was never committed is deleted. `publish` moves the files to their
place; the one that makes them a result comes last.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import IO, Any, NamedTuple, Self, TypedDict, TypeVar

from albertkit.errors import AlbertKitError, CheckpointError, DataError
from albertkit.files import (
    CHECKSUMS,
    atomic_file,
    lock_folder,
    remove_leftovers,
    sha256_bytes,
    sha256_file,
    sync_folder,
)
from albertkit.output.progress import ProgressBar

COMMIT_SECONDS = 10.0  # how often `is_due` says that work should be committed
_LOG = "commits.jsonl"
T = TypeVar("T")


class Committed(NamedTuple):
    """A file as it was at its last commit."""

    bytes: int
    sha256: str


class _Commit(TypedDict, total=False):
    """A line of the log."""

    key: dict[str, Any]
    facts: dict[str, Any]
    files: dict[str, Committed | None]
    marks: list[str]
    finished: str


@dataclass
class _State:
    """State of a job, as its log of commits has it."""

    key: Any = None
    facts: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Committed] = field(default_factory=dict)
    marks: set[str] = field(default_factory=set)
    finished: str | None = None

    def add(self, commit: _Commit) -> None:
        self.key = commit.get("key", self.key)
        self.facts = commit.get("facts", self.facts)
        self.finished = commit.get("finished", self.finished)
        self.marks.update(commit.get("marks", ()))
        for name, committed in commit.get("files", {}).items():
            self.files.pop(name, None)
            if committed is not None:
                self.files[name] = committed


class _GrowingFile:
    """A file that is appended to, with its size and the SHA-256 of all of it."""

    def __init__(self, path: Path, size: int, sha256: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.stream = open(path, "r+b" if size else "wb")  # noqa: SIM115
        self.stream.seek(size)
        self.size = size
        self.sha256 = sha256

    def write(self, content: bytes | memoryview) -> None:
        self.stream.write(content)
        self.sha256.update(content)
        self.size += len(content)


class Job:
    """Resumable work; a context manager.

    Args:
        folder: Where the work lies, a folder of its own. Nobody else may write to it meanwhile.
        key: What the work is made from, as JSON: anything that decides the bytes. Its names are
            shown where they differ.
        into: Where `publish` moves the files.
        overwrite: Begin again where the folder holds other or damaged work.
        title, total, unit, progress: As of `ProgressBar`, which `job.progress` is.
        rank: Number of this process among several that share the parts. Process 0 opens the job
            before the others.

    Attributes:
        facts: Facts of the last commit, by this call or an earlier one; empty at the beginning.
        resumed: Whether there was a commit to go on from.
        finished: Whether nothing is left to do but `publish`.
        progress: What is shown on stderr.
    """

    def __init__(
        self,
        folder: Path,
        key: Mapping[str, Any],
        *,
        into: Path | None = None,
        overwrite: bool = False,
        title: str = "",
        total: int = 0,
        unit: str = "parts",
        progress: bool = False,
        rank: int = 0,
    ) -> None:
        self.folder = folder
        self.key = key
        self.into = into or folder
        self._overwrite = overwrite
        self._rank = rank
        self.progress = ProgressBar(title, total, unit, progress and not rank)
        self.resumed = False
        self._state = _State()
        self._growing: dict[str, _GrowingFile] = {}
        self._hashes: dict[str, Any] = {}  # of files that may be appended to
        self._changed: set[str] = set()
        self._discarded: set[str] = set()
        self._last_commit = time.monotonic()
        self._resources = ExitStack()

    @property
    def facts(self) -> dict[str, Any]:
        return self._state.facts

    @property
    def finished(self) -> bool:
        return self._state.finished is not None

    @property
    def files(self) -> Mapping[str, Committed]:
        """Return the committed files by name."""
        return self._state.files

    def __enter__(self) -> Self:
        with ExitStack() as resources:
            resources.enter_context(lock_folder(self.folder, self._rank == 0, self.into))
            try:
                self._resume_from_log()
            except AlbertKitError:
                if not self._overwrite or self._rank:
                    raise
                self._start_afresh()
            resources.enter_context(self.progress)
            self._resources = resources.pop_all()
        return self

    def __exit__(self, *_: Any) -> None:
        with self._resources:
            with suppress(OSError):  # such as the full disk that ended the work
                self._close_streams()
            state = self._state
            if (
                self._rank == 0
                and self.folder.exists()
                and not (state.facts or state.files or state.marks)
            ):
                self._empty_folder()  # nothing to go on from
                with suppress(OSError):
                    self.folder.rmdir()

    # --- parts ------------------------------------------------------------------------------------

    def missing(self, names: Iterable[str]) -> Iterator[str]:
        """Yield the names of parts that are not done yet, in their order, and show how far the work is."""
        names = list(names)
        missing_names = [name for name in names if not self.is_done(name)]
        self.progress.resume(len(names) - len(missing_names))
        for name in missing_names:
            yield name
            self.progress.update(self.progress.completed + 1)

    def is_done(self, name: str) -> bool:
        """Return True if a part is committed or marked."""
        return name in self._state.files or name in self._state.marks

    @contextmanager
    def part(self, name: str) -> Iterator[IO[bytes]]:
        """Write a part: whole and committed when the block ends without an error."""
        with atomic_file(self.folder / name) as stream:
            yield stream
        self.add(name)

    def add(self, *names: str) -> None:
        """Commit files that something else has written into the folder."""
        files: dict[str, Committed | None] = {}
        for name in names:
            path = self.folder / name
            files[name] = Committed(path.stat().st_size, sha256_file(path))
        self._append_commit({"files": files})

    def mark(self, name: str) -> None:
        """Note that a part is done which leaves no file here."""
        self._append_commit({"marks": [name]})

    # --- files that grow --------------------------------------------------------------------------

    def write(self, name: str, content: bytes | memoryview) -> None:
        """Append to a growing file, for good at the next commit."""
        growing = self._growing.get(name)
        if growing is None:
            size = self.files[name].bytes if name in self.files else 0
            # That of what is committed was computed when the work was taken up.
            sha256 = self._hashes.pop(name) if size else hashlib.sha256()
            growing = self._growing[name] = _GrowingFile(self.folder / name, size, sha256)
        growing.write(content)
        self._changed.add(name)

    def close(self, *names: str) -> None:
        """Bring growing files to the disk that nothing will be appended to any more."""
        for name in names:
            if growing := self._growing.get(name):
                _flush_to_disk(growing.stream)
                growing.stream.close()

    def discard(self, *names: str) -> None:
        """Delete files, at the next commit."""
        self._discarded.update(names)

    @property
    def is_due(self) -> bool:
        """Return True if the last commit is `COMMIT_SECONDS` ago."""
        return time.monotonic() - self._last_commit >= COMMIT_SECONDS

    def commit(self, **facts: Any) -> None:
        """Make everything that was appended last.

        Args:
            facts: Where to go on, as JSON; they replace those of the last commit.
        """
        files: dict[str, Committed | None] = {}
        for name in sorted(self._changed - self._discarded):
            growing = self._growing[name]
            if not growing.stream.closed:
                _flush_to_disk(growing.stream)
            files[name] = Committed(growing.size, growing.sha256.hexdigest())
        files |= dict.fromkeys(sorted(self._discarded))
        # New names must survive a power cut, too.
        if files.keys() - self.files.keys():
            sync_folder(self.folder)
        # Then only are files deleted: a kill leaves one too many, never one too few.
        self._append_commit({"facts": facts, "files": files})
        for name in self._discarded:
            if name in self._growing:
                self._growing.pop(name).stream.close()
            (self.folder / name).unlink(missing_ok=True)
        self._changed.clear()
        self._discarded.clear()
        self._growing = {
            name: growing for name, growing in self._growing.items() if not growing.stream.closed
        }

    def add_checksums(self) -> None:
        """Write `SHA256SUMS` of all committed files, which `sha256sum -c` and `albertkit doctor FOLDER` read."""
        lines = [f"{committed.sha256}  {name}\n" for name, committed in sorted(self.files.items())]
        with self.part(CHECKSUMS) as stream:
            stream.write("".join(lines).encode())

    # --- the end ----------------------------------------------------------------------------------

    def publish(self, last: str, replaces: Sequence[str] = ()) -> None:
        """Move all files to their place and remove the folder; killed meanwhile, the next call does the rest.

        Args:
            last: The file that makes the others a result: of an earlier result it goes first, and
                it comes last.
            replaces: Patterns of files of an earlier result that go with it.
        """
        if self._changed:
            self.commit(**self.facts)
        if not self.finished:
            self._close_streams()
            self._append_commit({"finished": last})
        # First: without it a mixture of old and new files is no result.
        (self.into / last).unlink(missing_ok=True)
        sync_folder(self.into)
        for pattern in replaces:
            for file in self.into.glob(pattern):
                if str(file.relative_to(self.into)) not in self.files:
                    file.unlink()
        for name in [*(name for name in self.files if name != last), last]:
            target = self.into / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if name == last:
                sync_folder(self.into)
            if (self.folder / name).exists():
                os.replace(self.folder / name, target)
                sync_folder(target.parent)
        self._empty_folder()
        shutil.rmtree(self.folder)

    def state(self, kind: type[T]) -> T:
        """Return the facts of the last commit as a dataclass; one of its defaults at the beginning."""
        import msgspec  # 25 ms, which a help page does without

        try:
            return msgspec.convert(self.facts, kind)
        except msgspec.ValidationError as error:
            raise corrupt_error(self.folder / _LOG, str(error)) from None

    def clear(self) -> None:
        """Give up: delete all that was done."""
        self._empty_folder()
        self._state = _State(key=self.key)

    # --- taking up --------------------------------------------------------------------------------

    def _resume_from_log(self) -> None:
        self._state = state = _State()
        for log in sorted(self.folder.glob("commits*.jsonl")):  # that of process 0 decides
            for commit in _read_log(log):
                state.add(commit)
        if state.key is None or (state.finished and not (self.folder / state.finished).exists()):
            # What is there was left by a kill between the last step and the removal of the folder
            self._start_afresh()
            return
        check_made_from(self.into, state.key, self.key, unfinished=True)
        for name, committed in state.files.items():
            path = self.folder / name
            if state.finished and not path.exists():
                path = self.into / name
            size = path.stat().st_size if path.is_file() else -1
            if not 0 <= committed.bytes <= size:
                on_disk = "it is missing" if size < 0 else f"{size:,} are there"
                raise corrupt_error(path, f"{committed.bytes:,} bytes were committed, {on_disk}")
            if size > committed.bytes:  # what was appended after the last commit
                os.truncate(path, committed.bytes)
            with open(path, "rb") as stream:
                sha256 = hashlib.file_digest(stream, "sha256")
            if sha256.hexdigest() != committed.sha256:
                raise corrupt_error(path, "sha256 mismatch")
            self._hashes[name] = sha256
        if self._rank == 0:
            remove_leftovers(self.folder)
            committed_files = {self.folder / name for name in self.files} | set(
                self.folder.glob("commits*.jsonl")
            )
            for file in self.folder.rglob("*"):
                if file not in committed_files and (file.is_symlink() or not file.is_dir()):
                    file.unlink()
        self.resumed = bool(state.facts or state.files or state.marks)

    def _start_afresh(self) -> None:
        self._empty_folder()
        self._state = _State()
        self._append_commit({"key": dict(self.key)})
        sync_folder(self.folder)

    def _empty_folder(self) -> None:
        """Empty the folder, the log first: what is left without it is nothing."""
        self._close_streams()
        for entry in sorted(self.folder.iterdir(), key=lambda entry: entry.name != _LOG):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        self._hashes = {}
        self._changed = set()
        self._discarded = set()

    def _close_streams(self) -> None:
        while self._growing:
            self._growing.popitem()[1].stream.close()

    def _append_commit(self, commit: _Commit) -> None:
        """Add a line to the log and bring it to the disk."""
        text = json.dumps(commit)
        log = self.folder / (f"commits-{self._rank}.jsonl" if self._rank else _LOG)
        with open(log, "ab") as stream:
            stream.write(f"{_line_digest(text)} {text}\n".encode())
            _flush_to_disk(stream)
        self._state.add(_decode_commit(text))
        self._last_commit = time.monotonic()


def check_made_from(
    path: Path | str,
    recorded_inputs: Any,
    current_inputs: Mapping[str, Any],
    *,
    unfinished: bool = False,
) -> None:
    """Refuse what was made from something else.

    Args:
        path: Where it lies.
        recorded_inputs: What it was made from.
        current_inputs: What it should be made from.
        unfinished: Whether it is unfinished work; else a result.
    """
    plain = json.loads(json.dumps(current_inputs))
    if not isinstance(recorded_inputs, dict):
        recorded_inputs = {}
    if differing := [
        name
        for name in sorted(recorded_inputs | plain)
        if recorded_inputs.get(name) != plain.get(name)
    ]:
        contents = (
            "unfinished work that began otherwise"
            if unfinished
            else "something that was made otherwise"
        )
        first = "run the command that began it, " if unfinished else ""
        raise DataError(
            "changed",
            f"`{path}` holds {contents} (differing: {', '.join(differing)})",
            f"{first}choose another --out, or replace it with --overwrite",
        )


def corrupt_error(path: Path, problem: str) -> CheckpointError:
    """Return the error for a file that is not as it was written."""
    fact = f"`{path}` is corrupted: {problem}"
    return CheckpointError("corrupt", fact, "start again with --overwrite")


def _read_log(log: Path) -> Iterator[_Commit]:
    """Yield the commits of a log. A last line that was cut off is removed: it was never committed."""
    if not log.is_file() or log.is_symlink():
        raise corrupt_error(log, "it is not a file")
    content = log.read_bytes()
    lines = content.split(b"\n")
    if lines[-1]:
        os.truncate(log, len(content) - len(lines[-1]))
    for line in lines[:-1]:
        digest, _, text = line.decode("utf-8", "replace").partition(" ")
        if digest != _line_digest(text):
            raise corrupt_error(log, "sha256 mismatch")
        try:
            commit = _decode_commit(text)
        except ValueError as error:  # of JSON or of msgspec
            raise corrupt_error(log, str(error)) from None
        if any(
            PurePath(name).is_absolute() or ".." in PurePath(name).parts
            for name in commit.get("files", ())
        ):
            raise corrupt_error(log, "a name leaves the folder")
        yield commit


def _decode_commit(text: str) -> _Commit:
    import msgspec  # 25 ms, which a help page does without

    return msgspec.json.decode(text, type=_Commit)


def _line_digest(text: str) -> str:
    return sha256_bytes(text.encode())[:16]


def _flush_to_disk(stream: IO[bytes]) -> None:
    stream.flush()
    os.fsync(stream.fileno())
