"""Results on stdout: one JSON object, or plain lines for people."""

import json as json_module
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from rich.console import Console
from rich.markup import escape

_MOST_LINES = 5


def print_result(values: dict[str, Any], json: bool) -> None:
    """Print a flat result.

    Args:
        values: Name to value; paths become text.
        json: One JSON object on one line instead of a table.
    """
    if json:
        print(json_module.dumps(values, default=str, ensure_ascii=False))
        return
    shown = dict(_labelled(name, value) for name, value in values.items() if value is not None and value != [])
    width = max(map(len, shown), default=0)
    for name, text in shown.items():
        print(f"{name:<{width}}  {text}")


def _labelled(name: str, value: Any) -> tuple[str, str]:
    """Label and text of a value: its unit stands beside the number, not in the name."""
    label = name.replace("_", " ")
    if isinstance(value, bool) or not isinstance(value, int | float | tuple | list):
        return label, _text(value)
    if isinstance(value, tuple | list):
        shares = name.endswith("_interval") and len(value) == 2
        return label, " to ".join(f"{one:.2%}" for one in value) if shares else _text(value)
    if name.endswith("accuracy") or name in _SHARES:
        return label, f"{value:.2%}"
    if isinstance(value, int):
        return label, _text(value)
    for suffix, text in _UNITS.items():
        if name == suffix or name.endswith(f"_{suffix}"):
            return label.removesuffix(" mb"), text(value)
    if name in _ROUGH or name.endswith(("_per_second", "perplexity")):
        return label, f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return label, _text(value)


def _span(seconds: float) -> str:
    """A time for people: 0.25 s, 42.1 s, 4 min 12 s, 3 h 05 min."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    from albertkit.report.results import duration_text

    return duration_text(seconds)


_SHARES = ("most_guessed", "tokens_used")  # and what ends with `accuracy`: shares of 1 that people read in per cent
_ROUGH = ("epochs",)  # three figures say all
_UNITS: dict[str, Callable[[float], str]] = {
    "hours": lambda value: _span(3600 * value),
    "minutes_used": lambda value: _span(60 * value),
    "seconds": _span,
    "seconds_per_step": _span,
    "mb_per_second": lambda value: f"{value:,.3g} MB/s",
    "mb": lambda value: f"{value:,.0f} MB" if value >= 100 else f"{value:.3g} MB",
}


def print_left_out(lines: Sequence[str], more: str) -> None:
    """Print on stderr what was left out: the first few lines, and how many more there are.

    Args:
        lines: One for each thing.
        more: Where all of them are listed.
    """
    for line in lines[:_MOST_LINES]:
        print(line, file=sys.stderr)
    if len(lines) > _MOST_LINES:
        print(f"and {len(lines) - _MOST_LINES:,} more; {more}", file=sys.stderr)


def print_scores(result: Any, json: bool) -> None:
    """What a model scores on a task.

    Args:
        result: A `FinetuneResult`.
        json: One JSON object on one line instead of tables.
    """
    from albertkit.report.task_results import print_results

    if json:
        print_result(result.to_dict(), json)
        return
    if result.scores:
        print_results(result.results(), result.metric)
        print()
    if result.model:
        print(f"model  {result.model}")


def print_quickstart(values: dict[str, Any], commands: list[tuple[str, str]]) -> None:
    """What the quickstart found, the filled masks, and what to try next."""
    say = Console(highlight=False, soft_wrap=True).print
    gain = values["unigram_loss"] - values["masked_lm_loss"]
    direction = "below" if gain > 0 else "above"
    say()
    say(
        f"masked pieces   loss {values['masked_lm_loss']:.3f} nats, [bold]{abs(gain):.2f} {direction}[/] guessing by frequency "
        f"({values['unigram_loss']:.3f}); {values['masked_lm_accuracy']:.1%} right first time "
        f"(always the most frequent piece: {values['most_frequent_accuracy']:.1%})"
    )
    if values["sentence_order_accuracy"] is not None:
        low, high = values["sentence_order_interval"]
        say(
            f"sentence order  {values['sentence_order_accuracy']:.1%} of {values['sentence_order_count']:,} pairs right "
            f"(95 % interval {low:.1%} to {high:.1%}; a coin: 50 %)"
        )
    say()
    for example in values["examples"]:
        say(escape(example["text"]))
        guesses = ", ".join(f"{piece.removeprefix('▁') or '▁'} {share:.0%}" for piece, share in example["predictions"])
        say(f"  [dim]was[/] [bold]{escape(example['answer'])}[/]  [dim]guesses[/] {escape(guesses)}")
    say()
    say(f"model   {escape(values['model'])}")
    say(f"report  {escape(values['report'])}")
    done = values["pretraining"]
    fewest, most = done["planned"]
    say(
        f"took    {values['seconds']:.0f} seconds, {60 * done['minutes_used']:.0f} of them for {done['steps']:,} updates "
        f"(planned {done['replanned'] + 1} times: {fewest:,} to {most:,})"
    )
    print_next(commands)


def print_next(commands: Sequence[tuple[str, str]]) -> None:
    """Print commands to try next, and what each does."""
    say = Console(highlight=False, soft_wrap=True).print
    width = max(len(command) for command, _ in commands)
    say("\nnext:")
    for command, purpose in commands:
        say(f"  {escape(f'{command:<{width}}')}  [dim]{purpose}[/]")


@contextmanager
def progress_notes() -> Iterator[Callable[[str], None]]:
    """Print lines on stderr as they become known, with a sign of life in a terminal until the context ends."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)

    def note(line: str) -> None:
        console.print(line, markup=False)

    with console.status("measuring …") if console.is_terminal else nullcontext():
        yield note


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, list | tuple):
        is_interval = isinstance(value, tuple) and len(value) == 2
        return (" to " if is_interval else ", ").join(map(_text, value))
    return str(value)
