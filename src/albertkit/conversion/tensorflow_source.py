"""Weights in TensorFlow's names: checkpoints of versions 1 and 2, SavedModels, TF-Hub modules, and npz files of ours."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from albertkit.config import AlbertConfig, make_config
from albertkit.conversion import names
from albertkit.conversion.found import FoundModel
from albertkit.conversion.tensorflow.bundle import TensorBundle
from albertkit.conversion.tensorflow.saved_model import open_saved_model
from albertkit.errors import CheckpointError, listed
from albertkit.files import load

NPZ = "model.npz"  # what a conversion to npz writes
_TF2_KEY = "/.ATTRIBUTES/"  # in every key of an object-graph checkpoint

# What the shapes show of a configuration, for a user who has none: key, parameter, dimension.
_SHOWN = (
    ("vocab_size", "albert.embeddings.word_embeddings.weight", 0),
    ("embedding_size", "albert.embeddings.word_embeddings.weight", 1),
    ("max_position_embeddings", "albert.embeddings.position_embeddings.weight", 0),
    ("type_vocab_size", "albert.embeddings.token_type_embeddings.weight", 0),
    ("hidden_size", "albert.pooler.bias", 0),
    ("intermediate_size", "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.bias", 0),
)


def read_checkpoint(prefix: str, config: Path | None) -> FoundModel:
    """Read a checkpoint of TensorFlow 1 or 2, given by its prefix."""
    return _read_bundle(TensorBundle.open(prefix), [Path(prefix).parent], config, "checkpoint")


@contextmanager
def read_saved_model(path: Path, config: Path | None) -> Iterator[FoundModel]:
    """Read a SavedModel, TF-Hub module or checkpoint, as a folder or packed."""
    with open_saved_model(path) as (bundle, assets):
        inside = Path(bundle.prefix).parent
        saved_model = inside.name == "variables"
        inside = inside.parent if saved_model else inside
        folders = [inside] if path.is_dir() else [inside, path.parent]
        source = _read_bundle(bundle, folders, config, "SavedModel" if saved_model else "checkpoint")
        if any(name.endswith(".model") or name.startswith("vocab") for name in assets):
            source.folder = inside / "assets"
        yield source


def read_npz(file: Path, config: Path | None) -> FoundModel:
    """Read an npz file with TensorFlow 1's names, as `--to npz` writes it."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            variables = {name: arrays[name] for name in arrays.files}
    except (PermissionError, MemoryError):
        raise
    except Exception as error:  # of zip, zlib or the headers: not declared
        raise CheckpointError("corrupt", f"`{file}` cannot be read: {error}", "copy it again") from None
    shapes = {name: values.shape for name, values in variables.items()}
    return _read(
        {name: name for name in variables},
        shapes,
        variables.__getitem__,
        file,
        [file.parent],
        config,
        "npz of TensorFlow 1",
    )


def _read_bundle(bundle: TensorBundle, folders: list[Path], config: Path | None, what: str) -> FoundModel:
    version = 2 if any(_TF2_KEY in key for key in bundle.names) else 1
    kind = f"{what} of TensorFlow {version}" if what == "SavedModel" else f"TensorFlow {version} checkpoint"
    shapes = {key: bundle.shape(key) for key in bundle.names}
    return _read(bundle.variable_names, shapes, bundle.read, Path(bundle.prefix), folders, config, kind)


