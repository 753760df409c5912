"""`albertkit report`: one page about any run, as far as it has come."""

import json
import math
import re
import shlex
import statistics
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from albertkit.command import takes
from albertkit.errors import AlbertKitError, DataError, MissingExtraError, suggest_existing_path
from albertkit.files import check_page_file
from albertkit.model_paths import MODELS, find_runs, numbered_folders
from albertkit.output.render import write_page
from albertkit.output.sections import (
    Bar,
    Bars,
    Commands,
    FactList,
    Figure,
    Highlight,
    Highlights,
    MarkedSpan,
    Panel,
    Paragraph,
    Result,
    Section,
    format_bytes,
    format_count,
    format_whole_seconds,
)
from albertkit.pretraining.card import list_measures, table_of_measures, times_more_probable
from albertkit.report.inspect import inspect_folder
from albertkit.report.options import ReportOptions
from albertkit.training.monitor import (
    METRICS_FILE,
    RunMetrics,
    is_drawable,
    number_or_nan,
    read_metrics,
    run_svgs,
)
from albertkit.training.results import (
    Details,
    class_scores_section,
    confusion_table,
    format_score,
    scatter_sections,
    score_name,
    score_table,
    scores_of,
)

MAX_BYTES = 256_000_000  # of a file that is read
_MAX_STEP = 10**12  # a larger one is no step, and has no place on an axis
# Of what is shown.
_MAX_DEPTH = 6
_MAX_ITEMS = 100_000
_MAX_CHARACTERS = 2_000

# A setting that only this kind of training has.
_KINDS = {
    "pair_task": "pretraining",
    "video_attention": "captioning",
    "threshold_from": "fine-tuning",
    "projection": "sentence embeddings",
}
# A file that only models of this kind have.
_MARKS = {
    "task.json": "fine-tuning",
    "captioner.json": "captioning",
    "modules.json": "sentence embeddings",
}


