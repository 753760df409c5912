"""`predict`: answer every example of a task's file, or every line of any file, in its order, however large it is.

A fine-tuned model reads its task's files, a pipeline lines; both are answered a chunk at a time, and every answer is written as
soon as it is known.
"""

import csv
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from albertkit.data.bad_rows import BadRow, BadRows
from albertkit.data.given import (
    SPLIT_NAMES,
    STANDARD_INPUT,
    Data,
    DataFile,
    as_files,
    is_in_memory,
    is_standard_output,
    like,
    listed,
    quoted_name,
    with_added_columns,
)
from albertkit.data.inputs import ByteStream, InputFile, find_file
from albertkit.data.lines import NOT_UTF8, has_half_characters, lines, not_json, not_utf8
from albertkit.data.tables import EXTENSIONS
from albertkit.errors import CheckpointError, ConfigError, DataError
from albertkit.files import atomic_file, check_new_file, check_new_folder
from albertkit.frame.command import takes
from albertkit.frame.progress import Progress
from albertkit.frame.result import Result as CommandResult
from albertkit.frame.section import Facts, Section
from albertkit.inference.loading import load_pipeline
from albertkit.inference.pipeline import Result
from albertkit.model_folder import captioner_error, is_captioner_folder, local_folder
from albertkit.tasks.data import file_of
from albertkit.tasks.evaluation import predict_examples, ready_model, truncation_line
from albertkit.tasks.loading import check_not_swapped, is_task_model
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


@takes(PredictOptions)
def predict(options: PredictOptions) -> PredictReport:
    """Predict every example of a file, in its order; see `PredictOptions`.

    Of a fine-tuned model a record has the example's `id` first, of other models, or with `kind`, the number of its `line`.

    Raises:
        CheckpointError: wrong-model, exists, and what loading raises. DataError: bad-row, missing-file, too-little-data, and
            what reading raises. ConfigError: bad-value, conflicting-options, no-device, unknown-name.
    """
    check_not_swapped(options.model, options.input)
    path = None if options.out is None or is_standard_output(options.out) else Path(options.out)
    has_task = options.kind is None and is_task_model(options.model)
    if not has_task:
        local_folder(options.model)  # a model that is not there is reported before the name of the output
    _check_output(path, has_task)
    bad_rows = BadRows(options.on_error)
    answerer = TaskAnswerer(options, bad_rows) if has_task else PipelineAnswerer(options, bad_rows)
    task, data, top = answerer.task, options.input, options.top

    in_memory = options.out is None and is_in_memory(data)
    data_rows: list[dict[str, Any]] = []  # of data in memory
    if in_memory:
        data = _select_split(data, options.split) if isinstance(data, Mapping) else data
        data_rows = listed(data)
    separator = None if path is None else _SEPARATORS.get(path.suffix.lower())
    folder = path if path is not None and path.suffix.lower() not in (".jsonl", *_SEPARATORS) else None
    file_path = path if folder is None else folder / "predictions.jsonl"

    examples = truncated = 0
    kept_rows: list[int] = []
    kept_records: list[dict[str, Any]] = []
    with ExitStack() as stack:
        source = data_rows if in_memory else data
        file, split, rows = stack.enter_context(answerer.open_rows(source, bad_rows, separator is not None))
        stream = sys.stdout if file_path is None else stack.enter_context(atomic_file(file_path, "w"))
        table = None if separator is None else _TableWriter(stream, separator, task)
        progress = stack.enter_context(Progress("predicting", 0, "examples", options.progress and path is not None))
        for row, result in answer_rows(rows, answerer.answer, file, bad_rows):
            record = keep_top(result, top)
            if task is None:
                record = {"line": row.line, **plain(record)}
            if table is not None:
                table.write(row, result)
            elif not in_memory:
                stream.write(json.dumps(record, ensure_ascii=False) + "\n")
            if in_memory and isinstance(task, TextTask):
                added = _added_columns(result)
                if top is not None:
                    added["probabilities"] = record["probabilities"]
                _check_columns_are_free(data_rows[row.line - 1], added)
                kept_rows.append(row.line - 1)
                kept_records.append(added)
            elif in_memory or folder is not None:  # a task's own files are written as a whole
                kept_records.append(record)
            examples += 1
            truncated += bool(result.get("truncated"))
            progress.update(examples)
        if examples == 0 and not bad_rows.found:
            raise DataError(
                "too-little-data", f"{quoted_name(file)} has nothing to predict", "name a file with examples"
            )

    written = [] if file_path is None else [file_path]
    if folder is not None and task is not None:
        written += [path for path in task.write(folder, kept_records, split=split) if path != file_path]
    if truncated:
        bad_rows.note(answerer.truncation_note(truncated, examples))
    predictions = None
    if in_memory and isinstance(task, TextTask):
        predictions = with_added_columns(data, data_rows, kept_rows, kept_records)
    elif in_memory:
        predictions = like(data, kept_records)
    left_out, notes = tuple(bad_rows.found), tuple(bad_rows.notes)
    return PredictReport(tuple(written), examples, left_out, notes, truncated, predictions)


