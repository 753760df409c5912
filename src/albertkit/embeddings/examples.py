"""Examples of K texts each, and what is made of pairs of natural-language inference."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CLASSES = ("contradiction", "entailment", "neutral")


@dataclass(frozen=True)
class Examples:
    """E examples.

    Attributes:
        texts: K texts of each, the same K in all.
        targets: fp32 [E] scores from 0 to 1, int64 [E] places in `CLASSES`, or None.
    """

    texts: Sequence[tuple[str, ...]]
    targets: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, places: Sequence[int]) -> "Examples":
        """Some of them."""
        return Examples([self.texts[p] for p in places], None if self.targets is None else self.targets[list(places)])

    def columns(self) -> int:
        """K."""
        return len(self.texts[0])


def triplets_of(pairs: Examples) -> tuple[Examples, int]:
    """Triplets (text, entailed, contradicting), and the same with the first two exchanged.

    Of each first text every entailed and every contradicting text is used, with the other ones in turn.

    Returns:
        The triplets, and how many first texts have none.

    Source: the recipe `training_nli_v2.py` of sentence-transformers, which draws one of each at random.
    """
    assert pairs.targets is not None
    by_text: dict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for (text, pair), target in zip(pairs.texts, pairs.targets.tolist(), strict=True):
        if CLASSES[target] != "neutral":
            by_text[text][CLASSES[target] == "contradiction"].append(pair)
    made = []
    for text, (entails, contradicts) in by_text.items():
        for n in range(max(len(entails), len(contradicts)) if entails and contradicts else 0):
            same, other = entails[n % len(entails)], contradicts[n % len(contradicts)]
            made += [(text, same, other), (same, text, other)]
    whole = {text for text, sides in by_text.items() if all(sides)}
    return Examples(made), len({text for text, _ in pairs.texts}) - len(whole)


def entailed(pairs: Examples) -> Examples:
    """The entailed pairs, of each first text and of each second one the first: pairs to find again among each other."""
    assert pairs.targets is not None
    firsts: set[str] = set()
    seconds: set[str] = set()
    kept = []
    for (text, pair), target in zip(pairs.texts, pairs.targets.tolist(), strict=True):
        if CLASSES[target] == "entailment" and text not in firsts and pair not in seconds:
            firsts.add(text)
            seconds.add(pair)
            kept.append((text, pair))
    return Examples(kept)
