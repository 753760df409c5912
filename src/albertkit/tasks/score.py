"""`score_file`: predictions of any origin against the labels, as the official scripts score them."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from albertkit.command import takes
from albertkit.errors import ConfigError, DataError, format_list
from albertkit.files import check_new_folder
from albertkit.output.render import to_terminal
from albertkit.output.sections import to_json_value
from albertkit.tables.bad_rows import BadRows
from albertkit.tables.columns import IDS, Columns
from albertkit.tables.files import ByteStream, find_inputs
from albertkit.tables.layouts import TableForm
from albertkit.tables.table import Table
from albertkit.tasks.answers import AnswerTask, score_answers
from albertkit.tasks.data import read_split
from albertkit.tasks.options import ScoreOptions
from albertkit.tasks.predictions import File, wrong_label_error
from albertkit.tasks.registry import TABLES, find_task
from albertkit.tasks.tagging import TaggingTask
from albertkit.tasks.task import Task, rarer_class, sorted_labels
from albertkit.tasks.texts import TextClassification, TextExample, TextTask, table_task
from albertkit.training.results import result_sections, save_results


class Scores(dict[str, Any]):
    """Plain values for JSON: task, metric (the score that counts), the scores by name (of SQuAD `exact_match` and `f1`, in per
    cent), examples, notes, and where the task has them intervals, classes, types, confusion.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the values."""
        return dict(self)


def show_scores(scores: Scores) -> None:
    """Show scores with their intervals and tables."""
    to_terminal(result_sections(scores, scores["metric"]))


@takes(ScoreOptions)
def score_file(options: ScoreOptions) -> Scores:
    """Score a file of predictions; see `ScoreOptions`.

    Raises:
        ConfigError: unknown-name, missing-column, bad-label, conflicting-options, doubtful (Korean answers).
        DataError: predictions-mismatch, bad-label, bad-row, too-little-data, and what reading raises.
    """
    task, predictions = options.task, options.predictions
    gold: File | None = options.gold
    if options.out is not None:
        check_new_folder(options.out)
    bad_rows = BadRows(options.on_error)
    name = task if isinstance(task, str) else task.name
    if (options.label or options.id) and name not in TABLES:
        hint = "leave out --label-column and --id-column"
        raise ConfigError("conflicting-options", f"`{name}` has a format of its own", hint)
    if options.positive_class and name != "classify":
        raise ConfigError("conflicting-options", f"`{name}` has no class to choose", "leave out --positive-class")
    task_of_gold: Task | None = None
    if name not in TABLES:
        task_of_gold = task if isinstance(task, Task) else _find_task_of_gold(name, gold)
    if options.null_odds is not None and not isinstance(task_of_gold, AnswerTask):
        raise ConfigError("conflicting-options", f"`{name}` has no null odds", "leave out --null-odds")
    if isinstance(task_of_gold, TaggingTask) and gold is None:
        task_of_gold, gold = task_of_gold.with_changes(tag_column=-2), predictions
    labelled = _require_gold(gold)
    if task_of_gold is None:
        results = _score_table(name, predictions, labelled, options, bad_rows)
    else:
        examples = read_split(task_of_gold, Path(labelled), "dev", bad_rows)
        if isinstance(task_of_gold, AnswerTask):
            results = score_answers(
                predictions,
                examples,
                task_of_gold.version,
                null_odds=options.null_odds,
                null_threshold=options.null_threshold,
                korean_words=options.f1_of == "words",
            )
        else:
            results = _score_records(task_of_gold, examples, task_of_gold.read_predictions(predictions, examples))
    results = {"task": name if task_of_gold is None else task_of_gold.name, **results}
    if bad_rows.rows:
        first = bad_rows.rows[0]
        fact = f"rows of the gold file left out: {len(bad_rows.rows):,}, the first: {first.where}, {first.reason}"
        results["notes"].append(fact)
    results["notes"] += bad_rows.notes
    if options.out is not None:
        save_results(results, options.out, results["task"])
    values = to_json_value({key: value for key, value in results.items() if key != "pairs"})
    return Scores(values)


def _find_task_of_gold(name: str, gold: File | None) -> Task:
    if name.lower() != "squad":
        return find_task(name)
    with ByteStream(find_inputs([_require_gold(gold)])[0]) as stream:
        content = b"".join(iter(stream.read, b""))
    version_2 = re.search(rb'"version"\s*:\s*"v?2|"is_impossible"\s*:\s*true', content)
    return find_task("squad2" if version_2 else "squad1")


def _require_gold(gold: File | None) -> File:
    if gold is None:
        raise ConfigError("bad-label", "no file of labels to score against", "name it after the predictions")
    return gold


def _score_records(
    task: Task, examples: Sequence[Any], records: Sequence[dict[str, Any]], *notes: str
) -> dict[str, Any]:
    """Score records such as the task's own `predictions` returns."""
    scores, details = task.score(examples, records), task.details(examples, records)
    reported = [note for note in (*notes, task.collapsed(examples, records)) if note]
    return {"metric": task.metric, **scores, "examples": len(examples), **details, "notes": reported}


def _score_table(name: str, file: File, gold: File, options: ScoreOptions, bad_rows: BadRows) -> dict[str, Any]:
    """Score a table against another one: the texts play no part, and the labels are those that occur."""
    label, id = options.label, options.id
    if label is None:
        fact = f"no column is named for the label of `{name}`"
        raise ConfigError("missing-column", fact, "name it with --label-column")
    task = table_task(TABLES[name], name, Columns())
    examples = list(_labelled_rows(task, gold, label, id, bad_rows))
    if not examples:
        raise DataError("too-little-data", f"`{gold}` has no row that can be used", "name the labelled file")
    records = task.read_predictions(file, examples, label=label, ids=(id, *IDS) if id else IDS)
    if name == "regress":
        return _score_records(task, examples, records)
    gold_counts = Counter(label for example in examples for label in _as_labels(example.label))
    predicted = [label for record in records for label in _as_labels(record.get("labels", record.get("label")))]
    if gold_counts.keys().isdisjoint(predicted):
        raise wrong_label_error(file, predicted, sorted(gold_counts))
    strange = format_list([f"`{label}`" for label in sorted({*predicted} - gold_counts.keys())], 12)
    note = f"predicted, but the label of no example: {strange}" if strange else ""
    counts = {label: gold_counts[label] for label in {*gold_counts, *predicted}}
    task = task.with_changes(labels=sorted_labels(counts))
    if isinstance(task, TextClassification):
        task = task.with_changes(positive_class=options.positive_class or rarer_class(counts))
    return _score_records(task, examples, records, note)


def _labelled_rows(task: TextTask, gold: File, label: str, id: str | None, bad_rows: BadRows) -> Iterator[TextExample]:
    form = TableForm("", label=label)
    with Table(gold, quoted="look", bad_rows=bad_rows) as table:
        ids = [id] if id else [name for name in IDS if name in table.columns and name != label][:1]
        for row in table.rows([label, *ids], lists=[label] if task.kind == "multilabel" else []):
            try:
                value = task.read_label(row.values, form)
            except DataError:  # of the whole column, not of this row
                raise
            except ValueError as error:
                table.add_bad_row(row.line, *error.args)
            else:
                yield TextExample(row.values[ids[0]] if ids else str(row.number), "", None, value)


def _as_labels(labels: Any) -> Sequence[str]:
    return (labels,) if isinstance(labels, str) else labels
