"""The HTML report of a run: one file that needs nothing else, for light and dark, for a desk and a telephone."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from albertkit.errors import MissingExtraError
from albertkit.files import atomic_file, check_page_file
from albertkit.report.curves import training_svg
from albertkit.report.metrics import as_metrics
from albertkit.report.plots import Source
from albertkit.report.results import flatten, measures, percent, times_more_probable, training_extent, value_text
from albertkit.report.task_scores import TaskScores
from albertkit.report.templates import environment

MASK = "[MASK]"
WORD_START = "▁"  # SentencePiece's mark


def run_page(
    title: str,
    *,
    results: Mapping[str, Any],
    baselines: Mapping[str, Any] | None = None,
    metrics: Source | None = None,
    metric: str | None = None,
    examples: Iterable[Mapping[str, Any]] = (),
    parameters: int | None = None,
    corpus: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    versions: Mapping[str, str] | None = None,
    next_commands: Sequence[tuple[str, str]] = (),
    kind: str = "",
    warnings: Sequence[str] = (),
    scores: TaskScores | None = None,
    predictions: Sequence[tuple[str, Sequence[Mapping[str, Any]]]] = (),
    sections: Sequence[tuple[str, Mapping[str, Any]]] = (),
    card: str = "",
) -> str:
    """The report as HTML without any outside resource. Sections without content are left out; every text is escaped.

    Args:
        title: The run's name.
        results: The four numbers and their counts, as for `albertkit.report.results.measures`.
        baselines: `unigram_loss` and `most_frequent_accuracy`, if known.
        metrics: A run folder, its `metrics.jsonl`, `RunMetrics` or records, for the curve. Without matplotlib the page
            says how to get the curve instead of showing it.
        metric: Of a run that is no pretraining, the score whose curve is drawn.
        examples: Filled-in masks: `text` with `[MASK]` in it, `answer`, and `predictions`: pairs of piece and
            probability, best first.
        parameters: Number of parameters, heads included.
        corpus: Counts of the token store.
        settings: Settings of the run; may be nested.
        versions: Package to version.
        next_commands: Pairs of a command and what it does.
        kind: Of training.
        warnings: What a reader must know first, for example that the run is unfinished.
        scores: Of a task, on dev.
        predictions: Groups of examples as `albertkit.report.run_examples.run_examples` gives them.
        sections: More tables: a heading, and names with values.
        card: The model card, shown as it is written.

    Returns:
        The page's text.

    Raises:
        DataError: no-metrics if `metrics` is given and empty.
        ConfigError: bad-counts for impossible counts in `results`.
    """
    curve = _curve(metrics, baselines or {}, metric) if metrics is not None else {}
    rows = measures(results, baselines)
    return environment().get_template("page.html.j2").render(
        title=title,
        extent=curve.get("extent", ""),
        parameters=parameters,
        headline=_headline(results, baselines or {}),
        measures=rows,
        curve=curve,
        examples=[_example(example) for example in examples],
        corpus=flatten(corpus),
        settings=flatten(settings),
        versions=versions or {},
        next_commands=next_commands,
        kind=kind,
        warnings=warnings,
        scores=scores,
        predictions=predictions,
        sections=sections,
        card=card,
        shown=_shown,
        exact=value_text,
    )  # fmt: skip


def write_page(path: str | Path, title: str, **facts: Any) -> Path:
    """Write the report to a file; arguments are `run_page`'s.

    Returns:
        The file written.

    Raises:
        ConfigError: bad-argument. DataError: output-exists.
    """
    check_page_file(path)
    text = run_page(title, **facts)
    with atomic_file(path, "w") as stream:
        stream.write(text)
    return Path(path)


def _curve(source: Source, baselines: Mapping[str, Any], metric: str | None) -> dict[str, Any]:
    """Both pictures, or the reason why there is none, and what must be said about the records."""
    metrics = as_metrics(source)
    curve: dict[str, Any] = {"extent": training_extent(metrics), "unreadable": metrics.unreadable_lines}
    try:
        return curve | {
            "wide": training_svg(metrics, metric, baselines),
            "narrow": training_svg(metrics, metric, baselines, narrow=True),
        }
    except MissingExtraError as error:
        return curve | {"missing": error.message, "hint": error.hint}


def _headline(results: Mapping[str, Any], baselines: Mapping[str, Any]) -> dict[str, str]:
    """What the loss means in words: nats below the baseline, and times as probable."""
    loss, unigram = results.get("masked_lm_loss"), baselines.get("unigram_loss")
    times = times_more_probable(loss, unigram)
    if times is None:
        return {}
    gain = math.log(times)
    return {
        "nats": f"{abs(gain):.3f} nats {'below' if gain >= 0 else 'above'} it",
        "times": _factor(times if gain >= 0 else 1 / times),
        "direction": "more" if gain >= 0 else "less",
    }


def _factor(times: float) -> str:
    return f"{times:,.0f}" if times >= 100 else f"{times:.1f}" if times >= 2 else f"{times:.2f}"


def _example(example: Mapping[str, Any]) -> dict[str, Any]:
    """One filled-in mask for the template: the text in parts around the masks, and the predictions with bars."""
    answer = str(example.get("answer", ""))
    pieces = [(str(piece), float(probability)) for piece, probability in example["predictions"]]
    marked = any(piece.startswith(WORD_START) for piece, _ in pieces)
    return {
        "parts": re.split(re.escape(MASK), str(example["text"])),
        "answer": _readable(answer, marked and answer.startswith(WORD_START)),
        "predictions": [
            {
                "piece": _readable(piece, marked),
                "probability": percent(probability),
                "width": f"{100 * min(max(probability, 0.0), 1.0):.1f}",
                "right": answer in (piece, piece.removeprefix(WORD_START)) and answer != "",
            }
            for piece, probability in pieces
        ],
        "found": any(answer and answer in (piece, piece.removeprefix(WORD_START)) for piece, _ in pieces),
    }


def _readable(piece: str, marked: bool) -> str:
    """A piece without SentencePiece's mark; one that goes on with a word begins with an ellipsis."""
    if piece.startswith(WORD_START):
        return piece.removeprefix(WORD_START) or "(space)"
    return f"…{piece}" if marked else piece


def _shown(value: Any) -> str:
    """A count with thousands separators, anything else as it is."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value_text(value)
