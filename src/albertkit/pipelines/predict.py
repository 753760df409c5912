"""The commands `predict` and `evaluate`.

`predict` answers every example of a task's file, or every line of any file, in its order, however
large it is.

A fine-tuned model reads its task's files, a pipeline lines; both are answered a chunk at a time,
and every answer is written as soon as it is known. `evaluate` scores a pretrained model on a store
or records, a fine-tuned one on its task.
"""

import csv
import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from numbers import Integral
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from albertkit.command import takes
from albertkit.engines.compile_loops import start_compiling_in_background
from albertkit.engines.engine import Precision
from albertkit.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    explain_os_error,
    suggest_existing_path,
)
from albertkit.files import atomic_file, check_new_file, check_new_folder
from albertkit.model_paths import captioner_error, is_captioner_folder, local_folder
from albertkit.output.progress import ProgressBar
from albertkit.output.render import print_sections
from albertkit.output.sections import (
    Bar,
    Bars,
    Cell,
    FactList,
    MarkedSpan,
    Panel,
    Paragraph,
    Section,
    TableSection,
)
from albertkit.output.sections import Result as CommandResult
from albertkit.pipelines.load import load_pipeline
from albertkit.pipelines.pipeline import Result
from albertkit.pipelines.text_pipelines import MASK, Embed
from albertkit.pretraining.run import evaluate
from albertkit.pretraining.sources import is_pretraining_data
from albertkit.printable import escape_json, print_note
from albertkit.tables.bad_rows import BadRow, BadRows
from albertkit.tables.files import InputFile, find_input_file
from albertkit.tables.records import (
    SPLIT_NAMES,
    STANDARD_INPUT,
    Data,
    DataFile,
    as_files,
    convert_like,
    is_in_memory,
    is_standard_output,
    list_rows,
    quoted_name,
    with_added_columns,
)
from albertkit.tables.table import EXTENSIONS, json_lines, numbered_text_lines
from albertkit.tasks.data import find_split_file
from albertkit.tasks.evaluate import (
    describe_truncation,
    evaluate_task,
    load_model_on_engine,
    predict_examples,
)
from albertkit.tasks.models import check_not_swapped, is_task_model
from albertkit.tasks.options import EvaluateOptions, PredictCommandOptions, PredictOptions
from albertkit.tasks.registry import with_columns
from albertkit.tasks.task import Task
from albertkit.tasks.texts import TextTask

# Examples read, computed and written at a time: enough to sort by length, little enough to hold
CHUNK = 4096
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_JSON = ("jsonl", "ndjson", "json")
_TABLES = ("csv", "tsv", "parquet", "pq")


