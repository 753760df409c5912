"""`JsonTokenizer`: a folder whose only tokenizer file is `tokenizer.json`, run by the `tokenizers` library."""

import functools
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.errors import CheckpointError
from albertkit.files import StrPath, sha256_bytes
from albertkit.folder_facts import AddedToken
from albertkit.tokenizer import rules
from albertkit.tokenizer.files import (
    CONFIG_NAME,
    JSON_NAME,
    SPECIAL_ROLES,
    read_tokenizer_json,
    refuse_text_rules,
    special_names,
)
from albertkit.tokenizer.ragged import RaggedIds, concatenate_ids
from albertkit.tokenizer.readings import HARD_SENTENCES, SENTENCES_WITH_SPECIAL_NAMES
from albertkit.tokenizer.rules import replace_lone_surrogates
from albertkit.tokenizer.sentencepiece_model import (
    BPE,
    BYTE,
    CHAR,
    NORMAL,
    SPACE,
    SPECIAL_PIECES,
    UNIGRAM,
    UNUSED,
    USER_DEFINED,
    WORD,
    ModelFacts,
    ends_in_digit_comma,
    read_facts,
    user_symbol_score,
)
from albertkit.tokenizer.tokenizer import AlbertTokenizer

_DIGIT_COMMA_PENALTY = 100.0  # convert_slow_tokenizer.py of transformers 4.57
# Combining marks are in Unicode's first two planes; to ask all characters takes eight times as long
# (0.05 s).
_AFTER_THE_MARKS = 0x20000
_PRIVATE = 0xF0000  # first of 65,534 characters that no text has
_APART = chr(_PRIVATE + 65533)
# One at the beginning would make the library panic (0.23).
_BEFORE_MARK = r"(?<=[^\n])(?=[\p{M}\x{200c}\x{200d}\x{ff9e}\x{ff9f}])"
_LONGEST_RUN = 12
_MAX_LINES = 1000  # of a kind that are compared when a tokenizer is saved: 0.1 s
_SYLLABLE = re.compile("[가-힣]")
_NEVER = -1e6  # a score no path survives; for pieces that text must not match
# What `str.split` takes for white space. Written out: `\s` in the regular expressions of
# `tokenizers` is another set.
_BLANK = "[" + "".join(chr(code) for code in range(0x3001) if chr(code).isspace()) + "]"


def fast_tokenizer_json(model: bytes, text_rules: str) -> str:
    """Return the content of `tokenizer.json` for a SentencePiece model file with ALBERT's special ids.

    Raises:
        CheckpointError: not-expressible, bad-file.
    """
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        normalizers,
        pre_tokenizers,
        processors,
    )

    facts = read_facts(model)
    check_json_can_express(facts)
    has_bytes = bool(facts.pieces_of_type(BYTE))
    names = [facts.pieces[i][0] for i in range(len(SPECIAL_PIECES))]
    tokenizer = Tokenizer(
        _make_unigram(facts, text_rules)
        if facts.model_type == UNIGRAM
        else _make_bpe(facts, text_rules)
    )
    steps = _normalizers(model, facts, text_rules)
    starts = set(facts.pieces_of_type(NORMAL, USER_DEFINED))
    # Then no token crosses a space, and the ids of a word do not depend on its neighbours. Without
    # a token for the space itself, unknown characters of two words would be one unknown token. A
    # word that begins with the mark of a space, where the normaliser leaves one, would get no
    # other.
    word_by_word = (
        facts.dummy_prefix
        and facts.one_space
        and SPACE in starts
        and not any(SPACE in piece[1:] for piece in starts)
        and SPACE not in normalizers.Sequence(steps).normalize_str(f"a {SPACE}a")
    )
    if facts.dummy_prefix and not word_by_word:
        # `Metaspace` would put no space before a text that begins with its mark.
        steps.append(normalizers.Prepend(SPACE))
    tokenizer.normalizer = normalizers.Sequence(steps)
    # Else the normaliser has put the first space there
    scheme = "always" if word_by_word else "never"
    cuts: list[Any] = [
        pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme, split=False)
    ]
    # The spaces are removed, so that the offsets of a word begin with its first letter
    if word_by_word:
        cuts.insert(0, pre_tokenizers.Split(Regex(" "), behavior="removed"))
    symbols = _multi_character_symbols(facts)
    if symbols and facts.model_type != UNIGRAM:  # words that the model must not join
        any_symbol = "|".join(map(re.escape, sorted(symbols, key=len, reverse=True)))
        cuts.append(pre_tokenizers.Split(Regex(any_symbol), behavior="isolated"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts) if len(cuts) > 1 else cuts[0]
    scheme = "always" if facts.dummy_prefix else "never"
    spaces = decoders.Metaspace(replacement=SPACE, prepend_scheme=scheme, split=False)
    tokenizer.decoder = (
        decoders.Sequence([decoders.ByteFallback(), spaces]) if has_bytes else spaces
    )
    _, _, cls, sep, mask = names
    tokens = [
        AddedToken(name, special=True, normalized=False, lstrip=name == mask) for name in names
    ]
    tokenizer.add_special_tokens(tokens)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, 2), (sep, 3)],
    )
    return tokenizer.to_str(pretty=False)


