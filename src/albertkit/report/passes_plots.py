"""Pictures of what passes do, as SVG for a page: how alike states are, how far they move, where heads look."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from albertkit.report.curves import page_svg
from albertkit.report.plots import GRID, HEAT, MUTED, TRAIN

MOST_NUMBERS = 16  # rows or columns; in more cells than that numbers would not be legible


def similarity_svg(similarity: Sequence[Sequence[float]], narrow: bool = False) -> str:
    """The cosine of every state with every other, 0 (the embedding) to L.

    Args:
        similarity: [L+1][L+1].
        narrow: For a telephone.

    Raises:
        MissingExtraError: missing-extra without matplotlib. So do the others here.
    """
    table = np.array(similarity)

    def draw(figure: Any) -> None:
        axis = figure.subplots()
        _heat(axis, table, narrow)
        axis.set_xlabel("after pass")
        axis.set_ylabel("after pass")

    return page_svg(
        draw, "similarity", "Cosine between the states after any two passes", _height(len(table), narrow), narrow
    )


def entropy_svg(entropy: Sequence[Sequence[float]], uniform: float, narrow: bool = False) -> str:
    """Entropy of every head in every pass, as a share of that of looking everywhere alike.

    Args:
        entropy: [L][A], nats.
        uniform: Nats.
        narrow: For a telephone.
    """
    shares = np.array(entropy) / uniform

    def draw(figure: Any) -> None:
        axis = figure.subplots()
        _heat(axis, shares, narrow, first=1)
        axis.set_xlabel("head")
        axis.set_ylabel("in pass")

    return page_svg(draw, "entropy", "Entropy of attention by pass and head", _height(len(shares), narrow), narrow)


def movement_svg(passes: Mapping[str, Any], narrow: bool = False) -> str:
    """Over the passes: the step, its turn, and how alike different tokens become.

    Args:
        passes: `step`, `turn` and `anisotropy`, as `albertkit.inference.passes.Passes` has them.
        narrow: For a telephone.
    """
    last = len(passes["step"])
    panels = (
        ("step,\nof the length", range(1, last + 1), passes["step"], 0.0),
        ("turn\n(cosine)", range(2, last + 1), passes["turn"], None),
        ("two tokens\n(cosine)", range(last + 1), passes["anisotropy"], 0.0),
    )

    def draw(figure: Any) -> None:
        axes = figure.subplots(len(panels), 1, sharex=True)
        for axis, (name, places, values, bottom) in zip(axes, panels, strict=True):
            axis.plot(places, values, color=TRAIN, linewidth=1.8, marker="o", markersize=4)
            axis.set_ylabel(name)
            axis.grid(axis="y", color=GRID, linewidth=0.7)
            if bottom is None:
                axis.axhline(0, color=MUTED, linewidth=0.8)
            else:
                axis.set_ylim(bottom=min(bottom, *values) * 1.1, top=max(values) * 1.12 or 1)
        axes[-1].set_xticks(range(0, last + 1, 1 if last <= MOST_NUMBERS else 2))
        axes[-1].set_xlabel("after pass")
        figure.align_ylabels(axes)

    return page_svg(
        draw, "movement", "Step, turn and likeness of tokens over the passes", 4.8 if narrow else 5.6, narrow
    )


def _heat(axis: Any, values: np.ndarray, narrow: bool, first: int = 0) -> None:
    """Cells of one colour, fainter where the value is lower: the page's own background shows through, light or dark.

    Args:
        axis: matplotlib's.
        values: [rows, columns]; 0 is invisible, 1 and above full.
        narrow: For a telephone.
        first: Number of the first row; columns begin at 0 if rows do, else at 1.
    """
    from matplotlib.collections import PatchCollection
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Rectangle

    rows, columns = values.shape
    cells = [Rectangle((x, y), 1, 1) for y in range(rows) for x in range(columns)]
    colours = [to_rgba(HEAT, alpha) for alpha in np.clip(values, 0, 1).ravel()]
    axis.add_collection(PatchCollection(cells, facecolors=colours, edgecolors="none"))
    axis.set(xlim=(0, columns), ylim=(rows, 0))
    if max(rows, columns) <= MOST_NUMBERS:
        size = 6.5 if narrow else 8.5
        for (y, x), value in np.ndenumerate(values):
            axis.text(x + 0.5, y + 0.5, _short(value), ha="center", va="center", fontsize=size)
    for set_ticks, count, begin in ((axis.set_xticks, columns, 1 if first else 0), (axis.set_yticks, rows, first)):
        every = 1 if count <= MOST_NUMBERS else 2 if count <= 2 * MOST_NUMBERS else 8
        shown = range(0, count, every)
        set_ticks([place + 0.5 for place in shown], [str(place + begin) for place in shown])
    axis.tick_params(length=0)
    for side in axis.spines.values():
        side.set_visible(False)


def _short(value: float) -> str:
    """.95, 1 and -.2: two decimals in little room."""
    text = f"{value:.2f}".replace("0.", ".", 1)
    return {"1.00": "1", ".00": "0", "-.00": "0"}.get(text, text)


def _height(rows: int, narrow: bool) -> float:
    """Inches of a picture with so many rows of cells."""
    return 0.7 + rows * min(0.28 if narrow else 0.38, 7 / rows)
