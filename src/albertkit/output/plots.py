"""Pictures with matplotlib: the look that all share, SVG for pages, and the two pictures of a task's results.

An SVG takes its colours from CSS variables of the page around it (with fallbacks, so that it also
stands alone), and its text is text, so that one picture serves light and dark.
"""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from albertkit.errors import requires_package
from albertkit.files import atomic_file

# Okabe and Ito's palette (2008): told apart with every common colour blindness, and blue and orange
# also in grey.
INK, MUTED, GRID = "#1f2328", "#656d76", "#d8dee4"
TRAIN, EVALUATION, BASELINE = "#0072b2", "#d55e00", "#656d77"
CSS_COLOURS = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    TRAIN: "--train",
    EVALUATION: "--evaluation",
    BASELINE: "--baseline",
}

# More classes than this are drawn without their counts, which would not be legible
MAX_CLASSES_WITH_COUNTS = 15
MAX_POINTS = 2_000  # of a scatter plot on a page: half a megabyte
NAME_WIDTH = 24


@dataclass(frozen=True)
class Look:
    """Size of a picture in inches, and of its letters in points."""

    width: float
    height: float
    font_size: float = 10.0
    narrow: bool = False


def wide_and_narrow_looks(height: float, narrow_height: float) -> tuple[Look, Look]:
    """Return the looks of one picture on a desk and on a telephone: the same letters on a smaller picture."""
    return Look(8.0, height), Look(4.2, narrow_height, narrow=True)


def matplotlib_modules() -> Any:
    """Return matplotlib with the modules that draw, or raise `not-installed`."""
    with requires_package("matplotlib", "report", "drawing a picture"):
        import matplotlib
        import matplotlib.colors
        import matplotlib.figure
        import matplotlib.ticker
    return matplotlib


@contextmanager
def new_figure(look: Look, draw: Callable[[Any, Look], None]) -> Iterator[Any]:
    """Yield a matplotlib figure that `draw` has filled. Names come from files: no text is read as mathematics.

    It is saved within the block: text takes the fonts of the style when it is laid out.
    """
    matplotlib = matplotlib_modules()
    style = {
        "font.family": "sans-serif", "font.size": look.font_size, "text.color": INK, "axes.labelcolor": INK,
        "axes.edgecolor": MUTED, "xtick.color": MUTED, "ytick.color": MUTED, "axes.spines.top": False,
        "axes.spines.right": False, "axes.linewidth": 0.8, "axes.axisbelow": True, "legend.frameon": False,
        "legend.fontsize": look.font_size - 1, "xtick.labelsize": look.font_size - 1, "text.parse_math": False,
        "ytick.labelsize": look.font_size - 1, "lines.solid_capstyle": "round", "figure.facecolor": "white",
        "path.simplify_threshold": 1.0,  # pixels: a curve of 100,000 steps is 70 kB in place of 460
    }  # fmt: skip
    with matplotlib.rc_context(style):
        figure = matplotlib.figure.Figure(figsize=(look.width, look.height), layout="constrained")
        draw(figure, look)
        yield figure


def save_png(look: Look, draw: Callable[[Any, Look], None], out: str | Path) -> Path:
    """Write a figure: the same bytes every time."""
    with new_figure(look, draw) as figure, atomic_file(out) as stream:
        figure.savefig(stream, format="png", dpi=150, metadata={"Software": None})
    return Path(out)


def draw_page_svg(look: Look, draw: Callable[[Any, Look], None], name: str, alt_text: str) -> str:
    """Return a figure as SVG for a page: no identifiers that clash, no dates, the same bytes every time.

    Args:
        look: Its size.
        draw: Fills the empty figure.
        name: No other picture of the page has it.
        alt_text: What it shows, for those who do not see it.
    """
    matplotlib = matplotlib_modules()
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": f"albertkit {name} {look.width}"}
    ):
        stream = io.StringIO()
        with new_figure(look, draw) as figure:
            figure.savefig(
                stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
            )
    svg = stream.getvalue()
    # Only the element itself, with the page's colours and font, and no names that clash.
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Its "*" would style the whole page
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    # "axes_1" would be there twice; nothing refers to groups
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = svg.replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "").replace(
        "xlink:href=",
        "href=",
    )
    svg = re.sub(r'<svg ([^>]*?)width="[^"]*"', r"<svg \1", svg, count=1)
    svg = re.sub(r'<svg ([^>]*?)height="[^"]*"', r"<svg \1", svg, count=1)
    svg = svg.replace(
        "<svg ",
        f'<svg role="img" stroke-linejoin="round" aria-label="{escape(alt_text)}" ',
        1,
    )
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1; font-family: inherit", svg)
    for colour, variable in CSS_COLOURS.items():
        svg = svg.replace(colour, f"var({variable}, {colour})")
    return re.sub(r"\s*\n\s*", " ", svg).replace("> <", "><").strip()