def check_json_can_express(facts: ModelFacts) -> None:
    """Refuse the kinds of SentencePiece models that no `tokenizer.json` of ours gives the same ids."""
    are_merges_ordered = True
    if facts.model_type == BPE:
        # SentencePiece also joins characters that are no tokens, goes from left to right where two
        # tokens have one score, and takes unused tokens apart again.
        kinds = {piece: kind for piece, _, kind in facts.pieces}
        scores = {"".join(pair): score for pair, score in _scored_merges(facts)}
        characters = set("".join(facts.pieces_of_type(NORMAL)))
        are_merges_ordered = (
            len(set(scores.values())) == len(scores)
            and all(kinds[piece] == NORMAL for piece in scores)
            and all(kinds.get(c) in (NORMAL, USER_DEFINED, UNUSED) for c in characters)
        )
    reasons = {
        "a model of words": facts.model_type == WORD,
        "of an unknown kind": facts.model_type not in (UNIGRAM, BPE, WORD, CHAR),
        "trained with treat_whitespace_as_suffix": facts.whitespace_as_suffix,
        "trained with escape_whitespaces=False": not facts.escape_spaces,
        "a BPE model whose merges have no order": not are_merges_ordered,
    }
    actual_reasons = [reason for reason, is_true in reasons.items() if is_true]
    if actual_reasons:
        raise _not_expressible_error(actual_reasons)


def _not_expressible_error(reasons: Sequence[str]) -> CheckpointError:
    return CheckpointError(
        "not-expressible",
        f"the SentencePiece model is {' and '.join(reasons)}; a tokenizer.json would give transformers other ids",
        "encode with albertkit or sentencepiece, which read spiece.model as it is",
    )


def lines_that_json_may_misread(model: bytes, text_rules: str) -> list[str]:
    """Return texts on which a `tokenizer.json` may differ from its SentencePiece model: general ones, then the model's own."""
    # Names of special tokens are left out, which differ on purpose.
    facts = read_facts(model)
    lines = [text for text in HARD_SENTENCES if text not in SENTENCES_WITH_SPECIAL_NAMES]
    lines += [f"a{symbol}b {symbol} {symbol}," for symbol in facts.pieces_of_type(USER_DEFINED)][
        :_MAX_LINES
    ]
    if rules.has_google_rules(text_rules):
        numbers = sorted(
            {
                piece.removeprefix(SPACE)
                for piece, _, _ in facts.pieces
                if ends_in_digit_comma(piece)
            }
        )
        lines += [
            form.format(number)
            for number in numbers[:_MAX_LINES]
            for form in ("a {} b", "7{} 8", "({}0")
        ]
    if facts.charsmap and not _composes_hangul(model):
        from sentencepiece import SentencePieceNormalizer

        lines += [
            f"a{key}b {key}"
            for key, _ in SentencePieceNormalizer(model_proto=model).Decompile()[:_MAX_LINES]
        ]
    return lines


