"""Google's digit-comma rule as a rewriting of ids.

A piece that ends in a digit and a comma ("▁2010,") is encoded again without its comma, which becomes a piece of its own
(`encode_pieces` of google-research/albert and the TF Model Garden, `tokenization.py`). What a piece becomes depends on
the piece alone, so the whole rule is a table from id to ids, made once for a model. For `30k-clean.model` it changes
141 pieces. (A model that does not know the comma could show digit and comma as one unknown piece; it is left as it is.)
"""

from typing import Any, NamedTuple

import numpy as np

SPACE = "\u2581"  # how SentencePiece writes the space before a word


class DigitCommaRule(NamedTuple):
    """Table of the rule: row `id` of the flat arrays `ids` and `widths` is at `starts[id]`, `counts[id]` long.

    Attributes:
        counts: int64 [V]. Number of ids that a piece becomes; 1 for all pieces that the rule leaves alone.
        starts: int64 [V]. Row of a piece.
        ids: int32 [sum of counts]. The ids.
        widths: int64 [sum of counts]. Their characters, the mark of the space not counted.
    """

    counts: np.ndarray
    starts: np.ndarray
    ids: np.ndarray
    widths: np.ndarray

    def rewrite(self, ids: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Apply the rule to the ids of many texts, int32 [T], and where each text begins among them, int64 [N+1]."""
        counts = self.counts[ids]
        if int(counts.sum()) == len(ids):
            return ids, offsets
        ends = np.cumsum(counts)
        within = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
        new_ids = self.ids[np.repeat(self.starts[ids], counts) + within]
        return new_ids, np.concatenate(([0], ends))[offsets]


def digit_comma_rule(processor: Any) -> DigitCommaRule | None:
    """Return the table for a SentencePiece processor; None if no token ends in a digit and a comma."""
    pieces = [processor.id_to_piece(number) for number in range(processor.get_piece_size())]
    rewritten = {
        number: without_comma(processor, piece) for number, piece in enumerate(pieces) if ends_in_digit_comma(piece)
    }
    if not rewritten:
        return None
    counts = np.ones(len(pieces), dtype=np.int64)
    counts[list(rewritten)] = [len(row) for row in rewritten.values()]
    starts = np.cumsum(counts) - counts
    ids = np.repeat(np.arange(len(pieces), dtype=np.int32), counts)
    widths = np.zeros(len(ids), dtype=np.int64)
    for number, row in rewritten.items():
        rows = slice(starts[number], starts[number] + counts[number])
        ids[rows], widths[rows] = zip(*row, strict=True)
    return DigitCommaRule(counts, starts, ids, widths)


def ends_in_digit_comma(piece: str) -> bool:
    """Return True for the pieces that the rule takes apart."""
    return piece.endswith(",") and piece[-2:-1].isdigit()


def without_comma(processor: Any, piece: str) -> list[tuple[int, int]]:
    """Return (id, characters) of the pieces that such a piece becomes. The rule looks at each piece once only."""
    again = processor.encode(piece[:-1].replace(SPACE, ""), out_type=str)
    if piece[0] != SPACE and again[0][0] == SPACE:
        # The encoder put a space before the number; there was none.
        again = again[1:] if again[0] == SPACE else [again[0][1:], *again[1:]]
    return [(processor.piece_to_id(p), len(p.removeprefix(SPACE))) for p in [*again, ","]]
