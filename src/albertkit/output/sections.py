"""Results of commands: plain values for programs, sections for readers; the kinds of sections, and how values are formatted."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Literal

# Shares of 1 shown in per cent, like every name that ends with `accuracy`
_SHARES = ("most_guessed", "tokens_used")
_ROUGH = ("epochs",)  # three figures are enough


def format_value(value: Any, name: str = "") -> str:
    """Return a value for readers.

    Args:
        value: Anything.
        name: Its name. `_seconds`, `_mb`, `_accuracy`, `_interval`, `_per_second` and others at its
            end give the unit.
    """
    if value is None:
        return "–"
    if isinstance(value, bool):  # before `int`, which it is, too
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        if name.endswith("_interval") and len(value) == 2:
            return " to ".join(f"{end:.2%}" for end in value)
        # Two numbers are an interval, two names a list.
        is_interval = isinstance(value, tuple) and len(value) == 2 and not isinstance(value[0], str)
        return (" to " if is_interval else ", ").join(map(format_value, value))
    if not isinstance(value, int | float):
        return str(value)
    if isinstance(value, float) and math.isnan(value):
        # Such as a correlation with predictions that are all the same
        return "undefined"
    if isinstance(value, float) and math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    if name.endswith("accuracy") or name in _SHARES:
        return f"{value:.2%}"
    if isinstance(value, int):
        return f"{value:,}"
    for unit, text in _UNITS.items():
        if name == unit or name.endswith(f"_{unit}"):
            return text(value)
    if name in _ROUGH or name.endswith(("_per_second", "perplexity")):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:,.0f}"


def format_setting(value: Any) -> str:
    """Return a setting as it could be given again: no separators, six figures."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(format_setting, value))
    return format_value(value)


def format_duration(seconds: float) -> str:
    """Return a time span: 0.25 s, 42.1 s, 4 min 12 s, 3 h 05 min."""
    return f"{seconds:.3g} s" if seconds < 60 else format_whole_seconds(seconds)


def format_whole_seconds(seconds: float) -> str:
    """Return a time span in whole seconds: 42 s, 4 min 12 s, 3 h 05 min."""
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    return f"{total // 3600} h {total % 3600 // 60:02d} min"


_UNITS: dict[str, Callable[[float], str]] = {
    "hours": lambda value: format_duration(3600 * value),
    "minutes_used": lambda value: format_duration(60 * value),
    "seconds": format_duration,
    "seconds_per_step": format_duration,
    "mb_per_second": lambda value: f"{value:,.3g} MB/s",
    "mb": lambda value: f"{value:,.0f} MB" if value >= 100 else f"{value:.3g} MB",
}


def format_loss(value: float) -> str:
    """Return a loss with three decimals; empty for NaN."""
    return f"{value:.3f}" if math.isfinite(value) else ""


def format_percent(share: float) -> str:
    """Return a share in per cent with one decimal; empty for NaN."""
    return f"{100 * share:.1f}%" if math.isfinite(share) else ""


