"""ALBERT's configuration: transformers' field names, the published sizes, exact parameter and FLOP counts."""

import dataclasses
import json
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from albertkit.errors import ConfigError, DataError, near_miss
from albertkit.files import read_json, write_json
from albertkit.model_folder import local_folder

SHARING = ("all", "attention", "ffn", "none")
ACTIVATIONS = ("gelu_new", "gelu", "relu")
PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")

# Keys that other programs write into `config.json`. They are kept and written back unchanged; the labels of task heads
# (`id2label`, `label2id`, `num_labels`, `problem_type`) are read through properties, the others change nothing here.
FOREIGN_KEYS = frozenset(
    """
    architectures model_type transformers_version torch_dtype dtype output_past down_scale_factor gap_size
    net_structure_type num_memory_blocks layers_to_keep finetuning_task id2label label2id problem_type num_labels
    return_dict use_cache output_attentions output_hidden_states tie_word_embeddings torchscript pruned_heads
    is_decoder is_encoder_decoder add_cross_attention chunk_size_feed_forward _name_or_path use_bfloat16
    position_embedding_type sep_token_id cls_token_id unk_token_id mask_token_id decoder_start_token_id
    tf_legacy_loss summary_type summary_use_proj summary_activation summary_last_dropout summary_first_dropout
    task_specific_params cross_attention_hidden_size tokenizer_class prefix ln_type language name auto_map captioning
    num_visual_tokens sentence_transformers
    """.split()
)

_COUNTS = (
    "vocab_size", "embedding_size", "hidden_size", "num_hidden_layers", "num_hidden_groups", "num_attention_heads",
    "intermediate_size", "inner_group_num", "max_position_embeddings", "type_vocab_size",
)  # fmt: skip
_LARGEST = 10_000_000  # of these: beyond it a broken file, not a model

