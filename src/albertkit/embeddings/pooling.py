"""From the states of a text's tokens to one vector: sentence-transformers' poolings, on packed tokens."""

from typing import Literal, get_args

import torch
from torch import Tensor

from albertkit.errors import ConfigError
from albertkit.model import PackedBatch

Pooling = Literal["mean", "cls", "max", "weightedmean", "lasttoken", "mean_sqrt_len_tokens"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
ONE_TOKEN = {"cls", "lasttoken"}  # the last pass of the encoder need compute no other token


def pool(hidden: Tensor, batch: PackedBatch, pooling: Pooling) -> Tensor:
    """One vector a text.

    Args:
        hidden: [T, H] in any dtype; the arithmetic is fp32.
        batch: Whose tokens they are.
        pooling: mean; cls, the first token; max of each component; weightedmean, weights 1 to n along the text; lasttoken;
            mean_sqrt_len_tokens, the sum over the square root of n.

    Returns:
        fp32 [N, H].

    Raises:
        ConfigError: unknown-pooling.

    Source: sentence-transformers `Pooling`.
    """
    if pooling == "cls":
        return hidden.index_select(0, batch.starts).float()
    if pooling == "lasttoken":
        return hidden.index_select(0, batch.offsets[1:] - 1).float()
    lengths = batch.offsets.diff()
    values = hidden.float()
    if pooling == "max":
        return torch.segment_reduce(values, "max", lengths=lengths)
    if pooling == "mean":
        return torch.segment_reduce(values, "mean", lengths=lengths)
    if pooling == "mean_sqrt_len_tokens":
        return torch.segment_reduce(values, "sum", lengths=lengths) / lengths.sqrt()[:, None]
    if pooling == "weightedmean":
        place = torch.arange(len(values), device=values.device) - batch.starts.repeat_interleave(lengths) + 1
        summed = torch.segment_reduce(values * place[:, None], "sum", lengths=lengths)
        return summed / (lengths * (lengths + 1) / 2)[:, None]
    raise ConfigError("unknown-pooling", f"there is no pooling `{pooling}`", f"known: {', '.join(POOLINGS)}")
