"""The COCO caption scorer in Python: ROUGE-L, BLEU and CIDEr of captions (`score_captions`), and its tokenizer."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from albertkit.errors import DataError
from albertkit.output.sections import FactList, Result, Section
from albertkit.tables.bad_rows import pluralize

# Of ROUGE-L, as in the evaluation code of COCO: recall weighs more than precision.
_BETA = 1.2


def rouge_l(candidate: str, references: Sequence[str]) -> float:
    """Compute F of the longest common subsequence: the best precision over the references with the best recall over them.

    The two may come from different references; so the original.
    """
    words = candidate.split(" ")
    word_positions: dict[str, int] = {}  # word -> bits of its places in the candidate
    for position, word in enumerate(words):
        word_positions[word] = word_positions.get(word, 0) | 1 << position
    precision = recall = 0.0
    for reference in references:
        reference_words = reference.split(" ")
        # The longest common subsequence, a row of its table at once in the bits of a whole number
        # (Crochemore et al. 2001): 0 where it grows.
        row = all_ones = (1 << len(words)) - 1
        for word in reference_words:
            matches = row & word_positions.get(word, 0)
            row = (row + matches) | (row - matches)
        common = len(words) - (row & all_ones).bit_count()
        precision = max(precision, common / len(words))
        recall = max(recall, common / len(reference_words))
    if not precision:
        return 0.0
    return (1 + _BETA**2) * precision * recall / (recall + _BETA**2 * precision)


# pycocoevalcap, the tests' oracle, takes 104 MB and needs Java.
MAX_SIZE = 4  # BLEU-4 and CIDEr count 1-grams to 4-grams


class NgramRows(NamedTuple):
    """Which n-grams of one size stand in which caption, and how often."""

    caption: np.ndarray  # int64 [rows], ascending
    ngram: np.ndarray  # int64 [rows], a number for each different n-gram from 0 to `num_ngrams` - 1
    times: np.ndarray  # int64 [rows], at least 1
    num_ngrams: int


@dataclass(frozen=True)
class NgramCounts:
    """The n-grams of all candidates and references."""

    item: np.ndarray  # int64 [C + R], to which item a caption belongs
    lengths: np.ndarray  # int64 [C + R], words of each caption
    num_items: int  # I
    sizes: tuple[NgramRows, ...]  # for each size from 1 to `MAX_SIZE`

    @classmethod
    def of(cls, candidates: Sequence[str], references: Sequence[Sequence[str]]) -> "NgramCounts":
        """Count the n-grams of captions."""
        captions = [*candidates, *(reference for group in references for reference in group)]
        words = [caption.split() for caption in captions]
        lengths = np.array([len(caption) for caption in words], np.int64)
        vocabulary: dict[str, int] = {}
        numbers = [
            vocabulary.setdefault(word, len(vocabulary)) for caption in words for word in caption
        ]
        word_ids = np.array(numbers, np.int64)
        caption_of = np.repeat(np.arange(len(words)), lengths)
        starts = np.arange(len(word_ids))
        ngrams = word_ids
        sizes = []
        for size in range(1, MAX_SIZE + 1):
            # An n-gram is the shorter one at its start and one more word of the same caption
            if size > 1:
                ends = starts + size - 1
                is_complete = ends < len(word_ids)
                is_complete[is_complete] = (
                    caption_of[ends[is_complete]] == caption_of[starts[is_complete]]
                )
                starts = starts[is_complete]
                ends = ends[is_complete]
                ngrams = np.unique(
                    ngrams[is_complete] * len(vocabulary) + word_ids[ends], return_inverse=True
                )[1]
            num_ngrams = int(ngrams.max(initial=-1)) + 1
            pairs, times = np.unique(caption_of[starts] * num_ngrams + ngrams, return_counts=True)
            sizes.append(NgramRows(*np.divmod(pairs, max(num_ngrams, 1)), times, num_ngrams))
        item = np.arange(len(candidates))
        return cls(
            item=np.concatenate([item, np.repeat(item, [len(group) for group in references])]),
            lengths=lengths,
            num_items=len(candidates),
            sizes=tuple(sizes),
        )

    def keys(self, rows: NgramRows) -> np.ndarray:
        """Return a number for each row's pair of item and n-gram, int64 [rows]; equal in candidate and references."""
        return self.item[rows.caption] * rows.num_ngrams + rows.ngram


