"""A model beside the published ones, and what it takes in memory: counted from its configuration alone."""

from typing import Any

from albertkit.config import AlbertConfig
from albertkit.report.sizes import forward_flops, sizes

PUBLISHED = ("BERT-base", "BERT-large", "base", "large", "xlarge", "xxlarge")


def compared_sizes(config: AlbertConfig, length: int) -> list[dict[str, Any]]:
    """One row a model, encoder and pooler each: this one, then the published ones.

    Args:
        config: Of this one.
        length: Tokens of the sequences that operations are counted for.

    Returns:
        Rows of `name` ("this model" first), `parameters`, `unshared` (what they would be if no layer shared anything),
        `saved` (the share of those that sharing saves, 0 to 1) and `forward_flops_per_token`.
    """
    alone = config.replace(parameter_sharing="none", num_hidden_groups=config.num_hidden_layers).num_parameters()
    published = {row["name"]: row for row in sizes(length)}
    return [
        _row("this model", config.num_parameters(), alone, forward_flops(config, length)),
        *(
            _row(name, row["parameters"], (row["sharing"] or {}).get("none", row["parameters"]), row["forward_flops_per_token"])
            for name, row in ((name, published[name]) for name in PUBLISHED)
        ),
    ]  # fmt: skip


def _row(name: str, parameters: int, unshared: int, flops: float) -> dict[str, Any]:
    saved = 1 - parameters / unshared
    return {
        "name": name,
        "parameters": parameters,
        "unshared": unshared,
        "saved": saved,
        "forward_flops_per_token": flops,
    }


def memory(config: AlbertConfig, parameters: int, length: int) -> dict[str, int]:
    """Bytes that a model takes.

    Args:
        config: Of the model.
        parameters: Of the model with its heads, each shared one once.
        length: Tokens of the one sequence that is read.

    Returns:
        - load_fp32, load_bf16: the weights. load_int8: the layer's matrices in 8 bits with a scale a row, tables, norms
          and heads in fp32, as the int8 engine has them.
        - read_fp32: weights and activations of one sequence on the CPU, heads left out. Within 1 % of what torch allocates.
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
