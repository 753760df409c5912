"""ROUGE-L (Lin 2004) of captions: pycocoevalcap's `rouge/rouge.py`."""

from collections.abc import Sequence

_BETA = 1.2  # recall weighs more than precision


def rouge_l(candidate: str, references: Sequence[str]) -> float:
    """F of the longest common subsequence: the best precision over the references with the best recall over them.

    The two may come from different references; so the original.

    Args:
        candidate: A tokenised caption, words with one blank between them. The original takes an empty one for one word
            that is empty, so it matches an empty reference.
        references: At least one, tokenised.

    Returns:
        0 to 1.
    """
    words = candidate.split(" ")
    places: dict[str, int] = {}  # word -> bits of its places in the candidate
    for place, word in enumerate(words):
        places[word] = places.get(word, 0) | 1 << place
    precision = recall = 0.0
    for reference in references:
        reference_words = reference.split(" ")
        common = _longest_common_subsequence(places, len(words), reference_words)
        precision = max(precision, common / len(words))
        recall = max(recall, common / len(reference_words))
    if not precision:
        return 0.0
    return (1 + _BETA**2) * precision * recall / (recall + _BETA**2 * precision)


def _longest_common_subsequence(places: dict[str, int], length: int, words: Sequence[str]) -> int:
    """Its length, a row of the table at once in the bits of a whole number (Crochemore et al. 2001): 0 where it grows."""
    row = (1 << length) - 1
    for word in words:
        same = row & places.get(word, 0)
        row = (row + same) | (row - same)
    return length - (row & (1 << length) - 1).bit_count()
