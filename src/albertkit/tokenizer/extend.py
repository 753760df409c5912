"""More tokens for a SentencePiece model: those that a text in another language or of another field needs.

First the characters that the model lacks, the most frequent first, until nothing but rare ones is
unknown; then tokens of several characters, those first that make the text shortest. Everything is
looked for in the text as the model's own rules and normaliser leave it.
"""

import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from albertkit.errors import CheckpointError, ConfigError, DataError
from albertkit.tokenizer import rules
from albertkit.tokenizer.morphemes import Analyser, find_analyser
from albertkit.tokenizer.options import SearchSettings
from albertkit.tokenizer.sentencepiece import SentencePieceTokenizer
from albertkit.tokenizer.sentencepiece_model import (
    NORMAL,
    SPACE,
    UNIGRAM,
    ModelFacts,
    add_unused_pieces,
    ends_in_digit_comma,
    read_facts,
    rebuild_model,
    round_score,
)
from albertkit.validation import check_fields

_MAX_WORD_LENGTH = 32  # characters of a word that is given; SentencePiece finds none above 16
# SentencePiece adds scores in single precision: less would drown in a text of some thousand tokens
_JUST_ABOVE = 0.1
# For each token wanted: some are in the vocabulary already, and some go on into longer ones and are
# left with few occurrences.
_CANDIDATES = 1.25
_MAX_CANDIDATE_LENGTH = 16  # characters, as in SentencePiece
_TOGETHER = ("CJK", "HIRAGANA", "KATAKANA")  # scripts that one word mixes
_UNKNOWN_PENALTY = 10.0  # kUnkPenalty in unigram_model.cc


@dataclass(frozen=True)
class Extension:
    """A vocabulary with more tokens.

    Attributes:
        tokenizer: With it; not yet saved.
        first_id: Id of the first new token: the size of the old vocabulary.
        characters: New tokens that are one character.
        words: New tokens that were given.
        found: New tokens that were found in the text.
        unused: Tokens at the end that fill the vocabulary up to a multiple.
        left_out: Words that are no tokens, by reason.
        frequencies: float64 [new tokens]. Share of each among all tokens of the text; one that does
            not occur counts half.
    """

    tokenizer: SentencePieceTokenizer
    first_id: int
    characters: int
    words: int
    found: int
    unused: int
    left_out: dict[str, list[str]]
    frequencies: np.ndarray


class UnigramPieces:
    """The best segmentation of a short string by a unigram model: how an old vocabulary would cut a new token.

    It lacks the space that SentencePiece puts before a text. `unknown` is the id of the unknown
    token.
    """

    def __init__(self, facts: ModelFacts, unknown: int) -> None:
        self.ids: Mapping[str, int] = {
            piece: number for number, (piece, _, kind) in enumerate(facts.pieces) if kind == NORMAL
        }
        self.scores = [score for _, score, _ in facts.pieces]
        self.lowest = min(self.scores[number] for number in self.ids.values())
        self._unknown = unknown
        self._longest = max(map(len, self.ids))

    def best_segmentation(self, text: str) -> tuple[float, list[int]]:
        """Return score and ids of the best segmentation of a text, with U+2581 for a space; uncovered characters are unknown."""
        # Score, where the last piece starts, that piece
        paths: list[tuple[float, int, int]] = [(0.0, 0, 0)]
        for end in range(1, len(text) + 1):
            best = (paths[end - 1][0] + self.lowest - _UNKNOWN_PENALTY, end - 1, self._unknown)
            for start in range(max(0, end - self._longest), end):
                number = self.ids.get(text[start:end])
                if number is not None and paths[start][0] + self.scores[number] > best[0]:
                    best = (paths[start][0] + self.scores[number], start, number)
            paths.append(best)
        ids = []
        end = len(text)
        while end:
            _, start, number = paths[end]
            ids.append(number)
            end = start
        return (paths[-1][0] if text else -math.inf), ids[::-1]


