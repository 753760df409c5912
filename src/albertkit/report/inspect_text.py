"""How `albertkit inspect` shows its facts: tables for people, one JSON object for programs."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from albertkit.report.card import ARCHITECTURE
from albertkit.report.inspect import inspect_folder
from albertkit.report.results import flatten
from albertkit.report.sizes import LENGTH, SHARINGS, sizes

if TYPE_CHECKING:
    from rich.table import Table

NAME_WIDTH = 30  # of the longest name in a configuration, indented


def print_inspection(
    source: str | Path | None, length: int | None = None, as_json: bool = False, out: TextIO | None = None
) -> None:
    """Print the facts about a model, or without one the tables of sizes.

    Args:
        source: A checkpoint folder, or None.
        length: As `inspect_folder`.
        as_json: One JSON object.
        out: Where to; standard output by default.
    """
    out = out or sys.stdout
    facts: dict[str, Any] = {"sizes": sizes()} if source is None else inspect_folder(source, length)
    if as_json:
        print(json.dumps(facts, ensure_ascii=False), file=out)
    elif source is None:
        _print_sizes(facts["sizes"], out)
    else:
        _print_model(facts, out)


def model_rows(facts: dict[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """The facts about a model as headings, each with names and texts."""
    config, parameters, flops, memory = facts["config"], facts["parameters"], facts["flops"], facts["memory"]
    stored = [(name, f"{count:,}") for name, count in parameters["parts"].items()]
    stored.append(("total", f"{parameters['total']:,}"))
    if parameters["stored"] != parameters["total"]:
        copies = f"{parameters['stored']:,}: what is shared, once for each of the {config['num_hidden_layers']} layers"
        stored.append(("in the file", copies))
    types = ", ".join(f"{count:,} {name}" for name, count in facts["weights"]["types"].items())
    stored.append((facts["weights"]["file"], f"{bytes_text(facts['weights']['bytes'])} ({types})"))
    folder = [("folder", facts["model"]), ("class", facts["class"] or "not said")]
    if facts["run"]:
        folder.insert(0, ("run", f"{facts['run']}, of which this is {Path(facts['model']).name}/"))
    rows = [
        ("model", folder),
        ("configuration", [(name, _text(config[name])) for name in ARCHITECTURE]),
        ("parameters", stored),
        (
            f"computing, a token in a sequence of {flops['length']}",
            [
                ("forward", f"{_flops(flops['forward_per_token'])}, heads left out"),
                ("pretraining step", f"{_flops(flops['train_per_token'])}, 15 % of the tokens predicted"),
            ],
        ),
        (
            "memory",
            [
                ("weights", f"{bytes_text(memory['load_fp32'])} in fp32, {bytes_text(memory['load_bf16'])} in bf16"),
                (
                    "weights in int8",
                    f"{bytes_text(memory['load_int8'])}: matrices of the layer; tables and heads in fp32",
                ),
                (f"to read {flops['length']} tokens", f"{bytes_text(memory['read_fp32'])} in fp32, weights included"),
                ("to train", f"{bytes_text(memory['train_fp32'])} (weights, gradients, two moments) and activations"),
            ],
        ),
    ]
    tokenizer = facts["tokenizer"]
    known = tokenizer or {"kind": "none"}
    rows.append(("tokenizer", [(name.replace("_", " "), _text(value)) for name, value in known.items()]))
    told = [(name.replace("_", " "), str(value)) for name, value in flatten(facts["provenance"]).items()]
    state = facts["training"] or {}
    told += [(f"trained {name}", _text(state[name])) for name in ("step", "tokens", "seconds") if name in state]
    told.append(("model card", "README.md" if facts["card"] else "none"))
    return [*rows, ("provenance", told)]


def _print_model(facts: dict[str, Any], out: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=out, highlight=False)
    for number, (heading, rows) in enumerate(model_rows(facts)):
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, style="dim", min_width=NAME_WIDTH)
        table.add_column(overflow="fold")
        for name, text in rows:
            table.add_row(f"  {name}", Text(text))
        if number:
            console.print()
        console.print(Text(heading, "bold"))
        console.print(table)
    console.print()
    console.print(_compared_table(facts["compared"], facts["flops"]["length"]))
    console.print("encoder and pooler; unshared: with weights of its own for every layer", style="dim")
    for problem in facts["problems"]:
        console.print()
        console.print(Text(f"! {problem}", "bold red"))


def _compared_table(rows: list[dict[str, Any]], length: int) -> "Table":
    from rich.table import Table

    title = f"beside others, a token in a sequence of {length}"
    table = Table(
        box=None, padding=(0, 2, 0, 0), header_style="dim", title=title, title_style="bold", title_justify="left"
    )
    table.add_column("", min_width=10)
    for heading in ("parameters", "unshared", "sharing saves", "forward"):
        table.add_column(heading, justify="right", no_wrap=True)
    for number, row in enumerate(rows):
        counts = [f"{row[name]:,}" for name in ("parameters", "unshared")]
        saved = f"{row['saved']:.1%}" if row["saved"] else ""
        style = "bold" if number == 0 else ""
        table.add_row(row["name"], *counts, saved, _flops(row["forward_flops_per_token"]), style=style)
    return table


def _print_sizes(rows: list[dict[str, Any]], out: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(file=out, highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    for heading in ("layers", "hidden", "embed", "parameters", "with heads", "paper", "GFLOP"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        counts = [f"{count:,}" if count else "" for count in (row["parameters"], row["with_heads"])]
        shape = [str(row[name]) for name in ("layers", "hidden_size", "embedding_size")]
        gigaflops = f"{row['forward_flops_per_token'] / 1e9:.2f}"
        table.add_row(row["name"], *shape, *counts, row["paper"] or "", gigaflops)
    console.print(table)
    console.print(
        "parameters: encoder and pooler; with heads: masked LM and sentence order too; paper: its table 1. "
        f"GFLOP: forward, a token in a sequence of {LENGTH}. BERT with 30,522 pieces, ALBERT with 30,000.",
        style="dim",
    )
    console.print()
    shared = Table(
        box=None, padding=(0, 2, 0, 0), header_style="dim", title="millions of parameters, by what layers share"
    )
    shared.title_justify, shared.title_style = "left", "bold"
    shared.add_column("")
    for heading in SHARINGS:
        shared.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        if row["sharing"]:
            shared.add_row(row["name"], *(f"{row['sharing'][name] / 1e6:.2f}" for name in SHARINGS))
    console.print(shared)


def _text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def bytes_text(size: int) -> str:
    """Kilobytes, megabytes or gigabytes."""
    if size >= 1e9:
        return f"{size / 1e9:.2f} GB"
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


def _flops(count: float) -> str:
    return f"{count / 1e9:.3g} GFLOP" if count >= 1e8 else f"{count / 1e6:.3g} MFLOP"
