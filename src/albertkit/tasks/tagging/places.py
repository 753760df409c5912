"""Which piece speaks for which word: a sentence is cut into pieces as a whole, as in pretraining, and a word is tagged at one.

A piece belongs to the first word of which it has a visible character, and a word is tagged at the first piece that belongs to
it. Words without a piece of their own follow others:

- a word within another's piece (the second of two Korean characters that are one piece) continues that word's tag, as in
  KLUE's baseline: `I-` and its type after `B-` or `I-`, else `O`;
- a word that left no piece (a space, a character that the text rules remove) is inside an entity if the words on both its
  sides are.

P pieces, W words, C characters of the text.
"""

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

_INVISIBLE = ("Zs", "Zl", "Zp", "Cc", "Cf")


class Places(NamedTuple):
    """The words that have a piece of their own, ascending.

    Attributes:
        pieces: int64, where each of these words is tagged.
        words: int64, their numbers.
        ends: int64, one more than the last word that a piece of each reaches.
    """

    pieces: np.ndarray
    words: np.ndarray
    ends: np.ndarray


def find_places(words: Sequence[str], spaces: bool, spans: Sequence[tuple[int, int]]) -> Places:
    """Where words are tagged.

    Args:
        words: W words.
        spaces: Whether a space stands between them in the text.
        spans: Of the P pieces, in characters of the text; a piece may cover the white space before its word, or nothing.
    """
    text = (" " if spaces else "").join(words)
    lengths = np.array([len(word) + spaces for word in words], np.int64)
    seen = np.flatnonzero([_visible(character) for character in text])
    word_of_seen = np.repeat(np.arange(len(words)), lengths)[seen]
    bounds = np.searchsorted(seen, np.array(spans, np.int64).reshape(-1, 2))
    pieces = np.flatnonzero(bounds[:, 1] > bounds[:, 0])
    owners, last = word_of_seen[bounds[pieces, 0]], word_of_seen[bounds[pieces, 1] - 1]
    tagged, first = np.unique(owners, return_index=True)
    ends = np.zeros(len(words), np.int64)
    np.maximum.at(ends, owners, last + 1)
    return Places(pieces[first], tagged, ends[tagged])


def spread(
    num_words: int, words: np.ndarray, ends: np.ndarray, tags: Sequence[str], probabilities: np.ndarray
) -> tuple[list[str], list[float]]:
    """The tag of every word from the tags of those that have a piece of their own.

    Args:
        num_words: W.
        words: As in `Places`.
        ends: As in `Places`.
        tags: Of these words.
        probabilities: Of these tags.

    Returns:
        W tags and W probabilities; a word that left no piece has the probability of the word before it, 1 at the start.
    """
    spread_tags, known = ["O"] * num_words, np.zeros(num_words, bool)
    spread_probabilities = [1.0] * num_words
    for word, end, tag, probability in zip(words.tolist(), ends.tolist(), tags, probabilities.tolist(), strict=True):
        spread_tags[word:end] = [tag, *[_inside(tag)] * (end - word - 1)]
        spread_probabilities[word:end] = [probability] * (end - word)
        known[word:end] = True
    for word in np.flatnonzero(~known).tolist()[::-1]:
        spread_tags[word] = spread_tags[word + 1] if word + 1 < num_words else "O"  # the next word's, for the moment
    for word in np.flatnonzero(~known).tolist():
        before = _inside(spread_tags[word - 1]) if word else "O"
        spread_tags[word] = before if spread_tags[word] == before else "O"
        spread_probabilities[word] = spread_probabilities[word - 1] if word else 1.0
    return spread_tags, spread_probabilities


def windows(num_pieces: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut a sentence that is too long into windows that overlap by half; each piece is tagged in one of them.

    Args:
        num_pieces: P.
        size: Pieces of a window; all windows of a sentence that has several are full.

    Returns:
        Where each of the K windows starts, int64 [K], and the window of each piece, in which the shorter of its two
        contexts is longest, int64 [P].
    """
    last = max(num_pieces - size, 0)
    starts = np.append(np.arange(0, last, max(size // 2, 1)), last)
    # Up to here a piece is nearer to the centre of one window than to that of the next; twice the place, to stay whole.
    middles = starts[:-1] + starts[1:] + size - 1
    return starts, np.searchsorted(middles, 2 * np.arange(num_pieces))


@lru_cache(100_000)
def _visible(character: str) -> bool:
    return unicodedata.category(character) not in _INVISIBLE


def _inside(tag: str) -> str:
    """The tag of a word that goes on with what this tag began."""
    return tag if tag == "O" else f"I-{tag[2:]}"
