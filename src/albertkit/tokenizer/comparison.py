"""One reader of a tokenizer's folder against another, text by text, and the known bugs that explain what differs.

A bug is blamed for a difference only if the two sides agree once what triggers it has been taken out of the text.
"""

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from albertkit.tokenizer.fast import regex_class
from albertkit.tokenizer.tokenizer import AlbertTokenizer

Encode = Callable[[str], list[Any]]
_HANGUL = "[\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3\uffa0-\uffdc]"
_OURS = "open a folder that albertkit wrote (`albertkit tokenizer convert DIR NEW`) with transformers.AutoTokenizer"


class KnownBug(NamedTuple):
    """A known reason for different ids.

    Attributes:
        name: Short.
        says: The effect.
        cure: The advice.
        trigger: Matches what brings it about in a text; None where it does not depend on the text.
    """

    name: str
    says: str
    cure: str = _OURS
    trigger: re.Pattern[str] | None = None


def _in_texts(name: str, trigger: str, says: str, cure: str = _OURS) -> KnownBug:
    return KnownBug(name, says, cure, re.compile(trigger))


UNKNOWN = "unexplained"


@cache
def known_bugs() -> tuple[KnownBug, ...]:
    """List the known reasons. The first call takes 0.08 s: it sorts all characters of two planes."""
    characters = "".join(c for c in map(chr, range(0x20000)) if not 0xD800 <= ord(c) < 0xE000)
    marks = "".join(c for c in characters if unicodedata.category(c)[0] == "M")
    signs = "".join(c for c in marks if not unicodedata.combining(c))
    hangul = re.compile(_HANGUL)
    composed = "".join(c for c in characters if unicodedata.normalize("NFKD", c) != c and not hangul.match(c))
    return (
        _in_texts(
            "special-names", r"\[(?:CLS|SEP|MASK|PAD|UNK)\]|<(?:pad|unk|mask|cls|sep|/?s)>",
            "names of special tokens in a text become their ids", "remove them from texts that users send",
        ),
        _in_texts(
            "digit-comma", r"(?<=\d)[,，]|,$",
            "a number and the comma after it stay one token; Google's code takes them apart",
        ),
        _in_texts(
            "symbols-as-special-tokens", "[()\"\\-.–£€]|…",
            "( ) \" - . – £ € are made special tokens: the token of the space before them is lost, another one follows them, "
            "and maskers never mask them",
        ),
        _in_texts("quotes", "``|''", "`` and '' become \"; Google's code leaves them alone"),
        _in_texts(
            "control-characters", "[\x1c-\x1f\x0b\x0c\x85\u2028\u2029]",
            "not all that Python's str.split takes for white space separates words",
        ),
        _in_texts("final-sigma", "Σ", "a capital sigma at the end of a word becomes σ; Python makes it ς"),
        _in_texts("vowel-signs", regex_class(signs), "vowel signs of Indic scripts and Thai are removed"),
        _in_texts("hangul", _HANGUL, "Hangul is taken apart into jamo and not put together again: it becomes unknown"),
        _in_texts(
            "case", regex_class(c for c in characters if c != c.lower()),
            "the text is lower-cased though the folder's rules keep case, or the reverse",
        ),
        _in_texts(
            "accents", regex_class(marks + composed),
            "accents and compatibility characters are treated by other rules than the folder's",
        ),
        KnownBug("no-segments", "a pair has no segment ids (transformers 5)"),
        KnownBug(
            "space-in-offsets",
            "the offsets of a word begin with the space before it, so that a pipeline answers ' NASA' for 'NASA'",
        ),
        KnownBug(
            "morpheme-spaces", "the vocabulary wants spaces between morphemes; only albertkit puts them there",
            "encode with albertkit, or train a tokenizer with --morphemes boundary, which needs no spaces",
        ),
        KnownBug(
            "no-configuration",
            "no file says that this is the tokenizer of an ALBERT, so AutoTokenizer reads it as another one's",
        ),
        KnownBug("unreadable", "the folder cannot be read"),
        KnownBug(
            "vocab-mismatch", "the model has fewer tokens than the tokenizer", "use the tokenizer the model was trained with",
        ),
        KnownBug("pad-mismatch", "the model pads with another id", "correct `pad_token_id` in config.json"),
        KnownBug(UNKNOWN, "no known bug", "report it, with the text"),
    )  # fmt: skip


