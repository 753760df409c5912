"""Options that name the columns of a table: the same names in every command."""

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from albertkit.tasks.columns import Columns


@dataclass(frozen=True, kw_only=True)
class TableColumns(Columns):
    """The columns of a table; the short names are those of earlier versions.

    Attributes:
        text: Column of the text, or of the first of a pair.
        pair: Column of the second text.
        label: Column of the label: a name or a number; several columns of 0 and 1 with commas between for `multilabel`.
        id: Column of the name of an example in predictions. Default: `id`, `index`, `idx` or `guid`, if it is there, else its
            place in the file, from 0.
        columns: Names of all columns, with commas between, of a file without a header.
        quoted: Whether fields are in quotes. Default: with commas between them they may be, with tabs not.
    """

    text: Annotated[str | None, Parameter(name=("--text-column", "--text"))] = None
    pair: Annotated[str | None, Parameter(name=("--pair-column", "--pair"))] = None
    label: Annotated[str | None, Parameter(name=("--label-column", "--label"))] = None
    id: Annotated[str | None, Parameter(name=("--id-column", "--id"))] = None


@dataclass(frozen=True, kw_only=True)
class OtherColumns(Columns):
    """The columns of a table, where they have other names than in training.

    Attributes:
        text: Column of the text, or of the first of a pair.
        pair: Column of the second text.
        label: Column of the label; several with commas between for `multilabel`.
        id: Column of the name of an example in predictions. Default: `id`, `index`, `idx` or `guid`, if it is there, else its
            place in the file, from 0.
        columns: Names of all columns, with commas between, of a file without a header.
        quoted: Whether fields are in quotes. Default: with commas between them they may be, with tabs not.
    """

    text: Annotated[str | None, Parameter(name="--text-column")] = None
    pair: Annotated[str | None, Parameter(name="--pair-column")] = None
    label: Annotated[str | None, Parameter(name="--label-column")] = None
    id: Annotated[str | None, Parameter(name=("--id-column", "--id"))] = None
