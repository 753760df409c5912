"""`generate`: greedy decoding, sampling and beam search over a context."""

from dataclasses import dataclass

import torch
from torch import Tensor

from albertkit.captioning.layers import CaptionState, Context
from albertkit.captioning.model import AlbertForImageCaptioning
from albertkit.captioning.settings import CaptionIds, GenerationSettings
from albertkit.errors import ConfigError
from albertkit.model.layers import BlockWeights, faster_for_few_rows

_FEW_ROWS = (
    4  # see `faster_for_few_rows`: two rows through a matrix take 1.28 ms as x WT, 0.52 as W xT
)
_PRODUCTS = ("qkv", "attention_output", "ffn", "ffn_output")  # of `BlockWeights`


class CaptionReader:
    """Reads R captions, int64 [R, P] from [CLS], of B clips word by word; row r is of clip r // (R / B)."""

    def __init__(
        self,
        model: AlbertForImageCaptioning,
        context: Context,
        rows: int,
        ids: CaptionIds,
        settings: GenerationSettings,
        bad_endings: Tensor,
    ) -> None:
        self.model = model
        self.context = context
        self.ids = ids
        self.settings = settings
        self.bad_endings = bad_endings
        self.captions = torch.full((rows, 1), ids.start, device=model.device)
        self._state = CaptionState()
        self._with_mask = model.caption.objective == "mlm"
        # Weights are cast once for all words of all captions.
        self._layers = model.albert.encoder.layers(context.states[0][0].dtype)
        if rows * (1 + self._with_mask) <= _FEW_ROWS:
            few_row_weights: dict[BlockWeights, BlockWeights] = {}
            for _, weights in self._layers:
                parts = {name: faster_for_few_rows(getattr(weights, name)) for name in _PRODUCTS}
                few_row_weights[weights] = weights._replace(**parts)
            self._layers = [(layer, few_row_weights[weights]) for layer, weights in self._layers]

    def next_log_probabilities(self) -> Tensor:
        """Return fp32 or fp64 [R, V] for the next word; a word that must not come has -inf."""
        last = self.captions[:, -1:]
        length = self._state.length
        input_ids = (
            torch.cat([last, torch.full_like(last, self.ids.mask)], 1) if self._with_mask else last
        )
        positions = torch.arange(length, length + input_ids.shape[1], device=last.device)
        albert = self.model.albert
        hidden, state = albert.read_caption(
            albert.embed(input_ids, positions), self.context, self._state, layers=self._layers
        )
        # The word's states stay, those of [MASK] go. SwinBERT computes all again for every word:
        # 12.3 times the time.
        self._state = state.cut(length + 1)
        logits = self.model.predictions(hidden[:, -1])
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        penalty = self.settings.repetition_penalty
        if penalty != 1:  # Keskar et al. 2019, CTRL, section 4.1; negative logits are multiplied
            present = logits.gather(1, self.captions)
            penalized = torch.where(present < 0, present * penalty, present / penalty)
            logits = logits.scatter(1, self.captions, penalized)
        log_probabilities = logits.log_softmax(-1)
        if self.settings.swinbert:
            return log_probabilities
        log_probabilities[:, [self.ids.start, self.ids.mask, self.ids.padding]] = -torch.inf
        if self.captions.shape[1] == self.settings.longest - 1:  # there is room for the end alone
            log_probabilities[:, : self.ids.end] = log_probabilities[
                :, self.ids.end + 1 :
            ] = -torch.inf
        else:
            bad = torch.isin(self.captions[:, -1], self.bad_endings)
            log_probabilities[bad, self.ids.end] = -torch.inf
        return log_probabilities

    def add(self, words: Tensor, rows: Tensor | None = None) -> None:
        """Append words, int64 [R'], to captions `rows`, int64 [R'], as many of each clip, clips in order; by default to all."""
        if rows is not None:
            beams = len(self.captions) // self.context.num_clips
            clips = rows[::beams] // beams
            # Clips whose search has ended are computed no more.
            if len(clips) < self.context.num_clips:
                self.context = self.context.select(clips)
            self.captions, self._state = self.captions[rows], self._state.reorder(rows)
        self.captions = torch.cat([self.captions, words[:, None]], 1)


