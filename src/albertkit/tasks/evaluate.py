"""`evaluate_task`: score a fine-tuned folder on labelled examples; and its model, ready to predict."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from albertkit.batches.features import truncated_tokens
from albertkit.command import takes
from albertkit.engines import load_engine, on_engine
from albertkit.engines.engine import Precision
from albertkit.errors import ConfigError
from albertkit.files import check_new_folder
from albertkit.tables.bad_rows import BadRows, pluralize
from albertkit.tables.records import Data, as_files, file_name
from albertkit.tasks.data import file_of, left_out_line, read_split
from albertkit.tasks.finetune import EvaluatedData, FinetuneResult
from albertkit.tasks.models import TaskModel, check_not_swapped, load_task_model, run_model
from albertkit.tasks.options import EvaluateOptions
from albertkit.tasks.registry import with_columns
from albertkit.tasks.task import Prediction, Task
from albertkit.training.processes import join_world
from albertkit.training.results import save_results


@takes(EvaluateOptions)
def evaluate_task(options: EvaluateOptions) -> FinetuneResult:
    """Score a fine-tuned model on labelled examples; see `EvaluateOptions`.

    Raises:
        CheckpointError: wrong-model, exists, and what loading raises. DataError: missing-file, bad-row, and what reading
            raises. ConfigError: bad-value, no-device, conflicting-options.
    """
    if (options.length, options.held_out, options.seed) != (None, None, None):
        fact = "--length, --held-out and --seed are for token stores"
        hint = "leave them out: task.json says how a fine-tuned model reads"
        raise ConfigError("conflicting-options", fact, hint)
    if options.out is not None:
        check_new_folder(options.out)
    bad_rows = BadRows(options.on_error)
    loaded = ready_model("evaluate", options.model, options.precision or "auto", options.device, bad_rows, options.data)
    task = with_columns(loaded.task, options.columns)
    with as_files(options.data) as files:
        file, split = file_of(task, files, options.split)
        examples = read_split(task, file, split, bad_rows)
    features = task.features(examples, loaded.tokenizer, labelled=False)
    outputs = run_model(loaded.model, task, features, options.batch_tokens, progress=options.progress)
    predictions = task.predictions(examples, features, outputs)
    if options.threshold_from == "dev":
        task = task.calibrated(examples, predictions, "dev")
        predictions = task.predictions(examples, features, outputs)
    if truncated := len(truncated_tokens(features)):
        bad_rows.note(truncation_line(truncated, len(examples), task))
    if bad_rows.rows:
        bad_rows.note(left_out_line(bad_rows.rows))
    scores, details = task.score(examples, predictions), task.details(examples, predictions)
    if bad_rows.notes:
        details = {**details, "notes": [*details.get("notes", ()), *bad_rows.notes]}
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


def ready_model(
    command: str, model: str | Path, precision: Precision, device: str, bad_rows: BadRows, data: Data
) -> TaskModel:
    """Load the model of a folder on an engine for a command; what the engine fell back from is noted."""
    check_not_swapped(model, data)
    loaded = load_task_model(model)
    world = join_world(device)
    if world.size > 1:
        raise ConfigError(
            "bad-value", f"{command} was started with {world.size} processes", "start it with one process"
        )
    loaded.model.to(world.device)
    engine = load_engine(loaded.model, precision)
    for note in engine.notes:
        bad_rows.note(note)
    return loaded._replace(model=on_engine(loaded.model, engine))


def predict_examples(loaded: TaskModel, examples: Sequence[Any], batch_tokens: int) -> list[Prediction]:
    """Predict examples; `truncated` is the number of tokens of one that were not read."""
    task = loaded.task
    features = task.features(examples, loaded.tokenizer, labelled=False)
    predictions = task.predictions(examples, features, run_model(loaded.model, task, features, batch_tokens))
    for number, tokens in truncated_tokens(features):
        predictions[number]["truncated"] = tokens
    return predictions


def truncation_line(truncated: int, examples: int, task: Task) -> str:
    """Return the line about texts that were not read to their end."""
    subject = f"{pluralize(examples, 'example')} {'is' if truncated == 1 else 'are'}"
    longer = " (a model trained with --long-texts windows reads all of a text)" if task.kind == "classification" else ""
    return (
        f"{truncated:,} of {subject} longer than the {task.length} tokens that the model was trained to read; "
        f"the end was not read{longer}"
    )
