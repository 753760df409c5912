"""`predict`: answer every example of a task's file, or every line of any file, in its order, however large it is.

Rows come from a task's table or from lines; both are answered a chunk at a time, and written as soon as they are known.
"""

import csv
import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from numbers import Integral
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from albertkit.data.bad_rows import BadRow, BadRows
from albertkit.data.given import (
    STANDARD_INPUT,
    as_files,
    is_in_memory,
    is_standard_output,
    like,
    listed,
    with_added_columns,
)
from albertkit.data.inputs import ByteStream, InputFile, find_file
from albertkit.data.layouts import TABLE_FILES
from albertkit.data.lines import NOT_UTF8, has_half_characters, lines, not_json, not_utf8
from albertkit.data.tables import EXTENSIONS
from albertkit.engines.engine import Precision
from albertkit.errors import CheckpointError, ConfigError, DataError
from albertkit.files import atomic_file, check_new_file, check_new_folder
from albertkit.frame.command import takes
from albertkit.frame.progress import Progress
from albertkit.frame.result import Result as CommandResult
from albertkit.frame.section import Facts, Section
from albertkit.inference.loading import load_pipeline
from albertkit.inference.pipeline import Pipeline, Result
from albertkit.model_folder import captioner_error, is_captioner_folder, local_folder
from albertkit.tasks.data import file_of
from albertkit.tasks.evaluation import predict_examples, ready_model, truncation_line
from albertkit.tasks.loading import TaskModel, check_not_swapped, is_task_model
from albertkit.tasks.options import PredictOptions
from albertkit.tasks.registry import with_columns
from albertkit.tasks.task import Task
from albertkit.tasks.texts import TextTask

CHUNK = 4096  # examples read, computed and written at a time: enough to sort by length, little enough to hold
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_FILE_ENDING = re.compile(
    r"\.([a-z]{2}[a-z0-9]*|h5|7z)"
)  # of a name that is not meant as a folder, as `preds.v2` may be
_JSON = ("jsonl", "ndjson", "json")
_TABLES = ("csv", "tsv", "parquet", "pq")


@dataclass(frozen=True)
class PredictReport(CommandResult):
    """Report of `predict`.

    Attributes:
        written: Where the predictions are; empty for standard output.
        examples: Examples predicted.
        left_out: Rows that could not be used.
        notes: How the file was read, where that was not plain; what the engine fell back from.
        truncated: Examples whose texts were longer than the model reads.
        predictions: Of rows in memory, without `out`; in the kind that was given (a DataFrame, a Dataset, a list), of several
            splits those of the one that is named. Of a task on texts the rows with a `prediction`, for one class a text its
            `probability`, and with `top` the `probabilities`; else a record a row.
    """

    written: tuple[Path, ...]
    examples: int
    left_out: tuple[BadRow, ...]
    notes: tuple[str, ...] = ()
    truncated: int = 0
    predictions: Any = None

    @property
    def left_out_lines(self) -> list[str]:
        """A line for each row that could not be used."""
        return list(map(str, self.left_out))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "written": [str(path) for path in self.written],
            "examples": self.examples,
            "truncated": self.truncated,
            "left_out": self.left_out_lines,
            "notes": self.notes,
        }

    def sections(self) -> list[Section]:
        """Return the facts, with the number of rows left out."""
        return [Facts(self.to_dict() | {"left_out": len(self.left_out) or None})]


class Row(NamedTuple):
    """One thing to answer.

    Attributes:
        line: Number of its line, from 1.
        value: The pipeline's input, or the task's example.
        columns: Of a task on texts, for a table as output: the values of its row.
    """

    line: int
    value: Any
    columns: dict[str, str]


Answer = Callable[[Sequence[Any]], list[Result]]


@takes(PredictOptions)
def predict(options: PredictOptions) -> PredictReport:
    """Predict every example of a file, in its order; see `PredictOptions`.

    Of a fine-tuned model a record has the example's `id` first, of other models, or with `kind`, the number of its `line`.

    Raises:
        CheckpointError: wrong-model, exists, and what loading raises. DataError: bad-row, missing-file, and what
            reading raises. ConfigError: bad-value, conflicting-options, no-device, unknown-name.
    """
    check_not_swapped(options.model, options.input)
    if options.kind is None and is_task_model(options.model):
        return _predict_task(options)
    return _predict(options)


