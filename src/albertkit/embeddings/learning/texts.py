"""Files of texts without labels: a text a line, or rows of texts that mean the same."""

import re
from collections.abc import Sequence
from pathlib import Path

from albertkit.embeddings.learning.text_columns import refuse_other_columns
from albertkit.errors import ConfigError, DataError
from albertkit.tasks.columns import Columns
from albertkit.tasks.faults import Faults
from albertkit.tasks.tables import Table
from albertkit.tokenizer.text_files import read_lines

_TABLE = re.compile(r"\.(csv|tsv|jsonl|ndjson|json|parquet|pq)(\.(gz|xz|zst))?$", re.IGNORECASE)
_LOOKED_AT = 1000  # lines


def read_texts(file: Path, columns: Columns, count: int | None, faults: Faults) -> list[tuple[str, ...]]:
    """Rows of texts.

    A table whose columns are not named has no header, and all its fields are texts. A file of one text a row is no table, but
    lines, whatever they hold but tabs in each; empty ones are passed over.

    Args:
        file: Lines, or a table.
        columns: `text` and `pair` of a table, and all `columns` of one without a header.
        count: Texts of a row. None: as many as are named, or as the first line has fields with tabs between.
        faults: Told of rows that cannot be used: with another number of fields, or an empty text.

    Raises:
        ConfigError: conflicting-options, missing-column. DataError: no-examples, not-sentences, table-as-lines, and what reading
        raises.
    """
    if columns.label is not None or columns.id is not None:
        raise ConfigError("conflicting-options", "texts have no label and no id", "leave out --label and --id")
    rows: list[tuple[str, ...]]
    named = columns.text is not None or columns.columns is not None
    if not named and (count == 1 or (count is None and not _is_table(file))):
        rows = [(line,) for line in read_lines(file) if line.strip()]
        _refuse_tabs(file, rows)
    else:
        rows = _read_table(file, columns, count, faults)
    if not rows:
        raise DataError("no-examples", f"`{file}` holds no text", "name a file with texts")
    return rows


def _is_table(file: Path) -> bool:
    """Whether a file that nobody says more about is a table: by its name, or by a tab in its first line."""
    return _TABLE.search(file.name) is not None or "\t" in next(iter(read_lines(file)), "")


def _refuse_tabs(file: Path, lines: Sequence[tuple[str, ...]]) -> None:
    """Refuse a table of tabs that was taken for lines: ids and licence notes would be part of every text.

    Raises:
        DataError: table-as-lines.
    """
    tabs = {line.count("\t") for (line,) in lines[:_LOOKED_AT]}
    if len(lines) > 1 and len(tabs) == 1 and (count := tabs.pop()):
        raise DataError(
            "table-as-lines", f"`{file}` is a table: its lines have {count + 1} fields with tabs between, not a text a line",
            f"take the column of the texts, for example the first: cut -f 1 {file} > texts.txt",
        )  # fmt: skip


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
    if columns.text is None and rows:
        refuse_other_columns(file, wanted, rows)
    return rows