@dataclass(frozen=True)
class PredictionReport(CommandResult):
    """Report of `predict`.

    Attributes:
        written: Where the predictions are; empty for standard output.
        examples: Examples predicted.
        left_out: Rows that could not be used.
        notes: How the file was read, where that was not plain; what the engine fell back from.
        truncated: Examples whose texts were longer than the model reads.
        predictions: Of rows in memory, without `out`; in the kind that was given (a DataFrame, a
            Dataset, a list), of several splits those of the one that is named. Of a task on texts
            the rows with a `prediction`, for one class a text its `probability`, and with `top` the
            `probabilities`; else a record a row.
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
        return [FactList(self.to_dict() | {"left_out": len(self.left_out) or None})]


class InputRow(NamedTuple):
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
def predict(options: PredictOptions) -> PredictionReport:
    """Predict every example of a file, in its order; see `PredictOptions`.

    Of a fine-tuned model a record has the example's `id` first, of other models, or with `kind`,
    the number of its `line`.

    Raises:
        CheckpointError: wrong-model, exists, and what loading raises. DataError: bad-row,
            missing-file, too-little-data, and what reading raises. ConfigError: bad-value,
            conflicting-options, no-device, unknown-name.
    """
    check_not_swapped(options.model, options.input)
    path = None if options.out is None or is_standard_output(options.out) else Path(options.out)
    has_task = options.kind is None and is_task_model(options.model)
    if not has_task:
        # A model that is not there is reported before the name of the output
        local_folder(options.model)
    _check_output(path, has_task)
    bad_rows = BadRows(options.on_error)
    predictor = (
        TaskPredictor(options, bad_rows) if has_task else PipelinePredictor(options, bad_rows)
    )
    task = predictor.task
    data = options.input

    in_memory = options.out is None and is_in_memory(data)
    data_rows: list[dict[str, Any]] = []  # of data in memory
    if in_memory:
        data = _rows_of_split(data, options.split) if isinstance(data, Mapping) else data
        data_rows = list_rows(data)
    separator = None if path is None else _SEPARATORS.get(path.suffix.lower())
    folder = (
        path if path is not None and path.suffix.lower() not in (".jsonl", *_SEPARATORS) else None
    )
    file_path = path if folder is None else folder / "predictions.jsonl"

    examples = truncated = 0
    kept_rows: list[int] = []
    kept_records: list[dict[str, Any]] = []
    with ExitStack() as stack:
        source = data_rows if in_memory else data
        file, split, rows = stack.enter_context(
            predictor.open_rows(source, bad_rows, separator is not None)
        )
        stream = (
            sys.stdout if file_path is None else stack.enter_context(atomic_file(file_path, "w"))
        )
        table = None if separator is None else _TableWriter(stream, separator, task)
        progress = stack.enter_context(
            ProgressBar("predicting", 0, "examples", options.progress and path is not None)
        )
        for row, result in answer_rows(rows, predictor.answer, file, bad_rows):
            record = keep_top(result, options.top)
            if task is None:
                record = {"line": row.line, **arrays_to_lists(record)}
            if table is not None:
                table.write(row, result)
            elif not in_memory:
                stream.write(escape_json(json.dumps(record, ensure_ascii=False)) + "\n")
            if in_memory and isinstance(task, TextTask):
                added = _prediction_columns(result)
                if options.top is not None:
                    added["probabilities"] = record["probabilities"]
                _check_columns_are_free(data_rows[row.line - 1], added)
                kept_rows.append(row.line - 1)
                kept_records.append(added)
            elif in_memory or folder is not None:  # a task's own files are written as a whole
                kept_records.append(record)
            examples += 1
            truncated += bool(result.get("truncated"))
            progress.update(examples)
        if examples == 0 and not bad_rows.rows:
            raise DataError(
                "too-little-data",
                f"{quoted_name(file)} has nothing to predict",
                "name a file with examples",
            )

    paths = [] if file_path is None else [file_path]
    if folder is not None and task is not None:
        paths += [
            path for path in task.write(folder, kept_records, split=split) if path != file_path
        ]
    if truncated:
        bad_rows.note(predictor.truncation_note(truncated, examples))
    for line in unknown_text_lines(predictor.counts):
        bad_rows.note(line)
    predictions = None
    if in_memory and isinstance(task, TextTask):
        predictions = with_added_columns(data, data_rows, kept_rows, kept_records)
    elif in_memory:
        predictions = convert_like(data, kept_records)
    return PredictionReport(
        tuple(paths), examples, tuple(bad_rows.rows), tuple(bad_rows.notes), truncated, predictions
    )


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
    else:
        check_new_folder(
            path,
            "predictions go into a .jsonl, .csv or .tsv file, or with the task's own into a folder",
        )


def _rows_of_split(splits: Mapping[str, Any], split: str) -> Any:
    """Return the rows of a split in memory, by its name or another that files of it have ("validation" for "dev")."""
    for name in SPLIT_NAMES.get(split, (split,)):
        if name in splits:
            return splits[name]
    fact = f"the data have no split `{split}` (there: {', '.join(map(str, splits))})"
    raise DataError("missing-file", fact, "name one of them with split=…, or give its rows")


# --- answers --------------------------------------------------------------------------------------


# A file or its path, its split, its rows
OpenedRows = tuple[DataFile | str, str, Iterator[InputRow]]
UNREAD_SHARE = 0.1  # of the tokens: a rare sign in a short text is no text of another language


def unknown_text_lines(token_counts: Counter[str]) -> list[str]:
    """Return a line on texts of which the tokenizer does not know too large a share of the tokens."""
    unknown = token_counts["unknown"]
    tokens = token_counts["tokens"]
    if unknown <= UNREAD_SHARE * tokens:
        return []
    return [f"{unknown:,} of {tokens:,} tokens are unknown: what they stand for is not read"]


class TaskPredictor:
    """Answer the examples of a task's file with a fine-tuned model."""

    def __init__(self, options: PredictOptions, bad_rows: BadRows) -> None:
        model = load_model_on_engine("predict", options, options.input, bad_rows)
        self.task = with_columns(model.task, options.columns)
        self._model = model._replace(task=self.task)
        self.counts = Counter[str]()  # of the tokens that were answered
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
    def open_rows(self, data: Data, bad_rows: BadRows, all_columns: bool) -> Iterator[OpenedRows]:
        """Yield a file, its split and its examples; these with the values of all columns, if asked for."""
        task = self.task
        with as_files(data) as path:
            file, split = find_split_file(task, path, self._split)
            if isinstance(task, TextTask):
                further_columns = None if all_columns else ()
                pairs = task.rows(
                    file,
                    split=split,
                    labelled=False,
                    bad_rows=bad_rows,
                    further_columns=further_columns,
                )
                rows = (InputRow(row.line, example, row.values) for example, row in pairs)
            else:
                examples = task.examples(file, split=split, labelled=False, bad_rows=bad_rows)
                rows = (InputRow(number, example, {}) for number, example in enumerate(examples, 1))
            yield file, split, rows

    def answer(self, examples: Sequence[Any]) -> list[Result]:
        """Predict examples."""
        return predict_examples(self._model, examples, self._batch_tokens, self.counts)

    def truncation_note(self, truncated: int, examples: int) -> str:
        """Return the line about texts that were not read to their end."""
        return describe_truncation(truncated, examples, self.task)


