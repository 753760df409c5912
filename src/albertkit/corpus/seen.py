"""Find documents that were seen before: a set of hashes of any size in 32 MB of memory, in a temporary SQLite file."""

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from albertkit.errors import CheckpointError

DIGEST_BYTES = 16
_AT_ONCE = 1 << 20  # hashes that are sorted and inserted at a time: in order, inserting takes a tenth of the time
_CODES = {"SQLITE_FULL": errno.ENOSPC, "SQLITE_READONLY": errno.EROFS, "SQLITE_CANTOPEN": errno.EACCES}


class SeenDocuments:
    """The hashes of a build's documents; a context manager. Nothing of it outlives the process that made it.

    Args:
        path: A file to create and use.
        hashes: A file of the hashes of earlier calls, `DIGEST_BYTES` each, if there is one.
    """

    def __init__(self, path: Path, hashes: Path) -> None:
        self._path = path
        path.unlink(missing_ok=True)
        with self._sqlite_errors():
            self._database = sqlite3.connect(path, isolation_level=None)
        try:
            with self._sqlite_errors():
                for pragma in ("locking_mode=EXCLUSIVE", "cache_size=-32768", "journal_mode=OFF", "synchronous=OFF"):
                    self._database.execute(f"PRAGMA {pragma}")
                self._database.execute("CREATE TABLE seen (hash BLOB PRIMARY KEY) WITHOUT ROWID")
                self._database.execute("BEGIN")  # never committed
            if hashes.exists():
                self._read(hashes)
        except BaseException:
            self._database.close()
            raise

    def _read(self, hashes: Path) -> None:
        with open(hashes, "rb") as stream:
            while data := stream.read(_AT_ONCE * DIGEST_BYTES):
                rows = sorted((data[start : start + DIGEST_BYTES],) for start in range(0, len(data), DIGEST_BYTES))
                with self._sqlite_errors():
                    self._database.executemany("INSERT OR IGNORE INTO seen VALUES (?)", rows)

    def is_new(self, digest: bytes) -> bool:
        """Return True the first time that a hash is asked for."""
        with self._sqlite_errors():
            return self._database.execute("INSERT OR IGNORE INTO seen VALUES (?)", (digest,)).rowcount > 0

    @contextmanager
    def _sqlite_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            code = _CODES.get(name, errno.EIO if name.startswith("SQLITE_IOERR") else None)
            if code is None:
                raise CheckpointError("corrupt", f"`{self._path}`: {error}", "run the same command again") from None
            raise OSError(code, os.strerror(code), str(self._path)) from None

    def __enter__(self) -> "SeenDocuments":
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()
        self._path.unlink(missing_ok=True)
