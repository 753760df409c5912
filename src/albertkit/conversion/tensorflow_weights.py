"""Weights in TensorFlow's names: checkpoints of versions 1 and 2, SavedModels, TF-Hub modules, and npz files of ours."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from albertkit.config import AlbertConfig, make_config_with_notes
from albertkit.conversion import names
from albertkit.conversion.classes import SourceModel, identity_projection
from albertkit.conversion.tensorflow.bundle import TensorBundle, Variable, open_saved_model
from albertkit.errors import CheckpointError, format_list
from albertkit.files import read_typed
from albertkit.model.files import StateDict
from albertkit.printable import Notes

PREFIX = "bert_model.ckpt"  # as in Google's archives

_BLOCK = "albert.encoder.albert_layer_groups.0.albert_layers.0."
_WORDS = "albert.embeddings.word_embeddings.weight"
# Keras counts the layers with weights: `layer_with_weights-0` and so on. Of each, parameters and
# their paths in the layer.
_DENSE, _NORM = {"weight": "kernel", "bias": "bias"}, {"weight": "gamma", "bias": "beta"}
_LAYERS: tuple[dict[str, str], ...] = (
    {_WORDS: "embeddings"},
    {"albert.embeddings.position_embeddings.weight": "embeddings"},
    {"albert.embeddings.token_type_embeddings.weight": "embeddings"},
    {f"albert.embeddings.LayerNorm.{part}": variable for part, variable in _NORM.items()},
    # Absent where E = H
    {f"{names.MAPPING_IN}{part}": variable for part, variable in _DENSE.items()},
    {
        f"{_BLOCK}{ours}.{part}": f"{theirs}/{variable}"
        for ours, theirs, variables in (
            ("attention.query", "_attention_layer/_query_dense", _DENSE),
            ("attention.key", "_attention_layer/_key_dense", _DENSE),
            ("attention.value", "_attention_layer/_value_dense", _DENSE),
            ("attention.dense", "_attention_layer/_output_dense", _DENSE),
            ("ffn", "_intermediate_dense", _DENSE),
            ("ffn_output", "_output_dense", _DENSE),
            ("attention.LayerNorm", "_attention_layer_norm", _NORM),
            ("full_layer_layer_norm", "_output_layer_norm", _NORM),
        )
        for part, variable in variables.items()
    },
    {f"albert.pooler.{part}": variable for part, variable in _DENSE.items()},
)
_MASKED_LM = {
    "predictions.dense.weight": ("dense", "kernel"),
    "predictions.dense.bias": ("dense", "bias"),
    "predictions.LayerNorm.weight": ("layer_norm", "gamma"),
    "predictions.LayerNorm.bias": ("layer_norm", "beta"),
    "predictions.bias": ("output_bias/bias",),
}


def check_one_block(config: AlbertConfig) -> None:
    """Make sure that the Model Garden's encoder, which has one block, can hold a model."""
    if config.num_hidden_groups * config.inner_group_num > 1:
        raise CheckpointError(
            "not-expressible",
            f"the model has {config.num_hidden_groups} groups of {config.inner_group_num} blocks, the Model Garden's encoder "
            "has one block",
            "write TensorFlow 1's checkpoint: --to tf1",
        )


def unknown_heads(tensors: StateDict) -> list[str]:
    """Return the parameters that the Model Garden's checkpoints have no place for: every head but that of the masked LM."""
    supported = {name for layer in _LAYERS for name in layer} | _MASKED_LM.keys()
    return [name for name in tensors if name not in supported]


def variables(
    tensors: StateDict, config: AlbertConfig
) -> tuple[list[Variable], dict[str, NDArray[Any]]]:
    """Return the variables of a checkpoint, and the values of each by its key."""
    has_projection = config.embedding_size != config.hidden_size
    layers = []
    for layer in _LAYERS:
        is_written = has_projection or f"{names.MAPPING_IN}weight" not in layer
        if is_written and any(name in tensors for name in layer):
            layers.append(layer)
    is_pretrainer = any(name in tensors for name in _MASKED_LM)
    # Of each parameter, the one that makes its key first
    paths: dict[str, list[tuple[str, ...]]] = {}
    for number, layer in enumerate(layers):
        for name, layer_path in layer.items():
            if name in tensors:
                path = (f"layer_with_weights-{number}", *layer_path.split("/"))
                paths[name] = [("encoder", *path)]
                if is_pretrainer:
                    paths[name].append(("model", "encoder_network", *path))
    if is_pretrainer:
        # The head stores the table of words; that of the encoder is a second path to it. With two
        # variables TensorFlow itself fails, because a node of the graph binds one object.
        table = ("masked_lm", "embedding_table")
        paths[_WORDS] = [table, *paths[_WORDS], ("model", *table)]
        for name, head_path in _MASKED_LM.items():
            if name in tensors:
                # An attribute, and the name of its weight.
                suffixes = [head_path, ("bias",)] if name == "predictions.bias" else [head_path]
                parents = (("masked_lm",), ("model", "masked_lm"))
                paths[name] = [(*parent, *suffix) for parent in parents for suffix in suffixes]
    graph_variables = []
    values = {}
    for name, (key_path, *aliases) in paths.items():
        row = names.row_of_parameter(name)
        variable = Variable(key_path, row.tf2[0], tuple(aliases))
        graph_variables.append(variable)
        values[variable.key] = names.to_tf2(
            tensors[name].numpy(),
            row.layout,
            config.num_attention_heads,
        )
    # `tf.train.Checkpoint` counts its saves under this name.
    counter = Variable(("save_counter",), "save_counter", ())
    return [*graph_variables, counter], {**values, counter.key: np.array(1, np.int64)}


