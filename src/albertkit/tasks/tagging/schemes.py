"""How tags spell entities: a tag is `O`, or a prefix and a type, such as `B-person`.

- IOB2: every entity begins with B-.
- IOB1: an entity begins with I-, and with B- only right after another one of its type (CoNLL-2003 as it was published).
- BIOES: the last word of an entity has E-, an entity of one word has S-. Also spelt BILOU: L for E, U for S.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from albertkit.tasks.metrics.tagging import spans

SCHEMES = ("IOB2", "IOB1", "BIOES")

_TAG = re.compile(r"O|[BIESLU]-.+", re.DOTALL)
_BILOU = str.maketrans("LU", "ES")


def is_tag(text: str) -> bool:
    """Whether it could be a tag of any scheme."""
    return _TAG.fullmatch(text) is not None


def from_bilou(tag: str) -> str:
    """The tag with the prefixes of BIOES."""
    return tag[0].translate(_BILOU) + tag[1:]


def write_tags(entities: Sequence[tuple[str, int, int]], num_words: int, scheme: str = "IOB2") -> list[str]:
    """The tags of a sentence.

    Args:
        entities: Type, first and last word; ascending.
        num_words: Of the sentence.
        scheme: One of `SCHEMES`.
    """
    tags = ["O"] * num_words
    for kind, first, last in entities:
        tags[first : last + 1] = [f"I-{kind}"] * (last + 1 - first)
        if scheme != "IOB1" or (first > 0 and tags[first - 1][2:] == kind):
            tags[first] = f"B-{kind}"
        if scheme == "BIOES":
            tags[last] = f"S-{kind}" if first == last else f"E-{kind}"
    return tags


def find_scheme(sentences: Iterable[list[str]]) -> str:
    """The scheme in which most sentences are well-formed, the first of `SCHEMES` if several are equal."""
    fits = Counter[str]()
    for tags in sentences:
        entities = spans(tags)
        fits.update(scheme for scheme in SCHEMES if write_tags(entities, len(tags), scheme) == tags)
    return max(SCHEMES, key=lambda scheme: fits[scheme])
