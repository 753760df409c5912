"""`albertkit inspect`: what is in a checkpoint folder, and how large the published models are. Only pickles are loaded."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albertkit.command import takes
from albertkit.config import SIZES, AlbertConfig
from albertkit.errors import AlbertKitError, CheckpointError, ConfigError, DataError
from albertkit.files import read_typed
from albertkit.model_paths import OLD_WEIGHTS, WEIGHTS_FILES, find_weights, local_folder
from albertkit.output.sections import (
    FactList,
    Paragraph,
    Result,
    Section,
    TableSection,
    flatten,
    format_bytes,
)
from albertkit.pretraining.card import ARCHITECTURE
from albertkit.report.options import InspectOptions
from albertkit.weights_file import (
    ENCODER,
    count_parts,
    list_shards,
    read_header,
    unread_weights_hint,
)

# Configuration changes by the name of a column. A group's layers share everything, other groups
# have weights of their own.
SHARINGS: dict[str, dict[str, Any]] = {
    "all": {},
    "2 groups": {"num_hidden_groups": 2},
    "4 groups": {"num_hidden_groups": 4},
    "attention": {"parameter_sharing": "attention"},
    "ffn": {"parameter_sharing": "ffn"},
    "none": {"parameter_sharing": "none"},
}
PAPER = {
    "BERT-base": "108M",
    "BERT-large": "334M",
    "base": "12M",
    "large": "18M",
    "xlarge": "60M",
    "xxlarge": "235M",
}
BERT_LAYERS_WIDTH_HEADS = {"BERT-base": (12, 768, 12), "BERT-large": (24, 1024, 16)}
BERT_VOCABULARY = 30_522  # of the uncased models
LENGTH = 512  # tokens of the sequences that FLOPs are counted for


def published_sizes(length: float = LENGTH) -> list[dict[str, Any]]:
    """Return a row for every published model, BERTs first, operations counted for sequences of `length` tokens.

    `parameters` are those of encoder and pooler; `with_heads` adds the masked-LM and sentence-order
    heads (None for BERT); `paper` is table 1's number, if it has one; `sharing` maps each of
    `SHARINGS` to its parameters (None for BERT).
    """
    rows = []
    for name, (layers, width, heads) in BERT_LAYERS_WIDTH_HEADS.items():
        # An ALBERT that shares nothing and embeds at full width, less the projection that it then
        # does not need.
        config = AlbertConfig(
            vocab_size=BERT_VOCABULARY,
            embedding_size=width,
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=layers,
            num_hidden_groups=layers,
            num_attention_heads=heads,
            parameter_sharing="none",
        )
        row = _size_row(name, config, length)
        row["parameters"] -= width * width + width
        row["forward_flops_per_token"] -= 2 * width * width
        rows.append(row | {"with_heads": None, "sharing": None})
    for size in SIZES:
        config = AlbertConfig.from_size(size)
        sharing = {}
        for name, changes in SHARINGS.items():
            sharing[name] = AlbertConfig.from_size(size, **changes).num_parameters()
        with_heads = config.num_parameters(heads=True)
        rows.append(
            _size_row(size, config, length) | {"with_heads": with_heads, "sharing": sharing}
        )
    return rows


def forward_flops(config: AlbertConfig, length: float) -> float:
    """Return the floating-point operations of a forward pass per token, heads left out; a multiply-add counts as 2."""
    # A backward pass costs two forward ones
    return config.train_flops_per_token(length, predicted_share=0.0) / 3


def _size_row(name: str, config: AlbertConfig, length: float) -> dict[str, Any]:
    return {
        "name": name,
        "layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "embedding_size": config.embedding_size,
        "heads": config.num_attention_heads,
        "parameters": config.num_parameters(),
        "paper": PAPER.get(name),
        "forward_flops_per_token": forward_flops(config, length),
    }


def size_rows_beside_published(config: AlbertConfig, length: int) -> list[dict[str, Any]]:
    """Return a row for this model and then for each published one, encoder and pooler only.

    `unshared` are the parameters if no layer shared anything, `saved` the share of those that
    sharing saves (0 to 1).
    """
    unshared = config.replace(
        parameter_sharing="none", num_hidden_groups=config.num_hidden_layers
    ).num_parameters()
    this_model = _size_row("this model", config, length) | {"sharing": {"none": unshared}}
    rows = []
    for row in (this_model, *(row for row in published_sizes(length) if row["paper"])):
        unshared = row["sharing"]["none"] if row["sharing"] else row["parameters"]
        facts = {name: row[name] for name in ("name", "parameters", "forward_flops_per_token")}
        rows.append({**facts, "unshared": unshared, "saved": 1 - row["parameters"] / unshared})
    return rows


def estimate_memory_bytes(config: AlbertConfig, parameters: int, length: int) -> dict[str, int]:
    """Return the bytes that a model of `parameters` (heads included, each shared one once) takes.

    - load_fp32, load_bf16: the weights. load_int8: the layer's matrices in 8 bits with a scale a row, tables, norms and
      heads in fp32, as the int8 engine has them.
    - read_fp32: weights and activations of one sequence of `length` tokens on the CPU, heads left out. Within 1 % of what
      torch allocates.
    - train_fp32: weights, gradients and two moments, without activations.
    """
    h = config.hidden_size
    i = config.intermediate_size
    blocks = config.num_hidden_groups * config.inner_group_num
    attention = feed_forward = blocks
    if config.parameter_sharing == "attention":
        attention = config.inner_group_num
    if config.parameter_sharing == "ffn":
        feed_forward = config.inner_group_num
    matrices = attention * 4 * h * h + feed_forward * 2 * h * i
    rows = attention * 4 * h + feed_forward * (i + h)
    # At its fullest a token has queries, keys, values, the scores of all heads twice; or both sides
    # of the activation.
    in_attention = 6 * h + 2 * config.num_attention_heads * length
    in_feed_forward = 3 * h + 2 * i
    widest = max(in_attention, in_feed_forward) + config.embedding_size
    # Queries, keys and values of each block side by side, for one forward pass
    concatenated = blocks * 3 * (h * h + h)
    return {
        "load_fp32": 4 * parameters,
        "load_bf16": 2 * parameters,
        # A number of a matrix takes 1 byte in place of 4; a row has a scale in fp32.
        "load_int8": 4 * parameters - 3 * matrices + 4 * rows,
        "read_fp32": 4 * (parameters + concatenated + length * widest),
        "train_fp32": 16 * parameters,  # weight, gradient and AdamW's two moments, 4 bytes each
    }


@dataclass(frozen=True)
class PublishedSizes(Result):
    """Sizes of every published ALBERT and BERT.

    Attributes:
        sizes: Rows of `albertkit.report.inspect.published_sizes`.
    """

    sizes: list[dict[str, Any]]

    def sections(self) -> list[Section]:
        """Return parameters and operations, and the parameters by what layers share."""
        columns = ["", "layers", "hidden", "embed", "parameters", "with heads", "paper", "GFLOP"]
        names = (
            "name",
            "layers",
            "hidden_size",
            "embedding_size",
            "parameters",
            "with_heads",
            "paper",
        )
        rows = []
        for row in self.sizes:
            flops = f"{row['forward_flops_per_token'] / 1e9:.2f}"
            rows.append([*(row[name] for name in names), flops])
        note = (
            "parameters: encoder and pooler; with heads: masked LM and sentence order too; paper: its table 1. GFLOP: forward, "
            f"a token in a sequence of {LENGTH}. BERT with 30,522 tokens, ALBERT with 30,000."
        )
        shared = [row for row in self.sizes if row["sharing"]]
        counts = [
            [row["name"], *(f"{row['sharing'][name] / 1e6:.2f}" for name in SHARINGS)]
            for row in shared
        ]
        title = "millions of parameters, by what layers share"
        return [
            TableSection(columns, rows, note=note),
            TableSection(["", *SHARINGS], counts, title),
        ]


@dataclass(frozen=True)
class FolderInspection(Result):
    """Facts of a checkpoint folder.

    Attributes:
        model: Its folder.
        run: The run that it is the best model of, or None.
        model_class: The class that config.json names, `class` in JSON.
        config: `AlbertConfig.to_dict()`.
        parameters: By part, `total`, and how many the file `stored`.
        weights: File, bytes, and numbers by type.
        flops: Operations of a token in a sequence of `length`; in training `predicted_share` of the
            tokens are predicted.
        memory: Bytes, as `albertkit.report.inspect.estimate_memory_bytes`.
        compared: Rows of `size_rows_beside_published`.
        tokenizer: Kind, number of tokens, text rules and fingerprint; None without one.
        provenance: What the folder says of its origin, or None.
        training: State of the training, or None.
        card: Whether there is a model card.
        problems: What does not fit.
    """

    model: str
    run: str | None
    model_class: str | None
    config: dict[str, Any]
    parameters: dict[str, Any]
    weights: dict[str, Any]
    flops: dict[str, Any]
    memory: dict[str, int]
    compared: list[dict[str, Any]]
    tokenizer: dict[str, Any] | None
    provenance: dict[str, Any] | None
    training: dict[str, Any] | None
    card: bool
    problems: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "class" if name == "model_class" else name: value
            for name, value in super().to_dict().items()
        }

    def sections(self) -> list[Section]:
        """Return the facts by heading, the comparison with other models, and the problems."""
        run = f"{self.run}, of which this is {Path(self.model).name}/" if self.run else None
        length = self.flops["length"]
        state = self.training or {}
        trained = {
            f"trained {name}": state[name]
            for name in ("step", "tokens", "seconds")
            if name in state
        }
        card = {"model card": "README.md" if self.card else "none"}
        predicted = f"{100 * self.flops['predicted_share']:g} % of the tokens predicted"
        if "masked_lm_prob" not in (self.provenance or {}):
            # The paper masks 15 % of the tokens.
            predicted += ", as is usual; the folder does not say"
        computing = {
            "forward": f"{_format_flops(self.flops['forward_per_token'])}, heads left out",
            "pretraining step": f"{_format_flops(self.flops['train_per_token'])}, {predicted}",
        }
        total = self.parameters["total"]
        stored = self.parameters["stored"]
        copies = None
        if stored != total:
            copies = f"{stored:,}: what is shared, once for each of the {self.config['num_hidden_layers']} layers"
        types = ", ".join(f"{count:,} {name}" for name, count in self.weights["types"].items())
        parameters = {
            **self.parameters["parts"],
            "total": total,
            "in the file": copies,
            self.weights["file"]: f"{format_bytes(self.weights['bytes'])} ({types})",
        }
        size = {name: format_bytes(count) for name, count in self.memory.items()}
        memory_facts = {
            "weights": f"{size['load_fp32']} in fp32, {size['load_bf16']} in bf16",
            "weights in int8": f"{size['load_int8']}: matrices of the layer; tables and heads in fp32",
            f"to read {length} tokens": f"{size['read_fp32']} in fp32, weights included",
            "to train": f"{size['train_fp32']} (weights, gradients, two moments) and activations",
        }
        origin = {name: str(value) for name, value in flatten(self.provenance).items()}
        comparison = []
        for row in self.compared:
            saved = f"{row['saved']:.1%}" if row["saved"] else None
            forward = _format_flops(row["forward_flops_per_token"])
            comparison.append([row["name"], row["parameters"], row["unshared"], saved, forward])
        columns = ["", "parameters", "unshared", "sharing saves", "forward"]
        title = f"compared with others, a token in a sequence of {length}"
        note = "encoder and pooler; unshared: with weights of its own for every layer"
        return [
            FactList(
                {"run": run, "folder": self.model, "class": self.model_class or "not named"},
                "model",
            ),
            FactList(
                {name: self.config[name] for name in ARCHITECTURE}, "configuration", exact=True
            ),
            FactList(parameters, "parameters"),
            FactList(computing, f"computing, a token in a sequence of {length}"),
            FactList(memory_facts, "memory"),
            FactList(self.tokenizer or {"kind": "none"}, "tokenizer"),
            FactList(origin | trained | card, "provenance"),
            TableSection(columns, comparison, title, note, strong=0),
            *(Paragraph(problem, tone="bad") for problem in self.problems),
        ]


@takes(InspectOptions)
def inspect(options: InspectOptions) -> Result:
    """Inspect a model folder, or list the sizes of the published models."""
    if options.model is None:
        return PublishedSizes(published_sizes())
    return inspect_folder(options.model, options.length)


def inspect_folder(source: str | Path, length: int | None = None) -> FolderInspection:
    """Return everything that is known about a model or run without loading weights; arguments as `InspectOptions`."""
    _check_is_converted(Path(source))
    folder = local_folder(Path(source))
    config = AlbertConfig.from_pretrained(folder)
    provenance = _read_optional_json(folder / "provenance.json")
    length = _choose_length(length, provenance or {}, config)
    weights = find_weights(folder)
    if weights is None:
        fact = f"none of {', '.join(WEIGHTS_FILES)} in `{folder}`"
        hint = unread_weights_hint(sorted(path.name for path in folder.glob("*")))
        raise CheckpointError(
            "missing-file",
            fact,
            hint or "name the folder that holds the weights",
        )
    header = _read_pickled_header(folder) if OLD_WEIGHTS in weights.name else read_header(weights)
    parts, stored = count_parts(header, config)
    total = sum(parts.values())
    types: dict[str, int] = {}
    for shape, dtype in header.values():
        types[dtype] = types.get(dtype, 0) + math.prod(shape)
    tokenizer, problems = _tokenizer_facts_and_problems(folder, config)
    predicted_share = _predicted_share(provenance or {})
    stored_encoder = sum(parts.get(name, 0) for name in ENCODER)
    expected_encoder = config.num_parameters() - config.hidden_size * (config.hidden_size + 1)
    if stored_encoder != expected_encoder:
        problems.append(
            f"the encoder in the file has {stored_encoder:,} parameters, config.json asks for {expected_encoder:,}"
        )
    return FolderInspection(
        model=str(folder),
        run=str(source) if folder != Path(source) and Path(source).is_dir() else None,
        model_class=next(iter(config.foreign.get("architectures") or []), None),
        config=config.to_dict(),
        parameters={"parts": parts, "total": total, "stored": stored},
        weights={
            "file": weights.name,
            "bytes": sum(file.stat().st_size for file in list_shards(weights)),
            "types": types,
        },
        flops={
            "length": length,
            "forward_per_token": forward_flops(config, length),
            "predicted_share": predicted_share,
            "train_per_token": config.train_flops_per_token(length, predicted_share),
        },
        memory=estimate_memory_bytes(config, total, length),
        compared=size_rows_beside_published(config, length),
        tokenizer=tokenizer,
        provenance=provenance,
        training=_read_optional_json(folder / "training_state.json"),
        card=(folder / "README.md").exists(),
        problems=problems,
    )


def _read_pickled_header(folder: Path) -> dict[str, tuple[list[int], str]]:
    """Read shape and type of the tensors of pickles."""
    # Pickles are read whole: they have no header of their own.
    from albertkit.model.files import read_tensors

    types = {
        "float32": "F32",
        "float16": "F16",
        "bfloat16": "BF16",
        "float64": "F64",
        "int64": "I64",
    }
    header = {}
    for name, tensor in read_tensors(folder).items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        header[name] = list(tensor.shape), types.get(dtype, dtype)
    return header


def _choose_length(length: int | None, provenance: dict[str, Any], config: AlbertConfig) -> int:
    """Return the length asked for, or that of the training; 512 or the model's if none is recorded."""
    if length is None:
        length = provenance.get("length")
        if type(length) is not int or length == 0:  # a bool is an int, too
            length = min(LENGTH, config.max_position_embeddings)
    if length < 1:
        fact = f"length is {length}, it must be at least 1"
        raise ConfigError("bad-value", fact, f"use --length {config.max_position_embeddings}")
    config.check_length(length)
    return length