def extend_tokenizer(
    tokenizer: SentencePieceTokenizer,
    texts: Sequence[str],
    settings: SearchSettings,
    words: Sequence[str] = (),
) -> Extension:
    """Add tokens to a vocabulary. Old tokens keep ids and scores; new ones have the ids after them.

    A new token's score is the logarithm of its share of the text, but not below the lowest score of
    the model, and above that of the best segmentation it had, so that it is used. A character's is
    the lowest of the model. A hundred thousand lines are plenty.
    """
    check_fields(settings)
    coverage = settings.coverage
    facts = read_facts(tokenizer.model)
    if facts.model_type != UNIGRAM:  # scores of others are no logarithms of shares
        raise CheckpointError(
            "unsupported",
            "the vocabulary is not that of a unigram model: new tokens would have no score that fits",
            "train one: `albertkit tokenizer train FILES --out DIR`",
        )
    normalized_lines = [tokenizer.normalized(text).replace(SPACE, " ").strip() for text in texts]
    lines = [line for line in normalized_lines if line]
    vocabulary = {piece for piece, _, _ in facts.pieces}
    characters = _missing_characters(lines, vocabulary, coverage)
    word_pieces, left_out = _pieces_and_refused_words(tokenizer, words, vocabulary)
    characters += sorted({c for piece in word_pieces for c in piece} - vocabulary - set(characters))
    num_required = len(characters) + len(word_pieces)
    if num_required > settings.max_new:
        requirement = f"{coverage:.2%} of the text's characters need {len(characters):,} new ones"
        if word_pieces:
            requirement += f", and {len(word_pieces):,} words were given"
        hint = f"use --max-new {num_required} (max_new={num_required}) or more, fewer words, or a lower --coverage"
        raise ConfigError("bad-value", f"max_new is {settings.max_new:,}, but {requirement}", hint)
    lowest = UnigramPieces(facts, tokenizer.unk_id).lowest
    with_characters = ModelFacts((*facts.pieces, *((c, lowest, NORMAL) for c in characters)))
    pieces = UnigramPieces(with_characters, tokenizer.unk_id)
    max_pieces = settings.max_new - num_required
    alphabet = {c for c in vocabulary.union(characters) if len(c) == 1}
    analyser = find_analyser(settings.analyser) if settings.analyser else None
    num_candidates = len(alphabet) + int(_CANDIDATES * max_pieces)
    counts = piece_candidates(lines, alphabet, num_candidates, settings.min_count, analyser)
    excluded_pieces = vocabulary.union(characters, word_pieces)
    old_characters = set() if settings.recut else vocabulary
    # Tokens of known characters alone change how old text is cut: 15 % of English lines, and 53 %
    # with scores of 0.
    savings = []  # occurrences times tokens fewer at each
    for piece, count in counts.items():
        only_old = bool(old_characters) and all(
            c in old_characters for c in piece.removeprefix(SPACE)
        )
        if piece not in excluded_pieces and count >= settings.min_count and not only_old:
            savings.append((-count * (len(pieces.best_segmentation(piece)[1]) - 1), piece))
    text_pieces = [piece for _, piece in sorted(savings)[:max_pieces]]
    if not (characters or word_pieces or text_pieces):
        recut = "" if settings.recut else ", or use --recut for a field of its own"
        fact = f"the vocabulary lacks nothing that {len(lines):,} lines of text need"
        raise DataError("empty", fact, f"give more text, or name tokens with --words{recut}")
    scored = []  # estimating the scores again by usage changed nothing
    for piece in [*word_pieces, *text_pieces]:
        share = math.log(counts[piece] / counts.total()) if counts[piece] else -math.inf
        score = min(
            max(share, pieces.lowest, pieces.best_segmentation(piece)[0] + _JUST_ABOVE),
            -_JUST_ABOVE,
        )
        scored.append((piece, round_score(score), NORMAL))
    model = rebuild_model(tokenizer.model, [*with_characters.pieces, *scored])
    unused = -(len(with_characters.pieces) + len(scored)) % settings.multiple_of
    if unused:
        model = add_unused_pieces(model, unused)
    extended = SentencePieceTokenizer(model, tokenizer.text_rules, analyser=tokenizer.analyser)
    extended.model_max_length = tokenizer.model_max_length
    extended.mask_flags = tokenizer.mask_flags
    first = len(facts.pieces)
    occurrences = np.bincount(extended.encode_batch(texts).ids, minlength=extended.vocab_size)
    frequencies = np.maximum(occurrences[first:], 0.5) / max(occurrences.sum(), 1)
    return Extension(
        tokenizer=extended,
        first_id=first,
        characters=len(characters),
        words=len(word_pieces),
        found=len(text_pieces),
        unused=unused,
        left_out=left_out,
        frequencies=frequencies,
    )


