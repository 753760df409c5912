"""The curve of a run: masked-LM loss, sentence-order accuracy and learning rate over steps, as PNG or SVG.

The SVG takes its colours from CSS variables of the page around it (with fallbacks, so that it also stands alone), and
its text is text, so that one picture serves light and dark.
"""

import io
import math
import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from albertkit.errors import DataError, MissingExtraError
from albertkit.files import atomic_file
from albertkit.report.metrics import RunMetrics, as_metrics, number_or_nan
from albertkit.report.results import training_extent

Source = RunMetrics | str | Path | Iterable[dict[str, Any]]

# Okabe and Ito's palette (2008): told apart with every common colour blindness, and blue and orange also in grey.
INK, MUTED, GRID = "#1f2328", "#656d76", "#d8dee4"
TRAIN, EVALUATION, BASELINE = "#0072b2", "#d55e00", "#656d77"
HEAT = "#7fbfe6"  # at full strength ink is still read on it
CSS_COLOURS = {
    INK: "--ink", MUTED: "--muted", GRID: "--grid",
    TRAIN: "--train", EVALUATION: "--evaluation", BASELINE: "--baseline", HEAT: "--heat",
}  # fmt: skip

MOST_POINTS = 1500  # more than a plot has columns of pixels for
SMOOTHING_SHARE = 50  # the smoothed curve averages over 1/50 of the run
FEW_POINTS = 40  # below this every point is drawn


@dataclass(frozen=True)
class Look:
    """Sizes that differ between the wide and the narrow (telephone) picture, in inches and points."""

    width: float
    height: float
    font_size: float


WIDE, NARROW = Look(8.0, 6.4, 10.0), Look(4.2, 5.8, 10.0)


def plot_run(source: Source, out: str | Path, baseline: Mapping[str, float] | None = None, title: str = "") -> Path:
    """Draw a run's curve as a PNG of 1200 x 960 pixels.

    Args:
        source: A run folder, its `metrics.jsonl`, `RunMetrics`, or records.
        out: The file to write.
        baseline: `unigram_loss` in nats, if known: the loss of predicting pieces by their frequency.
        title: Above the picture; the run's name.

    Returns:
        The file written.

    Raises:
        MissingExtraError: missing-extra without matplotlib.
        DataError: no-metrics if nothing was recorded.
    """
    figure = _figure(as_metrics(source), baseline or {}, title, WIDE)
    with atomic_file(out) as stream:
        figure.savefig(stream, format="png", dpi=150, metadata={"Software": None})
    return Path(out)


def run_svg(source: Source, baseline: Mapping[str, float] | None = None, narrow: bool = False) -> str:
    """Draw a run's curve as SVG to put into a page: no identifiers that clash, no dates, the same bytes every time.

    Args:
        source: As for `plot_run`.
        baseline: As for `plot_run`.
        narrow: For a telephone: the same letters on a smaller picture.

    Raises:
        MissingExtraError: missing-extra without matplotlib.
        DataError: no-metrics if nothing was recorded.
    """
    metrics = as_metrics(source)
    matplotlib = matplotlib_modules()
    look = NARROW if narrow else WIDE
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": f"albertkit {look.width}"}):
        figure = _figure(metrics, baseline or {}, "", look)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return for_page(stream.getvalue(), f"Curve of the run: {training_extent(metrics)}")


def matplotlib_modules() -> Any:
    """matplotlib with what is drawn with.

    Raises:
        MissingExtraError: missing-extra.
    """
    try:
        import matplotlib
        import matplotlib.figure
        import matplotlib.ticker
    except ImportError:
        raise MissingExtraError.of("matplotlib", "report", "drawing a curve") from None
    return matplotlib


def _figure(metrics: RunMetrics, baseline: Mapping[str, float], title: str, look: Look) -> Any:
    """The picture; panels without data are left out."""
    matplotlib = matplotlib_modules()
    if not metrics.steps and not metrics.evaluations:
        raise DataError(
            "no-metrics", "the run recorded no training step and no evaluation", "train for at least one step"
        )
    panels: list[tuple[Any, float]] = [(_draw_loss, 3.2)]
    if _is_known(metrics, "sentence_order_accuracy"):
        panels.append((_draw_sentence_order, 1.7))
    if _is_known(metrics, "learning_rate"):
        panels.append((draw_learning_rate, 1.0))
    with matplotlib.rc_context(style(look)):
        figure = matplotlib.figure.Figure(figsize=(look.width, look.height), layout="constrained")
        axes = figure.subplots(
            len(panels), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": [share for _, share in panels]}
        )[:, 0]
        for axis, (draw, _) in zip(axes, panels, strict=True):
            draw(axis, metrics, baseline)
            axis.grid(axis="y", color=GRID, linewidth=0.7)
        last = axes[-1]
        last.set_xlabel("training step")
        last.xaxis.set_major_locator(
            matplotlib.ticker.MaxNLocator(
                nbins=4 if look is NARROW else 8, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1
            )
        )
        last.xaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:,.0f}"))
        last_step = max(metrics.last_step, 1)
        last.set_xlim(-0.02 * last_step, 1.02 * last_step)
        figure.align_ylabels(axes)
        _write_heading(axes[0], title, training_extent(metrics), look)
        figure.get_layout_engine().set(rect=(0, 0, 1, 0.985))  # the heading stands outside of the axes: off the edge
        figure.draw_without_rendering()  # inside the style: text takes its fonts when it is laid out
    return figure


def _is_known(metrics: RunMetrics, name: str) -> bool:
    return any(math.isfinite(value) for event in ("step", "eval") for value in metrics.series(event, name)[1])


