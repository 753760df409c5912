"""ALBERT's layers over a context that is computed once and a caption that reads it.

B clips, R = B * K rows of captions (K beams a clip), C tokens of context, S places read at once, P places read before,
A heads of width D, H = A * D.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from albertkit.model.encoder import AlbertEncoder, AlbertLayer, BlockWeights

KeyValue = tuple[Tensor, Tensor]
Layers = list[tuple[AlbertLayer, BlockWeights]]


@dataclass
class Context:
    """Keys and values of visual tokens (and of a second text): all that a caption needs of them.

    Attributes:
        states: A pair of keys and values [B, A, C, D] for each layer.
        bias: [B, 1, 1, C], added to the scores: `masks.NEVER` at padding. None without padding.
    """

    states: list[KeyValue]
    bias: Tensor | None = None

    @property
    def num_clips(self) -> int:
        """Return B."""
        return len(self.states[0][0])

    def select(self, rows: Tensor) -> "Context":
        """Return the context of some of the clips."""
        bias = None if self.bias is None else self.bias[rows]
        return Context([(key[rows], value[rows]) for key, value in self.states], bias)


@dataclass
class CaptionState:
    """Cache of a caption: keys and values [R, A, P, D] of each layer; empty at the beginning."""

    states: list[KeyValue] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Return P."""
        return self.states[0][0].shape[2] if self.states else 0

    def reorder(self, rows: Tensor) -> "CaptionState":
        """Return the state whose row i is row `rows[i]` of this one: what a beam search keeps."""
        return CaptionState([(key[rows], value[rows]) for key, value in self.states])

    def cut(self, length: int) -> "CaptionState":
        """Return the first places only."""
        return CaptionState([(key[:, :, :length], value[:, :, :length]) for key, value in self.states])


def split_heads(qkv: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split [B, S, 3H] into queries, keys and values [B, A, S, D]."""
    query, key, value = qkv.view(*qkv.shape[:2], 3, num_heads, -1).permute(2, 0, 3, 1, 4)
    return query, key, value


def encode_context(
    encoder: AlbertEncoder, hidden: Tensor, bias: Tensor | None, diagonal: bool, padding: Tensor | None
) -> Context:
    """Run all layers over a context [B, C, H]; of the last only keys and values are needed.

    `bias`, [B or 1, 1, C, C], is added to the scores, and holds `padding`, [B, 1, 1, C], too. `diagonal`: a token sees itself
    alone, so attention gives its own value, at O(C).
    """
    states: list[KeyValue] = []
    layers = encoder.layers(hidden.dtype)
    for number, (layer, weights) in enumerate(layers, start=1):
        last = number == len(layers)
        if encoder.gradient_checkpointing and torch.is_grad_enabled():
            out = checkpoint(_context_layer, layer, weights, hidden, bias, diagonal, last, use_reentrant=False)
        else:
            out = _context_layer(layer, weights, hidden, bias, diagonal, last)
        hidden, key, value = out
        states.append((key, value))
    return Context(states, padding)


def _context_layer(
    layer: AlbertLayer, weights: BlockWeights, hidden: Tensor, bias: Tensor | None, diagonal: bool, last: bool
) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = split_heads(weights.qkv(hidden), layer.num_heads)
    if not last:
        if diagonal:
            seen = value
        else:
            dropout = layer.attention_dropout if layer.training else 0.0
            seen = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout)
        hidden = layer.after_attention(seen.transpose(1, 2).flatten(2), hidden, weights)
    return hidden, key, value


def read_caption(
    encoder: AlbertEncoder,
    hidden: Tensor,
    context: Context,
    before: CaptionState | None = None,
    ready: Layers | None = None,
) -> tuple[Tensor, CaptionState]:
    """Run all layers over further places of captions, [R, S, H], embedded and projected; row r is of clip r // (R / B).

    Each place sees the context, the places read `before`, itself and those between. `ready` is `encoder.layers`, computed once
    for many words.
    """
    states: list[KeyValue] = []
    causal = torch.full((hidden.shape[1],) * 2, -torch.inf, dtype=hidden.dtype, device=hidden.device).triu(1)
    for number, (layer, weights) in enumerate(ready or encoder.layers(hidden.dtype)):
        arguments = (
            layer,
            weights,
            hidden,
            context.states[number],
            context.bias,
            before.states[number] if before and before.states else None,
            causal,
        )
        if encoder.gradient_checkpointing and torch.is_grad_enabled():
            hidden, key, value = checkpoint(_caption_layer, *arguments, use_reentrant=False)
        else:
            hidden, key, value = _caption_layer(*arguments)
        states.append((key, value))
    return hidden, CaptionState(states)


def _caption_layer(
    layer: AlbertLayer,
    weights: BlockWeights,
    hidden: Tensor,
    context: KeyValue,
    context_bias: Tensor | None,
    before: KeyValue | None,
    causal: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = split_heads(weights.qkv(hidden), layer.num_heads)
    if before is not None:
        key, value = torch.cat([before[0], key], 2), torch.cat([before[1], value], 2)
    (rows, heads, places, width), (clips, _, tokens, _) = query.shape, context[0].shape
    beams = rows // clips
    query = query * width**-0.5
    # The beams of a clip are queries of one product: the clip's keys, which are long, are neither copied nor read twice.
    asked = query.view(clips, beams, heads, places, width).transpose(1, 2).flatten(2, 3)
    to_context = asked @ context[0].transpose(-1, -2)
    if context_bias is not None:
        to_context = to_context + context_bias
    to_context = to_context.view(clips, heads, beams, places, tokens).transpose(1, 2).flatten(0, 1)
    to_caption = query @ key.transpose(-1, -2)
    to_caption[..., -places:] += causal
    probabilities = torch.cat([to_context, to_caption], -1).softmax(-1)
    dropout = layer.attention_dropout if layer.training else 0.0
    kept = F.dropout(probabilities, dropout, layer.training)
    of_context, of_caption = kept.split([tokens, key.shape[2]], -1)
    seen = of_context.reshape(clips, beams, heads, places, tokens).transpose(1, 2).flatten(2, 3) @ context[1]
    seen = seen.view(clips, heads, beams, places, width).transpose(1, 2).flatten(0, 1) + of_caption @ value
    hidden = layer.after_attention(seen.transpose(1, 2).flatten(2), hidden, weights)
    return hidden, key, value


def masked_layers(
    encoder: AlbertEncoder, hidden: Tensor, bias: Tensor | None, attentions: list[Tensor] | None
) -> Tensor:
    """Run all layers over text and video in one, [B, N, H], as SwinBERT does, under any mask.

    `bias`, [B, 1, N or 1, N], is added to the scores; `attentions` receives the probabilities [B, A, N, N] of every layer.
    """
    for layer, weights in encoder.layers(hidden.dtype):
        query, key, value = split_heads(weights.qkv(hidden), layer.num_heads)
        dropout = layer.attention_dropout if layer.training else 0.0
        if attentions is None:
            seen = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout)
        else:
            scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
            probabilities = (scores if bias is None else scores + bias).softmax(-1)
            attentions.append(probabilities)
            seen = F.dropout(probabilities, dropout, layer.training) @ value
        hidden = layer.after_attention(seen.transpose(1, 2).flatten(2), hidden, weights)
    return hidden