def _missing_characters(lines: Sequence[str], vocabulary: set[str], coverage: float) -> list[str]:
    """Return the characters within the coverage that are no tokens, the most frequent first."""
    counts = Counter(character for line in lines for character in line if character != " ")
    missing: list[str] = []
    covered = 0
    for character, count in counts.most_common():
        if covered >= coverage * counts.total():
            break
        covered += count
        if character not in vocabulary:
            missing.append(character)
    return missing


def _pieces_and_refused_words(
    tokenizer: SentencePieceTokenizer,
    words: Sequence[str],
    vocabulary: set[str],
) -> tuple[list[str], dict[str, list[str]]]:
    """Return tokens for words, at the start of a word, and the words that cannot be tokens, by reason."""
    pieces: dict[str, None] = {}
    left_out: dict[str, list[str]] = {}
    for word in words:
        piece = tokenizer.normalized(word)
        letters = piece.removeprefix(SPACE)
        if not letters:
            reason = "empty"
        elif SPACE in letters:
            reason = "several words"
        elif len(letters) > _MAX_WORD_LENGTH:
            reason = "too long"
        elif rules.has_google_rules(tokenizer.text_rules) and ends_in_digit_comma(piece):
            reason = "ends in a digit and a comma, which Google's rules take apart"
        elif piece in vocabulary or piece in pieces:
            reason = "already a token"
        else:
            pieces[piece] = None
            continue
        left_out.setdefault(reason, []).append(word)
    return list(pieces), left_out


def piece_candidates(
    lines: Iterable[str],
    alphabet: set[str],
    max_pieces: int,
    min_count: int,
    analyser: Analyser | None,
) -> Counter[str]:
    """Return tokens of several characters, and how often each occurs in the lines when all are used.

    At most `max_pieces`, single characters counted; none holds a character outside the alphabet,
    comes of a pair that occurs less often than `min_count`, or crosses from one morpheme to the
    next. The lines are text as the model's normaliser leaves it, with plain spaces.
    """
    from tokenizers import Tokenizer, models, trainers

    runs: Counter[str] = Counter()
    for line in lines:
        boundaries = set(analyser.boundaries(line)) if analyser else set()
        # A run is a stretch of letters or digits of one script, within words and morphemes.
        start = 0
        for end in range(1, len(line) + 1):
            if (
                end < len(line)
                and end not in boundaries
                and alphabet.issuperset(line[end - 1 : end + 1])
            ):
                script = _script_of_character(line[end - 1])
                if script and _script_of_character(line[end]) in (script, "mark"):
                    continue
            if _script_of_character(line[start]) and line[start] in alphabet:
                begins_word = start == 0 or line[start - 1] == " "
                runs[SPACE + line[start:end] if begins_word else line[start:end]] += 1
            start = end
    # Without a pre-tokenizer, so a run is a word. Of 1.3 million characters of Korean Wikipedia,
    # 8,000 tokens more for 30k-clean, tokens a word on other articles: byte-pair merges 2.43, the
    # tokens of a unigram model 2.55, words and their frequent endings by counting 2.65; within
    # mecab's morphemes: 2.71, 3.15, 2.86. On texts of a few thousand words unigram's pruning loses
    # the endings altogether; merges begin with them.
    merges = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=max_pieces,
        min_frequency=min_count,
        max_token_length=_MAX_CANDIDATE_LENGTH,
        show_progress=False,
    )
    merges.train_from_iterator((run for run, count in runs.items() for _ in range(count)), trainer)
    counts: Counter[str] = Counter()
    for encoded, count in zip(merges.encode_batch(list(runs)), runs.values(), strict=True):
        for piece in encoded.tokens:
            counts[piece] += count
    return counts


@cache
def _script_of_character(character: str) -> str:
    """Return the script of a letter, "number", "mark", or "" for a sign."""
    category = unicodedata.category(character)[0]
    if category not in "LMN":
        return ""
    if category == "N":
        return "number"
    script = unicodedata.name(character, "?").split()[0]
    if script == "COMBINING":
        return "mark"
    return "CJK" if script in _TOGETHER else script
