"""Read and write the tensors of a checkpoint folder: `model.safetensors`, or older files of transformers."""

import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from albertkit.errors import AlbertKitError, CheckpointError, format_list, is_want_of_memory
from albertkit.files import atomic_file, load_typed, plain_file
from albertkit.weights_file import check_header, plain_names

# Buffers that old files of transformers hold; they are counters, not weights.
BUFFERS = {"embeddings.position_ids", "embeddings.token_type_ids"}
HEADS = ("predictions", "sop_classifier", "classifier", "qa_outputs", "start_logits", "end_logits", "answer_class")
PREFIX = "albert."  # what classes with a head put before the encoder's names


@dataclass(frozen=True)
class Matched:
    """The outcome.

    Attributes:
        tensors: A tensor for each of the model's names.
        left_out: Names in the file of heads that the model does not have.
        fresh: Names of the model that were allowed to be missing, and are.
    """

    tensors: dict[str, Tensor]
    left_out: list[str]
    fresh: list[str]


def match(
    model: nn.Module,
    tied: Mapping[str, str],
    tensors: Mapping[str, Tensor],
    allow_missing: Collection[str],
    source: str,
) -> Matched:
    """Pair the tensors of a file with the parameters of a model."""
    wanted = model.state_dict(keep_vars=True)
    given = _with_prefix(tensors, any(name.startswith(PREFIX) for name in wanted))
    differing = []
    for alias, name in tied.items():  # either name may carry the tensor
        copy = given.pop(alias, None)
        if copy is not None and not torch.equal(given.setdefault(name, copy), copy):
            differing.append(f"{alias} and {name}")
    missing = [name for name in wanted if name not in given]
    fresh = [name for name in missing if name.split(".")[0] in allow_missing or name in allow_missing]
    unmatched = [name for name in given if name not in wanted]
    left_out = [name for name in unmatched if _is_unused_head(name, wanted)]
    shapes = [
        f"{name} {list(given[name].shape)} in the file, {list(parameter.shape)} in the model"
        for name, parameter in wanted.items()
        if name in given and given[name].shape != parameter.shape
    ]
    problems = [
        _listed("missing", set(missing) - set(fresh)),
        _listed("not in the model", set(unmatched) - set(left_out)),
        _listed("other shapes", shapes),
    ]
    if not any(problems):
        differing += _differing_copies(wanted, given)
        problems = [_listed("shared in the model but different in the file", differing)]
    if any(problems):
        raise CheckpointError(
            "weights-mismatch",
            f"the weights in `{source}` do not fit {type(model).__name__}: {'; '.join(filter(None, problems))}",
            "load them with the class and the config.json they were saved with"
            + (
                "; what lacks a head gets one by training: albertkit finetune, albertkit pretrain --continue"
                if missing
                else ""
            ),
        )
    return Matched({name: given[name] for name in wanted if name in given}, left_out, fresh)


def without_other_heads(
    wanted: Mapping[str, Tensor], tied: Mapping[str, str], tensors: Mapping[str, Tensor], other_shapes: bool
) -> tuple[Mapping[str, Tensor], list[str]]:
    """Return the tensors to load, and the parameters of heads, or of the pooler, that the file lacks as a whole.

    A head of which only a part is there is damaged, and stays an error.
    """
    given = _with_prefix(tensors, any(name.startswith(PREFIX) for name in wanted))
    heads: dict[str, list[str]] = {}
    for name in wanted:
        first = name.removeprefix(PREFIX).split(".")[0]
        if first in (*HEADS, "pooler"):
            heads.setdefault(first, []).append(name)
    aliases = {alias.split(".")[0] for alias, name in tied.items() if alias in given}
    fresh, dropped = [], set()
    for head, names in heads.items():
        here = [name for name in names if name in given]
        misfit = other_shapes and any(given[name].shape != wanted[name].shape for name in here)
        if misfit or (not here and head not in aliases):
            fresh += names
            dropped.update(here)
    bare = {name.removeprefix(PREFIX) for name in dropped}
    return {name: tensor for name, tensor in tensors.items() if name.removeprefix(PREFIX) not in bare}, fresh


def _with_prefix(tensors: Mapping[str, Tensor], prefixed: bool) -> dict[str, Tensor]:
    """Return the tensors under the names of a class with heads ("albert.encoder…") or of the encoder alone ("encoder…")."""
    named = {}
    for name, tensor in tensors.items():
        bare = name.removeprefix(PREFIX)
        if bare not in BUFFERS:
            named[PREFIX + bare if prefixed and bare.split(".")[0] not in HEADS else bare] = tensor
    return named


def _is_unused_head(name: str, wanted: Mapping[str, Tensor]) -> bool:
    first = name.removeprefix(PREFIX).split(".")[0]
    there = {key.removeprefix(PREFIX).split(".")[0] for key in wanted}
    return first in (*HEADS, "pooler") and first not in there


def _differing_copies(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    """List names that are one parameter in the model, but whose tensors in the file differ."""
    first_name: dict[int, str] = {}
    differing = []
    for name, parameter in wanted.items():
        original = first_name.setdefault(id(parameter), name)
        if name == original or name not in given or original not in given:
            continue
        if not torch.equal(given[name], given[original]):
            differing.append(f"{name} and {original}")
    return differing


def _listed(what: str, names: Iterable[str]) -> str:
    """Return the names after a word; empty if there are none."""
    return f"{what}: {format_list(names)}" if (names := sorted(names)) else ""


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
    files = {
        name: Path(file).name for name, file in load_typed(index, _Index, "index", "copy it again").weight_map.items()
    }
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
