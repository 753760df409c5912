"""Columns: the options that name a table's columns. Imports no reader, so that a help page does without them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar

from cyclopts import Parameter

from albertkit.encodings import normalize


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Names of the columns of a table. None: the column is missing, or has the task's usual name.

    Attributes:
        text: Column of the text, or of the first text of a pair; of multiple choice the text to
            read first.
        pair: Column of the second text; of multiple choice the question.
        label: Column of the label (name or number). For `multilabel`: several 0/1 columns,
            separated by commas.
        id: Column of example ids for the predictions. Default: `id`, `index`, `idx` or `guid` if
            there is one, else the row number from 0.
        columns: Names of all columns of a file without a header, separated by commas.
        quoted: Allow quoted fields. Default: yes for comma-separated files, no for tab-separated
            files.
    """

    title: ClassVar[str] = "Columns of a table"
    text: Annotated[str | None, Parameter(name=("--text-column", "--text"))] = None
    pair: Annotated[str | None, Parameter(name=("--pair-column", "--pair"))] = None
    label: Annotated[str | None, Parameter(name=("--label-column", "--label"))] = None
    id: Annotated[str | None, Parameter(name=("--id-column", "--id"))] = None
    columns: str | None = None
    quoted: bool | None = None

    def __post_init__(self) -> None:
        for name in ("text", "pair", "label", "id", "columns"):  # as a table's columns are compared
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, normalize("NFC", value))

    def settings(self) -> dict[str, object]:
        """Return the names that are given, as fields of a task on texts."""
        named_columns = {name: value for name, value in vars(self).items() if value is not None}
        if self.columns is not None:
            named_columns["columns"] = tuple(name.strip() for name in self.columns.split(","))
        return named_columns


def format_column_options(fields: Iterable[str]) -> str:
    """Return fields of `Columns` as options of the command line: "--text-column and --quoted"."""
    options = [
        f"--{name}-column" if name in ("text", "pair", "label", "id") else f"--{name}"
        for name in fields
    ]
    return " and ".join(options)
