"""`albertkit report`: one page about any run, as far as it has come."""

import math
import re
import shlex
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from albertkit.errors import AlbertKitError, MissingExtraError
from albertkit.files import check_page_file
from albertkit.frame.command import takes
from albertkit.frame.rendering import write_page
from albertkit.frame.result import Result
from albertkit.frame.section import Commands, Facts, Figure, Highlight, Highlights, Section, Text
from albertkit.frame.values import bytes_text, count_text, duration_text
from albertkit.pretraining.card import measures, measures_table, times_more_probable
from albertkit.report.examples import dev_examples
from albertkit.report.inspect import inspect_folder
from albertkit.report.options import ReportOptions
from albertkit.report.run_folder import RunFolder, numbers, read_run
from albertkit.training.curves import is_drawable, run_svgs
from albertkit.training.metrics import RunMetrics
from albertkit.training.results import (
    Details,
    class_table,
    confusion_table,
    number,
    scatter,
    score_name,
    score_table,
    scores_of,
)

REPORT = "report.html"
MEASURED = (
    "Measured on held-out documents. Losses are in nats; intervals are Wilson's at 95%, "
    "with predictions taken as independent."
)
SCORED = "Scores on dev examples, which also chose the best of the run's models; intervals are 95%."
_SHARES = ("masked_lm_accuracy", "sentence_order_accuracy")
_LOSSES = ("masked_lm_loss", "sentence_order_loss")
_VERSIONS = re.compile(r"^## Versions\n+(\S.{0,400})$", re.MULTILINE)
_LEFT_OUT = ("configuration", "model")  # of what `albertkit inspect` shows: in the settings, or in the title


@dataclass(frozen=True)
class RunReport(Result):
    """Report of `albertkit report`.

    Attributes:
        report: The page.
        kind: Of training.
        finished: Whether the run came to its end.
        step: The last one that was recorded.
        notes: What could not be read.
    """

    report: Path
    kind: str
    finished: bool
    step: int
    notes: tuple[str, ...]


@takes(ReportOptions)
def write_run_report(options: ReportOptions) -> RunReport:
    """Write the page of a run: curves, results, examples, sizes, settings, provenance, versions."""
    run = read_run(options.run)
    out = check_page_file(options.out if options.out is not None else run.folder / REPORT)
    parameters, model = _model_sections(run)
    results, failures, footer = _result_sections(run)
    metric = run.results.get("metric")
    curve = curve_sections(run.metrics, _last_evaluation(run), metric if isinstance(metric, str) else None)
    sections = [
        *results[:1],
        *curve,
        *dev_examples(run),
        *results[1:],
        Facts(_training_facts(run), "Training"),
        *model,
        Facts(_file_sizes(run), "Files"),
        Facts(_versions_and_threads(run), "Made with"),
        Facts(run.settings, "Settings", exact=True),
        Commands(_next_commands(run), "What to try next"),
        Text(run.card, "The model card", form="source"),
    ]
    subtitle = [run.kind, f"{parameters:,} parameters" if parameters else "", run.metrics.extent if curve else ""]
    warnings = [*_unfinished_warning(run), *run.notes, *failures]
    write_page(out, run.folder.resolve().name, sections, " · ".join(filter(None, subtitle)), warnings, footer)
    return RunReport(out, run.kind, run.finished, run.metrics.last_step, tuple(run.notes))


def curve_sections(metrics: RunMetrics, baselines: Mapping[str, Any], metric: str | None = None) -> list[Section]:
    """Return the curve of a run, with that of `metric` unless it is a pretraining; nothing without records.

    Without matplotlib they say how to get it.
    """
    if not is_drawable(metrics):
        return []
    count = metrics.unreadable_lines
    lines = "1 line of the metrics was" if count == 1 else f"{count} lines of the metrics were"
    caption = f"{lines} left incomplete by a killed process, and not drawn." if count else ""
    try:
        wide, narrow = run_svgs(metrics, baselines, metric)
    except MissingExtraError as error:
        missing = f"There is no picture: {error.message}. Install it and write the report again:"
        return [Text(missing, "Curve"), Text(error.hint, form="code")]
    return [Figure(wide, "Curve", caption, narrow)]


