"""`tokenizer.json`: the same tokenizer for transformers, in the terms of the `tokenizers` library.

When transformers 5 reads `spiece.model` itself, it turns user-defined pieces into special tokens, drops the digit-comma
rule and the segment ids, and takes Hangul apart. So the file is built here: the text rules and SentencePiece's normaliser as
a chain of normalisers, then a Unigram model in which user-defined pieces are ordinary ones, or a BPE model whose merges
follow from the scores; one of characters is a BPE model without merges.

Where it can differ from `AlbertTokenizer`:

- Literal `[CLS]`, `[SEP]`, `[MASK]`, `<pad>` and `<unk>` in a text become their ids, as in all transformers tokenizers.
- Scores are added in double precision, not single: near-ties (long runs of one character) may break otherwise.
- The digit-comma rule is emulated as in transformers 4, by lowering the scores of such pieces by 100 (BPE: by leaving out
  their merges). With Google's model that is exact; with a model that has "1,", "1" and "▁1" it is not. New vocabularies have
  none.
- With byte fallback, a literal "<0x41>" in a text becomes that byte if its characters are unknown.
- All rules but `google` and `google-cased`: combining marks in another than their canonical order or after characters that
  have none, which SentencePiece composes by longest match and `tokenizers` after sorting.

`hard_lines` are compared when a tokenizer is saved, and a difference is a warning.
"""

import functools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from albertkit.errors import CheckpointError
from albertkit.tokenizer import rules
from albertkit.tokenizer.digit_comma import SPACE, ends_in_digit_comma
from albertkit.tokenizer.hard_sentences import HARD_SENTENCES
from albertkit.tokenizer.sentencepiece_model import (
    BPE,
    BYTE,
    CHAR,
    NORMAL,
    SPECIAL_PIECES,
    UNIGRAM,
    UNUSED,
    USER_DEFINED,
    WORD,
    ModelFacts,
    read_facts,
    symbol_score,
)

_DIGIT_COMMA_PENALTY = 100.0  # convert_slow_tokenizer.py of transformers 4.57
# Combining marks are in Unicode's first two planes; to ask all characters takes eight times as long (0.05 s).
_AFTER_THE_MARKS = 0x20000
_PRIVATE = 0xF0000  # first of 65,534 characters that no text has
_APART = chr(_PRIVATE + 65533)
_BEFORE_MARK = (
    r"(?<=[^\n])(?=[\p{M}\x{200c}\x{200d}\x{ff9e}\x{ff9f}])"  # one at the beginning would make the library panic
)
_MAX_LINES = 1000  # of a kind that are compared when a tokenizer is saved: 0.1 s
_SYLLABLE = re.compile("[가-힣]")
_NEVER = -1e6  # a score no path survives; for pieces that text must not match
# What `str.split` takes for white space. Written out: `\s` in the regular expressions of `tokenizers` is another set.
_BLANK = "[" + "".join(chr(code) for code in range(0x3001) if chr(code).isspace()) + "]"


