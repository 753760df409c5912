"""Answers of Google's SQuAD 2 head: a beam of starts, ends of each start, and a logit that says "no answer".

N sequences, K starts, M ends of each. Source: google-research/albert `squad_utils.py`, `write_predictions_v2`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from albertkit.model.outputs import BeamQuestionAnsweringOutput
from albertkit.tasks.answers.nbest import Pairs, TextWindow, Verdict, best_candidates


class Beams(NamedTuple):
    """The beams of a sequence; `BeamQuestionAnsweringOutput` says more.

    Attributes:
        starts: int32 [K], places in the sequence.
        start_log_probs: fp32 [K].
        ends: int32 [K·M].
        end_log_probs: fp32 [K·M].
        null: Logit of "no answer".
    """

    starts: np.ndarray
    start_log_probs: np.ndarray
    ends: np.ndarray
    end_log_probs: np.ndarray
    null: float


def beams_of(output: BeamQuestionAnsweringOutput) -> list[Beams]:
    """The beams of each of N sequences, on the host."""
    places, log_probs = (
        (output.start_top_index, output.end_top_index),
        (output.start_top_log_probs, output.end_top_log_probs),
    )
    starts, ends = (tensor.int().cpu().numpy() for tensor in places if tensor is not None)
    start_values, end_values = (tensor.float().cpu().numpy() for tensor in log_probs if tensor is not None)
    rows = zip(starts, start_values, ends, end_values, output.cls_logits.tolist(), strict=True)
    return [Beams(*row) for row in rows]


def judge_beams(
    context: str,
    windows: Sequence[TextWindow],
    beams: Sequence[Beams],
    *,
    version: int,
    n_best_size: int,
    max_answer_length: int,
) -> Verdict:
    """The best answers of a question; the null odds are the lowest logit of "no answer" over its windows.

    Args:
        context: The text.
        windows: W.
        beams: W, of each window.
        version: 1 or 2; in 1 there are no null odds.
        n_best_size: Answers at most.
        max_answer_length: In tokens.
    """
    pairs = [_pairs(beam) for beam in beams]
    best = best_candidates(context, windows, pairs, n_best_size, max_answer_length)
    return Verdict(best, min(beam.null for beam in beams) if version == 2 else None)


def _pairs(beam: Beams) -> Pairs:
    ends_each = len(beam.ends) // len(beam.starts)
    return Pairs(
        np.repeat(beam.starts, ends_each), beam.ends,
        np.repeat(beam.start_log_probs.astype(np.float64), ends_each), beam.end_log_probs.astype(np.float64),
    )  # fmt: skip
