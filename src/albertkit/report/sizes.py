"""Sizes of models, counted from configurations alone: the published ones, one compared with them, and its memory."""

from typing import Any

from albertkit.config import SIZES, AlbertConfig

# Configuration changes by the name of a column. A group's layers share everything, other groups have weights of their own.
SHARINGS: dict[str, dict[str, Any]] = {
    "all": {},
    "2 groups": {"num_hidden_groups": 2},
    "4 groups": {"num_hidden_groups": 4},
    "attention": {"parameter_sharing": "attention"},
    "ffn": {"parameter_sharing": "ffn"},
    "none": {"parameter_sharing": "none"},
}
PAPER = {
    "BERT-base": "108M", "BERT-large": "334M", "base": "12M", "large": "18M", "xlarge": "60M", "xxlarge": "235M",
}  # fmt: skip
BERT_LAYERS_WIDTH_HEADS = {"BERT-base": (12, 768, 12), "BERT-large": (24, 1024, 16)}
BERT_VOCABULARY = 30_522  # of the uncased models
PUBLISHED = ("BERT-base", "BERT-large", "base", "large", "xlarge", "xxlarge")
LENGTH = 512  # tokens of the sequences that FLOPs are counted for


def sizes(length: float = LENGTH) -> list[dict[str, Any]]:
    """Return a row for every published model, BERTs first, operations counted for sequences of `length` tokens.

    `parameters` are those of encoder and pooler; `with_heads` adds the masked-LM and sentence-order heads (None for BERT);
    `paper` is table 1's number, if it has one; `sharing` maps each of `SHARINGS` to its parameters (None for BERT).
    """
    return [*(_bert(name, length) for name in BERT_LAYERS_WIDTH_HEADS), *(_albert(size, length) for size in SIZES)]


def forward_flops(config: AlbertConfig, length: float) -> float:
    """Return the floating-point operations of a forward pass per token, heads left out; a multiply-add counts as 2."""
    return config.train_flops_per_token(length, predicted_share=0.0) / 3


def _albert(size: str, length: float) -> dict[str, Any]:
    config = AlbertConfig.from_size(size)
    sharing = {name: AlbertConfig.from_size(size, **changes).num_parameters() for name, changes in SHARINGS.items()}
    return {
        **_row(size, config, config.num_parameters(), forward_flops(config, length)),
        "with_heads": config.num_parameters(heads=True),
        "sharing": sharing,
    }


def _bert(name: str, length: float) -> dict[str, Any]:
    """Count a BERT as an ALBERT that shares nothing and embeds at full width, less the projection it then does not need."""
    layers, width, heads = BERT_LAYERS_WIDTH_HEADS[name]
    config = AlbertConfig(
        vocab_size=BERT_VOCABULARY, embedding_size=width, hidden_size=width, intermediate_size=4 * width,
        num_hidden_layers=layers, num_hidden_groups=layers, num_attention_heads=heads, parameter_sharing="none",
    )  # fmt: skip
    projection = width * width + width
    flops = forward_flops(config, length) - 2 * width * width
    return {**_row(name, config, config.num_parameters() - projection, flops), "with_heads": None, "sharing": None}


def _row(name: str, config: AlbertConfig, parameters: int, flops: float) -> dict[str, Any]:
    return {
        "name": name,
        "layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "embedding_size": config.embedding_size,
        "heads": config.num_attention_heads,
        "parameters": parameters,
        "paper": PAPER.get(name),
        "forward_flops_per_token": flops,
    }


def compared_sizes(config: AlbertConfig, length: int) -> list[dict[str, Any]]:
    """Return a row for this model and then for each published one, encoder and pooler only.

    `unshared` are the parameters if no layer shared anything, `saved` the share of those that sharing saves (0 to 1).
    """
    unshared = config.replace(parameter_sharing="none", num_hidden_groups=config.num_hidden_layers).num_parameters()
    this_model = {
        **_row("this model", config, config.num_parameters(), forward_flops(config, length)),
        "sharing": {"none": unshared},
    }
    published = {row["name"]: row for row in sizes(length)}
    rows = []
    for row in (this_model, *(published[name] for name in PUBLISHED)):
        parameters = row["parameters"]
        unshared = (row["sharing"] or {"none": parameters})["none"]
        facts = {name: row[name] for name in ("name", "parameters", "forward_flops_per_token")}
        rows.append({**facts, "unshared": unshared, "saved": 1 - parameters / unshared})
    return rows


def memory(config: AlbertConfig, parameters: int, length: int) -> dict[str, int]:
    """Return the bytes that a model of `parameters` (heads included, each shared one once) takes.

    - load_fp32, load_bf16: the weights. load_int8: the layer's matrices in 8 bits with a scale a row, tables, norms and
      heads in fp32, as the int8 engine has them.
    - read_fp32: weights and activations of one sequence of `length` tokens on the CPU, heads left out. Within 1 % of what
      torch allocates.
    - train_fp32: weights, gradients and two moments, without activations.
    """
    h, i, e = config.hidden_size, config.intermediate_size, config.embedding_size
    blocks = config.num_hidden_groups * config.inner_group_num
    attention, feed_forward = (
        config.inner_group_num if config.parameter_sharing == part else blocks for part in ("attention", "ffn")
    )
    matrices = attention * 4 * h * h + feed_forward * 2 * h * i
    rows = attention * 4 * h + feed_forward * (i + h)
    # At its fullest a token has queries, keys, values, the scores of all heads twice; or both sides of the activation.
    widest = max(6 * h + 2 * config.num_attention_heads * length, 3 * h + 2 * i) + e
    concatenated = blocks * 3 * (h * h + h)  # queries, keys and values of each block side by side, for one forward pass
    return {
        "load_fp32": 4 * parameters,
        "load_bf16": 2 * parameters,
        "load_int8": 4 * parameters - 3 * matrices + 4 * rows,
        "read_fp32": 4 * (parameters + concatenated + length * widest),
        "train_fp32": 16 * parameters,
    }