def fast_tokenizer_json(model: bytes, text_rules: str) -> str:
    """Return the content of `tokenizer.json` for a SentencePiece model file with ALBERT's special ids.

    Raises:
        CheckpointError: not-expressible, bad-file.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, normalizers, processors

    facts = read_facts(model)
    check_expressible(facts)
    has_bytes = any(kind == BYTE for _, _, kind in facts.pieces)
    names = [facts.pieces[i][0] for i in range(len(SPECIAL_PIECES))]
    tokenizer = Tokenizer(_unigram(facts, text_rules) if facts.model_type == UNIGRAM else _bpe(facts, text_rules))
    steps = _normalizers(model, facts, text_rules)
    word_by_word = _word_by_word(facts, steps)
    if facts.dummy_prefix and not word_by_word:
        # `Metaspace` would put no space before a text that begins with its mark.
        steps.append(normalizers.Prepend(SPACE))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = _pre_tokenizer(facts, word_by_word)
    scheme = "always" if facts.dummy_prefix else "never"
    spaces = decoders.Metaspace(replacement=SPACE, prepend_scheme=scheme, split=False)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), spaces]) if has_bytes else spaces
    tokenizer.add_special_tokens([AddedToken(n, special=True, normalized=False, lstrip=n == names[4]) for n in names])
    cls, sep = names[2], names[3]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0", pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1", special_tokens=[(cls, 2), (sep, 3)]
    )
    return tokenizer.to_str(pretty=False)


def check_expressible(facts: ModelFacts) -> None:
    """Refuse the kinds of SentencePiece models that no `tokenizer.json` of ours gives the same ids."""
    reasons = {
        "a model of words": facts.model_type == WORD,
        "of an unknown kind": facts.model_type not in (UNIGRAM, BPE, WORD, CHAR),
        "trained with treat_whitespace_as_suffix": facts.whitespace_as_suffix,
        "trained with escape_whitespaces=False": not facts.escape_spaces,
        "a BPE model whose merges have no order": facts.model_type == BPE and not _has_ordered_merges(facts),
    }
    if fitting := [reason for reason, holds in reasons.items() if holds]:
        raise _not_expressible(fitting)


def _not_expressible(reasons: Sequence[str]) -> CheckpointError:
    return CheckpointError(
        "not-expressible",
        f"the SentencePiece model is {' and '.join(reasons)}; a tokenizer.json would give transformers other ids",
        "encode with albertkit or sentencepiece, which read spiece.model as it is",
    )


def hard_lines(model: bytes, text_rules: str) -> list[str]:
    """Return texts on which a `tokenizer.json` may differ from its SentencePiece model: general ones, then the model's own.

    Names of special tokens are left out, which differ on purpose.
    """
    facts = read_facts(model)
    lines = [text for subject, text in HARD_SENTENCES if subject != "special names"]
    lines += [f"a{symbol}b {symbol} {symbol}," for symbol, _, kind in facts.pieces if kind == USER_DEFINED][:_MAX_LINES]
    if rules.is_google(text_rules):
        numbers = sorted({piece.removeprefix(SPACE) for piece, _, _ in facts.pieces if ends_in_digit_comma(piece)})
        lines += [form.format(number) for number in numbers[:_MAX_LINES] for form in ("a {} b", "7{} 8", "({}0")]
    if facts.charsmap and not _composes(model):
        from sentencepiece import SentencePieceNormalizer

        lines += [f"a{key}b {key}" for key, _ in SentencePieceNormalizer(model_proto=model).Decompile()[:_MAX_LINES]]
    return lines


def _unigram(facts: ModelFacts, text_rules: str) -> Any:
    """Return a Unigram model whose scores make it do what SentencePiece does."""
    from tokenizers import models

    digit_comma = rules.is_google(text_rules)
    best = max((score for _, score, kind in facts.pieces if kind == NORMAL), default=0.0)
    rows = []
    for piece, score, kind in facts.pieces:
        if kind == USER_DEFINED:
            score = symbol_score(piece, best)
        elif kind in (UNUSED, BYTE):  # bytes stand for what is unknown; text never matches their names
            score = _NEVER
        elif kind == NORMAL and digit_comma and ends_in_digit_comma(piece):
            score -= _DIGIT_COMMA_PENALTY
        rows.append((piece, score))
    return models.Unigram(rows, unk_id=1, byte_fallback=any(kind == BYTE for _, _, kind in facts.pieces))


def _bpe(facts: ModelFacts, text_rules: str) -> Any:
    """Return a BPE model, whose merges are those of transformers' `generate_merges`; without any for a model of characters."""
    from tokenizers import models

    digit_comma = rules.is_google(text_rules)
    merges = [pair for pair, _ in _scored_merges(facts) if not (digit_comma and ends_in_digit_comma("".join(pair)))]
    model = models.BPE(
        {piece: number for number, (piece, _, _) in enumerate(facts.pieces)},
        merges,
        unk_token=facts.pieces[1][0],
        fuse_unk=True,
        byte_fallback=any(kind == BYTE for _, _, kind in facts.pieces),
    )
    if _long_symbols(facts):
        # Such a symbol is a word by itself, which is then looked up whole. So must be every other token that is a word.
        if any(len(model.tokenize(piece)) > 1 for piece, _, kind in facts.pieces if kind == NORMAL):
            raise _not_expressible(["a BPE model with user-defined symbols and tokens that its merges do not lead to"])
        model.ignore_merges = True
    return model


