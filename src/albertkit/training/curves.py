"""The curve of a run: losses, scores and learning rate over its steps, as PNG or as SVG for a page."""

import math
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any

from albertkit.errors import DataError
from albertkit.frame.plots import (
    BASELINE,
    EVALUATION,
    GRID,
    TRAIN,
    Look,
    heading,
    matplotlib_modules,
    new_figure,
    page_svg,
    save_png,
    wide_and_narrow,
)
from albertkit.training.metrics import RunMetrics, number_or_nan

Panel = tuple[float, Callable[[Any], None]]  # share of the height, and what draws it

MAX_POINTS = 1500  # more than a plot has columns of pixels for
SMOOTHING_SHARE = 50  # the smoothed curve averages over 1/50 of the run
FEW_POINTS = 40  # below this every point is drawn
_LOWEST_SHARE = 30  # per cent, at the foot of the panel of sentence order: the words below its line at 50 have room
MAX_LOSSES = 3  # drawn each; a run that has more adds them up in `loss`
PRETRAINING = ("masked_lm_", "sentence_order_")  # how the names of its quantities begin


def plot_run(
    metrics: RunMetrics, out: str | Path, baseline: Mapping[str, float] | None = None, title: str = ""
) -> Path:
    """Draw a run's curve as a PNG of 1200 pixels in width, and return its path.

    `baseline` may hold `unigram_loss` in nats, the loss of predicting tokens by their frequency; the title stands above.
    """
    (look, _), draw = _picture(metrics, baseline or {}, None, title)
    return save_png(new_figure(look, draw), out)


def run_svgs(metrics: RunMetrics, baseline: Mapping[str, float] | None = None, metric: str | None = None) -> list[str]:
    """Draw a run's curve as SVG, wide and narrow; of the scores on dev `metric`, or the first that was recorded."""
    looks, draw = _picture(metrics, baseline or {}, metric, "")
    return [page_svg(look, draw, "curve", f"Curve of the run: {metrics.extent}") for look in looks]


def is_drawable(metrics: RunMetrics) -> bool:
    """Return whether there is anything to draw."""
    return bool(_panels(metrics, {}, None))


def _picture(
    metrics: RunMetrics, baseline: Mapping[str, float], metric: str | None, title: str
) -> tuple[tuple[Look, Look], Callable[[Any, Look], None]]:
    """Return the looks of a curve, and the function that fills its figure."""
    panels = _panels(metrics, baseline, metric)
    if not panels:
        raise DataError("empty", "the run recorded no loss and no score", "train for at least one step")
    shares = [share for share, _ in panels]

    def draw(figure: Any, look: Look) -> None:
        ticker = matplotlib_modules().ticker
        axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": shares})[:, 0]
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
            heading(axes[0], title, metrics.extent)
            figure.get_layout_engine().set(
                rect=(0, 0, 1, 0.985)
            )  # the heading stands outside of the axes: off the edge

    if _is_pretraining(metrics):
        return wide_and_narrow(6.4, 5.8), draw
    return wide_and_narrow(1.4 + sum(shares), 1.1 + 0.9 * sum(shares)), draw


def _panels(metrics: RunMetrics, baseline: Mapping[str, float], metric: str | None) -> list[Panel]:
    """Return the panels that have data: of a pretraining its two tasks, of any other run its losses and its score."""
    panels: list[Panel] = []
    losses = _loss_names(metrics)
    if _is_pretraining(metrics):
        panels.append((3.2, partial(_draw_loss, metrics=metrics, baseline=baseline)))
        if _is_known(metrics, "sentence_order_accuracy"):
            panels.append((1.7, partial(_draw_sentence_order, metrics=metrics)))
    else:
        score = metric if metric and _is_known(metrics, metric, "eval") else _first_score(metrics)
        panels += [(2.2, partial(_draw_series, metrics=metrics, name=name)) for name in losses]
        panels += [(1.8, partial(_draw_score, metrics=metrics, name=score))] if score else []
    if _is_known(metrics, "learning_rate", "step"):
        panels.append((1.0, partial(draw_learning_rate, metrics=metrics)))
    return panels


def _is_known(metrics: RunMetrics, name: str, *events: str) -> bool:
    """Return whether a quantity was recorded as a number, of any event or of these."""
    return any(math.isfinite(value) for event in events or ("step", "eval") for value in metrics.series(event, name)[1])


def _is_pretraining(metrics: RunMetrics) -> bool:
    records = (*metrics.steps, *metrics.evaluations)
    return any(name.startswith(PRETRAINING) for record in records for name in record)


def _loss_names(metrics: RunMetrics) -> list[str]:
    """Return the losses that training recorded, at most three; else their sum."""
    recorded = dict.fromkeys(name for record in metrics.steps for name in record if name.endswith("_loss"))
    names = [name for name in recorded if _is_known(metrics, name, "step")]
    if 0 < len(names) <= MAX_LOSSES:
        return names
    return ["loss"] if _is_known(metrics, "loss", "step") else []


def _first_score(metrics: RunMetrics) -> str | None:
    names = dict.fromkeys(name for record in metrics.evaluations for name in record if name != "step")
    return next((name for name in names if _is_known(metrics, name, "eval")), None)


def _draw_series(axis: Any, metrics: RunMetrics, name: str) -> None:
    draw_training(axis, *metrics.series("step", name))
    draw_evaluations(axis, *metrics.series("eval", name))
    axis.set_ylabel(_words(name))
    if len(axis.get_legend_handles_labels()[0]) > 1:
        axis.legend(loc="best")


