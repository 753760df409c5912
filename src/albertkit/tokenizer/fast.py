"""`tokenizer.json`: the same tokenizer for transformers, in the terms of the `tokenizers` library.

When transformers 5 reads `spiece.model` itself, it turns user-defined pieces into special tokens, drops the digit-comma
rule and the segment ids, and takes Hangul apart. So the file is built here: a plain Unigram model in which user-defined
pieces are ordinary ones, and the text rules as a chain of normalisers.

Where it can differ from `AlbertTokenizer`:

- Literal `[CLS]`, `[SEP]`, `[MASK]`, `<pad>` and `<unk>` in a text become their ids, as in all transformers tokenizers.
- Scores are added in double precision, not single: near-ties (long runs of one character) may break otherwise.
- The digit-comma rule is emulated as in transformers 4, by lowering the scores of such pieces by 100. With Google's
  model that is exact; with a model that has "1,", "1" and "▁1" it is not, and saving warns. New vocabularies have none.
- With byte fallback, a literal "<0x41>" in a text becomes that byte if its characters are unknown.
- Rules `none` and `google-…-accents`: stacked combining marks, which SentencePiece composes by longest match and
  `tokenizers` by grapheme. Compatibility characters with a mark ("Ａ" and U+0300), which lose the mark there: 1,861 of
  the 224,711 replacements of nmt_nfkc; the others are the same.
"""

import functools
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from albertkit.errors import CheckpointError
from albertkit.tokenizer import rules
from albertkit.tokenizer.digit_comma import SPACE, ends_in_digit_comma
from albertkit.tokenizer.sentencepiece_model import (
    BYTE,
    NORMAL,
    SPECIAL_PIECES,
    UNIGRAM,
    UNUSED,
    USER_DEFINED,
    ModelFacts,
    read_facts,
)

_DIGIT_COMMA_PENALTY = 100.0  # convert_slow_tokenizer.py of transformers 4.57
# Combining marks are in Unicode's first two planes; to ask all characters takes eight times as long (0.05 s).
_AFTER_THE_MARKS = 0x20000
_PRIVATE = 0xF0000  # first of 65,534 characters that no text has
_SYLLABLE = re.compile("[가-힣]")
_NEVER = -1e6  # a score no path survives; for pieces that text must not match
# What `str.split` takes for white space. Written out: `\s` in the regular expressions of `tokenizers` is another set.
_BLANK = "[" + "".join(chr(code) for code in range(0x3001) if chr(code).isspace()) + "]"


