"""The tokenizer of the COCO caption scorer in Python: what Stanford's PTBTokenizer 3.4.1 prints, and what pycocoevalcap's
`tokenizer/ptbtokenizer.py` drops of it.

The rules were learned from what the program prints, not from its source. Which quote or dash it
prints is not modelled: the scorer drops them all. Of 270,000 English and Korean lines 2 differ: a
combining accent before a hyphen, a long address; of 80,000 paragraphs of Wikipedia 314, mostly
rests of markup.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

# Whatever their case is: `Mr.`, `dept.`
ANY_CASE = """
    adj adm adv al ala alex apr ariz assn assoc asst atty aug ave bancorp bhd bldg blvd brig bros calif capt cf cie cmdr co col
    colo conn corp cos cpl ct dak dec dept det dr drs elec ens esq est etc ext feb fla fri ft ga gen gov govs hon inc ind insp
    intl invt jan jos jr jul jun kan kans ky lieut lt ltd maj mar md messrs mfg mich minn mlle mme mo mon mont mr mrs ms msgr mt
    mtg natl neb nev nov oct okla penn pfc ph plc ppte ppty pres prof profs pte ptes pty ptys pvt rd rep reps rev rt sen sens
    sep sept seq sfc sgt spc sq sr st ste supt sys tel tenn thu thurs tue tues univ va vs vt wed wis wisc wm wyo
""".split()

# Words as well, so only with a capital: `Miss.` is a state, `miss.` ends a sentence.
CAPITALISED = "ark az del ill la mass miss ore pa tex wash".split()

# Only before a number: `no. 5`.
BEFORE_NUMBERS = "art ca fig figs no nos op pp prop".split()

# After a single letter, these begin a new sentence and the full stop is not the letter's: `plan b.
# The dog`.
SENTENCE_STARTS = """
    A About According Additionally After An As At But Earlier He Her Here However If In It Last Many More Now Once One Other
    Our She Since So Some Such That The Their Then There These They This We What When While Yet You
