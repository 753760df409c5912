"""Show a run while it goes on, and record it.

On a terminal: a progress bar over a table of the latest numbers. In a pipe: one plain line a
report. Always: one JSON object a report in `metrics.jsonl`, and TensorBoard files when tensorboard
is installed. People read stderr; stdout stays free for results.
"""

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import NormalDist
from textwrap import fill
from typing import IO, Any, NamedTuple

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from albertkit.errors import ConfigError, DataError, suggest_existing_path
from albertkit.output.plots import (
    BASELINE,
    EVALUATION,
    GRID,
    TRAIN,
    Look,
    draw_heading,
    draw_page_svg,
    matplotlib_modules,
    save_png,
    wide_and_narrow_looks,
)
from albertkit.output.sections import format_count, format_whole_seconds
from albertkit.printable import escape_line, print_note

METRICS_FILE = "metrics.jsonl"
Z_95 = NormalDist().inv_cdf(0.975)


@dataclass
class RunMetrics:
    """The history of a run, as it stands after every resume.

    Attributes:
        steps: Training records in order of step, one a step.
        evaluations: Evaluation records in order of step, one a step.
        unreadable_lines: Lines that a killed process left incomplete; they are skipped.
        superseded: Training records that a resumed run took over.
    """

    steps: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    unreadable_lines: int = 0
    superseded: int = 0

    @classmethod
    def from_records(cls, records: Iterable[dict[str, Any]]) -> "RunMetrics":
        """Order records as written: where steps repeat, the later record wins."""
        metrics = cls()
        for record in records:
            metrics.add(record)
        metrics.evaluations.sort(key=lambda record: record["step"])
        return metrics

    def add(self, record: Any) -> None:
        """Take one record; records of other events are ignored, what is no record is counted.

        A training step that is not after the last one means that the run was resumed from a
        checkpoint before it: every later record belongs to work that was thrown away, even if the
        resumed run never got as far.
        """
        values = record if isinstance(record, dict) else {}
        step, event = values.get("step"), values.get("event")
        if event not in (None, "step", "eval"):
            return
        if event is None or not isinstance(step, int):
            self.unreadable_lines += 1
        elif event == "step":
            if self.steps and self.steps[-1]["step"] >= step:
                while self.steps and self.steps[-1]["step"] >= step:
                    self.steps.pop()
                    self.superseded += 1
                self.evaluations = [
                    evaluation for evaluation in self.evaluations if evaluation["step"] <= step
                ]
            self.steps.append(record)
        else:
            self.evaluations = [
                evaluation for evaluation in self.evaluations if evaluation["step"] != step
            ]
            self.evaluations.append(record)

    @property
    def last_step(self) -> int:
        """The last step that anything was recorded for; 0 if nothing was."""
        return max(
            (record["step"] for record in (*self.steps[-1:], *self.evaluations[-1:])), default=0
        )

    @property
    def extent(self) -> str:
        """Extent of the training so far: steps, tokens, time; as far as they were recorded."""
        step = self.last_step
        parts = ["1 step" if step == 1 else f"{step:,} steps"]
        last = self.steps[-1] if self.steps else {}
        tokens = number_or_nan(last.get("tokens"))
        seconds = number_or_nan(last.get("seconds"))
        if math.isfinite(tokens):
            parts.append(f"{format_count(tokens)} tokens")
        if math.isfinite(seconds):
            parts.append(format_whole_seconds(seconds))
        return " · ".join(parts)

    def series(self, event: str, *names: str) -> tuple[list[int], list[float]]:
        """Return steps and values of a quantity of the event "step" or "eval", NaN where it is not a number.

        The first of the names that a record has is taken.
        """
        steps, values = [], []
        for record in self.steps if event == "step" else self.evaluations:
            name = next((name for name in names if name in record), None)
            if name is not None:
                steps.append(record["step"])
                values.append(number_or_nan(record[name]))
        return steps, values


