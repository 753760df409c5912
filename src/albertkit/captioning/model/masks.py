"""Attention masks of a caption and its video.

T places of the caption, M visual tokens, C tokens of the context: a second text (if there is one), then the visual tokens.
SwinBERT's table (`caption_tensorizer.py`, `get_attn_masks`); rows look at columns:

    from \\ to     caption                 second text    video
    caption       itself and what is       yes            yes
                  before it
    second text   no                       yes            yes
    video         no                       yes            `video_attention`
"""

import torch
from torch import Tensor

from albertkit.errors import ConfigError

# Added to a score that must not count, in SwinBERT's arithmetic. In float32 its exponential is 0.
NEVER = -10_000.0


def score_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what a mask adds to attention scores: (1 - mask) * -10000, as SwinBERT and the first BERTs.

    Args:
        mask: [B, N] of keys, [B, N, N] or [B, 1, N, N]; bool, integers, or shares between 0 and 1.
        dtype: Of the scores.

    Returns:
        [B, 1, 1, N] or [B, 1, N, N].
    """
    if mask.dim() not in (2, 3, 4):
        raise ConfigError("bad-value", f"attention_mask has shape {list(mask.shape)}, expected 2, 3 or 4 dimensions")
    mask = mask[:, None, None] if mask.dim() == 2 else mask[:, None] if mask.dim() == 3 else mask
    return (1.0 - mask.to(dtype)) * NEVER


def gate_values(weight: Tensor, hard: bool) -> Tensor:
    """Return the learned gate: [M * M, 1] to [M, M] between 0 and 1; a visual token always sees itself.

    Source: microsoft/SwinBERT `video_captioning_e2e_vid_swin_bert.py`, `VideoTransformer.forward`.
    """
    gate = _square(torch.sigmoid(weight))
    itself = torch.eye(len(gate), dtype=weight.dtype, device=weight.device)
    gate = (gate >= 0.5).to(weight.dtype) if hard else gate
    return gate * (1 - itself) + itself


def sparsity(weight: Tensor) -> Tensor:
    """Return the sparsity loss, 0-d: how much the gate [M * M, 1] lets through between tokens, over M * M as SwinBERT."""
    gate = _square(torch.sigmoid(weight))
    return (gate.sum() - gate.diagonal().sum()) / gate.numel()


def _square(weight: Tensor) -> Tensor:
    tokens = round(len(weight) ** 0.5)
    return weight.view(tokens, tokens)
