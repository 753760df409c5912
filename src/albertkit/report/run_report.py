"""`albertkit report`: one page about any run, as far as it has come."""

import math
import re
import shlex
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albertkit.errors import AlbertKitError
from albertkit.report.curves import is_drawable
from albertkit.report.inspect import inspect_folder
from albertkit.report.inspect_text import bytes_text, model_rows
from albertkit.report.page import write_page
from albertkit.report.results import count_text, duration_text
from albertkit.report.run_examples import run_examples
from albertkit.report.run_folder import Run, numbers, read_run
from albertkit.report.task_scores import number, task_scores

REPORT = "report.html"
_SHARES = ("masked_lm_accuracy", "sentence_order_accuracy")
_LOSSES = ("masked_lm_loss", "sentence_order_loss")
_VERSIONS = re.compile(r"^## Versions\n+(\S.{0,400})$", re.MULTILINE)
_LEFT_OUT = ("configuration", "model")  # of what `albertkit inspect` says: in the settings, or in the title


@dataclass(frozen=True)
class RunReport:
    """What was written.

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

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**vars(self), "report": str(self.report), "notes": list(self.notes)}


def write_run_report(folder: str | Path, out: str | Path | None = None) -> RunReport:
    """Write the page of a run: curves, results, examples, sizes, settings, provenance, versions.

    Args:
        folder: Of the run, whatever was trained, finished or not.
        out: HTML file. Default: `report.html` in the run.

    Raises:
        DataError: not-found, no-run.
    """
    run = read_run(folder)
    page = Path(out) if out is not None else run.folder / REPORT
    pretraining = run.kind == "pretraining"
    results = _four_numbers(run) if pretraining else {}
    metric = run.results.get("metric")
    model, sections = _model_sections(run)
    examples = run_examples(run)
    write_page(
        page,
        run.folder.resolve().name,
        kind=run.kind,
        warnings=[*_unfinished(run), *run.notes],
        results=results,
        baselines=results,
        metrics=run.metrics if is_drawable(run.metrics) else None,
        metric=metric if isinstance(metric, str) else None,
        scores=None if pretraining else task_scores(run.results, run.seeds),
        predictions=examples,
        parameters=model,
        sections=[("Training", _training(run)), *sections, ("Files", _files(run)), ("Made with", _made_with(run))],
        settings=run.settings,
        next_commands=_next_commands(run),
        card=run.card,
    )
    return RunReport(page, run.kind, run.finished, run.metrics.last_step, tuple(run.notes))


def _unfinished(run: Run) -> list[str]:
    """What to know first about a run that has not come to its end."""
    if run.finished:
        return []
    planned = numbers(run.settings).get("steps", math.nan)
    of = "" if math.isnan(planned) else f" of {planned:,.0f}"
    saved = numbers(run.state).get("step", math.nan)
    goes_on = "there is no checkpoint yet"
    if not math.isnan(saved):
        goes_on = f"its newest checkpoint is of step {saved:,.0f}, from which the same command goes on with --resume"
    reached = f"recorded up to step {run.metrics.last_step:,}{of}"
    return [f"Unfinished: {reached}. It is still running, or was stopped; {goes_on}."]


def _four_numbers(run: Run) -> dict[str, Any]:
    """The last evaluation, without what cannot be."""
    last = numbers(run.metrics.evaluations[-1]) if run.metrics.evaluations else {}
    known = {name: value for name, value in last.items() if math.isfinite(value)}
    for name in _SHARES:
        if not 0 <= known.get(name, 0.0) <= 1:
            del known[name]
    return {name: int(value) if name.endswith("_count") else value for name, value in known.items()}


def _training(run: Run) -> dict[str, Any]:
    metrics, state = run.metrics, numbers(run.state)
    last = numbers(metrics.steps[-1]) if metrics.steps else {}
    facts: dict[str, Any] = {"steps": metrics.last_step, "best evaluation": _best(run)}
    for name, text in (("tokens", count_text), ("seconds", duration_text)):
        if math.isfinite(value := last.get(name, math.nan)):
            facts[{"seconds": "time in updates"}.get(name, name)] = text(value)
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


def _best(run: Run) -> str | None:
    """The step whose model is in `best/`: it has the least loss of a pretraining, the largest metric of any other training."""
    metric = run.results.get("metric")
    scores = [(metric, -1)] if isinstance(metric, str) else [(name, 1) for name in _LOSSES]
    for name, sign in scores:
        steps, values = run.metrics.series("eval", name)
        known = [(sign * value, step) for step, value in zip(steps, values, strict=True) if math.isfinite(value)]
        if known:
            value, step = min(known)
            return f"step {step:,}: {name.replace('_', ' ')} {number(sign * value)}"
    return None


def _model_sections(run: Run) -> tuple[int | None, list[tuple[str, dict[str, Any]]]]:
    """Parameters, and what `albertkit inspect` says of the model."""
    if run.model is None:
        return None, []
    try:
        facts = inspect_folder(run.model)
    except (AlbertKitError, ValueError, RecursionError) as error:  # the latter: numbers too long, nested too deep
        run.notes.append(f"{run.model.name}/ cannot be inspected: {getattr(error, 'message', error)}")
        return None, []
    run.notes += facts["problems"]
    rows = [(heading, dict(found)) for heading, found in model_rows(facts) if heading not in _LEFT_OUT]
    return facts["parameters"]["total"], [(heading[:1].upper() + heading[1:], found) for heading, found in rows]


def _files(run: Run) -> dict[str, str]:
    """What lies in the folder, and how large it is; links are not followed."""
    sizes = {}
    for path in sorted(run.folder.iterdir()):
        inside = [] if path.is_symlink() else [path] if path.is_file() else path.rglob("*")
        size = sum(file.stat().st_size for file in inside if file.is_file() and not file.is_symlink())
        if not path.name.startswith(".") and path.name != REPORT:
            sizes[f"{path.name}{'/' * path.is_dir()}"] = bytes_text(size)
    return sizes


def _made_with(run: Run) -> dict[str, str]:
    """The versions that the card names, and the machine's threads."""
    found = _VERSIONS.search(run.card)
    facts = {"versions": found[1].rstrip(".")} if found else {}
    threads = numbers(run.state).get("threads", 0.0)
    if threads > 0:
        facts["threads"] = f"{threads:,.0f}"
    return facts


def _next_commands(run: Run) -> list[tuple[str, str]]:
    """What to do with the model of this run."""
    if run.model is None:
        return []
    folder, model = (shlex.quote(str(path)) for path in (run.folder, run.model))
    inspect = (f"albertkit inspect {model} --passes passes.html", "see what each pass does")
    use = {
        "pretraining": (f"albertkit evaluate {model} STORE", "measure it on held-out documents of a store"),
        "fine-tuning": (f"albertkit predict {folder} INPUT --out predictions.jsonl", "predict a file of any size"),
        "sentence embeddings": (f"albertkit embed encode {folder} TEXTS --out vectors.npy", "texts to vectors"),
        "captioning": (f"albertkit caption predict {folder} VIDEO", "caption a video"),
    }
    return [use[run.kind], inspect] if run.kind in use else [inspect]