def runs_that_json_may_cut_otherwise(model: bytes) -> list[str]:
    """Return runs that tokens of one part cut in several orders: the sums of their scores differ by rounding alone."""
    # SentencePiece adds in single precision, `tokenizers` in double: of Google's `!!!!` the one
    # makes `!!! !`, the other `! !!!`, at the beginning of a text. No other text of two or three of
    # its tokens is a tie that they decide differently.
    facts = read_facts(model)
    normal = set(facts.pieces_of_type(NORMAL))
    parts = set()
    for piece in normal:
        # The shortest text of which the token is a repetition: itself for most.
        part = piece[: (piece + piece).index(piece, 1)]
        if part != piece and part in normal:
            parts.add(part)
    return [part * number for part in sorted(parts) for number in range(2, _LONGEST_RUN)][
        :_MAX_LINES
    ]


def _make_unigram(facts: ModelFacts, text_rules: str) -> Any:
    """Return a Unigram model with scores for which it gives SentencePiece's ids."""
    from tokenizers import models

    digit_comma = rules.has_google_rules(text_rules)
    best = max((score for _, score, kind in facts.pieces if kind == NORMAL), default=0.0)
    rows = []
    for piece, score, kind in facts.pieces:
        if kind == USER_DEFINED:
            score = user_symbol_score(piece, best)
        elif kind in (UNUSED, BYTE):
            # Bytes stand for what is unknown; text never matches their names.
            score = _NEVER
        elif kind == NORMAL and digit_comma and ends_in_digit_comma(piece):
            score -= _DIGIT_COMMA_PENALTY
        rows.append((piece, score))
    return models.Unigram(rows, unk_id=1, byte_fallback=bool(facts.pieces_of_type(BYTE)))


def _make_bpe(facts: ModelFacts, text_rules: str) -> Any:
    """Return a BPE model, whose merges are those of transformers' `generate_merges`; without any for a model of characters."""
    from tokenizers import models

    digit_comma = rules.has_google_rules(text_rules)
    merges = [
        pair
        for pair, _ in _scored_merges(facts)
        if not (digit_comma and ends_in_digit_comma("".join(pair)))
    ]
    model = models.BPE(
        {piece: number for number, (piece, _, _) in enumerate(facts.pieces)},
        merges,
        unk_token=facts.pieces[1][0],
        fuse_unk=True,
        byte_fallback=bool(facts.pieces_of_type(BYTE)),
    )
    if _multi_character_symbols(facts):
        # Such a symbol is a word by itself, which is then looked up whole. So must be every other
        # token that is a word.
        if any(len(model.tokenize(piece)) > 1 for piece in facts.pieces_of_type(NORMAL)):
            raise _not_expressible_error(
                ["a BPE model with user-defined symbols and tokens that its merges do not lead to"]
            )
        model.ignore_merges = True
    return model


def _scored_merges(facts: ModelFacts) -> list[tuple[tuple[str, str], float]]:
    """Return the pairs of tokens that SentencePiece joins and their scores, the best first; it never joins user-defined ones."""
    if facts.model_type == CHAR:
        return []
    # Two tokens are joined wherever their strings together are a token, so a token has a merge for
    # each such cut. Of 30 kinds of models and 2,600 lines one line comes out otherwise (a tie in
    # "0.0001").
    ids = {
        piece: number
        for number, (piece, _, kind) in enumerate(facts.pieces)
        if kind in (NORMAL, UNUSED)
    }
    merges = []
    for piece, number in ids.items():
        pairs = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        mergeable_pairs = [pair for pair in pairs if pair[0] in ids and pair[1] in ids]
        mergeable_pairs.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        merges += [(pair, facts.pieces[number][1]) for pair in mergeable_pairs]
    return sorted(merges, key=lambda merge: -merge[1])


