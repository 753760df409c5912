"""Words that a tokenizer does not know: a model reads `<unk>` in their place, whatever they say."""

from collections.abc import Sequence

import numpy as np

from albertkit.tokenizer import AlbertTokenizer

MOST_UNKNOWN = 0.2  # of the words of a column, for a student to learn anything from them
LOOKED_AT = 10_000  # texts of a column


def unknown_shares(texts: Sequence[str], tokenizer: AlbertTokenizer) -> tuple[float, float]:
    """Share of the words with an unknown piece, and of the unknown pieces, in up to 10,000 texts from all over."""
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
