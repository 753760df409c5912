"""Loading and saving checkpoint folders: `config.json` and `model.safetensors`, with transformers' parameter names."""

import logging
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from albertkit.checkpoints.keywords import checked_changes, given_config, placing
from albertkit.checkpoints.matching import Matched, match, without_other_heads
from albertkit.config import AlbertConfig
from albertkit.errors import CheckpointError, is_want_of_memory
from albertkit.files import atomic_file, plain_file, read_json
from albertkit.model.pretrained import PretrainedAlbert, Unfilled
from albertkit.model_folder import local_folder

WEIGHTS = "model.safetensors"
OLD_WEIGHTS = "pytorch_model.bin"
PROVENANCE = "provenance.json"  # beside the weights: what they were made from, by whom they were trained on what
NEW_ROWS_FROM = "new_rows_from"  # in it, of a grown model: the first row that was added and not trained

# Training programs keep a best score beside the weights, often as a number of NumPy: these make numbers and run nothing.
_SCALARS: list = [
    *((np.float64(0).__reduce__()[0], f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
    (np.dtype, "numpy.dtype"), type(np.dtype(np.float64)), type(np.dtype(np.float32)),
]  # fmt: skip

Model = TypeVar("Model", bound=PretrainedAlbert)
logger = logging.getLogger("albertkit")


def load_checkpoint(
    folder: str | Path,
    model_class: type[Model],
    allow_missing: Collection[str] = (),
    revision: str | None = None,
    *,
    strict: bool = True,
    config: Any = None,
    dtype: Any = None,
    torch_dtype: Any = None,
    device_map: Any = None,
    ignore_mismatched_sizes: bool = False,
    **changes: Any,
) -> Model:
    """Make a model of a class from a checkpoint folder.

    A folder with heads fits the base encoder: the heads are left out, and that is logged.

    Args:
        folder: Holds `config.json` and `model.safetensors`, or `pytorch_model.bin` (read without unpickling objects); or a
            run; or `org/name` of the Hugging Face hub.
        model_class: The class to make, for example `AlbertForPreTraining`.
        allow_missing: First parts of parameter names that may be missing and are then initialised afresh.
        revision: Of a model of the hub.
        strict: False to initialise heads (and the pooler) afresh that the folder lacks, with a warning.
        config, dtype, torch_dtype, device_map, ignore_mismatched_sizes: As `PretrainedAlbert.from_pretrained`.
        **changes: Configuration fields to set otherwise, and keywords of transformers that change nothing.

    Returns:
        The model in evaluation mode.

    Raises:
        DataError: not-found or broken-json. MachineError: hub-unreachable. ConfigError: unknown-key, bad-config, wrong-model,
        bad-argument, bad-device. CheckpointError: no-weights, broken-weights, weights-mismatch.
    """
    place = placing(dtype, torch_dtype, device_map)
    changes = checked_changes(changes)
    path = local_folder(folder, revision)
    made = given_config(config, path)
    if changes:
        made = made.with_changes(**changes)
    tensors = read_tensors(path)
    fresh: list[str] = []
    if not strict:
        other_labels = ignore_mismatched_sizes or not changes.keys().isdisjoint(("num_labels", "id2label"))
        tensors, fresh = without_other_heads(model_class, made, tensors, other_labels)
    model, matched = fill(model_class, made, tensors, (*allow_missing, *fresh), str(path))
    if matched.left_out:
        logger.info(
            "%s has no use for these tensors of `%s`: %s", model_class.__name__, path, ", ".join(matched.left_out)
        )
    if new := [name for name in matched.fresh if name in fresh]:
        logger.warning(
            "`%s` has no weights for %s: initialised afresh, train them before use: %s", path, model_class.__name__,
            ", ".join(new),
        )  # fmt: skip
    if others := [name for name in matched.fresh if name not in fresh]:
        logger.info("not in `%s`, initialised afresh: %s", path, ", ".join(others))
    stored = next((tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()), torch.float32)
    return model.to(place.device, place.dtype or stored)


def fill(
    model_class: type[Model],
    config: AlbertConfig,
    tensors: Mapping[str, Tensor],
    allow_missing: Collection[str],
    source: str,
) -> tuple[Model, Matched]:
    """Make a model and give it the tensors of a file; only parameters that the file lacks are drawn.

    Args:
        model_class: The class to make.
        config: What to build.
        tensors: From the file.
        allow_missing: First parts of parameter names that may be missing.
        source: The file, for messages.

    Returns:
        The model in evaluation mode, and what went where.

    Raises:
        CheckpointError: weights-mismatch.
    """
    with Unfilled():
        model = model_class(config)
    matched = match(model, tensors, allow_missing, source)
    parameters = model.state_dict(keep_vars=True)
    with torch.no_grad():
        for name, tensor in matched.tensors.items():
            parameters[name].copy_(tensor)
    model.initialize(ready=[parameters[name] for name in matched.tensors])
    return model.eval(), matched


def save_checkpoint(folder: str | Path, model: PretrainedAlbert, tokenizer: Any = None) -> None:
    """Write a model, in fp32, as transformers reads it.

    Every file appears whole or not at all. With `parameter_sharing` attention or ffn, which transformers has no name for,
    what the layers share is stored for each of them, and that is logged; `load_checkpoint` shares it again.

    Args:
        folder: Made if missing; files of other names in it are left alone.
        model: Any public class.
        tokenizer: An `AlbertTokenizer` to save beside the weights; `config.json` then names its special ids.
    """
    path = Path(folder)
    if model.config.parameter_sharing in ("attention", "ffn"):
        logger.info(
            "`%s` holds the shared %s once for each of the %d layers, because transformers cannot share it",
            path, model.config.parameter_sharing, model.config.num_hidden_layers,
        )  # fmt: skip
    tensors: dict[str, Tensor] = {}
    stored: set[int] = set()
    for name, tensor in model.state_dict().items():
        tensor = tensor.detach().to("cpu", torch.float32).contiguous()
        tensors[name] = tensor.clone() if tensor.data_ptr() in stored else tensor
        stored.add(tensor.data_ptr())
    write_tensors(path / WEIGHTS, tensors)
    ids: dict[str, int] = {}
    if tokenizer is not None:
        tokenizer.save_pretrained(path)
        ids = dict(pad_token_id=tokenizer.pad_id, bos_token_id=tokenizer.cls_id, eos_token_id=tokenizer.sep_id)
    foreign = {key: value for key, value in model.config.foreign.items() if key != "torch_dtype"}
    foreign |= {"architectures": [type(model).__name__], "dtype": "float32"}
    model.config.replace(foreign=foreign, **ids).save_pretrained(path)


def write_tensors(file: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file, whole or not at all.

    Args:
        file: Its folder is made if missing.
        tensors: Name to tensor, contiguous and on the CPU; no two may share memory.

    Raises:
        OSError: The operating system's reason, for example a full disk, which safetensors gives as a text only.
    """
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
    """Names and tensors of a folder's weights, as they are in its file, or in the files that an index names.

    Raises:
        CheckpointError: no-weights, missing-shard, or broken-weights with the reason.
    """
    path = Path(folder)
    for name in (WEIGHTS, OLD_WEIGHTS):
        if (path / name).exists():
            return read_tensor_file(path / name)
        if (path / f"{name}.index.json").exists():
            return _read_shards(path / f"{name}.index.json")
    there = sorted(p.name for p in path.iterdir())
    if tensorflow := sorted(path.glob("*.ckpt*.index")):
        raise CheckpointError(
            "no-weights", f"`{path}` holds a TensorFlow checkpoint, `{tensorflow[0].name}`",
            f"convert it, then name the new folder: albertkit convert {path} MODEL",
        )  # fmt: skip
    inside = sorted(
        str(file.parent) for file in path.glob(f"*/**/{WEIGHTS}") if file.parent.parent.name != "checkpoints"
    )
    raise CheckpointError(
        "no-weights", f"neither {WEIGHTS} nor {OLD_WEIGHTS} in `{path}` (there: {', '.join(there) or 'nothing'})",
        "an exported model is read by albertkit.load_onnx, predict, evaluate and serve; all else needs the folder it was made of"
        if "model.onnx" in there
        else f"name a folder inside it: {inside[-1]}" if inside else "name the folder that holds the weights",
    )  # fmt: skip


def _read_shards(index: Path) -> Mapping[str, Tensor]:
    """Every tensor of an index, each from the file that it names."""
    try:
        files = {str(name): Path(str(file)).name for name, file in read_json(index, "index")["weight_map"].items()}
    except (KeyError, TypeError, AttributeError):
        raise CheckpointError("broken-weights", f"`{index}` has no weight_map", "copy it again") from None
    tensors: dict[str, Tensor] = {}
    for file in dict.fromkeys(files.values()):
        if not (index.parent / file).is_file():
            raise CheckpointError(
                "missing-shard", f"there is no `{index.parent / file}`, which `{index.name}` names",
                "put all files of the checkpoint into one folder",
            )  # fmt: skip
        tensors.update(read_tensor_file(index.parent / file))
    if missing := files.keys() - tensors.keys():
        raise CheckpointError("broken-weights", f"`{min(missing)}` is in no file of `{index}`", "copy them again")
    return tensors


def read_tensor_file(file: Path, within: str = "") -> Mapping[str, Tensor]:
    """Names and tensors of a safetensors file, or of a file of `torch.save`, which is read without unpickling objects.

    Args:
        file: The file.
        within: Where this key of a file of `torch.save` holds a dictionary, that one is read.

    Raises:
        DataError: not-found, wrong-kind. CheckpointError: broken-weights.
    """
    plain_file(file, "file of weights")
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        with torch.serialization.safe_globals(_SCALARS):
            tensors = torch.load(file, map_location="cpu", weights_only=True)
    except (PermissionError, MemoryError):  # the machine's word, not the file's
        raise
    except Exception as error:  # of a damaged pickle: KeyError, IndexError, OSError without a name, …
        if is_want_of_memory(error):
            raise MemoryError(str(error)) from None
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            "broken-weights", f"`{file}` cannot be read: {reason}",
            "copy it again; of a pickled model, save `model.state_dict()` with the program that wrote it",
        ) from None  # fmt: skip
    if within and isinstance(tensors, Mapping):
        tensors = tensors.get(within, tensors)
    if not isinstance(tensors, Mapping) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise CheckpointError("broken-weights", f"`{file}` does not hold a dictionary of tensors", "copy it again")
    return tensors
