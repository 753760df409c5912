"""Is what lies on the disk what was written? Everything that has checksums below a folder: runs, stores, prepared clips."""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from albertkit.captioning.data.items import is_sound, item_file
from albertkit.captioning.data.prepared import PREPARED, PreparedClips
from albertkit.corpus.store import MANIFEST, UNFINISHED, TokenStore
from albertkit.errors import AlbertKitError, DataError
from albertkit.files import CHECKSUMS, changed_files


@dataclass(frozen=True)
class IntactReport:
    """What `check_files` has found.

    Attributes:
        folder: Looked through.
        models: Folders of models with checksums: checkpoints, `best`, `final`, `start` of runs.
        stores: Token stores.
        prepared: Folders of prepared clips.
    """

    folder: str
    models: int
    stores: int
    prepared: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def check_files(folder: str | os.PathLike[str]) -> IntactReport:
    """Compare everything below a folder with the checksums that were written with it.

    Args:
        folder: A run, a store, prepared clips, or a folder of such.

    Raises:
        DataError: not-found; nothing-to-check; broken-files with the names of those that are not what was written.
    """
    root = Path(folder)
    if not root.is_dir():
        raise DataError("not-found", f"there is no folder `{root}`", "name a run, a store or prepared clips")
    found = {CHECKSUMS: 0, MANIFEST: 0, PREPARED: 0}
    broken: list[str] = []
    for place, folders, names in os.walk(root):
        folders.sort()
        for kind in found.keys() & set(names):
            if kind == MANIFEST and UNFINISHED in Path(place).parts:
                continue
            found[kind] += 1
            broken += _broken(kind, Path(place))
    if not any(found.values()):
        raise DataError(
            "nothing-to-check",
            f"nothing below `{root}` has checksums",
            "name a run, a store or a folder of prepared clips",
        )
    if broken:
        shown = "; ".join(broken[:10]) + f" … ({len(broken):,} in all)" * (len(broken) > 10)
        raise DataError(
            "broken-files",
            f"not what was written: {shown}",
            "copy them again from where they are sound, or make them anew",
        )
    return IntactReport(str(root), found[CHECKSUMS], found[MANIFEST], found[PREPARED])


def _broken(kind: str, place: Path) -> Iterator[str]:
    if kind == CHECKSUMS:
        yield from (str(place / name) for name in changed_files(place))
        return
    try:
        if kind == MANIFEST:
            TokenStore.open(place).verify()
            return
        clips = PreparedClips.open(place)
    except AlbertKitError as error:
        yield error.message
        return
    items = {clip.item for part in clips.splits.values() for clip in part}
    yield from (str(item_file(place, name)) for name in sorted(items) if not is_sound(place, name, clips.dtype))
