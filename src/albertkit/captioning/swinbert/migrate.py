"""`migrate`: show, apply, check and take back what puts ALBERT into a SwinBERT checkout, by a patch of git."""

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

PATCH = ".albertkit-migration.patch"
Contents = Mapping[str, bytes | None]  # path to content; None: no such file
Action = Literal["diff", "apply", "revert", "check"]


@dataclass(frozen=True)
class FileChange:
    """A file of the checkout, and its contents; None: no such file."""

    path: str
    original: bytes | None  # before the migration, with the edits that were made since in other places
    current: bytes | None
    target: bytes | None


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
    `.albertkit-migration.patch` of the checkout; edits made since in other places stay.
    """
    actions: list[Action] = [action for action in get_args(Action) if getattr(options, action)]
    if len(actions) > 1:
        raise ConfigError("bad-value", f"--{' and --'.join(actions)} cannot be combined", "choose one of them")
    action: Action = actions[0] if actions else "diff"
    checkout = Path(options.checkout)
    if not (checkout / "src" / "tasks").is_dir():
        raise DataError("not-found", f"no `src/tasks` in `{checkout}`", "name the folder of a checkout of SwinBERT")
    patch = StoredPatch(checkout)
    portable = options.portable or patch.is_portable
    notes: list[str] = []
    originals = _read_originals(checkout, patch, action, options.force, notes)
    targets = {} if action == "revert" else _migrated(originals, portable, options.force, notes)
    files = []
    for path in (*targets, *(path for path in originals if path not in targets)):
        current = _read(checkout / path)
        original = originals.get(path, current)
        files.append(FileChange(path, original, current, targets.get(path, original)))
    if action != "revert":
        _check_additions(files, options.force)
    changes = [file for file in files if file.current != file.target]
    if action in ("apply", "revert"):
        for folder in {checkout, *((checkout / file.path).resolve().parent for file in files)}:
            remove_leftovers(folder)
    if action == "apply" and changes:
        if patch.paths:  # one patch leads back: that of before is taken back first
            for file in reversed(files):
                _write(checkout / file.path, file.original)
        patch.store(
            unified_diff({file.path: file.original for file in files}, {file.path: file.target for file in files}),
            portable,
        )
        for file in files:
            _write(checkout / file.path, file.target)
    if action == "revert":
        for file in files:
            _write(checkout / file.path, file.target)
        for path in patch.paths:
            _remove_empty_folder((checkout / path).parent)
        if not patch.paths:
            notes.append("there is no patch of a migration here: nothing to take back")
        patch.remove()
    diff = unified_diff({file.path: file.current for file in changes}, {file.path: file.target for file in changes})
    return MigrationReport(
        checkout=checkout,
        action=action,
        migrated=action == "apply" or (action != "revert" and not changes),
        portable=portable,
        changed=tuple(file.path for file in changes if file.current is not None and file.target is not None),
        added=tuple(file.path for file in changes if file.current is None),
        removed=tuple(file.path for file in changes if file.target is None),
        notes=tuple(notes),
        diff=diff.decode("utf-8", "surrogateescape"),
    )


def _read_originals(
    checkout: Path, patch: "StoredPatch", action: Action, force: bool, notes: list[str]
) -> dict[str, bytes | None]:
    """Return the files that a migration changes or reads, as they were before it."""
    paths = patch.paths
    if action != "revert":
        configs = [file.relative_to(checkout).as_posix() for file in (checkout / CONFIGS).glob("*.json")]
        portable_files = [path for path in PORTABLE if (checkout / path).exists()]
        paths = [*TASK_SCRIPTS, *sorted({*portable_files, *configs, *patch.paths} - {*TASK_SCRIPTS})]
    originals: dict[str, bytes | None] = {}
    for path in paths:
        content = _read(checkout / path)
        if content is None and path in TASK_SCRIPTS:
            raise DataError("not-found", f"no `{checkout / path}`", "name the folder of a checkout of SwinBERT")
        try:
            originals[path] = patch.original(path, content)
        except CheckpointError:
            if action == "revert" or (not force and path in (*TASK_SCRIPTS, *PORTABLE)):
                raise
            notes.append(f"left as it was edited: {path}")
    return originals


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


def _check_additions(files: list[FileChange], force: bool) -> None:
    """Refuse to write over files that were there before the migration."""
    for file in files:
        is_added = file.path not in (*TASK_SCRIPTS, *PORTABLE)
        if is_added and file.original not in (None, file.target) and not force:
            raise CheckpointError(
                "exists",
                f"`{file.path}` is there already, with another content",
                "move it away, or write over it with --force; --revert brings it back",
            )


def _read(file: Path) -> bytes | None:
    return file.read_bytes() if file.exists() else None


def _write(file: Path, content: bytes | None) -> None:
    """Write a file, whole and with the permissions it had; or delete it. One that has the content is left as it is."""
    target = file.resolve()  # a link stays a link
    if _read(target) == content:
        return
    if content is None:
        target.unlink()
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


class StoredPatch:
    """The patch of a checkout's migration, which leads from the original files to the migrated ones.

    It is stored before the first file is changed, so that a killed process leaves nothing that cannot be taken back.
    """

    def __init__(self, checkout: Path) -> None:
        self._file = checkout / PATCH
        self.paths: list[str] = []
        self.is_portable = False
        if not self._file.exists():
            return
        self.is_portable = b"--portable" in self._file.read_bytes().partition(b"\n")[0]
        numbers = _git(checkout, "apply", "--numstat", "-z", PATCH)
        self.paths = [entry.split("\t")[2] for entry in numbers.stdout.decode().split("\0") if entry]
        outside = any(PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts for path in self.paths)
        if numbers.returncode or outside:
            raise CheckpointError(
                "corrupt",
                f"`{PATCH}` is damaged",
                "restore the files with your version control, then delete the patch",
            )

    def store(self, diff: bytes, portable: bool) -> None:
        """Write the patch; git passes over its first line."""
        command = b"albertkit migrate swinbert --apply" + (b" --portable" if portable else b"")
        with atomic_file(self._file) as stream:
            stream.write(command + b"\n" + diff)

    def remove(self) -> None:
        """Delete the patch."""
        self._file.unlink(missing_ok=True)

    def original(self, path: str, content: bytes | None) -> bytes | None:
        """Return the content of a file before the migration, with the edits that were made since in other places."""
        if path not in self.paths:
            return content
        with TemporaryDirectory() as folder:
            file = Path(folder) / path
            command = ("apply", f"--include={path}", str(self._file.absolute()))
            _put(file, content)
            if _git(folder, *command, "-R").returncode == 0:
                return _read(file)
            if _git(folder, *command, "--check").returncode == 0:  # a killed process had not come to this file
                return content
        raise CheckpointError(
            "exists",
            f"`{path}` was edited since the migration, in the places that it changed",
            "keep a copy of your edits, and restore the file with your version control; or move away one that was added",
        )


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
