"""Read and write the tensors of a checkpoint folder: `model.safetensors`, or older files of transformers."""

import os
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from albertkit.errors import (
    AlbertKitError,
    CheckpointError,
    ConfigError,
    DataError,
    first_line,
    format_list,
    is_out_of_memory,
)
from albertkit.files import atomic_file, check_regular_file, read_typed, write_json
from albertkit.model_paths import (
    OLD_WEIGHTS,
    WEIGHTS_FILE,
    find_weights,
    import_huggingface_hub,
    inner_model_hint,
)
from albertkit.weights_file import (
    BUFFERS,
    check_header,
    check_shards,
    list_shards,
    transformers_names,
    unread_weights_hint,
)

StateDict = Mapping[str, Tensor]  # tensors by name, as `state_dict()` gives them

HEADS = (
    "predictions",
    "sop_classifier",
    "classifier",
    "qa_outputs",
    "start_logits",
    "end_logits",
    "answer_class",
)
PREFIX = "albert."  # of the encoder's parameters in classes with a head


@dataclass(frozen=True)
class MatchedTensors:
    """Tensors of a file, paired with the parameters of a model.

    Attributes:
        tensors: A tensor for each of the model's names.
        left_out: Names in the file of heads that the model does not have.
        fresh: Names of the model that were allowed to be missing, and are.
    """

    tensors: dict[str, Tensor]
    left_out: list[str]
    fresh: list[str]


def load_matching_tensors(
    model: nn.Module,
    tied: Mapping[str, str],
    tensors: StateDict,
    allow_missing: Collection[str],
    source: str,
) -> MatchedTensors:
    """Pair the tensors of a file with the parameters of a model."""
    parameters = model.state_dict(keep_vars=True)
    renamed = _rename_for_class(tensors, parameters)
    differing = []
    for alias, name in tied.items():  # either name may carry the tensor
        copy = renamed.pop(alias, None)
        if copy is not None and not torch.equal(renamed.setdefault(name, copy), copy):
            differing.append(f"{alias} and {name}")
    missing = [name for name in parameters if name not in renamed]
    fresh = [
        name for name in missing if name.split(".")[0] in allow_missing or name in allow_missing
    ]
    unmatched = [name for name in renamed if name not in parameters]
    parts = {name.removeprefix(PREFIX).split(".")[0] for name in parameters}
    unused_heads = {*HEADS, "pooler"} - parts
    left_out = [
        name for name in unmatched if name.removeprefix(PREFIX).split(".")[0] in unused_heads
    ]
    shapes = {
        name: f"{name} {list(renamed[name].shape)} in the file, {list(parameter.shape)} in the model"
        for name, parameter in parameters.items()
        if name in renamed and renamed[name].shape != parameter.shape
    }
    for name, parameter in parameters.items():
        if not parameter.is_floating_point() or name not in renamed:
            continue
        tensor = renamed[name]
        if not tensor.is_floating_point() or tensor.layout != torch.strided:
            kind = tensor.dtype if tensor.layout == torch.strided else tensor.layout
            fact = f"`{name}` in `{source}` is of the type {str(kind).removeprefix('torch.')}"
            raise CheckpointError(
                "unsupported", fact, "save the model as it was before it was quantized"
            )
    problems = [
        _describe_names("missing", set(missing) - set(fresh)),
        _describe_names("not in the model", set(unmatched) - set(left_out)),
        _describe_names("other shapes", shapes.values()),
    ]
    if not any(problems):
        differing += _differing_copies(parameters, renamed)
        problems = [_describe_names("shared in the model but different in the file", differing)]
    if any(problems):
        fact = f"the weights in `{source}` do not fit {type(model).__name__}: {'; '.join(filter(None, problems))}"
        hint = "load them with the class and the config.json they were saved with"
        if any(name.split(".")[0] in HEADS for name in missing):
            hint += "; what lacks a head gets one by training: albertkit finetune, albertkit pretrain --continue"
        elif any(name.split(".")[0] in HEADS for name in shapes):
            hint += "; a head of another shape begins afresh with from_pretrained(…, ignore_mismatched_sizes=True)"
        raise CheckpointError("weights-mismatch", fact, hint)
    return MatchedTensors(
        {name: renamed[name] for name in parameters if name in renamed}, left_out, fresh
    )


def check_decoder_is_tied(tensors: StateDict, tie_word_embeddings: object, source: str) -> None:
    """Refuse a masked-LM head without its decoder, which is to be another table than the embeddings."""
    if (
        tie_word_embeddings is False
        and "predictions.bias" in tensors
        and "predictions.decoder.weight" not in tensors
    ):
        fact = f"the weights in `{source}` have no predictions.decoder.weight, and its config.json has tie_word_embeddings false"
        hint = "if the model was trained with tied weights, write true there; else fetch the weights again"
        raise CheckpointError("weights-mismatch", fact, hint)


