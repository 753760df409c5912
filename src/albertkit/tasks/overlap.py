"""Texts that examples have in common: what dev shares with train, and a held-out share that has nothing in common with it."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from albertkit.normalization import normalize

Key = tuple[str, ...]

_SPLIT_SEED = 0  # which examples are held out does not change with the seed of a run: runs must be compared on the same


@dataclass(frozen=True)
class Overlap:
    """Counts of the examples of a split that a training has seen, or of which it has seen a part.

    Attributes:
        same: In train, too, the texts of a pair in either order; upper case and white space make no difference.
        sharing: Not in train, but with a text of a training example, punctuation apart: one of a pair, the context of a question.
    """

    same: int = 0
    sharing: int = 0

    def lines(self, split: str, examples: int) -> Iterator[str]:
        """Yield a sentence for each count that is not 0."""
        of = f"of {examples:,} {split} examples"
        if self.same:
            yield f"{self.same:,} {of} are in train, too: they say nothing about new texts"
        if self.sharing:
            yield f"{self.sharing:,} {of} share a text with a training example"


def texts_of(kind: str, example: Any) -> tuple[str, ...]:
    """Return the texts that make an example what it is; the first is what is read, of a multiple choice the others are short."""
    if kind == "answers":
        return example.question, example.context
    if kind == "choice":
        return f"{example.context} {example.question}", *example.choices
    texts = getattr(example, "text", None), getattr(example, "pair", None)
    return tuple(text for text in texts if text is not None)


def _recognised_by(kind: str, example: Any) -> tuple[str, ...]:
    """Return the texts of which each would give an example away to a model that was trained on another one with it."""
    if kind == "answers":
        return (example.context,)
    return (example.context or example.question,) if kind == "choice" else texts_of(kind, example)


@lru_cache(maxsize=1 << 16)  # a text may stand in many examples
def plain_text(text: str) -> str:
    """Return a text as texts are compared: compatibility forms, upper case and white space make no difference."""
    return " ".join(normalize("NFKC", text).casefold().split())


@lru_cache(maxsize=1 << 16)
def _words(text: str) -> str:
    """Return a plain text without punctuation, if it has anything else."""
    plain = plain_text(text)
    return " ".join(re.findall(r"\w+", plain)) or plain


def measure_overlap(kind: str, train: Sequence[Any], other: Sequence[Any]) -> Overlap:
    """Count what another split has in common with the training examples."""
    train_keys, train_texts = set[Key](), set[str]()
    for example in train:
        train_keys.add(_unordered(map(plain_text, texts_of(kind, example))))
        train_texts.update(map(_words, _recognised_by(kind, example)))
    same = sharing = 0
    for example in other:
        texts = texts_of(kind, example)
        if texts and _unordered(map(plain_text, texts)) in train_keys:
            same += 1
        elif not train_texts.isdisjoint(filter(None, map(_words, _recognised_by(kind, example)))):
            sharing += 1
    plain_text.cache_clear()
    _words.cache_clear()
    return Overlap(same, sharing)


def _unordered(texts: Iterable[str]) -> Key:
    return tuple(sorted(texts))


def draw_held_out(kind: str, examples: Sequence[Any], labels: Sequence[tuple[str, ...]], count: int) -> set[int]:
    """Return numbers of about `count` examples, at random, that have nothing in common with the others.

    Of questions whole articles are drawn, of pairs all that share a text: a model could else find the label of a pair as the one
    that its premise was not seen with (counting tokens was right 12.7 % of the time on a third of KLUE-NLI drawn pair by
    pair). Where the examples hang together too much for that, those with the same first text are drawn together, or those that
    are equal; the last resort is to draw them one by one.
    """
    held: set[int] = set()
    for keys in _key_levels(kind, examples):
        held = _draw(_groups(keys), labels, count)
        if count <= 2 * len(held) <= 4 * count:
            break
    return held


def _key_levels(kind: str, examples: Sequence[Any]) -> Iterator[list[set[Key]]]:
    """Yield sets of keys, one an example, the strictest first; examples with a key in common are drawn together."""
    parts = [[_words(text) for text in _recognised_by(kind, example)] for example in examples]
    articles = [{("article", name)} if (name := getattr(example, "article", "")) else set() for example in examples]
    yield [{(text,) for text in own if text} | article for own, article in zip(parts, articles, strict=True)]
    texts = [texts_of(kind, example) for example in examples]
    whole = [{("whole", *_unordered(map(_words, own)))} if own else set[Key]() for own in texts]
    yield [{(text,) for text in own[:1]} | same for own, same in zip(parts, whole, strict=True)]
    yield whole
    yield [set() for _ in examples]


def _groups(keys: Sequence[set[Key]]) -> list[list[int]]:
    """Return the numbers of the examples that hang together by common keys, in the order of the first of each group."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    numbers: dict[Key, int] = {}
    edges = [
        (example, len(keys) + numbers.setdefault(key, len(numbers))) for example, own in enumerate(keys) for key in own
    ]
    size = len(keys) + len(numbers)
    places = np.array(edges, np.int64).reshape(-1, 2).T
    graph = coo_array((np.ones(len(edges), bool), (places[0], places[1])), shape=(size, size))
    groups: dict[int, list[int]] = {}
    for example, component in enumerate(connected_components(graph, directed=False)[1][: len(keys)].tolist()):
        groups.setdefault(component, []).append(example)
    return list(groups.values())


def _draw(groups: Sequence[Sequence[int]], labels: Sequence[tuple[str, ...]], count: int) -> set[int]:
    """Return the examples of random groups; each class has its share, and of every label an example stays."""
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(groups)).tolist()
    remaining = Counter(label for own in labels for label in own)
    if all(len(own) == 1 for own in labels):
        # The r-th of the n examples of a class stands at (r + 1/2) / n: whatever is cut off in front has its share of all.
        sizes, ranks, places = Counter[str](), Counter[str](), {}
        for group in groups:
            sizes[labels[group[0]][0]] += len(group)
        for number in order:
            label = labels[groups[number][0]][0]
            places[number] = (ranks[label] + len(groups[number]) / 2) / sizes[label]
            ranks[label] += len(groups[number])
        order.sort(key=lambda number: places[number])
    held: set[int] = set()
    for number in sorted(order, key=lambda number: len(groups[number]) > count):  # large ones last
        if len(held) >= count:
            break
        own = Counter(label for example in groups[number] for label in labels[example])
        if len(groups[number]) < len(labels) - len(held) and all(remaining[label] > own[label] for label in own):
            remaining.subtract(own)
            held.update(groups[number])
    return held
