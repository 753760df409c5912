"""Compare the ids that two readers of one vocabulary give to texts; used when a folder is opened, saved and checked."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

_TOKENS_SHOWN = 6


class Vocabulary(Protocol):
    """Method of an `AlbertTokenizer` that is used here."""

    vocab_size: int

    def id_to_piece(self, piece_id: int) -> str: ...


@dataclass
class FirstDifference:
    """First text that two readers read differently.

    Attributes:
        text: The text.
        ours: Our tokens.
        theirs: Tokens of the other reader; an id that the vocabulary lacks is a number.
    """

    text: str
    ours: list[str]
    theirs: list[str]

    def excerpts(self) -> tuple[str, str]:
        """Return the tokens of both sides around the first one that differs."""
        shorter = min(len(self.ours), len(self.theirs))
        position = next((n for n in range(shorter) if self.ours[n] != self.theirs[n]), shorter)
        shown = slice(max(position - 1, 0), position - 1 + _TOKENS_SHOWN)
        return " ".join(self.ours[shown]), " ".join(self.theirs[shown])


@dataclass
class ReaderComparison:
    """One reader compared with albertkit's `encode`.

    Attributes:
        name: The reader.
        own: True for a file that albertkit wrote, which must agree.
        compared: Number of texts.
        differing: Number of texts on which it does not agree.
        first: The first of them.
        skipped: Reason why nothing was compared; empty if something was.
    """

    name: str
    own: bool = False
    compared: int = 0
    differing: int = 0
    first: FirstDifference | None = None
    skipped: str = ""


def compare_reader(
    name: str,
    vocabulary: Vocabulary,
    texts: Iterable[str],
    ours: Callable[[str], Sequence[int]],
    theirs: Callable[[str], Sequence[int]],
    own: bool = False,
) -> ReaderComparison:
    """Compare the ids of two readers, text by text.

    Args:
        name: Name of the other reader.
        vocabulary: Names the tokens of ids.
        texts: Texts that both read.
        ours: Returns the ids of a text.
        theirs: Returns the ids of a text by the other reader.
        own: See `ReaderComparison`.
    """
    comparison = ReaderComparison(name, own)
    for text in texts:
        our_ids, their_ids = list(ours(text)), list(theirs(text))
        comparison.compared += 1
        if our_ids == their_ids:
            continue
        comparison.differing += 1
        if comparison.first is None:
            comparison.first = FirstDifference(text, _tokens(vocabulary, our_ids), _tokens(vocabulary, their_ids))
    return comparison


def _tokens(vocabulary: Vocabulary, ids: Sequence[int]) -> list[str]:
    known_ids = range(vocabulary.vocab_size)
    return [vocabulary.id_to_piece(token_id) if token_id in known_ids else str(token_id) for token_id in ids]
