"""Scores of answers when the right ones are known, and the threshold for "no answer" that is chosen by them.

A question is answered if its null odds are at most the threshold. This is how the official evaluate-v2.0.py counts when it
searches for the best threshold; Google's ALBERT then answers only below it, and so falls short of the F1 that was found.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from albertkit.data.bad_rows import counted
from albertkit.errors import ConfigError, DataError
from albertkit.tasks.answers.questions import QuestionExample
from albertkit.tasks.metrics.bootstrap import bootstrap_intervals
from albertkit.tasks.metrics.squad import Version, are_korean, question_scores, squad_scores
from albertkit.tasks.prediction_files import SAME_FILE, File, by_id, read_object, read_predictions
from albertkit.tasks.task import Prediction


def official_version(version: int) -> Version:
    """Return the official script's name of a version."""
    return "2.0" if version == 2 else "1.1"


def gold_pairs(examples: Sequence[QuestionExample]) -> list[tuple[str, list[str]]]:
    """Return id and right answers of each question, as the official scripts take them."""
    return [(example.id, [answer.text for answer in example.answers]) for example in examples]


def best_texts(predictions: Sequence[Prediction]) -> dict[str, str]:
    """Return the best answer with a text, whatever the threshold was; "" if there is none."""
    return {r["id"]: next((entry["text"] for entry in r["nbest"] if entry["text"]), "") for r in predictions}


def answer_details(
    examples: Sequence[QuestionExample], predictions: Sequence[Prediction], version: int
) -> dict[str, Any]:
    """Return intervals of the scores, by drawing questions, and what was done to the data."""
    gold, official = gold_pairs(examples), official_version(version)
    texts = {record["id"]: record["answer"] for record in predictions}
    scores = question_scores(texts, gold, official)
    of_question = 100 * np.array([scores[example.id] for example in examples])
    answerable = np.array([bool(example.answers) for example in examples])
    columns = {"exact" if version == 2 else "exact_match": of_question[:, 0], "f1": of_question[:, 1]}

    def drawn(rows: np.ndarray) -> dict[str, float]:
        found = {name: float(values[rows].mean()) for name, values in columns.items()}
        if version == 2:
            for prefix, group in (("HasAns", rows[answerable[rows]]), ("NoAns", rows[~answerable[rows]])):
                found |= {f"{prefix}_{k}": float(v[group].mean()) if len(group) else np.nan for k, v in columns.items()}
        return found

    groups = {"HasAns": int(answerable.sum()), "NoAns": int((~answerable).sum())}
    sizes = {f"{prefix}_{name}": size for prefix, size in groups.items() for name in columns}
    intervals = bootstrap_intervals(drawn, len(examples), sizes=sizes)
    details: dict[str, Any] = {
        "intervals": {name: list(bounds) for name, bounds in intervals.items()},
        "questions_cut": sum(bool(record.get("question_cut")) for record in predictions),
        "answers_moved_to_where_the_text_has_them": sum(example.repaired for example in examples),
    }
    if are_korean(answer.text for example in examples for answer in example.answers):
        details["notes"] = ["f1 counts words, as SQuAD's script does; KorQuAD's own counts characters"]
    if version == 2:
        odds = {record["id"]: record["null_odds"] for record in predictions}
        best = squad_scores(best_texts(predictions), gold, official, odds)
        names = ("best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh")
        details["best_on_these_questions"] = {name: best[name] for name in names}
    return details


def collapsed_answers(examples: Sequence[QuestionExample], predictions: Sequence[Prediction]) -> str | None:
    """Return a note if all answers are empty though some questions have one, or all stand at the same characters."""
    if len(predictions) < 2:
        return None
    places = {(record["start"], record["end"]) for record in predictions}
    if places == {(None, None)}:
        wanted = sum(bool(example.answers) for example in examples)
        return f"all {len(predictions):,} answers are empty, {wanted:,} questions have one" if wanted else None
    if len(places) == 1:
        start, end = places.pop()
        return f"all {len(predictions):,} answers stand at characters {start} to {end} of their texts"
    return None


class BestThreshold(NamedTuple):
    """The best threshold for a score."""

    # null odds up to which questions are to be answered; below all odds if it is best to answer none
    threshold: float
    score: float  # the mean score that it reaches, 0 to 1


