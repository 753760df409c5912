"""`migrate`: show, apply, check and take back what puts ALBERT into a SwinBERT checkout, by patches of git."""

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

from albertkit.captioning.swinbert.edits import (
    CONFIGS,
    PORTABLE,
    TASK_SCRIPTS,
    added_files,
    albert_edits,
    check_python,
    decay_edits,
    portable_edits,
)
from albertkit.captioning.swinbert.options import MigrateOptions
from albertkit.errors import CheckpointError, ConfigError, DataError, MissingExtraError
from albertkit.files import atomic_file, remove_leftovers
from albertkit.frame.command import takes
from albertkit.frame.rendering import to_terminal
from albertkit.frame.result import Result
from albertkit.frame.section import Facts

FOLDER = ".albertkit-migration"
Contents = Mapping[str, bytes | None]  # path to content; None: no such file
Action = Literal["diff", "apply", "revert", "check"]


@dataclass(frozen=True)
class MigrationReport(Result):
    """The changes that were, or would be, made.

    Attributes:
        checkout: The folder.
        action: The action.
        migrated: Whether the checkout has ALBERT in BERT's place now.
        portable: Whether the changes of `--portable` are, or would be, among them.
        changed: Files whose content was, or would be, replaced.
        added: Files that were, or would be, created.
        removed: Files that were deleted.
        notes: Places that are not as in SwinBERT.
        diff: The same as a unified diff, that `patch -p1` and `git apply` understand.
    """

    checkout: Path
    action: Action
    migrated: bool
    portable: bool
    changed: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    notes: tuple[str, ...]
    diff: str

    @property
    def exit_status(self) -> int:
        """Return 1 where `--check` finds anything left to apply."""
        return int(self.action == "check" and not self.migrated)

    @property
    def readable_diff(self) -> str:
        """Return the diff with a sign in the place of bytes that are no UTF-8."""
        return self.diff.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return super().to_dict() | {"diff": self.readable_diff}


@takes(MigrateOptions)
def migrate(options: MigrateOptions) -> MigrationReport:
    """Put ALBERT into BERT's place in a checkout of SwinBERT, or take that back.

    A few places of the two task scripts are replaced, and files are added; `src/layers/bert` is never touched. Applying twice
    is the same as once. Killed at any moment, the same call or `revert` goes on. The patch that leads back lies in
    `.albertkit-migration/` of the checkout; edits made since in other places stay.
    """
    asked = [action for action in get_args(Action) if getattr(options, action)]
    if len(asked) > 1:
        raise ConfigError("bad-value", f"--{' and --'.join(asked)} cannot be combined", "choose one of them")
    action: Action = asked[0] if asked else "diff"
    root, force = Path(options.checkout), options.force
    if not (root / "src" / "tasks").is_dir():
        raise DataError("not-found", f"no `src/tasks` in `{root}`", "name the folder of a checkout of SwinBERT")
    stored, notes = StoredPatches(root), list[str]()
    portable = options.portable or stored.portable
    before = _originals(root, stored, action, force, notes)
    after = dict(before) if action == "revert" else _migrated(before, portable, force, notes)
    if action != "revert":
        _check_additions(root, before, after, force)
    now = {path: _read(root / path) for path in after}
    changed = {path: content for path, content in after.items() if now[path] != content}
    if action == "apply" and changed:
        stored.store(unified_diff({path: before.get(path, now[path]) for path in after}, after), portable)
    if action in ("apply", "revert"):
        for path, content in after.items():
            remove_leftovers((root / path).resolve().parent)
            if path in changed:
                _write(root / path, content)
    if action == "revert":
        notes += [] if stored.paths else ["there is no patch of a migration here: nothing to take back"]
        for path in stored.paths:
            _remove_empty_folder((root / path).parent)
        if not set(stored.paths) - after.keys():
            shutil.rmtree(stored.folder, ignore_errors=True)
    lists: dict[tuple[bool, bool], list[str]] = {(True, True): [], (False, True): [], (True, False): []}
    for path, content in changed.items():
        lists[now[path] is not None, content is not None].append(path)
    diff = unified_diff({path: now[path] for path in changed}, changed).decode("utf-8", "surrogateescape")
    migrated = action == "apply" or (action != "revert" and not changed)
    replaced, added, removed = (tuple(paths) for paths in lists.values())
    return MigrationReport(root, action, migrated, portable, replaced, added, removed, tuple(notes), diff)