def _predict_task(options: PredictOptions) -> PredictReport:
    out, top = options.out, options.top
    target = None if out is None or is_standard_output(out) else Path(out)
    kind = "" if target is None else target.suffix.lower()
    if (
        target is not None
        and kind not in (".jsonl", *_SEPARATORS)
        and _FILE_ENDING.fullmatch(kind)
        and not target.is_dir()
    ):
        fact = f"`{out}` is called a file of another kind than those that are written"
        hint = "predictions go into a .jsonl, .csv or .tsv file, or with the task's own into a folder without such an ending"
        raise ConfigError("bad-value", fact, hint)
    folder = target if kind not in (".jsonl", *_SEPARATORS) else None
    if target is not None:
        check_new_file(target) if folder is None else check_new_folder(folder)
    bad_rows = BadRows(options.on_error)
    loaded = ready_model("predict", options.model, options.precision, options.device, bad_rows, options.input)
    loaded = loaded._replace(task=with_columns(loaded.task, options.columns))
    task = loaded.task
    if top is not None and task.kind in ("regression", "tagging"):
        raise ConfigError("bad-value", f"a {task.kind} has no probabilities to choose from", "leave --top out")
    if out is None and is_in_memory(options.input):
        rows = _split_of(options.input, options.split) if isinstance(options.input, Mapping) else options.input
        return _predict_rows(dataclasses.replace(options, input=rows), loaded, bad_rows)
    if kind in _SEPARATORS and not isinstance(task, TextTask):
        hint = "predictions go into a .jsonl file, or into a folder with the task's own"
        raise ConfigError(
            "bad-value", f"`{out}` is a table, and `{task.name}` does not have one prediction a row", hint
        )
    records = target if folder is None else folder / "predictions.jsonl"
    kept: list[Result] = []  # the task's own files are written as a whole
    with as_files(options.input) as given, _writer(records) as stream, _progress(options, target) as progress:
        file, split = file_of(task, given, options.split)
        rows = _rows_of(task, file, split, bad_rows, None if kind in _SEPARATORS else ())
        answer = partial(predict_examples, loaded, batch_tokens=options.batch_tokens)
        write = _table_writer(stream, _SEPARATORS[kind], task) if kind in _SEPARATORS else _line_writer(stream)
        counts = _Counts(progress)
        for row, result in counts.of(answer_rows(rows, answer, str(file), bad_rows)):
            write(with_top(result, top), row)
            if folder is not None:
                kept.append(with_top(result, top))
        if counts.examples == 0 and not bad_rows.found:
            raise DataError("too-little-data", f"`{file}` has nothing to predict", "name a file with examples")
    written = [] if records is None else [records]
    if folder is not None:
        written += [path for path in task.write(folder, kept, split=split) if path != records]
    if counts.truncated:
        bad_rows.note(truncation_line(counts.truncated, counts.examples, task))
    return counts.report(written, bad_rows)


def _split_of(splits: Mapping[str, Any], wanted: str) -> Any:
    """Return the rows of a split in memory, by its name or another that files of it have ("validation" for "dev")."""
    found = [splits[name] for name in TABLE_FILES.get(wanted, (wanted,)) if name in splits]
    if not found:
        fact = f"the data have no split `{wanted}` (there: {', '.join(map(str, splits))})"
        raise DataError("missing-file", fact, "name one of them with split=…, or give its rows")
    return found[0]


def _predict_rows(options: PredictOptions, loaded: TaskModel, bad_rows: BadRows) -> PredictReport:
    """Predict rows in memory; those of a task on texts come back with what was predicted of each."""
    task, rows = loaded.task, listed(options.input)
    answer = partial(predict_examples, loaded, batch_tokens=options.batch_tokens)
    kept: list[int] = []
    found: list[dict[str, Any]] = []  # columns of the kept rows; of other tasks the results
    counts = _Counts()
    with as_files(rows) as file:
        examples = _rows_of(task, file, options.split, bad_rows, ())
        for row, result in counts.of(answer_rows(examples, answer, str(file), bad_rows)):
            if isinstance(task, TextTask):
                kept.append(row.line - 1)
                added = _added(result)
                if options.top is not None:
                    added["probabilities"] = with_top(result, options.top)["probabilities"]
                _check_free(rows[kept[-1]], added)
                found.append(added)
            else:
                found.append(with_top(result, options.top))
    if counts.truncated:
        bad_rows.note(truncation_line(counts.truncated, counts.examples, task))
    predictions = (
        with_added_columns(options.input, rows, kept, found)
        if isinstance(task, TextTask)
        else like(options.input, found)
    )
    return dataclasses.replace(counts.report([], bad_rows), predictions=predictions)


