"""One reader of a tokenizer's folder against another, text by text."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from albertkit.tokenizer.faults import UNKNOWN, explain
from albertkit.tokenizer.tokenizer import AlbertTokenizer

Encode = Callable[[str], list[Any]]


@dataclass
class Difference:
    """One text that two readers read differently.

    Attributes:
        text: The text, or what was compared.
        ours: Pieces, or what we say.
        theirs: The same of the other reader.
        causes: Names of known faults (`albertkit.tokenizer.faults`), or "unexplained".
    """

    text: str
    ours: list[str]
    theirs: list[str]
    causes: list[str]

    def where(self) -> tuple[list[str], list[str]]:
        """Both sides without what they begin and end with in common, but for a piece on each side."""
        ours, theirs = self.ours, self.theirs
        shorter = min(len(ours), len(theirs))
        same = next((n for n in range(shorter) if ours[n] != theirs[n]), shorter)
        tail = next((n for n in range(shorter - same) if ours[-1 - n] != theirs[-1 - n]), shorter - same)
        first, last = max(same - 1, 0), max(tail - 1, 0)
        return ours[first : len(ours) - last], theirs[first : len(theirs) - last]


@dataclass
class Comparison:
    """One reader against `encode`.

    Attributes:
        name: The reader.
        own: Whether it is of the project or reads a file that the project wrote: then it must agree.
        compared: Number of texts.
        differences: Where it does not.
        skipped: Why nothing was compared; empty if something was.
    """

    name: str
    own: bool
    compared: int = 0
    differences: list[Difference] = field(default_factory=list)
    skipped: str = ""

    def examples(self) -> list[Difference]:
        """The first difference of each cause."""
        met: set[str] = set()
        chosen = []
        for difference in self.differences:
            if not met.issuperset(difference.causes):
                chosen.append(difference)
                met.update(difference.causes)
        return chosen


def compare(
    name: str,
    own: bool,
    tokenizer: AlbertTokenizer,
    texts: Sequence[str],
    theirs: Encode,
    ours: Encode | None = None,
) -> Comparison:
    """Compare a reader with `encode`, or with `ours`.

    Args:
        name, own: See `Comparison`.
        tokenizer: Whose ids are right.
        texts: On which.
        theirs: The reader.
        ours: Default `tokenizer.encode`.
    """
    ours = ours or tokenizer.encode
    comparison = Comparison(name, own, len(texts))
    for text in texts:
        one, two = ours(text), theirs(text)
        if one != two:
            causes = [UNKNOWN] if own else explain(text, lambda other: ours(other) == theirs(other))
            comparison.differences.append(Difference(text, shown(tokenizer, one), shown(tokenizer, two), causes))
    return comparison


def shown(tokenizer: AlbertTokenizer, ids: list[Any]) -> list[str]:
    """The pieces of ids; an id that is none of the tokenizer's is shown as it is."""
    known = range(tokenizer.vocab_size)
    return [tokenizer.id_to_piece(i) if i in known else str(i) for i in ids]


def with_names(tokenizer: AlbertTokenizer) -> Encode:
    """`encode`, but the names of special tokens in a text become their ids, as in every reader but albertkit's."""
    names = {tokenizer.id_to_piece(i): i for i in tokenizer.special_ids()}
    cut = re.compile("(" + "|".join(map(re.escape, names)) + ")")

    def encode(text: str) -> list[int]:
        ids: list[int] = []
        for part in cut.split(text):
            ids += [names[part]] if part in names else tokenizer.encode(part)
        return ids

    return encode
