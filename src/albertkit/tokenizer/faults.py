"""Known faults of other readers of ALBERT's tokenizers, and how to tell that one of them is behind a difference.

A fault is blamed for a difference only if the two sides agree once what triggers it has been taken out of the text.
"""

import itertools
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from albertkit.tokenizer.fast import regex_class

_ALL = "".join(c for c in map(chr, range(0x20000)) if not 0xD800 <= ord(c) < 0xE000)
_MARKS = "".join(c for c in _ALL if unicodedata.category(c)[0] == "M")
_VOWEL_SIGNS = "".join(c for c in _MARKS if not unicodedata.combining(c))
_HANGUL = "[\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3\uffa0-\uffdc]"
_DECOMPOSED = "".join(c for c in _ALL if unicodedata.normalize("NFKD", c) != c and not re.match(f"{_HANGUL}", c))


@dataclass(frozen=True)
class Fault:
    """A known fault.

    Attributes:
        name: Short.
        trigger: What in a text brings it about.
        says: What happens.
        cure: What to do.
    """

    name: str
    trigger: re.Pattern[str]
    says: str
    cure: str


_OURS = "open a folder that albertkit wrote (`albertkit tokenizer convert DIR NEW`) with transformers.AutoTokenizer"
FAULTS = (
    Fault(
        "special-names", re.compile(r"\[(?:CLS|SEP|MASK|PAD|UNK)\]|<(?:pad|unk|mask|cls|sep|/?s)>"),
        "names of special tokens in a text become their ids", "remove them from texts of strangers",
    ),
    Fault(
        "digit-comma", re.compile(r"(?<=\d)[,，]|,$"),
        "a number and the comma after it stay one piece; Google's code takes them apart", _OURS,
    ),
    Fault(
        "symbols-as-special-tokens", re.compile("[()\"\\-.–£€]|…"),
        "( ) \" - . – £ € are made special tokens: the piece of the space before them is lost, one after them is made up, "
        "and maskers never mask them", _OURS,
    ),
    Fault("quotes", re.compile("``|''"), "`` and '' become \"; Google's code leaves them alone", _OURS),
    Fault(
        "control-characters", re.compile("[\x1c-\x1f\x0b\x0c\x85\u2028\u2029]"),
        "not all that Python's str.split takes for white space separates words", _OURS,
    ),
    Fault("final-sigma", re.compile("Σ"), "a capital sigma at the end of a word becomes σ; Python makes it ς", _OURS),
    Fault("vowel-signs", re.compile(f"{regex_class(_VOWEL_SIGNS)}"), "vowel signs of Indic scripts and Thai are removed", _OURS),
    Fault(
        "hangul", re.compile(f"{_HANGUL}"),
        "Hangul is taken apart into jamo and not put together again: it becomes unknown", _OURS,
    ),
    Fault(
        "case", re.compile(f"{regex_class(''.join(c for c in _ALL if c != c.lower()))}"),
        "the text is lower-cased though the folder's rules keep case, or the reverse", _OURS,
    ),
    Fault(
        "accents", re.compile(f"{regex_class(_MARKS + _DECOMPOSED)}"),
        "accents and compatibility characters are treated by other rules than the folder's", _OURS,
    ),
)  # fmt: skip
UNKNOWN = "unexplained"
# Of what is no difference between texts: what it means, what to do.
OTHERS = {
    "no-segments": ("a pair has no segment ids (transformers 5)", _OURS),
    "space-in-offsets": (
        "the offsets of a word begin with the space before it, so that a pipeline answers ' NASA' for 'NASA'",
        _OURS,
    ),
    "morpheme-spaces": (
        "the vocabulary wants spaces between morphemes; only albertkit puts them there",
        "encode with albertkit, or train a tokenizer with --morphemes boundary, which needs no spaces",
    ),
    "no-configuration": (
        "no file says that this is the tokenizer of an ALBERT, so AutoTokenizer reads the model as another one's",
        _OURS,
    ),
    "unreadable": ("the folder cannot be read", _OURS),
    "vocab-mismatch": ("the model has fewer pieces than the tokenizer", "use the tokenizer the model was trained with"),
    "pad-mismatch": ("the model pads with another id", "correct `pad_token_id` in config.json"),
    UNKNOWN: ("no known fault", "report it, with the text"),
}


def explain(text: str, agree: Callable[[str], bool]) -> list[str]:
    """Names of the faults behind a difference: as few as can be without whose triggers the two sides agree.

    Args:
        text: On which they differ.
        agree: Whether they agree on a text.

    Returns:
        Names; `UNKNOWN` alone if nothing explains it.
    """
    present = [fault for fault in FAULTS if fault.trigger.search(text)]
    for number in range(1, len(present) + 1):
        for blamed in itertools.combinations(present, number):
            for filler in (" ", ""):  # one of them may bring two characters together that are a trigger themselves
                rest = text
                for fault in blamed:
                    rest = fault.trigger.sub(filler, rest)
                if agree(rest):
                    return [fault.name for fault in blamed]
    return [UNKNOWN]
