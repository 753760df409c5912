"""Read and write the tensors of a checkpoint folder: `model.safetensors`, or older files of transformers."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from albertkit.errors import AlbertKitError, CheckpointError, is_want_of_memory
from albertkit.files import atomic_file, load, plain_file
from albertkit.weights_file import check_header, plain_names

WEIGHTS = "model.safetensors"
OLD_WEIGHTS = "pytorch_model.bin"
PROVENANCE = "provenance.json"  # beside the weights: what they were made from, by whom they were trained on what
NEW_ROWS_FROM = "new_rows_from"  # in it, of a grown model: the first row that was added and not trained

# Training programs keep a best score beside the weights, often as a number of NumPy: these make numbers and run nothing.
_SCALARS: list = [(np.float64(0).__reduce__()[0], f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]
_SCALARS += [(np.dtype, "numpy.dtype"), type(np.dtype(np.float64)), type(np.dtype(np.float32))]


def write_tensors(file: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file, whole or not at all."""
    with atomic_file(file) as stream:
        mode = os.fstat(stream.fileno()).st_mode
        try:
            save_file(tensors, stream.name, metadata={"format": "pt"})
        except SafetensorError as error:
            found = re.search(r"os error (\d+)", str(error))
            if found is None:
                raise
            raise OSError(int(found[1]), os.strerror(int(found[1])), str(file)) from None
        # safetensors 0.8 puts a file of its own in place of ours: readable by its owner only, and not flushed.
        os.chmod(stream.name, mode)
        with open(stream.name, "rb") as written:
            os.fsync(written.fileno())


def read_tensors(folder: str | Path) -> Mapping[str, Tensor]:
    """Return the tensors of a folder's weights, in one file or in those that an index names, by their `plain_names`."""
    tensors = _read_stored(Path(folder))
    return {plain: tensors[name] for name, plain in plain_names(tensors).items()}


def _read_stored(path: Path) -> Mapping[str, Tensor]:
    for name in (WEIGHTS, OLD_WEIGHTS):
        if (path / name).exists():
            return read_tensor_file(path / name)
        if (path / f"{name}.index.json").exists():
            return _read_shards(path / f"{name}.index.json")
    there = sorted(p.name for p in path.iterdir())
    if tensorflow := sorted(path.glob("*.ckpt*.index")):
        fact = f"`{path}` holds a TensorFlow checkpoint, `{tensorflow[0].name}`"
        raise CheckpointError(
            "missing-file", fact, f"convert it, then name the new folder: albertkit convert {path} MODEL"
        )
    inside = sorted(
        str(file.parent) for file in path.glob(f"*/**/{WEIGHTS}") if file.parent.parent.name != "checkpoints"
    )
    fact = f"neither {WEIGHTS} nor {OLD_WEIGHTS} in `{path}` (there: {', '.join(there) or 'nothing'})"
    hint = (
        "an exported model is read by albertkit.load_onnx, predict, evaluate and serve; all else needs the folder it was made of"
        if "model.onnx" in there
        else f"name a folder inside it: {inside[-1]}"
        if inside
        else "name the folder that holds the weights"
    )
    raise CheckpointError("missing-file", fact, hint)


@dataclass(frozen=True)
class _Index:
    """Index of weights in several files, as transformers writes it: in which file each tensor is."""

    weight_map: dict[str, str]


def _read_shards(index: Path) -> Mapping[str, Tensor]:
    """Return every tensor of an index, each from the file that it names."""
    files = {name: Path(file).name for name, file in load(index, _Index, "index", "copy it again").weight_map.items()}
    tensors: dict[str, Tensor] = {}
    for file in dict.fromkeys(files.values()):
        if not (index.parent / file).is_file():
            fact = f"there is no `{index.parent / file}`, which `{index.name}` names"
            raise CheckpointError("missing-file", fact, "put all files of the checkpoint into one folder")
        tensors.update(read_tensor_file(index.parent / file))
    if missing := files.keys() - tensors.keys():
        raise CheckpointError("corrupt", f"`{min(missing)}` is in no file of `{index}`", "copy them again")
    return tensors


def read_tensor_file(file: Path, within: str = "") -> Mapping[str, Tensor]:
    """Return the tensors by name of a safetensors file, or of a file of `torch.save`, read without unpickling objects."""
    plain_file(file, "file of weights")
    try:
        if file.suffix == ".safetensors":
            check_header(file)
            return load_file(file)
        with torch.serialization.safe_globals(_SCALARS):
            tensors = torch.load(file, map_location="cpu", weights_only=True)
    except (PermissionError, MemoryError, AlbertKitError):  # the machine's word, not the file's
        raise
    except Exception as error:  # of a damaged pickle: KeyError, IndexError, OSError without a name, …
        if is_want_of_memory(error):
            raise MemoryError(str(error)) from None
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        fact = f"`{file}` cannot be read: {reason}"
        hint = "copy it again; of a pickled model, save `model.state_dict()` with the program that wrote it"
        raise CheckpointError("corrupt", fact, hint) from None
    if within and isinstance(tensors, Mapping):
        tensors = tensors.get(within, tensors)
    if not isinstance(tensors, Mapping) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise CheckpointError("corrupt", f"`{file}` does not hold a dictionary of tensors", "copy it again")
    return tensors