class FinishedCaptions:
    """The best finished captions of one clip; SwinBERT keeps as many as it returns, which ends its search early."""

    def __init__(self, size: int, settings: GenerationSettings) -> None:
        self.size = size
        self._penalty = settings.length_penalty
        self._longest = settings.longest - 1
        # Score, log-probability, tokens without [SEP]; the best first.
        self.captions: list[tuple[float, float, Tensor]] = []

    def add(self, caption: Tensor, log_probability: float) -> None:
        """Take a caption, int64 [P] without [SEP], if it is among the best."""
        score = log_probability / len(caption) ** self._penalty
        self.captions.append((score, log_probability, caption))
        self.captions.sort(key=lambda entry: -entry[0])
        del self.captions[self.size :]

    def is_full(self, best: float) -> bool:
        """Return whether no caption that is still going on, the likeliest with log-probability `best`, can come among them."""
        return (
            # More words only lower its sum, so its best score is that of the longest caption with
            # this sum.
            len(self.captions) == self.size
            and self.captions[-1][0] >= best / self._longest**self._penalty
        )


@dataclass(frozen=True)
class Generated:
    """Captions of B clips, K each, the best first.

    Attributes:
        ids: int64 [B, K, L], from [CLS] to [SEP], then padding.
        log_probabilities: [B, K], log-probability of the whole caption.
        scores: [B, K], log-probability over length to the power of the length penalty; the length
            counts [SEP] and not [CLS]. -inf where a search found fewer than K.
    """

    ids: Tensor
    log_probabilities: Tensor
    scores: Tensor


def beam_search(reader: CaptionReader, settings: GenerationSettings) -> Generated:
    """Search for B clips at once; those that are done are left out of what is computed."""
    beams = settings.num_beams
    end = reader.ids.end
    size = settings.num_captions if settings.swinbert else beams
    clips = reader.context.num_clips
    finished = [FinishedCaptions(size, settings) for _ in range(clips)]
    active = list(range(clips))
    scores = torch.full((clips, beams), -1e9, dtype=torch.float32, device=reader.captions.device)
    scores[:, 0] = 0.0  # all beams of a clip begin alike
    while active:
        next_log_probabilities = reader.next_log_probabilities()
        length = reader.captions.shape[1]
        vocabulary = next_log_probabilities.shape[1]
        last = length + 1 == settings.longest
        candidates = scores.view(-1, 1) + next_log_probabilities
        candidates = candidates.view(len(active), beams * vocabulary)
        # Twice as many as beams: if all that end are taken out, enough go on.
        best_scores, best = candidates.topk(2 * beams, 1)
        next_active: list[int] = []
        next_beams: list[tuple[float, int, int]] = []
        for active_index, (clip, candidate_scores, candidate_indices) in enumerate(
            zip(active, best_scores.tolist(), best.tolist(), strict=True)
        ):
            if finished[clip].is_full(candidate_scores[0]):
                continue
            chosen: list[tuple[float, int, int]] = []
            for score, index in zip(candidate_scores, candidate_indices, strict=True):
                row = active_index * beams + index // vocabulary
                word = index % vocabulary
                if score == -torch.inf or len(chosen) == beams:
                    break
                if word == end or last:
                    finished[clip].add(reader.captions[row].clone(), score)
                else:
                    chosen.append((score, word, row))
            if chosen:
                next_active.append(clip)
                next_beams += chosen
                # Where fewer tokens than beams are allowed
                next_beams += [(-1e9, *chosen[0][1:])] * (beams - len(chosen))
        active = next_active
        if active:
            beam_scores, words, rows = zip(*next_beams, strict=True)
            reader.add(
                torch.tensor(words, device=scores.device),
                torch.tensor(rows, device=scores.device),
            )
            scores = torch.tensor(beam_scores, device=scores.device).view(len(active), beams)
    shape = (clips, settings.num_captions)
    ids = torch.full((*shape, settings.longest), reader.ids.padding, device=scores.device)
    log_probabilities = torch.full(shape, -torch.inf, device=scores.device)
    scores_of_captions = log_probabilities.clone()
    for clip, captions in enumerate(finished):
        for rank, (score, log_probability, caption) in enumerate(
            captions.captions[: settings.num_captions]
        ):
            ids[clip, rank, : len(caption)] = caption
            ids[clip, rank, len(caption)] = end
            log_probabilities[clip, rank] = log_probability
            scores_of_captions[clip, rank] = score
    return Generated(ids, log_probabilities, scores_of_captions)