class PipelinePredictor:
    """Answer values, by default one a line, with the pipeline of a model that reads text."""

    task = None

    def __init__(self, options: PredictOptions, bad_rows: BadRows) -> None:
        model = options.model
        kind = options.kind
        if kind == "caption":
            fact = "the kind caption reads videos, not text"
            raise ConfigError("bad-value", fact, f"albertkit caption predict {model} VIDEO")
        if kind is None and is_captioner_folder(local_folder(model)):
            raise captioner_error(model)
        self.pipeline = load_pipeline(
            model, kind, precision=options.precision, device=options.device
        )
        for note in self.pipeline.notes:
            bad_rows.note(note)
        self._batch_tokens = options.batch_tokens
        self.counts = Counter[str]()  # of the tokens that were answered
        self._options: dict[str, int] = {}
        top = options.top
        if top is not None:
            if not isinstance(top, Integral) or top < 1:
                raise ConfigError(
                    "bad-value", f"top is {top!r}, it must be at least 1", "leave it out"
                )
            if "top" in self.pipeline.options:
                self._options = {"top": top}
            elif self.pipeline.kind not in (
                "classify",
                "choose",
            ):  # whose probabilities `keep_top` cuts
                fact = f"{self.pipeline.kind} has nothing to choose from"
                raise ConfigError("bad-value", fact, "leave --top out")

    @contextmanager
    def open_rows(self, data: Data, bad_rows: BadRows, all_columns: bool) -> Iterator[OpenedRows]:
        """Yield a file, no split, and its lines; values that the pipeline does not take are bad rows."""
        with as_files(data) if is_in_memory(data) else nullcontext(data) as path:
            file = find_input_file(STANDARD_INPUT if path == "-" else path)
            yield file.source, "", self._parse_rows(file, bad_rows)

    def _parse_rows(self, file: InputFile, bad_rows: BadRows) -> Iterator[InputRow]:
        for row in read_values(file, bad_rows):
            try:
                yield row._replace(value=self.pipeline.parse(row.value))
            except DataError as error:
                _add_bad_row(bad_rows, file.source, row.line, error)

    def answer(self, inputs: Sequence[Any]) -> list[Result]:
        """Answer parsed values."""
        return self.pipeline.answer(inputs, self._batch_tokens, self.counts, **self._options)

    def truncation_note(self, truncated: int, examples: int) -> str:
        """Return the line about texts that were not read to their end."""
        texts = f"{truncated:,} of {examples:,} texts"
        return f"{texts} are longer than the model reads; the end was not read"