def _originals(
    root: Path, stored: "StoredPatches", action: Action, force: bool, notes: list[str]
) -> dict[str, bytes | None]:
    """Return the files that a migration changes, as they were before it."""
    folder = root / CONFIGS
    configs = {file.relative_to(root).as_posix() for file in sorted(folder.glob("*.json"))}
    known = {path for path in (*PORTABLE, *configs) if (root / path).exists()}
    found: dict[str, bytes | None] = {}
    for path in sorted(stored.paths) if action == "revert" else (*TASK_SCRIPTS, *sorted(known | stored.paths)):
        content = _read(root / path)
        if content is None and path in TASK_SCRIPTS:
            raise DataError("not-found", f"no `{root / path}`", "name the folder of a checkout of SwinBERT")
        try:
            found[path] = stored.original(path, content)
        except CheckpointError:
            if not force and (action == "revert" or path in (*TASK_SCRIPTS, *PORTABLE)):
                raise
            notes.append(f"left as it was edited: {path}")
    return found


def _migrated(before: Contents, portable: bool, force: bool, notes: list[str]) -> dict[str, bytes | None]:
    """Return the files as they shall be, those first that others import. Nothing is written before all is known to work."""
    configs = {path.rpartition("/")[2]: content for path, content in before.items() if path.startswith(CONFIGS)}
    added = added_files({name: content for name, content in configs.items() if content is not None}, portable)
    left = {note.removeprefix("left as it was edited: ") for note in notes}
    after: dict[str, bytes | None] = {path: content for path, content in added.items() if path not in left}
    for path in (*PORTABLE, *TASK_SCRIPTS):
        content, unknown = before.get(path), list[str]()
        if content is None:
            continue
        if path in TASK_SCRIPTS:
            content, unknown = albert_edits(content)
            if unknown and not force:
                raise DataError(
                    "unsupported",
                    f"`{path}` is not as in SwinBERT: {'; '.join(unknown)}",
                    "look at --force --diff, which shows the edits that can be made all the same",
                )
        if path == TASK_SCRIPTS[0]:
            content, facts = decay_edits(content)
            unknown += facts
        notes += [f"{path}: {fact}" for fact in unknown]
        content = portable_edits(content, path) if portable else content
        check_python(content, path)
        after[path] = content
    return after


def _check_additions(root: Path, before: Contents, after: Contents, force: bool) -> None:
    """Refuse to write over files that were there before the migration."""
    for path, content in after.items():
        original = before.get(path, _read(root / path))
        if path not in (*TASK_SCRIPTS, *PORTABLE) and original not in (None, content) and not force:
            raise CheckpointError(
                "exists",
                f"`{path}` is there already, with another content",
                "move it away, or write over it with --force; --revert brings it back",
            )


def _read(file: Path) -> bytes | None:
    return file.read_bytes() if file.exists() else None


def _write(file: Path, content: bytes | None) -> None:
    """Write a file, whole and with the permissions it had; or delete it."""
    target = file.resolve()  # a link stays a link
    if content is None:
        target.unlink(missing_ok=True)
        return
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    with atomic_file(target) as stream:
        stream.write(content)
        if mode is not None:
            os.chmod(stream.name, mode)


def _remove_empty_folder(folder: Path) -> None:
    """Delete a folder that is empty, but for what Python compiled."""
    if folder.is_dir() and all(other.name == "__pycache__" for other in folder.iterdir()):
        shutil.rmtree(folder)


def show(report: MigrationReport) -> None:
    """Print a `MigrationReport`: the diff in colours on a terminal, elsewhere to the byte, for `git apply`."""
    for note in report.notes:
        print(note, file=sys.stderr)
    if report.action != "diff":
        hidden = ("diff", "notes")
        to_terminal([Facts({name: value for name, value in report.to_dict().items() if name not in hidden})])
    elif report.migrated:
        print("nothing left to change", file=sys.stderr)
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.syntax import Syntax

        Console().print(Syntax(report.readable_diff, "diff", theme="ansi_dark", background_color="default"))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(report.diff.encode("utf-8", "surrogateescape"))


def unified_diff(before: Contents, after: Contents) -> bytes:
    """Return a diff that `git apply` and `patch -p1` understand."""
    with TemporaryDirectory() as folder:
        for side, contents in (("a", before), ("b", after)):
            (Path(folder) / side).mkdir()
            for path, content in contents.items():
                _put(Path(folder) / side / path, content)
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
                    _put(Path(folder) / path, content)
                    if _git(folder, "apply", *arguments, f"--include={path}", str(patch.absolute())).returncode:
                        continue
                    if not arguments:
                        return content
                    return (Path(folder) / path).read_bytes() if (Path(folder) / path).exists() else None
        if not patches:
            return content
        raise CheckpointError(
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


def _put(file: Path, content: bytes | None) -> None:
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
