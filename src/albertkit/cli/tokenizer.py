"""`albertkit tokenizer`: train, encode, check, convert."""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from albertkit.tokenizer.check import CheckReport


def train(
    files: Annotated[list[Path], Parameter(consume_multiple=True)],
    /,
    *,
    out: Path,
    vocab_size: int = 30000,
    text_rules: str = "google",
    coverage: float = 0.99995,
    max_sentences: int = 10_000_000,
    seed: int = 0,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """Train a SentencePiece unigram model with ALBERT's special ids.

    Parameters
    ----------
    files
        Plain text, UTF-8, a sentence or paragraph a line; `.gz` accepted.
    out
        Folder to write: `spiece.model`, `tokenizer.json`, `tokenizer_config.json`.
    vocab_size
        Number of pieces, the special ones counted.
    text_rules
        `google` (lower case, no accents), `google-cased`, `google-accents`, `google-cased-accents` (keep what they name),
        `multilingual` (keeps both; composes Hangul) or `none`.
    coverage
        Share of the characters that get a piece.
    max_sentences
        Lines to train on; of more, a sample.
    seed
        Of the sample.
    overwrite
        Replace a tokenizer that lies in the folder.
    json
        Print one JSON object.
    """
    from albertkit.tokenizer import train_tokenizer

    tokenizer = train_tokenizer(
        files, out, vocab_size, coverage, max_sentences, seed, text_rules=text_rules, overwrite=overwrite
    )
    report = {
        "out": str(out),
        "vocab_size": tokenizer.vocab_size,
        "text_rules": text_rules,
        "fingerprint": tokenizer.fingerprint,
    }
    print(_dumps(report) if json else f"{tokenizer.vocab_size:,} pieces in {out} (text rules: {text_rules})")


def encode(
    file: Path = Path("-"),
    /,
    *,
    tokenizer: Path,
    text_rules: str | None = None,
    json: bool = False,
) -> None:
    """Show the pieces and ids of each line of a text.

    Parameters
    ----------
    file
        Plain text, UTF-8, `.gz` accepted. Default: the standard input.
    tokenizer
        Folder that holds one `*.model`, a `vocab.txt`, or a `tokenizer.json`.
    text_rules
        Rules other than those of a SentencePiece tokenizer: `google`, `multilingual`, `none`, …
    json
        Print a JSON object a line: `ids` and `pieces`.
    """
    from albertkit.tokenizer import AlbertTokenizer
    from albertkit.tokenizer.text_files import read_lines

    albert_tokenizer = AlbertTokenizer.from_pretrained(tokenizer, text_rules)
    for line in read_lines(file):
        ids, pieces = albert_tokenizer.encode(line), albert_tokenizer.pieces(line)
        if json:
            print(_dumps({"ids": ids, "pieces": pieces}))
        else:
            print("  ".join(f"{piece} {number}" for piece, number in zip(pieces, ids, strict=True)))
    sys.stdout.flush()


def convert(folder: Path, out: Path, /, *, text_rules: str | None = None) -> None:
    """Write a tokenizer as albertkit and transformers read it, with a `tokenizer.json` that gives the same ids.

    Parameters
    ----------
    folder
        Folder that holds one `*.model`, a `vocab.txt`, or a `tokenizer.json`.
    out
        Folder to write; other files in it are left alone.
    text_rules
        Rules to give a SentencePiece tokenizer: `google`, `multilingual`, `none`, … Default: those it has.
    """
    from albertkit.tokenizer import AlbertTokenizer

    tokenizer = AlbertTokenizer.from_pretrained(folder, text_rules)
    tokenizer.save_pretrained(out)
    print(f"{tokenizer.vocab_size:,} pieces in {out} (rules: {tokenizer.text_rules})")


def check(folder: Path, /, *, json: bool = False) -> int:
    """Compare everything that reads a tokenizer's folder on hard sentences, and say what differs, why, and what to do.

    Exit status 1 if albertkit's own readings or files differ; 0 if only transformers' do.

    Parameters
    ----------
    folder
        A tokenizer's or a model's folder.
    json
        Print one JSON object.
    """
    from albertkit.tokenizer import check_tokenizer

    report = check_tokenizer(folder)
    if json:
        print(_dumps(report.to_dict()))
    else:
        _show(report)
    return 0 if report.ok else 1


def _show(report: "CheckReport") -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    console.print(
        f"[bold]{escape(report.folder)}[/]  {report.kind}, rules {escape(report.text_rules)}, "
        f"{report.vocab_size:,} pieces, {report.fingerprint[:12]}\n"
    )
    table = Table("reader", "the same", "because", box=None, pad_edge=False)
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
    console.print("\nall of albertkit's readings agree" if report.ok else "\n[red]albertkit's own readings differ[/]")


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
