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
from albertkit.files import sha256_bytes

JOURNAL = "journal.sqlite"  # name of the file in the folder of a build
_ASKED = 500  # hashes in one question: SQLite's limit has been 999 for long


class Journal:
    """The journal of one build; only one process can have it open.

    Args:
        path: The SQLite file, made if missing.

    Raises:
        MachineError: build-running, if another process builds the same store; broken-journal.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_dir() or (path.exists() and not path.is_file()):
            raise self._broken("it is a folder, a pipe or a device")
        with self._explained():
            self._database = sqlite3.connect(path, timeout=0, isolation_level=None)
        self._seen = 0  # sum of all hashes: SQLite has no checksums, and a changed hash lets a document in twice
        try:
            self._begin()
            self._check()
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

    def _check(self) -> None:
        """Compare all with the digests and the sum that were committed with it: 0.2 s for a million hashes."""
        with self._explained():
            facts = self._database.execute("SELECT name, value FROM facts").fetchall()
            self._seen = _sum((digest for (digest,) in self._database.execute("SELECT hash FROM seen")), 0)
        if any(value != _with_digest(name, str(value).partition("\t")[0]) for name, value in facts):
            raise self._broken("its facts are not what was written")
        if (self.fact("seen") or 0) != self._seen:
            raise self._broken("the hashes of documents are not what was written")

    def _broken(self, what: str) -> MachineError:
        return MachineError("broken-journal", f"`{self.path}`: {what}", "build anew with --overwrite")

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
            codes = {"SQLITE_FULL": errno.ENOSPC, "SQLITE_READONLY": errno.EROFS, "SQLITE_CANTOPEN": errno.EACCES}
            code = codes.get(name)
            if name.startswith("SQLITE_IOERR") and name != "SQLITE_IOERR_SHORT_READ":
                code = errno.EIO
            if code is None:
                raise self._broken(str(error)) from None
            raise OSError(code, os.strerror(code), str(self.path)) from None
        except sqlite3.DatabaseError as error:
            raise self._broken(str(error)) from None

    def seen(self, digest: bytes) -> bool:
        """Whether this document has been written before."""
        with self._explained():
            return self._database.execute("SELECT 1 FROM seen WHERE hash = ?", (digest,)).fetchone() is not None

    def known(self, digests: list[bytes]) -> set[bytes]:
        """Those of many documents that have been written before: a fifth of the time of asking for each."""
        found: set[bytes] = set()
        with self._explained():
            for start in range(0, len(digests), _ASKED):
                some = digests[start : start + _ASKED]
                marks = ",".join("?" * len(some))
                found.update(
                    row[0] for row in self._database.execute(f"SELECT hash FROM seen WHERE hash IN ({marks})", some)
                )
        return found

    def add(self, digests: Iterable[bytes]) -> None:
        """Remember written documents (for good at the next commit)."""
        rows = [(digest,) for digest in digests]
        with self._explained():
            self._database.executemany("INSERT INTO seen VALUES (?)", rows)
        self._seen = _sum((digest for (digest,) in rows), self._seen)

    def fact(self, name: str) -> Any:
        """A committed value, None if there is none."""
        with self._explained():
            row = self._database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        try:
            return None if row is None else json.loads(row[0].partition("\t")[0])
        except (TypeError, ValueError, AttributeError) as error:
            raise self._broken(str(error)) from None

    def commit(self, **facts: Any) -> None:
        """Set values and make them and all added documents last."""
        with self._explained():
            self._database.executemany(
                "INSERT OR REPLACE INTO facts VALUES (?, ?)",
                [
                    (name, _with_digest(name, json.dumps(value)))
                    for name, value in (facts | {"seen": self._seen}).items()
                ],
            )
            self._database.execute("COMMIT")
            self._database.execute("BEGIN IMMEDIATE")

    def close(self) -> None:
        """Close; what was not committed is forgotten."""
        self._database.close()


def _with_digest(name: str, value: str) -> str:
    return f"{value}\t{sha256_bytes(f'{name} {value}'.encode())[:16]}"


def _sum(digests: Iterable[bytes], before: int) -> int:
    """Sum of hashes, which does not mind their order."""
    for digest in digests:
        before += int.from_bytes(digest)
    return before % (1 << 128)
