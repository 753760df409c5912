"""Compiled loops on the disk, valid by the contents of the sources that they were compiled from.

numba's own cache asks for the file of the outermost function only, so that a changed function of
another module goes unnoticed. Here a loop is found by a digest of its module and of all modules of
albertkit that this one imports: a loop is never older than its sources, and the same sources in
another folder share their loops.
"""

import hashlib
import inspect
import logging
import os
import pickle
import re
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core import caching

from albertkit.files import atomic_file, cache_folder

logger = logging.getLogger(__name__)

_START_TIME = time.time()
# Of a module's loops: checkouts of several branches are used by turns, of 0.1 to 8 MB each
MAX_VERSIONS = 8
_DIGEST_BYTES = hashlib.sha256().digest_size
# Of which nothing gets into a loop
_IGNORED_MODULES = {Path(__file__), Path(__file__).with_name("errors.py")}
_IMPORT = re.compile(
    r"^from (albertkit[\w.]*) import (\([^)]*\)|.*)|^import (albertkit[\w.]*)",
    re.MULTILINE,
)


def loops_folder() -> Path:
    """Return where compiled loops lie: `NUMBA_CACHE_DIR`, else `loops` in albertkit's cache folder."""
    numba_folder = os.environ.get("NUMBA_CACHE_DIR")
    return Path(numba_folder) / "albertkit" if numba_folder else cache_folder() / "loops"


def loop_cache(function: Callable[..., Any]) -> caching._Cache:
    """Return the cache that numba's dispatcher asks before it compiles a function.

    Raises:
        RuntimeError: There is no folder to read or to write. OSError: There is no source to read.
    """
    path = inspect.getfile(function)
    return LoopCache(function) if is_unchanged_since_import(path) else caching.NullCache()


class LoopCache(caching.FunctionCache):
    """Hold the compiled code of one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        # Not the locator's: NUMBA_CACHE_LOCATOR_CLASSES may name another
        stamp = sources_digest(inspect.getfile(function))
        self._cache_file = CodeFiles(Path(self.cache_path), self._impl.filename_base, stamp)

    def lacks(self, types: tuple, context: Any) -> bool:
        """Return whether no process has saved the code for arguments of these types yet."""
        return self._cache_file.load(self._index_key(types, context.codegen())) is None


class SourceLocator(caching._CacheLocator):
    """Find the folder of a function's compiled code by what it was compiled from."""

    def __init__(self, function: Callable[..., Any], path: str) -> None:
        self._py_file = path  # numba's warnings name it
        self._line = function.__code__.co_firstlineno
        self._stamp = sources_digest(path)
        self._folder = loops_folder() / f"{function.__module__}-{self._stamp[:16]}"

    def get_cache_path(self) -> str:
        """Return the folder of this version of the module."""
        return str(self._folder)

    def get_source_stamp(self) -> str:
        """Return the digest of all sources."""
        return self._stamp

    def get_disambiguator(self) -> str:
        """Return the line, which tells functions of one name in a module apart."""
        return str(self._line)

    def ensure_cache_path(self) -> None:
        """Do nothing before a save, which makes the folder; numba would stop a computation where it cannot."""

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> "SourceLocator | None":
        """Return the locator, or None where the folder can be neither read nor written."""
        locator = cls(py_func, py_file)
        folder = locator._folder
        with suppress(OSError):
            if not folder.is_dir():
                folder.mkdir(parents=True, exist_ok=True)
                remove_old_versions(folder)
            os.utime(folder)  # used now
        return locator if os.access(folder, os.R_OK | os.X_OK) else None


class _Implementation(caching.CompileResultCacheImpl):
    _locator_classes = [SourceLocator]  # noqa: RUF012


LoopCache._impl_class = _Implementation


class CodeFiles:
    """Store the code of each signature and processor in a file of its own.

    numba numbers the files of a function and lists them in another file: two processes that compile
    at the same time can list one's code under the other's signature.
    """

    def __init__(self, folder: Path, stem: str, stamp: str) -> None:
        self._folder = folder
        self._stem = stem
        self._made_from = (
            stamp,
            sys.implementation.cache_tag,
            numba.__version__,
            llvmlite.__version__,
        )

    def load(self, key: Any) -> Any:
        """Return what was saved under the key; None if nothing was, or the file is damaged."""
        try:
            data = self._loop_file(key).read_bytes()
        except OSError:
            return None
        if hashlib.sha256(data[_DIGEST_BYTES:]).digest() != data[:_DIGEST_BYTES]:
            return None
        saved_key, code = pickle.loads(data[_DIGEST_BYTES:])
        return code if saved_key == (self._made_from, key) else None

    def save(self, key: Any, code: Any) -> None:
        """Save the code; a disk that is full or read-only costs the next process a compilation, not this one its result."""
        data = caching.dumps(((self._made_from, key), code))
        try:
            with atomic_file(self._loop_file(key)) as stream:
                stream.write(hashlib.sha256(data).digest() + data)
        except OSError as error:
            logger.debug("a compiled loop was not cached: %s", error)

    def flush(self) -> None:
        """Forget all code of the function."""
        for path in self._folder.glob(f"{self._stem}-*.loop"):
            path.unlink(missing_ok=True)

    def _loop_file(self, key: Any) -> Path:
        digest = hashlib.sha256(repr((self._made_from, key)).encode()).hexdigest()
        return self._folder / f"{self._stem}-{digest[:24]}.loop"


@cache
def source_files(path: str) -> frozenset[Path]:
    """Return a source file and those of all modules of albertkit that it imports, and these import.

    Functions and constants of other modules become part of compiled code, and so do the fields of
    named tuples.
    """
    files = {Path(path)}
    waiting = [Path(path)]
    while waiting:
        imported = _imported_files(waiting.pop()) - files
        files |= imported
        waiting += imported
    return frozenset(files)


# Of the whole package instead, every change anywhere would compile everything again, for 10 to 50
# s.
@cache
def sources_digest(path: str) -> str:
    """Return a digest of the contents of `source_files`, the same wherever these lie."""
    return hashlib.sha256(
        b"".join(sorted(_file_digest(source) for source in source_files(path)))
    ).hexdigest()


def is_unchanged_since_import(path: str) -> bool:
    """Return whether no source has changed since this process began: else it would save old functions as new ones."""
    return not any(
        _START_TIME < source.stat().st_mtime < time.time() for source in source_files(path)
    )


@cache
def _file_digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


@cache
def _imported_files(path: Path) -> frozenset[Path]:
    """Return the files of the albertkit modules that a source imports at its top level."""
    files = set()
    for package, names, module in _IMPORT.findall(path.read_text(encoding="utf-8")):
        submodules = [_module_file(f"{package}.{name}") for name in re.findall(r"\w+", names)]
        files |= {
            *submodules,
            None if submodules and all(submodules) else _module_file(module or package),
        }
    return frozenset(file for file in files if file) - _IGNORED_MODULES


@cache
def _module_file(name: str) -> Path | None:
    """Return the source file of an albertkit module, without importing it; None if there is no such module."""
    stem = Path(__file__).parent.joinpath(*name.split(".")[1:])
    files = (stem.with_name(f"{stem.name}.py"), stem / "__init__.py")
    return next((path for path in files if path.is_file()), None)


def remove_old_versions(folder: Path) -> None:
    """Remove the versions of a module that were not used for the longest time."""
    with suppress(OSError):
        versions = [
            path
            for path in folder.parent.glob(f"{folder.name[:-16]}*")
            if len(path.name) == len(folder.name)
        ]
        versions.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for path in versions[MAX_VERSIONS:]:
            shutil.rmtree(path, ignore_errors=True)
