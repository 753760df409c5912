"""Which frames each word of a caption was read from."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from albertkit.captioning.captioner import Caption, VideoCaptioner
from albertkit.captioning.model import Context

_SPACE = "▁"


@dataclass(frozen=True)
class WordAttention:
    """Attention of each word of a caption to each frame.

    Attributes:
        words: L words.
        shares: float64 [L, F], rows that add up to 1: attention at the place where the word's tokens are predicted, mean over
            layers, heads and tokens, summed over the places in a frame; F frames of visual tokens.
    """

    words: tuple[str, ...]
    shares: np.ndarray


@torch.inference_mode()
def word_attention(captioner: VideoCaptioner, context: Context, caption: Caption) -> WordAttention:
    """Read a caption again and see where it looks.

    Attention tells where information was taken from, not that it made the word what it is.
    """
    model, ids = captioner.model, captioner.caption_ids
    mlm = model.caption.objective == "mlm"
    device = model.device
    text = torch.tensor([ids.start, *caption.ids], device=device)
    looked: list[Tensor] = []
    for place in range(len(caption.ids)):
        # As in the search: the words before, and for mlm a [MASK] where the next is predicted.
        before = torch.cat([text[: place + 1], torch.tensor([ids.mask], device=device)]) if mlm else text[: place + 1]
        attentions: list[Tensor] = []
        model.albert.read(model.albert.embed(before[None]), context, attentions=attentions)
        looked.append(torch.stack([of_pass[0, :, -1] for of_pass in attentions]).mean((0, 1)).double())
    tokens = context.states[0][0].shape[2]
    grid = captioner.grid
    frames = tokens // (grid.height * grid.width) if grid else tokens
    to_video = torch.stack([row[:tokens] for row in looked]).view(len(looked), frames, -1).sum(-1).cpu().numpy()
    words, starts = _words(captioner, caption)
    total = np.add.reduceat(to_video, starts, axis=0)
    return WordAttention(words, total / total.sum(1, keepdims=True))


def _words(captioner: VideoCaptioner, caption: Caption) -> tuple[tuple[str, ...], list[int]]:
    """Return the words of a caption and the number of the first token of each."""
    tokenizer = captioner.tokenizer
    begins = tokenizer.word_starts()
    starts = [0, *(n for n, token in enumerate(caption.ids) if n and begins[token])]
    pieces = [tokenizer.id_to_piece(token) for token in caption.ids]
    bounds = zip(starts, [*starts[1:], len(pieces)], strict=True)
    return tuple("".join(pieces[a:b]).replace(_SPACE, " ").replace("##", "").strip() for a, b in bounds), starts
