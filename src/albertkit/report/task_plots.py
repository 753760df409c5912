"""Pictures of a task's results as PNG: the confusion matrix of classes, predictions over labels of a regression."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.errors import MissingExtraError
from albertkit.files import atomic_file
from albertkit.report.plots import BASELINE, GRID, INK, MUTED, TRAIN

MOST_NUMBERS = 15  # more classes than this are drawn without their counts, which would not be legible
NAME_WIDTH = 24


def plot_confusion(names: Sequence[str], counts: Sequence[Sequence[int]], out: str | Path, title: str = "") -> Path:
    """Draw a confusion matrix; the colour is the share of the label's examples.

    Args:
        names: Of the C classes.
        counts: C rows (labels) of C counts (predictions).
        out: The PNG to write.
        title: Above the picture.

    Returns:
        The file written.

    Raises:
        MissingExtraError: missing-extra without matplotlib.
    """
    matplotlib = _matplotlib()
    table = np.array(counts)
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    side = 2.6 + min(len(names), 60) * (0.62 if len(names) <= MOST_NUMBERS else 0.2)
    colours = matplotlib.colors.LinearSegmentedColormap.from_list("", ["white", TRAIN])
    with matplotlib.rc_context(_STYLE):
        figure = matplotlib.figure.Figure(figsize=(side + 0.6, side), layout="constrained")
        axis = figure.subplots()
        picture = axis.imshow(shares, cmap=colours, vmin=0, vmax=1)
        ticks = [_short(name) for name in names]
        size = 9 if len(names) <= MOST_NUMBERS else 6
        upright = max(map(len, ticks)) <= 8 and len(names) <= MOST_NUMBERS
        axis.set_xticks(range(len(names)), ticks, rotation=0 if upright else 90, fontsize=size, parse_math=False)
        axis.set_yticks(range(len(names)), ticks, fontsize=size, parse_math=False)
        axis.tick_params(length=0)
        axis.set(xlabel="predicted", ylabel="label")
        if len(names) <= MOST_NUMBERS:
            for (row, column), count in np.ndenumerate(table):
                colour = "white" if shares[row, column] > 0.55 else INK if count else MUTED
                axis.text(column, row, f"{count:,}", ha="center", va="center", color=colour, fontsize=9)
        bar = figure.colorbar(picture, ax=axis, shrink=0.7, format=matplotlib.ticker.PercentFormatter(1))
        bar.outline.set_visible(False)
        bar.set_label("of the label's examples")
        right, total = int(table.trace()), int(table.sum())
        _heading(axis, title, f"{right:,} of {total:,} right")
        return _save(figure, out)


def plot_regression(pairs: Sequence[Sequence[float]], out: str | Path, title: str = "") -> Path:
    """Draw predictions over labels.

    Args:
        pairs: Label and prediction of each example.
        out: The PNG to write.
        title: Above the picture.

    Returns:
        The file written.

    Raises:
        MissingExtraError: missing-extra without matplotlib.
    """
    matplotlib = _matplotlib()
    points = np.array(pairs, np.float64)
    points = points[np.isfinite(points).all(1)]
    with matplotlib.rc_context(_STYLE):
        figure = matplotlib.figure.Figure(figsize=(5.6, 5.6), layout="constrained")
        axis = figure.subplots()
        low, high = (points.min(), points.max()) if len(points) else (0.0, 1.0)
        margin = 0.04 * (high - low or 1.0)
        limits = (low - margin, high + margin)
        axis.plot(limits, limits, color=BASELINE, linestyle=(0, (5, 3)), linewidth=1.2, label="equal")
        faint = min(0.8, max(0.12, 100 / max(len(points), 1)))
        axis.scatter(*points.T, s=14, color=TRAIN, alpha=faint, linewidths=0)
        axis.set(xlim=limits, ylim=limits, aspect="equal", xlabel="label", ylabel="predicted")
        axis.grid(color=GRID, linewidth=0.7)
        axis.legend(loc="upper left")
        _heading(axis, title, f"{len(points):,} examples")
        return _save(figure, out)


_STYLE = {
    "font.family": "sans-serif", "font.size": 10, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": MUTED,
    "xtick.color": INK, "ytick.color": INK, "axes.linewidth": 0.8, "axes.axisbelow": True, "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "figure.facecolor": "white",
}  # fmt: skip


def _heading(axis: Any, title: str, description: str) -> None:
    axis.set_title(description, loc="left", fontsize=9.5, color=MUTED, pad=8)
    if title:
        axis.annotate(
            title, (0, 1), xycoords="axes fraction", xytext=(0, 26), textcoords="offset points", fontsize=13,
            fontweight="bold", parse_math=False,
        )  # fmt: skip


def _short(name: str) -> str:
    """Cut in the middle: names often begin alike."""
    half = NAME_WIDTH // 2
    return name if len(name) <= NAME_WIDTH else f"{name[:half]}…{name[1 - half :]}"


def _save(figure: Any, out: str | Path) -> Path:
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
    with atomic_file(out) as stream:
        figure.savefig(stream, format="png", dpi=150, metadata={"Software": None})
    return Path(out)


def _matplotlib() -> Any:
    try:
        import matplotlib
        import matplotlib.colors
        import matplotlib.figure
        import matplotlib.ticker
    except ImportError:
        raise MissingExtraError.of("matplotlib", "report", "drawing results") from None
    return matplotlib
