"""Files of texts without labels: a text a line, or rows of texts that mean the same."""

from pathlib import Path

from albertkit.errors import ConfigError, DataError
from albertkit.tasks.columns import Columns
from albertkit.tasks.faults import Faults
from albertkit.tasks.tables import Table
from albertkit.tokenizer.text_files import read_lines


def read_texts(file: Path, columns: Columns, count: int | None, faults: Faults) -> list[tuple[str, ...]]:
    """Rows of texts.

    A file of one text a row is read as lines, whatever they hold; empty ones are passed over. A table whose columns are not
    named has no header, and all its fields are texts.

    Args:
        file: Lines, or a table.
        columns: `text` and `pair` of a table, and all `columns` of one without a header.
        count: Texts of a row. None: as many as the table has columns, or as many as are named.
        faults: Told of rows that cannot be used: with another number of fields, or an empty text.

    Raises:
        ConfigError: conflicting-options, missing-column. DataError: no-examples, and what reading raises.
    """
    if columns.label is not None or columns.id is not None:
        raise ConfigError("conflicting-options", "texts have no label and no id", "leave out --label and --id")
    rows: list[tuple[str, ...]]
    if count == 1 and columns.text is None:
        rows = [(line,) for line in read_lines(file) if line.strip()]
    else:
        rows = _read_table(file, columns, count, faults)
    if not rows:
        raise DataError("no-examples", f"`{file}` holds no text", "name a file with texts")
    return rows


def _read_table(file: Path, columns: Columns, count: int | None, faults: Faults) -> list[tuple[str, ...]]:
    rows = []
    with Table(file, quoted=columns.quoted, faults=faults) as table:
        wanted = [name for name in (columns.text, columns.pair) if name is not None]
        if columns.columns is not None:
            table.without_header([name.strip() for name in columns.columns.split(",")])
        elif not wanted and not table.has_own_names:
            table.without_header([f"column {n}" for n in range(1, len(table.columns) + 1)])
        wanted = wanted or list(table.columns)
        if count is not None and len(wanted) != count:
            named = ", ".join(f"`{name[:40]}`" for name in wanted)
            raise DataError(
                "wrong-columns", f"`{file}`, line 1: {len(wanted)} columns ({named}), but an example has {count} texts",
                "name those to read: --text FIRST --pair SECOND, and --columns for all of a file without a header",
            )  # fmt: skip
        for row in table.rows(wanted):
            texts = tuple(row.values[name] for name in wanted)
            if all(text.strip() for text in texts):
                rows.append(texts)
            else:
                table.add_fault(row.line, f"`{wanted[[bool(t.strip()) for t in texts].index(False)]}` is empty")
    return rows