def lookup_values(keys: np.ndarray, values: np.ndarray, requested_keys: np.ndarray) -> np.ndarray:
    """Return the values of the wanted keys, 0 where there is none; `keys` ascend and differ."""
    if not len(keys):
        return np.zeros(len(requested_keys), values.dtype)
    index = np.searchsorted(keys, requested_keys).clip(max=len(keys) - 1)
    return np.where(keys[index] == requested_keys, values[index], 0)


# They keep a caption without a common n-gram from being exactly 0 / 0; single items without a
# common 4-gram score about 1e-5.
_TINY, _SMALL = 1e-15, 1e-9


def bleu(counts: NgramCounts) -> tuple[np.ndarray, np.ndarray]:
    """Return BLEU of the corpus and of each item."""
    items = counts.num_items
    candidate_lengths = counts.lengths[:items]
    of_item = counts.item[items:]
    lengths = counts.lengths[items:]
    # the reference nearest in length to the candidate, of two equally near the shorter
    order = np.lexsort((lengths, np.abs(lengths - candidate_lengths[of_item]), of_item))
    reference_lengths = lengths[order[np.searchsorted(of_item[order], np.arange(items))]]
    right = []
    guessed = []
    for size, rows in enumerate(counts.sizes, start=1):
        keys = counts.keys(rows)
        of_candidate = rows.caption < items
        in_references, inverse = np.unique(keys[~of_candidate], return_inverse=True)
        max_counts = np.zeros(len(in_references), np.int64)
        np.maximum.at(max_counts, inverse, rows.times[~of_candidate])
        clipped = np.minimum(
            rows.times[of_candidate],
            lookup_values(in_references, max_counts, keys[of_candidate]),
        )
        right.append(np.bincount(rows.caption[of_candidate], clipped, items))
        guessed.append(np.maximum(candidate_lengths - size + 1, 0))
    per_item = _bleu_scores(
        np.array(right),
        np.array(guessed),
        candidate_lengths,
        reference_lengths,
    )
    corpus = _bleu_scores(
        np.sum(right, 1),
        np.sum(guessed, 1),
        candidate_lengths.sum(),
        reference_lengths.sum(),
    )
    return corpus, per_item


def _bleu_scores(
    right: np.ndarray, guessed: np.ndarray, length: np.ndarray, reference_length: np.ndarray
) -> np.ndarray:
    """Compute BLEU from n-grams that are right and that were guessed, [4] or [4, I], and lengths of a corpus or of I items."""
    sizes = np.arange(1, len(right) + 1).reshape(-1, *[1] * (right.ndim - 1))
    precisions = np.cumprod((right + _TINY) / (guessed + _SMALL), axis=0) ** (1 / sizes)
    ratio = (length + _TINY) / (reference_length + _SMALL)
    return precisions * np.exp(np.minimum(1 - 1 / ratio, 0))


_SIGMA = 6.0  # of the penalty on differing lengths, in words
# CIDEr-D is published times 10.
_SCALE = 10.0


def cider(counts: NgramCounts) -> np.ndarray:
    """Compute CIDEr-D of each item; that of the corpus is the mean.

    N-grams weigh by how few of the items' references have them, so the score of an item depends on
    the other items, and that of a single item is 0.

    Returns:
        float64 [I], from 0 to 10.
    """
    items = counts.num_items
    of_item = counts.item[items:]
    similarities = []
    for rows in counts.sizes:  # the clipped cosine of each reference with its candidate
        keys = counts.keys(rows)
        of_candidate = rows.caption < items
        ngrams_of_references = np.unique(keys[~of_candidate]) % max(rows.num_ngrams, 1)
        items_with = np.bincount(ngrams_of_references, minlength=rows.num_ngrams)
        weights = rows.times * (np.log(items) - np.log(np.maximum(items_with, 1)))[rows.ngram]
        norms = np.sqrt(np.bincount(rows.caption, weights**2, len(counts.item)))
        in_reference = weights[~of_candidate]
        in_candidate = lookup_values(keys[of_candidate], weights[of_candidate], keys[~of_candidate])
        products = np.minimum(in_candidate, in_reference) * in_reference
        dots = np.bincount(rows.caption[~of_candidate], products, len(counts.item))[items:]
        norm_products = norms[of_item] * norms[items:]
        similarities.append(
            np.divide(dots, norm_products, out=np.zeros(len(dots)), where=norm_products > 0)
        )
    similarity = np.mean(similarities, axis=0)
    # The original's length of a caption is the number of its 2-grams.
    lengths = np.maximum(counts.lengths - 1, 0)
    penalty = np.exp(-((lengths[of_item] - lengths[items:]) ** 2) / (2 * _SIGMA**2))
    return (
        _SCALE
        * np.bincount(of_item, similarity * penalty, items)
        / np.bincount(of_item, minlength=items)
    )


