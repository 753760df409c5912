"""Content of a weights file, by its header alone: names, shapes and types of tensors, parameters by part of the model."""

import math
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

from albertkit.config import AlbertConfig
from albertkit.errors import CheckpointError
from albertkit.files import plain_file

WEIGHTS = "model.safetensors"
OTHER_WEIGHTS = ("pytorch_model.bin", "model.safetensors.index.json", "pytorch_model.bin.index.json")
HEADS = {"predictions": "masked-LM head", "sop_classifier": "sentence-order head"}
ENCODER = ("embeddings", "embedding projection", "attention", "feed-forward")
_BUFFERS = {"embeddings.position_ids", "embeddings.token_type_ids"}  # counters in old files


def count_parts(header: Mapping[str, tuple[list[int], str]], config: AlbertConfig) -> tuple[dict[str, int], int]:
    """Count parameters by part of the model, each shared one counted once, and how many numbers the file stores for them.

    Args:
        header: Parameter name, as transformers names them, to shape and type.
        config: Says what is shared.

    Returns:
        Part to parameters in the order they run: embeddings, projection, attention, feed-forward, pooler, and heads;
        and the count with every copy.
    """
    counts: dict[str, int] = {}
    stored = 0
    for name, (shape, _) in header.items():
        bare = name.removeprefix("albert.")
        if bare in _BUFFERS or bare.startswith("predictions.decoder."):  # the decoder is tied to the embeddings
            continue
        size = math.prod(shape)
        stored += size
        part = _part(bare)
        shared = {"attention": "attention", "ffn": "feed-forward"}.get(config.parameter_sharing)
        first_group = ".albert_layer_groups.0." in name
        if part != shared or first_group:
            counts[part] = counts.get(part, 0) + size
    order = [*ENCODER, "pooler", *HEADS.values()]
    parts = sorted(counts, key=lambda part: order.index(part) if part in order else len(order))
    return {part: counts[part] for part in parts}, stored


def read_header(file: Path) -> dict[str, tuple[list[int], str]]:
    """Read shape and type of every tensor in a safetensors file."""
    if not file.exists():
        others = [name for name in OTHER_WEIGHTS if (file.parent / name).exists()]
        raise CheckpointError(
            "missing-file", f"no {WEIGHTS} in `{file.parent}`{', only ' * bool(others)}{', '.join(others)}",
            f"albertkit convert {file.parent} FOLDER" if others else "name the folder that holds the weights",
        )  # fmt: skip
    plain_file(file, "file of weights")
    try:
        with safe_open(file, "np") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            return {name: (piece.get_shape(), piece.get_dtype()) for name, piece in slices.items()}
    except SafetensorError as error:
        raise CheckpointError("corrupt", f"`{file}` cannot be read: {error}", "copy it again") from None


def _part(bare: str) -> str:
    first, _, rest = bare.partition(".")
    if first == "encoder":
        if rest.startswith("embedding_hidden_mapping_in"):
            return "embedding projection"
        return "attention" if ".attention." in rest else "feed-forward"
    return first if first in ("embeddings", "pooler") else HEADS.get(first, f"head `{first}`")