def tensors_to_load_and_missing_heads(
    parameters: StateDict, tied: Mapping[str, str], tensors: StateDict, other_shapes: bool
) -> tuple[StateDict, list[str]]:
    """Return the tensors to load, and the parameters of heads, or of the pooler, that the file lacks as a whole.

    A head of which only a part is there is damaged, and stays an error.
    """
    renamed = _rename_for_class(tensors, parameters)
    heads: dict[str, list[str]] = {}
    for name in parameters:
        first = name.removeprefix(PREFIX).split(".")[0]
        if first in (*HEADS, "pooler"):
            heads.setdefault(first, []).append(name)
    aliases = {alias.split(".")[0] for alias, name in tied.items() if alias in renamed}
    fresh, dropped = [], set()
    for head, names in heads.items():
        stored_names = [name for name in names if name in renamed]
        misfit = other_shapes and any(
            renamed[name].shape != parameters[name].shape for name in stored_names
        )
        if misfit or (not stored_names and head not in aliases):
            fresh += names
            dropped.update(stored_names)
    bare = {name.removeprefix(PREFIX) for name in dropped}
    return {
        name: tensor for name, tensor in tensors.items() if name.removeprefix(PREFIX) not in bare
    }, fresh


def _rename_for_class(tensors: StateDict, parameters: Iterable[str]) -> dict[str, Tensor]:
    """Return the tensors under the names of a class with heads ("albert.encoder…") or of the encoder alone ("encoder…")."""
    prefixed = any(name.startswith(PREFIX) for name in parameters)
    renamed = {}
    for name, tensor in tensors.items():
        bare = name.removeprefix(PREFIX)
        if bare not in BUFFERS:
            renamed[PREFIX + bare if prefixed and bare.split(".")[0] not in HEADS else bare] = (
                tensor
            )
    return renamed


def _differing_copies(parameters: StateDict, tensors: StateDict) -> list[str]:
    """List names that are one parameter in the model, but whose tensors in the file differ."""
    first_name: dict[int, str] = {}
    differing = []
    for name, parameter in parameters.items():
        original = first_name.setdefault(id(parameter), name)
        if name == original or name not in tensors or original not in tensors:
            continue
        if not torch.equal(tensors[name], tensors[original]):
            differing.append(f"{name} and {original}")
    return differing


def _describe_names(problem: str, names: Iterable[str]) -> str:
    """Return a problem with its names, or an empty string without names."""
    names = sorted(names)
    return f"{problem}: {format_list(names)}" if names else ""


PROVENANCE = "provenance.json"  # in the same folder: the data, settings and program of the training
NEW_ROWS_FROM = "new_rows_from"  # a key in it: the first untrained row of a resized vocabulary

# The part of each pretraining head, the setting that trains it, and the value with which it is left.
_HEADS_AND_SETTINGS = (
    ("predictions", "masked_lm_prob", 0),
    ("sop_classifier", "pair_task", "none"),
)


def read_provenance(folder: Path) -> dict[str, Any]:
    """Return what a folder says of its training; nothing where there is no such file, or another program's."""
    with suppress(DataError):
        return read_typed(folder / PROVENANCE, dict[str, Any])
    return {}


def untrained_heads(folder: Path) -> list[str]:
    """Return those of the two pretraining heads that are as they were drawn, by the provenance of a folder."""
    provenance = read_provenance(folder)
    untrained = []
    for head, setting, left_out in _HEADS_AND_SETTINGS:
        training = provenance
        while training.get(setting) == left_out:
            continued = training.get("continued")
            if not isinstance(continued, dict) or any(
                name.startswith(head) for name in continued.get("initialised", ())
            ):
                untrained.append(head)
                break
            training = continued.get("provenance", {})
        else:
            # By `albertkit init`, whose own models answer: they are made to try things.
            if training is not provenance and head in training.get("initialised", ()):
                untrained.append(head)
    return untrained