@torch.inference_mode()
def generate(
    model: AlbertForImageCaptioning,
    context: Context,
    settings: GenerationSettings,
    ids: CaptionIds,
    bad_endings: Tensor | None = None,
) -> Generated:
    """Write captions of clips.

    Args:
        model: The captioning model, in evaluation mode.
        context: Context of the clips, from `model.albert.encode_context`.
        settings: Kind and limits of the search.
        ids: The special tokens.
        bad_endings: int64 [E], tokens after which no caption may end.
    """
    positions = model.config.max_position_embeddings
    if settings.longest > positions:
        raise ConfigError(
            "bad-value",
            f"max_length is {settings.longest}, the model has {positions} positions",
            f"use {positions} or less",
        )
    if bad_endings is None:
        bad_endings = torch.empty(0, dtype=torch.int64, device=model.device)
    searching = settings.num_beams > 1 and not settings.sample
    rows = context.num_clips * (settings.num_beams if searching else settings.num_captions)
    reader = CaptionReader(model, context, rows, ids, settings, bad_endings)
    if searching:
        return beam_search(reader, settings)
    return _decode_stepwise(reader, settings)


def _decode_stepwise(reader: CaptionReader, settings: GenerationSettings) -> Generated:
    """Append the likeliest word, or a drawn one, until every caption has ended."""
    end = reader.ids.end
    padding = reader.ids.padding
    rows = len(reader.captions)
    generator = torch.Generator(reader.captions.device).manual_seed(settings.seed)
    total = torch.zeros(rows, dtype=torch.float64, device=reader.captions.device)
    going = torch.ones(rows, dtype=torch.bool, device=reader.captions.device)
    while going.any() and reader.captions.shape[1] < settings.longest:
        log_probabilities = reader.next_log_probabilities()
        if settings.sample:  # from the likeliest tokens: Fan et al. 2018, Holtzman et al. 2020
            probabilities = (log_probabilities / settings.temperature).softmax(-1)
            sorted_probabilities, tokens = probabilities.sort(dim=-1, descending=True, stable=True)
            if settings.top_k:
                sorted_probabilities[:, settings.top_k :] = 0
            if settings.top_p < 1:  # the token that reaches top_p still counts
                before = sorted_probabilities.cumsum(-1) - sorted_probabilities
                sorted_probabilities[
                    before >= settings.top_p * sorted_probabilities.sum(-1, keepdim=True)
                ] = 0
            indices = torch.multinomial(sorted_probabilities, 1, generator=generator)
            words = tokens.gather(1, indices).squeeze(1)
        else:
            words = log_probabilities.argmax(-1)
        chosen = log_probabilities.gather(1, words[:, None]).squeeze(1).double()
        total += torch.where(going, chosen, 0.0)
        reader.add(torch.where(going, words, padding))
        going = going & (words != end)
    captions = reader.captions
    captions[going, -1] = end  # SwinBERT's: the longest length ends them
    captions = torch.nn.functional.pad(
        captions,
        (0, settings.longest - captions.shape[1]),
        value=padding,
    )
    lengths = (captions == end).int().argmax(1)  # [CLS] stands for [SEP]
    shape = (reader.context.num_clips, -1)
    total = total.view(shape)
    scores = total / lengths.view(shape) ** settings.length_penalty
    order = scores.argsort(dim=1, descending=True, stable=True)
    captions = captions.view(*shape, settings.longest)
    return Generated(
        captions.take_along_dim(order[..., None], 1),
        total.gather(1, order).float(),
        scores.gather(1, order).float(),
    )
