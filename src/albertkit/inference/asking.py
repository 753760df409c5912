"""`ask`: values named one by one, answered on the spot; and the command `predict`, which answers these or a file."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.data.bad_rows import BadRows
from albertkit.engines.engine import Precision
from albertkit.errors import ConfigError, DataError
from albertkit.inference.embedding import Embed
from albertkit.inference.pipeline import Result
from albertkit.inference.predict import PipelineAnswerer, PredictReport, keep_top, plain, predict
from albertkit.tasks.options import PredictCommandOptions, PredictOptions


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
    parts = (texts, pairs, questions, choices)
    values = values_of(*([part] if isinstance(part, str) else part for part in parts))
    options = PredictOptions(model, None, kind=kind, top=top, precision=precision, device=device)
    answerer = PipelineAnswerer(options, BadRows("stop"))
    pipeline = answerer.pipeline
    try:
        inputs = pipeline.parse_all(values)
    except DataError as error:
        example = f"albertkit predict {model} {flags_of(pipeline.example)}"
        raise DataError(error.slug, error.message, example) from None
    results = answerer.answer(inputs)
    similarity = None
    if isinstance(pipeline, Embed) and len(results) > 1:
        vectors = np.stack([result["embedding"] for result in results])
        similarity = pipeline.encoder.similarity(vectors, vectors).tolist()
    cut = [f"text {n}: {tokens:,}" for n, result in enumerate(results, 1) if (tokens := result.get("truncated"))]
    notes = (*pipeline.notes, *pipeline.doubts(inputs))
    if cut:
        notes += (f"texts longer than the model reads; tokens at the end that were not read: {', '.join(cut)}",)
    plain_results = [plain(keep_top(result, top)) for result in results]
    return Answers(str(model), pipeline.kind, pipeline.precision, notes, values, plain_results, similarity)


def run_predict(options: PredictCommandOptions) -> Answers | PredictReport | None:
    """Run `albertkit predict`: answer the texts that are named, or a file."""
    given = (options.text, options.pair, options.question, options.choice)
    if any(given):
        if options.input is not None or options.out is not None:
            fact = "--text cannot be combined with INPUT or --out"
            raise ConfigError("conflicting-options", fact, "leave one of them out")
        answers = ask(
            options.model,
            *given,
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
    report = predict(options)
    for line in report.left_out_lines:
        print(f"left out: {line}", file=sys.stderr)
    if report.written:
        return report
    _print_notes(report.notes)
    return None  # the predictions were printed


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


def values_of(
    texts: Sequence[str], pairs: Sequence[str], questions: Sequence[str], choices: Sequence[str]
) -> list[Any]:
    """Build the values that pipelines take from their parts."""
    if pairs and (questions or choices):
        raise ConfigError("bad-value", "--pair cannot be combined with --question or --choice", "leave one of them out")
    if choices:
        if len(texts) > 1 or len(questions) > 1:
            fact = f"choices for {len(questions)} questions about {len(texts)} texts"
            raise ConfigError("bad-value", fact, "name one --question, and at most one --text")
        parts = {"context": texts, "question": questions}
        return [{**{name: part[0] for name, part in parts.items() if part}, "choices": list(choices)}]
    if questions:
        if len(texts) != 1:
            raise ConfigError("bad-value", f"{len(texts)} texts for the questions to be about", "name one --text")
        return [{"question": question, "context": texts[0]} for question in questions]
    if pairs:
        if len(pairs) != len(texts):
            fact = f"{len(pairs)} --pair values for {len(texts)} --text values"
            raise ConfigError("bad-value", fact, "name a --pair for every --text")
        return list(zip(texts, pairs, strict=True))
    return list(texts)


def flags_of(value: Any) -> str:
    """Return the flags of a value: the other direction of `values_of`."""
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, dict):
        value = dict(zip(("text", "pair"), value, strict=False))
    named = [("text" if name == "context" else name, part) for name, part in value.items() if name != "choices"]
    named += [("choice", choice) for choice in value.get("choices", ())]
    return " ".join(f"--{name} {shlex.quote(part)}" for name, part in named)