@dataclass
class RunFolder:
    """A run folder, as far as it could be read.

    Attributes:
        folder: The folder.
        attempt: Where the curve and the settings are: the folder itself, its best seed or its last
            retry.
        kind: pretraining, fine-tuning, sentence embeddings, captioning; or training where nothing
            says which.
        finished: Whether it came to its end.
        model: The model to use, if there is one.
        settings: Of `run.toml`.
        metrics: Of `metrics.jsonl`.
        results: Of `results.json`.
        state: Of the newest checkpoint: step, tokens, seconds, skipped, threads.
        seeds: With several seeds, the name of each with its value, None while it is unfinished.
        card: The model's README.
        notes: What could not be read, and why.
    """

    folder: Path
    attempt: Path
    kind: str = "training"
    finished: bool = False
    model: Path | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    metrics: RunMetrics = field(default_factory=RunMetrics)
    results: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    seeds: dict[str, float | None] = field(default_factory=dict)
    card: str = ""
    notes: list[str] = field(default_factory=list)

    def read_file(self, path: Path, parse: Callable[[str], Any]) -> Any:
        """Read a file of the run with `parse`; None if it is missing, or cannot be read: then a note says why."""
        if not self.holds_file(path):
            return None
        name = path.relative_to(self.folder)
        try:
            if not path.is_file():  # a pipe would be waited for without end
                raise ValueError("it is a folder, a pipe or a device")
            if path.stat().st_size > MAX_BYTES:
                raise ValueError(f"larger than {MAX_BYTES / 1e6:.0f} MB")
            return parse(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            self.notes.append(f"{name} cannot be read: {error}")
            return None

    def holds_file(self, path: Path) -> bool:
        """Return whether there is such a file or folder; a link that leads out of the run is not followed, and noted."""
        if not path.exists():
            return False
        # A run that somebody sent may link to any file here, and its page is sent on.
        if path.resolve().is_relative_to(self.folder.resolve()):
            return True
        self.notes.append(
            f"{path.relative_to(self.folder)} lies outside of the run, and was not read"
        )
        return False

    def read_metrics(self, file: Path) -> RunMetrics:
        """Read the records of a run; none if they are missing, or cannot be read."""
        if not self.holds_file(file):
            return RunMetrics()
        try:
            metrics = read_metrics(file)
        except (AlbertKitError, OSError, RecursionError) as error:
            self.notes.append(f"{METRICS_FILE} cannot be read: {getattr(error, 'message', error)}")
            return RunMetrics()
        for name in ("steps", "evaluations"):
            records = [
                record for record in getattr(metrics, name) if 0 <= record["step"] <= _MAX_STEP
            ]
            setattr(
                metrics,
                name,
                # Texts and lists in a record cannot be drawn.
                [{**numeric_values(record), "step": int(record["step"])} for record in records],
            )
        return metrics

    def read_mapping(self, path: Path, parse: Callable[[str], Any] = json.loads) -> dict[str, Any]:
        """Read a file that holds names and values; empty if it does not."""
        value = self.read_file(path, parse)
        if value is not None and not isinstance(value, dict):
            self.notes.append(f"{path.relative_to(self.folder)} holds no names and values")
        return shorten_value(value) if isinstance(value, dict) else {}


def read_run(folder: str | Path) -> RunFolder:
    """Read a run."""
    path = Path(folder)
    if not path.is_dir():
        hint = suggest_existing_path(path, "name the folder that --out made")
        raise DataError("not-found", f"no run folder at `{path}`", hint)
    seeds = numbered_folders(path, "seed")
    if not seeds and not any(
        (path / name).exists() for name in ("run.toml", METRICS_FILE, "results.json")
    ):
        runs = find_runs(path)
        hint = f"name a run inside it: {runs[0]}" if runs else "name the folder that --out made"
        raise DataError(
            "missing-file",
            f"`{path}` is not a run: it has neither run.toml nor {METRICS_FILE}",
            hint,
        )
    run = RunFolder(path, path)
    run.results = run.read_mapping(path / "results.json")
    for seed in seeds:
        # It writes its results last.
        value = number_or_nan(run.read_mapping(seed / "results.json").get("value"))
        run.seeds[seed.name] = None if math.isnan(value) else value
    # `best/` was made by the best of several seeds, and by the last of its retries.
    finished_seeds = [seed for seed in seeds if run.seeds[seed.name] is not None]
    if finished_seeds:
        run.attempt = max(finished_seeds, key=lambda seed: run.seeds[seed.name] or 0.0)
    elif seeds:
        run.attempt = seeds[-1]
    retries = [
        retry for retry in numbered_folders(run.attempt, "retry") if (retry / METRICS_FILE).exists()
    ]
    if retries:
        run.attempt = retries[-1]
    run.settings = run.read_mapping(run.attempt / "run.toml", tomllib.loads)
    run.metrics = run.read_metrics(run.attempt / METRICS_FILE)
    run.model = next(
        (path / name for name in MODELS if run.holds_file(path / name / "config.json")), None
    )
    kinds = [kind for name, kind in _KINDS.items() if name in run.settings]
    kinds += [kind for name, kind in _MARKS.items() if run.model and (run.model / name).exists()]
    run.kind = kinds[0] if kinds else "training"
    run.finished = bool(run.results) or (path / "final" / "config.json").exists()
    checkpoints = numbered_folders(run.attempt / "checkpoints", "step")
    run.state = run.read_mapping(checkpoints[-1] / "training_state.json") if checkpoints else {}
    if run.model:
        run.card = run.read_file(run.model / "README.md", str) or ""
        if run.kind == "pretraining" and not run.card:  # `best/` has none
            run.card = run.read_file(path / "final" / "README.md", str) or ""
    return run


def shorten_value(value: Any, depth: int = 0) -> Any:
    """Return a value cut to what is readable: not too deep, too many or too long."""
    # A file of another origin may be nested without end.
    if depth > _MAX_DEPTH:
        return "…"
    if isinstance(value, dict):
        parts = list(value.items())[:_MAX_ITEMS]
        return {str(key)[:_MAX_CHARACTERS]: shorten_value(part, depth + 1) for key, part in parts}
    if isinstance(value, list):
        return [shorten_value(part, depth + 1) for part in value[:_MAX_ITEMS]]
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)[:_MAX_CHARACTERS]


def numeric_values(record: dict[str, Any]) -> dict[str, float]:
    """Return the values that are numbers, as floats; NaN where none was recorded."""
    return {
        name: number_or_nan(value)
        for name, value in record.items()
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool))
    }


MASK = "[MASK]"
WORD_START = "▁"  # SentencePiece's mark
MAX_EXAMPLES = 6
MAX_GUESSES = 4  # of each
MAX_CHARACTERS = 600  # of a text
WORST = "Its worst predictions on dev, the most confident mistakes first."
FIRST = "The first examples of dev, not chosen."