def _check_output(path: Path | None, has_task: bool) -> None:
    """Refuse an output that cannot be written, before a model is loaded."""
    if path is None:
        return
    ending = path.suffix.lower()
    if not has_task and ending != ".jsonl":
        hint = "answers to lines go into a file such as answers.jsonl"
        raise ConfigError("bad-value", f"`{path}` is not a .jsonl file", hint)
    if ending in (".jsonl", *_SEPARATORS):
        check_new_file(path)
    elif _FILE_ENDING.fullmatch(ending) and not path.is_dir():
        fact = f"`{path}` is called a file of another kind than those that are written"
        hint = "predictions go into a .jsonl, .csv or .tsv file, or with the task's own into a folder without such an ending"
        raise ConfigError("bad-value", fact, hint)
    else:
        check_new_folder(path)


def _select_split(splits: Mapping[str, Any], split: str) -> Any:
    """Return the rows of a split in memory, by its name or another that files of it have ("validation" for "dev")."""
    for name in SPLIT_NAMES.get(split, (split,)):
        if name in splits:
            return splits[name]
    fact = f"the data have no split `{split}` (there: {', '.join(map(str, splits))})"
    raise DataError("missing-file", fact, "name one of them with split=…, or give its rows")


# --- answers ----------------------------------------------------------------------------------------------------------


OpenRows = tuple[DataFile | str, str, Iterator[Row]]  # a file or its path, its split, its rows


class TaskAnswerer:
    """Answer the examples of a task's file with a fine-tuned model."""

    def __init__(self, options: PredictOptions, bad_rows: BadRows) -> None:
        model = ready_model("predict", options.model, options.precision, options.device, bad_rows, options.input)
        self.task = with_columns(model.task, options.columns)
        self._model = model._replace(task=self.task)
        self._split = options.split
        self._batch_tokens = options.batch_tokens
        if options.top is not None and self.task.kind in ("regression", "tagging"):
            fact = f"a {self.task.kind} has no probabilities to choose from"
            raise ConfigError("bad-value", fact, "leave --top out")
        ending = "" if options.out is None else Path(options.out).suffix.lower()
        if ending in _SEPARATORS and not isinstance(self.task, TextTask):
            fact = f"`{options.out}` is a table, and `{self.task.name}` does not have one prediction a row"
            hint = "predictions go into a .jsonl file, or into a folder with the task's own"
            raise ConfigError("bad-value", fact, hint)

    @contextmanager
    def open_rows(self, data: Data, bad_rows: BadRows, all_columns: bool) -> Iterator[OpenRows]:
        """Yield a file, its split and its examples; these with the values of all columns, if asked for."""
        task = self.task
        with as_files(data) as path:
            file, split = file_of(task, path, self._split)
            if isinstance(task, TextTask):
                more = None if all_columns else ()
                pairs = task.rows(file, split=split, labelled=False, bad_rows=bad_rows, more=more)
                rows = (Row(row.line, example, row.values) for example, row in pairs)
            else:
                examples = task.examples(file, split=split, labelled=False, bad_rows=bad_rows)
                rows = (Row(number, example, {}) for number, example in enumerate(examples, 1))
            yield file, split, rows

    def answer(self, examples: Sequence[Any]) -> list[Result]:
        """Predict examples."""
        return predict_examples(self._model, examples, self._batch_tokens)

    def truncation_note(self, truncated: int, examples: int) -> str:
        """Return the line about texts that were not read to their end."""
        return truncation_line(truncated, examples, self.task)


class PipelineAnswerer:
    """Answer values, by default one a line, with the pipeline of a model that reads text."""

    task = None

    def __init__(self, options: PredictOptions, bad_rows: BadRows) -> None:
        model, kind, top = options.model, options.kind, options.top
        if kind == "caption":
            fact = "the kind caption reads videos, not text"
            raise ConfigError("bad-value", fact, f"albertkit caption predict {model} VIDEO")
        if kind is None and is_captioner_folder(local_folder(model)):
            raise captioner_error(model)
        self.pipeline = load_pipeline(model, kind, precision=options.precision, device=options.device)
        for note in self.pipeline.notes:
            bad_rows.note(note)
        self._batch_tokens = options.batch_tokens
        self._options: dict[str, int] = {}
        if top is not None:
            if not isinstance(top, Integral) or top < 1:
                raise ConfigError("bad-value", f"top is {top!r}, it must be at least 1", "leave it out")
            if "top" in self.pipeline.options:
                self._options = {"top": top}
            elif self.pipeline.kind not in ("classify", "choose"):  # whose probabilities `keep_top` cuts
                fact = f"{self.pipeline.kind} has nothing to choose from"
                raise ConfigError("bad-value", fact, "leave --top out")

    @contextmanager
    def open_rows(self, data: Data, bad_rows: BadRows, all_columns: bool) -> Iterator[OpenRows]:
        """Yield a file, no split, and its lines; values that the pipeline does not take are bad rows."""
        with as_files(data) if is_in_memory(data) else nullcontext(data) as path:
            file = find_file(STANDARD_INPUT if path == "-" else path)
            yield file.source, "", self._parse_rows(file, bad_rows)

    def _parse_rows(self, file: InputFile, bad_rows: BadRows) -> Iterator[Row]:
        for row in read_values(file, bad_rows):
            try:
                yield row._replace(value=self.pipeline.parse(row.value))
            except DataError as error:
                _add_bad_row(bad_rows, file.source, row.line, error)

    def answer(self, inputs: Sequence[Any]) -> list[Result]:
        """Answer parsed values."""
        return self.pipeline.answer(inputs, self._batch_tokens, **self._options)

    def truncation_note(self, truncated: int, examples: int) -> str:
        """Return the line about texts that were not read to their end."""
        texts = f"{truncated:,} of {examples:,} texts"
        return f"{texts} are longer than the model reads; the end was not read"


