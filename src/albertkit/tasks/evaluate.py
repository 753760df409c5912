"""Score a fine-tuned model on labelled examples, or predictions of any origin against labels, as the official scripts do."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from albertkit.batches.features import truncated_examples
from albertkit.command import takes
from albertkit.engines import load_engine, model_on_engine
from albertkit.errors import ConfigError, DataError, format_list
from albertkit.files import check_new_folder
from albertkit.model_paths import model_of_run_or_folder
from albertkit.output.render import print_sections
from albertkit.output.sections import to_json_value
from albertkit.tables.bad_rows import BadRows, pluralize
from albertkit.tables.columns import Columns
from albertkit.tables.files import ByteStream, find_input_file
from albertkit.tables.layouts import IDS, TableForm
from albertkit.tables.records import Data, as_files, file_name, quoted_name
from albertkit.tables.table import Table
from albertkit.tasks.answers import AnswerTask, score_answers
from albertkit.tasks.data import (
    apply_task_settings,
    find_split_file,
    read_split,
    unknown_token_lines,
    unknown_token_share,
)
from albertkit.tasks.finetune import EvaluatedData, FinetuneResult, warn_of_trained_dev_examples
from albertkit.tasks.models import TaskModel, check_not_swapped, load_task_model, run_model
from albertkit.tasks.options import EvaluateOptions, PredictOptions, ScoreOptions
from albertkit.tasks.predictions import File, check_same_order, wrong_label_error
from albertkit.tasks.registry import TABLES, find_task, with_columns
from albertkit.tasks.settings import FinetuneSettings
from albertkit.tasks.tagging import TaggingTask
from albertkit.tasks.task import Prediction, Task, rarer_of_two_classes, sorted_labels
from albertkit.tasks.texts import (
    USUAL_LABELS,
    TextClassification,
    TextExample,
    TextTask,
    table_task,
)
from albertkit.training.processes import join_world
from albertkit.training.results import result_sections, save_results


@takes(EvaluateOptions)
def evaluate_task(options: EvaluateOptions) -> FinetuneResult:
    """Score a fine-tuned model on labelled examples; see `EvaluateOptions`.

    Raises:
        CheckpointError: wrong-model, exists, and what loading raises. DataError: missing-file,
            bad-row, and what reading raises. ConfigError: bad-value, no-device,
            conflicting-options.
    """
    if (options.length, options.held_out, options.seed) != (None, None, None):
        raise ConfigError(
            "conflicting-options",
            "length, held-out share and seed are for token stores",
            "leave them out: task.json says how a fine-tuned model reads",
        )
    if options.out is not None:
        check_new_folder(options.out)
    bad_rows = BadRows(options.on_error)
    loaded = load_model_on_engine("evaluate", options, options.data, bad_rows)
    task = with_columns(loaded.task, options.columns)
    apply_task_settings(task, FinetuneSettings(threshold_from=options.threshold_from))
    with as_files(options.data) as files:
        file, split = find_split_file(task, files, options.split)
        examples = read_split(task, file, split, bad_rows)
    features = task.features(examples, loaded.tokenizer, labelled=False)
    outputs = run_model(
        loaded.model,
        task,
        features,
        options.batch_tokens,
        progress=options.progress,
    )
    predictions = task.predictions(examples, features, outputs)
    # As Google does: chosen on the very questions that are scored
    if options.threshold_from == "dev":
        task = task.calibrated(examples, predictions, "dev")
        predictions = task.predictions(examples, features, outputs)
    if features.num_truncated:
        bad_rows.note(describe_truncation(features.num_truncated, len(examples), task))
    run = model_of_run_or_folder(options.model).parent
    for line in (
        *unknown_token_lines(quoted_name(file), unknown_token_share(features, loaded.tokenizer)),
        *warn_of_trained_dev_examples(run, file, task, examples),
    ):
        bad_rows.note(line)
    scores = task.score(examples, predictions)
    details = task.details(examples, predictions)
    if notes := bad_rows.report_lines():
        details = {**details, "notes": [*details.get("notes", ()), *notes]}
    result = FinetuneResult(
        model=Path(options.model),
        task=task.name,
        metric=task.metric,
        value=scores[task.metric],
        scores=scores,
        details=details,
        collapsed=task.collapsed(examples, predictions),
        data=EvaluatedData(file_name(file), len(examples)),
    )
    if options.out is not None:
        task.write(Path(options.out), predictions, split=split)
        save_results(result.saved(), options.out)
    return result


def load_model_on_engine(
    command: str,
    options: EvaluateOptions | PredictOptions,
    data: Data,
    bad_rows: BadRows,
) -> TaskModel:
    """Load the model of a folder on an engine for a command; what the engine fell back from is noted."""
    check_not_swapped(options.model, data)
    loaded = load_task_model(options.model)
    world = join_world(options.device)
    if world.size > 1:
        raise ConfigError(
            "bad-value",
            f"{command} was started with {world.size} processes",
            "start it with one process",
        )
    loaded.model.to(world.device)
    engine = load_engine(loaded.model, options.precision or "auto")
    for note in engine.notes:
        bad_rows.note(note)
    return loaded._replace(model=model_on_engine(loaded.model, engine))


def predict_examples(
    loaded: TaskModel,
    examples: Sequence[Any],
    batch_tokens: int,
    counts: Counter[str] | None = None,
) -> list[Prediction]:
    """Predict examples; `truncated` is the number of tokens of one that were not read.

    `counts` gets the number of all `tokens`, and of those that are `unknown`, added.
    """
    task = loaded.task
    features = task.features(examples, loaded.tokenizer, labelled=False)
    predictions = task.predictions(
        examples,
        features,
        run_model(loaded.model, task, features, batch_tokens),
    )
    for number, tokens in truncated_examples(features):
        predictions[number]["truncated"] = tokens
    if counts is not None:
        unknown = features.num_unknown(loaded.tokenizer.unk_id)
        counts.update(tokens=len(features.input_ids), unknown=unknown)
    return predictions


def describe_truncation(num_truncated: int, num_examples: int, task: Task) -> str:
    """Return the line about texts that were not read to their end."""
    subject = f"{pluralize(num_examples, 'example')} {'is' if num_truncated == 1 else 'are'}"
    longer = (
        " (a model trained with --long-texts windows reads all of a text)"
        if isinstance(task, TextTask) and not task.reads_pairs
        else ""
    )
    return (
        f"{num_truncated:,} of {subject} longer than the {task.length} tokens that the model was trained to read; "
        f"the end was not read{longer}"
    )


# --- predictions of any origin --------------------------------------------------------------------


class Scores(dict[str, Any]):
    """Plain values for JSON: task, metric (the score that counts), the scores by name (of SQuAD `exact_match` and `f1`, in per
    cent), examples, notes, and where the task has them intervals, classes, types, confusion.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the values."""
        return dict(self)


def show_scores(scores: Scores) -> None:
    """Show scores with their intervals and tables."""
    print_sections(result_sections(scores, scores["metric"]))


@takes(ScoreOptions)
def score_file(options: ScoreOptions) -> Scores:
    """Score a file of predictions; see `ScoreOptions`.

    Raises:
        ConfigError: unknown-name, missing-column, bad-label, conflicting-options, doubtful (Korean
            answers).
        DataError: predictions-mismatch, bad-label, bad-row, too-little-data, and what reading
            raises.
    """
    task = options.task
    predictions = options.predictions
    gold: File | None = options.gold
    if options.out is not None:
        check_new_folder(options.out)
    bad_rows = BadRows(options.on_error)
    name = task if isinstance(task, str) else task.name
    if (options.label or options.id) and name not in TABLES:
        raise ConfigError(
            "conflicting-options",
            f"`{name}` has a format of its own",
            "leave out --label-column and --id-column",
        )
    if options.positive_class and name != "classify":
        raise ConfigError(
            "conflicting-options",
            f"`{name}` has no class to choose",
            "leave out --positive-class",
        )
    task_of_gold: Task | None = None
    if name not in TABLES:
        task_of_gold = task if isinstance(task, Task) else _find_task_of_gold(name, gold)
    if options.null_odds is not None and not isinstance(task_of_gold, AnswerTask):
        raise ConfigError(
            "conflicting-options",
            f"`{name}` has no null odds",
            "leave out --null-odds",
        )
    if isinstance(task_of_gold, TaggingTask) and gold is None:
        # conlleval's form: gold and predicted tags in one file, in its last two columns
        task_of_gold = task_of_gold.with_changes(tag_column=-2)
        gold = predictions
    labelled = _require_gold(gold)
    if gold is not predictions and not isinstance(task_of_gold, AnswerTask):
        hint = "say --id-column {name}" if task_of_gold is None else f"sort it as `{labelled}` is"
        check_same_order(predictions, labelled, [options.id] if options.id else IDS, hint)
    if task_of_gold is None:
        results = _score_table(name, options, labelled, bad_rows)
    else:
        examples = read_split(task_of_gold, Path(labelled), "dev", bad_rows)
        if isinstance(task_of_gold, AnswerTask):
            results = score_answers(options, examples, task_of_gold.version)
        else:
            results = _score_records(
                task_of_gold,
                examples,
                task_of_gold.read_predictions(predictions, examples),
            )
    results = {"task": name if task_of_gold is None else task_of_gold.name, **results}
    if bad_rows.rows:
        first = bad_rows.rows[0]
        fact = f"rows of the gold file left out: {len(bad_rows.rows):,}, the first: {first.where}, {first.reason}"
        results["notes"].append(fact)
    results["notes"] += bad_rows.notes
    if options.out is not None:
        save_results(results, options.out, results["task"])
    # Each label and prediction of a regression is 40 kB for 1,500 examples: for `results.json`
    # alone.
    values = to_json_value({key: value for key, value in results.items() if key != "pairs"})
    return Scores(values)


def _find_task_of_gold(task_name: str, gold: File | None) -> Task:
    if task_name.lower() != "squad":
        return find_task(task_name)
    with ByteStream(find_input_file(_require_gold(gold))) as stream:
        # Searched, not parsed: the 30 MB of SQuAD are parsed once, by its task.
        content = b"".join(iter(stream.read, b""))
    version_2 = re.search(rb'"version"\s*:\s*"v?2|"is_impossible"\s*:\s*true', content)
    return find_task("squad2" if version_2 else "squad1")


def _require_gold(gold: File | None) -> File:
    if gold is None:
        raise ConfigError(
            "bad-label",
            "no file of labels to score against",
            "name it after the predictions",
        )
    return gold


def _score_records(
    task: Task, examples: Sequence[Any], records: Sequence[dict[str, Any]], *notes: str
) -> dict[str, Any]:
    """Score records such as the task's own `predictions` returns."""
    scores = task.score(examples, records)
    details = task.details(examples, records)
    reported = [note for note in (*notes, task.collapsed(examples, records)) if note]
    return {
        "metric": task.metric,
        **scores,
        "examples": len(examples),
        **details,
        "notes": reported,
    }