def filled_masks(examples: Iterable[Mapping[str, Any]]) -> list[Section]:
    """Return a panel for each example: `text` with `[MASK]`, `answer`, and `predictions`, pairs of token and probability."""
    panels = []
    is_any_predicted = False
    for example in examples:
        answer = str(example.get("answer", ""))
        has_marks = any(str(token).startswith(WORD_START) for token, _ in example["predictions"])
        bars = []
        is_predicted = False
        for token, probability in example["predictions"]:
            token = str(token)
            is_right = answer != "" and answer in (token, token.removeprefix(WORD_START))
            is_predicted = is_predicted or is_right
            # The file may say anything; a bar ends within the panel.
            share = min(max(float(probability), 0.0), 1.0)
            bars.append(Bar(_readable_token(token, has_marks), share, "good" if is_right else ""))
        parts = re.split(f"({re.escape(MASK)})", str(example["text"]))
        sections: list[Section] = [
            Paragraph([MarkedSpan(part, "strong" if part == MASK else "") for part in parts]),
            Bars(bars),
        ]
        is_any_predicted = is_any_predicted or is_predicted
        if answer and not is_predicted:
            word = _readable_token(answer, has_marks and answer.startswith(WORD_START))
            sections.append(_remark_paragraph("In the text", word))
        panels.append(Panel(sections))
    note = "An ellipsis marks a token that continues a word"
    note += "; ✓ marks the token of the text." if is_any_predicted else "."
    return (
        [Paragraph("", "Masks filled in"), *panels, Paragraph(note, tone="muted")] if panels else []
    )


def _readable_token(token: str, has_marks: bool) -> str:
    """Return a token without SentencePiece's mark; one that goes on with a word begins with an ellipsis."""
    if token.startswith(WORD_START):
        return token.removeprefix(WORD_START) or "(space)"
    return f"…{token}" if has_marks else token


def dev_examples(run: RunFolder) -> list[Section]:
    """Return panels of a run's predictions on dev: mistakes first, then examples that were not chosen."""
    folder = run.attempt / "dev"
    if not folder.exists():
        folder = run.folder / "dev"
    records = _read_records(run, folder / "examples.jsonl")
    mistakes: list[Panel] = []
    if records:
        mistakes = _prediction_panels(_read_records(run, folder / "errors.jsonl"))
        panels = _prediction_panels(records)
    else:
        questions = list(run.read_mapping(folder / "nbest_predictions.json").items())[:MAX_EXAMPLES]
        if questions:  # known by their numbers alone: the file has no text of them
            panels = [
                Panel(_guess_bars(nbest), name)
                for name, nbest in questions
                if isinstance(nbest, list)
            ]
        else:
            panels = _prediction_panels(_read_records(run, folder / "predictions.jsonl"))
        examples = run.results.get("examples")
        # Captions, each with the first of its references
        if not panels and isinstance(examples, list):
            for example in examples[:MAX_EXAMPLES]:
                caption, references = None, None
                if isinstance(example, dict):
                    caption, references = example.get("caption"), example.get("references")
                if isinstance(caption, str) and isinstance(references, list):
                    labels = [
                        _remark_paragraph("Label", str(reference)) for reference in references[:1]
                    ]
                    paragraphs = [Paragraph(_shorten_text(caption)), *labels]
                    panels.append(Panel(paragraphs, str(example.get("key", ""))))
    sections: list[Section] = []
    for title, group in ((WORST, mistakes), (FIRST, panels)):
        if group:
            sections += [Paragraph(title, tone="muted"), *group]
    return [Paragraph("", "Predictions"), *sections] if sections else []


def _read_records(run: RunFolder, file: Path) -> list[dict[str, Any]]:
    def parse(text: str) -> list[Any]:
        # Not `splitlines`, which cuts JSON lines at U+2028 within a text.
        return [json.loads(line) for line in text.split("\n")[:MAX_EXAMPLES] if line]

    return [
        shorten_value(record)
        for record in run.read_file(file, parse) or ()
        if isinstance(record, dict)
    ]