def answer_rows(
    rows: Iterator[InputRow],
    answer: Callable[[Sequence[Any]], list[Result]],
    file: DataFile | str,
    bad_rows: BadRows,
) -> Iterator[tuple[InputRow, Result]]:
    """Answer any number of rows, a chunk at a time; rows that cannot be answered are bad rows of the file."""
    while chunk := list(islice(rows, CHUNK)):
        yield from _answer_chunk(chunk, answer, file, bad_rows)


def _answer_chunk(
    chunk: list[InputRow],
    answer: Callable[[Sequence[Any]], list[Result]],
    file: DataFile | str,
    bad_rows: BadRows,
) -> list[tuple[InputRow, Result]]:
    """Answer a chunk; one whose features cannot be computed is halved until the bad row is found."""
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
    bad_rows.add(
        file, line, error.message, f"{error.hint}; or leave such lines out with --on-error skip"
    )


def read_values(file: InputFile, bad_rows: BadRows) -> Iterator[InputRow]:
    """Return the values of the lines of a file; lines that hold none are bad rows."""
    extension = next(
        (part for part in reversed(file.name.lower().split(".")) if part in EXTENSIONS), "txt"
    )
    if extension in _TABLES:
        fact = f"`{file.path}` is a table, and there is no task that says what its columns mean"
        raise CheckpointError(
            "wrong-model", fact, "put a value on every line: text (.txt), or JSON (.jsonl)"
        )
    values: Iterator[tuple[int, Any]] = numbered_text_lines(file, bad_rows)
    if extension in _JSON:
        values = json_lines(values, partial(bad_rows.add, file.source))
    return (InputRow(number, value, {}) for number, value in values)


# --- outputs --------------------------------------------------------------------------------------


class _TableWriter:
    """Write the columns of each row, `prediction`, and for one class a text its `probability`."""

    def __init__(self, stream: IO[str], separator: str, task: Task | None) -> None:
        assert isinstance(task, TextTask)
        self._table = csv.writer(stream, delimiter=separator, lineterminator="\n")
        self._task = task
        self._columns: list[str] = []

    def write(self, row: InputRow, result: Result) -> None:
        """Write one row; the first names the columns."""
        added = _prediction_columns(result)
        if not self._columns:
            _check_columns_are_free(row.columns, added)
            self._columns = list(row.columns)
            self._table.writerow([*self._columns, *added])
        added["prediction"] = self._task.answer_of(result)
        if "probability" in added:
            added["probability"] = f"{added['probability']:.6f}"
        self._table.writerow(
            [*(row.columns.get(name, "") for name in self._columns), *added.values()]
        )


def keep_top(result: Result, top: int | None) -> Result:
    """Return a result with the `top` largest probabilities, or first candidates of an answer."""
    if top is None:
        return result
    if isinstance(result.get("probabilities"), dict):
        best = sorted(result["probabilities"].items(), key=lambda pair: -pair[1])[:top]
        return {**result, "probabilities": dict(best)}
    return {**result, "nbest": result["nbest"][:top]} if "nbest" in result else result


def arrays_to_lists(result: Result) -> Result:
    """Return a result with lists where it had arrays, for JSON."""
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in result.items()
    }


def _prediction_columns(result: Result) -> dict[str, Any]:
    """Return the columns that a prediction of a task on texts adds to its row."""
    if "label" in result:
        return {
            "prediction": result["label"],
            "probability": result["probabilities"][result["label"]],
        }
    return {"prediction": result["labels"] if "labels" in result else result["value"]}


def _check_columns_are_free(columns: Mapping[str, Any], added: Mapping[str, Any]) -> None:
    """Refuse to write over a column of the input."""
    for name in added:
        if name in columns:
            fact = f"the input has a column `{name}`, which the output adds"
            hint = "rename the column, or write the predictions alone: --out predictions.jsonl"
            raise DataError("ambiguous", fact, hint)


