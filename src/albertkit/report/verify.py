"""Verify everything that has checksums below a folder: runs, stores, prepared clips."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from albertkit.captioning.prepared import PREPARED, PreparedClips, is_sound, item_file
from albertkit.corpus.store import MANIFEST, UNFINISHED, TokenStore
from albertkit.errors import AlbertKitError, DataError
from albertkit.files import CHECKSUMS, StrPath, changed_files
from albertkit.output.sections import Result


@dataclass(frozen=True)
class VerifyReport(Result):
    """Files whose checksums `verify_files` has confirmed.

    Attributes:
        folder: The folder.
        models: Folders of models with checksums: checkpoints, `best`, `final`, `start` of runs.
        stores: Token stores.
        prepared: Folders of prepared clips.
    """

    folder: str
    models: int
    stores: int
    prepared: int


def verify_files(folder: StrPath) -> VerifyReport:
    """Compare everything below a folder (a run, a store, prepared clips) with the checksums that were written with it."""
    root = Path(folder)
    hint = "name a run, a store or a folder of prepared clips"
    if not root.is_dir():
        raise DataError("not-found", f"there is no folder `{root}`", hint)
    counts = {CHECKSUMS: 0, MANIFEST: 0, PREPARED: 0}
    corrupt: list[str] = []
    for folder_path, folders, names in os.walk(root):
        folders.sort()
        for kind in counts.keys() & set(names):
            if kind == MANIFEST and UNFINISHED in Path(folder_path).parts:
                continue
            counts[kind] += 1
            corrupt += _corrupt_files(kind, Path(folder_path))
    if not any(counts.values()):
        raise DataError("missing-file", f"nothing below `{root}` has checksums", hint)
    if corrupt:
        listing = "; ".join(corrupt[:10])
        if len(corrupt) > 10:
            listing += f" … ({len(corrupt):,} in all)"
        raise DataError(
            "corrupt",
            f"corrupted: {listing}",
            "copy them again from an intact copy, or make them again",
        )
    return VerifyReport(str(root), counts[CHECKSUMS], counts[MANIFEST], counts[PREPARED])


def _corrupt_files(kind: str, folder: Path) -> Iterator[str]:
    if kind == CHECKSUMS:
        yield from (str(folder / name) for name in changed_files(folder))
        return
    try:
        if kind == MANIFEST:
            TokenStore.open(folder).verify()
            return
        clips = PreparedClips.open(folder)
    except AlbertKitError as error:
        yield error.message
        return
    items = {clip.item for part in clips.splits.values() for clip in part}
    for name in sorted(items):
        if not is_sound(folder, name, clips.dtype):
            yield str(item_file(folder, name))
