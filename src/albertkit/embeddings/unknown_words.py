"""Words that a tokenizer does not know: a model reads `<unk>` in their place, whatever they say."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from albertkit.data.columns import Columns
from albertkit.errors import DataError
from albertkit.tokenizer import AlbertTokenizer

MOST_UNKNOWN = 0.2  # of the words of a column, for a student to learn anything from them
LOOKED_AT = 10_000  # texts of a column


def unknown_shares(texts: Sequence[str], tokenizer: AlbertTokenizer) -> tuple[float, float]:
    """Return the share of the words with an unknown token, and of the unknown tokens, in up to 10,000 texts from all over."""
    sample = texts[:: max(1, len(texts) // LOOKED_AT)]
    words = [word for text in sample for word in text.split()]
    if not words:
        return 0.0, 0.0
    ids, offsets = tokenizer.encode_batch(words)
    before = np.concatenate([[0], np.cumsum(ids == tokenizer.unk_id)])
    unknown = np.diff(before[offsets])
    return float(np.mean(unknown > 0)), float(before[-1] / max(len(ids), 1))


def unknown_note(texts: Sequence[str], tokenizer: AlbertTokenizer) -> list[str]:
    """Warn of texts of which the tokenizer does not know more than `MOST_UNKNOWN` of the words; nothing otherwise."""
    words, _ = unknown_shares(texts, tokenizer)
    if words <= MOST_UNKNOWN:
        return []
    return [
        f"the tokenizer does not know {words:.0%} of the words: their vectors say little",
        "`albertkit tokenizer extend` adds the tokens of another language",
    ]


def column_names(columns: Columns | None, count: int) -> list[str]:
    """Return the names of the columns of texts: as they were given, or by their places."""
    names = [name for name in (columns.text, columns.pair) if name is not None] if columns else []
    return [f"column `{name}`" for name in names] or [f"column {n}" for n in range(1, count + 1)]


def known_words(
    rows: Sequence[tuple[str, ...]],
    tokenizer: AlbertTokenizer,
    student: str | Path,
    force: bool,
    names: Sequence[str] | None = None,
) -> str:
    """Say how much of each of K columns the student's tokenizer does not know; refuse too much, unless `force`."""
    shares = [unknown_shares([row[k] for row in rows], tokenizer) for k in range(len(rows[0]))]
    summary = "; ".join(
        f"{name}: {words:.1%} of words, {tokens:.1%} of tokens"
        for name, (words, tokens) in zip(names or column_names(None, len(shares)), shares, strict=True)
    )
    if max(words for words, _ in shares) > MOST_UNKNOWN and not force:
        raise DataError(
            "doubtful",
            f"too much is unknown to the tokenizer of `{student}`, more than {MOST_UNKNOWN:.0%} of words: {summary}",
            "add tokens with `albertkit tokenizer extend --model`, choose another student, or train anyway with --force",
        )
    return f"unknown to the tokenizer: {summary}"