def _scored_merges(facts: ModelFacts) -> list[tuple[tuple[str, str], float]]:
    """Return the pairs of tokens that SentencePiece joins and their scores, the best first; it never joins user-defined ones."""
    if facts.model_type == CHAR:
        return []
    ids = {piece: number for number, (piece, _, kind) in enumerate(facts.pieces) if kind in (NORMAL, UNUSED)}
    merges = []
    for piece, number in ids.items():
        pairs = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        known = [pair for pair in pairs if pair[0] in ids and pair[1] in ids]
        merges += [
            (pair, facts.pieces[number][1]) for pair in sorted(known, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        ]
    return sorted(merges, key=lambda merge: -merge[1])


def _has_ordered_merges(facts: ModelFacts) -> bool:
    """Return True if a list of merges says all that a BPE model does.

    SentencePiece also joins characters that are no tokens, goes from left to right where two tokens have one score, and
    takes unused tokens apart again.
    """
    kinds = {piece: kind for piece, _, kind in facts.pieces}
    scores = {"".join(pair): score for pair, score in _scored_merges(facts)}
    characters = {character for piece, _, kind in facts.pieces if kind == NORMAL for character in piece}
    return (
        len(set(scores.values())) == len(scores)
        and all(kinds[piece] == NORMAL for piece in scores)
        and all(kinds.get(character) in (NORMAL, USER_DEFINED, UNUSED) for character in characters)
    )


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


def _normalizers(model: bytes, facts: ModelFacts, text_rules: str) -> list[Any]:
    """Return the text rules, then the model's own normalisation, but for the marks of spaces."""
    from tokenizers import Regex, normalizers

    steps: list[Any] = []
    if facts.charsmap:
        try:
            steps = [normalizers.Precompiled(facts.charsmap)]
        except Exception as error:  # the library raises nothing more particular
            raise CheckpointError(
                "bad-file",
                f"the normalisation in the SentencePiece model cannot be read: {error}",
                "copy it again",
            ) from None
        # Of a letter and a mark in less than six bytes, `Precompiled` would read the letter and lose the mark.
        steps = [normalizers.Replace(Regex(_BEFORE_MARK), _APART), *steps, normalizers.Replace(_APART, "")]
        if _composes(model):
            # `Precompiled` looks up whole graphemes only below six bytes, so it cannot compose Hangul; NFC before it can,
            # and NFC after it what it has made of half-width forms. NFKC would do too much: nmt_nfkc leaves U+FF5E alone.
            steps = [normalizers.NFC(), *steps, normalizers.NFC()]
    symbols = [piece for piece, _, kind in facts.pieces if kind == USER_DEFINED]
    changed = [symbol for symbol in symbols if normalizers.Sequence(steps).normalize_str(symbol) != symbol]
    # A symbol stands as a private character while the others are normalised.
    private = {symbol: chr(_PRIVATE + n) for n, symbol in enumerate(sorted(changed, key=len, reverse=True))}
    steps = [normalizers.Replace(symbol, mark) for symbol, mark in private.items()] + steps
    steps += [normalizers.Replace(mark, symbol) for symbol, mark in private.items()]
    if facts.one_space:
        # `Strip` would take U+0085, too, where SentencePiece goes by the space alone, and at the end by its mark.
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex(f"\\A |[ {SPACE}]+\\z"), "")]
    elif normalizers.Sequence(steps).normalize_str("\r\n") == " ":  # `Precompiled` takes them for one character
        steps.insert(0, normalizers.Replace("\r\n", "  "))
    return [*_rule_steps(text_rules), *steps]


def _composes(model: bytes) -> bool:
    """Return True if a model's normaliser puts Hangul together, as NFKC does: then it is not one of a user's own rules."""
    from sentencepiece import SentencePieceNormalizer

    return SentencePieceNormalizer(model_proto=model).Normalize("\u1112\u1161\u11ab").endswith("\ud55c")


def _pre_tokenizer(facts: ModelFacts, word_by_word: bool) -> Any:
    """Return what marks spaces, and cuts words and symbols off that the model must not join with their neighbours."""
    from tokenizers import Regex, pre_tokenizers

    scheme = "always" if word_by_word else "never"  # else the normaliser has put the first space there
    steps: list[Any] = [pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme, split=False)]
    if word_by_word:  # the spaces are removed, so that the offsets of a word begin with its first letter
        steps.insert(0, pre_tokenizers.Split(" ", behavior="removed"))
    if facts.model_type != UNIGRAM and (symbols := _long_symbols(facts)):
        any_symbol = "|".join(map(re.escape, sorted(symbols, key=len, reverse=True)))
        steps.append(pre_tokenizers.Split(Regex(any_symbol), behavior="isolated"))
    return pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]


def _word_by_word(facts: ModelFacts, steps: Sequence[Any]) -> bool:
    """Return True if the segmentation of a word does not depend on its neighbours: no token crosses a space."""
    from tokenizers import normalizers

    starts = {piece for piece, _, kind in facts.pieces if kind in (NORMAL, USER_DEFINED)}
    # Without a token for the space itself, unknown characters of two words would be one unknown token. A word that begins
    # with the mark of a space, where the normaliser leaves one, would get no other.
    return (
        facts.dummy_prefix
        and facts.one_space
        and SPACE in starts
        and not any(SPACE in piece[1:] for piece in starts)
        and SPACE not in normalizers.Sequence(list(steps)).normalize_str(f"a {SPACE}a")
    )


def _long_symbols(facts: ModelFacts) -> list[str]:
    """Return user-defined tokens of several characters."""
    return [piece for piece, _, kind in facts.pieces if kind == USER_DEFINED and len(piece) > 1]


def _rule_steps(text_rules: str) -> list[Any]:
    from tokenizers import Regex, normalizers

    # `StripAccents` takes every mark, even Indic vowel signs; Google's rule takes those with a combining class.
    # `Lowercase` goes by single characters, Python minds the final sigma.
    by_step: dict[rules.Step, list[Any]] = {
        rules.COLLAPSE: [normalizers.Replace(Regex(f"{_BLANK}+"), " "), normalizers.Strip()],
        rules.STRIP_MARKS: [normalizers.NFKD(), normalizers.Replace(Regex(_combining_class()), "")],
        rules.LOWER: [normalizers.Replace(Regex("(?<=\\p{L})Σ(?!\\p{L})"), "ς"), normalizers.Lowercase()],
        rules.COMPOSE: [normalizers.NFC()],
    }
    return [normalizer for step in rules.steps(text_rules) for normalizer in by_step[step]]


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
