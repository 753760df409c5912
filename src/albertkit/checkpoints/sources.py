"""What a path holds: which kind of checkpoint, and who reads it.

TensorFlow checkpoints, SavedModels and TF-Hub modules, folders of transformers of every year, BERT folders, npz files.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from albertkit.addresses import is_remote
from albertkit.checkpoints import tensorflow_source, torch_source
from albertkit.checkpoints.fetching import fetch_archive
from albertkit.checkpoints.found import FoundModel
from albertkit.errors import CheckpointError
from albertkit.model_folder import local_folder

_ARCHIVE = re.compile(r"\.(tar|tar\.gz|tgz)$")
_BESIDE_INDEX = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
_TORCH_FILES = (
    "model.safetensors", "pytorch_model.bin", "model.safetensors.index.json", "pytorch_model.bin.index.json",
)  # fmt: skip
_NOT_READ = {"tf_model.h5": "TensorFlow", "flax_model.msgpack": "Flax"}


@contextmanager
def open_source(source: str | Path, config: str | Path | None = None, lossy: bool = False) -> Iterator[FoundModel]:
    """Read a model, whatever it is stored as.

    Args:
        source: A folder or a run; a prefix or any file of a TensorFlow checkpoint; a `.tar.gz`; an `.npz`; the address of such an
            archive (`https://…`, `gs://…`, a module of tfhub.dev); or `org/name` of the Hugging Face hub.
        config: Configuration file to use instead of the one beside the weights.
        lossy: For BERT: share its layers.

    Yields:
        The model; `folder` is good inside the `with` block only.

    Raises:
        DataError: not-found. CheckpointError: unknown-checkpoint, no-config, config-mismatch, weights-mismatch, no-weights,
        broken-weights, lossy-conversion, and what `TensorBundle` raises for broken files. ConfigError: bad-config.
    """
    if is_remote(source):
        file, said = fetch_archive(str(source))
        with open_source(file, config, lossy) as found:
            found.notes.append(said)
            yield found
        return
    path, named = Path(source), None if config is None else Path(config)
    path = local_folder(path) if path.is_dir() else path
    folder = path if path.is_dir() else path.parent
    prefix = _BESIDE_INDEX.sub("", str(path))
    if Path(f"{prefix}.index").is_file():
        yield tensorflow_source.read_checkpoint(prefix, named)
    elif path.is_file() and _ARCHIVE.search(path.name):
        with tensorflow_source.read_saved_model(path, named) as found:
            yield found
    elif path.is_file() and path.suffix == ".npz":
        yield tensorflow_source.read_npz(path, named)
    elif path.is_dir() and (path / tensorflow_source.NPZ).is_file():
        yield tensorflow_source.read_npz(path / tensorflow_source.NPZ, named)
    elif any((folder / name).is_file() for name in _TORCH_FILES) and (path.is_dir() or path.name in _TORCH_FILES):
        yield torch_source.read_folder(folder, named, lossy)
    elif path.is_dir() and any(any(path.glob(pattern)) for pattern in ("*.index", "variables/*.index")):
        with tensorflow_source.read_saved_model(path, named) as found:
            yield found
    elif path.exists():
        raise _unknown(path)
    else:
        yield torch_source.read_folder(local_folder(source), named, lossy)


def _unknown(path: Path) -> CheckpointError:
    there = sorted(file.name for file in path.iterdir()) if path.is_dir() else [path.name]
    other = next((_NOT_READ[name] for name in there if name in _NOT_READ), None)
    return CheckpointError(
        "unknown-checkpoint",
        f"no weights that can be read in `{path}` (there: {', '.join(there[:12]) or 'nothing'}{' …' * (len(there) > 12)})",
        f"{other} weights of transformers are not read: load them there (before version 5) and save them again for PyTorch"
        if other
        else "give the folder of a model.safetensors, a pytorch_model.bin, a TensorFlow checkpoint or a SavedModel",
    )
