"""Rows of many benchmarks as one page of Markdown."""

from collections.abc import Sequence
from typing import Any

HEAD = """# Measured

Written by `albertkit bench all`: every row with its command. *ours / theirs* is the median of the ratios within rounds, everybody
having run once a round; more is better everywhere. *Spread* is (slowest - fastest) / median over the rounds.
"""


def render(measured: Sequence[dict[str, Any]]) -> str:
    """The page.

    Args:
        measured: Fields of `Measured`, one a command.
    """
    return HEAD + "".join(_section(one) for one in measured)


def _section(one: dict[str, Any]) -> str:
    lines = ["", f"## {one['name']}", "", f"`{one['command']}`", ""]
    lines.append(f"{one['when']} UTC, {one['seconds'] / 60:.1f} minutes, commit {one['commit']}{_machine(one['rows'])}")
    if one["failed"]:
        lines += ["", f"**Failed**: {one['failed']}."]
    for row in one["rows"]:
        lines += _row(row)
    return "\n".join(lines) + "\n"


def _machine(rows: Sequence[dict[str, Any]]) -> str:
    """Processor and versions, the same for all rows of a command."""
    if not rows:
        return "."
    versions = {name: version for row in rows for name, version in row["versions"].items()}
    machine, cores = versions.pop("machine", "an unknown processor"), versions.pop("cores", "?")
    return f", {cores} cores of {machine}; " + ", ".join(f"{name} {value}" for name, value in versions.items()) + "."


def _row(row: dict[str, Any]) -> list[str]:
    lines = ["", f"**{_cell(row['row'])}** ({row['unit']}, {row['rounds']} rounds)", ""]
    lines += ["| who | median | best | spread | ours / theirs |", "|---|---|---|---|---|"]
    lines.append(
        f"| albertkit | {_number(row['ours'])} | {_number(row['best']['ours'])} | {row['spread']['ours']:.0%} | |"
    )
    for name, value in row["peers"].items():
        best, spread, ratio = row["best"][name], row["spread"][name], row["ratio"][name]
        lines.append(f"| {_cell(name)} | {_number(value)} | {_number(best)} | {spread:.0%} | **{ratio:.2f}x** |")
    if row["peak"] is not None:
        lines.append(
            f"| machine's measured peak | {_number(row['peak'])} | | | {row['ours'] / row['peak']:.0%} reached |"
        )
    lines += [f"| {_cell(name)} | took no part: {_cell(why)} | | | |" for name, why in row["missing"].items()]
    if row["equal"] is not None:
        lines += ["", f"Equal: {'yes' if row['equal'] else '**NO**'}. {_cell(row['compared'])}"]
    if row["note"]:
        lines += ["", _cell(row["note"])]
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
