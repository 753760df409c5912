"""Which checkpoint is meant by a path."""

import os
import re
from pathlib import Path

from albertkit.errors import CheckpointError, DataError

_INDEX = ".index"
_STATE = re.compile(r'^model_checkpoint_path: "(.*)"', re.MULTILINE)  # the first line of tf.train.CheckpointState


def find_prefix(path: str | os.PathLike[str]) -> str:
    """The prefix of the one checkpoint that a path leads to.

    Args:
        path: A prefix, an `.index` file, or a folder with one checkpoint, itself or in `variables/`. If there are several,
            the folder's file `checkpoint`, which `tf.train.Saver` keeps up to date, chooses.

    Raises:
        DataError: not-found. CheckpointError: several-checkpoints.
    """
    given = Path(path)
    if not given.is_dir():
        prefix = str(given).removesuffix(_INDEX)
        if Path(prefix + _INDEX).is_file():
            return prefix
        raise DataError(
            "not-found", f"there is no TensorFlow checkpoint `{prefix}`: no file `{prefix}{_INDEX}`",
            "give the path without .index, or the folder" + _listed(_prefixes(given.parent)),
        )  # fmt: skip
    found = [*_prefixes(given), *_prefixes(given / "variables")]
    if len(found) > 1 and (chosen := _newest(given)) in found:
        return str(chosen)
    if len(found) > 1:
        raise CheckpointError(
            "several-checkpoints", f"`{given}` holds {len(found)} TensorFlow checkpoints",
            "name one of them" + _listed(found),
        )  # fmt: skip
    if not found:
        raise DataError(
            "not-found", f"no TensorFlow checkpoint in `{given}`: no file *{_INDEX}, there or in variables/",
            "give the folder that holds the .index and .data files",
        )  # fmt: skip
    return str(found[0])


def _prefixes(folder: Path) -> list[Path]:
    return sorted(file.with_suffix("") for file in folder.glob(f"*{_INDEX}") if file.is_file())


def _newest(folder: Path) -> Path | None:
    """What the folder's state file names; only the last part counts, for folders are moved."""
    state = folder / "checkpoint"
    if not state.is_file():
        return None
    named = _STATE.search(state.read_text(encoding="utf-8", errors="replace"))
    return folder / Path(named[1]).name if named else None


def _listed(prefixes: list[Path]) -> str:
    return ": " + ", ".join(f"`{prefix}`" for prefix in prefixes) if prefixes else ""