def _draw_score(axis: Any, metrics: RunMetrics, name: str) -> None:
    draw_evaluations(axis, *metrics.series("eval", name))
    axis.set_ylabel(_words(f"{name} on dev"))


def _words(name: str) -> str:
    """Return a name for an axis, in lines that its height has room for."""
    return fill(name.replace("_", " ")[:40], 14)


def _draw_loss(axis: Any, metrics: RunMetrics, baseline: Mapping[str, float]) -> None:
    steps, losses = metrics.series("step", "masked_lm_loss", "loss")
    evaluation_steps, evaluations = metrics.series("eval", "masked_lm_loss", "loss")
    unigram = number_or_nan(baseline.get("unigram_loss"))
    low, high, above = _loss_limits(losses, [*evaluations, unigram])
    draw_training(axis, steps, losses, ceiling=high if above else math.inf)
    draw_evaluations(axis, evaluation_steps, evaluations)
    if math.isfinite(unigram):
        axis.axhline(unigram, color=BASELINE, linestyle=(0, (5, 3)), linewidth=1.3, label="unigram baseline")
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
    known = [value * 100 for value in [*_smooth(shares), *evaluations] if math.isfinite(value)]
    axis.set_ylim(
        max(0, min([_LOWEST_SHARE, *(value - 5 for value in known)])),
        min(101, max([60, *(value + 5 for value in known)])),
    )


def draw_learning_rate(axis: Any, metrics: RunMetrics) -> None:
    """Draw the rate over the steps."""
    steps, rates = metrics.series("step", "learning_rate")
    axis.plot(steps, rates, color=TRAIN, linewidth=1.4, marker="o" if len(steps) == 1 else "", markersize=4)
    axis.set_ylim(bottom=0)
    axis.set_ylabel("learning\nrate")
    axis.yaxis.set_major_formatter("{x:g}")  # with an offset of 1e-3 the numbers would not say what they are


def draw_training(axis: Any, steps: list[int], values: list[float], ceiling: float = math.inf) -> None:
    """Draw raw values faintly, and the running mean of those below the ceiling; a handful of points as points only."""
    if not any(math.isfinite(value) for value in values):
        return
    if len(values) < FEW_POINTS:
        axis.plot(steps, values, color=TRAIN, linewidth=1.4, marker="o", markersize=3.5, label="training")
        return
    raw_steps, raw = _thin(steps, values)
    axis.plot(raw_steps, raw, color=TRAIN, linewidth=0.8, alpha=0.45, label="training")
    smooth_steps, smooth = _thin(steps, _smooth([value if value <= ceiling else math.nan for value in values]))
    axis.plot(smooth_steps, smooth, color=TRAIN, linewidth=1.8, label="training, running mean")


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


def _smooth(values: list[float]) -> list[float]:
    """Return the running mean over 1/50 of the run around each value, leaving out what is not a number.

    The window is narrower at the start, so that the first steep fall is not drawn late or too low.
    """
    half = max(
        len(values) // SMOOTHING_SHARE // 2, 2
    )  # below 200 points one of 50 is none: the mean would be the curve
    sums, counts = [0.0], [0]
    for value in values:
        known = math.isfinite(value)
        sums.append(sums[-1] + (value if known else 0.0))
        counts.append(counts[-1] + known)
    smooth = []
    for position in range(len(values)):
        reach = min(half, position)
        first, end = position - reach, min(position + reach + 1, len(values))
        count = counts[end] - counts[first]
        smooth.append((sums[end] - sums[first]) / count if count else math.nan)
    return smooth


def _thin(steps: list[int], values: list[float]) -> tuple[list[int], list[float]]:
    """Return at most `MAX_POINTS` points that look the same: the lowest and the highest of every stretch, in order."""
    if len(values) <= MAX_POINTS:
        return steps, values
    stretch = math.ceil(2 * len(values) / MAX_POINTS)
    kept: set[int] = {0, len(values) - 1}
    for start in range(0, len(values), stretch):
        known = [p for p in range(start, min(start + stretch, len(values))) if math.isfinite(values[p])]
        kept.update((min(known, key=values.__getitem__), max(known, key=values.__getitem__)) if known else (start,))
    order = sorted(kept)
    return [steps[position] for position in order], [values[position] for position in order]


def _loss_limits(losses: list[float], others: list[float]) -> tuple[float, float, int]:
    """Return the bottom and top of the loss axis, and how many points lie above: one wild step must not flatten the curve."""
    known = sorted(value for value in losses if math.isfinite(value))
    fixed = [value for value in others if math.isfinite(value)]
    if not known and not fixed:
        return math.nan, math.nan, 0
    top = max([*fixed, *known[-1:]])
    if len(known) >= FEW_POINTS:
        # The first points of a run, from 8 or 10 nats, would take half of the axis; what is above the frame is counted.
        usual = known[int(0.95 * (len(known) - 1))]
        spread = usual - statistics.median(known)
        if known[-1] > usual + max(spread, 0.1):
            top = max([*fixed, usual + 0.5 * max(spread, 0.1)])
    bottom = min([*fixed, *known[:1]])
    margin = 0.06 * max(top - bottom, 0.2)
    return max(bottom - margin, 0.0), top + margin, sum(value > top + margin for value in known)