def number_or_nan(value: Any) -> float:
    """Return a finite number as a float, anything else (None, a text, an infinity, an int beyond every float) as NaN."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # `float` of a larger int is an error.
    return float(value) if is_number and abs(value) <= sys.float_info.max else math.nan


def read_metrics(path: str | Path) -> RunMetrics:
    """Read the metrics of a run from its folder, or its `metrics.jsonl`; incomplete lines of a killed process are counted."""
    file = Path(path)
    if file.is_dir():
        file = file / METRICS_FILE
    if not file.is_file():
        hint = suggest_existing_path(path, "name the folder that `albertkit pretrain --out` made")
        raise DataError("not-found", f"no metrics at `{file}`", hint)
    torn = 0
    records = []
    with open(file, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not line.strip():
                continue
            try:
                records.append(json.loads(line))
            except (ValueError, RecursionError):
                torn += 1
                # A resumed process may have appended a record to the torn line of a killed one
                start = line.rfind('{"event"')
                with suppress(ValueError, RecursionError):
                    records += [json.loads(line[start:])] if start > 0 else []
    metrics = RunMetrics.from_records(records)
    metrics.unreadable_lines += torn
    if metrics.unreadable_lines and not metrics.steps and not metrics.evaluations:
        raise DataError(
            "bad-file",
            f"none of the {metrics.unreadable_lines:,} lines of `{file}` is a metrics record",
            "name the `metrics.jsonl` of a run",
        )
    return metrics


def wilson_interval(correct: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval for a share of right answers (Wilson, 1927, without continuity correction); (0, 1) of none.

    Unlike the textbook p ± 1.96·s.e. it stays inside [0, 1] and is not empty at 0 or `total` right
    answers.
    """
    if not 0 <= correct <= total:
        raise ConfigError(
            "bad-value",
            f"{correct} right answers of {total} is impossible",
            "count both on the same data",
        )
    if total == 0:
        return 0.0, 1.0
    share, shrink = correct / total, Z_95**2 / total
    centre = (share + shrink / 2) / (1 + shrink)
    half = Z_95 / (1 + shrink) * math.sqrt(share * (1 - share) / total + shrink / (4 * total))
    # At the ends the formula gives exactly 0 or 1, but rounding leaves 1e-17.
    return (0.0 if correct == 0 else centre - half), (1.0 if correct == total else centre + half)


Panel = tuple[float, Callable[[Any], None]]  # share of the height, and what draws it

SMOOTHING_SHARE = 50  # the smoothed curve averages over 1/50 of the run
FEW_POINTS = 40  # below this every point is drawn
# Per cent, at the foot of the panel of sentence order: the words below its line at 50 have room
_LOWEST_SHARE = 30
MAX_LOSSES = 3  # drawn each; a run that has more adds them up in `loss`
PRETRAINING = ("masked_lm_", "sentence_order_")  # how the names of its quantities begin


def plot_run(
    metrics: RunMetrics,
    out: str | Path,
    baseline: Mapping[str, float] | None = None,
    title: str = "",
) -> Path:
    """Draw a run's curve as a PNG of 1200 pixels in width, and return its path.

    `baseline` may hold `unigram_loss` in nats, the loss of predicting tokens by their frequency;
    the title stands above.
    """
    figure = _plan_figure(metrics, baseline or {}, None, title)
    return save_png(figure.wide, figure.draw, out)


def run_svgs(
    metrics: RunMetrics, baseline: Mapping[str, float] | None = None, metric: str | None = None
) -> list[str]:
    """Draw a run's curve as SVG, wide and narrow; of the scores on dev `metric`, or the first that was recorded."""
    figure = _plan_figure(metrics, baseline or {}, metric, "")
    return [
        draw_page_svg(look, figure.draw, "curve", f"Curve of the run: {metrics.extent}")
        for look in (figure.wide, figure.narrow)
    ]


def is_drawable(metrics: RunMetrics) -> bool:
    """Return whether there is anything to draw."""
    return bool(_panels(metrics, {}, None))


class _FigurePlan(NamedTuple):
    """Looks of a curve, and the function that fills its figure in either."""

    wide: Look
    narrow: Look
    draw: Callable[[Any, Look], None]


