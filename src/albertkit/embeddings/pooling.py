"""Pool the states of a text's tokens into one vector: sentence-transformers' poolings, on packed tokens, and its `Dense`.

T tokens of N texts, H numbers a state.
"""

from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from albertkit.errors import ConfigError
from albertkit.model import PackedBatch

Pooling = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
Poolings = Pooling | tuple[Pooling, ...]  # the vectors of several are put one after the other

ACTIVATIONS: dict[str, type[nn.Module]] = {"identity": nn.Identity, "tanh": nn.Tanh}


def check_pooling(pooling: str | tuple[str, ...]) -> tuple[Pooling, ...]:
    """Return the poolings, one or several, if all of them are known."""
    names = tuple(pooling) if isinstance(pooling, tuple | list) else (pooling,)
    for name in names or ("",):
        if name not in POOLINGS:
            raise ConfigError("unknown-name", f"there is no pooling `{name}`", f"known: {', '.join(POOLINGS)}")
    return names  # type: ignore[return-value]


def pooled_positions(batch: PackedBatch, pooling: Poolings, prompt_tokens: int = 0) -> Tensor | None:
    """Return the one token of each text that a pooling reads, int64 [N] into the T tokens; None if it reads all.

    The last layer of the encoder computes no other. Arguments as `pool`.
    """
    if pooling == "cls":
        return batch.starts + torch.where(batch.offsets.diff() > prompt_tokens, prompt_tokens, 0)
    return batch.offsets[1:] - 1 if pooling == "lasttoken" else None


def pool(hidden: Tensor, batch: PackedBatch, pooling: Poolings, prompt_tokens: int = 0) -> Tensor:
    """Return one vector a text.

    Args:
        hidden: [T, H] in any dtype; the arithmetic is fp32.
        batch: Whose tokens they are.
        pooling: cls, the first token; max of each component; mean; mean_sqrt_len_tokens, the sum over the square root of
            n; weightedmean, weights 1 to n along the text; lasttoken. Or several.
        prompt_tokens: So many tokens at the start of every text are left out. A text of no others becomes zeros; its `cls`
            and `lasttoken` are those that it has.

    Returns:
        fp32 [N, H], or [N, P x H] of P poolings.

    Source: sentence-transformers `Pooling`.
    """
    hidden = hidden.float()
    vectors = [_pool(hidden, batch, name, prompt_tokens) for name in check_pooling(pooling)]
    return vectors[0] if len(vectors) == 1 else torch.cat(vectors, dim=1)


def _pool(hidden: Tensor, batch: PackedBatch, pooling: Pooling, prompt_tokens: int) -> Tensor:
    positions = pooled_positions(batch, pooling, prompt_tokens)
    if positions is not None:
        return hidden.index_select(0, positions)
    lengths = batch.offsets.diff()
    tokens = torch.arange(len(hidden), device=hidden.device)
    positions = tokens - batch.starts.repeat_interleave(lengths, output_size=len(hidden))
    pooled_lengths = (lengths - prompt_tokens).clamp(min=0)
    if prompt_tokens:
        is_pooled = positions >= prompt_tokens
        tokens, positions = tokens[is_pooled], positions[is_pooled]

    def of_bags(mode: str, weights: Tensor | None = None) -> Tensor:
        # Each text is a bag of rows of `hidden`: 2 ms for [8192, 768] where `segment_reduce` takes 6, zeros for no row.
        starts = pooled_lengths.cumsum(0) - pooled_lengths
        return functional.embedding_bag(tokens, hidden, starts, mode=mode, per_sample_weights=weights)

    if pooling == "weightedmean":
        left_out = lengths - pooled_lengths
        totals = (lengths * (lengths + 1) - left_out * (left_out + 1)) / 2
        return of_bags("sum", (positions + 1).float()) / totals.clamp(min=1.0)[:, None]
    if pooling == "mean_sqrt_len_tokens":
        return of_bags("sum") / pooled_lengths.clamp(min=1).sqrt()[:, None]
    return of_bags(pooling)


class Projection(nn.Module):
    """Puts pooled vectors through a linear layer and an activation of `ACTIVATIONS`: sentence-transformers' `Dense`."""

    def __init__(self, inputs: int, outputs: int, activation: str = "tanh", bias: bool = True) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ConfigError(
                "unsupported", f"there is no activation `{activation}`", f"known: {', '.join(ACTIVATIONS)}"
            )
        self.linear = nn.Linear(inputs, outputs, bias=bias)
        self.activation_name = activation
        self.activation = ACTIVATIONS[activation]()

    def forward(self, vectors: Tensor) -> Tensor:
        """Return vectors [N, outputs] of vectors [N, inputs]."""
        return self.activation(self.linear(vectors))
