"""The tokenizer of the COCO caption scorer in Python: Stanford's PTBTokenizer 3.4.1 and what pycocoevalcap's
`tokenizer/ptbtokenizer.py` does around it.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from albertkit.captioning.metrics.ptb_rules import OVER_BLANKS, QUOTED, rules

# The scorer lists `-LRB-` and the other brackets as well, but compares with lower-cased tokens, so those stay in.
_REMOVED = frozenset(["", "''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"])
_REWRITTEN = {
    "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-", "&lt;": "<", "&gt;": ">", "&amp;": "&", "&nbsp;": "", "&quot;": "''",
    "\xa2": "cents", "\xa3": "#", "\xa4": "$", "\x80": "$", "\u20a0": "$", "\u20ac": "$",
    "\xbc": "1/4", "\xbd": "1/2", "\xbe": "3/4", "\u2153": "1/3", "\u2154": "2/3",
    **dict.fromkeys(["&md;", "&mdash;", "&ndash;", "\x96", "\x97", "\u2013", "\u2014", "\u2015", "---", "----"], "--"),
    **dict.fromkeys(["....", ".....", "\x85", "\u2026"], "..."),
}  # fmt: skip
_QUOTES = str.maketrans(
    {'"': "''", **dict.fromkeys("\x91\u2018\u201b\u2039", "`"), **dict.fromkeys("\x92\u2019\u203a", "'"),
     **dict.fromkeys("\x93\u201c\xab", "``"), **dict.fromkeys("\x94\u201d\xbb", "''")}
)  # fmt: skip
_LINE_BREAKS = re.compile(r"[\r\n\x0b\x0c\x85\u2028\u2029]")


def tokenize_captions(captions: Sequence[str]) -> list[str]:
    """Tokens of captions, lower-cased, without punctuation, with one blank between them.

    Brackets become `-lrb-` and the like and stay; currency signs are rewritten (€ to $, £ to #), British spelling is not.
    The original reads all captions as one text, a line each, so what follows a caption can change its last token: `plan b.`
    keeps its full stop unless the next caption begins with `The` or the like. So is it here.

    Args:
        captions: Any texts. A line break within one becomes a blank; of most of them the original makes another caption.
    """
    lines = [_LINE_BREAKS.sub(" ", caption) for caption in captions]
    return [" ".join(_line_tokens(lines, number)) for number in range(len(lines))]


def _line_tokens(lines: Sequence[str], number: int) -> list[str]:
    line, end = lines[number], "" if number == len(lines) - 1 else "\n"
    if OVER_BLANKS.search(line):
        return _tokens("\n".join(lines[number : number + 3]), len(line))
    *words, last = line.split(" ")
    return [token for word in words for token in _word_tokens(word, " ")] + _word_tokens(last, end)


@lru_cache(maxsize=1 << 16)  # captions repeat their words
def _word_tokens(word: str, after: str) -> list[str]:
    return _tokens(word + after, len(word))


def _tokens(text: str, stop: int) -> list[str]:
    """The tokens that begin before `stop`: at each place that of the rule that reaches furthest, with what must follow it.

    Characters that no rule knows are dropped.
    """
    found, place = [], 0
    while place < stop:
        matches = [match for rule in rules() if (match := rule.match(text, place))]
        if matches:
            best = max(matches, key=re.Match.end)  # of equal ones the first
            found.append(_rewritten(best[1]))
            place = best.end(1)
        else:
            place += 1
    return [token for token in found if token not in _REMOVED]


def _rewritten(token: str) -> str:
    if QUOTED.fullmatch(token):
        token = token.replace("&apos;", "'").translate(_QUOTES)
    token = _REWRITTEN.get(token, token).replace("(", "-lrb-").replace(")", "-rrb-").replace("&amp;", "&")
    return token.replace("\xad", "").replace(" ", "\xa0").lower()
