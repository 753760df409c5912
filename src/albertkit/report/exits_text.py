"""The curve of early exit as a table for people."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table


def print_exits(curve: Mapping[str, Any]) -> None:
    """Print what every rule costs and saves.

    Args:
        curve: Of `albertkit.tasks.exit_curve.ExitCurve.to_dict`.
    """
    full = curve["points"][0]
    table = Table(title=f"{curve['task']}, {curve['examples']:,} examples, {curve['precision']}", title_justify="left")
    for name in ("leave at", curve["metric"], "change", "passes", "speed", "left after pass 1, 2, …"):
        table.add_column(name, justify="left" if name in ("leave at", "left after pass 1, 2, …") else "right")
    for point in curve["points"]:
        table.add_row(
            point["rule"], f"{point['value']:.4f}", f"{point['value'] - full['value']:+.4f}", f"{point['passes']:.2f}",
            f"{point['speed']:.2f}x", " ".join(map(str, point["histogram"])),
            style="bold" if point["rule"] == curve["best"] else "",
        )  # fmt: skip
    console = Console(highlight=False)
    console.print(table)
    speeds = {point["rule"]: point["speed"] for point in curve["points"]}
    if not curve["best"]:
        console.print(f"every rule loses more than {curve['allowed']:g}")
    elif speeds[curve["best"]] <= 1:
        console.print(
            f"no rule that loses at most {curve['allowed']:g} is faster than all passes: leave early exit off"
        )
    else:
        console.print(f"fastest that loses at most {curve['allowed']:g}: {curve['best']}")
