"""Write sections to a terminal, an HTML page, Markdown or a model card. Every text is escaped for where it goes."""

import io
import json
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from albertkit.files import StrPath, check_page_file, write_file
from albertkit.output.sections import (
    Bars,
    Commands,
    FactList,
    Figure,
    Highlights,
    Panel,
    Paragraph,
    Section,
    TableSection,
    Tone,
    are_numeric_cells,
    format_percent,
    format_value,
    is_empty,
)
from albertkit.printable import escape_control_characters, escape_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text as RichText

BAR_WIDTH = 30
# A column of text is not folded to fewer characters: a row then becomes lines of its own
MIN_COLUMN_WIDTH = 12
_STYLES = {
    "strong": "bold",
    "muted": "dim",
    "good": "green",
    "bad": "bold red",
    "warning": "yellow",
    "": "",
}
_SIGNS = {"bad": "✗ ", "warning": "! ", "good": "✓ "}


# --- terminal -------------------------------------------------------------------------------------


def print_sections(
    sections: Iterable[Section],
    out: TextIO | None = None,
    width: int | None = None,
) -> None:
    """Print sections: with colours in a terminal, as plain text into a file or a pipe.

    Args:
        sections: To print, an empty line between them.
        out: Default: standard output.
        width: Columns. Default: the terminal's; a file has no limit.
    """
    from rich.console import Console

    out = out or sys.stdout
    plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
    plain["force_jupyter"] = False  # in a notebook rich would write HTML past `out`
    console = Console(file=out, width=width, **plain)
    in_file = not console.is_terminal
    if in_file:
        # Lines of a file are for programs and are not folded.
        console = Console(file=io.StringIO(), width=width or 10_000, **plain)
    for number, section in enumerate(section for section in sections if not is_empty(section)):
        if number:
            console.print()
        _print_section(section, console)
    if in_file:
        # rich fills the last column up with blanks.
        out.writelines(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())  # type: ignore[attr-defined]


def _rich_text(text: str, style: str = "") -> "RichText":
    from rich.text import Text as RichText

    return RichText(escape_line(text), style)


def _print_section(section: Section, console: "Console") -> None:
    def say(text: str, style: str = "") -> None:
        console.print(_rich_text(text, style))

    if section.title and not isinstance(section, Commands):
        say(section.title, "bold")
    match section:
        case FactList():
            _print_name_value_rows(section.rows(), console)
        case TableSection():
            _print_table(section, console)
            if section.note:
                say(section.note, "dim")
        case Paragraph():
            line = _rich_text(_SIGNS.get(section.tone, ""), _STYLES[section.tone])
            # Code keeps its lines.
            escape = escape_line if section.form == "prose" else escape_control_characters
            for span in section.spans():
                line.append(escape(span.text), _STYLES[span.tone or section.tone])
                line.append(_rich_text(f" {span.label}" if span.label else "", "dim"))
            if section.text:
                console.print(line, soft_wrap=section.form == "code")
        case Figure():
            say(section.caption or "(a picture, on the page)", "dim")
        case Bars():
            rows = []
            for bar in section.bars:
                name, share = (
                    _rich_text(text, _STYLES[bar.tone])
                    for text in (f"  {bar.label}", f"{bar.share:6.1%}")
                )
                rows.append((name, share, "█" * round(BAR_WIDTH * bar.share)))
            console.print(_rich_table([], rows, [False, True, False]))
        case Highlights():
            for highlight in section.numbers:
                number = " ".join(part for part in (highlight.text, highlight.unit) if part)
                say(f"{highlight.name}: {number}{f' ({highlight.note})' if highlight.note else ''}")
        case Commands():
            say(f"{section.title}:")
            widest = max((len(command) for command, _ in section.commands), default=0)
            for command, purpose in section.commands:
                line = _rich_text(f"  {command:<{widest}}")
                console.print(line.append(_rich_text(f"  {purpose}", "dim")), soft_wrap=True)
        case Panel():
            for inner in section.sections:
                _print_section(inner, console)