def style(look: Look) -> dict[str, Any]:
    """matplotlib's settings for our pictures."""
    return {
        "font.family": "sans-serif", "font.size": look.font_size, "text.color": INK, "axes.labelcolor": INK,
        "axes.edgecolor": MUTED, "xtick.color": MUTED, "ytick.color": MUTED, "axes.spines.top": False,
        "axes.spines.right": False, "axes.linewidth": 0.8, "axes.axisbelow": True, "legend.frameon": False,
        "legend.fontsize": look.font_size - 1, "xtick.labelsize": look.font_size - 1,
        "ytick.labelsize": look.font_size - 1,
        "lines.solid_capstyle": "round", "figure.facecolor": "white",
    }  # fmt: skip


def _write_heading(axis: Any, title: str, description: str, look: Look) -> None:
    if look is NARROW:  # the page says it beside the picture
        return
    axis.set_title(description, loc="left", fontsize=look.font_size - 0.5, color=MUTED, pad=10)
    if title:
        axis.annotate(
            title, (0, 1), xycoords="axes fraction", xytext=(0, 28), textcoords="offset points",
            fontsize=look.font_size + 3, fontweight="bold", parse_math=False,
        )  # fmt: skip


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
        label = f"loss not a number ({len(lost):,} step{'s' * (len(lost) > 1)})"
        axis.plot(
            lost, [0.02] * len(lost), transform=axis.get_xaxis_transform(), linestyle="", marker="x", markersize=5,
            color=EVALUATION, label=label, clip_on=False,
        )  # fmt: skip
    if above:
        axis.plot([], [], linestyle="", label=f"{above:,} above the frame, not in the mean")
    if axis.get_legend_handles_labels()[0]:
        axis.legend(loc="best")


def _draw_sentence_order(axis: Any, metrics: RunMetrics, _: Mapping[str, float]) -> None:
    steps, shares = metrics.series("step", "sentence_order_accuracy")
    evaluation_steps, evaluations = metrics.series("eval", "sentence_order_accuracy")
    draw_training(axis, steps, [100 * share for share in shares])
    draw_evaluations(axis, evaluation_steps, [100 * share for share in evaluations])
    axis.axhline(50, color=BASELINE, linestyle=(0, (5, 3)), linewidth=1.3)
    axis.annotate(
        "coin toss", (1, 50), xycoords=axis.get_yaxis_transform(), xytext=(0, -3), textcoords="offset points",
        ha="right", va="top", color=BASELINE, fontsize="small",
    )  # fmt: skip
    axis.set_ylabel("sentence order\nright (%)")
    known = [value * 100 for value in [*_smooth(shares), *evaluations] if math.isfinite(value)]
    axis.set_ylim(
        max(0, min([40, *(value - 5 for value in known)])), min(101, max([60, *(value + 5 for value in known)]))
    )


def draw_learning_rate(axis: Any, metrics: RunMetrics, _: Mapping[str, float]) -> None:
    """The rate over the steps."""
    steps, rates = metrics.series("step", "learning_rate")
    axis.plot(steps, rates, color=TRAIN, linewidth=1.4, marker="o" if len(steps) == 1 else "", markersize=4)
    axis.set_ylim(bottom=0)
    axis.set_ylabel("learning\nrate")
    axis.yaxis.set_major_formatter("{x:g}")  # with an offset of 1e-3 the numbers would not say what they are


def draw_training(axis: Any, steps: list[int], values: list[float], ceiling: float = math.inf) -> None:
    """The raw values faintly and the running mean of those below the ceiling; a handful of points as points only."""
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
    """Points on a thin line."""
    if any(math.isfinite(value) for value in values):
        axis.plot(
            steps, values, color=EVALUATION, linewidth=1.0, marker="o", markersize=5.5 if len(steps) < 30 else 3,
            markeredgewidth=0, label="held-out text", zorder=3,
        )  # fmt: skip


def _smooth(values: list[float]) -> list[float]:
    """Running mean over 1/50 of the run around each value, leaving out what is not a number.

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
    """At most `MOST_POINTS` points that look the same: the lowest and the highest of every stretch, in order."""
    if len(values) <= MOST_POINTS:
        return steps, values
    stretch = math.ceil(2 * len(values) / MOST_POINTS)
    kept: set[int] = {0, len(values) - 1}
    for start in range(0, len(values), stretch):
        known = [p for p in range(start, min(start + stretch, len(values))) if math.isfinite(values[p])]
        kept.update((min(known, key=values.__getitem__), max(known, key=values.__getitem__)) if known else (start,))
    order = sorted(kept)
    return [steps[position] for position in order], [values[position] for position in order]


def _loss_limits(losses: list[float], others: list[float]) -> tuple[float, float, int]:
    """Bottom and top of the loss axis, and how many points lie above: one wild step must not flatten the curve."""
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


def for_page(svg: str, label: str) -> str:
    """Fit matplotlib's SVG into a page: only the element itself, the page's colours and font, no clashing names.

    Args:
        svg: A whole file.
        label: What it shows, for those who do not see it.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)  # its "*" would style the whole page
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # "axes_1" would be there twice; nothing refers to groups
    svg = svg.replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "").replace("xlink:href=", "href=")
    svg = re.sub(r'<svg ([^>]*?)width="[^"]*"', r"<svg \1", svg, count=1)
    svg = re.sub(r'<svg ([^>]*?)height="[^"]*"', r"<svg \1", svg, count=1)
    svg = svg.replace("<svg ", f'<svg role="img" stroke-linejoin="round" aria-label="{escape(label)}" ', 1)
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1; font-family: inherit", svg)
    for colour, name in CSS_COLOURS.items():
        svg = svg.replace(colour, f"var({name}, {colour})")
    return re.sub(r"\s*\n\s*", " ", svg).replace("> <", "><").strip()
