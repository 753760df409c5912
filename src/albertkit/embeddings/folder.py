"""Folders of sentence encoders, laid out as sentence-transformers lays them out; read strictly.

A checkpoint folder, beside it `modules.json` (what follows what), `1_Pooling/config.json`, perhaps
`2_Dense/` and `Normalize`, `sentence_bert_config.json` (longest sequence) and
`config_sentence_transformers.json` (prompts). Files of 2019 to 2026 are read; what is written,
sentence-transformers 2 and later read.
"""

import logging
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import functional

from albertkit.conversion.classes import read_model_tokenizer
from albertkit.engines.onnx import REPORT, OnnxModel, is_onnx_folder, load_onnx
from albertkit.errors import CheckpointError, ConfigError, suggest_name
from albertkit.files import read_json, read_typed, sync_folder, write_json
from albertkit.folder_facts import FolderFacts
from albertkit.model import AlbertModel, PackedBatch
from albertkit.model.files import read_tensors, write_tensors
from albertkit.model.pretrained import HARMLESS
from albertkit.model_paths import local_folder, model_of_run_or_folder
from albertkit.tokenizer import AlbertTokenizer
from albertkit.validation import Positive, Range, is_of_type

SIMILARITIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    # Rounding leads beyond 1.
    "cosine": lambda a, b: (F.normalize(a, dim=1) @ F.normalize(b, dim=1).T).clamp(-1, 1),
    "dot": lambda a, b: a @ b.T,
    "euclidean": lambda a, b: -torch.cdist(a, b, p=2.0),
    "manhattan": lambda a, b: -torch.cdist(a, b, p=1.0),
}


def similarity_matrix(a: np.ndarray, b: np.ndarray, name: str = "cosine") -> np.ndarray:
    """Return the similarity of every vector with every other.

    Args:
        a: [A, D], or [D].
        b: [B, D], or [D].
        name: "cosine" (0 where a vector is all zeros), "dot", or the negative distance:
            "euclidean", "manhattan".

    Returns:
        fp32 [A, B].

    Raises:
        ConfigError: bad-value, unknown-name.
    """
    if name not in SIMILARITIES:
        raise ConfigError(
            "unknown-name",
            f"there is no similarity `{name}`",
            suggest_name(name, SIMILARITIES),
        )
    if np.shape(a)[-1:] != np.shape(b)[-1:] or np.ndim(a) > 2 or np.ndim(b) > 2:
        raise ConfigError(
            "bad-value",
            f"vectors of the shapes {tuple(np.shape(a))} and {tuple(np.shape(b))} cannot be compared",
            "give vectors of one model, [D] or [N, D]",
        )
    first, second = (
        torch.as_tensor(np.atleast_2d(vectors), dtype=torch.float32) for vectors in (a, b)
    )
    return SIMILARITIES[name](first, second).numpy()


Pooling = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
Poolings = Pooling | tuple[Pooling, ...]  # the vectors of several are put one after the other

ACTIVATIONS: dict[str, type[nn.Module]] = {"identity": nn.Identity, "tanh": nn.Tanh}


def check_pooling(pooling: str | tuple[str, ...]) -> tuple[Pooling, ...]:
    """Return the poolings, one or several, if all of them are known."""
    names = tuple(pooling) if isinstance(pooling, tuple | list) else (pooling,)
    for name in names or ("",):
        if name not in POOLINGS:
            raise ConfigError(
                "unknown-name",
                f"there is no pooling `{name}`",
                f"known: {', '.join(POOLINGS)}",
            )
    return names  # type: ignore[return-value]


def pooled_positions(
    batch: PackedBatch,
    pooling: Poolings,
    prompt_tokens: int = 0,
) -> Tensor | None:
    """Return the one token of each text that a pooling reads, int64 [N] into the T tokens; None if it reads all.

    The last layer of the encoder computes no other. Arguments as `pool_hidden_states`.
    """
    if pooling == "cls":
        return batch.starts + torch.where(batch.offsets.diff() > prompt_tokens, prompt_tokens, 0)
    return batch.offsets[1:] - 1 if pooling == "lasttoken" else None