def _read(
    variables: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    read: Callable[[str], NDArray[Any]],
    path: Path,
    folders: list[Path],
    config_file: Path | None,
    kind: str,
) -> FoundModel:
    """Bring the variables of a file under transformers' names; `variables` maps its keys to the names of variables."""
    known: dict[str, tuple[str, names.Layout]] = {}
    unknown, skipped = [], Counter[str]()
    for key, variable in variables.items():
        slot = names.optimizer_slot(key)
        found = None if slot else names.of_variable(variable)
        if slot:
            skipped[slot] += 1
        elif found is None:
            unknown.append(variable)
        else:
            known[key] = found
    if not known:
        fact = f"`{path}` holds no variable of an ALBERT (there: {listed(sorted(unknown)) or 'none'})"
        raise CheckpointError(
            "wrong-kind", fact, "give a checkpoint of google-research/albert or of the TensorFlow Model Garden"
        )
    by_name = {name: shapes[key] for key, (name, _) in known.items()}
    config, notes = _google_config(folders, config_file, _facts(by_name))
    _check_heads(known, shapes, config, path)
    _check_groups(variables, config, path)
    source = FoundModel(kind, config, {}, folders[0], unknown=sorted(unknown), skipped=skipped, notes=notes)
    for key, (name, layout) in known.items():
        if not names.well_shaped(shapes[key], layout):
            fact = f"`{variables[key]}` in `{path}` has shape {list(shapes[key])}"
            raise CheckpointError("weights-mismatch", fact, "copy the checkpoint again; is it an ALBERT's?")
        values = read(key)
        if values.dtype.kind not in "fiub":
            raise CheckpointError(
                "unsupported", f"`{variables[key]}` in `{path}` holds no numbers", "copy the checkpoint again"
            )
        source.add(name, torch.from_numpy(np.array(names.from_tensorflow(values, layout), order="C")), variables[key])
    width = by_name.get("albert.embeddings.word_embeddings.weight", (0,))[-1]
    if config.embedding_size == config.hidden_size == width and not any(
        name.startswith(names.MAPPING_IN) for name in by_name
    ):
        source.tensors[f"{names.MAPPING_IN}weight"] = torch.eye(config.hidden_size)
        source.tensors[f"{names.MAPPING_IN}bias"] = torch.zeros(config.hidden_size)
        source.notes.append("E = H: the source has no projection; an identity matrix is written, which changes no bit")
    return source


def _facts(shapes: Mapping[str, tuple[int, ...]]) -> str:
    known = ((key, shapes.get(name, ()), place) for key, name, place in _SHOWN)
    return ", ".join(f"{key} {shape[place]}" for key, shape, place in known if len(shape) > place) or "nothing of it"


def _check_heads(
    known: Mapping[str, tuple[str, names.Layout]],
    shapes: Mapping[str, tuple[int, ...]],
    config: AlbertConfig,
    path: Path,
) -> None:
    """Refuse kernels that the Model Garden split into another number of heads than the configuration's."""
    shown = {names.heads_of(shapes[key], layout) for key, (_, layout) in known.items()} - {None}
    if shown - {config.num_attention_heads}:
        fact = (
            f"the weights in `{path}` have {', '.join(map(str, sorted(filter(None, shown))))} attention heads, the "
            f"configuration says {config.num_attention_heads}"
        )
        raise CheckpointError(
            "weights-mismatch", fact, "use the configuration that the checkpoint was made with: --config FILE"
        )


def _check_groups(variables: Mapping[str, str], config: AlbertConfig, path: Path) -> None:
    """Refuse several blocks: the Model Garden's converter silently drops all but the first."""
    blocks = config.num_hidden_groups * config.inner_group_num
    if blocks > 1 and any(_TF2_KEY in key for key in variables):
        fact = (
            f"the configuration has {config.num_hidden_groups} groups of {config.inner_group_num} blocks, but `{path}`, as "
            "every checkpoint of the Model Garden, holds one block: its converter keeps the first and drops the others"
        )
        raise CheckpointError("weights-mismatch", fact, "convert the TensorFlow 1 checkpoint that it was made from")


def _google_config(folders: list[Path], named: Path | None, facts: str) -> tuple[AlbertConfig, list[str]]:
    """Read `albert_config*.json`, or else `config.json`, of the first folder with one; `named` wins, `facts` is for the message.

    Google's "gelu" is the tanh approximation, which transformers calls "gelu_new".
    """
    file = named or next(filter(None, map(_config_in, folders)), None)
    if file is None:
        raise CheckpointError(
            "missing-file",
            f"no albert_config.json in {' or '.join(f'`{folder}`' for folder in folders)}. The weights say {facts}; "
            "num_attention_heads, num_hidden_layers and hidden_act leave no trace in them",
            "name the model's configuration with --config FILE; Google's archives of the same size hold it",
        )
    values = load(file, dict[str, Any], "model configuration")
    if values.get("hidden_act") == "gelu":
        values["hidden_act"] = "gelu_new"
    return make_config(values, file)


def _config_in(folder: Path) -> Path | None:
    found = sorted(folder.glob("albert_config*.json")) or sorted(folder.glob("config.json"))
    exact = folder / "albert_config.json"
    if len(found) > 1 and exact not in found:
        fact = f"`{folder}` holds several configurations: {', '.join(file.name for file in found)}"
        raise CheckpointError("missing-file", fact, "name the right one with --config FILE")
    return exact if exact in found else found[0] if found else None