NPZ = "model.npz"  # what a conversion to npz writes
_TF2_KEY = "/.ATTRIBUTES/"  # in every key of an object-graph checkpoint

# What the shapes show of a configuration, for a user who has none: key, parameter, dimension.
_FACTS = (
    ("vocab_size", "albert.embeddings.word_embeddings.weight", 0),
    ("embedding_size", "albert.embeddings.word_embeddings.weight", 1),
    ("max_position_embeddings", "albert.embeddings.position_embeddings.weight", 0),
    ("type_vocab_size", "albert.embeddings.token_type_embeddings.weight", 0),
    ("hidden_size", "albert.pooler.bias", 0),
    ("intermediate_size", "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.bias", 0),
)


def read_checkpoint(prefix: str, config: Path | None) -> SourceModel:
    """Read a checkpoint of TensorFlow 1 or 2, given by its prefix."""
    return _read_bundle(TensorBundle.open(prefix), [Path(prefix).parent], config, "checkpoint")


@contextmanager
def read_saved_model(path: Path, config: Path | None) -> Iterator[SourceModel]:
    """Read a SavedModel, TF-Hub module or checkpoint, as a folder or packed."""
    with open_saved_model(path) as (bundle, assets):
        folder = Path(bundle.prefix).parent
        saved_model = folder.name == "variables"
        folder = folder.parent if saved_model else folder
        # The configuration of an archive may lie in it or beside it.
        folders = [folder] if path.is_dir() else [folder, path.parent]
        source = _read_bundle(
            bundle,
            folders,
            config,
            "SavedModel" if saved_model else "checkpoint",
        )
        if any(name.endswith(".model") or name.startswith("vocab") for name in assets):
            source.folder = folder / "assets"
        yield source