@dataclass
class Difference:
    """One text that two readers read differently.

    Attributes:
        text: The text, or what was compared.
        ours: Our tokens, or our value.
        theirs: The same of the other reader.
        causes: Names of known bugs, or "unexplained".
    """

    text: str
    ours: list[str]
    theirs: list[str]
    causes: list[str]

    def where(self) -> tuple[list[str], list[str]]:
        """Return both sides without their common beginning and end, but for a token on each side."""
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
        own: It is albertkit's or reads a file that albertkit wrote: then it must agree.
        compared: Number of texts.
        differences: Texts on which it does not agree.
        skipped: Reason why nothing was compared; empty if something was.
    """

    name: str
    own: bool
    compared: int = 0
    differences: list[Difference] = field(default_factory=list)
    skipped: str = ""

    def add(self, text: str, ours: Iterable[object], theirs: Iterable[object], cause: str) -> None:
        """Add a difference with one cause."""
        self.differences.append(Difference(text, list(map(str, ours)), list(map(str, theirs)), [cause]))

    def examples(self) -> list[Difference]:
        """Return the first difference of each cause."""
        met: set[str] = set()
        chosen = []
        for difference in self.differences:
            if not met.issuperset(difference.causes):
                chosen.append(difference)
                met.update(difference.causes)
        return chosen


def compare(
    name: str, own: bool, tokenizer: AlbertTokenizer, texts: Sequence[str], theirs: Encode, ours: Encode | None = None
) -> Comparison:
    """Compare a reader with `encode`, or with `ours`, on some texts."""
    ours = ours or tokenizer.encode
    comparison = Comparison(name, own, len(texts))
    for text in texts:
        one, two = ours(text), theirs(text)
        if one != two:
            causes = [UNKNOWN] if own else explain(text, lambda other: ours(other) == theirs(other))
            comparison.differences.append(Difference(text, _tokens(tokenizer, one), _tokens(tokenizer, two), causes))
    return comparison


def _tokens(tokenizer: AlbertTokenizer, ids: list[Any]) -> list[str]:
    """Return the tokens of ids, and unknown ids as numbers."""
    known = range(tokenizer.vocab_size)
    return [tokenizer.id_to_piece(i) if i in known else str(i) for i in ids]


def with_names(tokenizer: AlbertTokenizer) -> Encode:
    """Return an `encode` for which names of special tokens in a text are their ids, as in every reader but albertkit's."""
    names = {tokenizer.id_to_piece(i): i for i in tokenizer.special_ids()}
    cut = re.compile("(" + "|".join(map(re.escape, names)) + ")")

    def encode(text: str) -> list[int]:
        ids: list[int] = []
        for part in cut.split(text):
            ids += [names[part]] if part in names else tokenizer.encode(part)
        return ids

    return encode


def explain(text: str, agree: Callable[[str], bool]) -> list[str]:
    """Return the known bugs behind a difference: as few as can be without whose triggers the two sides agree.

    `UNKNOWN` alone if nothing explains it. `agree` says whether both sides agree on a text.
    """
    present = [(bug.name, bug.trigger) for bug in known_bugs() if bug.trigger and bug.trigger.search(text)]
    for number in range(1, len(present) + 1):
        for blamed in itertools.combinations(present, number):
            for filler in (" ", ""):  # one of them may bring two characters together that are a trigger themselves
                rest = text
                for _, trigger in blamed:
                    rest = trigger.sub(filler, rest)
                if agree(rest):
                    return [name for name, _ in blamed]
    return [UNKNOWN]
