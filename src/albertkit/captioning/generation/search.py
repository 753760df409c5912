"""`generate`: greedy decoding, sampling and beam search over a context."""

from dataclasses import dataclass

import torch
from torch import Tensor

from albertkit.captioning.generation.beam import beam_search
from albertkit.captioning.generation.reader import CaptionReader
from albertkit.captioning.generation.settings import CaptionIds, GenerationSettings
from albertkit.captioning.model import AlbertForImageCaptioning, Context
from albertkit.errors import ConfigError


@dataclass(frozen=True)
class Generated:
    """Captions of B clips, K each, the best first.

    Attributes:
        ids: int64 [B, K, L], from [CLS] to [SEP], then padding.
        log_probabilities: [B, K], of the whole caption.
        scores: [B, K], log-probability over length to the power of the length penalty; the length counts [SEP] and not [CLS].
            -inf where a search found fewer than K.
    """

    ids: Tensor
    log_probabilities: Tensor
    scores: Tensor


@torch.inference_mode()
def generate(
    model: AlbertForImageCaptioning,
    context: Context,
    settings: GenerationSettings,
    ids: CaptionIds,
    bad_endings: Tensor | None = None,
) -> Generated:
    """Put clips into words.

    Args:
        model: In evaluation mode.
        context: Of the clips, from `model.albert.encode_context`.
        settings: How.
        ids: The pieces to know.
        bad_endings: int64 [E], pieces after which no caption may end.

    Raises:
        ConfigError: bad-settings if captions would be longer than the model has positions.
    """
    positions = model.config.max_position_embeddings
    if settings.longest > positions:
        raise ConfigError(
            "bad-settings",
            f"max_length is {settings.longest}, the model has {positions} positions",
            f"use {positions} or less",
        )
    if bad_endings is None:
        bad_endings = torch.empty(0, dtype=torch.int64, device=model.device)
    searching = settings.num_beams > 1 and not settings.sample
    rows = context.num_clips * (settings.num_beams if searching else settings.num_captions)
    reader = CaptionReader(model, context, rows, ids, settings, bad_endings)
    if searching:
        return Generated(*beam_search(reader, settings))
    return _one_by_one(reader, settings)


def _one_by_one(reader: CaptionReader, settings: GenerationSettings) -> Generated:
    """The likeliest word after the other, or drawn ones."""
    end, padding = reader.ids.end, reader.ids.padding
    rows = len(reader.captions)
    generator = torch.Generator(reader.captions.device).manual_seed(settings.seed)
    total = torch.zeros(rows, dtype=torch.float64, device=reader.captions.device)
    going = torch.ones(rows, dtype=torch.bool, device=reader.captions.device)
    while going.any() and reader.captions.shape[1] < settings.longest:
        log_probabilities = reader.next_log_probabilities()
        words = _draw(log_probabilities, settings, generator) if settings.sample else log_probabilities.argmax(-1)
        chosen = log_probabilities.gather(1, words[:, None]).squeeze(1).double()
        total += torch.where(going, chosen, 0.0)
        reader.add(torch.where(going, words, padding))
        going = going & (words != end)
    captions = reader.captions
    captions[going, -1] = end  # SwinBERT's: the longest length ends them
    captions = torch.nn.functional.pad(captions, (0, settings.longest - captions.shape[1]), value=padding)
    lengths = (captions == end).int().argmax(1)  # [CLS] stands for [SEP]
    shape = (reader.context.num_clips, -1)
    scores = total / lengths**settings.length_penalty
    order = scores.view(shape).argsort(dim=1, descending=True, stable=True)
    return Generated(
        captions.view(*shape, settings.longest).gather(1, order[..., None].expand(-1, -1, settings.longest)),
        total.view(shape).gather(1, order).float(),
        scores.view(shape).gather(1, order).float(),
    )


def _draw(log_probabilities: Tensor, settings: GenerationSettings, generator: torch.Generator) -> Tensor:
    """A word [R] each, from the likeliest pieces (Fan et al. 2018; Holtzman et al. 2020)."""
    probabilities = (log_probabilities / settings.temperature).softmax(-1)
    sorted_probabilities, pieces = probabilities.sort(dim=-1, descending=True, stable=True)
    if settings.top_k:
        sorted_probabilities[:, settings.top_k :] = 0
    if settings.top_p < 1:  # the piece that reaches top_p still counts
        before = sorted_probabilities.cumsum(-1) - sorted_probabilities
        sorted_probabilities[before >= settings.top_p * sorted_probabilities.sum(-1, keepdim=True)] = 0
    place = torch.multinomial(sorted_probabilities, 1, generator=generator)
    return pieces.gather(1, place).squeeze(1)
