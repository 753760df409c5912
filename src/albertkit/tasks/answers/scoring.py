"""What can be said of predicted answers when the right ones are known."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from albertkit.tasks.answers.files import QuestionExample
from albertkit.tasks.metrics.bootstrap import bootstrap_intervals
from albertkit.tasks.metrics.squad import Version, are_korean, question_scores, squad_scores
from albertkit.tasks.task import Prediction


def official_version(version: int) -> Version:
    """The official script's name of a version."""
    return "2.0" if version == 2 else "1.1"


def gold_pairs(examples: Sequence[QuestionExample]) -> list[tuple[str, list[str]]]:
    """Id and right answers of each question, as the official scripts take them."""
    return [(example.id, [answer.text for answer in example.answers]) for example in examples]


def best_texts(predictions: Sequence[Prediction]) -> dict[str, str]:
    """The best answer that is one, whatever the threshold was; "" if there is none."""
    return {r["id"]: next((entry["text"] for entry in r["nbest"] if entry["text"]), "") for r in predictions}


def answer_details(
    examples: Sequence[QuestionExample], predictions: Sequence[Prediction], version: int
) -> dict[str, Any]:
    """Intervals of the scores, by drawing questions, and what was done to the data.

    Args:
        examples: E questions, labelled.
        predictions: E records.
        version: 1 or 2. In 2, `best_on_these_questions` is what the threshold would reach that is best for these very
            questions: no honest score.
    """
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
    """What to say if all answers are empty though some questions have one, or all stand at the same characters."""
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