def pretraining_highlights(results: Mapping[str, Any], baselines: Mapping[str, Any]) -> Highlights:
    """Return the numbers of a pretraining, compared with a model without any learning."""
    highlights = []
    times = times_more_probable(results.get("masked_lm_loss"), baselines.get("unigram_loss"))
    distance = ""
    if times is not None:
        is_better = times >= 1
        factor = times if is_better else 1 / times
        text = f"{factor:,.0f}" if factor >= 100 else f"{factor:.{1 if factor >= 2 else 2}f}"
        note = "is the right token behind a mask than by its bare frequency, per hidden token (geometric mean)"
        unit = f"times {'more' if is_better else 'less'} probable"
        highlights.append(Highlight("Against guessing by frequency", text, unit, note))
        distance = f"; {abs(math.log(times)):.3f} nats {'below' if is_better else 'above'} it"
    for row in measures(results, baselines):
        if row.key == "masked_lm_loss":
            baseline_note = f"unigram baseline {row.baseline_text}{distance}"
            note = baseline_note if row.baseline_text else "no baseline was measured"
            highlights.append(Highlight(row.name, row.value_text, "nats", note))
        elif row.key != "sentence_order_loss":
            notes = [f"95%: {row.interval_text}"] if row.interval_text else []
            notes += [f"{row.baseline_name} {row.baseline_text}"] if row.baseline_text else []
            baseline = row.baseline if row.baseline_text else None
            share = row.number
            highlights.append(
                Highlight(row.name, row.value_text, note="; ".join(notes), share=share, baseline=baseline)
            )
    return Highlights(highlights)


def _result_sections(run: RunFolder) -> tuple[list[Section], list[str], str]:
    """Return the scores of the run, the highlights first; its failures; and the line that explains the numbers."""
    if run.kind == "pretraining":
        evaluation = _last_evaluation(run)  # with its baselines
        rows = measures(evaluation, evaluation)
        sections: list[Section] = [
            pretraining_highlights(evaluation, evaluation),
            measures_table(rows, "All numbers"),
        ]
        return sections, [], MEASURED if rows else ""
    try:
        details = msgspec.convert(run.results, Details)
    except msgspec.ValidationError as error:
        run.notes.append(f"results.json is not as a run writes it: {error}")
        return [Highlights([])], [], ""
    failures = [f"Nothing learned: {line}" for line in (*filter(None, [details.collapsed]), *details.constant)]
    failures += [f"Begun again: {line}" for line in details.retries]
    values = numbers(run.results)
    counts = {name: int(value) for name, value in values.items() if type(run.results[name]) is int and value == value}
    scores = scores_of(values | counts)
    sections = [_task_highlights(run, details, scores), *_task_sections(run, details, scores)]
    return sections, failures, SCORED if details.intervals else ""


def _task_highlights(run: RunFolder, details: Details, scores: Mapping[str, float]) -> Highlights:
    """Return the score that chose the model, and two more, of those with an interval if there are such."""
    names = sorted(scores, key=lambda name: name != details.metric)
    names = [*names[:1], *[name for name in names[1:] if name in details.intervals or not details.intervals][:2]]
    highlights = []
    for position, name in enumerate(names):
        notes = [f"95%: {' to '.join(map(number, details.intervals[name]))}"] if name in details.intervals else []
        notes += ["of the best seed"] if run.seeds and position == 0 else []
        title = f"{score_name(name, details.positive_class)}, dev"
        highlights.append(Highlight(title, number(scores[name]), note="; ".join(notes)))
    return Highlights(highlights)


def _task_sections(run: RunFolder, details: Details, scores: Mapping[str, float]) -> list[Section]:
    """Return the rest of the results of a task."""
    sections: list[Section] = []
    if scores:
        table = score_table(scores, details.intervals, details.metric, "Results on dev", details.positive_class)
        sections.append(table)
    seeds = {name: "unfinished" if value is None else number(value) for name, value in run.seeds.items()}
    sections += [Facts(seeds, "Seeds")] if seeds else []
    for kind, rows in (("class", details.classes), ("type", details.types)):
        sections += [class_table(rows, kind)] if rows else []
    if details.confusion and details.confusion.names:
        sections.append(confusion_table(details.confusion))
    return sections + scatter(details.pairs)


def _unfinished_warning(run: RunFolder) -> list[str]:
    """Describe the state of a run that has not come to its end."""
    if run.finished:
        return []
    planned = numbers(run.settings).get("steps", math.nan)
    total = "" if math.isnan(planned) else f" of {planned:,.0f}"
    saved = numbers(run.state).get("step", math.nan)
    checkpoint = "there is no checkpoint yet"
    if not math.isnan(saved):
        checkpoint = f"its newest checkpoint is of step {saved:,.0f}, from which the same command goes on with --resume"
    reached = f"recorded up to step {run.metrics.last_step:,}{total}"
    return [f"Unfinished: {reached}. It is still running, or was stopped; {checkpoint}."]