def _plan_figure(
    metrics: RunMetrics, baseline: Mapping[str, float], metric: str | None, title: str
) -> _FigurePlan:
    panels = _panels(metrics, baseline, metric)
    if not panels:
        raise DataError(
            "empty", "the run recorded no loss and no score", "train for at least one step"
        )
    shares = [share for share, _ in panels]

    def draw(figure: Any, look: Look) -> None:
        ticker = matplotlib_modules().ticker
        axes = figure.subplots(
            len(panels), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": shares}
        )[:, 0]
        for axis, (_, draw_panel) in zip(axes, panels, strict=True):
            draw_panel(axis)
            axis.grid(axis="y", color=GRID, linewidth=0.7)
        last = max(metrics.last_step, 1)
        axes[-1].set_xlim(-0.02 * last, 1.02 * last)
        max_ticks = 4 if look.narrow else 8
        axes[-1].xaxis.set_major_locator(
            ticker.MaxNLocator(nbins=max_ticks, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)
        )
        axes[-1].xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
        axes[-1].set_xlabel("training step")
        figure.align_ylabels(axes)
        if not look.narrow:  # the page says it beside the picture
            draw_heading(axes[0], title, metrics.extent)
            # The heading stands outside of the axes: off the edge
            figure.get_layout_engine().set(rect=(0, 0, 1, 0.985))

    if _is_pretraining(metrics):
        return _FigurePlan(*wide_and_narrow_looks(6.4, 5.8), draw)
    looks = wide_and_narrow_looks(1.4 + sum(shares), 1.1 + 0.9 * sum(shares))
    return _FigurePlan(*looks, draw)


def _panels(metrics: RunMetrics, baseline: Mapping[str, float], metric: str | None) -> list[Panel]:
    """Return the panels that have data: of a pretraining its two tasks, of any other run its losses and its score."""
    panels: list[Panel] = []
    if _is_pretraining(metrics):
        panels.append((3.2, partial(_draw_masked_lm_loss, metrics=metrics, baseline=baseline)))
        if _is_recorded(metrics, "sentence_order_accuracy"):
            panels.append((1.7, partial(_draw_sentence_order, metrics=metrics)))
    else:
        recorded = dict.fromkeys(
            name for record in metrics.evaluations for name in record if name != "step"
        )
        scores = [
            name for name in (metric, *recorded) if name and _is_recorded(metrics, name, "eval")
        ]
        names = dict.fromkeys(
            name for record in metrics.steps for name in record if name.endswith("_loss")
        )
        losses = [name for name in names if _is_recorded(metrics, name, "step")]
        if not 0 < len(losses) <= MAX_LOSSES:
            losses = ["loss"] if _is_recorded(metrics, "loss", "step") else []
        panels += [(2.2, partial(_draw_series, metrics=metrics, name=name)) for name in losses]
        if scores:
            panels.append(
                (1.8, partial(_draw_series, metrics=metrics, name=scores[0], on_dev=True))
            )
    if _is_recorded(metrics, "learning_rate", "step"):
        panels.append((1.0, partial(draw_learning_rate, metrics=metrics)))
    return panels


def _is_recorded(metrics: RunMetrics, name: str, *events: str) -> bool:
    """Return whether a metric has a finite value in any event, or in one of these."""
    return any(
        math.isfinite(value)
        for event in events or ("step", "eval")
        for value in metrics.series(event, name)[1]
    )


def _is_pretraining(metrics: RunMetrics) -> bool:
    records = (*metrics.steps, *metrics.evaluations)
    return any(name.startswith(PRETRAINING) for record in records for name in record)


def _draw_series(axis: Any, metrics: RunMetrics, name: str, on_dev: bool = False) -> None:
    if not on_dev:
        draw_training(axis, *metrics.series("step", name))
    draw_evaluations(axis, *metrics.series("eval", name))
    # In lines that the axis's height has room for
    label = f"{name} on dev" if on_dev else name
    axis.set_ylabel(fill(label.replace("_", " ")[:40], 14))
    if len(axis.get_legend_handles_labels()[0]) > 1:
        axis.legend(loc="best")