def best_threshold(scores: Sequence[float], null_odds: Sequence[float], answerable: Sequence[bool]) -> BestThreshold:
    """Return the threshold with the best mean score, of several the lowest; of equal odds all are answered or none.

    `scores` are of the best answers that are not empty, 0 to 1; for a question without an answer 0 if the model has any
    answer for it, 1 if not. Not answering scores 1 where there is no answer.
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
    """Divide questions by whole articles: what is chosen on the second part must not have been trained on.

    The second, smaller part is empty if there is one article only.
    """
    sizes = Counter(example.article for example in examples)
    articles = list(sizes)
    held: set[str] = set()
    for number in np.random.default_rng(seed).permutation(len(articles))[:-1]:
        if sum(sizes[article] for article in held) >= share * len(examples):
            break
        held.add(articles[number])
    return [e for e in examples if e.article not in held], [e for e in examples if e.article in held]


# --- anybody's predictions --------------------------------------------------------------------------------------------


def score_answers(
    file: File,
    questions: Sequence[QuestionExample],
    version: int,
    *,
    null_odds: File | None,
    null_threshold: float,
    korean_words: bool,
) -> dict[str, Any]:
    """Score a file of answers: the official script's dictionary, `exact_match` in both versions, and intervals."""
    if not korean_words and are_korean(answer.text for question in questions for answer in question.answers):
        fact = "the answers are Korean: KorQuAD's F1 counts characters, SQuAD's counts words"
        raise ConfigError("doubtful", fact, "use KorQuAD's own script, or say --f1-of words for SQuAD's")
    if null_odds is not None and version == 1:
        raise ConfigError("conflicting-options", "SQuAD 1.1 has no null odds", "leave out --null-odds, or score squad2")
    official, gold = official_version(version), gold_pairs(questions)
    answers, odds = _read_answers(file), None if null_odds is None else _read_odds(null_odds)
    scores = squad_scores(answers, gold, official, odds, null_threshold)
    names = {name for name, _ in gold}
    missing, extra = len(names - answers.keys()), len(answers.keys() - names)
    if missing == len(names):
        fact = f"`{file}` has an answer to none of {counted(missing, 'question')}"
        raise DataError("predictions-mismatch", fact, SAME_FILE)
    overruled = sum(odds[name] > null_threshold and bool(answers.get(name)) for name in names) if odds else 0
    ruled = f"counted as none, with null odds above {null_threshold:g}; --null-threshold says which are"
    notes = [
        (missing, "question", "without a prediction, counted as wrong"),
        (extra, "prediction", "for questions that the gold file lacks, counted for nothing"),
        (overruled, "answer", ruled),
    ]
    columns = np.array(list(question_scores(answers, gold, official).values())).T

    def drawn(rows: np.ndarray) -> dict[str, float]:
        return {
            name: 100 * float(column[rows].mean()) for name, column in zip(("exact_match", "f1"), columns, strict=True)
        }

    return {
        "metric": "f1",
        "exact_match": scores.get("exact_match", scores.get("exact")),
        **scores,
        "examples": len(gold),
        "missing": missing,
        "extra": extra,
        "intervals": {} if overruled else bootstrap_intervals(drawn, len(gold)),
        "notes": [f"{counted(count, thing)} {what}" for count, thing, what in notes if count],
    }


def _read_answers(file: File) -> dict[str, str]:
    """Read answers by question id: SQuAD's `predictions.json`, or records with `id` and `answer`."""
    content = read_object(file)
    if not isinstance(content, dict) or ("answer" in content and "id" in content):
        return by_id(read_predictions(file, ("answer",)), file)
    for name, answer in content.items():
        if not isinstance(answer, str):
            fact = f"`{file}`: the answer to `{name}` is a {type(answer).__name__}, not a text"
            hint = "name predictions.json, not nbest_predictions.json or null_odds.json"
            raise DataError("predictions-mismatch", fact, hint)
    return content


def _read_odds(file: File) -> dict[str, float]:
    content = read_object(file)
    if not isinstance(content, dict) or any(type(odds) not in (int, float) for odds in content.values()):
        fact = f"`{file}` does not map question ids to numbers"
        raise DataError("predictions-mismatch", fact, "name null_odds.json")
    return content