def _predict(options: PredictOptions) -> PredictReport:
    local_folder(options.model)  # a model that is not there is reported before the name of the output
    out = None if options.out is None or is_standard_output(options.out) else Path(options.out)
    if out is not None and out.suffix != ".jsonl":
        hint = "answers to lines go into a file such as answers.jsonl"
        raise ConfigError("bad-value", f"`{out}` is not a .jsonl file", hint)
    if out is not None:
        check_new_file(out)
    with ExitStack() as stack:
        given = options.input
        if is_in_memory(given):
            given = stack.enter_context(as_files(given))
        file = find_file(STANDARD_INPUT if given == "-" else given)
        pipeline = text_pipeline(options.model, options.kind, options.precision, options.device)
        bad_rows, asked = BadRows(options.on_error), top_options(pipeline, options.top)
        for note in pipeline.notes:
            bad_rows.note(note)
        counts, found = _Counts(stack.enter_context(_progress(options, out))), []
        in_memory = out is None and is_in_memory(options.input)
        stream = None if in_memory else stack.enter_context(_writer(out))

        def answer(inputs: Sequence[Any]) -> list[Result]:
            return pipeline.answer(inputs, options.batch_tokens, **asked)

        rows = _parsed(pipeline, read_values(file, bad_rows), file.path, bad_rows)
        for row, result in counts.of(answer_rows(rows, answer, file.path, bad_rows)):
            record = {"line": row.line, **plain(with_top(result, options.top))}
            if stream is None:
                found.append(record)
            else:
                stream.write(json.dumps(record, ensure_ascii=False) + "\n")
    if counts.truncated:
        texts = f"{counts.truncated:,} of {counts.examples:,} texts"
        bad_rows.note(f"{texts} are longer than the model reads; the end was not read")
    report = counts.report([] if out is None else [out], bad_rows)
    return dataclasses.replace(report, predictions=like(options.input, found)) if in_memory else report


def _progress(options: PredictOptions, target: Path | None) -> Progress:
    """Return what shows how far a prediction is; standard output shows it by itself."""
    return Progress("predicting", 0, "examples", options.progress and target is not None)


@dataclass
class _Counts:
    """Count the rows that were answered, and those of them that were not read to their end."""

    progress: Progress | None = None
    examples: int = 0
    truncated: int = 0

    def of(self, answered: Iterable[tuple[Row, Result]]) -> Iterator[tuple[Row, Result]]:
        for row, result in answered:
            self.examples += 1
            self.truncated += bool(result.get("truncated"))
            yield row, result
            if self.progress is not None:
                self.progress.update(self.examples)

    def report(self, written: Iterable[Path], bad_rows: BadRows) -> PredictReport:
        found, notes = tuple(bad_rows.found), tuple(bad_rows.notes)
        return PredictReport(tuple(written), self.examples, found, notes, self.truncated)


# --- answers ----------------------------------------------------------------------------------------------------------


def answer_rows(rows: Iterator[Row], answer: Answer, path: str, bad_rows: BadRows) -> Iterator[tuple[Row, Result]]:
    """Answer rows of any number, a chunk at a time; those that cannot be answered are bad rows of the file `path`."""
    while chunk := list(islice(rows, CHUNK)):
        yield from _answered(chunk, answer, path, bad_rows)


def _answered(chunk: list[Row], answer: Answer, path: str, bad_rows: BadRows) -> list[tuple[Row, Result]]:
    """Halve a chunk whose features cannot be made, until the row is found."""
    try:
        return list(zip(chunk, answer([row.value for row in chunk]), strict=True))
    except DataError as error:
        if len(chunk) == 1:
            _add(bad_rows, path, chunk[0].line, error)
            return []
        half = len(chunk) // 2
        parts = (_answered(part, answer, path, bad_rows) for part in (chunk[:half], chunk[half:]))
        return [answered for part in parts for answered in part]


def _add(bad_rows: BadRows, path: str, line: int, error: DataError) -> None:
    bad_rows.add(path, line, error.message, f"{error.hint}; or leave such lines out with --on-error skip")


def with_top(result: Result, top: int | None) -> Result:
    """Return a result with the `top` largest probabilities, or first candidates of an answer."""
    if top is None:
        return result
    if isinstance(result.get("probabilities"), dict):
        best = sorted(result["probabilities"].items(), key=lambda pair: -pair[1])[:top]
        return {**result, "probabilities": dict(best)}
    return {**result, "nbest": result["nbest"][:top]} if "nbest" in result else result


def top_options(pipeline: Pipeline[Any], top: int | None) -> dict[str, int]:
    """Return the options of a pipeline for `top`; probabilities of labels and choices are cut afterwards, by `with_top`."""
    if top is None:
        return {}
    if not isinstance(top, Integral) or top < 1:
        raise ConfigError("bad-value", f"top is {top!r}, it must be at least 1", "leave it out")
    if "top" in pipeline.options:
        return {"top": top}
    if pipeline.kind not in ("classify", "choose"):
        raise ConfigError("bad-value", f"{pipeline.kind} has nothing to choose from", "leave --top out")
    return {}