def _draw_masked_lm_loss(axis: Any, metrics: RunMetrics, baseline: Mapping[str, float]) -> None:
    steps, losses = metrics.series("step", "masked_lm_loss", "loss")
    evaluation_steps, evaluations = metrics.series("eval", "masked_lm_loss", "loss")
    unigram = number_or_nan(baseline.get("unigram_loss"))
    low, high, above = loss_axis_bottom_top_and_num_above(losses, [*evaluations, unigram])
    draw_training(axis, steps, losses, ceiling=high if above else math.inf)
    draw_evaluations(axis, evaluation_steps, evaluations)
    if math.isfinite(unigram):
        axis.axhline(
            unigram, color=BASELINE, linestyle=(0, (5, 3)), linewidth=1.3, label="unigram baseline"
        )
    axis.set_ylabel("masked-LM loss (nats)")
    if math.isfinite(low):
        axis.set_ylim(low, high)
    lost = [step for step, loss in zip(steps, losses, strict=True) if math.isnan(loss)]
    if lost:
        label = f"loss not a number ({'1 step' if len(lost) == 1 else f'{len(lost):,} steps'})"
        axis.plot(
            lost,
            [0.02] * len(lost),
            transform=axis.get_xaxis_transform(),
            linestyle="",
            marker="x",
            markersize=5,
            color=EVALUATION,
            label=label,
            clip_on=False,
        )
    if above:
        axis.plot([], [], linestyle="", label=f"{above:,} above the frame, not in the mean")
    if axis.get_legend_handles_labels()[0]:
        axis.legend(loc="best")


def _draw_sentence_order(axis: Any, metrics: RunMetrics) -> None:
    steps, shares = metrics.series("step", "sentence_order_accuracy")
    evaluation_steps, evaluations = metrics.series("eval", "sentence_order_accuracy")
    draw_training(axis, steps, [100 * share for share in shares])
    draw_evaluations(axis, evaluation_steps, [100 * share for share in evaluations])
    axis.axhline(50, color=BASELINE, linestyle=(0, (5, 3)), linewidth=1.3)
    axis.annotate(
        "coin toss",
        (0.97, 50),
        xycoords=axis.get_yaxis_transform(),
        xytext=(0, -3),
        textcoords="offset points",
        ha="right",
        va="top",
        color=BASELINE,
        fontsize="small",
    )
    axis.set_ylabel("sentence order\nright (%)")
    percentages = [
        value * 100 for value in [*_running_mean(shares), *evaluations] if math.isfinite(value)
    ]
    axis.set_ylim(
        max(0, min([_LOWEST_SHARE, *(value - 5 for value in percentages)])),
        min(101, max([60, *(value + 5 for value in percentages)])),
    )


def draw_learning_rate(axis: Any, metrics: RunMetrics) -> None:
    """Draw the rate over the steps."""
    steps, rates = metrics.series("step", "learning_rate")
    axis.plot(
        steps,
        rates,
        color=TRAIN,
        linewidth=1.4,
        marker="o" if len(steps) == 1 else "",
        markersize=4,
    )
    axis.set_ylim(bottom=0)
    axis.set_ylabel("learning\nrate")
    # With an offset of 1e-3 the numbers would not say what they are
    axis.yaxis.set_major_formatter("{x:g}")


def draw_training(
    axis: Any, steps: list[int], values: list[float], ceiling: float = math.inf
) -> None:
    """Draw raw values faintly, and the running mean of those below the ceiling; a handful of points as points only."""
    if not any(math.isfinite(value) for value in values):
        return
    if len(values) < FEW_POINTS:
        axis.plot(
            steps, values, color=TRAIN, linewidth=1.4, marker="o", markersize=3.5, label="training"
        )
        return
    axis.plot(steps, values, color=TRAIN, linewidth=0.8, alpha=0.45, label="training")
    smooth = _running_mean([value if value <= ceiling else math.nan for value in values])
    axis.plot(steps, smooth, color=TRAIN, linewidth=1.8, label="training, running mean")


def draw_evaluations(axis: Any, steps: list[int], values: list[float]) -> None:
    """Draw points on a thin line."""
    if any(math.isfinite(value) for value in values):
        axis.plot(
            steps,
            values,
            color=EVALUATION,
            linewidth=1.0,
            marker="o",
            markersize=5.5 if len(steps) < 30 else 3,
            markeredgewidth=0,
            label="held-out text",
            zorder=3,
        )