def plot_confusion(
    names: Sequence[str],
    counts: Sequence[Sequence[int]],
    out: str | Path,
    title: str = "",
) -> Path:
    """Draw a confusion matrix as PNG; the colour is the share of the label's examples.

    Args:
        names: Names of the C classes.
        counts: C rows (labels) of C counts (predictions).
        out: The PNG to write.
        title: Above the picture.
    """
    import numpy as np

    table = np.array(counts)
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    has_counts = len(names) <= MAX_CLASSES_WITH_COUNTS
    side = 2.6 + min(len(names), 60) * (0.62 if has_counts else 0.2)
    half = NAME_WIDTH // 2  # of a name that is cut: in the middle, because names often begin alike
    ticks = [
        name if len(name) <= NAME_WIDTH else f"{name[:half]}…{name[1 - half :]}" for name in names
    ]
    size = 9 if has_counts else 6

    def draw(figure: Any, _: Look) -> None:
        axis = figure.subplots()
        colours = matplotlib_modules().colors.LinearSegmentedColormap.from_list(
            "",
            ["white", TRAIN],
        )
        picture = axis.imshow(shares, cmap=colours, vmin=0, vmax=1)
        upright = max(map(len, ticks)) <= 8 and has_counts
        axis.set_xticks(
            range(len(ticks)),
            ticks,
            rotation=0 if upright else 90,
            fontsize=size,
            parse_math=False,
        )
        axis.set_yticks(range(len(ticks)), ticks, fontsize=size, parse_math=False)
        axis.set(xlabel="predicted", ylabel="label")
        axis.tick_params(length=0, colors=INK)
        for (row, column), count in np.ndenumerate(table) if has_counts else ():
            ink = INK if count else MUTED
            if shares[row, column] > 0.55:
                ink = "white"
            axis.text(column, row, f"{count:,}", ha="center", va="center", color=ink, fontsize=size)
        bar = figure.colorbar(
            picture,
            ax=axis,
            shrink=0.7,
            format=matplotlib_modules().ticker.PercentFormatter(1),
        )
        bar.outline.set_visible(False)
        bar.set_label("of the label's examples")
        draw_heading(axis, title, f"{int(table.trace()):,} of {int(table.sum()):,} right")
        figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)

    return save_png(Look(side + 0.6, side), draw, out)


def plot_regression(pairs: Sequence[Sequence[float]], out: str | Path, title: str) -> Path:
    """Draw predictions over labels as PNG.

    Args:
        pairs: Label and prediction of each example.
        out: The PNG to write.
        title: Above the picture.
    """

    def draw(figure: Any, _: Look) -> None:
        axis = figure.subplots()
        count = _draw_scatter_and_count_points(axis, pairs)
        axis.legend(loc="upper left")
        draw_heading(axis, title, f"{count:,} examples")
        figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)

    return save_png(Look(5.6, 5.6), draw, out)


def scatter_svgs(pairs: Sequence[Sequence[float]]) -> list[str]:
    """Return predictions over labels, at most `MAX_POINTS` of them taken evenly, for a desk and for a telephone."""
    sample = pairs[:: -(-len(pairs) // MAX_POINTS)]

    def draw(figure: Any, _: Look) -> None:
        _draw_scatter_and_count_points(figure.subplots(), sample)

    return [
        draw_page_svg(look, draw, "scatter", "Predictions over labels")
        for look in wide_and_narrow_looks(5.0, 3.6)
    ]


def draw_heading(axis: Any, title: str, description: str) -> None:
    """Write a title and a line of description above a picture."""
    axis.set_title(description, loc="left", fontsize=9.5, color=MUTED, pad=10)
    if title:
        axis.annotate(
            title, (0, 1), xycoords="axes fraction", xytext=(0, 28), textcoords="offset points", fontsize=13,
            fontweight="bold", parse_math=False,
        )  # fmt: skip


def _draw_scatter_and_count_points(axis: Any, pairs: Sequence[Sequence[float]]) -> int:
    """Draw the points that are numbers, and return how many they are."""
    import numpy as np

    points = np.array(pairs, np.float64).reshape(-1, 2)
    points = points[np.isfinite(points).all(1)]
    low, high = (float(points.min()), float(points.max())) if len(points) else (0.0, 1.0)
    margin = 0.04 * (high - low or 1.0)
    limits = (low - margin, high + margin)
    axis.plot(limits, limits, color=BASELINE, linestyle=(0, (5, 3)), linewidth=1.2, label="equal")
    faint = min(0.8, max(0.12, 100 / max(len(points), 1)))
    axis.scatter(*points.T, s=14, color=TRAIN, alpha=faint, linewidths=0)
    axis.set(xlim=limits, ylim=limits, aspect="equal", xlabel="label", ylabel="predicted")
    axis.grid(color=GRID, linewidth=0.7)
    return len(points)
