"""Rows of numbers that are computed once and kept in a folder, such as the vectors or the logits of a teacher."""

import io
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.job import Job
from albertkit.training.processes import World

PART_ITEMS = 1024  # whose rows are written at once


def npy_header(shape: tuple[int, int], dtype: np.dtype) -> bytes:
    """Return the first bytes of a `.npy` file."""
    header = io.BytesIO()
    facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, facts)
    return header.getvalue()


def compute_rows(
    file: Path,
    key: Mapping[str, Any],
    num_items: int,
    rows_of: Callable[[int, int], np.ndarray],
    world: World,
    title: str,
) -> np.ndarray:
    """Return rows of W numbers, a memory map of a `.npy` file.

    Several processes share the work. Each writes parts of its own, and the first joins them. What
    was made from another key is replaced.

    Args:
        file: The file, alone in its folder.
        key: What the rows are made from, see `Job`.
        num_items: At least 1.
        rows_of: Computes the rows, fp32 [R, W], of the items from one number up to another.
        world: The processes.
        title: Of the progress, which is shown on stderr.
    """
    folder = file.parent
    parts = [f"part-{number:05d}.npy" for number in range(-(-num_items // PART_ITEMS))]
    own_parts = parts[world.rank :: world.size]
    with ExitStack() as stack:
        if world.is_main:
            job = Job(folder, key, overwrite=True, title=title, total=len(own_parts), progress=True)
            stack.enter_context(job)
        world.barrier()
        if not world.is_main:
            job = stack.enter_context(Job(folder, key, rank=world.rank))
        if not job.is_done(file.name):
            for name in job.missing(own_parts):
                first = parts.index(name) * PART_ITEMS
                rows = rows_of(first, min(first + PART_ITEMS, num_items))
                with job.part(name) as stream:  # `np.save` may say nothing when the disk is full
                    stream.write(npy_header(rows.shape, rows.dtype) + rows.tobytes())
        world.barrier()
        if world.is_main and not job.is_done(file.name):
            shapes = [np.load(folder / name, mmap_mode="r").shape for name in parts]
            with job.part(file.name) as stream:
                stream.write(
                    npy_header((sum(shape[0] for shape in shapes), shapes[0][1]), np.dtype("<f4"))
                )
                for name in parts:
                    stream.write(np.ascontiguousarray(np.load(folder / name), "<f4").tobytes())
            job.discard(*parts)
            job.commit()
        world.barrier()
    return np.load(file, mmap_mode="r")
