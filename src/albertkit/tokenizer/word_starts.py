"""Which pieces start a word: the unit of whole-word masking.

The rule is google-research/albert's (`create_pretraining_data.py`, `_is_start_piece_sp`). A piece continues the word
before it if it is made of English letters and the punctuation listed here, does not begin with the mark of a space or
`<`, and is not a single punctuation mark. So "ing" and ".com" continue; "▁the", ".", "'", "7", "é" and "한" start.
"""

from collections.abc import Sequence

from albertkit.tokenizer.digit_comma import SPACE

_PUNCTUATION = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
_ENGLISH = frozenset("abcdefghijklmnopqrstuvwxyz")


def word_starts(pieces: Sequence[str]) -> list[bool]:
    """Return whether each piece starts a word."""
    inside = _PUNCTUATION | _ENGLISH
    return [
        piece.startswith((SPACE, "<")) or piece in _PUNCTUATION or not all(c.lower() in inside for c in piece)
        for piece in pieces
    ]