@dataclass(frozen=True)
class Answers:
    """Values and their answers.

    Attributes:
        model: Folder or name.
        kind: One of `KINDS`.
        precision: What was computed in.
        notes: What the engine fell back from, and what the model was not made for.
        values: What was asked.
        results: As many, of plain values.
        similarity: Cosines of all texts with each other, if they were embedded and are several.
    """

    model: str
    kind: str
    precision: str
    notes: tuple[str, ...]
    values: list[Any]
    results: list[Result]
    similarity: list[list[float]] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; what was not asked for is left out."""
        return {name: value for name, value in vars(self).items() if value is not None}


def ask(
    model: str | Path,
    texts: Sequence[str] = (),
    pairs: Sequence[str] = (),
    questions: Sequence[str] = (),
    choices: Sequence[str] = (),
    *,
    kind: str | None = None,
    top: int | None = None,
    precision: Precision = "auto",
    device: str = "auto",
) -> Answers:
    """Answer a few values, built from their parts as `PredictCommandOptions` describes them."""
    parts = [
        [part] if isinstance(part, str) else part for part in (texts, pairs, questions, choices)
    ]
    values = make_pipeline_inputs(*parts)
    options = PredictOptions(model, None, kind=kind, top=top, precision=precision, device=device)
    predictor = PipelinePredictor(options, BadRows("stop"))
    pipeline = predictor.pipeline
    try:
        inputs = pipeline.parse_all(values)
    except DataError as error:
        example = f"albertkit predict {model} {format_command_line_flags(pipeline.example)}"
        raise DataError(error.slug, error.message, example) from None
    compiling = start_compiling_in_background(pipeline.engine)
    results = predictor.answer(inputs)
    similarity = None
    if isinstance(pipeline, Embed) and len(results) > 1:
        vectors = np.stack([result["embedding"] for result in results])
        similarity = pipeline.encoder.similarity(vectors, vectors).tolist()
    truncated = {number: result.get("truncated") for number, result in enumerate(results, 1)}
    counts = [f"text {number}: {tokens:,}" for number, tokens in truncated.items() if tokens]
    doubts = (*pipeline.doubts(inputs), *unknown_text_lines(predictor.counts))
    notes = (*pipeline.notes, *compiling, *doubts)
    if counts:
        notes += (
            f"texts longer than the model reads; tokens at the end that were not read: {', '.join(counts)}",
        )
    plain_results = [arrays_to_lists(keep_top(result, top)) for result in results]
    return Answers(
        str(model), pipeline.kind, pipeline.precision, notes, values, plain_results, similarity
    )


def run_predict(options: PredictCommandOptions) -> Answers | PredictionReport | None:
    """Run `albertkit predict`: answer the texts that are named, or a file."""
    parts = (options.text, options.pair, options.question, options.choice)
    if any(parts):
        if options.input is not None or options.out is not None:
            fact = "--text cannot be combined with INPUT or --out"
            hint = "leave one of them out"
            if options.input is not None and (options.text or options.pair):
                name = "text" if options.text else "pair"
                fact = f"--{name} cannot be combined with INPUT"
                hint = (
                    f"--{name} is a text itself; a column of a file is named with --{name}-column"
                )
            raise ConfigError("conflicting-options", fact, hint)
        answers = ask(
            options.model,
            *parts,
            kind=options.kind,
            top=options.top,
            precision=options.precision,
            device=options.device,
        )
        _print_notes(answers.notes)
        return answers
    if options.input is None:
        hint = f"albertkit predict {options.model} INPUT, or --text 'a text'"
        raise ConfigError("bad-value", "nothing to predict", hint)
    try:
        report = predict(options)
    except (DataError, OSError) as error:
        reason = explain_os_error(error)
        name = str(options.input)
        endings = {*name.lower().split(".")[1:]} & {*EXTENSIONS, "conll", "bio"}
        is_file = " " not in name and ("://" in name or endings)
        if is_file or reason is None or reason.slug != "not-found":
            raise
        # Of a text longer than a name can be, 255 bytes, the system's error shows the beginning
        if f"`{name[:100]}" not in reason.message:
            raise
        hint = f"a text is given with --text; if a file is meant: {reason.hint}"
        raise DataError(reason.slug, reason.message, hint) from None
    for line in report.left_out_lines:
        print_note(f"left out: {line}")
    if report.written:
        return report
    _print_notes(report.notes)
    return None  # the predictions were printed


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        print_note(f"note: {note}")


def make_pipeline_inputs(
    texts: Sequence[str], pairs: Sequence[str], questions: Sequence[str], choices: Sequence[str]
) -> list[Any]:
    """Build the values that pipelines take from their parts."""
    if pairs and (questions or choices):
        raise ConfigError(
            "bad-value",
            "--pair cannot be combined with --question or --choice",
            "leave one of them out",
        )
    if choices:
        if len(texts) > 1 or len(questions) > 1:
            fact = f"choices for {len(questions)} questions about {len(texts)} texts"
            raise ConfigError("bad-value", fact, "name one --question, and at most one --text")
        value: dict[str, Any] = {}
        if texts:
            value["context"] = texts[0]
        if questions:
            value["question"] = questions[0]
        value["choices"] = list(choices)
        return [value]
    if questions:
        if len(texts) != 1:
            raise ConfigError(
                "bad-value", f"{len(texts)} texts for the questions to be about", "name one --text"
            )
        return [{"question": question, "context": texts[0]} for question in questions]
    if pairs:
        if len(pairs) != len(texts):
            fact = f"{len(pairs)} --pair values for {len(texts)} --text values"
            raise ConfigError("bad-value", fact, "name a --pair for every --text")
        return list(zip(texts, pairs, strict=True))
    return list(texts)


def format_command_line_flags(value: Any) -> str:
    """Return the flags of a value: the other direction of `make_pipeline_inputs`."""
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, dict):
        value = dict(zip(("text", "pair"), value, strict=False))
    flags = [
        ("text" if name == "context" else name, part)
        for name, part in value.items()
        if name != "choices"
    ]
    flags += [("choice", choice) for choice in value.get("choices", ())]
    return " ".join(f"--{name} {shlex.quote(part)}" for name, part in flags)


MAX_LABELS = 10
CONTEXT_CHARACTERS = 160  # before and after an answer
MAX_NUMBERS = 6  # of a vector


def show_predictions(result: Answers | PredictionReport) -> None:
    """Print the answers, or the report on a file."""
    print_sections(answer_sections(result) if isinstance(result, Answers) else result.sections())


def answer_sections(answers: Answers) -> list[Section]:
    """Return a panel for each value, with the model's answer."""
    sections_of = _SECTIONS[answers.kind]
    sections: list[Section] = [
        Panel(sections_of(value, result))
        for value, result in zip(answers.values, answers.results, strict=True)
    ]
    if answers.similarity:
        names = [str(number) for number in range(1, len(answers.similarity) + 1)]
        rows = [
            [name, *(f"{cosine:.3f}" for cosine in row)]
            for name, row in zip(names, answers.similarity, strict=True)
        ]
        sections.append(TableSection(["", *names], rows, "cosines"))
    return sections


