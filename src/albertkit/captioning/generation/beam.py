"""Beam search: the likeliest captions, by a score that does not favour short ones."""

import torch
from torch import Tensor

from albertkit.captioning.generation.reader import CaptionReader
from albertkit.captioning.generation.settings import GenerationSettings


class FinishedCaptions:
    """The best finished captions of one clip.

    Args:
        size: How many are kept. SwinBERT keeps as many as it returns, which ends its search early.
        settings: Length penalty and longest length.
    """

    def __init__(self, size: int, settings: GenerationSettings) -> None:
        self.size, self._penalty, self._longest = size, settings.length_penalty, settings.longest - 1
        # Score, log-probability, pieces without [SEP]; the best first.
        self.found: list[tuple[float, float, Tensor]] = []

    def add(self, caption: Tensor, log_probability: float) -> None:
        """Take a caption, int64 [P] without [SEP], if it is among the best."""
        score = log_probability / len(caption) ** self._penalty
        self.found.append((score, log_probability, caption))
        self.found.sort(key=lambda entry: -entry[0])
        del self.found[self.size :]

    def is_full(self, best: float) -> bool:
        """Whether no caption that is still going on, the likeliest with log-probability `best`, can come among them."""
        return len(self.found) == self.size and self.found[-1][0] >= best / self._longest**self._penalty


def beam_search(reader: CaptionReader, settings: GenerationSettings) -> tuple[Tensor, Tensor, Tensor]:
    """Search for B clips at once; those that are done are left out of what is computed.

    Args:
        reader: With `num_beams` rows a clip.
        settings: How.

    Returns:
        As the fields of `Generated`.
    """
    beams, end = settings.num_beams, reader.ids.end
    size = settings.num_captions if settings.swinbert else beams
    clips = reader.context.num_clips
    finished = [FinishedCaptions(size, settings) for _ in range(clips)]
    active = list(range(clips))
    scores = torch.full((clips, beams), -1e9, dtype=torch.float32, device=reader.captions.device)
    scores[:, 0] = 0.0  # all beams of a clip begin alike
    while active:
        log_probabilities = reader.next_log_probabilities()
        length, pieces = reader.captions.shape[1], log_probabilities.shape[1]
        last = length + 1 == settings.longest
        candidates = (scores.view(-1, 1) + log_probabilities).view(len(active), beams * pieces)
        # Twice as many as beams: if all that end are taken out, enough go on.
        best_scores, best = candidates.topk(2 * beams, 1)
        going: list[int] = []
        kept: list[tuple[float, int, int]] = []
        for place, (clip, of_clip, where) in enumerate(zip(active, best_scores.tolist(), best.tolist(), strict=True)):
            if finished[clip].is_full(of_clip[0]):
                continue
            chosen: list[tuple[float, int, int]] = []
            for score, index in zip(of_clip, where, strict=True):
                row, word = place * beams + index // pieces, index % pieces
                if score == -torch.inf or len(chosen) == beams:
                    break
                if word == end or last:
                    finished[clip].add(reader.captions[row].clone(), score)
                else:
                    chosen.append((score, word, row))
            if chosen:
                going.append(clip)
                kept += chosen
                kept += [(-1e9, *chosen[0][1:])] * (beams - len(chosen))  # where fewer pieces than beams are allowed
        active = going
        if active:
            kept_scores, words, rows = zip(*kept, strict=True)
            reader.add(torch.tensor(words, device=scores.device), torch.tensor(rows, device=scores.device))
            scores = torch.tensor(kept_scores, device=scores.device).view(len(active), beams)
    return _stacked(finished, reader, settings)


def _stacked(
    finished: list[FinishedCaptions], reader: CaptionReader, settings: GenerationSettings
) -> tuple[Tensor, Tensor, Tensor]:
    shape = (len(finished), settings.num_captions)
    device = reader.captions.device
    ids = torch.full((*shape, settings.longest), reader.ids.padding, device=device)
    totals = torch.full(shape, -torch.inf, device=device)
    scores = totals.clone()
    for clip, captions in enumerate(finished):
        for place, (score, total, caption) in enumerate(captions.found[: settings.num_captions]):
            ids[clip, place, : len(caption)] = caption
            ids[clip, place, len(caption)] = reader.ids.end
            totals[clip, place], scores[clip, place] = total, score
    return ids, totals, scores
