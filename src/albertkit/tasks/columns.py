"""How a table of one's own is read; apart from the reading, so that the command line shows it at once."""

from collections.abc import Iterable
from dataclasses import dataclass

IDS = ("id", "index", "idx", "guid")  # `albertkit predict` writes id, GLUE's submissions have index


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What the columns of a table hold; what is None is not there, or as the task has it.

    Attributes:
        text: Column of the text, or of the first of a pair.
        pair: Column of the second text.
        label: Column of the label: a name or a number; several columns of 0 and 1 with commas between for `multilabel`.
        id: Column of the name of an example in predictions. Default: `id`, `index`, `idx` or `guid`, if it is there, else
            its place in the file, from 0.
        columns: Names of all columns, with commas between, of a file without a header.
        quoted: Whether fields are in quotes. Default: with commas between them they may be, with tabs not.
    """

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    id: str | None = None
    columns: str | None = None
    quoted: bool | None = None

    def settings(self) -> dict[str, object]:
        """What is given, as fields of a task on texts."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        if self.columns is not None:
            given["columns"] = tuple(name.strip() for name in self.columns.split(","))
        return given


def named_options(given: Iterable[str]) -> str:
    """Fields of `Columns` as options of the command line: "--text-column and --quoted"."""
    options = [f"--{name}-column" if name in ("text", "pair", "label", "id") else f"--{name}" for name in given]
    return " and ".join(options)
