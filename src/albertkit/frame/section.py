"""Sections to show: facts, tables, texts, figures and a few more kinds of section.

A result returns sections; `frame.rendering` writes them to a terminal, an HTML page, Markdown or JSON. Nothing here knows
what is measured, and no text in a section is markup: renderers escape all of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from albertkit.frame.values import exact_text, flatten, label, plain, value_text

Tone = Literal["", "strong", "muted", "good", "bad", "warning"]


@dataclass(frozen=True)
class Facts:
    """Names with a value each. Values that are None or empty are left out.

    Attributes:
        values: Name to value; nested mappings get dotted names.
        title: Heading; may be empty.
        exact: Show names and values as they are set (settings), instead of with labels, units and separators.
    """

    values: Mapping[str, Any]
    title: str = ""
    exact: bool = False

    def rows(self) -> list[tuple[str, str]]:
        """Return label and text of every value."""
        if self.exact:
            return [(name, exact_text(value)) for name, value in flatten(self.values).items()]
        known = {name: value for name, value in flatten(self.values).items() if not _is_nothing(value)}
        return [(label(name), value_text(value, name)) for name, value in known.items()]


def _is_nothing(value: Any) -> bool:
    """Return whether a value is None, or an empty list, tuple or text."""
    return value is None or (isinstance(value, list | tuple | str) and not value)


@dataclass(frozen=True)
class Cell:
    """One cell of a table that is more than its value.

    Attributes:
        value: Anything.
        tone: How it is marked.
        share: 0 to 1, the strength of the background on a page.
    """

    value: Any
    tone: Tone = ""
    share: float | None = None


@dataclass(frozen=True)
class Table:
    """Rows under headings. The first column names the row; columns of numbers stand to the right.

    Attributes:
        columns: Headings; those that end with a unit's name give the unit, as in `Facts`.
        rows: As many cells each; plain values or `Cell`. None is an empty cell.
        title: Heading; may be empty.
        note: A line below.
        legend: A line below about the backgrounds of cells, which a page alone has.
        strong: Index of a row to emphasise.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    note: str = ""
    strong: int | None = None
    legend: str = ""

    def cells(self) -> list[list[Cell]]:
        """Return every cell with its value as text."""
        return [[self._cell(value, name) for value, name in zip(row, self.columns, strict=True)] for row in self.rows]

    def to_right(self) -> list[bool]:
        """Return for each column whether it holds numbers, or texts that begin with one."""
        columns: Iterable[Sequence[Cell]] = zip(*self.cells(), strict=True) if self.rows else [()] * len(self.columns)
        return [place > 0 and is_numeric([cell.value for cell in column]) for place, column in enumerate(columns)]

    @staticmethod
    def _cell(value: Any, name: str) -> Cell:
        cell = value if isinstance(value, Cell) else Cell(value)
        return Cell("" if cell.value is None else value_text(cell.value, name), cell.tone, cell.share)


def is_numeric(texts: Sequence[str]) -> bool:
    """Return whether all texts are numbers or begin with one; empty ones do not count."""
    known = [text for text in texts if text]
    return all(text[0] in "-+–·.0123456789" or text == "undefined" for text in known) if known else True


@dataclass(frozen=True)
class Span:
    """A part of a text.

    Attributes:
        text: The part.
        tone: How it is marked; strong parts have a background on a page.
        label: A small name behind it, such as the type of an entity.
    """

    text: str
    tone: Tone = ""
    label: str = ""


@dataclass(frozen=True)
class Text:
    """A paragraph.

    Attributes:
        text: The text, or its parts.
        title: Heading; may be empty.
        tone: How it is marked: `warning` and `bad` begin with a sign in a terminal.
        form: `prose`; `code`, kept as it is and copied whole; `source`, a long text that a page folds away; `markdown`, for
            cards, where it is not escaped.
        language: Of code.
    """

    text: str | Sequence[Span]
    title: str = ""
    tone: Tone = ""
    form: Literal["prose", "code", "source", "markdown"] = "prose"
    language: str = ""

    def spans(self) -> Sequence[Span]:
        """Return the parts."""
        return [Span(self.text)] if isinstance(self.text, str) else self.text


@dataclass(frozen=True)
class Figure:
    """A picture.

    Attributes:
        svg: Trusted SVG of our own making, made for a page by `report.plots.for_page`.
        title: Heading; may be empty.
        caption: A line below; all that a terminal and a card show.
        narrow: The same picture for a telephone.
    """

    svg: str
    title: str = ""
    caption: str = ""
    narrow: str = ""


@dataclass(frozen=True)
class Bar:
    """One bar.

    Attributes:
        name: What it is of.
        share: 0 to 1.
        tone: `strong` for the one that was chosen, `good` for the one that is right.
    """

    name: str
    share: float
    tone: Tone = ""


@dataclass(frozen=True)
class Bars:
    """Shares as bars.

    Attributes:
        bars: From top to bottom.
        title: Heading; may be empty.
    """

    bars: Sequence[Bar]
    title: str = ""


@dataclass(frozen=True)
class Highlight:
    """One large number.

    Attributes:
        name: What it is.
        text: The number.
        unit: Behind it, smaller.
        note: Below it.
        share: 0 to 1: drawn on a scale.
        baseline: 0 to 1: marked on that scale.
    """

    name: str
    text: str
    unit: str = ""
    note: str = ""
    share: float | None = None
    baseline: float | None = None


@dataclass(frozen=True)
class Highlights:
    """The few numbers that a reader looks for first.

    Attributes:
        numbers: Side by side.
        title: Heading; may be empty.
    """

    numbers: Sequence[Highlight]
    title: str = ""


@dataclass(frozen=True)
class Commands:
    """Command lines to try, whole, so that they can be copied.

    Attributes:
        commands: Pairs of a command and its purpose.
        title: Heading.
    """

    commands: Sequence[tuple[str, str]]
    title: str = "next"


@dataclass(frozen=True)
class Panel:
    """Sections that belong together, framed on a page: an example with what a model made of it.

    Attributes:
        sections: Inside it.
        title: Heading; may be empty.
    """

    sections: Sequence["Section"] = field(default_factory=tuple)
    title: str = ""


Section = Facts | Table | Text | Figure | Bars | Highlights | Commands | Panel


def is_empty(section: Section) -> bool:
    """Return whether there is nothing to show; then its title is not shown either."""
    match section:
        case Facts():
            return not section.rows()
        case Table():
            return not section.rows
        case Text():
            return not section.text and (not section.title or section.form != "prose")  # a title alone is a heading
        case Bars():
            return not section.bars
        case Highlights():
            return not section.numbers
        case Commands():
            return not section.commands
        case Panel():
            return all(map(is_empty, section.sections))
        case Figure():
            return not section.svg


def to_json(sections: Sequence[Section]) -> list[dict[str, Any]]:
    """Return sections as plain values, each with its kind."""
    shown = []
    for section in sections:
        inner = {"sections": to_json(section.sections)} if isinstance(section, Panel) else {}
        values = {name: value for name, value in vars(section).items() if name != "sections"}
        shown.append({"kind": type(section).__name__.lower(), **plain(values), **inner})
    return shown