def format_count(value: float) -> str:
    """Return a large count: 813,810 and everything else below a million exact, then 11.8 M, 1.2 B."""
    for size, unit in ((1e9, "B"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:,.0f}"


def format_bytes(size: float) -> str:
    """Return a size in kilobytes, megabytes or gigabytes."""
    if size >= 1e9:
        return f"{size / 1e9:.2f} GB"
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


def flatten(nested: Mapping[str, Any] | None, prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one with dotted names, as TOML would write them."""
    flat: dict[str, Any] = {}
    for key, value in (nested or {}).items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def to_json_value(value: Any) -> Any:
    """Return a value as JSON can hold it: paths as text, dataclasses as objects, NaN and infinity as null."""
    if value is None or (isinstance(value, bool | int | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, float):
        # JSON has neither; Python would write `NaN`, which other readers refuse.
        return value if math.isfinite(value) else None
    if isinstance(value, Enum):
        return to_json_value(value.value)
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "to_dict"):
        return to_json_value(value.to_dict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_json_value(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(name): to_json_value(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(part) for part in value]
    if isinstance(value, set | frozenset):
        # Their order is another one in every process.
        return sorted(map(to_json_value, value))
    if hasattr(value, "tolist"):  # numpy's numbers and arrays
        return to_json_value(value.tolist())
    return str(value)


Tone = Literal["", "strong", "muted", "good", "bad", "warning"]


@dataclass(frozen=True)
class FactList:
    """Names with a value each. Values that are None or empty are left out.

    Attributes:
        values: Name to value; nested mappings get dotted names.
        title: Heading; may be empty.
        exact: Show names and values as they are set (settings), instead of with labels, units and
            separators.
    """

    kind: ClassVar[str] = "facts"
    values: Mapping[str, Any]
    title: str = ""
    exact: bool = False

    def rows(self) -> list[tuple[str, str]]:
        """Return label and text of every value."""
        if self.exact:
            return [(name, format_setting(value)) for name, value in flatten(self.values).items()]
        rows = []
        for name, value in flatten(self.values).items():
            if value or not isinstance(value, list | tuple | str | None):
                # The unit stands beside the number
                label = name.replace("_", " ").removesuffix(" mb")
                rows.append((label, format_value(value, name)))
        return rows


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
class TableSection:
    """Rows under headings. The first column names the row; columns of numbers stand to the right.

    Attributes:
        columns: Headings; those that end with a unit's name give the unit, as in `FactList`.
        rows: As many cells each; plain values or `Cell`. None is an empty cell.
        title: Heading; may be empty.
        note: A line below.
        legend: A line below about the backgrounds of cells, which a page alone has.
        strong: Index of a row to emphasise.
    """

    kind: ClassVar[str] = "table"
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    note: str = ""
    strong: int | None = None
    legend: str = ""

    def cells(self) -> list[list[Cell]]:
        """Return every cell with its value as text."""
        rows = []
        for row in self.rows:
            cells = []
            for value, name in zip(row, self.columns, strict=True):
                cell = value if isinstance(value, Cell) else Cell(value)
                text = "" if cell.value is None else format_value(cell.value, name)
                cells.append(Cell(text, cell.tone, cell.share))
            rows.append(cells)
        return rows

    def numeric_columns(self) -> list[bool]:
        """Return for each column whether it holds numbers, or texts that begin with one."""
        columns: Iterable[Sequence[Cell]] = [()] * len(self.columns)
        # Of no rows `zip` would make no columns.
        if self.rows:
            columns = zip(*self.cells(), strict=True)
        return [
            # The first column names the row, even by a number.
            index > 0 and are_numeric_cells([cell.value for cell in column])
            for index, column in enumerate(columns)
        ]


def are_numeric_cells(texts: Sequence[str]) -> bool:
    """Return whether all texts are numbers or begin with one; empty ones do not count."""
    values = [text for text in texts if text]
    return (
        all(text[0] in "-+–·.0123456789" or text == "undefined" for text in values)
        if values
        else True
    )


@dataclass(frozen=True)
class MarkedSpan:
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
class Paragraph:
    """A paragraph.

    Attributes:
        text: The text, or its parts.
        title: Heading; may be empty.
        tone: How it is marked: `warning` and `bad` begin with a sign in a terminal.
        form: `prose`; `code`, kept as it is and copied whole; `source`, a long text that a page
            folds away; `markdown`, for cards, where it is not escaped.
        language: Of code.
    """

    kind: ClassVar[str] = "text"
    text: str | Sequence[MarkedSpan]
    title: str = ""
    tone: Tone = ""
    form: Literal["prose", "code", "source", "markdown"] = "prose"
    language: str = ""

    def spans(self) -> Sequence[MarkedSpan]:
        """Return the parts."""
        return [MarkedSpan(self.text)] if isinstance(self.text, str) else self.text


@dataclass(frozen=True)
class Figure:
    """A picture.

    Attributes:
        svg: Trusted SVG of our own making, made for a page by `output.plots`.
        title: Heading; may be empty.
        caption: A line below; all that a terminal and a card show.
        narrow: The same picture for a telephone.
    """

    kind: ClassVar[str] = "figure"
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

    @property
    def label(self) -> str:
        """The name, with a mark behind the right one."""
        return f"{self.name} ✓" if self.tone == "good" else self.name


@dataclass(frozen=True)
class Bars:
    """Shares as bars.

    Attributes:
        bars: From top to bottom.
        title: Heading; may be empty.
    """

    kind: ClassVar[str] = "bars"
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

    kind: ClassVar[str] = "highlights"
    numbers: Sequence[Highlight]
    title: str = ""


@dataclass(frozen=True)
class Commands:
    """Command lines to try, whole, so that they can be copied.

    Attributes:
        commands: Pairs of a command and its purpose.
        title: Heading.
    """

    kind: ClassVar[str] = "commands"
    commands: Sequence[tuple[str, str]]
    title: str = "next"


@dataclass(frozen=True)
class Panel:
    """Sections that belong together, framed on a page: an example with what a model made of it.

    Attributes:
        sections: Inside it.
        title: Heading; may be empty.
    """

    kind: ClassVar[str] = "panel"
    sections: Sequence["Section"] = field(default_factory=tuple)
    title: str = ""


Section = FactList | TableSection | Paragraph | Figure | Bars | Highlights | Commands | Panel


def is_empty(section: Section) -> bool:
    """Return whether there is nothing to show; then its title is not shown either."""
    match section:
        case FactList():
            return not section.rows()
        case TableSection():
            return not section.rows
        case Paragraph():
            # A title alone is a heading
            return not section.text and (not section.title or section.form != "prose")
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
    objects = []
    for section in sections:
        inner = {"sections": to_json(section.sections)} if isinstance(section, Panel) else {}
        values = {name: value for name, value in vars(section).items() if name != "sections"}
        objects.append({"kind": section.kind, **to_json_value(values), **inner})
    return objects


class Result:
    """Base of the dataclasses that commands return, frozen or not.

    A subclass that leaves its example or file out, or did something doubtful, has a field
    `warnings`: the command line prints them on stderr.
    """

    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return every field as JSON can hold it: paths as text, NaN as null."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {field.name: to_json_value(getattr(self, field.name)) for field in fields}

    def sections(self) -> list[Section]:
        """Return what is printed: by default every field but the warnings."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return [
            FactList(
                {
                    field.name: getattr(self, field.name)
                    for field in fields
                    if field.name != "warnings"
                }
            )
        ]
