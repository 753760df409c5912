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

    def name_item(pair: tuple[str, Clip]) -> str | DataError:
        try:
            return recipe.item(pair[1], settings)
        except (DataError, OSError) as error:
            return _as_data_error(error, stop)

    names: dict[tuple[str, str], str] = {}
    errors: dict[tuple[str, str], DataError] = {}
    with ThreadPoolExecutor(workers, thread_name_prefix="hash") as pool:
        for (split, clip), result in zip(clips, pool.map(name_item, clips), strict=True):
            if isinstance(result, str):
                names[split, clip.key] = result
            else:
                errors[split, clip.key] = result
            display.update(display.done + 1, _num_skipped(errors))
    return names, errors


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
    num_made = 0
    errors: dict[str, DataError] = {}
    pool = ThreadPoolExecutor(workers, thread_name_prefix="read")

    def readable_frames(pairs: Group, readings: Sequence[Future[Read]]) -> dict[str, Read]:
        frames = {}
        for (name, _), reading in zip(pairs, readings, strict=True):
            try:
                frames[name] = reading.result()
            except (DataError, OSError) as error:
                errors[name] = _as_data_error(error, stop)
        return frames

    pairs = iter(items.items())
    size = 1 if recipe.is_read_only else batch_size
    groups = iter(lambda: list(islice(pairs, size)), [])
    try:
        for group, missing, readings in _read_ahead(recipe, groups, folder, pool, workers + batch_size):
            frames = readable_frames(missing, readings)
            new_names = set(frames)
            if new_names and len(missing) < len(group):
                others = [pair for pair in group if pair not in missing]
                frames |= readable_frames(others, [pool.submit(recipe.read, clip) for _, clip in others])
            names = [name for name, _ in group if name in frames]
            arrays = [frames[name][0] for name in names]
            if names and not recipe.is_read_only:
                arrays = recipe.computed(arrays)
            for name, array in zip(names, arrays, strict=True):
                if name in new_names:
                    write_notes(folder, name, frames[name][1])
                    write_item(folder, name, array)
            num_made += len(new_names)
            display.update(display.done + len(group), _num_skipped(errors))
    finally:
        pool.shutdown(cancel_futures=True)
    return num_made, errors


def _read_ahead(
    recipe: Recipe, groups: Iterator[Group], folder: Path, pool: ThreadPoolExecutor, max_clips: int
) -> Iterator[tuple[Group, Group, list[Future[Read]]]]:
    """Yield groups, what each lacks, and the reading of it; of `max_clips` clips and one group at a time."""
    queue: deque[tuple[Group, Group, list[Future[Read]]]] = deque()
    for group in groups:
        missing = [
            (name, clip)
            for name, clip in group
            if not (recipe.fits(item_shape(folder, name, recipe.dtype)) and is_sound(folder, name, recipe.dtype))
        ]
        queue.append((group, missing, [pool.submit(recipe.read, clip) for _, clip in missing]))
        while sum(len(readings) for _, _, readings in queue) >= max_clips or not queue[0][1]:
            yield queue.popleft()
            if not queue:
                break
    yield from queue


def _num_skipped(errors: Mapping[Any, Any]) -> str:
    return f"{len(errors):,} skipped" if errors else ""


def _as_data_error(error: DataError | OSError, stop: bool) -> DataError:
    """Return what is wrong with a file; a fault of the machine, and with `stop` any, is raised."""
    explained = explain(error)
    if stop or not isinstance(explained, DataError):
        raise explained or error
    return explained