def _score_table(
    task_name: str, options: ScoreOptions, gold: File, bad_rows: BadRows
) -> dict[str, Any]:
    """Score a table against another one: the texts play no part, and the labels are those that occur."""
    file = options.predictions
    label = options.label or USUAL_LABELS.get(task_name, "label")
    id = options.id
    task = table_task(TABLES[task_name], task_name, Columns())
    examples = list(_labelled_rows(task, gold, label, id, bad_rows))
    if not examples:
        raise DataError(
            "too-little-data",
            f"`{gold}` has no row that can be used",
            "name the labelled file",
        )
    records = task.read_predictions(file, examples, label=label, ids=(id, *IDS) if id else IDS)
    if task_name == "regress":
        return _score_records(task, examples, records)
    gold_counts = Counter(label for example in examples for label in _as_label_list(example.label))
    predicted = [
        label
        for record in records
        for label in _as_label_list(record.get("labels", record.get("label")))
    ]
    if gold_counts.keys().isdisjoint(predicted):
        raise wrong_label_error(file, predicted, sorted(gold_counts))
    strange = sorted({*predicted} - gold_counts.keys())
    listed = format_list([f"`{label}`" for label in strange], 12)
    are_numbers = all(label.isdecimal() for label in (*predicted, *gold_counts))
    # classes 1 to 5 as indices 0 to 4
    if (
        strange
        and are_numbers
        and any({str(int(n) + step) for n in predicted} <= set(gold_counts) for step in (1, -1))
    ):
        raise DataError(
            "predictions-mismatch",
            f"`{file}` has numbers that begin with another one than those of `{gold}`: predicted, but no label: {listed}",
            f"write the labels of the gold file: {format_list(sorted(gold_counts), 12)}",
        )
    note = f"predicted, but the label of no example: {listed}" if strange else ""
    counts = {label: gold_counts[label] for label in {*gold_counts, *predicted}}
    task = task.with_changes(labels=sorted_labels(counts))
    if isinstance(task, TextClassification):
        task = task.with_changes(
            positive_class=options.positive_class or rarer_of_two_classes(counts)
        )
    return _score_records(task, examples, records, note)


def _labelled_rows(
    task: TextTask,
    gold: File,
    label: str,
    id: str | None,
    bad_rows: BadRows,
) -> Iterator[TextExample]:
    form = TableForm("", label=label)
    # Which program wrote it is not known: its fields tell whether they are quoted.
    with Table(gold, quoted="look", bad_rows=bad_rows) as table:
        try:
            table.check([label])
        except DataError as error:
            if error.slug == "missing-column" and not error.hint.startswith("did you"):
                error.hint = "name it with --label-column"
            raise
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


def _as_label_list(labels: Any) -> Sequence[str]:
    return (labels,) if isinstance(labels, str) else labels