# Training programs store a best score with the weights, often as a NumPy number: these create
# numbers and run nothing.
_SCALARS: list = [
    (np.float64(0).__reduce__()[0], f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")
]
_SCALARS += [(np.dtype, "numpy.dtype"), type(np.dtype(np.float64)), type(np.dtype(np.float32))]


def write_tensors(file: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file, whole or not at all."""
    with atomic_file(file) as stream:
        mode = os.fstat(stream.fileno()).st_mode
        try:
            save_file(tensors, stream.name, metadata={"format": "pt"})
        except SafetensorError as error:
            error_number = re.search(r"os error (\d+)", str(error))
            if error_number is None:
                raise
            raise OSError(
                int(error_number[1]), os.strerror(int(error_number[1])), str(file)
            ) from None
        # safetensors 0.8 replaces our file by its own, which only the owner can read and which is
        # not flushed.
        os.chmod(stream.name, mode)
        with open(stream.name, "rb") as new_file:
            os.fsync(new_file.fileno())


def write_shards(
    folder: Path, tensors: dict[str, Tensor], max_shard_size: int | str | None
) -> None:
    """Write `model.safetensors`, or files of at most a size and their index, as transformers reads them; one file if None.

    Raises:
        ConfigError: bad-value. MissingExtraError: without `huggingface_hub`.
    """
    index_file = folder / f"{WEIGHTS_FILE}.index.json"
    if max_shard_size is None:
        write_tensors(folder / WEIGHTS_FILE, tensors)
        if index_file.exists():  # of a model that was saved here before
            index_file.unlink()
            for shard in folder.glob("model-*-of-*.safetensors"):
                shard.unlink()
        return
    if isinstance(max_shard_size, int) and max_shard_size < 1:
        raise ConfigError(
            "bad-value",
            f"max_shard_size is {max_shard_size}",
            'write bytes, 2_000_000_000, or "2GB"',
        )
    try:
        split = import_huggingface_hub().split_torch_state_dict_into_shards(
            tensors, max_shard_size=max_shard_size
        )
    except ValueError as error:
        fact = f"max_shard_size is {max_shard_size!r}: {error}"
        raise ConfigError("bad-value", fact, 'write bytes, 2_000_000_000, or "2GB"') from None
    for file_name, names in split.filename_to_tensors.items():
        write_tensors(folder / file_name, {name: tensors[name] for name in names})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        write_json(index_file, index)
        (folder / WEIGHTS_FILE).unlink(missing_ok=True)  # it would be read first


def read_tensors(folder: str | Path, use_safetensors: bool | None = None) -> StateDict:
    """Return the tensors of a folder's weights, in one file or in the files of an index, by their `transformers_names`.

    Args:
        folder: A checkpoint folder.
        use_safetensors: As `find_weights`.
    """
    weights = find_weights(Path(folder), use_safetensors)
    if weights is None:
        raise _no_weights_error(Path(folder), use_safetensors)
    stored: dict[str, Tensor] = {}
    for file in list_shards(weights):
        stored.update(read_tensor_file(file))
    check_shards(weights, stored)
    return {plain: stored[name] for name, plain in transformers_names(stored).items()}


def _no_weights_error(path: Path, use_safetensors: bool | None) -> CheckpointError:
    if weights := find_weights(path):
        fact = f"`{path}` has no weights but `{weights.name}`, and use_safetensors={use_safetensors} asks for others"
        return CheckpointError("missing-file", fact, "leave use_safetensors out")
    entries = sorted(p.name for p in path.iterdir())
    if tensorflow := sorted(path.glob("*.ckpt*.index")):
        fact = f"`{path}` holds a TensorFlow checkpoint, `{tensorflow[0].name}`"
        hint = f"convert it, then name the new folder: albertkit convert {path} MODEL"
        return CheckpointError("missing-file", fact, hint)
    fact = f"neither {WEIGHTS_FILE} nor {OLD_WEIGHTS} in `{path}` (there: {', '.join(entries) or 'nothing'})"
    hint = inner_model_hint(path) or unread_weights_hint(entries)
    hint = hint or "name the folder that holds the weights"
    if "model.onnx" in entries:
        readers = "albertkit.load_onnx, predict, evaluate and serve"
        hint = f"an exported model is read by {readers}; all else needs the folder it was made of"
    return CheckpointError("missing-file", fact, hint)


def read_tensor_file(file: Path, key: str = "") -> StateDict:
    """Return the tensors by name of a safetensors file, or of a file of `torch.save`, read without unpickling objects."""
    check_regular_file(file, "file of weights")
    try:
        if file.suffix == ".safetensors":
            check_header(file)
            return load_file(file)
        with torch.serialization.safe_globals(_SCALARS):
            tensors = torch.load(file, map_location="cpu", weights_only=True)
    except (PermissionError, MemoryError, AlbertKitError):  # errors of the machine, not of the file
        raise
    except (
        Exception
    ) as error:  # of a damaged pickle: KeyError, IndexError, OSError without a name, …
        if is_out_of_memory(error):
            raise MemoryError(str(error)) from None
        reason = first_line(error)
        fact = f"`{file}` cannot be read: {reason}"
        hint = "copy it again; of a pickled model, save `model.state_dict()` with the program that wrote it"
        raise CheckpointError("corrupt", fact, hint) from None
    if key and isinstance(tensors, Mapping):
        tensors = tensors.get(key, tensors)
    if not isinstance(tensors, Mapping) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in tensors.items()
    ):
        hint = "copy it again"
        groups = tensors.items() if isinstance(tensors, Mapping) else ()
        for name, value in groups:
            if (
                isinstance(value, Mapping)
                and value
                and all(isinstance(tensor, Tensor) for tensor in value.values())
            ):
                hint = f"its `{name}` does: save that with torch.save"
        raise CheckpointError("corrupt", f"`{file}` does not hold a dictionary of tensors", hint)
    return tensors
