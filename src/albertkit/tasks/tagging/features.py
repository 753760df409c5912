"""Features of sentences, and the token at which each word is tagged."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from albertkit.data import IGNORED
from albertkit.data.features import Features, tokens_for_text
from albertkit.tasks.label_names import label_indices, labels_of
from albertkit.tasks.tagging.sentences import TaggedExample

if TYPE_CHECKING:
    from albertkit.tokenizer import AlbertTokenizer


def tagging_features(
    examples: Sequence[TaggedExample], tokenizer: AlbertTokenizer, length: int, labels: Sequence[str] | None
) -> Features:
    """Return a sequence a sentence, `[CLS] tokens [SEP]`; of a sentence that is too long several windows, as `windows` cuts them.

    Returns:
        Features with, per token, int64: `words`, the word that is tagged there, or -1; `ends`, one more than the last word
        that its tokens reach; `labels`, its tag, or -100. A word is in one window at most, in training, too.
    """
    size = tokens_for_text(length, 2)
    rows: list[tuple[list[int], int]] = []
    owners: list[int] = []
    tagged = [np.zeros((4, 0), np.int64)]  # token, word, end, label
    num_tokens = 0
    gold = [tag for tags in gold_tags(examples) for tag in tags] if labels is not None else []
    numbers = label_indices(gold, labels or ())
    bounds = np.cumsum([len(example.words) for example in examples], dtype=np.int64)
    for number, (example, example_numbers) in enumerate(zip(examples, np.split(numbers, bounds[:-1]), strict=False)):
        ids, spans = tokenizer.encode_with_offsets(example.text)
        places = find_places(example.words, example.spaces, spans)
        label = places.words if labels is None else example_numbers[places.words]
        starts, window_of = windows(len(ids), size)
        for window, start in enumerate(starts.tolist()):
            rows.append(([tokenizer.cls_id, *ids[start : start + size], tokenizer.sep_id], length))
            owners.append(number)
            here = window_of[places.tokens] == window
            tokens = num_tokens + 1 + places.tokens[here] - start
            tagged.append(np.stack([tokens, places.words[here], places.ends[here], label[here]]))
            num_tokens += len(rows[-1][0])
    tokens, *columns = np.concatenate(tagged, axis=1)
    per_token = {}
    for name, nothing, column in zip(("words", "ends", "labels"), (-1, -1, IGNORED), columns, strict=True):
        per_token[name] = np.full(num_tokens, nothing, np.int64)
        per_token[name][tokens] = column
    if labels is None:
        del per_token["labels"]
    return Features.of(rows, owners, per_token=per_token)


def gold_tags(examples: Sequence[TaggedExample]) -> list[tuple[str, ...]]:
    """Return the tags of labelled examples."""
    return labels_of(examples, "tags", missing=())


_INVISIBLE = ("Zs", "Zl", "Zp", "Cc", "Cf")


class Places(NamedTuple):
    """The words that have a token of their own, ascending."""

    tokens: np.ndarray  # int64, where each of these words is tagged
    words: np.ndarray  # int64, their numbers
    ends: np.ndarray  # int64, one more than the last word that a token of each reaches


def find_places(words: Sequence[str], spaces: bool, spans: Sequence[tuple[int, int]]) -> Places:
    """Return where words are tagged."""
    text = (" " if spaces else "").join(words)
    lengths = np.array([len(word) + spaces for word in words], np.int64)
    seen = np.flatnonzero([_visible(character) for character in text])
    word_of_seen = np.repeat(np.arange(len(words)), lengths)[seen]
    bounds = np.searchsorted(seen, np.array(spans, np.int64).reshape(-1, 2))
    tokens = np.flatnonzero(bounds[:, 1] > bounds[:, 0])
    owners, last = word_of_seen[bounds[tokens, 0]], word_of_seen[bounds[tokens, 1] - 1]
    tagged, first = np.unique(owners, return_index=True)
    ends = np.zeros(len(words), np.int64)
    np.maximum.at(ends, owners, last + 1)
    return Places(tokens[first], tagged, ends[tagged])


def spread(
    num_words: int, words: np.ndarray, ends: np.ndarray, tags: Sequence[str], probabilities: np.ndarray
) -> tuple[list[str], list[float]]:
    """Return tag and probability of every word from those of the words that have a token of their own.

    A word that left no token has the probability of the word before it, 1 at the start.
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
    """Cut a sentence that is too long into windows that overlap by half; each token is tagged in one of them.

    Return where each of the K windows starts, int64 [K], and the window of each token, int64 [P]: that in which the shorter
    of its two contexts is longest.
    """
    last = max(num_pieces - size, 0)
    starts = np.append(np.arange(0, last, max(size // 2, 1)), last)
    # Up to here a token is nearer to the centre of one window than to that of the next; twice the place, to stay whole.
    middles = starts[:-1] + starts[1:] + size - 1
    return starts, np.searchsorted(middles, 2 * np.arange(num_pieces))


@lru_cache(100_000)
def _visible(character: str) -> bool:
    return unicodedata.category(character) not in _INVISIBLE


def _inside(tag: str) -> str:
    """Return the tag of a word that goes on with what this tag began."""
    return tag if tag == "O" else f"I-{tag[2:]}"
