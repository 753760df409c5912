"""ALBERT's configuration: transformers' field names, the published sizes, exact parameter and FLOP counts."""

import dataclasses
import json
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from albertkit.errors import ConfigError, closest_name, format_list, suggest_name
from albertkit.files import read_typed, write_json
from albertkit.model_paths import local_folder
from albertkit.printable import Notes
from albertkit.validation import Range, Share, list_wrong_values

SHARING = ("all", "attention", "ffn", "none")
ACTIVATIONS = ("gelu_new", "gelu", "relu")
_SAME_ACTIVATIONS = {  # transformers' other names of the same functions
    **dict.fromkeys(
        ("gelu_pytorch_tanh", "gelu_python_tanh", "gelu_accurate", "gelu_fast"), "gelu_new"
    ),
    "gelu_python": "gelu",
}
PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")

# Keys that other programs write into `config.json`. They are kept and written back unchanged; the
# labels of task heads (`id2label`, `label2id`, `num_labels`, `problem_type`) are read through
# properties, the others change nothing here.
FOREIGN_KEYS = frozenset(
    """
    architectures model_type transformers_version torch_dtype dtype output_past down_scale_factor gap_size
    net_structure_type num_memory_blocks layers_to_keep finetuning_task id2label label2id problem_type num_labels
    return_dict use_cache output_attentions output_hidden_states tie_word_embeddings torchscript pruned_heads
    is_decoder is_encoder_decoder add_cross_attention chunk_size_feed_forward _name_or_path use_bfloat16
    position_embedding_type sep_token_id cls_token_id unk_token_id mask_token_id decoder_start_token_id
    tf_legacy_loss summary_type summary_use_proj summary_activation summary_last_dropout summary_first_dropout
    task_specific_params cross_attention_hidden_size tokenizer_class prefix ln_type language name auto_map captioning
    num_visual_tokens sentence_transformers sbert_ce_default_activation_function
    """.split()
)

# Keys that change what a model computes, and the values with which it computes what is computed
# here.
_USUAL_VALUES: dict[str, tuple[Any, ...]] = {
    "hidden_act": (*ACTIVATIONS, *_SAME_ACTIVATIONS),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({},),
    "directionality": ("bidi",),
    "pooler_type": ("first_token_transform",),
}

Count = Annotated[int, Range(1, 10_000_000)]  # beyond it a broken file, not a model
_MAX_BLOCKS = 1000  # with weights of their own: they are built before any weight is looked for
_MAX_LAYERS = 10_000  # computed one after the other; beyond it a broken file, not a model

_CONSTANTS = {"model_type": "albert", "is_encoder_decoder": False}  # other libraries ask

logger = logging.getLogger("albertkit")

_FOREIGN_TYPES: dict[str, Any] = {
    "architectures": list[str],
    "id2label": dict,
    "label2id": dict,
    "num_labels": Count,
}

# hidden_size, num_hidden_layers, num_attention_heads, embedding_size. The feed-forward is always 4
# x hidden_size. base to xxlarge: paper, table 1, with xlarge's 16 heads as in the released
# configuration. small: base with 6 layers.
SIZES = {
    "tiny": (256, 4, 4, 128),
    "small": (768, 6, 12, 128),
    "base": (768, 12, 12, 128),
    "large": (1024, 24, 16, 128),
    "xlarge": (2048, 24, 16, 128),
    "xxlarge": (4096, 12, 64, 128),
}


