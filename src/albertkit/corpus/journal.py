"""What a build has brought to the disk, and the hash of every document it has seen, in one SQLite file.

SQLite does the two things that must be right: a commit holds after kill -9, and a set of any size takes 32 MB.
"""

import errno
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from albertkit.errors import MachineError


class Journal:
    """The journal of one build; only one process can have it open.

    Args:
        path: The SQLite file, made if missing.

    Raises:
        MachineError: build-running, if another process builds the same store; broken-journal.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._database = sqlite3.connect(path, timeout=0, isolation_level=None)
        try:
            self._begin()
        except BaseException:
            self._database.close()
            raise

    def _begin(self) -> None:
        with self._explained():
            # EXCLUSIVE keeps the lock until the process ends, however it ends
            for pragma in ("locking_mode=EXCLUSIVE", "cache_size=-32768", "synchronous=FULL", "temp_store=MEMORY"):
                self._database.execute(f"PRAGMA {pragma}")
            self._database.execute("BEGIN IMMEDIATE")
            (verdict,) = self._database.execute("PRAGMA quick_check(1)").fetchone()  # now rather than in the middle
            if verdict != "ok":
                raise sqlite3.DatabaseError(verdict)
            self._database.execute("CREATE TABLE IF NOT EXISTS seen (hash BLOB PRIMARY KEY) WITHOUT ROWID")
            self._database.execute("CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT)")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            name = getattr(error, "sqlite_errorname", "")
            if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                raise MachineError(
                    "build-running", f"another process is building `{self.path.parent.parent}`",
                    "wait for it to finish, or choose another folder",
                ) from None  # fmt: skip
            code = {"SQLITE_FULL": errno.ENOSPC, "SQLITE_READONLY": errno.EROFS, "SQLITE_CANTOPEN": errno.EACCES}.get(
                name
            )
            if code is None:
                raise MachineError("broken-journal", f"`{self.path}`: {error}", "build anew with --overwrite") from None
            raise OSError(code, os.strerror(code), str(self.path)) from None
        except sqlite3.DatabaseError as error:
            raise MachineError("broken-journal", f"`{self.path}`: {error}", "build anew with --overwrite") from None

    def seen(self, digest: bytes) -> bool:
        """Whether this document has been written before."""
        with self._explained():
            return self._database.execute("SELECT 1 FROM seen WHERE hash = ?", (digest,)).fetchone() is not None

    def add(self, digests: Iterable[bytes]) -> None:
        """Remember written documents (for good at the next commit)."""
        with self._explained():
            self._database.executemany("INSERT INTO seen VALUES (?)", ((digest,) for digest in digests))

    def fact(self, name: str) -> Any:
        """A committed value, None if there is none."""
        with self._explained():
            row = self._database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    def commit(self, **facts: Any) -> None:
        """Set values and make them and all added documents last."""
        with self._explained():
            self._database.executemany(
                "INSERT OR REPLACE INTO facts VALUES (?, ?)",
                [(name, json.dumps(value)) for name, value in facts.items()],
            )
            self._database.execute("COMMIT")
            self._database.execute("BEGIN IMMEDIATE")

    def close(self) -> None:
        """Close; what was not committed is forgotten."""
        self._database.close()
