"""Content of a weights file, by its header alone: names, shapes and types of tensors, parameters by part of the model."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from albertkit.config import AlbertConfig
from albertkit.errors import CheckpointError
from albertkit.files import check_regular_file, read_typed
from albertkit.model_paths import WEIGHTS_FILE

HEADS = {"predictions": "masked-LM head", "sop_classifier": "sentence-order head"}
ENCODER = ("embeddings", "embedding projection", "attention", "feed-forward")
# 100,000 tensors; an ALBERT of the most blocks that are built has 16,000
_MAX_HEADER_BYTES = 8 << 20
_WORDS = "embeddings.word_embeddings.weight"
# torch's wrappers: compiled, DataParallel, FSDP, checkpointed; they stand before all names, or
# before those of a part.
_WRAPPERS = re.compile(
    r"(?:^|(?<=\.))(?:_orig_mod|module|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)
_OLD_NORMS = {"gamma": "weight", "beta": "bias"}  # TensorFlow's names, until 2018
# Counters, not weights: of old files of transformers, and of torch's AveragedModel
BUFFERS = {"embeddings.position_ids", "embeddings.token_type_ids", "n_averaged"}


def transformers_names(tensor_names: Iterable[str]) -> dict[str, str]:
    """Map the names of a file to those that transformers has today; names that are no ALBERT's stay as they are.

    Programs put the names of their wrappers and of the attribute that holds the model before all
    names: `module.`, `_orig_mod.`, Lightning's `model.`. The table of words shows which; an ALBERT
    cut out of a larger model may be `bert.`.

    Raises:
        CheckpointError: ambiguous if two names mean one tensor.
    """
    unwrapped = {name: _WRAPPERS.sub("", name) for name in tensor_names}
    words = [name for name in unwrapped.values() if name == _WORDS or name.endswith(f".{_WORDS}")]
    encoder = words[0].removesuffix(_WORDS) if len(words) == 1 else ""
    around = re.sub(r"(^|\.)(albert|bert)\.$", r"\1", encoder)  # stands before the heads, too
    plain: dict[str, str] = {}
    for name, bare in unwrapped.items():
        if bare.startswith(encoder):
            bare = "albert." * (encoder != around) + bare.removeprefix(encoder)
        elif around:
            bare = bare.removeprefix(around)
        stem, _, last = bare.rpartition(".")
        plain[name] = (
            f"{stem}.{_OLD_NORMS[last]}" if last in _OLD_NORMS and stem.endswith("orm") else bare
        )
    first_names: dict[str, str] = {}
    for name, plain_name in plain.items():
        first_name = first_names.setdefault(plain_name, name)
        if first_name != name:
            raise CheckpointError(
                "ambiguous",
                f"`{first_name}` and `{name}` are one tensor",
                "leave out one of the two",
            )
    return plain


_UNREAD = {"tf_model.h5": "TensorFlow", "flax_model.msgpack": "Flax"}
_OTHER_LIBRARIES = {
    "h5": "Keras", "keras": "Keras", "ot": "rust-bert", "gguf": "llama.cpp", "onnx": "ONNX", "tflite": "TensorFlow Lite",
    "pdparams": "PaddlePaddle", "mlmodel": "Core ML",
}  # fmt: skip
_VARIANT = re.compile(r"((?:model|pytorch_model)\.)[\w-]+\.(safetensors|bin)")
_OTHER_NAME = re.compile(
    r"(?!adapter_|optimizer|scheduler|training_args|rng_state|scaler).+\.(safetensors|bin|pt|pth|ckpt)"
)


def unread_weights_hint(file_names: Iterable[str]) -> str:
    """Return what to do with weights of other libraries or under other names, an empty string if there are none."""
    for name in file_names:
        if framework := _UNREAD.get(name):
            advice = "load them there (before version 5) and save them again for PyTorch"
            return f"{framework} weights of transformers are not read: {advice}"
        if variant := _VARIANT.fullmatch(name):
            return f"rename `{name}`, a variant, to {variant[1]}{variant[2]}"
        if library := _OTHER_LIBRARIES.get(name.rpartition(".")[2]):
            return (
                f"`{name}` is {library}'s: name a folder with {WEIGHTS_FILE}, which it was made of"
            )
        if other_name := _OTHER_NAME.fullmatch(name):
            advice = f"rename it to {WEIGHTS_FILE}"
            if other_name[1] != "safetensors":
                advice = "load it with torch and save its state_dict as pytorch_model.bin"
            return f"if `{name}` holds the weights, {advice}"
    return ""


def check_header(file: Path) -> None:
    """Refuse a safetensors file of so many tensors that reading it would take minutes; it begins with its header's size."""
    with open(file, "rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
    if _MAX_HEADER_BYTES < size < file.stat().st_size:
        raise CheckpointError(
            "corrupt",
            f"`{file}` has a header of {size / 1e6:,.0f} MB: no ALBERT has so many tensors",
            "copy it again, or name the weights of an ALBERT",
        )


def count_parts(
    header: Mapping[str, tuple[list[int], str]], config: AlbertConfig
) -> tuple[dict[str, int], int]:
    """Count parameters by part of the model, each shared one counted once, and how many numbers the file stores for them.

    Args:
        header: Parameter name, as transformers names them, to shape and type.
        config: Says what is shared.

    Returns:
        Part to parameters in the order they run: embeddings, projection, attention, feed-forward,
        pooler, and heads; and the count with every copy.
    """
    counts: dict[str, int] = {}
    stored = 0
    for name, (shape, _) in header.items():
        bare = name.removeprefix("albert.")
        # The decoder is tied to the embeddings
        if bare in BUFFERS or bare.startswith("predictions.decoder."):
            continue
        size = math.prod(shape)
        stored += size
        first, _, following = bare.partition(".")
        if first in ("embeddings", "pooler"):
            part = first
        elif first != "encoder":
            part = HEADS.get(first, f"head `{first}`")
        elif following.startswith("embedding_hidden_mapping_in"):
            part = "embedding projection"
        else:
            part = "attention" if ".attention." in following else "feed-forward"
        shared = {"attention": "attention", "ffn": "feed-forward"}.get(config.parameter_sharing)
        first_group = ".albert_layer_groups.0." in name
        if part != shared or first_group:
            counts[part] = counts.get(part, 0) + size
    order = [*ENCODER, "pooler", *HEADS.values()]
    parts = sorted(counts, key=lambda part: order.index(part) if part in order else len(order))
    return {part: counts[part] for part in parts}, stored


@dataclass(frozen=True)
class _Index:
    """Index of weights in several files, as transformers writes it: tensor to file."""

    weight_map: dict[str, str]


def list_shards(weights: Path) -> list[Path]:
    """Return the files of an index, all in its folder; a file of weights itself.

    Raises:
        CheckpointError: missing-file. DataError: bad-file.
    """
    if weights.suffix != ".json":
        return [weights]
    weight_map = read_typed(weights, _Index, "index", "copy it again").weight_map
    files = [weights.parent / Path(name).name for name in dict.fromkeys(weight_map.values())]
    for file in files:
        if not file.is_file():
            raise CheckpointError(
                "missing-file",
                f"there is no `{file}`, which `{weights.name}` names",
                "put all files of the checkpoint into one folder",
            )
    return files


def check_shards(weights: Path, tensors: Iterable[str]) -> None:
    """Refuse an index that names a tensor which is not in its files."""
    if weights.suffix == ".json":
        names = read_typed(weights, _Index, "index", "copy it again").weight_map.keys()
        if missing := names - set(tensors):
            raise CheckpointError(
                "corrupt",
                f"`{min(missing)}` is in no file of `{weights}`",
                "copy them again",
            )


def read_header(weights: Path) -> dict[str, tuple[list[int], str]]:
    """Read shape and type of every tensor of a safetensors file, or of the files of an index."""
    header: dict[str, tuple[list[int], str]] = {}
    for file in list_shards(weights):
        check_regular_file(file, "file of weights")
        check_header(file)
        try:
            with safe_open(file, "np") as tensors:
                slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118 (it is no mapping)
                header |= {
                    name: (piece.get_shape(), piece.get_dtype()) for name, piece in slices.items()
                }
        except SafetensorError as error:
            raise CheckpointError(
                "corrupt",
                f"`{file}` cannot be read: {error}",
                "copy it again",
            ) from None
    check_shards(weights, header)
    return {plain: header[name] for name, plain in transformers_names(header).items()}