def _prediction_panels(records: list[dict[str, Any]]) -> list[Panel]:
    """Return predictions, with the texts and the labels where the run kept them."""
    panels = []
    for record in records:
        words = record.get("words")
        entities = record.get("entities")
        shares = record.get("probabilities")
        nbest = record.get("nbest")
        texts = record.get("texts")
        label = record.get("gold")
        sections: list[Section] = []
        if isinstance(texts, list):
            sections += [Paragraph(_shorten_text(text)) for text in texts if isinstance(text, str)]
        value = number_or_nan(record.get("value"))
        if isinstance(words, list) and isinstance(entities, list):
            sections.append(Paragraph(list(_entity_spans(" ".join(map(str, words)), entities))))
        elif isinstance(nbest, list):
            sections += _guess_bars(nbest)
        elif isinstance(shares, dict):
            sections += _guess_bars(shares)
        elif sections and not math.isnan(value):
            sections.append(_remark_paragraph("Prediction", f"{value:.3f}"))
        else:
            continue
        if isinstance(label, str) and label:
            sections.append(_remark_paragraph("Label", label))
        panels.append(Panel(sections, str(record.get("id", ""))))
    return panels


def _remark_paragraph(name: str, text: str) -> Paragraph:
    return Paragraph([MarkedSpan(f"{name}: "), MarkedSpan(text, "strong")], tone="muted")


def _shorten_text(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…"


def _guess_bars(guesses: Any) -> list[Section]:
    """Return bars of the likeliest texts, best first; what has no share between 0 and 1 is left out."""
    if isinstance(guesses, dict):
        pairs = list(guesses.items())
    else:
        pairs = [
            (guess.get("text"), guess.get("probability"))
            for guess in guesses
            if isinstance(guess, dict)
        ]
    bars = []
    for text, value in pairs:
        share = number_or_nan(value)
        if 0 <= share <= 1:
            bars.append(Bar(str(text) or "(no answer)", share))
    bars.sort(key=lambda bar: -bar.share)
    return [Bars(bars[:MAX_GUESSES])] if bars else []


def _entity_spans(text: str, entities: list[Any]) -> Iterator[MarkedSpan]:
    """Yield the text in parts, each entity with its type."""
    position = 0
    for entity in entities:
        if not isinstance(entity, dict):
            continue
        start, end = entity.get("start"), entity.get("end")
        if not (
            isinstance(start, int) and isinstance(end, int) and position <= start < end <= len(text)
        ):
            continue
        yield MarkedSpan(text[position:start])
        yield MarkedSpan(text[start:end], "strong", str(entity.get("type", "")) or "entity")
        position = end
    yield MarkedSpan(text[position:])


REPORT = "report.html"
MEASURED = (
    "Measured on held-out documents. Losses are in nats; intervals are Wilson's at 95%, "
    "with predictions taken as independent."
)
SCORED = "Scores on dev examples, which also chose the best of the run's models; intervals are 95%."
_SHARES = ("masked_lm_accuracy", "sentence_order_accuracy")
_LOSSES = ("masked_lm_loss", "sentence_order_loss")
_VERSIONS = re.compile(r"^## Versions\n+(\S.{0,400})$", re.MULTILINE)
# Of what `albertkit inspect` shows: in the settings, or in the title
_LEFT_OUT = ("configuration", "model")


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
    parameters, model = _num_parameters_and_sections(run)
    results, failures, footer = _result_sections(run)
    metric = run.results.get("metric")
    curve = curve_sections(
        run.metrics,
        _last_evaluation(run),
        metric if isinstance(metric, str) else None,
    )
    match = _VERSIONS.search(run.card)
    origin = {"versions": match[1].rstrip(".")} if match else {}
    threads = number_or_nan(run.state.get("threads"))
    if threads > 0:
        origin["threads"] = f"{threads:,.0f}"
    sections = [
        *results[:1],
        *curve,
        *dev_examples(run),
        *results[1:],
        FactList(_training_facts(run), "Training"),
        *model,
        FactList(_file_sizes(run), "Files"),
        FactList(origin, "Made with"),
        FactList(run.settings, "Settings", exact=True),
        Commands(_next_commands_and_purposes(run), "What to try next"),
        Paragraph(run.card, "The model card", form="source"),
    ]
    subtitle = [
        run.kind,
        f"{parameters:,} parameters" if parameters else "",
        run.metrics.extent if curve else "",
    ]
    warnings = [*run.notes, *failures]
    if not run.finished:
        planned = number_or_nan(run.settings.get("steps"))
        total = "" if math.isnan(planned) else f" of {planned:,.0f}"
        saved = number_or_nan(run.state.get("step"))
        checkpoint = "there is no checkpoint yet"
        if not math.isnan(saved):
            checkpoint = f"its newest checkpoint is of step {saved:,.0f}, from which the same command goes on with --resume"
        reached = f"recorded up to step {run.metrics.last_step:,}{total}"
        warnings.insert(
            0, f"Unfinished: {reached}. It is still running, or was stopped; {checkpoint}."
        )
    title = run.folder.resolve().name
    write_page(out, title, sections, " · ".join(filter(None, subtitle)), warnings, footer)
    return RunReport(out, run.kind, run.finished, run.metrics.last_step, tuple(run.notes))


def curve_sections(
    metrics: RunMetrics,
    baselines: Mapping[str, Any],
    metric: str | None = None,
) -> list[Section]:
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
        return [Paragraph(missing, "Curve"), Paragraph(error.hint, form="code")]
    return [Figure(wide, "Curve", caption, narrow)]


def pretraining_highlights(results: Mapping[str, Any], baselines: Mapping[str, Any]) -> Highlights:
    """Return the numbers of a pretraining, compared with a model without any learning."""
    highlights = []
    # The exponential of the distance between two mean losses: how many times as probable, in the
    # geometric mean.
    times = times_more_probable(results.get("masked_lm_loss"), baselines.get("unigram_loss"))
    distance = ""
    if times is not None:
        is_better = times >= 1
        factor = times if is_better else 1 / times
        digits = 0 if factor >= 100 else 1
        if factor < 2:
            digits = 2
        note = "hidden tokens, compared with their frequency in the text; geometric mean"
        unit = f"times {'more' if is_better else 'less'} probable"
        highlights.append(
            Highlight("Against guessing by frequency", f"{factor:,.{digits}f}", unit, note)
        )
        distance = f"; {abs(math.log(times)):.3f} nats {'below' if is_better else 'above'} it"
    for row in list_measures(results, baselines):
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
                Highlight(
                    row.name, row.value_text, note="; ".join(notes), share=share, baseline=baseline
                )
            )
    return Highlights(highlights)


