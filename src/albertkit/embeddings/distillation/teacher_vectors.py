"""Vectors of a teacher on disk, and what is learned of them. E texts, vectors of W numbers."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from albertkit.embeddings.distillation.teacher import Teacher
from albertkit.errors import DataError
from albertkit.files import atomic_file, read_json, sha256_bytes, write_json
from albertkit.training.distributed import World

_PART = 4096  # texts whose vectors are written at once
_SAME = 1e-6  # spread of a teacher's vectors below which there is nothing to learn


class TeacherRows:
    """Vectors of some texts, read when they are asked for.

    Args:
        vectors: [E, W], may be a memory map.
        rows: int64 [M], the texts meant.
        components: fp32 [W, D] that they are multiplied by; None for as they are.
    """

    def __init__(self, vectors: np.ndarray, rows: np.ndarray, components: np.ndarray | None = None) -> None:
        self._vectors, self._rows, self._components = vectors, rows, components

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        """fp32 [len(places), D], of places from 0 to M - 1."""
        found = np.asarray(self._vectors[self._rows[places]], np.float32)
        return found if self._components is None else found @ self._components


def teacher_vectors(teacher: Teacher, texts: Sequence[str], folder: Path, world: World) -> np.ndarray:
    """The teacher's vectors of texts, computed once and kept on disk; what was computed is not computed again.

    Several processes share the work. Each writes parts of its own, and the first joins them.

    Args:
        teacher: Whose vectors.
        texts: E texts.
        folder: Holds `vectors.npy` and `key.json`; made if missing. What another teacher or other texts left there is replaced.
        world: The processes.

    Returns:
        fp32 [E, W], a memory map.

    Raises:
        DataError: broken-vectors if stored vectors are not one a text, or not finite; constant-vectors.
    """
    if teacher.stored is not None:
        if len(teacher.stored) != len(texts):
            raise DataError(
                "broken-vectors", f"`{teacher.name}` has {len(teacher.stored):,} rows, there are {len(texts):,} texts",
                "row n belongs to row n of the data: store the vectors of exactly these texts, in their order",
            )  # fmt: skip
        _check_finite(teacher.stored, teacher.name)
        return _varying(teacher.stored, teacher.name)
    assert teacher.encode is not None
    key = {"teacher": teacher.identity, "texts": sha256_bytes("\0".join(texts).encode("utf-8", "surrogatepass"))}
    whole, known = folder / "vectors.npy", folder / "key.json"
    parts = [folder / f"part-{number:05d}.npy" for number in range(-(-len(texts) // _PART))]
    if world.is_main and not (known.exists() and read_json(known) == key):
        for old in (*folder.glob("*.npy"), known):
            old.unlink(missing_ok=True)
        write_json(known, key)
    world.barrier()
    if whole.exists() and world.is_main:
        for part in parts:  # what a kill left when they had been joined
            part.unlink(missing_ok=True)
    if not whole.exists():
        for number in range(world.rank, len(parts), world.size):
            if not parts[number].exists():
                vectors = np.ascontiguousarray(teacher.encode(texts[number * _PART : (number + 1) * _PART]))
                with atomic_file(parts[number]) as stream:  # `np.save` may say nothing when the disk is full
                    np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(vectors))
                    stream.write(vectors.tobytes())
        world.barrier()
        if world.is_main:
            _join(parts, whole, len(texts))
        world.barrier()
    return _varying(np.load(whole, mmap_mode="r"), teacher.name)


def _varying(vectors: np.ndarray, name: str) -> np.ndarray:
    """The vectors, if they tell texts apart.

    Raises:
        DataError: constant-vectors.
    """
    if len(vectors) > 1 and np.ptp(vectors[:1000], axis=0).max() <= _SAME:
        raise DataError("constant-vectors", f"`{name}` gives every text the same vector", "choose another teacher")
    return vectors


def principal_components(vectors: np.ndarray, dimension: int) -> np.ndarray:
    """The directions in which vectors differ most.

    They are not centred before they are projected, so that cosines stay as they are.

    Args:
        vectors: [E, W]; of more than 100,000 the first are looked at.
        dimension: D, how many directions.

    Returns:
        fp32 [W, D]: `vectors @ components` are vectors of D numbers.

    Raises:
        DataError: too-few-texts.

    Source: sentence-transformers, `dimensionality_reduction.py` of its distillation examples.
    """
    from sklearn.decomposition import PCA

    looked_at = np.asarray(vectors[:100_000], np.float32)
    if dimension > min(looked_at.shape):
        raise DataError(
            "too-few-texts", f"{dimension} principal components of {len(looked_at):,} vectors of {looked_at.shape[1]}",
            "use more texts, or leave --teacher-pca out: the student then learns a linear layer",
        )  # fmt: skip
    return PCA(dimension, svd_solver="covariance_eigh").fit(looked_at).components_.T.astype(np.float32)


def _check_finite(vectors: np.ndarray, name: str) -> None:
    """broken-vectors with the first row that holds NaN or infinity."""
    for start in range(0, len(vectors), _PART):
        finite = np.isfinite(vectors[start : start + _PART]).all(1)
        if not finite.all():
            raise DataError(
                "broken-vectors", f"row {start + int(finite.argmin()):,} of `{name}`, counted from 0, holds NaN or infinity",
                "make the vectors again, or leave such texts and their rows out",
            )  # fmt: skip


def _join(parts: Sequence[Path], whole: Path, count: int) -> None:
    """One file of the parts, which are then removed."""
    width = np.load(parts[0], mmap_mode="r").shape[1]
    with atomic_file(whole) as stream:
        header = {"descr": "<f4", "fortran_order": False, "shape": (count, width)}
        np.lib.format.write_array_header_1_0(stream, header)
        for part in parts:
            stream.write(np.ascontiguousarray(np.load(part), "<f4").tobytes())
    for part in parts:
        part.unlink()
