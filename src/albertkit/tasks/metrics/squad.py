"""Exact match and F1 of answers, as the official scripts evaluate-v1.1.py and evaluate-v2.0.py compute them.

The versions differ when prediction and gold both normalise to nothing: 1.1 gives exact 1 and F1 0, 2.0 gives 1 and 1.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from albertkit.errors import DataError

Version = Literal["1.1", "2.0"]
Scores = Mapping[str, float]  # question id to 0 to 1

_HANGUL = re.compile("[\uac00-\ud7a3]")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Return a text in lower case, without ASCII punctuation, English articles and repeated spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def are_korean(golds: Iterable[str]) -> bool:
    """Return whether most answers hold Hangul.

    KorQuAD counts the characters that an answer shares with the right one; SQuAD counts words, which in Korean carry
    particles, so that its F1 of the same answers is lower.
    """
    korean = [bool(_HANGUL.search(gold)) for gold in golds]
    return sum(korean) > 0.5 * len(korean)


def exact_match(prediction: str, golds: Sequence[str], version: Version = "2.0") -> float:
    """Return 1 if the prediction equals one of the gold answers after normalisation, else 0."""
    predicted = normalize_answer(prediction)
    return float(any(predicted == gold for gold in _normalized(golds, version)))


def f1(prediction: str, golds: Sequence[str], version: Version = "2.0") -> float:
    """Return the largest F1 of the prediction's words with those of a gold answer; arguments as `exact_match`."""
    words = normalize_answer(prediction).split()
    return max(_word_f1(words, gold.split(), version) for gold in _normalized(golds, version))


def question_scores(
    predictions: Mapping[str, str], gold: Iterable[tuple[str, Sequence[str]]], version: Version
) -> dict[str, tuple[float, float]]:
    """Return exact match and F1 of each question, 0 to 1, in the order of the gold data. A missing prediction scores 0."""
    scores = {}
    for name, answers in gold:
        if version == "1.1" and not answers:
            raise DataError(
                "bad-row", f"question `{name}` has no answer, which SQuAD 1.1 does not know", "score it as squad2"
            )
        given = predictions.get(name)
        scores[name] = (
            (0.0, 0.0) if given is None else (exact_match(given, answers, version), f1(given, answers, version))
        )
    return scores


def squad_scores(
    predictions: Mapping[str, str],
    gold: Sequence[Any],
    version: Version,
    null_odds: Mapping[str, float] | None = None,
    null_threshold: float = 1.0,
) -> dict[str, float]:
    """Return what the official script prints, in per cent.

    Returns:
        1.1: exact_match, f1. 2.0: exact, f1, total, and the same of the questions with answers (`HasAns_…`) and without
        (`NoAns_…`); with null odds also best_exact, best_exact_thresh, best_f1, best_f1_thresh and the average precisions
        pr_exact_ap, pr_f1_ap, pr_oracle_ap. A missing prediction counts as wrong; the official script of 2.0 stops there.
    """
    questions = [
        item if isinstance(item, tuple) else (item.id, [answer.text for answer in item.answers]) for item in gold
    ]
    if not questions:
        raise DataError("too-little-data", "there are no questions to score", "name a file of questions with answers")
    scores = question_scores(predictions, questions, version)
    exact, words = ({name: pair[column] for name, pair in scores.items()} for column in (0, 1))
    if version == "1.1":
        return {"exact_match": _percent(exact, exact), "f1": _percent(words, words)}
    answerable = {name: bool(answers) for name, answers in questions}
    if null_odds is None:
        return _by_answerable(exact, words, answerable)
    if missing := [name for name in scores if name not in null_odds]:
        raise DataError(
            "missing-file",
            f"the null odds lack {len(missing):,} questions, for example `{missing[0]}`",
            "name the null_odds.json that was written beside these predictions",
        )
    as_null = {name: float(not answerable[name]) for name in predictions if null_odds.get(name, 0) > null_threshold}
    values = _by_answerable(exact | as_null, words | as_null, answerable)
    for name, column in (("exact", exact), ("f1", words)):
        best = _best_threshold(column, predictions, null_odds, answerable)
        values[f"best_{name}"], values[f"best_{name}_thresh"] = best
    if any(answerable.values()):
        oracle = {name: float(has_answer) for name, has_answer in answerable.items()}
        for name, column in (("exact", exact), ("f1", words), ("oracle", oracle)):
            values[f"pr_{name}_ap"] = _average_precision(column, null_odds, answerable)
    return values


def _by_answerable(exact: Scores, words: Scores, answerable: Mapping[str, bool]) -> dict[str, float]:
    values: dict[str, float] = {}
    for prefix, kinds in (("", (True, False)), ("HasAns_", (True,)), ("NoAns_", (False,))):
        if names := [name for name, has_answer in answerable.items() if has_answer in kinds]:
            values[f"{prefix}exact"], values[f"{prefix}f1"] = _percent(exact, names), _percent(words, names)
            values[f"{prefix}total"] = len(names)
    return values


def _normalized(golds: Sequence[str], version: Version) -> list[str]:
    normal = [normalize_answer(gold) for gold in golds]
    return normal if version == "1.1" else [gold for gold in normal if gold] or [""]


def _word_f1(predicted: list[str], gold: list[str], version: Version) -> float:
    if version == "2.0" and not (predicted and gold):
        return float(predicted == gold)
    same = sum((Counter(predicted) & Counter(gold)).values())
    if not same:
        return 0.0
    precision, recall = same / len(predicted), same / len(gold)
    return 2 * precision * recall / (precision + recall)


def _percent(scores: Scores, names: Iterable[str]) -> float:
    """Add one by one, as the scripts do: the built-in sum compensates rounding since Python 3.12, and would differ."""
    values = [scores[name] for name in names]
    return float(100.0 * np.cumsum(values)[-1] / len(values))


def _best_threshold(
    scores: Scores,
    predictions: Mapping[str, str],
    odds: Mapping[str, float],
    answerable: Mapping[str, bool],
) -> tuple[float, float]:
    """Return the best score in per cent, and the odds up to which, inclusive, questions are answered to reach it.

    Among equal odds the order of `odds` decides, and a threshold may fall between them: so the official script.
    """
    score = best = float(sum(not has_answer for has_answer in answerable.values()))
    threshold = 0.0
    for name in sorted((name for name in odds if name in scores), key=odds.__getitem__):
        score += scores[name] if answerable[name] else -1.0 if predictions.get(name) else 0.0
        if score > best:
            best, threshold = score, odds[name]
    return 100.0 * best / len(scores), threshold


def _average_precision(scores: Scores, odds: Mapping[str, float], answerable: Mapping[str, bool]) -> float:
    """Return the area under precision over recall as questions are answered in the order of their odds, in per cent."""
    names = sorted((name for name in odds if name in scores), key=odds.__getitem__)
    right = np.cumsum([scores[name] if answerable[name] else 0.0 for name in names])
    ordered = np.array([odds[name] for name in names])
    ends = np.append(ordered[1:] != ordered[:-1], True)  # a threshold cannot part equal odds
    precision = (right / np.arange(1, len(names) + 1))[ends]
    recall = (right / sum(answerable.values()))[ends]
    return float(100.0 * np.sum(precision * np.diff(recall, prepend=0.0)))