@dataclass(frozen=True)
class CaptionScores(Result, Mapping[str, float]):
    """Scores of captions; as a mapping, those of the corpus: `scores["CIDEr"]`.

    Names and scale are the COCO caption scorer's: `Bleu_1` to `Bleu_4` and `ROUGE_L` from 0 to 1,
    `CIDEr` from 0 to 10. Papers print 100 times that.

    Attributes:
        corpus: Score by name.
        per_clip: Key of a clip to its scores by name, in the order of the candidates.
        diversity: What shows a captioner that has collapsed: `distinct_captions` and
            `empty_captions`, shares of the candidates after tokenising, and `mean_length`, words of
            a candidate.
        num_captions: Candidates.
        num_references: References of all of them.
        empty_references: How many of these have no word. They are scored, as the original does.
    """

    corpus: dict[str, float]
    per_clip: dict[str, dict[str, float]]
    diversity: dict[str, float]
    num_captions: int
    num_references: int
    empty_references: int = 0

    def __getitem__(self, name: str) -> float:
        return self.corpus[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.corpus)

    def __len__(self) -> int:
        return len(self.corpus)

    def sections(self) -> list[Section]:
        """Return the scores and counts."""
        return [FactList(self.to_dict())]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without the scores of single clips."""
        counts = {"captions": self.num_captions, "references": self.num_references}
        if self.empty_references:
            counts["empty_references"] = self.empty_references
        return {**self.corpus, **self.diversity, **counts}


def score_captions(
    references: Mapping[str, Sequence[str]], candidates: Mapping[str, str], tokenize: bool = True
) -> CaptionScores:
    """Score one caption a clip against its references, as pycocoevalcap does.

    Empty captions are scored and counted. CIDEr weighs words by how few of these clips have them:
    scores of different sets of clips do not compare, and that of a single clip is 0.

    Args:
        references: Key of a clip to what people say of it, at least one caption.
        candidates: Key of a clip to the caption that is scored; the same keys.
        tokenize: Tokenise as the scorer's Java tokenizer does (`tokenize_captions`). Without it
            captions are tokenised already, words with one blank between them.

    Raises:
        DataError: bad-label, predictions-mismatch, bad-row.
    """
    _check_captions(references, candidates)
    texts = list(candidates.values())
    flat = [reference for key in candidates for reference in references[key]]
    if tokenize:
        texts = tokenize_captions(texts)
        flat = tokenize_captions(flat)
    remaining_references = iter(flat)
    groups = [list(islice(remaining_references, len(references[key]))) for key in candidates]
    counts = NgramCounts.of(texts, groups)
    bleu_corpus, bleu_each = bleu(counts)
    scores_by_name = {
        f"Bleu_{size}": values.tolist() for size, values in enumerate(bleu_each, start=1)
    }
    scores_by_name["ROUGE_L"] = [
        rouge_l(text, group) for text, group in zip(texts, groups, strict=True)
    ]
    scores_by_name["CIDEr"] = cider(counts).tolist()
    corpus = {name: float(np.mean(values)) for name, values in scores_by_name.items()}
    corpus |= {f"Bleu_{size}": value for size, value in enumerate(bleu_corpus.tolist(), start=1)}
    lengths = counts.lengths
    per_clip = {}
    for index, key in enumerate(candidates):
        per_clip[key] = {name: values[index] for name, values in scores_by_name.items()}
    return CaptionScores(
        corpus=corpus,
        per_clip=per_clip,
        diversity={
            "distinct_captions": len(set(texts)) / len(texts),
            "empty_captions": float(np.mean(lengths[: len(texts)] == 0)),
            "mean_length": float(np.mean(lengths[: len(texts)])),
        },
        num_captions=len(texts),
        num_references=len(lengths) - len(texts),
        empty_references=int(np.sum(lengths[len(texts) :] == 0)),
    )


def _check_captions(references: Mapping[str, Sequence[str]], candidates: Mapping[str, str]) -> None:
    """Make sure that every clip has one candidate and at least one reference, and that all are texts."""
    if not candidates or not references:
        lacking = "references" if candidates else "captions"
        raise DataError(
            "bad-label",
            f"there are no {lacking} to score",
            f"name a file that holds {lacking}",
        )
    missing = [key for key in references if key not in candidates]
    strange = [key for key in candidates if key not in references]
    if missing or strange:
        parts = [
            f"{pluralize(len(keys), noun)} {problem}, for example `{keys[0]}`"
            for keys, noun, problem in (
                (missing, "clip", "without a caption"),
                (strange, "caption", "without a reference"),
            )
            if keys
        ]
        hint = "caption the very clips that are scored"
        if strange and len(strange) == len(candidates):
            hint = f"no key is the same on both sides; the references have, for example, `{next(iter(references))}`"
        raise DataError("predictions-mismatch", "; ".join(parts), hint)
    for key, caption in candidates.items():
        group = references[key]
        if not isinstance(caption, str):
            raise DataError(
                "bad-row",
                f"the caption of `{key}` is a {type(caption).__name__}",
                "give one text a clip",
            )
        if isinstance(group, str) or not all(isinstance(reference, str) for reference in group):
            raise DataError(
                "bad-row",
                f"the references of `{key}` are not a list of texts",
                "give a list of texts a clip",
            )
        if not group:
            raise DataError(
                "bad-label",
                f"clip `{key}` has no reference",
                "leave it out on both sides",
            )


# --- tokens of captions ---------------------------------------------------------------------------
# What Stanford's PTBTokenizer 3.4.1 prints, and what pycocoevalcap's `tokenizer/ptbtokenizer.py`
# drops of it. The rules were learned from what the program prints, not from its source. Which quote
# or dash it prints is not modelled: the scorer drops them all. Of 270,000 English and Korean lines 2
# differ: a combining accent before a hyphen, a long address; of 80,000 paragraphs of Wikipedia 314,
# mostly rests of markup.

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


def _regex_of_any(words: Sequence[str]) -> str:
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
        rf"(?i:{_regex_of_any(ANY_CASE)}\.)|{_regex_of_any([*map(str.capitalize, CAPITALISED), *map(str.upper, CAPITALISED)])}\.",
        rf"(?i:{_regex_of_any(BEFORE_NUMBERS)}\.)(?=\s?\d)",
        r"(?:[A-Za-z]+-)*[A-Za-z](?:\.[A-Za-z])+\.(?:-(?:(?:[A-Za-z]\.){2,}|[A-Za-z]+)|(?![A-Za-z]))|Ph\.[Dd]\.",
        rf"[A-Za-z]\.(?!\s+{_regex_of_any([*SENTENCE_STARTS, *map(str.upper, SENTENCE_STARTS)])}\s)",
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
            tokens += _tokenize_caption(text[start : stop + 64], stop - start)
        else:
            for word in line.split(" "):
                end = start + len(word)
                after = _AFTER.match(text, end) if word.endswith(".") else None
                tokens += _tokenize_caption(
                    word + (after[0] if after else text[end : end + 1]), len(word)
                )
                start = end + 1
        tokenized.append(" ".join(tokens))
        start = stop + 1
    return tokenized[: len(captions)]


@lru_cache(maxsize=1 << 16)  # captions repeat their words
def _tokenize_caption(text: str, stop: int) -> tuple[str, ...]:
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