def transformers_class_flags(text_rules: str, facts: ModelFacts) -> dict[str, bool]:
    """Return the settings that make the class `transformers.AlbertTokenizer` come close to the text rules."""
    # `AutoTokenizer` runs `tokenizer.json` as it is; the class (Python in transformers 4, and
    # `AlbertTokenizer` and `AlbertTokenizerFast` of transformers 5) builds its own normalisation
    # from `do_lower_case` and `keep_accents`. With `keep_accents` false the class of transformers 5
    # decomposes Hangul and never composes it again, so it is true for every vocabulary that has
    # Hangul syllables, whatever the rules say of accents: "é" is then unlike ours in that class (in
    # 908 of 20,000 lines, with an English vocabulary extended for Korean), but no Korean text is
    # lost.
    strips = rules.STRIP_MARKS in rules.STEPS[text_rules]
    hangul = _SYLLABLE.search("".join(piece for piece, _, _ in facts.pieces)) is not None
    return {
        "do_lower_case": rules.do_rules_lower_case(text_rules),
        "keep_accents": hangul or not strips,
    }


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
        # Of a letter and a mark in less than six bytes, `Precompiled` would read the letter and
        # lose the mark. Of 4,000 random strings of marks, jamo, kana and signs 16 to 29 differed
        # under `google` rules without it, and none with it.
        steps = [
            normalizers.Replace(Regex(_BEFORE_MARK), _APART),
            *steps,
            normalizers.Replace(_APART, ""),
        ]
        if _composes_hangul(model):
            # `Precompiled` looks up whole graphemes only below six bytes, so it cannot compose
            # Hangul; NFC before it can, and NFC after it what it has made of half-width forms. NFKC
            # would do too much: nmt_nfkc leaves U+FF5E alone. Of its 224,711 replacements 207,355
            # differ without NFC, 1,861 with the first one alone.
            steps = [normalizers.NFC(), *steps, normalizers.NFC()]
    normalize = normalizers.Sequence(steps).normalize_str
    changed = [
        symbol for symbol in facts.pieces_of_type(USER_DEFINED) if normalize(symbol) != symbol
    ]
    if facts.charsmap:
        # transformers.js has NFKC and lists of its own for `Precompiled`. Of 194,559 characters it
        # reads these two otherwise (U+061C as a letter, U+200D as a space), and those that are
        # younger than the model.
        for character in "\u061c\u200d":
            replacement = normalize(character)
            if replacement == character:
                changed.append(character)
            else:
                steps.insert(0, normalizers.Replace(character, replacement))
    # A symbol stands as a private character while the others are normalised.
    changed.sort(key=len, reverse=True)
    private = {symbol: chr(_PRIVATE + number) for number, symbol in enumerate(changed)}
    before = [normalizers.Replace(symbol, mark) for symbol, mark in private.items()]
    after = [normalizers.Replace(mark, symbol) for symbol, mark in private.items()]
    steps = [*before, *steps, *after]
    if facts.one_space:
        # `Strip` would take U+0085, too, where SentencePiece goes by the space alone, and at the
        # end by its mark.
        steps += [
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Replace(Regex(f"\\A |[ {SPACE}]+\\z"), ""),
        ]
    elif normalizers.Sequence(steps).normalize_str("\r\n") == " ":
        # `Precompiled` takes them for one character.
        steps.insert(0, normalizers.Replace("\r\n", "  "))
    # `StripAccents` takes every mark, even Indic vowel signs; Google's rule takes those with a
    # combining class. `Lowercase` goes by single characters, Python minds the final sigma.
    by_step: dict[rules.RuleStep, list[Any]] = {
        rules.COLLAPSE: [normalizers.Replace(Regex(f"{_BLANK}+"), " "), normalizers.Strip()],
        rules.STRIP_MARKS: [
            normalizers.NFKD(),
            normalizers.Replace(Regex(combining_class_regex()), ""),
        ],
        rules.LOWER: [
            normalizers.Replace(Regex("(?<=\\p{L})Σ(?!\\p{L})"), "ς"),
            normalizers.Lowercase(),
        ],
        rules.COMPOSE: [normalizers.NFC()],
    }
    for step in reversed(rules.STEPS[text_rules]):
        steps = by_step[step] + steps
    return steps


def _composes_hangul(model: bytes) -> bool:
    """Return True if a model's normaliser puts Hangul together, as NFKC does: then it is not one of a user's own rules."""
    from sentencepiece import SentencePieceNormalizer

    return (
        SentencePieceNormalizer(model_proto=model)
        .Normalize("\u1112\u1161\u11ab")
        .endswith("\ud55c")
    )


