"""Logits of the next word, computed from the last one alone, with cached states of all before.

Exact: visual tokens do not see the caption, and a word does not see those after it. With the objective `mlm` the word is
predicted where [MASK] stands, so two places are read a step and the state of [MASK] is thrown away.

Microsoft's own history states are exact for greedy decoding and wrong for beams, because they are not reordered.
"""

import torch
from torch import Tensor

from albertkit.captioning.generation.settings import CaptionIds, GenerationSettings
from albertkit.captioning.model import AlbertForImageCaptioning, CaptionState, Context
from albertkit.model.encoder import BlockWeights
from albertkit.model.projections import for_few_rows

_FEW_ROWS = 4  # see `for_few_rows`


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
        self.model, self.context, self.ids, self.settings, self.bad_endings = model, context, ids, settings, bad_endings
        self.captions = torch.full((rows, 1), ids.start, device=model.device)
        self._state = CaptionState()
        self._with_mask = model.caption.objective == "mlm"
        self._ready = model.albert.encoder.layers(context.states[0][0].dtype)
        if rows * (1 + self._with_mask) <= _FEW_ROWS:
            few = {weights: _for_few_rows(weights) for _, weights in self._ready}
            self._ready = [(layer, few[weights]) for layer, weights in self._ready]

    def next_log_probabilities(self) -> Tensor:
        """Return fp32 or fp64 [R, V] for the next word; a word that must not come has -inf."""
        last = self.captions[:, -1:]
        length = self._state.length
        read = torch.cat([last, torch.full_like(last, self.ids.mask)], 1) if self._with_mask else last
        positions = torch.arange(length, length + read.shape[1], device=last.device)
        albert = self.model.albert
        hidden, state = albert.read(albert.embed(read, positions), self.context, self._state, ready=self._ready)
        self._state = state.cut(length + 1)
        logits = self.model.predictions(hidden[:, -1])
        logits = self._with_repetitions(logits.to(torch.promote_types(logits.dtype, torch.float32)))
        return self._allowed(logits.log_softmax(-1))

    def add(self, words: Tensor, rows: Tensor | None = None) -> None:
        """Append words, int64 [R'], to captions `rows`, int64 [R'], as many of each clip, clips in order; by default to all."""
        if rows is not None:
            beams = len(self.captions) // self.context.num_clips
            clips = rows[::beams] // beams
            if len(clips) < self.context.num_clips:
                self.context = self.context.select(clips)
            self.captions, self._state = self.captions[rows], self._state.reorder(rows)
        self.captions = torch.cat([self.captions, words[:, None]], 1)

    def _with_repetitions(self, logits: Tensor) -> Tensor:
        """Penalise repeated tokens (Keskar et al. 2019, CTRL, section 4.1); negative logits are multiplied."""
        penalty = self.settings.repetition_penalty
        if penalty == 1:
            return logits
        present = logits.gather(1, self.captions)
        return logits.scatter(1, self.captions, torch.where(present < 0, present * penalty, present / penalty))

    def _allowed(self, log_probabilities: Tensor) -> Tensor:
        """Forbid special tokens, an end after a bad ending, and all but the end where there is room for one token."""
        if self.settings.swinbert:
            return log_probabilities
        log_probabilities[:, [self.ids.start, self.ids.mask, self.ids.padding]] = -torch.inf
        if self.captions.shape[1] == self.settings.longest - 1:
            log_probabilities[:, : self.ids.end] = log_probabilities[:, self.ids.end + 1 :] = -torch.inf
        else:
            bad = torch.isin(self.captions[:, -1], self.bad_endings)
            log_probabilities[bad, self.ids.end] = -torch.inf
        return log_probabilities


def _for_few_rows(weights: BlockWeights) -> BlockWeights:
    return weights._replace(
        qkv=for_few_rows(weights.qkv),
        attention_output=for_few_rows(weights.attention_output),
        ffn=for_few_rows(weights.ffn),
        ffn_output=for_few_rows(weights.ffn_output),
    )
