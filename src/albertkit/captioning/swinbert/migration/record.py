"""What a migration did to a checkout, kept in the checkout, so that it can be taken back to the byte."""

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from albertkit.errors import CheckpointError
from albertkit.files import atomic_file, read_json, sha256_bytes, write_json

FOLDER = ".albertkit-migration"
_RECORD, _ORIGINALS = "record.json", "originals"
_VERSION = 1


@dataclass
class FileRecord:
    """One file.

    Attributes:
        before: SHA-256 of its original bytes, None where there was no such file.
        written: SHA-256 of every content that a migration gave it, the newest last.
    """

    before: str | None
    written: list[str] = field(default_factory=list)


class MigrationRecord:
    """The record of a checkout, empty where nothing was migrated.

    Written before the first file is changed: whenever a process ends, each file is either as it was or as it was to be, and the
    record knows both.

    Attributes:
        files: Paths, from the checkout's folder, to what was done there.
        portable: Whether `--portable` was ever applied.
    """

    def __init__(self, checkout: Path) -> None:
        """Read it.

        Raises:
            CheckpointError: broken-migration.
        """
        self._folder = checkout / FOLDER
        self.files: dict[str, FileRecord] = {}
        self.portable = False
        if (self._folder / _RECORD).exists():
            values = read_json(self._folder / _RECORD, "record of a migration")
            try:
                outside = any(".." in Path(path).parts or Path(path).is_absolute() for path in values["files"])
                if values["version"] != _VERSION or outside:
                    raise ValueError
                self.portable = bool(values["portable"])
                self.files = {path: FileRecord(**entry) for path, entry in values["files"].items()}
            except (KeyError, TypeError, ValueError, AttributeError):
                raise self._broken(f"`{FOLDER}/{_RECORD}` is not a record of this version of albertkit") from None

    def begin(self, changes: Mapping[str, tuple[bytes | None, bytes]], portable: bool) -> None:
        """Note what is about to be written, originals first.

        Args:
            changes: Paths to the contents before, None for no file, and after.
            portable: Whether `--portable` is among it.
        """
        for path, (before, after) in changes.items():
            if path not in self.files:
                self.files[path] = FileRecord(None if before is None else sha256_bytes(before))
                if before is not None:
                    with atomic_file(self._folder / _ORIGINALS / path) as stream:
                        stream.write(before)
            entry, new = self.files[path], sha256_bytes(after)
            if self.is_ours(path, before):
                entry.written = [*(old for old in entry.written if old != new), new]
        self.portable = self.portable or portable
        entries = {path: asdict(entry) for path, entry in sorted(self.files.items())}
        write_json(self._folder / _RECORD, {"version": _VERSION, "portable": self.portable, "files": entries})

    def is_ours(self, path: str, content: bytes | None) -> bool:
        """Whether a recorded file holds its original bytes or what a migration wrote, and nothing that somebody else did."""
        entry = self.files[path]
        found = None if content is None else sha256_bytes(content)
        return found == entry.before or found in entry.written

    def original(self, path: str) -> bytes | None:
        """A file's bytes before the first migration; None where there was no file.

        Raises:
            CheckpointError: broken-migration.
        """
        entry = self.files[path]
        if entry.before is None:
            return None
        stored = self._folder / _ORIGINALS / path
        content = stored.read_bytes() if stored.is_file() else b""
        if sha256_bytes(content) != entry.before:
            raise self._broken(f"`{FOLDER}/{_ORIGINALS}/{path}` is missing or not what was stored")
        return content

    def remove(self) -> None:
        """Forget everything; the last step of going back."""
        if self._folder.exists():
            shutil.rmtree(self._folder)

    def _broken(self, fact: str) -> CheckpointError:
        return CheckpointError(
            "broken-migration", fact, "restore the files with your version control, then delete the folder"
        )