def _predicted_share(provenance: dict[str, Any]) -> float:
    """Return the share of the tokens that the model was trained to predict; the paper's where it is not recorded."""
    share = provenance.get("masked_lm_prob", 0.15)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
        fact = f"masked_lm_prob in provenance.json is {share!r}, not a share of the tokens"
        raise DataError("bad-file", fact, "restore the file, or remove it")
    return float(share)


def _format_flops(count: float) -> str:
    return f"{count / 1e9:.3g} GFLOP" if count >= 1e8 else f"{count / 1e6:.3g} MFLOP"


def _check_is_converted(path: Path) -> None:
    """Refuse a checkpoint that has to be converted first."""
    is_prefix = path.suffix == ".index" or Path(f"{path}.index").exists()
    has_tensorflow = any(path.glob("*.index")) or (path / "saved_model.pb").exists()
    if is_prefix or (has_tensorflow and find_weights(path) is None):
        raise CheckpointError(
            "wrong-kind",
            f"`{path}` is a TensorFlow checkpoint",
            f"convert it first: albertkit convert {path} FOLDER",
        )


def _tokenizer_facts_and_problems(
    folder: Path, config: AlbertConfig
) -> tuple[dict[str, Any] | None, list[str]]:
    from albertkit.tokenizer import AlbertTokenizer

    try:
        tokenizer = AlbertTokenizer.from_pretrained(folder)
    except AlbertKitError as error:
        return None, [] if error.slug == "no-tokenizer" else [
            f"the tokenizer cannot be read: {error.message}"
        ]
    problems = []
    if tokenizer.vocab_size > config.vocab_size:  # a model may have rows to spare
        problems.append(
            f"the tokenizer has {tokenizer.vocab_size:,} tokens, the model {config.vocab_size:,}"
        )
    return {
        "kind": type(tokenizer).__name__,
        "tokens": tokenizer.vocab_size,
        "text_rules": tokenizer.text_rules,
        "fingerprint": tokenizer.fingerprint,
    }, problems


def _read_optional_json(file: Path) -> dict[str, Any] | None:
    if not file.exists():
        return None
    return read_typed(file, dict[str, Any], hint="restore it or remove it") or None
