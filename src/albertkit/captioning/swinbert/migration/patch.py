"""Patches by git, kept in the checkout, so that the migration can be taken back to the byte."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from albertkit.errors import CheckpointError, DataError, MissingExtraError
from albertkit.files import atomic_file

FOLDER = ".albertkit-migration"
Contents = Mapping[str, bytes | None]  # path to content; None: no such file


def unified_diff(before: Contents, after: Contents) -> bytes:
    """Return a diff that `git apply` and `patch -p1` understand."""
    with TemporaryDirectory() as folder:
        for side, contents in (("a", before), ("b", after)):
            (Path(folder) / side).mkdir()
            for path, content in contents.items():
                _write(Path(folder) / side / path, content)
        return _git(folder, "diff", "--no-index", "--no-prefix", "--no-color", "--text", "a", "b").stdout


class StoredPatches:
    """The patches of a checkout's migrations, the newest last; each leads from the original files to the migrated ones.

    A patch is stored before the first file is changed, so that a killed process leaves nothing that cannot be taken back.
    """

    def __init__(self, checkout: Path) -> None:
        self.folder = checkout / FOLDER
        self._patches = {file: _paths(file) for file in sorted(self.folder.glob("*.patch"))}
        self.paths = {path for paths in self._patches.values() for path in paths}

    @property
    def portable(self) -> bool:
        """Return whether `--portable` was ever applied."""
        return any("portable" in file.name for file in self._patches)

    def store(self, patch: bytes, portable: bool) -> None:
        """Keep another patch."""
        self.folder.mkdir(exist_ok=True)
        name = f"{len(self._patches) + 1:03}{'-portable' if portable else ''}.patch"
        with atomic_file(self.folder / name) as stream:
            stream.write(patch)

    def original(self, path: str, content: bytes | None) -> bytes | None:
        """Return what a file held before the migration, with the edits that were made since in other places."""
        patches = [file for file, paths in self._patches.items() if path in paths]
        for patch in reversed(patches):
            for arguments in (("-R",), ()):  # (): a killed process had not come to this file
                with TemporaryDirectory() as folder:
                    _write(Path(folder) / path, content)
                    if _git(folder, "apply", *arguments, f"--include={path}", str(patch.absolute())).returncode:
                        continue
                    if not arguments:
                        return content
                    return (Path(folder) / path).read_bytes() if (Path(folder) / path).exists() else None
        if not patches:
            return content
        raise DataError(
            "exists",
            f"`{path}` was edited since the migration, in the places that it changed",
            "keep a copy of your edits and restore the file with your version control, or go on without it by --force",
        )


def _paths(patch: Path) -> list[str]:
    listed = _git(patch.parent, "apply", "--numstat", "-z", patch.name)
    paths = [entry.split("\t")[2] for entry in listed.stdout.decode().split("\0") if entry]
    outside = any(PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts for path in paths)
    if listed.returncode or outside:
        raise CheckpointError(
            "corrupt",
            f"`{FOLDER}/{patch.name}` is damaged",
            "restore the files with your version control, then delete the folder",
        )
    return paths


def _write(file: Path, content: bytes | None) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    if content is not None:
        file.write_bytes(content)


def _git(folder: str | Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder, without the settings of the user and of a repository around it."""
    folder = Path(folder).absolute()
    own = {"GIT_CEILING_DIRECTORIES": str(folder.parent), "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(folder)}
    own |= {"XDG_CONFIG_HOME": str(folder), "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | own
    try:
        return subprocess.run(["git", *arguments], cwd=folder, env=environment, capture_output=True, check=False)
    except FileNotFoundError:
        raise MissingExtraError("not-installed", "git is not installed", "install it: the migration uses it") from None
