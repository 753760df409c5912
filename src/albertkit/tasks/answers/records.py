"""What is written of an answer."""

from typing import Any

import numpy as np

from albertkit.tasks.answers.nbest import Candidate, Verdict, probabilities
from albertkit.tasks.task import Prediction


def answer_record(name: str, verdict: Verdict, threshold: float) -> Prediction:
    """The record of a question; see `AnswerTask.predictions`.

    Args:
        name: Id of the question.
        verdict: What the head says.
        threshold: Null odds up to which it is answered; where there are none, it is.
    """
    odds, chances = verdict.null_odds, probabilities(verdict.candidates)
    likelihood = dict(zip((c.text for c in verdict.candidates), chances, strict=True))
    chosen = verdict.best if odds is None or odds <= threshold else None
    if chosen is not None:
        score = likelihood[chosen.text]
    elif odds is None:
        score = 0.0
    else:
        score = likelihood.get("", 1 / (1 + float(np.exp(-odds))))
    return {
        "id": name,
        "answer": "" if chosen is None else chosen.text,
        "score": score,
        "start": None if chosen is None else chosen.start,
        "end": None if chosen is None else chosen.end,
        **({} if odds is None else {"null_odds": odds}),
        "nbest": [_shown(c, chance) for c, chance in zip(verdict.candidates, chances, strict=True)],
    }


def official_nbest(record: Prediction) -> list[dict[str, Any]]:
    """The entries of a question in `nbest_predictions.json`: Google's names, of the span head, too, where they are logits."""
    return [
        {
            "text": entry["text"],
            "probability": entry["probability"],
            "start_log_prob": entry["start_score"],
            "end_log_prob": entry["end_score"],
        }
        for entry in record["nbest"]
    ]


def _shown(candidate: Candidate, probability: float) -> dict[str, Any]:
    text, start, end, start_score, end_score = candidate
    place = {"start": start, "end": end} if text else {"start": None, "end": None}
    return {"text": text, "probability": probability, **place, "start_score": start_score, "end_score": end_score}
