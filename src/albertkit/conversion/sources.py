"""Find which kind of checkpoint a path holds, and read it.

TensorFlow checkpoints, SavedModels and TF-Hub modules, folders of transformers of every year, BERT folders, npz files. What the
years changed in transformers' files of ALBERT (`model.safetensors` or `pytorch_model.bin`, in one file or several):

- `LayerNorm.gamma` and `.beta` became `.weight` and `.bias` (2018), and wrappers' names may stand first: see `plain_names`;
- `embeddings.position_ids` and `token_type_ids` were stored (transformers 3.1 to 4.30), though they count 0, 1, 2, …;
- `predictions.decoder.weight` and `.bias` are second copies of other tensors, stored until safetensors refused to (2023);
- `AlbertForMaskedLM` and others that have no use for the pooler stored it all the same (before transformers 4.0).
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from albertkit.addresses import is_remote
from albertkit.config import make_config
from albertkit.conversion import bert, names, tensorflow_source
from albertkit.conversion.fetching import fetch_model
from albertkit.conversion.found import FoundModel
from albertkit.errors import CheckpointError, listed
from albertkit.files import load
from albertkit.model.albert import TIED
from albertkit.model.folder import OLD_WEIGHTS, WEIGHTS, read_tensors
from albertkit.model.matching import BUFFERS, HEADS, PREFIX
from albertkit.model_folder import local_folder

_ARCHIVE = re.compile(r"\.(tar|tar\.gz|tgz)$")
_BESIDE_INDEX = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
_TORCH_FILES = tuple(f"{weights}{index}" for index in ("", ".index.json") for weights in (WEIGHTS, OLD_WEIGHTS))
_NOT_READ = {"tf_model.h5": "TensorFlow", "flax_model.msgpack": "Flax"}


@contextmanager
def open_source(source: str | Path, config: str | Path | None = None, lossy: bool = False) -> Iterator[FoundModel]:
    """Read a model, whatever it is stored as."""
    if is_remote(source):
        path, said = fetch_model(str(source))
        with open_source(path, config, lossy) as found:
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
        yield _read_folder(folder, named, lossy)
    elif path.is_dir() and any(any(path.glob(pattern)) for pattern in ("*.index", "variables/*.index")):
        with tensorflow_source.read_saved_model(path, named) as found:
            yield found
    elif path.exists():
        raise _unknown(path)
    else:
        yield _read_folder(local_folder(source), named, lossy)


def _unknown(path: Path) -> CheckpointError:
    there = sorted(file.name for file in path.iterdir()) if path.is_dir() else [path.name]
    other = next((_NOT_READ[name] for name in there if name in _NOT_READ), None)
    return CheckpointError(
        "wrong-kind",
        f"no weights that can be read in `{path}` (there: {listed(there, 12) or 'nothing'})",
        f"{other} weights of transformers are not read: load them there (before version 5) and save them again for PyTorch"
        if other
        else "give the folder of a model.safetensors, a pytorch_model.bin, a TensorFlow checkpoint or a SavedModel",
    )


def _read_folder(folder: Path, config_file: Path | None, lossy: bool) -> FoundModel:
    """Read a folder that transformers wrote, of an ALBERT or of a BERT."""
    stored = read_tensors(folder)
    plain = {name: name.removeprefix(PREFIX) for name in stored}
    is_bert = any(map(bert.is_layer, plain.values()))
    own = folder / "config.json"
    file = own if config_file is None or is_bert else config_file
    values = load(file, dict[str, Any], "model configuration")
    config, notes = make_config(bert.albert_values(values) if is_bert else values, file)
    source = FoundModel("BERT folder" if is_bert else "transformers folder", config, {}, folder, notes=notes)
    source.architecture = str(next(iter(values.get("architectures") or ()), ""))
    for name, tensor in stored.items():
        today = bert.albert_name(plain[name]) if is_bert else plain[name]
        if today in BUFFERS:
            source.skipped["buffer"] += 1
            continue
        full = today if today.split(".")[0] in HEADS else PREFIX + today
        if full in TIED or names.tf1_variable(full):
            source.add(full, tensor, name)
        else:
            source.unknown.append(name)
    _drop_copies(source, folder)
    if is_bert:
        bert.bridge(source, config_file, lossy)
    return source


def _drop_copies(source: FoundModel, folder: Path) -> None:
    """Leave each tied tensor under one name."""
    for copy, original in TIED.items():
        tensor = source.tensors.pop(copy, None)
        if tensor is None:
            continue
        source.skipped["tied copy"] += 1
        if not torch.equal(source.tensors.setdefault(original, tensor), tensor):
            fact = f"{copy} and {original} in `{folder}` differ; in ALBERT they are one tensor"
            raise CheckpointError(
                "weights-mismatch", fact, "save the model with tied weights (tie_word_embeddings true)"
            )
