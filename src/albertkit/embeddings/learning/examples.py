"""Examples of K texts each: what is made of pairs of natural-language inference, and a share held out."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from albertkit.errors import DataError

CLASSES = ("contradiction", "entailment", "neutral")
_SPLIT_SEED = 0  # which examples are held out does not change with the seed of a run: runs must be compared on the same


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

    @property
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


def hold_out(train: Examples, share: float, data: Path) -> tuple[Examples, Examples]:
    """Keep a share as dev; see `held_out_rows`."""
    kept, held = held_out_rows([texts[0] for texts in train.texts], share, data)
    return train.take(kept), train.take(held)


def held_out_rows(firsts: Sequence[str], share: float, data: Path) -> tuple[list[int], list[int]]:
    """Numbers of the examples to train on and of those to keep as dev: all examples of some first texts.

    Args:
        firsts: The first text of each example.
        share: To keep.
        data: For messages.

    Raises:
        DataError: no-dev.
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for place, text in enumerate(firsts):
        groups[text].append(place)
    names, wanted = list(groups), round(share * len(firsts))
    held: set[int] = set()
    for number in np.random.default_rng(_SPLIT_SEED).permutation(len(names)):
        if len(held) >= wanted:
            break
        held.update(groups[names[number]])
    if not 0 < len(held) < len(firsts):
        raise DataError(
            "no-dev", f"`{data}` has no dev file, and {share:.0%} of {len(firsts):,} training examples are {wanted}",
            "name a dev file with --dev, or a larger share with --held-out",
        )  # fmt: skip
    return [place for place in range(len(firsts)) if place not in held], sorted(held)