def _running_mean(values: list[float]) -> np.ndarray:
    """Return the running mean over 1/50 of the run around each value, leaving out what is not a number."""
    is_number = np.isfinite(values)
    sums = np.cumsum([0.0, *np.where(is_number, values, 0.0)])
    counts = np.cumsum([0, *is_number])
    positions = np.arange(len(values))
    # Below 200 points one of 50 is none: the mean would be the curve. The window is narrower at the
    # start, so that the first steep fall is not drawn late or too low.
    reach = np.minimum(positions, max(len(values) // SMOOTHING_SHARE // 2, 2))
    first, end = positions - reach, np.minimum(positions + reach + 1, len(values))
    with np.errstate(invalid="ignore"):  # of no number the mean is NaN
        return (sums[end] - sums[first]) / (counts[end] - counts[first])


def loss_axis_bottom_top_and_num_above(
    losses: list[float], references: list[float]
) -> tuple[float, float, int]:
    """Return the bottom and top of the loss axis, and how many points lie above: one wild step must not flatten the curve."""
    finite = sorted(value for value in losses if math.isfinite(value))
    fixed = [value for value in references if math.isfinite(value)]
    if not finite and not fixed:
        return math.nan, math.nan, 0
    top = max([*fixed, *finite[-1:]])
    if len(finite) >= FEW_POINTS:
        # The first points of a run, from 8 or 10 nats, would take half of the axis; what is above
        # the frame is counted.
        usual = finite[int(0.95 * (len(finite) - 1))]
        spread = usual - statistics.median(finite)
        if finite[-1] > usual + max(spread, 0.1):
            top = max([*fixed, usual + 0.5 * max(spread, 0.1)])
    bottom = min([*fixed, *finite[:1]])
    margin = 0.06 * max(top - bottom, 0.2)
    return max(bottom - margin, 0.0), top + margin, sum(value > top + margin for value in finite)


class Display:
    """Shows and records training.

    Args:
        run: Folder of the run; None to show without recording (dry runs, all but the main process).
        title: What is being trained, shown beside the bar.
        silent: Show nothing (all but the main process).
    """

    def __init__(self, run: Path | None, title: str = "", silent: bool = False) -> None:
        self.run = run
        self.title = title
        self.silent = silent
        self.console = Console(stderr=True)
        self.is_live = self.console.is_terminal and not silent
        self._live: Live | None = None
        self._metrics: IO[str] | None = None
        self._board: Any = None
        self._latest: dict[str, float] = {}
        self._evaluation: tuple[int, dict[str, float]] | None = None
        self._first: tuple[int, float] | None = None

    def __enter__(self) -> "Display":
        if self.run is not None:
            self.run.mkdir(parents=True, exist_ok=True)
            # A resumed run appends: `RunMetrics` knows which of the records before it still hold.
            self._metrics = open(self.run / METRICS_FILE, "a", encoding="utf-8")
            with suppress(ImportError):  # the extra `report`
                from torch.utils.tensorboard import SummaryWriter

                self._board = SummaryWriter(str(self.run / "tensorboard"))
        if self.is_live:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            )
            self._progress = Progress(
                *columns, TextColumn("left {task.fields[left]}"), console=self.console, expand=True
            )
            self._task = self._progress.add_task(self.title, total=None, left="…")
            self._live = Live(self._progress, console=self.console, refresh_per_second=4)
            self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live:
            self._live.__exit__(*error)
        if self._metrics:
            self._metrics.close()
        if self._board:
            self._board.close()

    def update(
        self,
        step: int,
        total_steps: int | None,
        record: dict[str, float],
        seconds_left: float | None = None,
    ) -> None:
        """Report the updates since the last report.

        Args:
            step: Updates made.
            total_steps: Updates of the whole training; None if they are not known yet.
            record: Name to value.
            seconds_left: Of a time budget. Default: from the pace so far.
        """
        self._append_to_metrics({"event": "step", "step": step, **record})
        self._latest = record
        if seconds_left is None:
            # From the pace since this process's first report: first steps are slow, and a resumed
            # run starts late.
            seconds_left = math.nan
            now = time.monotonic()
            if total_steps and (self._first is None or step <= self._first[0]):
                self._first = (step, now)
            elif total_steps and self._first is not None:
                first_step, first_time = self._first
                seconds_left = (now - first_time) / (step - first_step) * (total_steps - step)
        time_left = "…"
        if not math.isnan(seconds_left):
            minutes, remaining_seconds = divmod(round(max(seconds_left, 0.0)), 60)
            time_left = f"{minutes}:{remaining_seconds:02}"
            if minutes >= 60:
                time_left = f"{minutes // 60}:{minutes % 60:02}:{remaining_seconds:02}"
        if self._live:
            self._progress.update(self._task, total=total_steps, completed=step, left=time_left)
            self._live.update(Group(self._make_table(), self._progress))
        elif not self.silent:
            print_note(
                f"step {step:>6}/{total_steps or '…'}  {_format_record(record)}  left {time_left}"
            )

    def plan(self, plan: dict[str, Any], news: str | None) -> None:
        """Record a plan of a training by the clock, and report it if it is news."""
        self._append_to_metrics({"event": "plan", **plan})
        if news:
            self.note(news)

    def evaluation(self, step: int, metrics: dict[str, float]) -> None:
        """Report an evaluation on held-out documents."""
        self._append_to_metrics({"event": "eval", "step": step, **metrics})
        self._evaluation = (step, metrics)
        if self._live:
            self._live.update(Group(self._make_table(), self._progress))
        is_pretraining = any(name in _SHORT for name in metrics)
        line = (
            _format_record(metrics)
            if is_pretraining
            else "  ".join(f"{n.replace('_', ' ')} {v:.4f}" for n, v in metrics.items())
        )
        self.note(f"eval {step:>6}  {line}")

    def note(self, message: str) -> None:
        """Say something that happened."""
        if self._live:
            # Paths and `albertkit[report]` hold brackets
            self.console.print(escape_line(message), markup=False, highlight=False)
        elif not self.silent:
            print_note(message)

    def _append_to_metrics(self, record: dict[str, Any]) -> None:
        if self._metrics:
            rounded: dict[str, Any] = {}
            for name, value in record.items():
                if isinstance(value, float) and not math.isfinite(value):
                    # JSON has no number for it, such as the gradient norm of a skipped update.
                    value = None
                elif isinstance(value, float) and value:
                    # Six digits where six decimals are fewer: a learning rate may be 1e-06.
                    value = round(value, max(6, 5 - math.floor(math.log10(abs(value)))))
                rounded[name] = value
            self._metrics.write(json.dumps(rounded) + "\n")
            # What was shown is in the file, if the process is killed.
            self._metrics.flush()
        if self._board:
            for name, value in record.items():
                if isinstance(value, int | float) and name not in ("step", "evaluate"):
                    self._board.add_scalar(f"{record['event']}/{name}", value, record["step"])

    def _make_table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        held_out = f"held-out (step {self._evaluation[0]})" if self._evaluation else "held-out"
        for title in ("", "training", held_out):
            table.add_column(title, justify="left" if not title else "right")
        evaluated = dict(self._evaluation[1]) if self._evaluation else {}
        is_pretraining = any(name in _SHORT for name in evaluated)
        for name, value in self._latest.items():
            if name not in ("tokens", "seconds"):
                held_out_text = (
                    _format_metric(name, evaluated.pop(name)) if name in evaluated else ""
                )
                table.add_row(name.replace("_", " "), _format_metric(name, value), held_out_text)
        for name, value in evaluated.items():
            if not is_pretraining:  # the scores of a task, which training does not have
                table.add_row(name.replace("_", " "), "", f"{value:.4f}")
        return table


_SHORT = {
    "masked_lm_loss": "mlm",
    "masked_lm_perplexity": "ppl",
    "masked_lm_accuracy": "mlm acc",
    "sentence_order_loss": "sop",
    "sentence_order_accuracy": "sop acc",
    "learning_rate": "lr",
    "tokens_per_second": "tok/s",
    "grad_norm": "grad",
}


def _format_metric(name: str, value: float) -> str:
    if name.endswith("accuracy") or name == "mfu":
        return f"{100 * value:.1f} %"
    if name == "learning_rate":
        return f"{value:.2e}"
    return f"{value:,.0f}" if name.endswith("per_second") else f"{value:.4f}"


def _format_record(record: dict[str, float]) -> str:
    names = (n for n in record if n in _SHORT or n in ("loss", "mfu"))
    return "  ".join(
        f"{_SHORT.get(name, name)} {_format_metric(name, record[name])}" for name in names
    )