def pool_hidden_states(
    hidden: Tensor,
    batch: PackedBatch,
    pooling: Poolings,
    prompt_tokens: int = 0,
) -> Tensor:
    """Return one vector a text.

    Args:
        hidden: [T, H] in any dtype; the arithmetic is fp32.
        batch: Whose tokens they are.
        pooling: cls, the first token; max of each component; mean; mean_sqrt_len_tokens, the sum
            over the square root of n; weightedmean, weights 1 to n along the text; lasttoken. Or
            several.
        prompt_tokens: So many tokens at the start of every text are left out. A text of no others
            becomes zeros; its `cls` and `lasttoken` are those that it has.

    Returns:
        fp32 [N, H], or [N, P x H] of P poolings.

    Source: sentence-transformers `Pooling`.
    """
    hidden = hidden.float()
    lengths = batch.offsets.diff()
    tokens = torch.arange(len(hidden), device=hidden.device)
    positions = tokens - batch.starts.repeat_interleave(lengths, output_size=len(hidden))
    pooled_lengths = (lengths - prompt_tokens).clamp(min=0)
    if prompt_tokens:
        is_pooled = positions >= prompt_tokens
        tokens = tokens[is_pooled]
        positions = positions[is_pooled]
    # Each text is a bag of rows of `hidden`: 2 ms for [8192, 768] where `segment_reduce` takes 6,
    # zeros for no row.
    starts = pooled_lengths.cumsum(0) - pooled_lengths
    pool = partial(functional.embedding_bag, tokens, hidden, starts)
    vectors = []
    for name in check_pooling(pooling):
        single_tokens = pooled_positions(batch, name, prompt_tokens)
        if single_tokens is not None:
            vectors.append(hidden.index_select(0, single_tokens))
        elif name == "weightedmean":
            left_out = lengths - pooled_lengths
            # 1 + 2 + … + n, less the weights of the tokens that are left out.
            totals = (lengths * (lengths + 1) - left_out * (left_out + 1)) / 2
            sums = pool(mode="sum", per_sample_weights=(positions + 1).float())
            vectors.append(sums / totals.clamp(min=1.0)[:, None])
        elif name == "mean_sqrt_len_tokens":
            vectors.append(pool(mode="sum") / pooled_lengths.clamp(min=1).sqrt()[:, None])
        else:
            vectors.append(pool(mode=name))
    return vectors[0] if len(vectors) == 1 else torch.cat(vectors, dim=1)