def read_npz(file: Path, config: Path | None) -> SourceModel:
    """Read an npz file with TensorFlow 1's names, as `--to npz` writes it."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            variables = {name: arrays[name] for name in arrays.files}
    except (PermissionError, MemoryError):
        raise
    except Exception as error:  # of zip, zlib or the headers: not declared
        raise CheckpointError(
            "corrupt",
            f"`{file}` cannot be read: {error}",
            "copy it again",
        ) from None
    shapes = {name: values.shape for name, values in variables.items()}
    return _name_variables(
        {name: name for name in variables},
        shapes,
        variables.__getitem__,
        file,
        [file.parent],
        config,
        "npz of TensorFlow 1",
    )


def _read_bundle(
    bundle: TensorBundle,
    folders: list[Path],
    config: Path | None,
    container: str,
) -> SourceModel:
    version = 2 if any(_TF2_KEY in key for key in bundle.names) else 1
    kind = (
        f"{container} of TensorFlow {version}"
        if container == "SavedModel"
        else f"TensorFlow {version} checkpoint"
    )
    shapes = {key: bundle.shape(key) for key in bundle.names}
    return _name_variables(
        bundle.variable_names,
        shapes,
        bundle.read,
        Path(bundle.prefix),
        folders,
        config,
        kind,
    )


def _name_variables(
    variables: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    read_values: Callable[[str], NDArray[Any]],
    path: Path,
    folders: list[Path],
    config_file: Path | None,
    kind: str,
) -> SourceModel:
    """Bring the variables of a file under transformers' names; `variables` maps its keys to the names of variables."""
    parameters: dict[str, tuple[str, names.TensorLayout]] = {}
    unknown = []
    skipped = Counter[str]()
    for key, variable in variables.items():
        slot = names.optimizer_slot(key)
        parameter = None if slot else names.parameter_name_and_layout(variable)
        if slot:
            skipped[slot] += 1
        elif parameter is None:
            unknown.append(variable)
        else:
            parameters[key] = parameter
    if not parameters:
        raise CheckpointError(
            "wrong-kind",
            f"`{path}` holds no variable of an ALBERT (there: {format_list(sorted(unknown)) or 'none'})",
            "give a checkpoint of google-research/albert or of the TensorFlow Model Garden",
        )
    by_name = {name: shapes[key] for key, (name, _) in parameters.items()}
    facts = []
    for key, name, dimension in _FACTS:
        shape = by_name.get(name, ())
        if len(shape) > dimension:
            facts.append(f"{key} {shape[dimension]}")
    config, notes = _google_config(folders, config_file, ", ".join(facts) or "nothing of it")
    _check_shape(variables, parameters, shapes, config, path)
    source = SourceModel(
        kind,
        config,
        {},
        folders[0],
        unknown=sorted(unknown),
        skipped=skipped,
        notes=notes,
    )
    for key, (name, layout) in parameters.items():
        if not names.has_rank_of_layout(shapes[key], layout):
            raise CheckpointError(
                "weights-mismatch",
                f"`{variables[key]}` in `{path}` has shape {list(shapes[key])}",
                "copy the checkpoint again; is it an ALBERT's?",
            )
        values = read_values(key)
        if values.dtype.kind not in "fiub":
            raise CheckpointError(
                "unsupported",
                f"`{variables[key]}` in `{path}` holds no numbers",
                "copy the checkpoint again",
            )
        source.add_tensor(
            name,
            torch.from_numpy(np.array(names.from_tensorflow(values, layout), order="C")),
            variables[key],
        )
    width = by_name.get("albert.embeddings.word_embeddings.weight", (0,))[-1]
    if config.embedding_size == config.hidden_size == width and not any(
        name.startswith(names.MAPPING_IN) for name in by_name
    ):
        source.tensors |= identity_projection(config.hidden_size)
        source.notes.append(
            "E = H: the source has no projection; an identity matrix is written, which changes no bit"
        )
    return source


def _check_shape(
    variables: Mapping[str, str],
    parameters: Mapping[str, tuple[str, names.TensorLayout]],
    shapes: Mapping[str, tuple[int, ...]],
    config: AlbertConfig,
    path: Path,
) -> None:
    """Refuse other heads and blocks than the Model Garden's files have: its converter drops all blocks but the first."""
    head_counts = {
        names.num_heads_from_shape(shapes[key], layout) for key, (_, layout) in parameters.items()
    } - {None}
    if head_counts - {config.num_attention_heads}:
        raise CheckpointError(
            "weights-mismatch",
            f"the weights in `{path}` have {', '.join(map(str, sorted(filter(None, head_counts))))} attention heads, the "
            f"configuration says {config.num_attention_heads}",
            "use the configuration that the checkpoint was made with: --config FILE",
        )
    blocks = config.num_hidden_groups * config.inner_group_num
    if blocks > 1 and any(_TF2_KEY in key for key in variables):
        raise CheckpointError(
            "weights-mismatch",
            f"the configuration has {config.num_hidden_groups} groups of {config.inner_group_num} blocks, but `{path}`, as "
            "every checkpoint of the Model Garden, holds one block: its converter keeps the first and drops the others",
            "convert the TensorFlow 1 checkpoint that it was made from",
        )


def _google_config(
    folders: list[Path],
    config_file: Path | None,
    facts: str,
) -> tuple[AlbertConfig, Notes]:
    """Read `albert_config*.json`, or else `config.json`, of the first folder with one; `config_file` comes first.

    Google's "gelu" is the tanh approximation, which transformers calls "gelu_new".
    """
    file = config_file
    for folder in folders:
        if file is not None:
            break
        files = sorted(folder.glob("albert_config*.json")) or sorted(folder.glob("config.json"))
        exact = folder / "albert_config.json"
        if len(files) > 1 and exact not in files:
            raise CheckpointError(
                "missing-file",
                f"`{folder}` holds several configurations: {', '.join(file.name for file in files)}",
                "name the right one with --config FILE",
            )
        if files:
            file = exact if exact in files else files[0]
    if file is None:
        raise CheckpointError(
            "missing-file",
            f"no albert_config.json in {' or '.join(f'`{folder}`' for folder in folders)}. The weights say {facts}; "
            "num_attention_heads, num_hidden_layers and hidden_act leave no trace in them",
            "name the model's configuration with --config FILE; Google's archives of the same size hold it",
        )
    values = read_typed(file, dict[str, Any], "model configuration")
    if values.get("hidden_act") == "gelu":
        values["hidden_act"] = "gelu_new"
    return make_config_with_notes(values, file)
