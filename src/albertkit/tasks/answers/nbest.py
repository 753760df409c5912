"""From scores of starts and ends to the best answers of a question: what both heads share.

W windows of a question, C candidates of a window. Source: `accumulate_predictions_*` and `write_predictions_*` of
google-research/albert `squad_utils.py`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from albertkit.tasks.features import Features

NO_CANDIDATE = 1e6  # null odds of a question without any candidate; Google's value


class TextWindow(NamedTuple):
    """The part of a text that a sequence shows.

    Attributes:
        first: Place in the sequence of the first token of the text.
        starts: int32 [P], first character of each of them.
        ends: int32 [P], one past the last.
        is_best: bool [P], whether no other window shows more around the token.
    """

    first: int
    starts: np.ndarray
    ends: np.ndarray
    is_best: np.ndarray


class Pairs(NamedTuple):
    """Candidates of a window: places in the sequence of the first and the last token, and their scores.

    Attributes:
        starts: Integers [C].
        ends: Integers [C].
        start_scores: float64 [C].
        end_scores: float64 [C].
    """

    starts: np.ndarray
    ends: np.ndarray
    start_scores: np.ndarray
    end_scores: np.ndarray


class Candidate(NamedTuple):
    """One of the best answers.

    Attributes:
        text: The answer, cut from the text; "" for none.
        start: Its first character; -1 if there is none.
        end: One past its last; -1.
        start_score: Logit or log-probability of the start.
        end_score: Of the end.
    """

    text: str
    start: int
    end: int
    start_score: float
    end_score: float

    @property
    def score(self) -> float:
        """What they are sorted by."""
        return self.start_score + self.end_score


def text_window(features: Features, sequence: int) -> TextWindow:
    """The text of a sequence of `answer_features`."""
    first = int(features.per_sequence["text_starts"][sequence])
    tokens = slice(int(features.offsets[sequence]) + first, int(features.offsets[sequence + 1]) - 1)
    starts, ends, is_best = (features.per_token[name][tokens] for name in ("char_starts", "char_ends", "max_context"))
    return TextWindow(first, starts, ends, is_best)


def best_candidates(
    context: str, windows: Sequence[TextWindow], pairs: Sequence[Pairs], n_best_size: int, max_answer_length: int
) -> list[Candidate]:
    """The best answers of a question, best first, no two with the same text.

    A candidate counts if both its ends are in the text, its start is in the window that shows most around it, and it is at
    most `max_answer_length` tokens long. Of equal scores the earlier stays in front: of the earlier window, then of the
    better start, then of the better end.

    Args:
        context: The text.
        windows: W.
        pairs: W.
        n_best_size: Answers at most.
        max_answer_length: In tokens.

    Returns:
        None to `n_best_size` answers. Google adds one that says "empty" if there is none.
    """
    kept: list[np.ndarray] = []
    for window, (starts, ends, start_scores, end_scores) in zip(windows, pairs, strict=True):
        first, last = starts.astype(np.int64) - window.first, ends.astype(np.int64) - window.first
        fits = (first >= 0) & (first <= last) & (last < len(window.starts)) & (last - first < max_answer_length)
        fits[fits] = window.is_best[first[fits]]
        first, last = first[fits], last[fits]
        kept.append(np.stack([window.starts[first], window.ends[last], start_scores[fits], end_scores[fits]]))
    from_, to, start_scores, end_scores = np.concatenate(kept, axis=1)
    best: dict[str, Candidate] = {}
    for place in np.argsort(-(start_scores + end_scores), kind="stable"):
        if len(best) == n_best_size:
            break
        start, end = int(from_[place]), int(to[place])
        text = context[start:end].strip()
        if text and text not in best:
            start += len(context[start:end]) - len(context[start:end].lstrip())
            scores = float(start_scores[place]), float(end_scores[place])
            best[text] = Candidate(text, start, start + len(text), *scores)
    return list(best.values())


def probabilities(candidates: Sequence[Candidate]) -> list[float]:
    """Softmax over the scores of the best answers: how likely each is if one of them is right."""
    if not candidates:
        return []
    scores = np.array([candidate.score for candidate in candidates])
    grown = np.exp(scores - scores.max())
    return (grown / grown.sum()).tolist()


class Verdict(NamedTuple):
    """What a head says of a question.

    Attributes:
        candidates: The best answers, best first; of SQuAD 2 and the span head "no answer", with an empty text, among them.
        null_odds: How much rather there is no answer, of any sign; None if that is not asked (SQuAD 1.1).
    """

    candidates: list[Candidate]
    null_odds: float | None = None

    @property
    def best(self) -> Candidate | None:
        """The best answer that is one."""
        return next((candidate for candidate in self.candidates if candidate.text), None)