def _result_sections(run: RunFolder) -> tuple[list[Section], list[str], str]:
    """Return the scores of the run, the highlights first; its failures; and the line that explains the numbers."""
    if run.kind == "pretraining":
        evaluation = _last_evaluation(run)  # with its baselines
        rows = list_measures(evaluation, evaluation)
        highlights = pretraining_highlights(evaluation, evaluation)
        return [highlights, table_of_measures(rows, "All numbers")], [], MEASURED if rows else ""
    try:
        details = msgspec.convert(run.results, Details)
    except msgspec.ValidationError as error:
        run.notes.append(f"results.json is not as a run writes it: {error}")
        return [Highlights([])], [], ""
    failures = [
        f"Nothing learned: {line}" for line in (details.collapsed, *details.constant) if line
    ]
    failures += [f"Begun again after {line}" for line in details.retries]
    values = numeric_values(run.results)
    for name, value in values.items():
        if type(run.results[name]) is int and value == value:
            values[name] = int(value)
    scores = scores_of(values)
    # The score that chose the model, and two more, of those with an interval if there are such.
    names = sorted(scores, key=lambda name: name != details.metric)
    other_names = [name for name in names[1:] if name in details.intervals or not details.intervals]
    cards = []
    for position, name in enumerate([*names[:1], *other_names[:2]]):
        notes = []
        if name in details.intervals:
            notes.append(f"95%: {' to '.join(map(format_score, details.intervals[name]))}")
        if run.seeds and position == 0:
            notes.append("of the best seed")
        title = f"{score_name(name, details.positive_class)}, dev"
        cards.append(Highlight(title, format_score(scores[name]), note="; ".join(notes)))
    seeds = {}
    for name, score in run.seeds.items():
        seeds[name] = "unfinished" if score is None else format_score(score)
    sections: list[Section] = [
        Highlights(cards),
        score_table(
            scores, details.intervals, details.metric, "Results on dev", details.positive_class
        ),
        FactList(seeds, "Seeds"),
        class_scores_section(details.classes, "class"),
        class_scores_section(details.types, "type"),
    ]
    if details.confusion and details.confusion.names:
        sections.append(confusion_table(details.confusion))
    return sections + scatter_sections(details.pairs), failures, SCORED if details.intervals else ""


