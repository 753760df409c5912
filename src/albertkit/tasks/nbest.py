"""Find the best answers of a question from scores of starts and ends, for both heads, and their records.

N sequences, W windows of a question, C candidates of a window. Sources: `accumulate_predictions_*`
and `write_predictions_*` of google-research/albert `squad_utils.py`; for "no answer" of the span
head transformers' `utils_qa.py` (`postprocess_qa_predictions`), which is BERT's `run_squad.py`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from albertkit.batches.features import Features
from albertkit.model.padded import BeamQuestionAnsweringOutput
from albertkit.tasks.task import Prediction

NO_CANDIDATE = 1e6  # null odds of a question without any candidate; Google's value


class TextWindow(NamedTuple):
    """The part of a text that a sequence shows."""

    first: int  # place in the sequence of the first token of the text
    starts: np.ndarray  # int32 [P], first character of each of them
    ends: np.ndarray  # int32 [P], one past the last
    is_best: np.ndarray  # bool [P], whether no other window shows more around the token


class TopPositions(NamedTuple):
    """The best starts and ends of a sequence, best first."""

    starts: np.ndarray  # int32 [K], places in the sequence
    start_scores: np.ndarray  # fp32 [K], logits; log-probabilities of the beam head
    # int32: [K], which go with every start; of the beam head [K·M], M of each start
    ends: np.ndarray
    end_scores: np.ndarray  # fp32, of these
    # score of "no answer": logit of start and of end at the first token, added; of the beam head
    # its own logit
    null: float


class Candidate(NamedTuple):
    """One of the best answers."""

    text: str  # the answer, cut from the text; "" for none
    start: int  # its first character; -1 if there is none
    end: int  # one past its last; -1
    start_score: float  # logit or log-probability of the start
    end_score: float  # of the end

    @property
    def score(self) -> float:
        """Sort key of candidates."""
        return self.start_score + self.end_score


class Verdict(NamedTuple):
    """The answers of a head to a question."""

    # the best answers, best first; of SQuAD 2 and the span head "no answer", with an empty text,
    # among them
    candidates: list[Candidate]
    # how much rather there is no answer, of any sign; None if that is not asked (SQuAD 1.1)
    null_odds: float | None = None

    @property
    def best(self) -> Candidate | None:
        """The best answer with a text."""
        return next((candidate for candidate in self.candidates if candidate.text), None)


def window_of_sequence(features: Features, sequence: int) -> TextWindow:
    """Return the text of a sequence of `answer_features`."""
    first = int(features.per_sequence["text_starts"][sequence])
    tokens = slice(int(features.offsets[sequence]) + first, int(features.offsets[sequence + 1]) - 1)
    starts, ends, is_best = (
        features.per_token[name][tokens] for name in ("char_starts", "char_ends", "max_context")
    )
    return TextWindow(first, starts, ends, is_best)


def top_span_positions(start_logits: Tensor, end_logits: Tensor, count: int) -> list[TopPositions]:
    """Return the best `count` starts and ends of each sequence, of logits [N, S]; of equals the earlier first."""
    columns = []
    for logits in (start_logits, end_logits):
        values, positions = logits.float().sort(dim=-1, descending=True, stable=True)
        columns += [positions[:, :count].int().cpu().numpy(), values[:, :count].cpu().numpy()]
    nulls = start_logits[:, 0].double() + end_logits[:, 0].double()
    return [TopPositions(*row) for row in zip(*columns, nulls.tolist(), strict=True)]


def top_beam_positions(output: BeamQuestionAnsweringOutput) -> list[TopPositions]:
    """Return the beams of each sequence, on the host."""
    positions = (output.start_top_index, output.end_top_index)
    log_probs = (output.start_top_log_probs, output.end_top_log_probs)
    starts, ends = (tensor.int().cpu().numpy() for tensor in positions if tensor is not None)
    start_values, end_values = (
        tensor.float().cpu().numpy() for tensor in log_probs if tensor is not None
    )
    rows = zip(starts, start_values, ends, end_values, output.cls_logits.tolist(), strict=True)
    return [TopPositions(*row) for row in rows]


def best_span_answers(
    context: str,
    windows: Sequence[TextWindow],
    tops: Sequence[TopPositions],
    *,
    version: int,
    n_best_size: int,
    max_answer_length: int,
) -> Verdict:
    """Return the best answers of the span head to a question; every start is tried with every end.

    In version 2 "no answer" takes part in the n-best with its lowest score over the windows, and
    the null odds are that score less the score of the best answer.
    """
    ends_by_start = []
    for top in tops:
        num_starts = len(top.starts)
        ends_by_start.append(
            top._replace(
                ends=np.tile(top.ends, num_starts),
                end_scores=np.tile(top.end_scores, num_starts),
            )
        )
    best = _best_candidates(context, windows, ends_by_start, n_best_size, max_answer_length)
    if version == 1:
        return Verdict(best)
    null = min(top.null for top in tops)
    nothing = Candidate("", -1, -1, null, 0.0)
    odds = null - best[0].score if best else NO_CANDIDATE
    rank = sum(candidate.score >= null for candidate in best)
    candidates = [*best[:rank], nothing, *best[rank:]][:n_best_size]
    return Verdict(candidates if nothing in candidates else [*candidates, nothing], odds)


def best_beam_answers(
    context: str,
    windows: Sequence[TextWindow],
    tops: Sequence[TopPositions],
    *,
    version: int,
    n_best_size: int,
    max_answer_length: int,
) -> Verdict:
    """Return the best answers of Google's beam head; the null odds are the lowest logit of "no answer" over its windows.

    Arguments as of `best_span_answers`.
    """
    best = _best_candidates(context, windows, tops, n_best_size, max_answer_length)
    return Verdict(best, min(top.null for top in tops) if version == 2 else None)


def _best_candidates(
    context: str,
    windows: Sequence[TextWindow],
    tops: Sequence[TopPositions],
    n_best_size: int,
    max_answer_length: int,
) -> list[Candidate]:
    """Return up to `n_best_size` answers, best first, no two with the same text.

    A candidate counts if both its ends are in the text, its start is in the window that shows most
    around it, and it is at most `max_answer_length` tokens long. Of equal scores the earlier stays
    in front: of the earlier window, then of the better start, then of the better end. `tops` have M
    ends of each of their K starts: C is K·M.
    """
    columns: list[np.ndarray] = []
    for window, top in zip(windows, tops, strict=True):
        num_ends = len(top.ends) // len(top.starts)
        first = np.repeat(top.starts, num_ends).astype(np.int64) - window.first
        last = top.ends.astype(np.int64) - window.first
        fits = (
            (first >= 0)
            & (first <= last)
            & (last < len(window.starts))
            & (last - first < max_answer_length)
        )
        fits[fits] = window.is_best[first[fits]]
        all_scores = (np.repeat(top.start_scores, num_ends), top.end_scores)
        scores = [values[fits].astype(np.float64) for values in all_scores]
        columns.append(np.stack([window.starts[first[fits]], window.ends[last[fits]], *scores]))
    from_, to, start_scores, end_scores = np.concatenate(columns, axis=1)
    best: dict[str, Candidate] = {}
    for index in np.argsort(-(start_scores + end_scores), kind="stable"):
        if len(best) == n_best_size:
            break
        start = int(from_[index])
        end = int(to[index])
        text = context[start:end].strip()
        # Google lists a span of white space as an answer "".
        if text and text not in best:
            start += len(context[start:end]) - len(context[start:end].lstrip())
            start_and_end_score = float(start_scores[index]), float(end_scores[index])
            best[text] = Candidate(text, start, start + len(text), *start_and_end_score)
    return list(best.values())


def softmax_of_scores(candidates: Sequence[Candidate]) -> list[float]:
    """Return the softmax over the scores of the best answers: how likely each is if one of them is right."""
    if not candidates:
        return []
    scores = np.array([candidate.score for candidate in candidates])
    grown = np.exp(scores - scores.max())
    return (grown / grown.sum()).tolist()


def make_answer_record(question_id: str, verdict: Verdict, threshold: float) -> Prediction:
    """Return the record of a question, see `AnswerTask.predictions`."""
    odds = verdict.null_odds
    chances = softmax_of_scores(verdict.candidates)
    likelihood = dict(zip((c.text for c in verdict.candidates), chances, strict=True))
    chosen = verdict.best if odds is None or odds <= threshold else None
    if chosen is not None:
        score = likelihood[chosen.text]
    elif odds is None:
        score = 0.0
    else:
        # The beam head has "no answer" apart, not among its candidates.
        score = likelihood.get("", 1 / (1 + float(np.exp(-odds))))
    return {
        "id": question_id,
        "answer": "" if chosen is None else chosen.text,
        "score": score,
        "start": None if chosen is None else chosen.start,
        "end": None if chosen is None else chosen.end,
        **({} if odds is None else {"null_odds": odds}),
        "nbest": [
            {
                "text": candidate.text,
                "probability": chance,
                "start": candidate.start if candidate.text else None,
                "end": candidate.end if candidate.text else None,
                "start_score": candidate.start_score,
                "end_score": candidate.end_score,
            }
            for candidate, chance in zip(verdict.candidates, chances, strict=True)
        ],
    }


def official_nbest(record: Prediction) -> list[dict[str, Any]]:
    """Return the entries of a question in `nbest_predictions.json`; Google's names also for the span head's logits."""
    names = {
        "text": "text",
        "probability": "probability",
        "start_log_prob": "start_score",
        "end_log_prob": "end_score",
    }
    return [
        {name: entry[own_name] for name, own_name in names.items()} for entry in record["nbest"]
    ]