""".split()


# A letter, with the accents and vowel signs that Python does not count as one; a letter or digit.
# Not ², ₂, ⅛ or ①.
_SIGNS = (
    r"\u02de-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u064b-\u065e\u0900-\u0903\u093c-\u0955\u0981-\u0983\u09bc-\u09cd"
    r"\u0a01-\u0a4f\u0b82-\u0bcd\u0c01-\u0d48\u0e31-\u0e3a\u0e47-\u0e4e"
)
_LETTER = (
    rf"(?:(?![\u2070-\u209c\u2150-\u215f\u2460-\u24b5\u2776-\u2793²³¹¼½¾])[^\W\d_]|[{_SIGNS}])"
)
_PART = rf"(?:{_LETTER}|\d)+"
_HYPHENED = rf"{_PART}(?:_{_PART})*(?:[-‐‑]{_PART}(?:_{_PART})*)*"
_NUMBER = r"\d*(?:[.,:]?\d+)+"
_END = rf"(?!{_LETTER})"
_NOT_ASCII = "(?![A-Za-z])"  # it'sé is three tokens, it'sa two
_ALONE = rf"(?![-_/.]?(?:{_LETTER}|\d))"  # wanna-be and gonna.com are one token
_FRACTION = r"(?:\d{1,4}[- \xa0])?\d{1,4}[/⁄]\d{1,4}(?!\d)"


def _alternation(words: Sequence[str]) -> str:
    return "(?:" + "|".join(words) + ")"


# What contractions hang on goes before all others: did|n't, can|not, gon|na, 't|was.
_HEAD = re.compile(
    rf"{_LETTER}+?(?=[nN]['’][tT]{_END})|(?i:can(?=not{_ALONE})|(?:gon|wan)(?=na{_ALONE})|got(?=ta{_ALONE})|(?:gim|lem)(?=me{_ALONE})"
    rf"|'t(?=(?:is|was){_NOT_ASCII})|y['’](?={_LETTER})|(?:mo|co|inc)\.(?=[a-z](?![A-Za-z])))|j['’](?={_LETTER})"
)
# At each place the rule that reaches furthest wins; what it looks ahead at does not count.
_RULES = [
    re.compile(rule)
    for rule in (
        # The other half of contractions, and what is shortened: n't, 's, 'n', 'em, 'cause, '90s,
        # '05.
        rf"(?i:n['’]t{_END}|(?:['’]|&apos;)(?:s|d|m|ll|re|ve){_NOT_ASCII}|['’]n(?:['’]|{_END})|[dlc]['’]{_END}|['’](?:em|till?|cause)|ol['’])",
        r"['’](?:\d0s|\d\d(?=\s))",
        # Names and words with an apostrophe inside: O'Brien, d'Ivoire, X'mas, Ba'al, ma'am.
        rf"(?:{_PART}-)*(?:[A-HJ-Z]|[odl])['’]{_LETTER}{{2,}}|n['’]{_LETTER}{{2,}}|(?i:c'mon|c'est|n'est|qu'il|cap'n|ma['’]am|[eo]'er|ne'er|nat'l|ev'ry|nor'easter)",
        rf"{_LETTER}+[aeiou]['’][aeiou]{_LETTER}*",
        # Any word keeps its full stop before a comma or colon, or in a compound: Ont.,
        # Calif.-based
        rf"(?:(?:{_PART}-)*|[A-Z]\.){_PART}\.(?=[,;:])|{_LETTER}+\.(?:-{_LETTER}+)+",
        # Full stops that belong to the token: Mr., Miss., no. 5, U.S., a.m., Ph.D., U.S.-based; a
        # single letter's.
        rf"(?i:{_alternation(ANY_CASE)}\.)|{_alternation([*map(str.capitalize, CAPITALISED), *map(str.upper, CAPITALISED)])}\.",
        rf"(?i:{_alternation(BEFORE_NUMBERS)}\.)(?=\s?\d)",
        r"(?:[A-Za-z]+-)*[A-Za-z](?:\.[A-Za-z])+\.(?:-(?:(?:[A-Za-z]\.){2,}|[A-Za-z]+)|(?![A-Za-z]))|Ph\.[Dd]\.",
        rf"[A-Za-z]\.(?!\s+{_alternation([*SENTENCE_STARTS, *map(str.upper, SENTENCE_STARTS)])}\s)",
        # Addresses, handles, tags of markup.
        r"https?://[^\s<>\"|(){}\[\]]+\.[^\s<>\"|(){}\[\]]*[^\s<>\"|(){}\[\].,;:!?-]|https?:///?[\w.…]{2,}",
        r"www\.(?:[\w-]+\.)+[a-z]{2,4}(?:/[^\s<>\"|()]*[^\s<>\"|(){}\[\].,;:!?-])?|\w[\w.+-]*@[A-Za-z0-9][\w-]*(?:\.[\w-]+)*",
        rf"@[A-Za-z_][A-Za-z0-9_]*|#{_LETTER}+|</?[A-Za-z][\w:.@-]*(?:\s[^<>]*)?/?>",
        # Words and what holds them together: x-ray, a/b, node.js, 2x4, 10-12, 3-year-old.
        r"(?:(?:[A-Za-z0-9]+-)+[A-Za-z]+|[A-Za-z0-9]+)(?:/[A-Za-z0-9]+(?:-[A-Za-z]+)*){1,2}",
        rf"\d+/\d+-\d+|anti-(?!{_LETTER})|[cCfF](?:#|\+\+)",
        _HYPHENED,
        rf"{_LETTER}(?:{_PART})?(?:[.!?]{_LETTER}(?:{_PART})?)+(?:-{_PART})*|[A-Z]+(?:(?:&|&amp;|\+)[A-Z]+)+",
        # Numbers: 1,000.50, 3:30, -5, 1.5-inch, 5 7/8, (555) 123-4567.
        rf"{_FRACTION}|{_LETTER}*\d+(?:[.,]\d+)*(?:-{_PART})+|[-+]?{_NUMBER}",
        r"(?:\(\d{2,3}\)|\d{3})[ \xa0]?\d{3,4}[- \xa0]\d{4}(?!\d)",
        # Signs of two or more characters: :-), US$, &quot;, !!, ***, -----.
        rf"[<>]?[:;=][-o']?(?:[()\[\]|\\\\]|[DdPpO]{_END})(?=[^A-Za-z0-9])|\(?\^_\^\)?|-_-|=_=|>_<|~_~|-[LR][RCS]B-",
        r"(?:(?:US|CA|AU)D?|HK|NZ|NT|[ACRS])\$|&#\d+;|(?i:&(?:amp|lt|gt|quot|apos|nbsp|mdash|ndash);)",
        r"[!?]+|\*+|_+|#+|@+|-{2,}|\.{3,}|<<|>>|[“”‘’«»‹›]{2,}|''|``",
        # Any other sign. Those not listed, such as ₩ or emoji, the program does not know and leaves
        # out.
        r"[!-~¡-\xac®-¿×÷฿€\x80₠₤\u2016\u2017\u2020-\u2023\u2030-\u203b\u203e-\u2042\u2044\u2070-\u208e„‚\u2100-\u214f\u2153-\u215e]",
        r"[\u2190-\u2bff、。・！-／：-＠［-･]",
    )
]
_REWRITTEN = {
    "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-", "¢": "cents", "£": "#", **dict.fromkeys("€¤₠\x80", "$"),
    "¼": "1/4", "½": "1/2", "¾": "3/4", "⅓": "1/3", "⅔": "2/3", "&lt;": "<", "&gt;": ">",
}  # fmt: skip
_QUOTES = str.maketrans(
    {"‘": "`", "‹": "`", "’": "'", "›": "'", "“": "``", "«": "``", "”": "''", "»": "''"}
)
_STRAIGHTENED = re.compile("n’t|’(?:s|d|m|ll|re|ve)|[“”‘’«»‹›]+")  # but o’clock stays as it is
# The scorer lists `-LRB-` and the other brackets as well, but compares with lower-cased tokens, so
# those stay in.
_DROPPED = re.compile(r"['`.?!,:;\"]|''|``|-{1,4}|\.{3,}|&(?:quot|apos|nbsp|mdash|ndash);")

# Tokens that go over a blank, which the program prints as a no-break one: `<a href="x">`, `5 7/8`,
# `(555) 123-4567`.
_OVER_BLANKS = re.compile(
    r"</?[A-Za-z][^<>]*\s[^<>]*>|\d[ \xa0]\d{1,4}[/⁄]\d|\d\)?[ \xa0]?\d{3,4}[- \xa0]\d{4}"
)
_LINE_BREAKS = re.compile(r"[\r\n\x0b\x0c\x85\u2028\u2029]")
_AFTER = re.compile(r"\s*\S*\s?")


def tokenize_captions(captions: Sequence[str]) -> list[str]:
    """Return tokens of captions, lower-cased, without punctuation, with one blank between them.

    Brackets become `-lrb-` and the like and stay; currency signs are rewritten (€ to $, £ to #),
    British spelling is not. The original reads all captions as one text, a line each, so what
    follows a caption can change its last token: `plan b.` keeps its full stop unless the next
    caption begins with `The` or the like. So is it here.
    """
    text = "\n".join(_LINE_BREAKS.sub(" ", caption).replace("\xad", "") for caption in captions)
    tokenized = []
    start = 0
    for line in text.split("\n"):
        stop = start + len(line)
        tokens: list[str] = []
        if _OVER_BLANKS.search(text, start, stop):
            tokens += _tokenize(text[start : stop + 64], stop - start)
        else:
            for word in line.split(" "):
                end = start + len(word)
                after = _AFTER.match(text, end) if word.endswith(".") else None
                tokens += _tokenize(word + (after[0] if after else text[end : end + 1]), len(word))
                start = end + 1
        tokenized.append(" ".join(tokens))
        start = stop + 1
    return tokenized[: len(captions)]


@lru_cache(maxsize=1 << 16)  # captions repeat their words
def _tokenize(text: str, stop: int) -> tuple[str, ...]:
    """Return the tokens that begin before `stop`. Characters that no rule knows, quotes, dashes and emoji, are dropped."""
    tokens = []
    position = 0
    while position < stop:
        head = _HEAD.match(text, position)
        matches = (
            [head] if head else [match for rule in _RULES if (match := rule.match(text, position))]
        )
        end = max((match.end() for match in matches), default=position)
        if end > position:
            token = text[position:end]
            token = _REWRITTEN.get(token, token).replace("(", "-lrb-").replace(")", "-rrb-").lower()
            if "://" not in token:
                token = token.replace("&amp;", "&").replace("&apos;", "'")
            if _STRAIGHTENED.fullmatch(token):
                token = token.translate(_QUOTES)
            tokens.append(re.sub(r"\s", "\xa0", token))
        position = max(end, position + 1)
    return tuple(token for token in tokens if not _DROPPED.fullmatch(token))