def _last_evaluation(run: RunFolder) -> dict[str, Any]:
    """Return the numbers of the last evaluation that are possible."""
    last = numeric_values(run.metrics.evaluations[-1]) if run.metrics.evaluations else {}
    possible = {name: value for name, value in last.items() if math.isfinite(value)}
    for name in _SHARES:  # a damaged file may say anything
        if not 0 <= possible.get(name, 0.0) <= 1:
            del possible[name]
    return {
        name: int(value) if name.endswith("_count") else value for name, value in possible.items()
    }


def _training_facts(run: RunFolder) -> dict[str, Any]:
    metrics = run.metrics
    state = numeric_values(run.state)
    last = numeric_values(metrics.steps[-1]) if metrics.steps else {}
    # The step of `best/` has the least loss of a pretraining, the largest metric of any other training.
    metric = run.results.get("metric")
    best_evaluation = None
    for name in (metric,) if isinstance(metric, str) else _LOSSES:
        sign = -1 if isinstance(metric, str) else 1
        evaluated_steps, values = metrics.series("eval", name)
        finite = [
            (sign * value, step)
            for step, value in zip(evaluated_steps, values, strict=True)
            if math.isfinite(value)
        ]
        if finite:
            value, step = min(finite)
            best_evaluation = (
                f"step {step:,}: {name.replace('_', ' ')} {format_score(sign * value)}"
            )
            break
    facts: dict[str, Any] = {"steps": metrics.last_step, "best evaluation": best_evaluation}
    for name, label, text in (
        ("tokens", "tokens", format_count),
        ("seconds", "time in updates", format_whole_seconds),
    ):
        value = last.get(name, math.nan)
        if math.isfinite(value):
            facts[label] = text(value)
    for name, label, form in (
        ("tokens_per_second", "tokens per second", ",.0f"),
        ("mfu", "mfu", ".1%"),
    ):
        values = [value for value in metrics.series("step", name)[1] if math.isfinite(value)]
        if values:
            facts[f"{label}, median"] = format(statistics.median(values), form)
    facts["updates skipped"] = state.get("skipped") or None
    facts["records of work done again after a stop"] = metrics.superseded or None
    facts["evaluations"] = len(metrics.evaluations)
    if run.attempt != run.folder:
        facts["curves and settings of"] = run.attempt.name
    return {name: value for name, value in facts.items() if value is not None}


def _num_parameters_and_sections(run: RunFolder) -> tuple[int | None, list[Section]]:
    """Return the number of parameters, and what `albertkit inspect` shows of the model."""
    if run.model is None:
        return None, []
    try:
        inspection = inspect_folder(run.model)
    except (
        AlbertKitError,
        ValueError,
        RecursionError,
    ) as error:  # the latter: numbers too long, nested too deep
        run.notes.append(
            f"{run.model.name}/ cannot be inspected: {getattr(error, 'message', error)}"
        )
        return None, []
    run.notes += inspection.problems
    sections: list[Section] = []
    for section in inspection.sections():
        if isinstance(section, FactList) and section.title not in _LEFT_OUT:
            title = section.title[:1].upper() + section.title[1:]
            sections.append(replace(section, title=title))
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
        size = sum(
            file.stat().st_size for file in files if file.is_file() and not file.is_symlink()
        )
        sizes[f"{path.name}/" if path.is_dir() else path.name] = format_bytes(size)
    return sizes


def _next_commands_and_purposes(run: RunFolder) -> list[tuple[str, str]]:
    if run.model is None:
        return []
    folder = shlex.quote(str(run.folder))
    model = shlex.quote(str(run.model))
    use = {
        "pretraining": (
            f"albertkit evaluate {model} STORE",
            "measure it on held-out documents of a store",
        ),
        "fine-tuning": (
            f"albertkit predict {folder} INPUT --out predictions.jsonl",
            "predict a file of any size",
        ),
        "sentence embeddings": (
            f"albertkit embed encode {folder} TEXTS --out vectors.npy",
            "texts to vectors",
        ),
        "captioning": (f"albertkit caption predict {folder} VIDEO", "caption a video"),
    }
    commands = [use[run.kind]] if run.kind in use else []
    if run.kind != "captioning":
        serve = f"albertkit serve {model}"
        commands.append(
            (serve, "answer requests; its page shows what each application of the layer does")
        )
    return commands
