"""`score_file`: predictions of any origin against the labels, as the official scripts score them."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from albertkit.corpus.inputs import ByteStream, find_inputs
from albertkit.errors import ConfigError, DataError
from albertkit.files import check_new_folder
from albertkit.report.task_results import for_json, save_results
from albertkit.tasks.answers import AnswerTask, QuestionExample
from albertkit.tasks.choices import ChoiceTask
from albertkit.tasks.data import read_split
from albertkit.tasks.faults import Faults, counted
from albertkit.tasks.metrics.bootstrap import bootstrap_intervals
from albertkit.tasks.metrics.squad import Version, are_korean, question_scores, squad_scores
from albertkit.tasks.metrics.tagging import spans
from albertkit.tasks.registry import find_task
from albertkit.tasks.scoring.files import File, read_answers, read_odds
from albertkit.tasks.scoring.tables import TABLES, choice_records, table_records, text_records
from albertkit.tasks.scoring.tags import read_tags
from albertkit.tasks.tagging import TaggingTask
from albertkit.tasks.task import Task
from albertkit.tasks.texts.task import TextTask

Results = dict[str, Any]


def score_file(
    task: str | Task,
    predictions: File,
    gold: File | None = None,
    *,
    label: str | None = None,
    id: str | None = None,
    null_odds: File | None = None,
    null_threshold: float = 1.0,
    f1_of: Literal["words"] | None = None,
    on_error: Literal["stop", "skip"] = "stop",
    out: File | None = None,
) -> Results:
    """Score a file of predictions.

    Args:
        task: A task or its name; "squad": 1.1 or 2.0, as the gold file says; "classify", "regress", "multilabel": a table.
        predictions: SQuAD's `predictions.json`; a table or JSON records, joined to the examples by id or, if the ids are
            0, 1, 2, …, by position; CoNLL columns, the last of which is the prediction. May be compressed.
        gold: The labelled file, in the task's own layout. Of tagging it may be left out: then the last two columns of
            `predictions` are the gold tag and the predicted one, as conlleval has them.
        label: Of a table: column of the labels.
        id: Of a table: column of the ids. Default: `id`, `index`, `idx` or `guid`, if it is there.
        null_odds: SQuAD 2.0: `null_odds.json`; adds the best thresholds and average precisions.
        null_threshold: Questions with larger null odds count as unanswered, as the official script has it.
        f1_of: words: count the words of Korean answers, too, as SQuAD's script does; by default these are refused, because
            KorQuAD's F1 counts characters.
        on_error: What to do about rows of the gold file that cannot be used.
        out: Folder for `results.json` and, with the extra `report`, a picture.

    Returns:
        Plain values for JSON: task, metric (the score that counts), the scores by name (of SQuAD `exact_match` and `f1`, in
        per cent), examples, notes, and where the task has them intervals, classes, types, confusion.

    Raises:
        ConfigError: unknown-task, missing-column, missing-gold, conflicting-options, other-f1. DataError: ids-mismatch,
            duplicate-ids, wrong-number, words-mismatch, unknown-label, wrong-predictions, missing-odds, no-answer,
            no-examples, and what reading raises.
    """
    if out is not None:
        check_new_folder(out)
    faults = Faults(on_error)
    name = task if isinstance(task, str) else task.name
    if (label or id) and name not in TABLES:
        raise ConfigError(
            "conflicting-options", f"`{name}` has a format of its own", "leave out --label-column and --id-column"
        )
    found = None if name in TABLES else task if isinstance(task, Task) else _find(name, gold)
    if null_odds is not None and not isinstance(found, AnswerTask):
        raise ConfigError("conflicting-options", f"`{name}` has no null odds", "leave out --null-odds")
    if found is None:
        results = _results(*table_records(name, predictions, _needed(gold), label, id, faults))
    elif isinstance(found, TaggingTask):
        results = _score_tags(found, predictions, gold, faults)
    else:
        examples = _read(found, _needed(gold), faults)
        if isinstance(found, AnswerTask):
            if f1_of is None and are_korean(answer.text for question in examples for answer in question.answers):
                raise ConfigError(
                    "other-f1", f"the answers in `{gold}` are Korean: KorQuAD's F1 counts characters, SQuAD's counts words",
                    "use KorQuAD's own script, or say --f1-of words for SQuAD's",
                )  # fmt: skip
            results = _score_answers(found, predictions, examples, null_odds, null_threshold)
        elif isinstance(found, ChoiceTask):
            results = _results(found, examples, choice_records(examples, predictions))
        else:
            records = text_records(cast(TextTask, found), predictions, [example.id for example in examples])
            results = _results(found, examples, records)
    if faults.found:
        first = faults.found[0]
        results["notes"].append(
            f"rows of the gold file left out: {len(faults.found):,}, the first: {first.where}, {first.reason}"
        )
    if out is not None:
        save_results(results, out, results["task"])
    return for_json({key: value for key, value in results.items() if key != "pairs"})


def _find(name: str, gold: File | None) -> Task:
    if name.lower() != "squad":
        return find_task(name)
    with ByteStream(find_inputs([_needed(gold)])[0]) as stream:
        content = b"".join(iter(stream.read, b""))
    version_2 = re.search(rb'"version"\s*:\s*"v?2|"is_impossible"\s*:\s*true', content)
    return find_task("squad2" if version_2 else "squad1")


def _needed(gold: File | None) -> File:
    if gold is None:
        raise ConfigError("missing-gold", "no file of labels to score against", "name it after the predictions")
    return gold


def _read(task: Task, file: File, faults: Faults) -> list[Any]:
    return read_split(task, Path(file), "dev", faults)


def _results(
    task: Task, examples: Sequence[Any], records: Sequence[dict[str, Any]], notes: Sequence[str] = ()
) -> Results:
    """Scored by the task itself, on records as its `predictions` makes them."""
    scores, details = task.score(examples, records), task.details(examples, records)
    told = [note for note in (*notes, task.collapsed(examples, records)) if note]
    return {"task": task.name, "metric": task.metric, **scores, "examples": len(examples), **details, "notes": told}


def _score_tags(task: TaggingTask, predictions: File, gold: File | None, faults: Faults) -> Results:
    if gold is None:
        task = task.with_changes(tag_column=-2)
    examples = _read(task, predictions if gold is None else gold, faults)
    tags = read_tags(predictions, examples)
    records = [{"id": e.id, "tags": row, "entities": spans(row)} for e, row in zip(examples, tags, strict=True)]
    return _results(task, examples, records)


def _score_answers(
    task: AnswerTask,
    predictions: File,
    questions: Sequence[QuestionExample],
    null_odds: File | None,
    null_threshold: float,
) -> Results:
    """The official script's dictionary, `exact_match` in both versions, and intervals over the questions."""
    version: Version = "2.0" if task.version == 2 else "1.1"
    if null_odds is not None and version == "1.1":
        raise ConfigError("conflicting-options", "SQuAD 1.1 has no null odds", "leave out --null-odds, or score squad2")
    gold = [(question.id, [answer.text for answer in question.answers]) for question in questions]
    answers, odds = read_answers(predictions), None if null_odds is None else read_odds(null_odds)
    scores = squad_scores(answers, gold, version, odds, null_threshold)
    names = {name for name, _ in gold}
    missing, extra = len(names - answers.keys()), len(answers.keys() - names)
    if missing == len(names):
        raise DataError(
            "ids-mismatch",
            f"`{predictions}` has an answer to none of {counted(missing, 'question')}",
            "predict the very file that is scored",
        )
    overruled = sum(odds[name] > null_threshold and bool(answers.get(name)) for name in names) if odds else 0
    notes = [
        (missing, "question", "without a prediction, counted as wrong"),
        (extra, "prediction", "for questions that the gold file lacks, counted for nothing"),
        (overruled, "answer", f"counted as none, with null odds above {null_threshold:g}; --null-threshold says which are"),
    ]  # fmt: skip
    of_question = np.array(list(question_scores(answers, gold, version).values()))
    intervals = {} if overruled else bootstrap_intervals(
        lambda rows: dict(zip(("exact_match", "f1"), (100 * of_question[rows].mean(0)).tolist(), strict=True)), len(gold)
    )  # fmt: skip
    return {
        "task": task.name, "metric": "f1", "exact_match": scores.get("exact_match", scores.get("exact")), **scores,
        "examples": len(gold), "missing": missing, "extra": extra, "intervals": intervals,
        "notes": [f"{counted(count, thing)} {what}" for count, thing, what in notes if count],
    }  # fmt: skip
