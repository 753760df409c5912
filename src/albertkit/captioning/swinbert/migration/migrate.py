"""`migrate`: show, apply, check and take back what puts ALBERT into a SwinBERT checkout."""

import glob
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from albertkit.captioning.swinbert.migration.additions import CONFIGS, added_files
from albertkit.captioning.swinbert.migration.difference import unified_diff
from albertkit.captioning.swinbert.migration.portable import WORDS, portable_edits
from albertkit.captioning.swinbert.migration.record import MigrationRecord
from albertkit.captioning.swinbert.migration.source import PythonSource
from albertkit.captioning.swinbert.migration.task_scripts import TASK_SCRIPTS, albert_edits, decay_edits
from albertkit.errors import ConfigError, DataError
from albertkit.files import atomic_file

Action = Literal["diff", "apply", "revert", "check"]
Changes = dict[str, tuple[bytes | None, bytes | None]]  # path to the content before and after; None: no such file


@dataclass(frozen=True)
class MigrationReport:
    """What was, or would be, done.

    Attributes:
        checkout: The folder.
        action: What was asked for.
        migrated: Whether the checkout has ALBERT in BERT's place now.
        portable: Whether the changes of `--portable` are, or would be, among them.
        changed: Files whose content was, or would be, replaced.
        added: Files that were, or would be, made.
        removed: Files that were deleted.
        notes: What was not as expected.
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

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        names = ("changed", "added", "removed", "notes")
        diff = self.diff.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        lists = {name: list(getattr(self, name)) for name in names}
        return {**vars(self), "checkout": str(self.checkout), **lists, "diff": diff}


def migrate(
    checkout: str | os.PathLike[str], action: Action = "diff", *, portable: bool = False, force: bool = False
) -> MigrationReport:
    """Put ALBERT into BERT's place in a checkout of SwinBERT, or take that back.

    Tokens of the two task scripts are replaced, and files are added; `src/layers/bert` is never touched. Applying twice is the
    same as once. Killed at any moment, the same call or `revert` goes on. What is needed to go back lies in
    `.albertkit-migration/` of the checkout.

    Args:
        checkout: The folder with `src/tasks/`.
        action: diff: write nothing. apply. revert: the original bytes. check: is there anything left to apply?
        portable: Also let it run on any device, start without apex, deepspeed, fairscale and azureml, and score captions
            without the scorer of SwinBERT's container. Stays chosen.
        force: Apply to files that are not as in SwinBERT what can be applied, and write over files that are in the way; when
            reverting, over what somebody edited since.

    Raises:
        DataError: not-found; unknown-source, edited-since, already-there unless forced; broken-json.
        CheckpointError: broken-migration. ConfigError: bad-argument.
    """
    root = Path(checkout)
    if not (root / "src" / "tasks").is_dir():
        raise DataError("not-found", f"no `src/tasks` in `{root}`", "name the folder of a checkout of SwinBERT")
    record = MigrationRecord(root)
    notes: list[str] = []
    if action == "revert":
        changes = _way_back(root, record, force)
        notes += [] if record.files else ["there is no record of a migration here: nothing to take back"]
    elif action in ("diff", "apply", "check"):
        portable = portable or record.portable
        changes = _way_there(root, record, portable, force, notes)
    else:
        raise ConfigError("bad-argument", f"action {action!r}", "diff, apply, revert or check")
    if action == "apply" and changes:
        record.begin({path: (before, after or b"") for path, (before, after) in changes.items()}, portable)
    if action in ("apply", "revert"):
        for path in record.files:
            _remove_leftovers(root / path)
        for path, (_, after) in changes.items():
            _write(root / path, after)
    if action == "revert":
        for path in record.files:
            _remove_empty_folder((root / path).parent)
        record.remove()
    there = {path: (before is not None, after is not None) for path, (before, after) in changes.items()}
    migrated = action == "apply" or (action != "revert" and not changes)
    changed, added, removed = (
        tuple(path for path, found in there.items() if found == kind)
        for kind in ((True, True), (False, True), (True, False))
    )
    return MigrationReport(
        root, action, migrated, portable, changed, added, removed, tuple(notes), unified_diff(changes)
    )


def _way_there(root: Path, record: MigrationRecord, portable: bool, force: bool, notes: list[str]) -> Changes:
    """Everything that is not yet as it shall be. Nothing is written before all of it is known to work."""
    wanted: dict[str, bytes] = {}
    for path in TASK_SCRIPTS:
        source = PythonSource(_read(root / path), path)
        edits, unknown = albert_edits(source)
        if unknown and not force:
            raise DataError(
                "unknown-source",
                f"`{path}` is not as in SwinBERT: {'; '.join(unknown)}",
                "look at --force --diff, which shows the edits that can be made all the same",
            )
        if path == TASK_SCRIPTS[0]:
            decay, facts = decay_edits(source)
            edits, unknown = edits + decay, unknown + facts
        notes += [f"{path}: {fact}" for fact in unknown]
        wanted[path] = source.with_edits(edits + portable_edits(source) if portable else edits)
    for path in _other_sources(root) if portable else ():
        try:
            source = PythonSource(_read(root / path), path)
            wanted[path] = source.with_edits(portable_edits(source))
        except DataError as error:  # the scorers of captions are Python 2
            notes.append(f"left as it is: {error.message}")
    folder = root / CONFIGS
    configs = {file.name: file.read_bytes() for file in sorted(folder.glob("*.json"))} if folder.is_dir() else {}
    added = added_files(configs, portable)
    changes: Changes = {}
    for path, after in (added | wanted).items():  # what is imported comes before what imports it
        before = _read(root / path) if (root / path).exists() else None
        if before == after:
            continue
        ours = path not in record.files or record.is_ours(path, before)
        if not ours and path in added and not force:
            notes.append(f"left as it was edited: {path}")
            continue
        if not ours and not force:
            raise _edited(path, "apply")
        if path in added and path not in record.files and before is not None and not force:
            raise DataError(
                "already-there", f"`{path}` is there already, with another content",
                "move it away, or write over it with --force; --revert brings it back",
            )  # fmt: skip
        changes[path] = (before, after)
    return changes


def _way_back(root: Path, record: MigrationRecord, force: bool) -> Changes:
    changes: Changes = {}
    for path in record.files:
        now = _read(root / path) if (root / path).exists() else None
        if not force and not record.is_ours(path, now):
            raise _edited(path, "revert")
        before = record.original(path)
        if now != before:
            changes[path] = (now, before)
    return changes


def _edited(path: str, action: str) -> DataError:
    return DataError(
        "edited-since", f"`{path}` was edited since the migration",
        f"keep a copy of your edits; --{action} --force goes on without asking",
    )  # fmt: skip


def _other_sources(root: Path) -> list[str]:
    """Sources that `--portable` is about: beside the task scripts, and not the layers, which hold the models themselves."""
    words = [word.encode() for word in WORDS]
    named = {file.relative_to(root).as_posix(): file for file in sorted((root / "src").rglob("*.py")) if file.is_file()}
    own = [path for path in named if path not in TASK_SCRIPTS and not path.startswith("src/layers/")]
    return [path for path in own if any(word in named[path].read_bytes() for word in words)]


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise DataError("not-found", f"no `{file}`", "name the folder of a checkout of SwinBERT") from None


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
            os.fchmod(stream.fileno(), mode)


def _remove_leftovers(file: Path) -> None:
    """Delete what a killed process left half-written of a file."""
    target = file.resolve()
    for leftover in target.parent.glob(f".partial-{glob.escape(target.name)}-*"):
        leftover.unlink()


def _remove_empty_folder(folder: Path) -> None:
    """Delete a folder that holds nothing, or nothing but what Python compiled from what was in it."""
    if folder.is_dir() and all(other.name == "__pycache__" for other in folder.iterdir()):
        shutil.rmtree(folder)