def _mask_sections(text: str, result: Result) -> list[Section]:
    parts = re.split(f"({re.escape(MASK)})", text)
    sections: list[Section] = [
        Paragraph([MarkedSpan(part, "strong" if part == MASK else "") for part in parts])
    ]
    for number, guesses in enumerate(result["masks"], start=1):
        if len(result["masks"]) > 1:
            sections.append(Paragraph(f"{MASK} {number}", tone="muted"))
        sections.append(
            _probability_bars(
                [(guess["word"] or guess["piece"], guess["probability"]) for guess in guesses]
            )
        )
    return sections


def _sentence_order_sections(value: tuple[str, str], result: Result) -> list[Section]:
    return [
        *_paragraphs(value),
        _probability_bars([("in order", result["in_order"]), ("swapped", result["swapped"])]),
    ]


def _class_sections(text_or_pair: Any, result: Result) -> list[Section]:
    shares = sorted(result["probabilities"].items(), key=lambda item: -item[1])
    labels = result.get("labels", [result.get("label")])
    sections = [*_paragraphs(text_or_pair), _probability_bars(shares[:MAX_LABELS], labels)]
    if len(shares) > MAX_LABELS:
        sections.append(Paragraph(f"and {len(shares) - MAX_LABELS:,} more"))
    return sections


def _entity_sections(text: str, result: Result) -> list[Section]:
    spans = []
    rows = []
    position = 0
    for entity in sorted(result["entities"], key=lambda entity: entity["start"]):
        start, end = entity["start"], entity["end"]
        spans += [
            MarkedSpan(text[position:start]),
            MarkedSpan(text[max(position, start) : end], "strong"),
        ]
        position = max(position, end)
        rows.append(
            [
                entity["type"],
                entity["text"],
                Cell(f"{start:,} to {end:,}", "muted"),
                f"{entity['score']:.1%}",
            ]
        )
    entities = (
        TableSection(["", "", "", ""], rows) if rows else Paragraph("no entity", tone="muted")
    )
    return [Paragraph([*spans, MarkedSpan(text[position:])]), entities]


