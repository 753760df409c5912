"""Rows as a person reads them, or as one JSON object a line."""

import json
from collections.abc import Iterable, Sequence

from albertkit.benchmarks.harness import Row


def show(rows: Iterable[Row], as_json: bool) -> None:
    """Print each row as soon as it is measured.

    Args:
        rows: Rows, possibly still being measured.
        as_json: One JSON object a line instead of tables.
    """
    for row in rows:
        if as_json:
            print(json.dumps(row.to_json(), ensure_ascii=False), flush=True)
        else:
            _table(row)


def show_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose first row is the heading and whose other columns stand right."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for number, heading in enumerate(rows[0]):
        table.add_column(heading, justify="right" if number else "left")
    for row in rows[1:]:
        table.add_row(*row)
    Console().print(table)


def _table(row: Row) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    table = Table(
        title=escape(f"{row.row}   [{row.unit}, {row.rounds} rounds]"), title_justify="left", title_style="bold"
    )
    table.add_column("who")
    for heading in ("median", "best", "spread", "ours / theirs"):
        table.add_column(heading, justify="right")
    table.add_row(
        "[bold]albertkit", f"[bold]{_number(row.ours)}", _number(row.best["ours"]), f"{row.spread['ours']:.0%}", ""
    )
    for name, value in row.peers.items():
        ratio = f"{row.ratio[name]:.2f}x"
        table.add_row(escape(name), _number(value), _number(row.best[name]), f"{row.spread[name]:.0%}", ratio)
    for name in row.missing:
        table.add_row(f"[dim]{escape(name)}", "[dim]missing", "", "", "")
    if row.peak is not None:
        table.add_row("machine's measured peak", _number(row.peak), "", "", f"{row.ours / row.peak:.0%} reached")
    console.print(table)
    if row.equal is not None:
        console.print(f"equal: {'yes' if row.equal else '[bold red]NO'}. {escape(row.compared)}")
    if row.note:
        console.print(escape(row.note), style="dim")
    for key, value in row.to_json()["details"].items():
        console.print(escape(f"{key}: {value}"), style="dim", highlight=False)
    for name, line in row.missing.items():
        console.print(escape(f"missing: {name}; {line}"), style="dim", highlight=False)
    console.print()


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