def text_pipeline(model: str | Path, kind: str | None, precision: Precision, device: str) -> Pipeline[Any]:
    """Load a pipeline as `load_pipeline`, of a model that answers text."""
    if kind == "caption":
        fact = "the kind caption reads videos, not text"
        raise ConfigError("bad-value", fact, f"albertkit caption predict {model} VIDEO")
    if kind is None and is_captioner_folder(local_folder(model)):
        raise captioner_error(model)
    return load_pipeline(model, kind, precision=precision, device=device)


# --- rows -------------------------------------------------------------------------------------------------------------


def _rows_of(task: Task, file: Path, split: str, bad_rows: BadRows, more: Sequence[str] | None) -> Iterator[Row]:
    """Yield the examples of a task's file; of a task on texts with the values of `more` columns (None: all)."""
    if isinstance(task, TextTask):
        pairs = task.rows(file, split=split, labelled=False, bad_rows=bad_rows, more=more)
        return (Row(row.line, example, row.values) for example, row in pairs)
    examples = task.examples(file, split=split, labelled=False, bad_rows=bad_rows)
    return (Row(number, example, {}) for number, example in enumerate(examples, 1))


def read_values(file: InputFile, bad_rows: BadRows) -> Iterator[Row]:
    """Yield the values of the lines of a file; lines that hold none are bad rows."""
    extension = next((part for part in reversed(file.name.lower().split(".")) if part in EXTENSIONS), "txt")
    if extension in _TABLES:
        fact = f"`{file.path}` is a table, and there is no task that says what its columns mean"
        raise CheckpointError("wrong-model", fact, "put a value on every line: text (.txt), or JSON (.jsonl)")
    with ByteStream(file) as stream:
        for number, line in lines(stream):
            if has_half_characters(line):
                bad_rows.add(file.path, number, NOT_UTF8, not_utf8(file.path))
            elif extension not in _JSON:
                yield Row(number, line, {})
            elif line and not line.isspace():
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:
                    bad_rows.add(file.path, number, not_json(error))
                else:
                    yield Row(number, value, {})


def _parsed(pipeline: Pipeline[Any], rows: Iterator[Row], path: str, bad_rows: BadRows) -> Iterator[Row]:
    for row in rows:
        try:
            yield row._replace(value=pipeline.parse(row.value))
        except DataError as error:
            _add(bad_rows, path, row.line, error)


# --- files ------------------------------------------------------------------------------------------------------------


def plain(result: Result) -> Result:
    """Return a result with lists where it had arrays, for JSON."""
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in result.items()}


def _line_writer(stream: IO[str]) -> Callable[[Result, Row], None]:
    return lambda result, _: print(json.dumps(result, ensure_ascii=False), file=stream)


def _added(result: Result) -> dict[str, Any]:
    """Return the columns that a prediction of a task on texts adds to its row."""
    if "label" in result:
        return {"prediction": result["label"], "probability": result["probabilities"][result["label"]]}
    return {"prediction": result["labels"] if "labels" in result else result["value"]}


def _check_free(columns: Mapping[str, Any], added: Mapping[str, Any]) -> None:
    """Refuse to write over a column of the input."""
    if taken := [name for name in added if name in columns]:
        fact = f"the input has a column `{taken[0]}`, which the output adds"
        hint = "rename the column, or write the predictions alone: --out predictions.jsonl"
        raise DataError("ambiguous", fact, hint)


def _table_writer(stream: IO[str], separator: str, task: Task) -> Callable[[Result, Row], None]:
    """Return a function that writes the columns of a row, `prediction`, and for one class a text its `probability`."""
    assert isinstance(task, TextTask)
    table = csv.writer(stream, delimiter=separator, lineterminator="\n")
    columns: list[str] = []

    def write(result: Result, row: Row) -> None:
        added = _added(result)
        if not columns:
            columns.extend(row.columns)
            _check_free(row.columns, added)
            table.writerow([*columns, *added])
        added["prediction"] = task.answer_of(result)
        if "probability" in added:
            added["probability"] = f"{added['probability']:.6f}"
        table.writerow([*(row.columns.get(name, "") for name in columns), *added.values()])

    return write


@contextmanager
def _writer(path: Path | None) -> Iterator[IO[str]]:
    """Open a file that appears whole at the end, or standard output."""
    if path is None:
        yield sys.stdout
    else:
        with atomic_file(path, "w") as stream:
            yield stream
