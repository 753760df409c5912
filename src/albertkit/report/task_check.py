"""How the check of a task's data is shown in a terminal."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.table import Table

BAR_WIDTH = 40
MOST_LABELS = 30


def print_check(check: Mapping[str, Any], out: TextIO | None = None) -> None:
    """Print what `check_data` found: lengths, labels, a histogram of lengths, and what to look at.

    Args:
        check: `CheckReport.to_dict()`.
        out: Where to; standard output by default.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(file=out or sys.stdout, highlight=False)
    console.print(Text.assemble((check["task"], "bold"), f"  {check['length']} tokens at most"))
    for table in (_split_table(check), _label_table(check["splits"])):
        console.print()
        console.print(table)
    for line in _histogram(check["splits"]["train"]["histogram"], check["length"]):
        console.print(line, style="dim" if line.startswith("tokens") else "", markup=False)
    console.print()
    if counting := check["counting"]:
        reached = ", ".join(f"{name} {value:.3f}" for name, value in counting.items() if name != "majority")
        largest = f" (the largest class: {counting['majority']:.3f})" if "majority" in counting else ""
        console.print(f"to beat: a linear model that counts pieces reaches {reached} on dev{largest}")
    for finding in check["findings"]:
        console.print(Text(f"! {finding}", "yellow"), soft_wrap=True)
    if not check["findings"]:
        console.print("nothing odd was found")


def _split_table(check: Mapping[str, Any]) -> "Table":
    """A column a split, so that it fits into 80 columns."""
    splits = check["splits"]
    table = _table("", *splits)
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("examples", *(f"{split['examples']:,}" for split in splits.values()))
    for key in next(iter(splits.values()))["tokens"]:
        table.add_row(f"tokens, {key}", *(f"{split['tokens'][key]:,}" for split in splits.values()))
    for key, name in (("cut", "cut"), ("windowed", "in windows"), ("repeated", "twice in the split")):
        table.add_row(name, *(_share(split[key], split["examples"]) for split in splits.values()))
    table.add_row("unknown pieces", *(f"{split['unknown']:.2%}" for split in splits.values()))
    shared = [_share(split["in_train"], split["examples"]) if name != "train" else "" for name, split in splits.items()]
    table.add_row("also in train", *shared)
    return table


def _label_table(splits: Mapping[str, Any]) -> "Table":
    table = _table("label", *splits)
    names = list(dict.fromkeys(name for split in splits.values() for name in split["labels"]))
    for label in names[:MOST_LABELS]:
        cells = []
        for split in splits.values():
            value = split["labels"].get(label, 0)
            share = value / max(split["labelled"], 1)
            cells.append(f"{value:g}" if isinstance(value, float) else f"{value:,}  {share:6.1%}")
        table.add_row(label, *cells)
    if len(names) > MOST_LABELS:
        table.add_row(f"and {len(names) - MOST_LABELS:,} more")
    return table


def _histogram(rows: list[tuple[int, int]], length: int) -> list[str]:
    """Bars of the lengths of the training examples; the bound that the task's length is in is marked."""
    most, total = max(count for _, count in rows), sum(count for _, count in rows)
    width = max(len(f"{bound:,}") for bound, _ in rows)
    lines = ["", "tokens of the training examples"]
    below = 0
    for bound, count in rows:
        bar = "█" * round(BAR_WIDTH * count / most) or ("▏" if count else "")
        mark = f"  ← {length}" if below < length <= bound else ""
        lines.append(f"{below + 1:>{width},} to {bound:>{width},}  {count / total:6.1%}  {bar}{mark}")
        below = bound
    return lines


def _share(count: int, of: int) -> str:
    return f"{count:,} ({count / of:.1%})" if count else "0"


def _table(*headings: str) -> "Table":
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    return table
