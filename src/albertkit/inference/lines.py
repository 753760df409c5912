"""`predict_lines`: a file with a value on every line, of any size, answered in its order."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from albertkit.captioning.folder import is_captioner_folder
from albertkit.corpus.inputs import ByteStream, InputFile, find_inputs
from albertkit.engines.engine import Precision
from albertkit.errors import CheckpointError, ConfigError, DataError
from albertkit.files import check_new_file
from albertkit.inference.loading import load_pipeline
from albertkit.inference.pipeline import BATCH_TOKENS, Pipeline, Result
from albertkit.model_folder import local_folder
from albertkit.tasks.faults import Faults
from albertkit.tasks.given_data import STANDARD_INPUT, is_standard_output
from albertkit.tasks.loading import check_not_swapped
from albertkit.tasks.predict import PredictReport, chunks, with_top, writer
from albertkit.tasks.tables import EXTENSIONS
from albertkit.tasks.tables.source import NOT_UTF8, has_half_characters, lines, not_json, not_utf8

_JSON = ("jsonl", "ndjson", "json")
_TABLES = ("csv", "tsv", "parquet", "pq")


class Line(NamedTuple):
    """A line of a file and what it holds.

    Attributes:
        number: From 1.
        value: Its value; once parsed, the pipeline's input.
    """

    number: int
    value: Any


def predict_lines(
    model: str | Path,
    input: str | Path,
    out: str | Path | None = None,
    *,
    kind: str | None = None,
    top: int | None = None,
    on_error: Literal["stop", "skip"] = "stop",
    batch_tokens: int = BATCH_TOKENS,
    precision: Precision = "auto",
    device: str = "auto",
) -> PredictReport:
    """Answer every line of a file, in its order, however large it is; a JSON object a line, `line` first.

    Args:
        model: As `load_pipeline`; no captioner.
        input: Path or URL, or "-" for standard input: lines of text; or of JSON (`.jsonl`), whose lines hold whatever the
            pipeline's `parse` takes, empty ones passed over. gzip, xz and zstandard are unpacked.
        out: A `.jsonl` file. Default: standard output.
        kind: As `load_pipeline`.
        top: Guesses or probabilities to keep, as `top_options`.
        on_error: What to do about lines that cannot be used: stop, or skip, count and name them.
        batch_tokens: Most tokens computed at once.
        precision: As `load_engine`.
        device: As `load_pipeline`.

    Raises:
        ConfigError: bad-argument for another `out`, or a captioner. CheckpointError: no-task for a table. DataError: bad-row,
            not-found, wrong-kind, several-files, and what reading raises. And what `load_pipeline` raises.
    """
    check_not_swapped(model, input)
    local_folder(model)  # a model that is not there is reported before the name of the output
    if out is not None and is_standard_output(out):
        out = None
    if out is not None and Path(out).suffix != ".jsonl":
        raise ConfigError(
            "bad-argument", f"`{out}` is no .jsonl file", "answers to lines go into a file such as answers.jsonl"
        )
    if out is not None:
        check_new_file(out)
    file = _only_file(STANDARD_INPUT if input == "-" else input)
    pipeline = text_pipeline(model, kind, precision, device)
    faults, options = Faults(on_error), top_options(pipeline, top)
    for note in pipeline.notes:
        faults.note(note)
    target, count, truncated = None if out is None else Path(out), 0, 0
    with writer(target) as stream:
        for chunk in chunks(_parsed(pipeline, read_values(file, faults), file.path, faults)):
            for number, result in _answered(pipeline, chunk, batch_tokens, file.path, faults, options):
                record = {"line": number, **plain(with_top(result, top))}
                stream.write(json.dumps(record, ensure_ascii=False) + "\n")
                count += 1
                truncated += bool(result.get("truncated"))
    if truncated:
        faults.note(f"{truncated:,} of {count:,} texts are longer than the model reads; the end was not read")
    return PredictReport((target,) if target else (), count, tuple(faults.found), tuple(faults.notes), truncated)


def top_options(pipeline: Pipeline[Any], top: int | None) -> dict[str, int]:
    """Return the options of a pipeline for `top`; probabilities of labels and choices are cut afterwards, by `with_top`.

    Raises:
        ConfigError: bad-argument, bad-value.
    """
    if top is None:
        return {}
    if top < 1:
        raise ConfigError("bad-value", f"top is {top}, it must be at least 1", "leave it out")
    if "top" in pipeline.options:
        return {"top": top}
    if pipeline.kind not in ("classify", "choose"):
        raise ConfigError("bad-argument", f"{pipeline.kind} has nothing to choose from", "leave --top out")
    return {}


def text_pipeline(model: str | Path, kind: str | None, precision: Precision, device: str) -> Pipeline[Any]:
    """As `load_pipeline`, of a model that answers text.

    Raises:
        ConfigError: bad-argument for a captioner.
    """
    if kind == "caption" or (kind is None and is_captioner_folder(local_folder(model))):
        raise ConfigError(
            "bad-argument",
            f"`{model}` is to caption videos, and was asked about text",
            f"albertkit caption predict {model} VIDEO",
        )
    return load_pipeline(model, kind, precision=precision, device=device)


def read_values(file: InputFile, faults: Faults) -> Iterator[Line]:
    """The values of a file; lines that hold none are faults.

    Raises:
        CheckpointError: no-task for a table. DataError: bad-row if the faults are to stop, and what reading raises.
    """
    extension = next((part for part in reversed(file.name.lower().split(".")) if part in EXTENSIONS), "txt")
    if extension in _TABLES:
        raise CheckpointError(
            "no-task", f"`{file.path}` is a table, and there is no task that says what its columns mean",
            "put a value on every line: text (.txt), or JSON (.jsonl)",
        )  # fmt: skip
    with ByteStream(file) as stream:
        for number, line in lines(stream):
            if has_half_characters(line):
                faults.add(file.path, number, NOT_UTF8, not_utf8(file.path))
            elif extension not in _JSON:
                yield Line(number, line)
            elif line and not line.isspace():
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:
                    faults.add(file.path, number, not_json(error))
                else:
                    yield Line(number, value)


def plain(result: Result) -> Result:
    """A result with lists where it had arrays, for JSON."""
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in result.items()}


def _only_file(input: str | Path) -> InputFile:
    if os.path.isdir(input):
        raise DataError("wrong-kind", f"a file was expected, this is a folder: `{input}`", "name the file")
    files = find_inputs([input])
    if len(files) > 1:
        raise DataError("several-files", f"`{input}` names {len(files)} files", "answer them one by one")
    return files[0]


def _parsed(pipeline: Pipeline[Any], values: Iterator[Line], path: str, faults: Faults) -> Iterator[Line]:
    for number, value in values:
        try:
            parsed = pipeline.parse(value)
        except DataError as error:
            _add(faults, path, number, error)
        else:
            yield Line(number, parsed)


def _answered(
    pipeline: Pipeline[Any], chunk: list[Line], batch_tokens: int, path: str, faults: Faults, options: dict[str, int]
) -> list[tuple[int, Result]]:
    """Line numbers and results. Where the features cannot be made, the chunk is halved until the line is found."""
    try:
        results = pipeline.answer([line.value for line in chunk], batch_tokens, **options)
    except DataError as error:
        if len(chunk) == 1:
            _add(faults, path, chunk[0].number, error)
            return []
        half = len(chunk) // 2
        parts = (
            _answered(pipeline, part, batch_tokens, path, faults, options) for part in (chunk[:half], chunk[half:])
        )
        return [answered for part in parts for answered in part]
    return [(line.number, result) for line, result in zip(chunk, results, strict=True)]


def _add(faults: Faults, path: str, number: int, error: DataError) -> None:
    faults.add(path, number, error.message, f"{error.hint}; or leave such lines out with --on-error skip")