def _last_evaluation(run: RunFolder) -> dict[str, Any]:
    """Return the numbers of the last evaluation that are possible."""
    last = numbers(run.metrics.evaluations[-1]) if run.metrics.evaluations else {}
    possible = {name: value for name, value in last.items() if math.isfinite(value)}
    for name in _SHARES:
        if not 0 <= possible.get(name, 0.0) <= 1:
            del possible[name]
    return {name: int(value) if name.endswith("_count") else value for name, value in possible.items()}


def _training_facts(run: RunFolder) -> dict[str, Any]:
    metrics, state = run.metrics, numbers(run.state)
    last = numbers(metrics.steps[-1]) if metrics.steps else {}
    facts: dict[str, Any] = {"steps": metrics.last_step, "best evaluation": _best_evaluation(run)}
    for name, text in (("tokens", count_text), ("seconds", duration_text)):
        value = last.get(name, math.nan)
        if math.isfinite(value):
            facts["time in updates" if name == "seconds" else name] = text(value)
    for name in ("tokens_per_second", "mfu"):
        values = [value for value in metrics.series("step", name)[1] if math.isfinite(value)]
        if values:
            median = statistics.median(values)
            facts[f"{name.replace('_', ' ')}, median"] = f"{median:.1%}" if name == "mfu" else f"{median:,.0f}"
    facts["updates skipped"] = state.get("skipped") or None
    facts["records of work done again after a stop"] = metrics.superseded or None
    facts["evaluations"] = len(metrics.evaluations)
    if run.attempt != run.folder:
        facts["curves and settings of"] = run.attempt.name
    return {name: value for name, value in facts.items() if value is not None}


def _best_evaluation(run: RunFolder) -> str | None:
    """Return the step of `best/`: the least loss of a pretraining, the largest metric of any other training."""
    metric = run.results.get("metric")
    scores = [(metric, -1)] if isinstance(metric, str) else [(name, 1) for name in _LOSSES]
    for name, sign in scores:
        steps, values = run.metrics.series("eval", name)
        finite = [(sign * value, step) for step, value in zip(steps, values, strict=True) if math.isfinite(value)]
        if finite:
            value, step = min(finite)
            return f"step {step:,}: {name.replace('_', ' ')} {number(sign * value)}"
    return None


def _model_sections(run: RunFolder) -> tuple[int | None, list[Section]]:
    """Return the number of parameters, and what `albertkit inspect` shows of the model."""
    if run.model is None:
        return None, []
    try:
        inspection = inspect_folder(run.model)
    except (AlbertKitError, ValueError, RecursionError) as error:  # the latter: numbers too long, nested too deep
        run.notes.append(f"{run.model.name}/ cannot be inspected: {getattr(error, 'message', error)}")
        return None, []
    run.notes += inspection.problems
    sections: list[Section] = []
    for section in inspection.sections():
        if isinstance(section, Facts) and section.title not in _LEFT_OUT:
            sections.append(replace(section, title=section.title[:1].upper() + section.title[1:]))
    return inspection.parameters["total"], sections


def _file_sizes(run: RunFolder) -> dict[str, str]:
    """List the files of the folder with their sizes; links are not followed."""
    sizes = {}
    for path in sorted(run.folder.iterdir()):
        if path.name.startswith(".") or path.name == REPORT:
            continue
        files: Iterable[Path] = [path] if path.is_file() else path.rglob("*")
        if path.is_symlink():
            files = []
        size = sum(file.stat().st_size for file in files if file.is_file() and not file.is_symlink())
        sizes[f"{path.name}/" if path.is_dir() else path.name] = bytes_text(size)
    return sizes


def _versions_and_threads(run: RunFolder) -> dict[str, str]:
    """Return the versions that the card names, and the number of threads."""
    match = _VERSIONS.search(run.card)
    facts = {"versions": match[1].rstrip(".")} if match else {}
    threads = numbers(run.state).get("threads", 0.0)
    if threads > 0:
        facts["threads"] = f"{threads:,.0f}"
    return facts


def _next_commands(run: RunFolder) -> list[tuple[str, str]]:
    """List commands for the model of this run."""
    if run.model is None:
        return []
    folder, model = (shlex.quote(str(path)) for path in (run.folder, run.model))
    use = {
        "pretraining": (f"albertkit evaluate {model} STORE", "measure it on held-out documents of a store"),
        "fine-tuning": (f"albertkit predict {folder} INPUT --out predictions.jsonl", "predict a file of any size"),
        "sentence embeddings": (f"albertkit embed encode {folder} TEXTS --out vectors.npy", "texts to vectors"),
        "captioning": (f"albertkit caption predict {folder} VIDEO", "caption a video"),
    }
    commands = [use[run.kind]] if run.kind in use else []
    if run.kind != "captioning":
        serve = f"albertkit serve {model}"
        commands.append((serve, "answer requests; its page shows what each application of the layer does"))
    return commands
