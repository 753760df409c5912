"""The configuration of a model to convert: found beside its weights or named, read whatever year it is of."""

import dataclasses
from pathlib import Path
from typing import Any

from albertkit.config import FOREIGN_KEYS, AlbertConfig
from albertkit.errors import CheckpointError, ConfigError, DataError
from albertkit.files import read_json

# Google's archives call it albert_config.json, others of the same code albert_config_base.json and the like.
_GOOGLE = "albert_config*.json"
_OURS = "config.json"
# The keys that google-research/albert's AlbertConfig knows, in the order of its released files, then those it ignores.
_GOOGLE_KEYS = (
    "attention_probs_dropout_prob", "hidden_act", "hidden_dropout_prob", "embedding_size", "hidden_size",
    "initializer_range", "intermediate_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers",
    "num_hidden_groups", "net_structure_type", "layers_to_keep", "gap_size", "num_memory_blocks", "inner_group_num",
    "down_scale_factor", "type_vocab_size", "vocab_size",
)  # fmt: skip
_MOST_PASSES = 10_000  # a block is built for each; a broken file may ask for any number
_OWN_KEYS = frozenset(field.name for field in dataclasses.fields(AlbertConfig)) - {"foreign"}


def read_values(file: Path) -> dict[str, Any]:
    """A configuration file's values.

    Raises:
        DataError: not-found or broken-json.
    """
    values = read_json(file, "model configuration")
    if not isinstance(values, dict):
        raise DataError("broken-json", f"`{file}` does not hold a JSON object", "restore it or make it anew")
    return values


def make_config(values: dict[str, Any], file: Path) -> tuple[AlbertConfig, list[str]]:
    """A configuration, and notes of the keys that mean nothing in an ALBERT and are left out.

    Old files of transformers hold the settings of text generation, files of other codes those of their own.

    Raises:
        ConfigError: bad-config, wrong-model.
    """
    if values.get("model_type", "albert") != "albert":
        raise ConfigError(
            "wrong-model", f"`{file}` describes a {values['model_type']} model, not an albert",
            "name the folder of an ALBERT or a BERT",
        )  # fmt: skip
    unknown = [key for key in values if key not in _OWN_KEYS | FOREIGN_KEYS]
    notes = [f"left out of the configuration, nothing in ALBERT reads them: {', '.join(unknown)}"] if unknown else []
    kept = {key: value for key, value in values.items() if key not in unknown}
    config = AlbertConfig.from_dict(kept, source=f"`{file}`")
    if config.num_hidden_layers * config.inner_group_num > _MOST_PASSES:
        raise ConfigError(
            "bad-config",
            f"`{file}` asks for {config.num_hidden_layers:,} layers of {config.inner_group_num:,} blocks", "correct it",
        )  # fmt: skip
    return config, notes


def google_config(folders: list[Path], named: Path | None, facts: str) -> tuple[AlbertConfig, list[str]]:
    """The configuration of a model in TensorFlow's files.

    Google's "gelu" is the tanh approximation, which transformers calls "gelu_new".

    Args:
        folders: Where to look for `albert_config*.json`, or else `config.json`; the first that has one counts.
        named: A file that the user named instead.
        facts: What the weights alone say, for the message.

    Raises:
        CheckpointError: no-config. Also what `read_values` and `make_config` raise.
    """
    file = named or next(filter(None, map(_in_folder, folders)), None)
    if file is None:
        raise CheckpointError(
            "no-config",
            f"no albert_config.json in {' or '.join(f'`{folder}`' for folder in folders)}. The weights say {facts}; "
            "num_attention_heads, num_hidden_layers and hidden_act leave no trace in them",
            "name the model's configuration with --config FILE; Google's archives of the same size hold it",
        )  # fmt: skip
    values = read_values(file)
    if values.get("hidden_act") == "gelu":
        values["hidden_act"] = "gelu_new"
    return make_config(values, file)


def google_values(config: AlbertConfig) -> dict[str, Any]:
    """The content of `albert_config.json`, as google-research/albert reads it."""
    values = {key: value for key, value in config.to_dict().items() if key in _GOOGLE_KEYS}
    if config.hidden_act.startswith("gelu"):
        values["hidden_act"] = "gelu"
    return {key: values[key] for key in _GOOGLE_KEYS if key in values}


def _in_folder(folder: Path) -> Path | None:
    found = sorted(folder.glob(_GOOGLE)) or sorted(folder.glob(_OURS))
    exact = folder / "albert_config.json"
    if len(found) > 1 and exact not in found:
        raise CheckpointError(
            "no-config", f"`{folder}` holds several configurations: {', '.join(file.name for file in found)}",
            "name the right one with --config FILE",
        )  # fmt: skip
    return exact if exact in found else found[0] if found else None
