"""`predict` and `evaluate_task`: a fine-tuned folder on new examples, streamed, in their order."""

import csv
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

from albertkit.engines import load_engine, on_engine
from albertkit.engines.engine import Precision
from albertkit.errors import ConfigError, DataError
from albertkit.files import atomic_file, check_new_file, check_new_folder
from albertkit.report.task_results import save_results
from albertkit.tasks.columns import Columns
from albertkit.tasks.data import file_of, left_out_line, read_split
from albertkit.tasks.faults import Fault, Faults
from albertkit.tasks.features import truncated_tokens
from albertkit.tasks.finetune import EvaluatedData, FinetuneResult
from albertkit.tasks.given_data import Data, as_files, is_standard_output
from albertkit.tasks.loading import TaskModel, check_not_swapped, load_task_model
from albertkit.tasks.prediction import run_model
from albertkit.tasks.registry import with_columns
from albertkit.tasks.task import Prediction, Task
from albertkit.tasks.texts import TextTask
from albertkit.training.distributed import join_world

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_FILES = {".json", ".txt", ".parquet"}  # names that nobody gives to a folder
CHUNK = 4096  # examples read, computed and written at a time: enough to sort by length, little enough to hold


@dataclass(frozen=True)
class PredictReport:
    """What `predict` did.

    Attributes:
        written: Where the predictions are; empty for standard output.
        examples: Examples predicted.
        left_out: Rows that could not be used.
        notes: How the file was read, where that was not plain; what the engine fell back from.
        truncated: Examples whose texts were longer than the model reads.
    """

    written: tuple[Path, ...]
    examples: int
    left_out: tuple[Fault, ...]
    notes: tuple[str, ...] = ()
    truncated: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        faults = [f"{fault.file}, {fault.where}: {fault.reason}" for fault in self.left_out]
        return {
            "written": [str(path) for path in self.written],
            "examples": self.examples,
            "truncated": self.truncated,
            "left_out": faults,
            "notes": self.notes,
        }


def predict(
    model: str | Path,
    input: Data,
    out: str | Path | None = None,
    *,
    split: str = "test",
    columns: Columns | None = None,
    on_error: Literal["stop", "skip"] = "stop",
    top: int | None = None,
    batch_tokens: int = 8192,
    precision: Precision = "auto",
    device: str = "auto",
) -> PredictReport:
    """Predict every example of a file, in its order, however large it is.

    Args:
        model: Folder of a fine-tuned model, or the run it came from.
        input: A file of the task's form (labels are not needed), or a folder in the task's layout; an address, "-" for standard
            input, or rows in memory, see `as_files`. For a model of single texts also a `.txt` file with a text a line.
        out: A `.jsonl` file; for tasks on texts also a `.csv` or `.tsv` file, for the columns of the input and the
            predictions; or a folder, for `predictions.jsonl` and the task's own files (GLUE's .tsv, SQuAD's
            predictions.json, nbest_predictions.json, null_odds.json). Default, and "-": standard output, a JSON object a line.
        split: Which file of a folder.
        columns: Of a table whose columns are named otherwise than in training.
        on_error: What to do about rows that cannot be used: stop, or skip, count and name them.
        top: Keep only so many probabilities, the largest first. Default: all, in the order of the labels.
        batch_tokens: Most tokens computed at once.
        precision: As `load_engine`: fp32, bf16, int8, or auto: bf16 where the hardware multiplies it faster.
        device: auto, cpu, cuda or cuda:N.

    Raises:
        CheckpointError: no-task, folder-not-empty, and what loading raises. DataError: output-exists, unknown-split, bad-row,
            and what reading raises. ConfigError: bad-argument, bad-value, bad-device, bad-precision, conflicting-options;
            bad-settings under torchrun.
    """
    target = None if out is None or is_standard_output(out) else Path(out)
    kind = "" if target is None else target.suffix.lower()
    if kind in _FILES:
        raise ConfigError(
            "bad-argument",
            f"`{out}` would be a folder",
            "predictions go into a .jsonl, .csv or .tsv file, or into a folder with the task's own",
        )
    is_folder = target is not None and kind not in (".jsonl", *_SEPARATORS)
    if target is not None:
        check_new_folder(target) if is_folder else check_new_file(target)
    if top is not None and top < 1:
        raise ConfigError("bad-value", f"top is {top}, it must be at least 1", "leave --top out for all probabilities")
    faults = Faults(on_error)
    loaded = _ready(model, precision, device, faults, input)
    loaded = loaded._replace(task=with_columns(loaded.task, columns))
    if kind in _SEPARATORS and not isinstance(loaded.task, TextTask):
        raise ConfigError(
            "bad-argument", f"`{out}` is a table, and `{loaded.task.name}` does not have one prediction a row",
            "predictions go into a .jsonl file, or into a folder with the task's own",
        )  # fmt: skip
    if top is not None and loaded.task.kind in ("regression", "tagging"):
        raise ConfigError(
            "bad-argument", f"a {loaded.task.kind} has no probabilities to choose from", "leave --top out"
        )
    lines = target / "predictions.jsonl" if target is not None and is_folder else target
    kept: list[Prediction] = []  # the task's own files are written as a whole
    count = truncated = 0
    with as_files(input) as given, writer(lines) as stream:
        file, split = file_of(loaded.task, given, split)
        write = _table_writer(stream, _SEPARATORS[kind], loaded.task) if kind in _SEPARATORS else _line_writer(stream)
        for prediction, row in _predictions(loaded, file, split, batch_tokens, faults, kind in _SEPARATORS):
            truncated += "truncated" in prediction
            write(with_top(prediction, top), row)
            count += 1
            if is_folder:
                kept.append(prediction)
        if count == 0 and not faults.found:
            raise DataError("no-examples", f"`{file}` has nothing to predict", "name a file with examples")
    written = [] if lines is None else [lines]
    if target is not None and is_folder:
        written += [path for path in loaded.task.write(target, kept, split=split) if path != lines]
    if truncated:
        faults.note(_truncation(truncated, count, loaded.task))
    return PredictReport(tuple(written), count, tuple(faults.found), tuple(faults.notes), truncated)