# hidden_size, num_hidden_layers, num_attention_heads, embedding_size. The feed-forward is always 4 x hidden_size.
# base to xxlarge: paper, table 1, with xlarge's 16 heads as in the released configuration. small: base with 6 layers.
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
    """What an ALBERT is made of. Field names and defaults are transformers'; the defaults are therefore xxlarge's.

    Use `AlbertConfig.from_size("base")` for a published size.

    Attributes:
        vocab_size: Number of pieces.
        embedding_size: Width of the token embeddings (E), projected to `hidden_size` once.
        hidden_size: Width of the encoder (H).
        num_hidden_layers: Passes through the encoder's blocks (L).
        num_hidden_groups: Sets of weights among which the layers are divided, in order. 1 shares one set everywhere.
        num_attention_heads: Attention heads (A); must divide `hidden_size`.
        intermediate_size: Width of the feed-forward layer.
        inner_group_num: Blocks with weights of their own inside each layer.
        hidden_act: "gelu_new" (tanh approximation, Google's "gelu"), "gelu" (erf) or "relu".
        hidden_dropout_prob: Dropout on embeddings, attention output and feed-forward output.
        attention_probs_dropout_prob: Dropout on attention probabilities.
        max_position_embeddings: Longest sequence, in tokens.
        type_vocab_size: Segment ids.
        initializer_range: Standard deviation of the truncated normal the weights start from.
        layer_norm_eps: Inside the square root of every layer norm.
        classifier_dropout_prob: Dropout before a task head.
        pad_token_id: Id of `<pad>`.
        bos_token_id: Id of `[CLS]`.
        eos_token_id: Id of `[SEP]`.
        parameter_sharing: What layers share: "all"; only "attention"; only "ffn"; "none". For all but "all",
            `num_hidden_groups` equals `num_hidden_layers`, so that transformers loads the folder and computes the same.
        foreign: Keys of other programs found in a file; kept and written back. Each is also an attribute.
    """

    vocab_size: int = 30000
    embedding_size: int = 128
    hidden_size: int = 4096
    num_hidden_layers: int = 12
    num_hidden_groups: int = 1
    num_attention_heads: int = 64
    intermediate_size: int = 16384
    inner_group_num: int = 1
    hidden_act: str = "gelu_new"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    classifier_dropout_prob: float = 0.1
    pad_token_id: int = 0
    bos_token_id: int = 2
    eos_token_id: int = 3
    parameter_sharing: str = "all"
    foreign: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __setattr__(self, name: str, value: Any) -> None:
        """Fields never change once they are set (use `replace`); a foreign key may be set, as transformers' Trainer does."""
        if name in FOREIGN_KEYS:
            self.foreign[name] = value
        elif name in self.__dict__ or name not in self.__dataclass_fields__:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}; use `replace({name}=…)`")
        else:
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:  # asked only for what is no field
        if name in FOREIGN_KEYS and name in self.__dict__.get("foreign", {}):
            return self.foreign[name]
        raise AttributeError(f"the configuration has no {name!r}")

    def __post_init__(self) -> None:
        problems = self.problems()
        if problems:
            raise ConfigError("bad-config", "; ".join(problems), "change these values in the configuration")
        if self.head_size < 32:
            warnings.warn(
                f"head size {self.head_size} (hidden_size {self.hidden_size} / {self.num_attention_heads} heads) is below "
                "32: attention learns poorly and runs slowly; use fewer heads",
                stacklevel=3,
            )

    @property
    def head_size(self) -> int:
        """Width of one attention head (D)."""
        return self.hidden_size // self.num_attention_heads

    @property
    def num_labels(self) -> int:
        """Width of a task head: as many as `id2label` names, else the file's `num_labels`, else 2."""
        return len(self.foreign.get("id2label") or ()) or self.foreign.get("num_labels", 2)

    @property
    def id2label(self) -> dict[int, str]:
        """The name of each label; `LABEL_0`, `LABEL_1`, … where the file has none."""
        named = self.foreign.get("id2label") or {i: f"LABEL_{i}" for i in range(self.num_labels)}
        return {int(number): label for number, label in named.items()}

    @property
    def label2id(self) -> dict[str, int]:
        """The number of each label."""
        return {label: number for number, label in self.id2label.items()}

    @property
    def problem_type(self) -> str | None:
        """What a sequence classifier is trained for; None until its first labels say so."""
        return self.foreign.get("problem_type")

    def problems(self) -> list[str]:
        """Everything that makes this configuration impossible; empty if nothing does."""
        found = self._wrong_types()
        for name in _COUNTS:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _LARGEST:
                found.append(f"{name} must be a whole number from 1 to {_LARGEST:,}, it is {value!r}")
        if found:
            return found
        if self.hidden_size % self.num_attention_heads:
            fitting = [n for n in range(1, self.hidden_size // 32 + 1) if self.hidden_size % n == 0]
            nearest = sorted(fitting, key=lambda n: abs(n - self.num_attention_heads))[:2]
            found.append(
                f"hidden_size {self.hidden_size} is not divisible by num_attention_heads {self.num_attention_heads}"
                + (f" (use {' or '.join(map(str, sorted(nearest)))})" if nearest else "")
            )
        if self.num_hidden_groups > self.num_hidden_layers:
            found.append(
                f"num_hidden_groups {self.num_hidden_groups} exceeds num_hidden_layers {self.num_hidden_layers}"
            )
        named, stated = self.foreign.get("id2label"), self.foreign.get("num_labels", self.num_labels)
        if not isinstance(stated, int) or stated < 1:
            found.append(f"num_labels must be a whole number of at least 1, it is {stated!r}")
        elif named and len(named) != stated:
            found.append(f"num_labels is {stated}, but id2label names {len(named)}")
        known = {"hidden_act": ACTIVATIONS, "parameter_sharing": SHARING, "problem_type": (None, *PROBLEM_TYPES)}
        for name, allowed in known.items():
            if getattr(self, name) not in allowed:
                found.append(f"{name} is {getattr(self, name)!r}, it must be one of {', '.join(map(str, allowed))}")
        if self.parameter_sharing != "all" and self.num_hidden_groups != self.num_hidden_layers:
            found.append(
                f"parameter_sharing {self.parameter_sharing!r} needs num_hidden_groups equal to num_hidden_layers "
                f"({self.num_hidden_layers}), it is {self.num_hidden_groups}"
            )
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob"):
            if not 0 <= getattr(self, name) < 1:
                found.append(f"{name} must be at least 0 and below 1, it is {getattr(self, name)}")
        if self.foreign.get("position_embedding_type", "absolute") != "absolute":
            found.append(
                f"position_embedding_type {self.foreign['position_embedding_type']!r} is not supported (absolute)"
            )
        return found

    def _wrong_types(self) -> list[str]:
        """Values other than the sizes that are no numbers, texts or names of labels; a file may say anything."""
        found = []
        for field_ in dataclasses.fields(self):
            value, default = getattr(self, field_.name), field_.default
            fits = isinstance(value, int | float if isinstance(default, float) else type(default))
            fits = fits or (value is None and field_.name.endswith("_token_id"))  # transformers writes null for none
            if field_.name not in (*_COUNTS, "foreign") and (isinstance(value, bool) or not fits):
                found.append(f"{field_.name} is {value!r}, it must be like {default!r}")
        named = self.foreign.get("architectures")
        if named is not None and not (isinstance(named, list) and all(isinstance(name, str) for name in named)):
            found.append(f"architectures is {named!r}, it must list the names of classes")
        for name in ("id2label", "label2id"):
            if not isinstance(self.foreign.get(name) or {}, dict):
                found.append(f"{name} is {self.foreign[name]!r}, it must name the labels")
        return found

    @classmethod
    def from_size(cls, size: str, version: int = 2, **changes: Any) -> "AlbertConfig":
        """A published size, or `tiny`/`small` in its manner.

        Args:
            size: tiny, small, base, large, xlarge or xxlarge.
            version: 1 or 2. Version 1 has dropout 0.1 except for xxlarge; version 2 has none (paper, section 4.9).
            **changes: Fields to set otherwise, for example `vocab_size=8000`.

        Raises:
            ConfigError: bad-size, or bad-config for impossible changes.
        """
        if size not in SIZES:
            raise ConfigError("bad-size", f"there is no size `{size}`", near_miss(size, SIZES))
        if version not in (1, 2):
            raise ConfigError("bad-size", f"ALBERT has versions 1 and 2, not {version}", "use version=2")
        hidden_size, num_layers, num_heads, embedding_size = SIZES[size]
        dropout = 0.1 if version == 1 and size != "xxlarge" else 0.0
        values: dict[str, Any] = dict(
            hidden_size=hidden_size, num_hidden_layers=num_layers, num_attention_heads=num_heads,
            embedding_size=embedding_size, intermediate_size=4 * hidden_size,
            hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
        )  # fmt: skip
        values.update(changes)
        if values.get("parameter_sharing", "all") != "all":
            values.setdefault("num_hidden_groups", values["num_hidden_layers"])
        return cls.from_dict(values, source="the arguments")

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str = "the configuration") -> "AlbertConfig":
        """A configuration from a dictionary; unknown keys are an error.

        Args:
            values: Field names to values.
            source: Where they came from, for messages.

        Raises:
            ConfigError: unknown-key with the nearest known name, or bad-config.
        """
        own = {f.name for f in dataclasses.fields(cls)} - {"foreign"}
        unknown = [key for key in values if key not in own and key not in FOREIGN_KEYS]
        if unknown:
            raise ConfigError("unknown-key", f"`{unknown[0]}` in {source}", near_miss(unknown[0], own))
        return cls(
            **{key: value for key, value in values.items() if key in own},
            foreign={key: value for key, value in values.items() if key in FOREIGN_KEYS},
        )

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> "AlbertConfig":
        """Read `config.json` (transformers) or `albert_config.json` (Google) of a folder, a run or the hub, or such a file.

        Google's "gelu" is the tanh approximation and is therefore read as "gelu_new"; in a `config.json`, which is
        transformers', it is the erf, with a `model_type` or, as until 2019, without one.

        Raises:
            DataError: not-found or broken-json.
            ConfigError: unknown-key, bad-config, or wrong-model for a `model_type` that is not albert.
        """
        path = Path(folder)
        if not path.is_file() and path.suffix != ".json":
            path = local_folder(folder, weights=False)
            path = next(
                (p for n in ("config.json", "albert_config.json") if (p := path / n).exists()), path / "config.json"
            )
        values = read_json(path, "model configuration")
        if not isinstance(values, dict):
            raise DataError("broken-json", f"`{path}` holds no names and values", "restore it or make it anew")
        if values.get("model_type", "albert") != "albert":
            raise ConfigError(
                "wrong-model", f"`{path}` describes a {values['model_type']} model, not an albert",
                "name the folder of an ALBERT; a BERT is made one by `albertkit convert`",
            )  # fmt: skip
        if "model_type" not in values and path.name != "config.json" and values.get("hidden_act") == "gelu":
            values["hidden_act"] = "gelu_new"
        return cls.from_dict(values, source=f"`{path}`")

    def to_dict(self) -> dict[str, Any]:
        """Every field, with the foreign keys, as `config.json` holds them."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "foreign"}
        return {"model_type": "albert", **{k: v for k, v in self.foreign.items() if k != "model_type"}, **own}

    def to_json_string(self) -> str:
        """`config.json` as a text; loggers of transformers' Trainer ask for it."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def save_pretrained(self, folder: str | Path) -> None:
        """Write `config.json` into a folder."""
        write_json(Path(folder) / "config.json", self.to_dict())

    def replace(self, **changes: Any) -> "AlbertConfig":
        """A copy with some fields changed."""
        return dataclasses.replace(self, **{"foreign": dict(self.foreign), **changes})

    def with_changes(self, **changes: Any) -> "AlbertConfig":
        """A copy with fields or foreign keys changed; a new number of labels drops the old names, new names the old number.

        Raises:
            ConfigError: unknown-key with the nearest known name, or bad-config.
        """
        kept = self.to_dict()
        if "num_labels" in changes or "id2label" in changes:
            kept = {key: value for key, value in kept.items() if key not in ("num_labels", "id2label", "label2id")}
        return self.from_dict({**kept, **changes}, source="the arguments")

    # --- sizes --------------------------------------------------------------------------------------------------------

    def num_parameters(self, heads: bool = False) -> int:
        """Number of parameters, exactly.

        Args:
            heads: Add the masked-LM and sentence-order heads (the decoder is tied, so only its bias counts).

        Returns:
            For base with 30,000 pieces: 11,683,584, or 11,813,810 with heads.
        """
        e, h, i, v = self.embedding_size, self.hidden_size, self.intermediate_size, self.vocab_size
        attention = 4 * (h * h + h) + 2 * h
        ffn = h * i + i + i * h + h + 2 * h
        attention_sets = ffn_sets = self.num_hidden_groups
        if self.parameter_sharing == "attention":
            attention_sets = 1
        if self.parameter_sharing == "ffn":
            ffn_sets = 1
        embeddings = (v + self.max_position_embeddings + self.type_vocab_size) * e + 2 * e + e * h + h
        encoder = self.inner_group_num * (attention_sets * attention + ffn_sets * ffn)
        pooler = h * h + h
        head_parameters = (h * e + e + 2 * e + v) + (2 * h + 2) if heads else 0
        return embeddings + encoder + pooler + head_parameters

    def train_flops_per_token(
        self, mean_length: float, predicted_share: float = 0.15, passes: int | None = None
    ) -> float:
        """Floating-point operations of one training step per real token: three times the forward pass, no recomputation.

        A multiply-add counts as 2. Attention is bidirectional: 4·s·h a token and block.

        Args:
            mean_length: Length of the sequence an average token sits in: sum of squared lengths over sum of lengths.
            predicted_share: Share of tokens the masked-LM head is computed for; 0.15 when gathered, 1 when dense.
            passes: Passes made. Default: all.
        """
        h, e = self.hidden_size, self.embedding_size
        blocks = (passes or self.num_hidden_layers) * self.inner_group_num
        linear = blocks * 2 * (4 * h * h + 2 * h * self.intermediate_size)
        attention = blocks * 4 * mean_length * h
        pooler = 2 * h * h / max(mean_length, 1.0)
        head = predicted_share * (2 * h * e + 2 * e * self.vocab_size)
        return 3 * (linear + attention + 2 * e * h + pooler + head)