def _print_name_value_rows(rows: Sequence[tuple[str, str]], console: "Console") -> None:
    """Print names with their values; a long value is folded beside its name, or below it where there is no room."""
    from rich.cells import cell_len

    widest = max((cell_len(name) for name, _ in rows), default=0)
    if console.width - widest - 2 < MIN_COLUMN_WIDTH:
        for name, text in rows:
            console.print(_rich_text(name, "dim") + ": " + _rich_text(text))
        return
    console.print(
        _rich_table(
            [],
            [(_rich_text(name, "dim"), escape_line(text)) for name, text in rows],
            [False, False],
        )
    )


def _print_table(table: TableSection, console: "Console") -> None:
    to_right = table.numeric_columns()
    cells = []
    for number, table_row in enumerate(table.cells()):
        tone: Tone = "strong" if number == table.strong else ""
        cells.append([_rich_text(cell.value, _STYLES[cell.tone or tone]) for cell in table_row])
    # Texts may be folded, numbers may not. Where even that is too wide, each row becomes lines.
    min_width = 0
    for column, (head, right) in enumerate(zip(table.columns, to_right, strict=True)):
        widths = [
            row[column].cell_len if right else min(row[column].cell_len, MIN_COLUMN_WIDTH)
            for row in cells
        ]
        min_width += 2 + max([0, *widths, *(len(word) for word in head.split())])
    if min_width <= console.width + 2:
        console.print(_rich_table(table.columns, cells, to_right))
        return
    for number, row in enumerate(cells):
        if number:
            console.print()
        for head, value in zip(table.columns, row, strict=True):
            console.print(_rich_text(f"{head}: " if head else "", "dim") + value)