def answer_rows(
    rows: Iterator[Row], answer: Callable[[Sequence[Any]], list[Result]], file: DataFile | str, bad_rows: BadRows
) -> Iterator[tuple[Row, Result]]:
    """Answer rows of any number, a chunk at a time; those that cannot be answered are bad rows of the file."""
    while chunk := list(islice(rows, CHUNK)):
        yield from _answer_chunk(chunk, answer, file, bad_rows)


def _answer_chunk(
    chunk: list[Row], answer: Callable[[Sequence[Any]], list[Result]], file: DataFile | str, bad_rows: BadRows
) -> list[tuple[Row, Result]]:
    """Answer a chunk; one whose features cannot be made is halved until the row is known."""
    try:
        return list(zip(chunk, answer([row.value for row in chunk]), strict=True))
    except DataError as error:
        if len(chunk) == 1:
            _add_bad_row(bad_rows, file, chunk[0].line, error)
            return []
        half = len(chunk) // 2
        first = _answer_chunk(chunk[:half], answer, file, bad_rows)
        return first + _answer_chunk(chunk[half:], answer, file, bad_rows)


def _add_bad_row(bad_rows: BadRows, file: DataFile | str, line: int, error: DataError) -> None:
    bad_rows.add(file, line, error.message, f"{error.hint}; or leave such lines out with --on-error skip")


def read_values(file: InputFile, bad_rows: BadRows) -> Iterator[Row]:
    """Yield the values of the lines of a file; lines that hold none are bad rows."""
    extension = next((part for part in reversed(file.name.lower().split(".")) if part in EXTENSIONS), "txt")
    if extension in _TABLES:
        fact = f"`{file.path}` is a table, and there is no task that says what its columns mean"
        raise CheckpointError("wrong-model", fact, "put a value on every line: text (.txt), or JSON (.jsonl)")
    with ByteStream(file) as stream:
        for number, line in lines(stream):
            if has_half_characters(line):
                bad_rows.add(file.source, number, NOT_UTF8, not_utf8(file.source))
            elif extension not in _JSON:
                yield Row(number, line, {})
            elif line and not line.isspace():
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:
                    bad_rows.add(file.source, number, not_json(error))
                else:
                    yield Row(number, value, {})


# --- outputs ----------------------------------------------------------------------------------------------------------


class _TableWriter:
    """Write the columns of each row, `prediction`, and for one class a text its `probability`."""

    def __init__(self, stream: IO[str], separator: str, task: Task | None) -> None:
        assert isinstance(task, TextTask)
        self._table = csv.writer(stream, delimiter=separator, lineterminator="\n")
        self._task = task
        self._columns: list[str] = []

    def write(self, row: Row, result: Result) -> None:
        """Write one row; the first names the columns."""
        added = _added_columns(result)
        if not self._columns:
            _check_columns_are_free(row.columns, added)
            self._columns = list(row.columns)
            self._table.writerow([*self._columns, *added])
        added["prediction"] = self._task.answer_of(result)
        if "probability" in added:
            added["probability"] = f"{added['probability']:.6f}"
        self._table.writerow([*(row.columns.get(name, "") for name in self._columns), *added.values()])


def keep_top(result: Result, top: int | None) -> Result:
    """Return a result with the `top` largest probabilities, or first candidates of an answer."""
    if top is None:
        return result
    if isinstance(result.get("probabilities"), dict):
        best = sorted(result["probabilities"].items(), key=lambda pair: -pair[1])[:top]
        return {**result, "probabilities": dict(best)}
    return {**result, "nbest": result["nbest"][:top]} if "nbest" in result else result


def plain(result: Result) -> Result:
    """Return a result with lists where it had arrays, for JSON."""
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in result.items()}


def _added_columns(result: Result) -> dict[str, Any]:
    """Return the columns that a prediction of a task on texts adds to its row."""
    if "label" in result:
        return {"prediction": result["label"], "probability": result["probabilities"][result["label"]]}
    return {"prediction": result["labels"] if "labels" in result else result["value"]}


def _check_columns_are_free(columns: Mapping[str, Any], added: Mapping[str, Any]) -> None:
    """Refuse to write over a column of the input."""
    for name in added:
        if name in columns:
            fact = f"the input has a column `{name}`, which the output adds"
            hint = "rename the column, or write the predictions alone: --out predictions.jsonl"
            raise DataError("ambiguous", fact, hint)