class Projection(nn.Module):
    """Puts pooled vectors through a linear layer and an activation of `ACTIVATIONS`: sentence-transformers' `Dense`."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        activation: str = "tanh",
        bias: bool = True,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ConfigError(
                "unsupported",
                f"there is no activation `{activation}`",
                f"known: {', '.join(ACTIVATIONS)}",
            )
        self.linear = nn.Linear(inputs, outputs, bias=bias)
        self.activation_name = activation
        self.activation = ACTIVATIONS[activation]()

    def forward(self, vectors: Tensor) -> Tensor:
        """Return vectors [N, outputs] of vectors [N, inputs]."""
        return self.activation(self.linear(vectors))


logger = logging.getLogger("albertkit")

MODULES = "modules.json"
SENTENCE_EMBEDDING = "sentence_embedding"  # an output of an exported graph that holds all modules
# A setting: the name of a special token in a text is "text", or "tokens"
SPECIAL_NAMES = "special_names"
_LENGTHS = "sentence_bert_config.json"
# How a model is loaded, not what it computes.
_LOADING_ARGUMENTS = frozenset("dtype torch_dtype cache_dir revision use_fast".split())
_READ_LENGTHS = ("max_seq_length", "do_lower_case", "model_name_or_path", "unpad_inputs")
# By `transformer_task`, the outputs that are computed here: by sentence-transformers' name and by
# transformers'.
_OUTPUTS = {
    "feature-extraction": ("token_embeddings", "last_hidden_state"),
    "sequence-classification": ("scores", "logits"),
}
_SETTINGS = "config_sentence_transformers.json"
_TYPES = "sentence_transformers.models"
_ORDER = ("Transformer", "Pooling", "Dense", "Normalize")
_ACTIVATIONS = {
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.linear.Identity": "identity",
}
# Of the older layout, in the order in which its vectors are put one after the other.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass
class EncoderParts:
    """Parts of an encoder, read from a folder; the fields are the arguments of `SentenceEncoder`."""

    albert: AlbertModel
    tokenizer: AlbertTokenizer
    pooling: Poolings = "mean"
    max_length: int = 128
    projection: Projection | None = None
    normalize: bool = False
    include_prompt: bool = True
    lower_case: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


def is_encoder_folder(folder: Path) -> bool:
    """Return whether a folder is a sentence encoder of sentence-transformers, or a run that left one."""
    path = model_of_run_or_folder(folder)
    if (path / MODULES).exists() and FolderFacts.from_folder(path).is_cross_encoder:
        return False
    if (path / MODULES).exists() or not is_onnx_folder(path) or not (path / REPORT).exists():
        return (path / MODULES).exists()
    return read_json(path / REPORT, "report of the export").get("model_class") == "SentenceEncoder"


def read_encoder(folder: str | Path, pooling_of_checkpoint: Poolings | None = None) -> EncoderParts:
    """Read a sentence-transformers folder, or a plain checkpoint; see `SentenceEncoder.from_pretrained`."""
    path = local_folder(folder)
    if (path / MODULES).exists():
        if any(path.glob("model_head.*")):
            logger.warning(
                "`%s` has a classifier of SetFit, which is not read: it gives sentence vectors alone",
                path,
            )
        parts = _read_modules(path)
        if pooling_of_checkpoint is not None and check_pooling(
            pooling_of_checkpoint
        ) != check_pooling(parts.pooling):
            raise ConfigError(
                "conflicting-options",
                f"`{path}` has {parts.pooling} pooling, asked for is {pooling_of_checkpoint}",
                "leave the pooling out; to train another one, start from the checkpoint it was made of",
            )
        return parts
    if is_onnx_folder(path):
        model = load_onnx(path)
        if not isinstance(model, AlbertModel):
            raise CheckpointError(
                "wrong-model",
                f"`{path}` is an exported {model.config.architectures[0]}: it has its head's outputs, no vectors",
                "export a sentence encoder: albertkit export onnx ENCODER --out ONNX",
            )
        albert: AlbertModel = model
        tokenizer = read_model_tokenizer(path, albert.config)
    else:
        albert, tokenizer = _load_albert(path)
    positions = albert.config.max_position_embeddings
    parts = EncoderParts(albert, tokenizer, pooling_of_checkpoint or "mean", min(128, positions))
    if exports_sentence_vectors(albert):  # else its states are pooled
        max_length, parts.lower_case = read_max_length_and_lower_case(path)
        parts.max_length = min(max_length or tokenizer.model_max_length, positions)
        parts.pooling = "mean"
        parts.settings = _read_checked_settings(path, path)
    return parts


def exports_sentence_vectors(model: AlbertModel) -> bool:
    """Return whether a model is an exported graph that gives sentence vectors."""
    if not isinstance(model, OnnxModel):
        return False
    return any(output.name == SENTENCE_EMBEDDING for output in model.session.get_outputs())


def _load_albert(path: Path) -> tuple[AlbertModel, AlbertTokenizer]:
    albert = AlbertModel.from_pretrained(path, strict=True, allow_missing=("pooler",))
    return albert, read_model_tokenizer(path, albert.config)


def _read_modules(path: Path) -> EncoderParts:
    modules = module_folders(path)
    transformer = modules["Transformer"]
    albert, tokenizer = _load_albert(transformer)
    pooling = _ConfigFile(modules["Pooling"] / "config.json")
    max_length, lower_case = read_max_length_and_lower_case(transformer)
    if tokenizer.padding_side == "left":
        fact = "SentenceTransformer pads its texts on the left, which moves their positions: there vectors depend on the batch"
        logger.warning("`%s`: %s; here each text is read as if it were alone", path, fact)
    name = (
        "word_embedding_dimension"
        if "word_embedding_dimension" in pooling.values
        else "embedding_dimension"
    )
    hidden_size = albert.config.hidden_size
    if pooling.get(name, int) != hidden_size:
        raise pooling.bad_file_error(
            f"`{name}` is {pooling.values[name]}, but the model's hidden size is {hidden_size}"
        )
    if "pooling_mode" in pooling.values:
        mode = pooling.get("pooling_mode", str | list)
    else:
        mode = [name for flag, name in _FLAGS.items() if pooling.get(flag, bool, False)] or "mean"
    poolings = check_pooling(mode)
    # Beyond the positions, sentence-transformers fails.
    positions = albert.config.max_position_embeddings
    return EncoderParts(
        albert,
        tokenizer,
        poolings[0] if len(poolings) == 1 else poolings,
        min(max_length or tokenizer.model_max_length, positions),
        _read_projection(modules["Dense"]) if "Dense" in modules else None,
        "Normalize" in modules,
        include_prompt=pooling.get("include_prompt", bool, True),
        lower_case=lower_case,
        settings=_read_checked_settings(path, transformer),
    )


_Length = Annotated[int, Range(3)]  # tokens, with [CLS] and [SEP]


def read_max_length_and_lower_case(
    folder: Path, task: str = "feature-extraction"
) -> tuple[int | None, bool]:
    """Return the longest sequence of a `Transformer`, None for its tokenizer's, and whether texts are lower-cased.

    Raises:
        CheckpointError: unsupported for a setting that changes the outputs and is not computed.
    """
    # Also sentence_albert_config.json, and other names
    files = [folder / _LENGTHS, *sorted(folder.glob("sentence_*_config.json"))]
    file = next((file for file in files if file.exists()), files[0])
    settings = _ConfigFile(file, optional=True)
    output, method_output = _OUTPUTS[task]
    usual = {"transformer_task": task, "module_output_name": output}
    for name, value in settings.values.items():
        if not value or name in _READ_LENGTHS or usual.get(name) == value:
            continue
        arguments = value if isinstance(value, dict) else {name: value}
        text = arguments.get("text")
        if (
            name == "modality_config"
            and isinstance(text, dict)
            and text.get("method_output_name") == method_output
        ):
            continue
        decisive_arguments = [
            argument
            for argument, setting in arguments.items()
            if setting is not None
            and argument not in _LOADING_ARGUMENTS
            and setting not in HARMLESS.get(argument, ())
        ]
        if name.endswith(("_args", "_kwargs")) and not decisive_arguments:
            continue
        raise CheckpointError(
            "unsupported",
            f"`{settings.file}` has `{name}` {value!r}",
            "it is not computed here; encode with sentence-transformers, or take the key away",
        )
    return settings.get("max_seq_length", _Length | None, None), settings.get(
        "do_lower_case", bool, False
    )


def _read_checked_settings(folder: Path, transformer: Path) -> dict[str, Any]:
    """Return the settings of a folder, and of the folder of its tokenizer; those that are used here are checked."""
    settings = _ConfigFile(folder / _SETTINGS, optional=True)
    prompts = settings.get("prompts", dict | None, {}) or {}
    default = settings.get("default_prompt_name", str | None, None)
    if default is not None and not isinstance(prompts.get(default), str):
        raise settings.bad_file_error(
            f"the default prompt `{default}` is none of its prompts ({', '.join(prompts) or 'none'})"
        )
    settings.get("truncate_dim", Positive | None, None)
    if settings.values.get(SPECIAL_NAMES, "text") not in ("text", "tokens"):
        raise settings.bad_file_error(
            f"`{SPECIAL_NAMES}` is {settings.values[SPECIAL_NAMES]!r}, it must be text or tokens"
        )
    if settings.values.get("similarity_fn_name") not in (None, "", *SIMILARITIES):
        similarities = ", ".join(SIMILARITIES)
        raise settings.bad_file_error(
            f"`similarity_fn_name` is {settings.values['similarity_fn_name']!r}, known: {similarities}"
        )
    values = {name: value for name, value in settings.values.items() if name != "__version__"}
    if FolderFacts.from_folder(transformer).reads_special_names_as_tokens:
        return {SPECIAL_NAMES: "tokens", **values}
    return values


class _ConfigFile:
    """Values of a JSON file of sentence-transformers; an `optional` one may be missing."""

    def __init__(self, file: Path, optional: bool = False) -> None:
        self.file = file
        self.values: dict[str, Any] = (
            {}
            if optional and not file.exists()
            else read_typed(file, dict[str, Any], "configuration")
        )

    def get(self, name: str, kind: Any, *default: Any) -> Any:
        """Return a value of a kind, or its default where there is none."""
        if name not in self.values and default:
            return default[0]
        value = self.values.get(name)
        if value is None and kind is bool and name in self.values:
            return False  # as an `if` of sentence-transformers takes it
        if not is_of_type(value, kind):
            raise self.bad_file_error(
                f"`{name}` is {value!r}" if name in self.values else f"it has no `{name}`"
            )
        return value

    def bad_file_error(self, reason: str) -> CheckpointError:
        """Return the error that says what is wrong."""
        return CheckpointError(
            "bad-file",
            f"`{self.file}`: {reason}",
            "copy the folder again, or save it again",
        )


def module_folders(path: Path) -> dict[str, Path]:
    """Return the folder of each kind of module, in their order; refuse those that cannot be computed exactly."""
    listing = read_json(path / MODULES, "list of modules")
    folders: dict[str, Path] = {}
    for module in listing if isinstance(listing, list) else [None]:
        if not isinstance(module, dict) or not all(
            isinstance(module.get(key), str) for key in ("type", "path")
        ):
            raise CheckpointError(
                "bad-file",
                f"`{path / MODULES}` is not a list of modules",
                "copy it again",
            )
        kind = module["type"].rpartition(".")[2]
        if not module["type"].startswith("sentence_transformers.") or kind not in _ORDER:
            raise CheckpointError(
                "unsupported",
                f"`{path / MODULES}` has a module `{module['type']}`",
                f"only {', '.join(_ORDER)} of sentence-transformers are computed here",
            )
        if Path(module["path"]).is_absolute() or ".." in Path(module["path"]).parts:
            raise CheckpointError(
                "bad-file",
                f"`{path / MODULES}` leaves its folder: `{module['path']}`",
                "copy the folder again",
            )
        if kind in folders or any(later in folders for later in _ORDER[_ORDER.index(kind) :]):
            raise CheckpointError(
                "unsupported",
                f"`{path / MODULES}` has {kind} after {', '.join(folders)}",
                f"each of {', '.join(_ORDER)} may be there once, in this order",
            )
        folders[kind] = path / module["path"]
    for kind in _ORDER[:2]:
        if kind not in folders:
            raise CheckpointError(
                "unsupported",
                f"`{path / MODULES}` has no {kind}",
                "it makes no vectors of texts",
            )
    return folders


def _read_projection(folder: Path) -> Projection:
    config = _ConfigFile(folder / "config.json")
    # without one, sentence-transformers has Tanh
    activation = config.get("activation_function", str, "torch.nn.modules.activation.Tanh")
    if activation not in _ACTIVATIONS:
        raise CheckpointError(
            "unsupported",
            f"`{config.file}` has the activation `{activation}`",
            f"known: {', '.join(_ACTIVATIONS)}",
        )
    for name, default in (("use_residual", False), ("module_input_name", "sentence_embedding")):
        if config.values.get(name, default) != default:
            raise CheckpointError(
                "unsupported",
                f"`{config.file}` has `{name}` {config.values[name]!r}",
                f"only {default!r} is computed here",
            )
    width = config.get("in_features", int)
    dimension = config.get("out_features", int)
    bias = config.get("bias", bool, True)
    tensors = read_tensors(folder)
    expected_shapes: dict[str, tuple[int, ...]] = {"linear.weight": (dimension, width)}
    if bias:
        expected_shapes["linear.bias"] = (dimension,)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes != expected_shapes:  # before memory is taken for it
        raise config.bad_file_error("the weights beside it have other names or shapes than it says")
    projection = Projection(width, dimension, _ACTIVATIONS[activation], bias)
    projection.load_state_dict(dict(tensors))
    return projection


# --- writing --------------------------------------------------------------------------------------


def write_encoder(folder: str | Path, encoder: EncoderParts) -> None:
    """Write a checkpoint folder with sentence-transformers' files beside it; see `SentenceEncoder.save_pretrained`."""
    path = Path(folder)
    encoder.albert.save_pretrained(path, encoder.tokenizer)
    kinds = ["Transformer", "Pooling"]
    poolings = check_pooling(encoder.pooling)
    hidden_size = encoder.albert.config.hidden_size
    # The older layout, which every sentence-transformers reads, if it has the order of the
    # poolings.
    if poolings == tuple(name for name in _FLAGS.values() if name in poolings):
        pooling_config: dict[str, Any] = {"word_embedding_dimension": hidden_size}
        pooling_config |= {flag: name in poolings for flag, name in _FLAGS.items()}
    else:
        pooling_config = {"embedding_dimension": hidden_size, "pooling_mode": list(poolings)}
    pooling_config["include_prompt"] = encoder.include_prompt
    write_json(path / "1_Pooling" / "config.json", pooling_config)
    if encoder.projection is not None:
        linear = encoder.projection.linear
        name = encoder.projection.activation_name
        config = {
            "in_features": linear.in_features,
            "out_features": linear.out_features,
            "bias": linear.bias is not None,
            "activation_function": next(
                theirs for theirs, ours in _ACTIVATIONS.items() if ours == name
            ),
        }
        tensors = {
            key: value.detach().to("cpu").contiguous()
            for key, value in encoder.projection.state_dict().items()
        }
        write_json(path / "2_Dense" / "config.json", config)
        write_tensors(path / "2_Dense" / "model.safetensors", tensors)
        kinds.append("Dense")
    if encoder.normalize:
        (path / f"{len(kinds)}_Normalize").mkdir(exist_ok=True)
        kinds.append("Normalize")
    write_json(
        path / _LENGTHS,
        {"max_seq_length": encoder.max_length, "do_lower_case": encoder.lower_case},
    )
    write_json(
        path / _SETTINGS,
        {"prompts": {}, "similarity_fn_name": "cosine", **encoder.settings},
    )
    folders = [f"{number}_{kind}" if number else "" for number, kind in enumerate(kinds)]
    modules = [
        {"idx": number, "name": str(number), "path": folders[number], "type": f"{_TYPES}.{kind}"}
        for number, kind in enumerate(kinds)
    ]
    write_json(path / MODULES, modules)
    for old in path.iterdir():  # of a model of another shape that was saved here before
        if re.fullmatch(rf"\d_({'|'.join(_ORDER)})", old.name) and old.name not in folders:
            shutil.rmtree(old)
    sync_folder(path)