def _rich_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[Any]],
    right_aligned: Sequence[bool],
) -> "RenderableType":
    from rich.table import Table as RichTable

    table = RichTable(
        box=None,
        padding=(0, 2, 0, 0),
        header_style="dim",
        show_header=any(headers),
        pad_edge=False,
    )
    for column, right in enumerate(right_aligned):
        head = _rich_text(headers[column]) if headers else ""
        table.add_column(head, justify="right" if right else "left", no_wrap=right, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


# --- HTML -----------------------------------------------------------------------------------------


@cache
def page_environment() -> Any:
    """Return Jinja2 with every mistake an error and HTML escaped: texts come from corpora."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("albertkit.output", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"clean": escape_control_characters, "percent": format_percent}
    environment.tests["empty"] = is_empty
    return environment


def to_page(
    title: str,
    sections: Iterable[Section],
    subtitle: str = "",
    warnings: Sequence[str] = (),
    footer: str = "",
) -> str:
    """Return a whole HTML page that needs nothing else, for light and dark, for wide and narrow screens."""
    template = page_environment().get_template("page.html.j2")
    return str(
        template.render(
            title=title,
            sections=list(sections),
            subtitle=subtitle,
            warnings=warnings,
            footer=footer,
        )
    )


def write_page(
    file: str | Path,
    title: str,
    sections: Iterable[Section],
    subtitle: str = "",
    warnings: Sequence[str] = (),
    footer: str = "",
) -> Path:
    """Write such a page and return its file."""
    page = check_page_file(file)
    text = to_page(title, sections, subtitle, warnings, footer)
    write_file(page, text)
    return page


# --- Markdown -------------------------------------------------------------------------------------


def to_markdown(sections: Iterable[Section], level: int = 2) -> str:
    """Return sections as Markdown, as the model hubs show it.

    Args:
        sections: Empty tables and facts are left out together with their headings.
        level: Of the headings.
    """
    parts = []
    for section in sections:
        if is_empty(section):
            continue
        if section.title:
            parts.append(f"{'#' * level} {escape_markdown(section.title)}")
        match section:
            case FactList():
                rows = [
                    (f"`{name}`" if section.exact else escape_markdown(name), escape_markdown(text))
                    for name, text in section.rows()
                ]
                body = _markdown_table(
                    ["", ""],
                    rows,
                    [False, are_numeric_cells([text for _, text in section.rows()])],
                )
            case TableSection():
                texts = [
                    [escape_markdown(table_cell.value) for table_cell in row]
                    for row in section.cells()
                ]
                body = _markdown_table(
                    [escape_markdown(head) for head in section.columns],
                    texts,
                    section.numeric_columns(),
                )
                body += f"\n\n{escape_markdown(section.note)}" if section.note else ""
            case Paragraph():
                labelled = (
                    span.text + (f" ({span.label})" if span.label else "")
                    for span in section.spans()
                )
                text = escape_control_characters("".join(labelled))
                body = text if section.form == "markdown" else escape_markdown(text)
                if section.form in ("code", "source"):
                    longest = max((len(run) for run in re.findall("`+", text)), default=0)
                    # Longer than any run of backticks inside, which would end the block
                    fence = "`" * max(3, longest + 1)
                    body = f"{fence}{section.language}\n{text}\n{fence}"
            case Figure():
                body = escape_markdown(section.caption)
            case Bars():
                body = _markdown_table(
                    ["", ""],
                    [
                        (escape_markdown(bar.label), format_percent(bar.share))
                        for bar in section.bars
                    ],
                    [False, True],
                )
            case Highlights():
                lines = []
                for number in section.numbers:
                    name, text, unit, note = map(
                        escape_markdown,
                        (number.name, number.text, number.unit, number.note),
                    )
                    lines.append(f"- {name}: **{text}** {unit} {note}".rstrip())
                body = "\n".join(lines)
            case Commands():
                body = "\n".join(
                    f"- {escape_markdown(purpose)}:\n\n      {command}"
                    for command, purpose in section.commands
                )
            case Panel():
                body = to_markdown(section.sections, level + 1).rstrip()
        parts.append(body)
    return "\n\n".join(parts) + "\n"


def _markdown_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    right_aligned: Sequence[bool],
) -> str:
    lines = [headers, ["--:" if right else "---" for right in right_aligned], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escape_markdown(value: Any) -> str:
    """Return a value for Markdown, also inside a table: one line, and nothing in it ends the cell or starts HTML."""
    text = (
        escape_control_characters(" ".join(format_value(value).split()))
        # Before `<`, whose replacement has one
        .replace("&", "&amp;")
        .replace(
            "<",
            "&lt;",
        )
    )
    return "".join("\\" + letter if letter in "\\`*_[]|" else letter for letter in text)


# --- model cards ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Card:
    """A model card.

    Attributes:
        name: Heading.
        fields: The hub's metadata.
        sections: The content; sections without any are left out.
    """

    name: str
    fields: Mapping[str, Any]
    sections: Sequence[Section]

    def text(self) -> str:
        """Return YAML front matter, then Markdown."""
        lines = ["---"]
        for key, value in self.fields.items():
            # Texts in JSON's quotes, which YAML reads, so that `no` stays Norwegian.
            if isinstance(value, list) and all(isinstance(item, str) for item in value):
                lines += [f"{key}:", *(f"- {json.dumps(item)}" for item in value)]
            else:
                lines.append(f"{key}: {json.dumps(value, ensure_ascii=False)}")
        lines += ["---", "", f"# {escape_markdown(self.name)}", "", to_markdown(self.sections)]
        return "\n".join(lines)

    def write(self, folder: StrPath) -> Path:
        """Write `README.md` into a model's folder and return the file."""
        text = self.text()
        file = Path(folder) / "README.md"
        write_file(file, text)
        return file


def hub_metadata(pipeline_tag: str) -> dict[str, Any]:
    """Return the metadata that a hub reads; `pipeline_tag` is its name of what the model does."""
    return {
        "library_name": "transformers",
        "pipeline_tag": pipeline_tag,
        "tags": ["albert", "albertkit", pipeline_tag],
    }


def package_versions() -> dict[str, str]:
    """Return package to version, Python first."""
    from importlib.metadata import version  # brings email and zipfile, which no other command needs

    packages = ("albertkit", "torch", "numpy", "numba", "sentencepiece")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def settings_sections(
    settings: Mapping[str, Any], versions: Mapping[str, str] | None
) -> list[Section]:
    """Return the end of every card: the settings of the training, and the versions that it ran with."""
    sections: list[Section] = [FactList(settings, "Settings", exact=True)]
    if versions:
        text = ", ".join(f"{package} {version}" for package, version in versions.items())
        sections.append(Paragraph(f"{text}.", "Versions"))
    return sections


def code_block(text: str, language: str = "python", title: str = "") -> Paragraph:
    """Return a block of code."""
    return Paragraph(text, title, form="code", language=language)


def python_literal(text: str) -> str:
    """Return a text as a literal of Python."""
    # JSON's texts are Python's, too.
    return json.dumps(text)