def _span_sections(question_and_context: dict[str, str], result: Result) -> list[Section]:
    answer = MarkedSpan(result["answer"] or "no answer", "strong")
    sections: list[Section] = [
        Paragraph(question_and_context["question"]),
        Paragraph([answer, MarkedSpan(f"  {result['score']:.1%}", "muted")]),
    ]
    if result["answer"]:
        context = question_and_context["context"]
        start = result["start"]
        end = result["end"]
        before = context[max(start - CONTEXT_CHARACTERS, 0) : start]
        if start > CONTEXT_CHARACTERS:
            before = f"… {before}"
        after = context[end : end + CONTEXT_CHARACTERS]
        if end + CONTEXT_CHARACTERS < len(context):
            after += " …"
        spans = [
            MarkedSpan(before, "muted"),
            MarkedSpan(context[start:end], "strong"),
            MarkedSpan(after, "muted"),
        ]
        sections.append(Paragraph(spans))
    return [
        *sections,
        _probability_bars(
            [(guess["text"] or "no answer", guess["probability"]) for guess in result["nbest"]]
        ),
    ]


def _choice_sections(question_and_choices: dict[str, Any], result: Result) -> list[Section]:
    shares = result["probabilities"]
    names = {
        letter: f"{letter}  {choice}"
        for letter, choice in zip(shares, question_and_choices["choices"], strict=False)
    }
    named_shares = [(names[letter], share) for letter, share in shares.items()]
    texts = [
        question_and_choices[name]
        for name in ("context", "question")
        if question_and_choices.get(name)
    ]
    return [*_paragraphs(texts), _probability_bars(named_shares, [names[result["label"]]])]


def _vector_sections(text: str, result: Result) -> list[Section]:
    vector = result["embedding"]
    first_numbers = ", ".join(f"{number:.4f}" for number in vector[:MAX_NUMBERS])
    ellipsis = ", …" if len(vector) > MAX_NUMBERS else ""
    return [
        Paragraph(text),
        Paragraph(
            f"{len(vector):,} numbers, {result['tokens']:,} tokens: {first_numbers}{ellipsis}",
            tone="muted",
        ),
    ]


_SECTIONS: dict[str, Callable[[Any, Result], list[Section]]] = {
    "fill-mask": _mask_sections,
    "sentence-order": _sentence_order_sections,
    "classify": _class_sections,
    "score": lambda value, result: [
        *_paragraphs(value),
        Paragraph(f"{result['value']:.4f}", tone="strong"),
    ],
    "tag": _entity_sections,
    "answer": _span_sections,
    "choose": _choice_sections,
    "embed": _vector_sections,
}


def _paragraphs(value: Any) -> list[Section]:
    texts = [value] if isinstance(value, str) else value
    return [Paragraph(text) for text in texts]


def _probability_bars(
    shares: list[tuple[str, float]], best: Iterable[str | None] | None = None
) -> Bars:
    """Return names with a bar and a probability each; the best are emphasised, by default the first."""
    best_names = {name for name, _ in shares[:1]} if best is None else set(best)
    return Bars(
        [Bar(name, share, "strong" if name in best_names else "") for name, share in shares]
    )


def run_evaluate(options: EvaluateOptions) -> Any:
    """Score a model on data of its kind."""
    if (
        options.data != "-"
        and not is_pretraining_data(options.data)
        and not Path(options.data).exists()
    ):
        hint = suggest_existing_path(options.data, "check the path")
        raise DataError("not-found", f"no such file or folder: `{options.data}`", hint)
    if is_task_model(options.model) or not is_pretraining_data(options.data):
        return evaluate_task(options)
    precision: Any = options.precision or "fp32"  # int8 is refused there
    return evaluate(
        options.model,
        options.data,
        length=options.length,
        held_out=options.held_out,
        seed=options.seed,
        batch_tokens=options.batch_tokens,
        precision=precision,
        device=options.device,
        progress=options.progress,
    )