def fast_tokenizer_json(model: bytes, text_rules: str) -> str:
    """Return the content of `tokenizer.json` for a SentencePiece model file with ALBERT's special ids."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    facts = read_facts(model)
    _check_expressible(facts)
    has_bytes = any(kind == BYTE for _, _, kind in facts.pieces)
    tokenizer = Tokenizer(models.Unigram(_vocabulary(facts, text_rules), unk_id=1, byte_fallback=has_bytes))
    names = [facts.pieces[i][0] for i in range(len(SPECIAL_PIECES))]
    steps = _rule_steps(text_rules, normalizers, Regex)
    if facts.charsmap:
        # `Precompiled` looks up whole graphemes only below six bytes, so it cannot compose Hangul; NFC before it can, and
        # NFC after it what it has made of half-width forms. NFKC would do too much: nmt_nfkc leaves U+FF5E alone.
        try:
            precompiled = normalizers.Precompiled(facts.charsmap)
        except Exception as error:  # the library raises nothing more particular
            raise CheckpointError(
                "bad-file",
                f"the normalisation in the SentencePiece model cannot be read: {error}",
                "copy it again",
            ) from None
        steps += [normalizers.NFC(), precompiled, normalizers.NFC()]
    # `Strip` would take U+0085, too, where SentencePiece goes by the space alone.
    steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex("^ | $"), "")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    scheme = "always" if facts.dummy_prefix else "never"
    marks = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme, split=False)
    # Words are split and the spaces removed, so that the offsets of a word begin with its first letter.
    words = pre_tokenizers.Split(" ", behavior="removed")
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([words, marks]) if facts.dummy_prefix and _word_by_word(facts) else marks
    )
    spaces = decoders.Metaspace(replacement=SPACE, prepend_scheme=scheme, split=False)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), spaces]) if has_bytes else spaces
    tokenizer.add_special_tokens([AddedToken(n, special=True, normalized=False, lstrip=n == names[4]) for n in names])
    cls, sep = names[2], names[3]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0", pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1", special_tokens=[(cls, 2), (sep, 3)]
    )
    return tokenizer.to_str(pretty=False)


def _check_expressible(facts: ModelFacts) -> None:
    """Refuse the kinds of SentencePiece models that no `tokenizer.json` of ours gives the same ids."""
    kinds = {2: "a BPE model", 3: "a model of words", 4: "a model of characters"}
    reasons = {
        kinds.get(facts.model_type, "not a unigram model"): facts.model_type != UNIGRAM,
        "trained with treat_whitespace_as_suffix": facts.whitespace_as_suffix,
        "trained with remove_extra_whitespaces=False": not facts.one_space,
        "trained with escape_whitespaces=False": not facts.escape_spaces,
    }
    if fitting := [reason for reason, holds in reasons.items() if holds]:
        raise CheckpointError(
            "not-expressible",
            f"the SentencePiece model is {' and '.join(fitting)}; a tokenizer.json would give transformers other ids",
            "copy the folder instead; albertkit encodes with its spiece.model as it is",
        )


def _word_by_word(facts: ModelFacts) -> bool:
    """Return True if the segmentation of a word does not depend on its neighbours: no token crosses a space."""
    starts = {piece for piece, _, kind in facts.pieces if kind in (NORMAL, USER_DEFINED)}
    # Without a token for the space itself, unknown characters of two words would be one unknown token.
    return SPACE in starts and not any(SPACE in piece[1:] for piece in starts)


def class_flags(text_rules: str, facts: ModelFacts) -> dict[str, bool]:
    """Return the settings that make the class `transformers.AlbertTokenizer` come close to the text rules.

    `AutoTokenizer` runs `tokenizer.json` as it is; the class (Python in transformers 4, and `AlbertTokenizer` and
    `AlbertTokenizerFast` of transformers 5) builds its own normalisation from `do_lower_case` and `keep_accents`. With
    `keep_accents` false the class of transformers 5 decomposes Hangul and never composes it again, so it is true for every
    vocabulary that has Hangul syllables, whatever the rules say of accents: "é" is then unlike ours in that class, but no
    Korean text is lost.
    """
    strips = rules.STRIP_MARKS in rules.steps(text_rules)
    hangul = _SYLLABLE.search("".join(piece for piece, _, _ in facts.pieces)) is not None
    return {"do_lower_case": rules.lowers(text_rules), "keep_accents": hangul or not strips}


def _vocabulary(facts: ModelFacts, text_rules: str) -> list[tuple[str, float]]:
    """Return pieces with scores that make a plain Unigram model do what SentencePiece does."""
    digit_comma = rules.is_google(text_rules)
    best = max((score for _, score, kind in facts.pieces if kind == NORMAL), default=0.0)
    rows = []
    for piece, score, kind in facts.pieces:
        if kind == USER_DEFINED:  # SentencePiece's own formula: better than any way round it
            score = len(piece.encode()) * best - 0.1
        elif kind in (UNUSED, BYTE):  # bytes stand for what is unknown; text never matches their names
            score = _NEVER
        elif kind == NORMAL and digit_comma and ends_in_digit_comma(piece):
            score -= _DIGIT_COMMA_PENALTY
        rows.append((piece, score))
    return rows


def _rule_steps(text_rules: str, normalizers: Any, regex: Any) -> list[Any]:
    # `StripAccents` takes every mark, even Indic vowel signs; Google's rule takes those with a combining class.
    # `Lowercase` goes by single characters, Python minds the final sigma.
    by_step = {
        rules.COLLAPSE: [normalizers.Replace(regex(f"{_BLANK}+"), " "), normalizers.Strip()],
        rules.STRIP_MARKS: [normalizers.NFKD(), normalizers.Replace(regex(_combining_class()), "")],
        rules.LOWER: [normalizers.Replace(regex("(?<=\\p{L})Σ(?!\\p{L})"), "ς"), normalizers.Lowercase()],
        rules.COMPOSE: [normalizers.NFC()],
    }
    replacing = _replacing(rules.own_replacements(text_rules), normalizers)
    return replacing + [normalizer for step in rules.steps(text_rules) for normalizer in by_step[step]]


def _replacing(replace: Mapping[str, str], normalizers: Any) -> list[Any]:
    """Replace every character once, however they replace each other: by a private character, then by what it stands for."""
    private = [chr(_PRIVATE + number) for number in range(len(replace))]
    first = [normalizers.Replace(character, mark) for character, mark in zip(replace, private, strict=True)]
    return first + [normalizers.Replace(mark, made) for mark, made in zip(private, replace.values(), strict=True)]


@functools.cache
def _combining_class() -> str:
    """Return a regular expression for characters with a non-zero combining class."""
    return regex_class(c for c in map(chr, range(_AFTER_THE_MARKS)) if unicodedata.combining(c)) + "+"


def regex_class(characters: Iterable[str]) -> str:
    """Return a regular expression for one of these characters; neighbours in code become a range."""
    runs: list[list[int]] = []
    for code in map(ord, characters):
        if runs and runs[-1][1] == code - 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    return "[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in runs) + "]"