def _multi_character_symbols(facts: ModelFacts) -> list[str]:
    """Return user-defined tokens of several characters."""
    return [symbol for symbol in facts.pieces_of_type(USER_DEFINED) if len(symbol) > 1]


@functools.cache
def combining_class_regex() -> str:
    """Return a regular expression for characters with a non-zero combining class."""
    return (
        character_class_regex(
            c for c in map(chr, range(_AFTER_THE_MARKS)) if unicodedata.combining(c)
        )
        + "+"
    )


def character_class_regex(characters: Iterable[str]) -> str:
    """Return a regular expression for one of these characters; neighbours in code become a range."""
    runs: list[list[int]] = []
    for code in map(ord, characters):
        if runs and runs[-1][1] == code - 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    return "[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in runs) + "]"


_USUAL_NAMES: dict[str, tuple[str, ...]] = {
    "pad": ("<pad>", "[PAD]"),
    "unk": ("<unk>", "[UNK]"),
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}
# Before a special token's name in a Unigram vocabulary: no text holds this noncharacter
_UNMATCHED = "\uffff"


_MAX_TOKENS = 10_000_000  # as `AlbertConfig`: beyond it a broken file
_UNKNOWN = "\U0010ff00"  # for private use: no vocabulary has it


# transformers 5 saves no other file, and a model fine-tuned with it has learned from the ids of
# that file, its faults included (`albertkit tokenizer check` shows an example). So it is run as it
# is, rather than turned back into SentencePiece. Two things are albertkit's: padding and truncation
# that the file may ask for are left out, and the names of the five special tokens in a text are
# plain text, not ids.
class JsonTokenizer(AlbertTokenizer):
    """The tokenizer of a `tokenizer.json`. Make one with `AlbertTokenizer.from_pretrained`."""

    def __init__(
        self,
        content: str,
        names: Mapping[str, str] | None = None,
        text_rules: str = "tokenizer.json",
        source: StrPath = JSON_NAME,
    ) -> None:
        """Use `from_pretrained` unless the file is in memory.

        Args:
            content: Content of a `tokenizer.json` with a Unigram or WordPiece model.
            names: Names of the special tokens, by role: "pad", "unk", "cls", "sep", "mask".
                Default: ALBERT's or BERT's usual names, whichever the vocabulary has.
            text_rules: Name of its rules.
            source: Path of the file, for messages.
        """
        self.text_rules = text_rules
        self._content = content
        self._source = str(source)
        parts = self._read_parts()
        self._kind: str = parts["model"]["type"]
        # Its names are those of the file: `tokenizers` would lower-case a `normalized` one.
        listed_tokens = []
        for token in parts.get("added_tokens") or []:
            is_special = isinstance(token, dict) and token.get("special")
            listed_tokens.append({**token, "normalized": False} if is_special else token)
        self._full_tokenizer = self._build_tokenizer({**parts, "added_tokens": listed_tokens})
        self._added_names = {
            token.content for token in self._full_tokenizer.get_added_tokens_decoder().values()
        }
        vocabulary = self._full_tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values()) + 1
        if self.vocab_size > _MAX_TOKENS:
            raise self._broken_file_error(f"its largest id is {self.vocab_size - 1:,}")
        self._names: dict[str, str] = {}
        for role in SPECIAL_ROLES:
            candidates = _USUAL_NAMES[role]
            if names and role in names:
                candidates = (names[role],)
            present = [name for name in candidates if name in vocabulary]
            if not present:
                fact = f"`{self._source}` has no {role} token ({' or '.join(candidates)})"
                raise CheckpointError(
                    "wrong-tokenizer",
                    fact,
                    f'name it in {CONFIG_NAME}: "{role}_token": …',
                )
            self._names[role] = present[0]
            setattr(self, f"{role}_id", vocabulary[present[0]])
        # The names of special tokens are plain text to it.
        special_names = set(self._names.values())
        model = dict(parts["model"])
        if model["type"] == "Unigram":
            rows = model["vocab"]
            model["vocab"] = [
                [_UNMATCHED + row[0], row[1]] if row[0] in special_names else row for row in rows
            ]
        added = []
        model_tokens = self._full_tokenizer.get_vocab(with_added_tokens=False)
        for token in parts.get("added_tokens") or []:
            if token["content"] not in special_names:
                added.append(token)
            elif token["content"] not in model_tokens:
                # It holds its id, which the next token would get.
                added.append(
                    {**token, "content": _UNMATCHED + token["content"], "normalized": False}
                )
        self._backend = self._build_tokenizer(
            {**parts, "model": model, "added_tokens": added, "post_processor": None}
        )
        with self._errors_of_file():
            # Without an unknown token the library fails at the first such text.
            self._backend.encode(_UNKNOWN, add_special_tokens=False)
        self.fingerprint = sha256_bytes(json.dumps([content, list(self._names.values())]).encode())

    def _constructor_arguments(self) -> tuple:
        return (self._content, self._names, self.text_rules, self._source)

    @classmethod
    def from_files(
        cls,
        folder: Path,
        settings: dict[str, Any],
        text_rules: str | None,
        only_json: bool,
    ) -> "JsonTokenizer | None":
        """Read a `tokenizer.json`. See `AlbertTokenizer.from_files`."""
        file = folder / JSON_NAME
        if not file.exists():
            return None
        refuse_text_rules(folder, text_rules)
        tokenizer = cls(read_tokenizer_json(folder), special_names(settings), source=file)
        # transformers gives the model what the file says of special tokens around texts, and
        # ALBERT's heads read the first token.
        encode = tokenizer._full_tokenizer.encode
        with tokenizer._errors_of_file():
            # Letters that a damaged vocabulary lacks, and its unknown token, too
            texts = [encode(text, add_special_tokens=False).ids for text in ("a", "b")]
            single_ids, pair_ids = encode("a").ids, encode("a", "b").ids
        single = [tokenizer.cls_id, *texts[0], tokenizer.sep_id]
        if single_ids == single and pair_ids == [*single, *texts[1], tokenizer.sep_id]:
            return tokenizer
        names = [tokenizer._piece(token_id) for token_id in pair_ids]
        raise CheckpointError(
            "unsupported",
            f"`{file}` reads the pair `a`, `b` as {' '.join(names)}, not as [CLS] a [SEP] b [SEP]",
            "set its post_processor as ALBERT's tokenizers have it, if the model wants it",
        )

    @classmethod
    def with_added(
        cls,
        folder: Path,
        tokenizer: AlbertTokenizer,
        added: Sequence[AddedToken],
        roles: Mapping[str, str],
    ) -> "JsonTokenizer":
        """See `AlbertTokenizer.with_added`."""
        from tokenizers import AddedToken as TheirToken
        from tokenizers import Tokenizer

        file = folder / JSON_NAME
        content = read_tokenizer_json(folder) if file.exists() else tokenizer.tokenizer_json()
        extended = Tokenizer.from_str(content)
        # Those that the file lists itself stay as they are.
        listed_tokens = {token.content for token in extended.get_added_tokens_decoder().values()}
        missing = [token for token in added if token.content not in listed_tokens]
        for token in sorted(missing, key=lambda token: (token.id is None, token.id or 0)):
            normalized = token.flags["normalized"] and extended.normalizer
            if normalized and not normalized.normalize_str(token.content):
                # The library would find it everywhere
                raise CheckpointError(
                    "unsupported",
                    f"`{folder}` adds the token {token.content!r}, of which its rules for texts leave nothing",
                    "set its `normalized` to false, or take it away",
                )
            extended.add_tokens([TheirToken(token.content, **token.flags)])
            number = extended.token_to_id(token.content)
            if token.id not in (None, number):
                fact = f"`{folder}` gives the added token `{token.content}` the id {token.id}, its vocabulary {number}"
                raise CheckpointError(
                    "wrong-tokenizer",
                    fact,
                    "fetch the tokenizer's files again, all from one place",
                )
        return JsonTokenizer(extended.to_str(), {**tokenizer.role_names(), **roles}, source=file)

    def matches_added(self, token: AddedToken) -> bool:
        """See `AlbertTokenizer.matches_added`; those that the file lists are matched."""
        return super().matches_added(token) or token.content in self._added_names

    def _files_and_settings_to_save(self) -> tuple[dict[str, bytes], dict[str, Any]]:
        # The class `transformers.AlbertTokenizer` builds its own normalisation from these two
        # flags.
        normalizer = json.dumps(self._read_parts()["normalizer"])
        kinds = set(re.findall(r'"type": *"(Lowercase|StripAccents)"', normalizer))
        flags = {"do_lower_case": "Lowercase" in kinds, "keep_accents": "StripAccents" not in kinds}
        return {JSON_NAME: self._content.encode()}, flags

    # --- encoding ---------------------------------------------------------------------------------

    def encode_batch(self, texts: Sequence[str], num_threads: int = 0) -> RaggedIds:
        """See `AlbertTokenizer.encode_batch`. `tokenizers` decides on the number of threads by itself."""
        with _panics_as_errors():
            encoded = self._backend.encode_batch_fast(
                [replace_lone_surrogates(text) for text in texts], add_special_tokens=False
            )
        return concatenate_ids([np.array(text.ids, dtype=np.int32) for text in encoded])

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """See `AlbertTokenizer.encode_with_offsets`; the spans are those of the `tokenizers` library."""
        with _panics_as_errors():
            encoded = self._backend.encode(replace_lone_surrogates(text), add_special_tokens=False)
        return encoded.ids, encoded.offsets

    def pieces(self, text: str) -> list[str]:
        """See `AlbertTokenizer.pieces`."""
        tokens = []
        ids, spans = self.encode_with_offsets(text)
        for token_id, (start, end) in zip(ids, spans, strict=True):
            tokens.append(text[start:end] if token_id == self.unk_id else self._piece(token_id))
        return tokens

    # --- the vocabulary ---------------------------------------------------------------------------

    def special_ids(self) -> list[int]:
        """Return the ids of the five special tokens, ascending."""
        return sorted((self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id))

    def word_starts(self) -> np.ndarray:
        """See `AlbertTokenizer.word_starts`."""
        if self._kind != "WordPiece":
            return super().word_starts()
        pieces = map(self._piece, range(self.vocab_size))
        starts = np.array([not piece.startswith("##") for piece in pieces])
        starts[self.special_ids()] = True
        return starts

    # --- inside -----------------------------------------------------------------------------------

    def _encode_plain(self, text: str) -> list[int]:
        return self.encode_with_offsets(text)[0]

    def _decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        with _panics_as_errors():
            return self._full_tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def _piece(self, piece_id: int) -> str:
        return self._full_tokenizer.id_to_token(piece_id) or ""

    def _read_parts(self) -> dict[str, Any]:
        try:
            parts = json.loads(self._content)
            kind = parts["model"]["type"]
        except (ValueError, KeyError, TypeError):
            raise self._broken_file_error("it is not the JSON of one") from None
        if kind not in ("Unigram", "WordPiece"):
            fact = f"`{self._source}` holds a {kind} model"
            raise CheckpointError(
                "unsupported",
                fact,
                "albertkit reads Unigram and WordPiece, which ALBERTs have; train one: `albertkit tokenizer train`",
            )
        parts["padding"] = parts["truncation"] = None
        return parts

    def _build_tokenizer(self, parts: dict[str, Any]) -> Any:
        from tokenizers import Tokenizer

        with self._errors_of_file():
            return Tokenizer.from_str(json.dumps(parts))

    @contextmanager
    def _errors_of_file(self) -> Iterator[None]:
        """Turn errors of the library, which raises nothing particular and whose panics are no Exception, into one of the file."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            raise self._broken_file_error(str(error)) from None

    def _broken_file_error(self, why: str) -> CheckpointError:
        return CheckpointError(
            "bad-file",
            f"`{self._source}` is not a tokenizer: {why}",
            "fetch it again, or save it again",
        )


@contextmanager
def _panics_as_errors() -> Iterator[None]:
    """Turn a panic of the library, which is no Exception, into an error."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        fact = f"{JSON_NAME} fails on this text: {error}"
        raise CheckpointError(
            "bad-file",
            fact,
            "leave the text out, or use another tokenizer",
        ) from None