@dataclass(kw_only=True, unsafe_hash=True)  # as good as frozen: see `__setattr__`
class AlbertConfig:
    """Shape and settings of an ALBERT. Field names and defaults are transformers'; the defaults are therefore xxlarge's.

    Use `AlbertConfig.from_size("base")` for a published size.

    Attributes:
        vocab_size: Number of tokens in the vocabulary.
        embedding_size: Width of the token embeddings (E), projected to `hidden_size` once.
        hidden_size: Width of the encoder (H).
        num_hidden_layers: How often the encoder's blocks are applied (L).
        num_hidden_groups: Sets of weights among which the layers are divided, in order. 1 shares
            one set everywhere.
        num_attention_heads: Attention heads (A); must divide `hidden_size`.
        intermediate_size: Width of the feed-forward layer.
        inner_group_num: Blocks with weights of their own inside each layer.
        hidden_act: "gelu_new" (tanh approximation, Google's "gelu"), "gelu" (erf) or "relu"; or
            another name that transformers has for one of them.
        hidden_dropout_prob: Dropout on embeddings, attention output and feed-forward output.
        attention_probs_dropout_prob: Dropout on attention probabilities.
        max_position_embeddings: Longest sequence, in tokens.
        type_vocab_size: Number of segment ids.
        initializer_range: Standard deviation of the truncated normal that initialises the weights.
        layer_norm_eps: Epsilon inside the square root of every layer norm.
        classifier_dropout_prob: Dropout before a task head.
        pad_token_id: Id of `<pad>`.
        bos_token_id: Id of `[CLS]`.
        eos_token_id: Id of `[SEP]`.
        parameter_sharing: What layers share: "all"; only "attention"; only "ffn"; "none". For all
            but "all", `num_hidden_groups` equals `num_hidden_layers`, so that transformers loads
            the folder and computes the same.
        foreign: Keys of other programs found in a file; kept and written back. Each is also an
            attribute.
    """

    vocab_size: Count = 30000
    embedding_size: Count = 128
    hidden_size: Count = 4096
    num_hidden_layers: Count = 12
    num_hidden_groups: Count = 1
    num_attention_heads: Count = 64
    intermediate_size: Count = 16384
    inner_group_num: Count = 1
    hidden_act: str = "gelu_new"
    hidden_dropout_prob: Share = 0.0
    attention_probs_dropout_prob: Share = 0.0
    max_position_embeddings: Count = 512
    type_vocab_size: Count = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    classifier_dropout_prob: Share = 0.1
    pad_token_id: int = 0
    bos_token_id: int = 2
    eos_token_id: int = 3
    parameter_sharing: str = "all"
    foreign: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse to change a field once it is set (use `replace`); a foreign key may be set, as transformers' Trainer does."""
        if name in FOREIGN_KEYS:
            self.foreign[name] = value
        elif name in self.__dict__ or name not in self.__dataclass_fields__:
            raise dataclasses.FrozenInstanceError(
                f"cannot assign to field {name!r}; use `replace({name}=…)`"
            )
        else:
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:  # asked only for what is no field
        if name in FOREIGN_KEYS and name in self.__dict__.get("foreign", {}):
            return self.foreign[name]
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        raise AttributeError(f"the configuration has no {name!r}")

    def __contains__(self, name: object) -> bool:
        """Return whether there is a field or a foreign key of that name; PEFT asks."""
        return name in self.to_dict()

    def __post_init__(self) -> None:
        _refuse_uncomputable({"hidden_act": self.hidden_act, **self.foreign}, "the configuration")
        problems = self.problems()
        if problems:
            raise ConfigError(
                "bad-value",
                "; ".join(problems),
                "change these values in the configuration",
            )
        self.__dict__["hidden_act"] = _SAME_ACTIVATIONS.get(self.hidden_act, self.hidden_act)
        if self.head_size < 32:
            warnings.warn(
                f"head size {self.head_size} (hidden_size {self.hidden_size} / {self.num_attention_heads} heads) is below "
                "32: attention learns poorly and runs slowly; use fewer heads",
                stacklevel=3,
            )

    def check_length(self, length: int, source: str = "the model") -> None:
        """Refuse sequences that are longer than the model's positions.

        Args:
            length: Tokens.
            source: The model, as the message names it.

        Raises:
            ConfigError: bad-value.
        """
        if length > (max_length := self.max_position_embeddings):
            raise ConfigError(
                "bad-value",
                f"length {length} exceeds the {max_length} positions of {source}",
                f"use --length {max_length}",
            )

    @property
    def head_size(self) -> int:
        """Width of one attention head (D)."""
        return self.hidden_size // self.num_attention_heads

    @property
    def num_labels(self) -> int:
        """Width of a task head: as many as `id2label` names, else the file's `num_labels`, else 2."""
        return len(self.foreign.get("id2label") or ()) or self.foreign.get("num_labels") or 2

    @property
    def id2label(self) -> dict[int, str]:
        """The name of each label; `LABEL_0`, `LABEL_1`, … where the file has none; numbers, booleans and null as texts."""
        labels = self.foreign.get("id2label") or {i: f"LABEL_{i}" for i in range(self.num_labels)}
        numbers = sorted(labels, key=int)  # a file may list them in another order
        return {int(number): str(labels[number]) for number in numbers}

    @property
    def label2id(self) -> dict[str, int]:
        """The number of each label."""
        return {label: number for number, label in self.id2label.items()}

    @property
    def problem_type(self) -> str | None:
        """Kind of labels of a sequence classifier; None until its first labels say so."""
        return self.foreign.get("problem_type") or None

    def problems(self) -> list[str]:
        """List everything that makes this configuration impossible."""
        kinds = _field_types()
        values = {name: value for name, value in self.foreign.items() if not _is_empty_value(value)}
        for name in kinds.keys() & vars(self).keys():
            value = getattr(self, name)
            # transformers writes null for none
            if value is not None or not name.endswith("_token_id"):
                values[name] = value
        problems = list_wrong_values(values, kinds)
        if problems:
            return problems
        if not 0 < self.layer_norm_eps <= 1:  # not for NaN either; 1 in tests of transformers
            problems.append(
                f"layer_norm_eps is {self.layer_norm_eps}, it must be above 0 and at most 1"
            )
        if self.num_hidden_groups * self.inner_group_num > _MAX_BLOCKS:
            blocks = f"{self.num_hidden_groups:,} x {self.inner_group_num:,}"
            problems.append(
                f"num_hidden_groups x inner_group_num is {blocks}, at most {_MAX_BLOCKS:,} are built"
            )
        if self.num_hidden_layers * self.inner_group_num > _MAX_LAYERS:
            layers = f"{self.num_hidden_layers:,} x {self.inner_group_num:,}"
            problems.append(
                f"num_hidden_layers x inner_group_num is {layers}, at most {_MAX_LAYERS:,} are computed"
            )
        if self.hidden_size % self.num_attention_heads:
            divisors = [
                n for n in range(1, self.hidden_size // 32 + 1) if self.hidden_size % n == 0
            ]
            nearest = sorted(divisors, key=lambda n: abs(n - self.num_attention_heads))[:2]
            problems.append(
                f"hidden_size {self.hidden_size} is not divisible by num_attention_heads {self.num_attention_heads}"
                + (f" (use {' or '.join(map(str, sorted(nearest)))})" if nearest else "")
            )
        if self.num_hidden_groups > self.num_hidden_layers:
            problems.append(
                f"num_hidden_groups {self.num_hidden_groups} exceeds num_hidden_layers {self.num_hidden_layers}"
            )
        labels = self.foreign.get("id2label")
        num_labels = self.foreign.get("num_labels")
        if labels and not _are_numbers(labels):
            keys = ", ".join(sorted(map(str, labels))[:5])
            problems.append(
                f"id2label has the keys {keys}, they must be the numbers 0 to {len(labels) - 1}"
            )
        if labels and any(isinstance(label, list | dict) for label in labels.values()):
            problems.append("id2label has a label that is a list or an object, labels are texts")
        if labels and num_labels and num_labels != len(labels):
            problems.append(f"num_labels is {num_labels}, but id2label names {len(labels)}")
        choices = {"parameter_sharing": SHARING, "problem_type": (None, *PROBLEM_TYPES)}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                problems.append(
                    f"{name} is {getattr(self, name)!r}, it must be one of {', '.join(map(str, allowed))}"
                )
        if self.parameter_sharing != "all" and self.num_hidden_groups != self.num_hidden_layers:
            problems.append(
                f"parameter_sharing {self.parameter_sharing!r} needs num_hidden_groups equal to num_hidden_layers "
                f"({self.num_hidden_layers}), it is {self.num_hidden_groups}"
            )
        return problems

    @classmethod
    def from_size(cls, size: str, version: int = 2, **changes: Any) -> "AlbertConfig":
        """Return a published size, or `tiny`/`small` in its manner.

        Args:
            size: tiny, small, base, large, xlarge or xxlarge.
            version: 1 or 2. Version 1 has dropout 0.1 except for xxlarge; version 2 has none
                (paper, section 4.9).
            **changes: Fields to set otherwise, for example `vocab_size=8000`.

        Raises:
            ConfigError: unknown-name, or bad-value for impossible changes.
        """
        if size not in SIZES:
            raise ConfigError(
                "unknown-name",
                f"there is no size `{size}`",
                suggest_name(size, SIZES),
            )
        if version not in (1, 2):
            raise ConfigError(
                "unknown-name",
                f"ALBERT has versions 1 and 2, not {version}",
                "use version=2",
            )
        hidden_size, num_layers, num_heads, embedding_size = SIZES[size]
        dropout = 0.1 if version == 1 and size != "xxlarge" else 0.0
        values: dict[str, Any] = {
            "hidden_size": hidden_size,
            "num_hidden_layers": num_layers,
            "num_attention_heads": num_heads,
            "embedding_size": embedding_size,
            "intermediate_size": 4 * hidden_size,
            "hidden_dropout_prob": dropout,
            "attention_probs_dropout_prob": dropout,
            **changes,
        }
        if values.get("parameter_sharing", "all") != "all":
            values.setdefault("num_hidden_groups", values["num_hidden_layers"])
        return cls.from_dict(values, source="the arguments")

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str = "the configuration") -> "AlbertConfig":
        """Return a configuration from a dictionary; unknown keys are an error.

        Args:
            values: Field names to values.
            source: Where they came from, for messages.

        Raises:
            ConfigError: unknown-name with the nearest known name, or bad-value.
        """
        field_names = {f.name for f in dataclasses.fields(cls)} - {"foreign"}
        unknown = [key for key in values if key not in field_names and key not in FOREIGN_KEYS]
        if unknown:
            raise ConfigError(
                "unknown-name",
                f"`{unknown[0]}` in {source}",
                suggest_name(unknown[0], field_names),
            )
        return cls(
            **{key: value for key, value in values.items() if key in field_names},
            foreign={key: value for key, value in values.items() if key in FOREIGN_KEYS},
        )

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> "AlbertConfig":
        """Read `config.json` (transformers) or `albert_config.json` (Google) of a folder, a run or the hub, or such a file.

        Google's "gelu" is the tanh approximation and is therefore read as "gelu_new"; in a
        `config.json`, which is transformers', it is the erf, with a `model_type` or, as until 2019,
        without one. Keys that nothing in ALBERT reads are left out, with a warning in the log.

        Raises:
            DataError: not-found or bad-file.
            ConfigError: as `make_config_with_notes`.
        """
        path = Path(folder)
        if not path.is_file() and path.suffix != ".json":
            path = local_folder(folder, weights=False)
            google = path / "albert_config.json"
            path = (
                google
                if google.exists() and not (path / "config.json").exists()
                else path / "config.json"
            )
        values = read_typed(path, dict[str, Any], "model configuration")
        if (
            "model_type" not in values
            and path.name != "config.json"
            and values.get("hidden_act") == "gelu"
        ):
            values["hidden_act"] = "gelu_new"
        config, notes = make_config_with_notes(values, path)
        for note in notes:
            _warn_once(f"`{path}`: {note}")
        return config

    def to_dict(self) -> dict[str, Any]:
        """Return every field, with the foreign keys, as `config.json` holds them."""
        fields = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "foreign"
        }
        return {
            "model_type": "albert",
            **{k: v for k, v in self.foreign.items() if k != "model_type"},
            **fields,
        }

    def get_text_config(self, *_: Any, **__: Any) -> "AlbertConfig":
        """Return this configuration: all of the model reads text."""
        return self

    def to_json_string(self) -> str:
        """Return `config.json` as a text; loggers of transformers' Trainer ask for it."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def save_pretrained(self, folder: str | Path) -> None:
        """Write `config.json` into a folder."""
        write_json(Path(folder) / "config.json", self.to_dict())

    def replace(self, **changes: Any) -> "AlbertConfig":
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **{"foreign": dict(self.foreign), **changes})

    def with_changes(self, **changes: Any) -> "AlbertConfig":
        """Return a copy with fields or foreign keys changed; new labels, by number or names, drop the old ones.

        Raises:
            ConfigError: unknown-name with the nearest known name, or bad-value.
        """
        _refuse_uncomputable(changes, "the arguments")
        values = self.to_dict()
        if "num_labels" in changes or "id2label" in changes:
            values = {
                key: value
                for key, value in values.items()
                if key not in ("num_labels", "id2label", "label2id")
            }
        return self.from_dict({**values, **changes}, source="the arguments")

    # --- sizes ------------------------------------------------------------------------------------

    def num_parameters(self, heads: bool = False) -> int:
        """Count the parameters, exactly.

        Args:
            heads: Add the masked-LM and sentence-order heads (the decoder is tied, so only its bias
                counts).

        Returns:
            For base with 30,000 tokens: 11,683,584, or 11,813,810 with heads.
        """
        e = self.embedding_size
        h = self.hidden_size
        i = self.intermediate_size
        v = self.vocab_size
        # Four linear layers and a norm; two and a norm
        attention = 4 * (h * h + h) + 2 * h
        ffn = h * i + i + i * h + h + 2 * h
        attention_sets = 1 if self.parameter_sharing == "attention" else self.num_hidden_groups
        ffn_sets = 1 if self.parameter_sharing == "ffn" else self.num_hidden_groups
        embeddings = (
            (v + self.max_position_embeddings + self.type_vocab_size) * e + 2 * e + e * h + h
        )
        encoder = self.inner_group_num * (attention_sets * attention + ffn_sets * ffn)
        pooler = h * h + h
        head_parameters = (h * e + e + 2 * e + v) + (2 * h + 2) if heads else 0
        return embeddings + encoder + pooler + head_parameters

    def train_flops_per_token(
        self, mean_length: float, predicted_share: float = 0.15, num_layers: int | None = None
    ) -> float:
        """Return the operations of a training step per real token: three times the forward pass, no recomputation.

        In floating point; a multiply-add counts as 2. Attention is bidirectional: 4·s·h a token and
        block.

        Args:
            mean_length: Length of the sequence an average token sits in: sum of squared lengths
                over sum of lengths.
            predicted_share: Share of tokens the masked-LM head is computed for; 0.15 when gathered,
                1 when dense.
            num_layers: Layers that are computed. Default: all.
        """
        h = self.hidden_size
        e = self.embedding_size
        blocks = (num_layers or self.num_hidden_layers) * self.inner_group_num
        linear = blocks * 2 * (4 * h * h + 2 * h * self.intermediate_size)
        attention = blocks * 4 * mean_length * h
        # Once a sequence
        pooler = 2 * h * h / max(mean_length, 1.0)
        head = predicted_share * (2 * h * e + 2 * e * self.vocab_size)
        return 3 * (linear + attention + 2 * e * h + pooler + head)


def make_config_with_notes(config_values: dict[str, Any], file: Path) -> tuple[AlbertConfig, Notes]:
    """Make a configuration of a file's values, and notes of the keys that nothing in ALBERT reads and that are left out.

    Old files of transformers hold the settings of text generation, files of other programs those of
    their own.

    Raises:
        ConfigError: wrong-model for a `model_type` that is not albert; unknown-name for a misspelt
            field; unsupported for a key that changes what is computed; bad-value.
    """
    if config_values.get("model_type") not in (None, "", "albert"):
        raise ConfigError(
            "wrong-model",
            f"`{file}` describes a {config_values['model_type']} model, not an albert",
            "name the folder of an ALBERT; `albertkit convert` makes one of a BERT",
        )
    fields = {f.name for f in dataclasses.fields(AlbertConfig)} - {"foreign"}
    unknown = [key for key in config_values if key not in fields | FOREIGN_KEYS]
    shaping = {
        name
        for name in fields - config_values.keys()
        if not name.endswith(("_prob", "_token_id", "_range"))
    }
    for key in unknown:
        # A misspelt field has its default, which is another shape.
        if field_name := closest_name(key, shaping, 0.85):
            raise ConfigError(
                "unknown-name",
                f"`{key}` in `{file}`",
                f"did you mean `{field_name}`?",
            )
    _refuse_uncomputable(config_values, f"`{file}`")
    known_values = {key: value for key, value in config_values.items() if key not in unknown}
    notes = (
        [f"left out of the configuration, nothing in ALBERT reads them: {format_list(unknown, 40)}"]
        if unknown
        else []
    )
    return AlbertConfig.from_dict(known_values, source=f"`{file}`"), notes


def _is_empty_value(value: Any) -> bool:
    """Return whether a value of a foreign key says nothing; transformers reads such keys as if they were absent."""
    return value is None or value in ("", [], {})


def _are_numbers(labels: Mapping[Any, Any]) -> bool:
    """Return whether keys are the numbers from 0, in any form that `int` reads, as transformers does: " 1", "01"."""
    try:
        return sorted(map(int, labels)) == list(range(len(labels)))
    except (TypeError, ValueError):
        return False


def _refuse_uncomputable(config_values: Mapping[str, Any], source: str) -> None:
    """Refuse values that ask for a computation that is not ALBERT's; another value would give other numbers silently."""
    for key, usual in _USUAL_VALUES.items():
        value = config_values.get(key)
        says_nothing = _is_empty_value(value)
        if key == "hidden_act":  # a field, whose type is checked later
            says_nothing = not isinstance(value, str)
        if says_nothing or value in usual:
            continue
        fact = f"{key} is {value!r} in {source}, which is not computed here"
        usual_values = ", ".join(map(str, usual[:3]))
        raise ConfigError(
            "unsupported",
            fact,
            f"compute this model with the program that trained it; known: {usual_values}",
        )


@cache
def _warn_once(text: str) -> None:
    logger.warning(text)


@cache
def _field_types() -> dict[str, Any]:
    """Return the types of the fields, with their limits, and of the foreign keys that are read."""
    return get_type_hints(AlbertConfig, include_extras=True) | _FOREIGN_TYPES
