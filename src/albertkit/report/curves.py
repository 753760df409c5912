"""The curve of any training as SVG: its losses, the score on dev that chose the model, the learning rate; and a scatter plot."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from textwrap import fill
from typing import Any

import numpy as np

from albertkit.errors import DataError
from albertkit.report.metrics import RunMetrics
from albertkit.report.plots import (
    BASELINE,
    GRID,
    NARROW,
    TRAIN,
    WIDE,
    draw_evaluations,
    draw_learning_rate,
    draw_training,
    for_page,
    matplotlib_modules,
    run_svg,
    style,
)
from albertkit.report.results import training_extent

MOST_LOSSES = 3  # drawn each; a run that has more adds them up in `loss`
MOST_POINTS = 2_000  # of a scatter plot: half a megabyte


def training_svg(
    metrics: RunMetrics, metric: str | None = None, baseline: Mapping[str, Any] | None = None, narrow: bool = False
) -> str:
    """The curve of a run as SVG to put into a page.

    Args:
        metrics: Of the run. One of pretraining is drawn by `run_svg`.
        metric: The score on dev to draw. Default: the first that was recorded.
        baseline: As `run_svg`.
        narrow: For a telephone.

    Raises:
        MissingExtraError: missing-extra without matplotlib. DataError: no-metrics if nothing was recorded.
    """
    losses = loss_names(metrics)
    if "masked_lm_loss" in losses or "sentence_order_loss" in losses:
        return run_svg(metrics, baseline, narrow)
    metric = metric if metric and _recorded(metrics, "eval", metric) else _first_score(metrics)
    panels: list[tuple[float, Callable[[Any], None]]] = []
    panels += [(2.2, partial(_draw_loss, metrics=metrics, name=name)) for name in losses]
    panels += [(1.8, partial(_draw_score, metrics=metrics, name=metric))] if metric else []
    if _recorded(metrics, "step", "learning_rate"):
        panels.append((1.0, partial(draw_learning_rate, metrics=metrics, _={})))
    if not panels:
        raise DataError("no-metrics", "the run recorded no loss and no score", "train for at least one step")

    def draw(figure: Any) -> None:
        ticker = matplotlib_modules().ticker
        shares = [share for share, _ in panels]
        axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": shares})[:, 0]
        for axis, (_, draw_panel) in zip(axes, panels, strict=True):
            draw_panel(axis)
            axis.grid(axis="y", color=GRID, linewidth=0.7)
        last = max(metrics.last_step, 1)
        axes[-1].set_xlim(-0.02 * last, 1.02 * last)
        axes[-1].xaxis.set_major_locator(ticker.MaxNLocator(nbins=4 if narrow else 8, integer=True, min_n_ticks=1))
        axes[-1].xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
        axes[-1].set_xlabel("training step")
        figure.align_ylabels(axes)

    height = 1.1 + sum(share for share, _ in panels) * (0.9 if narrow else 1.0)
    return page_svg(draw, "training", f"Curve of the run: {training_extent(metrics)}", height, narrow)


def scatter_svg(pairs: Sequence[Sequence[float]], narrow: bool = False) -> str:
    """Predictions over labels, at most `MOST_POINTS` of them, taken evenly.

    Args:
        pairs: Label and prediction of each example, finite.
        narrow: For a telephone.

    Raises:
        MissingExtraError: missing-extra without matplotlib.
    """
    points = np.array(pairs, np.float64)[:: -(-len(pairs) // MOST_POINTS)]

    def draw(figure: Any) -> None:
        axis = figure.subplots()
        low, high = float(points.min()), float(points.max())
        margin = 0.04 * (high - low or 1.0)
        limits = (low - margin, high + margin)
        axis.plot(limits, limits, color=BASELINE, linestyle=(0, (5, 3)), linewidth=1.2)
        faint = min(0.8, max(0.12, 100 / len(points)))
        axis.scatter(*points.T, s=14, color=TRAIN, alpha=faint, linewidths=0)
        axis.set(xlim=limits, ylim=limits, aspect="equal", xlabel="label", ylabel="predicted")
        axis.grid(color=GRID, linewidth=0.7)

    return page_svg(draw, "scatter", "Predictions over labels", 3.6 if narrow else 5.0, narrow)


def is_drawable(metrics: RunMetrics) -> bool:
    """Whether there is anything to draw."""
    return bool(loss_names(metrics) or _first_score(metrics) or _recorded(metrics, "step", "learning_rate"))


def loss_names(metrics: RunMetrics) -> list[str]:
    """The losses that training recorded, at most three; else their sum."""
    named = dict.fromkeys(name for record in metrics.steps for name in record if name.endswith("_loss"))
    names = [name for name in named if _recorded(metrics, "step", name)]
    return names if 0 < len(names) <= MOST_LOSSES else ["loss"] * _recorded(metrics, "step", "loss")


def _recorded(metrics: RunMetrics, event: str, name: str) -> bool:
    return bool(np.isfinite(metrics.series(event, name)[1]).any())


def _first_score(metrics: RunMetrics) -> str | None:
    names = dict.fromkeys(name for record in metrics.evaluations for name in record if name != "step")
    return next((name for name in names if _recorded(metrics, "eval", name)), None)


def _draw_loss(axis: Any, metrics: RunMetrics, name: str) -> None:
    draw_training(axis, *metrics.series("step", name))
    draw_evaluations(axis, *metrics.series("eval", name))
    axis.set_ylabel(_words(name))
    if len(axis.get_legend_handles_labels()[0]) > 1:
        axis.legend(loc="best")


def _draw_score(axis: Any, metrics: RunMetrics, name: str) -> None:
    draw_evaluations(axis, *metrics.series("eval", name))
    axis.set_ylabel(_words(f"{name} on dev"))


def _words(name: str) -> str:
    """A name beside an axis, in lines that its height has room for."""
    return fill(name.replace("_", " ")[:40], 14)


def page_svg(draw: Callable[[Any], None], name: str, label: str, height: float, narrow: bool) -> str:
    """A figure as SVG for a page. Names in it come from files: nothing in them is taken for mathematics.

    Args:
        draw: Given the empty figure.
        name: No other picture of the page has it.
        label: What it shows, for those who do not see it.
        height: Inches.
        narrow: For a telephone.

    Raises:
        MissingExtraError: missing-extra without matplotlib.
    """
    matplotlib = matplotlib_modules()
    look = replace(NARROW if narrow else WIDE, height=height)
    salt = {"svg.fonttype": "none", "svg.hashsalt": f"albertkit {name} {look.width}", "text.parse_math": False}
    with matplotlib.rc_context({**style(look), **salt}):
        figure = matplotlib.figure.Figure(figsize=(look.width, look.height), layout="constrained")
        draw(figure)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return for_page(stream.getvalue(), label)
