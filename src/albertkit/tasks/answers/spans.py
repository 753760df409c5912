"""Answers of the head with two logits a token, a start and an end: Google's SQuAD 1 model, transformers' for both versions.

N sequences, K places each. Sources: google-research/albert `squad_utils.py` (`write_predictions_v1`); for "no answer"
transformers' `utils_qa.py` (`postprocess_qa_predictions`), which is BERT's `run_squad.py`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from albertkit.tasks.answers.nbest import NO_CANDIDATE, Candidate, Pairs, TextWindow, Verdict, best_candidates


class TopSpans(NamedTuple):
    """What is kept of the logits of a sequence: the K best starts and ends, best first.

    Attributes:
        starts: int32 [K], places in the sequence.
        start_logits: fp32 [K].
        ends: int32 [K].
        end_logits: fp32 [K].
        null: Logit of start and of end at the first token, added: the score of "no answer".
    """

    starts: np.ndarray
    start_logits: np.ndarray
    ends: np.ndarray
    end_logits: np.ndarray
    null: float


def top_spans(start_logits: Tensor, end_logits: Tensor, count: int) -> list[TopSpans]:
    """The best starts and ends of each sequence; of equals the earlier first.

    Args:
        start_logits: [N, S].
        end_logits: [N, S].
        count: K at most.
    """
    (start_values, starts), (end_values, ends) = (_best(logits, count) for logits in (start_logits, end_logits))
    nulls = start_logits[:, 0].double() + end_logits[:, 0].double()
    columns = [column.cpu().numpy() for column in (starts.int(), start_values, ends.int(), end_values)]
    return [TopSpans(a, b, c, d, null) for a, b, c, d, null in zip(*columns, nulls.tolist(), strict=True)]


def _best(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    values, places = logits.float().sort(dim=-1, descending=True, stable=True)
    return values[:, :count], places[:, :count]


def judge_spans(
    context: str,
    windows: Sequence[TextWindow],
    tops: Sequence[TopSpans],
    *,
    version: int,
    n_best_size: int,
    max_answer_length: int,
) -> Verdict:
    """The best answers of a question.

    In version 2 "no answer" takes part in the n-best with its lowest score over the windows, and the null odds are that
    score less the score of the best answer.

    Args:
        context: The text.
        windows: W.
        tops: W, of each window.
        version: 1 or 2.
        n_best_size: Answers at most; also how many starts and how many ends of a window are tried.
        max_answer_length: In tokens.
    """
    pairs = [_pairs(top, n_best_size) for top in tops]
    best = best_candidates(context, windows, pairs, n_best_size, max_answer_length)
    if version == 1:
        return Verdict(best)
    null = min(top.null for top in tops)
    nothing = Candidate("", -1, -1, null, 0.0)
    odds = null - best[0].score if best else NO_CANDIDATE
    place = sum(candidate.score >= null for candidate in best)
    kept = [*best[:place], nothing, *best[place:]][:n_best_size]
    return Verdict(kept if nothing in kept else [*kept, nothing], odds)


def _pairs(top: TopSpans, count: int) -> Pairs:
    """Every start with every end, in the order of the starts."""
    starts, ends = top.starts[:count], top.ends[:count]
    start_scores, end_scores = top.start_logits[:count].astype(np.float64), top.end_logits[:count].astype(np.float64)
    return Pairs(
        np.repeat(starts, len(ends)), np.tile(ends, len(starts)),
        np.repeat(start_scores, len(ends)), np.tile(end_scores, len(starts)),
    )  # fmt: skip
