"""What the commands of `albertkit tokenizer` print for people."""

from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from albertkit.tokenizer.check import CheckReport
    from albertkit.tokenizer.report import TextFit
    from albertkit.vocabulary import ExtensionReport, RepairReport, TrainingReport


def show_training(report: "TrainingReport") -> None:
    """A trained tokenizer."""
    say = Console(highlight=False, soft_wrap=True).print
    say(f"{report.vocab_size:,} pieces in {escape(report.out)} (text rules: {report.text_rules})")
    say(f"longest: {escape(' '.join(report.longest_pieces))}")
    show_fits({"held out": report.held_out})


def show_extension(report: "ExtensionReport") -> None:
    """An extended tokenizer."""
    say = Console(highlight=False, soft_wrap=True).print
    say(f"{report.vocab_size:,} pieces in {escape(report.out)}, {report.old_size:,} of them as before")
    say(
        f"new: {report.characters:,} characters, {report.words:,} given, {report.found:,} found, {report.unused:,} unused"
    )
    for reason, words in report.left_out.items():
        say(f"left out, {reason}: {escape(' '.join(words))}")
    if report.model_class:
        other = f", {report.taken_over:,} from another model" if report.taken_over else ""
        say(f"{report.model_class} with rows for them ({report.rows}{other}); old rows are the same bit for bit")
    show_fits({"before": report.before, "after": report.after})
    say(
        f"tokenizer.json, as transformers loads it: {report.compared - report.differing:,} of {report.compared:,} lines the same"
    )


def show_repair(report: "RepairReport") -> None:
    """A renumbered model."""
    say = Console(highlight=False, soft_wrap=True).print
    say(f"{report.vocab_size:,} pieces in {escape(report.out)}")
    for name, (old, new) in report.moved.items():
        say(f"  {escape(name):<8} {old:>6,} to {new}")
    say(f"ids of {report.compared} texts are the same up to the renumbering")
    if report.model_class:
        say(f"{report.model_class}: hidden states of {report.hidden_states} texts are the same bit for bit")


def show_fits(fits: "dict[str, TextFit | None]") -> None:
    """How vocabularies fit lines of text, a column each."""
    columns = {name: fit for name, fit in fits.items() if fit is not None}
    if not columns:
        print("the text is too short to hold lines out and measure on them")
        return
    table = Table("", *columns, box=None, pad_edge=False)
    for label, shown in {
        "lines": lambda fit: f"{fit.lines:,}",
        "pieces a word": lambda fit: f"{fit.pieces_a_word:.3f}",
        "unknown pieces": lambda fit: f"{fit.unknown_rate:.3%}",
        "words with an unknown character": lambda fit: f"{fit.unknown_words:.3%}",
        "characters with a piece": lambda fit: f"{fit.character_coverage:.3%}",
        "unknown characters": lambda fit: escape("".join(fit.unknown_characters[:10])),
        "lines that decode to themselves": lambda fit: f"{fit.round_trip:.2%}",
    }.items():
        table.add_row(label, *map(shown, columns.values()))
    Console(highlight=False).print(table)


def show_check(report: "CheckReport") -> None:
    """What was compared, and what differs."""
    console = Console(highlight=False)
    console.print(
        f"[bold]{escape(report.folder)}[/]  {report.kind}, rules {escape(report.text_rules)}, "
        f"{report.vocab_size:,} tokens, {report.fingerprint[:12]}\n"
        f"[dim]{', '.join(f'{name} {version}' for name, version in report.versions.items())}[/]\n",
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False)
    for heading in ("reader", "the same"):
        table.add_column(heading, no_wrap=True)
    table.add_column("because", overflow="fold")
    for found in report.comparisons:
        if found.skipped:
            table.add_row(escape(found.name), "[dim]-[/]", f"[dim]{escape(found.skipped)}[/]")
            continue
        causes = Counter(cause for difference in found.differences for cause in difference.causes)
        color = "green" if not found.differences else "red" if found.own else "yellow"
        table.add_row(
            escape(found.name),
            f"[{color}]{found.compared - len(found.differences)} of {found.compared}[/]",
            ", ".join(f"{escape(name)} {count}" for name, count in causes.most_common()),
        )
    console.print(table)
    for found in report.comparisons:
        shown = found.differences if found.own else found.examples()
        if shown:
            more = len(found.differences) - len(shown)
            note = f"  [dim]an example of each kind; {more} more with --json[/]" if more else ""
            console.print(f"\n[bold]{escape(found.name)}[/]{note}")
        for difference in shown:
            ours, theirs = (" ".join(side) for side in difference.where())
            console.print(
                f"  {escape(repr(difference.text)[:76])}  [dim]{', '.join(difference.causes)}[/]\n"
                f"    [green]{escape(ours[:90])}[/]  but  [yellow]{escape(theirs[:90])}[/]",
                soft_wrap=True,
            )
    cures = report.cures()
    console.print()
    for name, (says, _) in cures.items():
        console.print(f"[bold]{name}[/]: {escape(says)}", soft_wrap=True)
    for cure in dict.fromkeys(cure for _, cure in cures.values()):
        names = ", ".join(name for name, (_, other) in cures.items() if other == cure)
        console.print(f"\nhint ({names}): {escape(cure)}", soft_wrap=True)
    for note in report.cannot_be_right():
        console.print(f"\n[yellow]{escape(note)}[/]", soft_wrap=True)
    console.print("\nall of albertkit's readings agree" if report.ok else "\n[red]albertkit's own readings differ[/]")