def evaluate_task(
    model: str | Path,
    data: Data,
    out: str | Path | None = None,
    *,
    split: str = "dev",
    columns: Columns | None = None,
    on_error: Literal["stop", "skip"] = "stop",
    threshold_from: Literal["train", "dev"] = "train",
    batch_tokens: int = 8192,
    precision: Precision = "auto",
    device: str = "auto",
) -> FinetuneResult:
    """Score a fine-tuned model on labelled examples.

    Args:
        model: Folder of a fine-tuned model, or the run it came from.
        data: A file of the task's form, or a folder in the task's layout; an address, or rows in memory, see `as_files`.
        out: Folder for the predictions in the task's own files and `results.json`.
        split: Which file of a folder.
        columns: Of a table whose columns are named otherwise than in training.
        on_error: What to do about rows that cannot be used: stop, or skip and count them.
        threshold_from: train: the threshold for "no answer" as it was chosen in training; dev: chosen anew on these very
            examples, as Google does; the result says so.
        batch_tokens, precision, device: As for `predict`.

    Raises:
        As `predict`.
    """
    if out is not None:
        check_new_folder(out)
    faults = Faults(on_error)
    loaded = _ready(model, precision, device, faults, data)
    task = with_columns(loaded.task, columns)
    with as_files(data) as given:
        file, split = file_of(task, given, split)
        examples = read_split(task, file, split, faults)
    features = task.features(examples, loaded.tokenizer, labelled=False)
    outputs = run_model(loaded.model, task, features, batch_tokens)
    predictions = task.predictions(examples, features, outputs)
    if threshold_from == "dev":
        task = task.calibrated(examples, predictions, "dev")
        predictions = task.predictions(examples, features, outputs)
    if truncated := len(truncated_tokens(features)):
        faults.note(_truncation(truncated, len(examples), task))
    if faults.found:
        faults.note(left_out_line(faults.found))
    scores, details = task.score(examples, predictions), task.details(examples, predictions)
    if faults.notes:
        details = {**details, "notes": [*details.get("notes", ()), *faults.notes]}
    collapsed = task.collapsed(examples, predictions)
    result = FinetuneResult(
        Path(model), task.name, task.metric, scores[task.metric], scores, details, collapsed,
        data=EvaluatedData(file.name, len(examples)),
    )  # fmt: skip
    if out is not None:
        task.write(Path(out), predictions, split=split)
        save_results(result.to_dict(), out)
    return result


