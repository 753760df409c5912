"""Makes items that are not there yet: clips are read in threads, and computed in batches that are always the same.

A batch is a fixed run of the clips, and all of it is computed if one of it is missing, because a backbone's last bits depend
on the batch: so what was killed and run again ends with the bytes of a run that nothing disturbed. Memory: the frames of two
batches and of as many clips as there are threads.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.captioning.data.clip import Clip
from albertkit.captioning.data.items import is_sound, item_shape, write_item, write_notes
from albertkit.captioning.data.recipe import Recipe
from albertkit.errors import DataError, explain
from albertkit.frame.progress import Progress

Group = list[tuple[str, Clip]]
Read = tuple[np.ndarray, tuple[str, ...]]  # and notes


def name_items(
    recipe: Recipe,
    clips: Sequence[tuple[str, Clip]],
    settings: dict[str, Any],
    display: Progress,
    *,
    workers: int,
    stop: bool,
) -> tuple[dict[tuple[str, str], str], dict[tuple[str, str], DataError]]:
    """Read every file and name its item."""

    def name(pair: tuple[str, Clip]) -> str | DataError:
        try:
            return recipe.item(pair[1], settings)
        except (DataError, OSError) as error:
            return _as_data_error(error, stop)

    names, failed = dict[tuple[str, str], str](), dict[tuple[str, str], DataError]()
    with ThreadPoolExecutor(workers, thread_name_prefix="hash") as pool:
        for (part, clip), found in zip(clips, pool.map(name, clips), strict=True):
            if isinstance(found, str):
                names[part, clip.key] = found
            else:
                failed[part, clip.key] = found
            display.update(display.done + 1, _skipped(failed))
    return names, failed


def make_items(
    recipe: Recipe,
    items: Mapping[str, Clip],
    folder: Path,
    display: Progress,
    *,
    batch_size: int,
    workers: int,
    stop: bool,
) -> tuple[int, dict[str, DataError]]:
    """Make every item that is not there."""
    made, failed = 0, dict[str, DataError]()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="read")

    def outcomes(pairs: Group, results: Sequence[Future[Read]]) -> dict[str, Read]:
        found = {}
        for (name, _), result in zip(pairs, results, strict=True):
            try:
                found[name] = result.result()
            except (DataError, OSError) as error:
                failed[name] = _as_data_error(error, stop)
        return found

    groups = _groups(items, 1 if recipe.is_read_only else batch_size)
    try:
        for group, missing, results in _read_ahead(recipe, groups, folder, pool, workers + batch_size):
            frames = outcomes(missing, results)
            new = set(frames)
            if new and len(missing) < len(group):
                others = [pair for pair in group if pair not in missing]
                frames |= outcomes(others, [pool.submit(recipe.read, clip) for _, clip in others])
            names = [name for name, _ in group if name in frames]
            arrays = [frames[name][0] for name in names]
            if names and not recipe.is_read_only:
                arrays = recipe.computed(arrays)
            for name, array in zip(names, arrays, strict=True):
                if name in new:
                    write_notes(folder, name, frames[name][1])
                    write_item(folder, name, array)
            made += len(new)
            display.update(display.done + len(group), _skipped(failed))
    finally:
        pool.shutdown(cancel_futures=True)
    return made, failed


def _groups(items: Mapping[str, Clip], size: int) -> Iterator[Group]:
    pairs = iter(items.items())
    while group := list(islice(pairs, size)):
        yield group


def _read_ahead(
    recipe: Recipe, groups: Iterator[Group], folder: Path, pool: ThreadPoolExecutor, most: int
) -> Iterator[tuple[Group, Group, list[Future[Read]]]]:
    """Yield groups, what each lacks, and the reading of it; of `most` clips and one group at a time."""
    waiting: deque[tuple[Group, Group, list[Future[Read]]]] = deque()
    for group in groups:
        missing = [pair for pair in group if not _is_there(recipe, folder, pair[0])]
        waiting.append((group, missing, [pool.submit(recipe.read, clip) for _, clip in missing]))
        while sum(len(entry[2]) for entry in waiting) >= most or not waiting[0][1]:
            yield waiting.popleft()
            if not waiting:
                break
    yield from waiting


def _is_there(recipe: Recipe, folder: Path, name: str) -> bool:
    return recipe.fits(item_shape(folder, name, recipe.dtype)) and is_sound(folder, name, recipe.dtype)


def _skipped(failed: Mapping[Any, Any]) -> str:
    return f"{len(failed):,} skipped" if failed else ""


def _as_data_error(error: DataError | OSError, stop: bool) -> DataError:
    """Return what is wrong with a file; a fault of the machine, and with `stop` any, is raised."""
    explained = explain(error)
    if stop or not isinstance(explained, DataError):
        raise explained or error
    return explained
