"""What is in a checkpoint folder: the facts behind `albertkit inspect`.

The weights file is not loaded: a safetensors header says names, shapes and types.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from albertkit.config import AlbertConfig
from albertkit.errors import AlbertKitError, CheckpointError, ConfigError, DataError
from albertkit.files import plain_file, read_json
from albertkit.model_folder import local_folder
from albertkit.report.compared import compared_sizes, memory
from albertkit.report.sizes import forward_flops

WEIGHTS = "model.safetensors"
OTHER_WEIGHTS = ("pytorch_model.bin", "model.safetensors.index.json", "pytorch_model.bin.index.json")
HEADS = {"predictions": "masked-LM head", "sop_classifier": "sentence-order head"}
_BUFFERS = {"embeddings.position_ids", "embeddings.token_type_ids"}  # counters in old files


def inspect_folder(source: str | Path, length: int | None = None) -> dict[str, Any]:
    """Everything `albertkit inspect` knows about a model, as plain values for JSON.

    Args:
        source: A checkpoint folder, or a run: its `best/`, else its `final/`.
        length: Tokens of the sequences that FLOPs and memory are counted for. Default: the length it was trained with,
            else what it reads, at most 512.

    Returns:
        `model` (its folder), `run` (the run it is of), `class`, `config`, `parameters` (by part, `total`, and how many the
        file `stored`), `weights`, `flops`, `memory`, `compared` (rows of `compared_sizes`), `tokenizer`, `provenance`,
        `training`, `card`, and `problems`: a list of texts. None for what is not there.

    Raises:
        DataError: not-found, broken-json. ConfigError: bad-value for a length that cannot be; as
            `AlbertConfig.from_pretrained`. CheckpointError: not-converted, no-weights, broken-weights.
    """
    folder = local_folder(_checked_path(Path(source)))
    of_run = folder != Path(source) and Path(source).is_dir()
    config = AlbertConfig.from_pretrained(folder)
    provenance = _json_if_there(folder / "provenance.json")
    longest = config.max_position_embeddings
    trained = (provenance or {}).get("length")
    if length is None:
        length = (trained if type(trained) is int else 0) or min(512, longest)
    if not 0 < length <= longest:
        raise ConfigError("bad-value", f"length is {length}, the model reads 1 to {longest}", f"use --length {longest}")
    header = read_header(folder / WEIGHTS)
    parts, stored = count_parts(header, config)
    total = sum(parts.values())
    types: dict[str, int] = {}
    for shape, dtype in header.values():
        types[dtype] = types.get(dtype, 0) + math.prod(shape)
    tokenizer, problems = _tokenizer(folder, config)
    if _encoder_parameters(parts) != (
        wanted := config.num_parameters() - config.hidden_size * (config.hidden_size + 1)
    ):
        problems.append(
            f"the encoder in the file has {_encoder_parameters(parts):,} parameters, config.json asks for {wanted:,}"
        )
    forward = forward_flops(config, length)
    return {
        "model": str(folder),
        "run": str(source) if of_run else None,
        "class": next(iter(config.foreign.get("architectures") or []), None),
        "config": config.to_dict(),
        "parameters": {"parts": parts, "total": total, "stored": stored},
        "weights": {"file": WEIGHTS, "bytes": (folder / WEIGHTS).stat().st_size, "types": types},
        "flops": {
            "length": length,
            "forward_per_token": forward,
            "train_per_token": config.train_flops_per_token(length),
        },
        "memory": memory(config, total, length),
        "compared": compared_sizes(config, length),
        "tokenizer": tokenizer,
        "provenance": provenance,
        "training": _json_if_there(folder / "training_state.json"),
        "card": (folder / "README.md").exists(),
        "problems": problems,
    }


def count_parts(header: Mapping[str, tuple[list[int], str]], config: AlbertConfig) -> tuple[dict[str, int], int]:
    """Parameters by part of the model, each shared one counted once, and how many numbers the file stores for them.

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
    order = ["embeddings", "embedding projection", "attention", "feed-forward", "pooler", *HEADS.values()]
    parts = sorted(counts, key=lambda part: order.index(part) if part in order else len(order))
    return {part: counts[part] for part in parts}, stored


def read_header(file: Path) -> dict[str, tuple[list[int], str]]:
    """Shape and type of every tensor in a safetensors file.

    Raises:
        CheckpointError: no-weights, broken-weights.
    """
    if not file.exists():
        others = [name for name in OTHER_WEIGHTS if (file.parent / name).exists()]
        raise CheckpointError(
            "no-weights", f"no {WEIGHTS} in `{file.parent}`{', only ' * bool(others)}{', '.join(others)}",
            f"albertkit convert {file.parent} FOLDER" if others else "name the folder that holds the weights",
        )  # fmt: skip
    plain_file(file, "file of weights")
    try:
        with safe_open(file, "np") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            return {name: (piece.get_shape(), piece.get_dtype()) for name, piece in slices.items()}
    except SafetensorError as error:
        raise CheckpointError("broken-weights", f"`{file}` cannot be read: {error}", "copy it again") from None


def _part(bare: str) -> str:
    first, _, rest = bare.partition(".")
    if first == "encoder":
        if rest.startswith("embedding_hidden_mapping_in"):
            return "embedding projection"
        return "attention" if ".attention." in rest else "feed-forward"
    return first if first in ("embeddings", "pooler") else HEADS.get(first, f"head `{first}`")


def _encoder_parameters(parts: Mapping[str, int]) -> int:
    names = ("embeddings", "embedding projection", "attention", "feed-forward")
    return sum(parts.get(name, 0) for name in names)


def _checked_path(path: Path) -> Path:
    """The path itself, unless it is something that has to be converted first."""
    foreign = [*path.glob("*.index"), *path.glob("saved_model.pb")] if path.is_dir() else []
    is_prefix = path.suffix == ".index" or path.with_name(f"{path.name}.index").exists()
    if is_prefix or (foreign and not (path / WEIGHTS).exists()):
        raise CheckpointError(
            "not-converted",
            f"`{path}` is a TensorFlow checkpoint",
            f"convert it first: albertkit convert {path} FOLDER",
        )
    return path


def _tokenizer(folder: Path, config: AlbertConfig) -> tuple[dict[str, Any] | None, list[str]]:
    from albertkit.tokenizer import AlbertTokenizer

    try:
        tokenizer = AlbertTokenizer.from_pretrained(folder)
    except AlbertKitError as error:
        return None, [] if error.slug == "no-tokenizer" else [f"the tokenizer cannot be read: {error.message}"]
    problems = []
    if tokenizer.vocab_size > config.vocab_size:  # a model may have rows to spare
        problems.append(f"the tokenizer has {tokenizer.vocab_size:,} pieces, the model {config.vocab_size:,}")
    return {
        "kind": type(tokenizer).__name__,
        "pieces": tokenizer.vocab_size,
        "text_rules": tokenizer.text_rules,
        "fingerprint": tokenizer.fingerprint,
    }, problems


def _json_if_there(file: Path) -> dict[str, Any] | None:
    value = read_json(file) if file.exists() else {}
    if not isinstance(value, dict):
        raise DataError("broken-json", f"`{file}` does not hold names and values", "restore it or remove it")
    return value or None
