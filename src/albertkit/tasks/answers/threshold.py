"""Up to which null odds a question is answered, and the questions that this is chosen on.

A question is answered if its null odds are at most the threshold. This is how the official evaluate-v2.0.py counts when it
searches for the best threshold; Google's ALBERT then answers only below it, and so falls short of the F1 that was found.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from albertkit.tasks.answers.files import QuestionExample


class BestThreshold(NamedTuple):
    """The best threshold for a score.

    Attributes:
        threshold: Null odds up to which questions are to be answered; below all odds if it is best to answer none.
        score: The mean score that it reaches, 0 to 1.
    """

    threshold: float
    score: float


def best_threshold(scores: Sequence[float], null_odds: Sequence[float], answerable: Sequence[bool]) -> BestThreshold:
    """The threshold with the best mean score, of several the lowest; of equal odds all are answered or none.

    Args:
        scores: E scores, 0 to 1, of the best answers that are not empty. For a question without an answer: 0 if the model
            has any answer for it, 1 if not.
        null_odds: E.
        answerable: E, whether there is an answer. Not answering scores 1 where there is none.
    """
    odds, has_answer = np.array(null_odds, np.float64), np.array(answerable, np.bool_)
    gained = np.array(scores, np.float64) - ~has_answer  # by answering rather than not
    order = np.argsort(odds, kind="stable")
    odds, total = odds[order], np.cumsum(gained[order])
    possible = np.flatnonzero(np.append(odds[1:] != odds[:-1], True))
    best = possible[np.argmax(total[possible])]
    none = float((~has_answer).sum())
    if total[best] <= 0:
        return BestThreshold(float(np.nextafter(odds[0], -np.inf)), none / len(odds))
    return BestThreshold(float(odds[best]), float(none + total[best]) / len(odds))


def hold_out_articles(
    examples: Sequence[QuestionExample], share: float, seed: int
) -> tuple[list[QuestionExample], list[QuestionExample]]:
    """Part questions by whole articles: what is chosen on the second part must not have been trained on.

    Args:
        examples: In any order.
        share: Of the questions that the second part has at least, unless that would leave no article.
        seed: Of the choice of articles.

    Returns:
        The larger and the smaller part, each in order; the smaller is empty if there is one article only.
    """
    sizes = Counter(example.article for example in examples)
    articles = list(sizes)
    held: set[str] = set()
    for number in np.random.default_rng(seed).permutation(len(articles))[:-1]:
        if sum(sizes[article] for article in held) >= share * len(examples):
            break
        held.add(articles[number])
    return [e for e in examples if e.article not in held], [e for e in examples if e.article in held]
