"""Configuration of the text model in SwinBERT's arguments, from its scripts, any Namespace, or a dictionary."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from albertkit.errors import ConfigError
from albertkit.files import read_json
from albertkit.model.folder import PROVENANCE

ARGS = "log/args.json"  # in the folder above the checkpoints, written by SwinBERT's training
SWINBERT_ARGS = "swinbert_args"  # all of it, in the provenance of a captioner that comes from SwinBERT
STRUCTURE = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")  # -1: the configuration's
Initialisation = Literal["auto", "pretrained", "scratch"]


@dataclass(frozen=True, kw_only=True)
class ModelArguments:
    """SwinBERT's names and defaults, and `init`.

    Attributes:
        model_name_or_path: A folder, or `org/name` of the hub.
        config_name: Folder or file of the configuration. Default: in the model's folder.
        tokenizer_name: Folder of the tokenizer. Default: the model's folder.
        do_lower_case: Of a `vocab.txt` that nothing beside it says it of.
        drop_out: Dropout of hidden states.
        tie_weights, freeze_embedding, label_smoothing, drop_worst_ratio, drop_worst_after: As in `CaptionConfig`.
        img_feature_dim: Width of a visual token; concerns the projection alone.
        num_hidden_layers, hidden_size, num_attention_heads, intermediate_size: -1 keeps the configuration's.
        init: Whether weights are taken from the folder: auto takes them if there are any.
    """

    model_name_or_path: str = ""
    config_name: str = ""
    tokenizer_name: str = ""
    do_lower_case: bool = False
    drop_out: float = 0.1
    tie_weights: bool = False
    freeze_embedding: bool = False
    label_smoothing: float = 0.0
    drop_worst_ratio: float = 0.0
    drop_worst_after: int = 0
    img_feature_dim: int = 512
    num_hidden_layers: int = -1
    hidden_size: int = -1
    num_attention_heads: int = -1
    intermediate_size: int = -1
    init: Initialisation = "auto"

    @classmethod
    def of(cls, args: Any) -> "ModelArguments":
        """From a Namespace, an EasyDict or a dictionary; what is not there, or None, has its default."""
        given = args if isinstance(args, Mapping) else vars(args)
        values, faults = {}, []
        for field in fields(cls):
            value = given.get(field.name)
            if value is None:
                continue
            kind = type(field.default)
            fits = isinstance(value, int | float if kind is float else kind)
            if not fits or (isinstance(value, bool) and kind is not bool):
                faults.append(f"{field.name} is {value!r}, it must be like {field.default!r}")
            values[field.name] = value
        if values.get("init", "auto") not in get_args(Initialisation):
            faults.append(f"init is {values['init']!r}, known: {', '.join(get_args(Initialisation))}")
        if not values.get("model_name_or_path"):
            faults.append("model_name_or_path is not given")
        if faults:
            raise ConfigError("bad-value", "; ".join(faults), "correct these arguments, or the file given as --config")
        return cls(**values)

    @property
    def structure(self) -> dict[str, int]:
        """Return the fields of a configuration that are asked to be otherwise."""
        return {name: getattr(self, name) for name in STRUCTURE if getattr(self, name) > 0}


def read_arguments(file: Path) -> dict[str, Any]:
    """SwinBERT's arguments of the training that left a file of weights, empty if they are not kept."""
    for folder in (file.parent.parent, file.parent):
        if (folder / ARGS).is_file():
            values = read_json(folder / ARGS, "SwinBERT's arguments")
            return values if isinstance(values, dict) else {}
    return {}


def kept_arguments(folder: Path) -> dict[str, Any]:
    """SwinBERT's arguments of a captioner's folder that was converted from a run of it, or trained from one; else empty."""
    values = read_json(folder / PROVENANCE, "provenance") if (folder / PROVENANCE).is_file() else None
    kept = values.get(SWINBERT_ARGS) if isinstance(values, dict) else None
    return kept if isinstance(kept, dict) else {}
