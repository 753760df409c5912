"""Columns that hold no sentences: licence notes, addresses, ids, dates, one value again and again."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from albertkit.errors import DataError

_LOOKED_AT = 10_000  # values of a column, taken from all over it
_MOST = 0.5  # of the values of a column may be of one of these kinds
_FEWEST_DIFFERENT = (
    0.05  # of the values; captions of one picture repeat a text five to ten times, a language code always
)
_LEAST_ROWS = 5  # one value in fewer rows says nothing
_COMMON_START = 16  # characters; "query: " and "passage: " are shorter

_LICENCE = re.compile(
    r"\bCC[- ]?(BY|0)\b|creative commons|\battribution\b|\blicen[cs]ed?\b.{0,40}\b(GPL|MIT|Apache|BSD|CC)|©|all rights reserved",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"^\s*(https?://|ftp://|www\.)\S+\s*$|^\S+@\S+\.\w+$", re.IGNORECASE)
_ID = re.compile(r"^(?=\S*\d)[\x21-\x7e]+$", re.ASCII)  # one word of ASCII with a digit in it


def _is_name_or_number(value: str) -> bool:
    if _ID.search(value):
        return True
    letters = sum(map(str.isalpha, value))
    return letters == 0 or sum(map(str.isdigit, value)) >= letters


_KINDS: tuple[tuple[str, Callable[[str], object]], ...] = (
    ("licence notes", _LICENCE.search),
    ("addresses", _ADDRESS.search),
    ("ids, numbers or dates", _is_name_or_number),
)


def refuse_other_columns(file: Path, names: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    """Refuse a table of which not all columns are sentences, where nobody has named the columns to read.

    Args:
        file: The table, for the message.
        names: Of its K columns.
        rows: K values each.

    Raises:
        DataError: not-sentences with the columns, what they hold, and the options that name the others.
    """
    found = {k: reason for k in range(len(names)) if (reason := _other_than_sentences([row[k] for row in rows]))}
    if not found:
        return
    what = "; ".join(f"`{names[k]}` holds {reason}" for k, reason in found.items())
    left = [k for k in range(len(names)) if k not in found]
    hint = "name a file with a column of sentences"
    if left:
        unnamed = all(name == f"column {n}" for n, name in enumerate(names, 1))
        short = [f"c{n}" for n in range(1, len(names) + 1)] if unnamed else list(names)
        options = [f"--{option} {short[k]}" for option, k in zip(("text", "pair"), left, strict=False)]
        if unnamed:
            options.insert(0, f"--columns {','.join(short)}")
        hint = f"name the columns to read: {' '.join(options)}"
        if len(left) > 2:
            hint += f"; or keep all {len(left)} of them: cut -f {','.join(str(k + 1) for k in left)} {file} > texts.tsv"
    raise DataError("not-sentences", f"`{file}`: {what}, and would be trained on as a text", hint)


def _other_than_sentences(values: Sequence[str]) -> str:
    """Return what a column holds in place of sentences; "" for sentences."""
    sample = values[:: max(1, len(values) // _LOOKED_AT)]
    example = f"such as `{_shortened(sample[0])}`"
    for kind, is_one in _KINDS:
        if sum(1 for value in sample if is_one(value)) > _MOST * len(sample):
            return f"{kind}, {example}"
    different = len(set(sample))
    if len(sample) >= _LEAST_ROWS and different <= max(1, _FEWEST_DIFFERENT * len(sample)):
        return f"{different:,} different value{'s' * (different > 1)} in {len(sample):,} rows, {example}"
    start = _common_start(sample)
    if len(sample) >= _LEAST_ROWS and len(start) >= _COMMON_START:
        return f"values that all begin with `{_shortened(start)}`"
    return ""


def _common_start(values: Sequence[str]) -> str:
    low, high = min(values), max(values)
    end = next((n for n, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    return low[:end]


def _shortened(value: str) -> str:
    return value if len(value) <= 50 else f"{value[:49]}…"