def _truncation(truncated: int, examples: int, task: Task) -> str:
    """The line about texts that were not read to their end."""
    what = "example is" if truncated == 1 else "examples are"
    longer = " (a model trained with --long-texts windows reads all of a text)" if task.kind == "classification" else ""
    return (
        f"{truncated:,} of {examples:,} {what} longer than the {task.length} tokens that the model was trained to read; "
        f"the end was not read{longer}"
    )


def with_top(prediction: Prediction, top: int | None) -> Prediction:
    """The prediction with the `top` largest probabilities, or first candidates of an answer."""
    if top is None:
        return prediction
    if isinstance(prediction.get("probabilities"), dict):
        best = sorted(prediction["probabilities"].items(), key=lambda pair: -pair[1])[:top]
        return {**prediction, "probabilities": dict(best)}
    return {**prediction, "nbest": prediction["nbest"][:top]} if "nbest" in prediction else prediction


def _line_writer(stream: IO[str]) -> Callable[[Prediction, dict[str, str]], None]:
    return lambda prediction, _: print(json.dumps(prediction, ensure_ascii=False), file=stream)


def _table_writer(stream: IO[str], separator: str, task: Task) -> Callable[[Prediction, dict[str, str]], None]:
    """A function that writes the columns of a row, `prediction`, and for one class a text its `probability`.

    Raises:
        DataError: repeated-column, from that function, if the input has such columns.
    """
    table = csv.writer(stream, delimiter=separator, lineterminator="\n")
    added = ["prediction", *(["probability"] if task.kind == "classification" else [])]
    columns: list[str] = []

    def write(prediction: Prediction, row: dict[str, str]) -> None:
        if not columns:
            columns.extend(row)
            if taken := [name for name in added if name in row]:
                raise DataError(
                    "repeated-column", f"the input has a column `{taken[0]}`, which the output adds",
                    "rename the column, or write the predictions alone: --out predictions.jsonl",
                )  # fmt: skip
            table.writerow([*columns, *added])
        own = [task.answer_of(prediction)]  # type: ignore[attr-defined]
        own += [f"{prediction['probabilities'][prediction['label']]:.6f}"] * (task.kind == "classification")
        table.writerow([*(row.get(name, "") for name in columns), *own])

    return write


def _ready(model: str | Path, precision: Precision, device: str, faults: Faults, data: Data) -> TaskModel:
    """The folder's model on an engine; what the engine fell back from is noted."""
    check_not_swapped(model, data)
    loaded = load_task_model(model)
    world = join_world(device)
    if world.size > 1:
        raise ConfigError("bad-settings", f"{world.size} processes", "predict and evaluate run in one process")
    loaded.model.to(world.device)
    engine = load_engine(loaded.model, precision)
    for note in engine.notes:
        faults.note(note)
    return loaded._replace(model=on_engine(loaded.model, engine))


def _predictions(
    loaded: TaskModel, file: Path, split: str, batch_tokens: int, faults: Faults, rows: bool
) -> Iterator[tuple[Prediction, dict[str, str]]]:
    """Predictions, where tokens were cut with their number as `truncated`; and if `rows` are wanted, the values of the rows."""
    task = loaded.task
    pairs: Iterator[tuple[Any, dict[str, str]]]
    if rows and isinstance(task, TextTask):
        pairs = task.rows(file, split=split, labelled=False, faults=faults, whole=True)
    else:
        pairs = ((example, {}) for example in task.examples(file, split=split, labelled=False, faults=faults))
    for chunk in chunks(pairs):
        examples = [example for example, _ in chunk]
        features = task.features(examples, loaded.tokenizer, labelled=False)
        predictions = task.predictions(examples, features, run_model(loaded.model, task, features, batch_tokens))
        for number, tokens in truncated_tokens(features):
            predictions[number]["truncated"] = tokens
        yield from zip(predictions, (row for _, row in chunk), strict=True)


def chunks(examples: Iterator[Any]) -> Iterator[list[Any]]:
    """`CHUNK` of them at a time, in their order."""
    while chunk := list(islice(examples, CHUNK)):
        yield chunk


@contextmanager
def writer(path: Path | None) -> Iterator[IO[str]]:
    """A file that appears whole at the end, or standard output."""
    if path is None:
        yield sys.stdout
    else:
        with atomic_file(path, "w") as stream:
            yield stream
