"""What passes do, for people: one HTML page that needs nothing else, and a table in a terminal."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from albertkit.errors import MissingExtraError
from albertkit.files import atomic_file, check_page_file
from albertkit.report.passes_plots import entropy_svg, movement_svg, similarity_svg
from albertkit.report.templates import environment

MUCH_UNKNOWN = 0.1  # of the tokens: what is measured is then no text that the model was made for
TEXT_SHOWN = 160  # characters of each text

Facts = Mapping[str, Any]


def passes_page(title: str, passes: Facts, *, layer: str, texts: Sequence[str] = (), source: str = "") -> str:
    """The page as HTML without any outside resource. Every text is escaped.

    Args:
        title: The model's name.
        passes: As `albertkit.inference.passes.Passes.to_dict`.
        layer: What is run so often, in words.
        texts: What was read.
        source: Where they are from.

    Returns:
        The page's text. Without matplotlib it says how to get the pictures.
    """
    return environment().get_template("passes.html.j2").render(
        title=title, passes=passes, layer=layer, source=source, rows=pass_rows(passes), pictures=_pictures(passes),
        notes=pass_notes(passes), read=read_text(passes), headline=_headline(passes),
        texts=[text if len(text) <= TEXT_SHOWN else f"{text[:TEXT_SHOWN]}…" for text in texts],
    )  # fmt: skip


def write_passes_page(path: str | Path, title: str, passes: Facts, **facts: Any) -> Path:
    """Write the page to a file; arguments are `passes_page`'s.

    Returns:
        The file written.

    Raises:
        ConfigError: bad-argument. DataError: output-exists.
    """
    check_page_file(path)
    text = passes_page(title, passes, **facts)
    with atomic_file(path, "w") as stream:
        stream.write(text)
    return Path(path)


def pass_rows(passes: Facts) -> list[dict[str, Any]]:
    """The figures by state, as text: 0 is the embedding, which no pass has made."""
    similarity, uniform = passes["similarity"], passes["uniform"]
    rows = []
    for number in range(len(similarity)):
        row = {"pass": str(number), "before": "", "step": "", "turn": "", "entropy": ""}
        if number:
            heads = [value / uniform for value in passes["entropy"][number - 1]]
            row |= {
                "before": f"{similarity[number][number - 1]:.3f}",
                "step": f"{passes['step'][number - 1]:.3f}",
                "entropy": f"{sum(heads) / len(heads):.1%} ({min(heads):.1%} to {max(heads):.1%})",
            }
        if number > 1:
            row["turn"] = f"{passes['turn'][number - 2]:.3f}"
        row |= {
            "last": f"{similarity[number][-1]:.3f}",
            "norm": f"{passes['norm'][number]:.2f}",
            "anisotropy": f"{passes['anisotropy'][number]:.3f}",
        }
        rows.append(row)
    return rows


def pass_notes(passes: Facts) -> list[str]:
    """What must be said about the texts."""
    if passes["unknown"] <= MUCH_UNKNOWN:
        return []
    return [
        f"the tokenizer does not know {passes['unknown']:.0%} of the tokens: give texts of the model's language with --text"
    ]


def read_text(passes: Facts) -> str:
    """How much was read, in words."""
    cut = f" ({passes['cut']} of them cut)" if passes["cut"] else ""
    return f"{passes['tokens']:,} tokens of {passes['texts']} text{'s' * (passes['texts'] != 1)}{cut}"


def print_passes(passes: Facts, out: TextIO | None = None) -> None:
    """Print the figures by pass.

    Args:
        passes: As for `passes_page`.
        out: Where to; standard output by default.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=out or sys.stdout, highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    names = {
        "pass": "pass", "before": "cos to\nbefore", "last": "cos to\nlast", "step": "step", "turn": "turn",
        "anisotropy": "cos of\ntokens", "entropy": "attention entropy\n(lowest, highest head)",
    }  # fmt: skip
    for heading in names.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for row in pass_rows(passes):
        table.add_row(*(row[name] for name in names))
    console.print(table)
    console.print(
        f"{read_text(passes)}; pass 0 is the embedding. Step: as a multiple of the state's "
        "length; turn: cosine of a step with the one before; tokens: two different ones; entropy: of looking at all alike.",
        style="dim",
    )
    for note in pass_notes(passes):
        console.print(Text(f"! {note}", "yellow"), soft_wrap=True)


def _headline(passes: Facts) -> dict[str, str]:
    similarity = passes["similarity"]
    return {
        "embedding": f"{similarity[0][-1]:.2f}",
        "last_step": f"{passes['step'][-1]:.0%}",
        "last_cosine": f"{similarity[-1][-2]:.3f}",
        "tokens": f"{passes['anisotropy'][-1]:.2f}",
        "tokens_before": f"{passes['anisotropy'][0]:.2f}",
    }


def _pictures(passes: Facts) -> dict[str, Any]:
    """Each picture wide and narrow, or the reason why there is none."""
    try:
        return {
            "similarity": [similarity_svg(passes["similarity"], narrow) for narrow in (False, True)],
            "movement": [movement_svg(passes, narrow) for narrow in (False, True)],
            "entropy": [entropy_svg(passes["entropy"], passes["uniform"], narrow) for narrow in (False, True)],
        }
    except MissingExtraError as error:
        return {"missing": error.message, "hint": error.hint}
