"""More tokens for a SentencePiece model: those that a text in another language or of another field needs.

First the characters that the model lacks, the most frequent first, until nothing but rare ones is unknown; then tokens of
several characters, those first that make the text shortest. Everything is looked for in the text as the model's own rules
and normaliser leave it.

Candidates are byte-pair merges of words. Of 1.3 million characters of Korean Wikipedia, 8,000 tokens more for 30k-clean,
tokens a word on other articles: merges 2.44, the tokens of a unigram model 2.55, words and their frequent endings by counting
2.65; within mecab's morphemes: merges 2.71, unigram 3.15, counting 2.86. On texts of a few thousand words unigram's pruning
loses the endings altogether; merges begin with them.
"""

import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from albertkit.errors import CheckpointError, ConfigError, DataError
from albertkit.tokenizer import rules
from albertkit.tokenizer.digit_comma import SPACE, ends_in_digit_comma
from albertkit.tokenizer.model_file import rebuilt_model, rounded_score, with_unused
from albertkit.tokenizer.morphemes import Analyser, find_analyser
from albertkit.tokenizer.options import SearchSettings
from albertkit.tokenizer.sentencepiece_model import NORMAL, UNIGRAM, ModelFacts, read_facts
from albertkit.tokenizer.sentencepiece_tokenizer import SentencePieceTokenizer
from albertkit.validation import check_fields

_LONGEST_WORD = 32  # characters of a word that is given; SentencePiece finds none above 16
_JUST_ABOVE = 0.1  # SentencePiece adds scores in single precision: less would drown in a text of some thousand tokens
# For each token wanted: some are in the vocabulary already, and some go on into longer ones and are left with few occurrences.
_CANDIDATES = 1.25
_LONGEST_CANDIDATE = 16  # characters, as in SentencePiece
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
        left_out: Why words that were given are no tokens; reason to words.
        frequencies: float64 [new tokens]. Share of each among all tokens of the text; one that does not occur counts half.
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

    It lacks the space that SentencePiece puts before a text. `unknown` is the id of the unknown token.
    """

    def __init__(self, facts: ModelFacts, unknown: int) -> None:
        self.ids: Mapping[str, int] = {
            piece: number for number, (piece, _, kind) in enumerate(facts.pieces) if kind == NORMAL
        }
        self.scores = [score for _, score, _ in facts.pieces]
        self.lowest = min(self.scores[number] for number in self.ids.values())
        self._unknown = unknown
        self._longest = max(map(len, self.ids))

    def best(self, text: str) -> tuple[float, list[int]]:
        """Return score and ids of the best segmentation of a text, with U+2581 for a space; uncovered characters are unknown."""
        paths: list[tuple[float, int, int]] = [(0.0, 0, 0)]  # score, where the last piece starts, that piece
        for end in range(1, len(text) + 1):
            best = (paths[end - 1][0] + self.lowest - _UNKNOWN_PENALTY, end - 1, self._unknown)
            for start in range(max(0, end - self._longest), end):
                number = self.ids.get(text[start:end])
                if number is not None and paths[start][0] + self.scores[number] > best[0]:
                    best = (paths[start][0] + self.scores[number], start, number)
            paths.append(best)
        ids, end = [], len(text)
        while end:
            _, start, number = paths[end]
            ids.append(number)
            end = start
        return (paths[-1][0] if text else -math.inf), ids[::-1]


def extend_tokenizer(
    tokenizer: SentencePieceTokenizer, texts: Sequence[str], settings: SearchSettings, words: Sequence[str] = ()
) -> Extension:
    """Add tokens to a vocabulary. Old tokens keep ids and scores; new ones have the ids after them.

    A new token's score is the logarithm of its share of the text, but not below the lowest score of the model, and above
    that of the best segmentation it had, so that it is used. A character's is the lowest of the model. (With scores of 0 new
    tokens beat nearly every other way to cut a word.) A hundred thousand lines are plenty.
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
    lines = [line for text in texts if (line := tokenizer.normalized(text).replace(SPACE, " ").strip())]
    there = {piece for piece, _, _ in facts.pieces}
    characters = _missing_characters(lines, there, coverage)
    given, left_out = _given(tokenizer, words, there)
    characters += sorted({c for piece in given for c in piece} - there - set(characters))
    if (least := len(characters) + len(given)) > settings.max_new:
        words_too = f", and {len(given):,} words were given" if given else ""
        needed = f"{coverage:.2%} of the text's characters need {len(characters):,} new ones{words_too}"
        hint = f"use --max-new {least} (max_new={least}) or more, fewer words, or a lower --coverage"
        raise ConfigError("bad-value", f"max_new is {settings.max_new:,}, but {needed}", hint)
    lowest = UnigramPieces(facts, tokenizer.unk_id).lowest
    grown = ModelFacts([*facts.pieces, *((c, lowest, NORMAL) for c in characters)])
    pieces = UnigramPieces(grown, tokenizer.unk_id)
    room = settings.max_new - least
    alphabet = {c for c in there.union(characters) if len(c) == 1}
    analyser = find_analyser(settings.analyser) if settings.analyser else None
    number = len(alphabet) + int(_CANDIDATES * room)
    counts = piece_candidates(lines, alphabet, number, settings.min_count, analyser)
    taken, old = there.union(characters, given), set() if settings.recut else there
    found = _chosen(counts, pieces, taken, old, settings.min_count, room)
    if not (characters or given or found):
        recut = "" if settings.recut else ", or use --recut for a field of its own"
        what = f"the vocabulary lacks nothing that {len(lines):,} lines of text need"
        raise DataError("empty", what, f"give more text, or name tokens with --words{recut}")
    scored = [(piece, rounded_score(_score(piece, counts, pieces)), NORMAL) for piece in [*given, *found]]
    model = rebuilt_model(tokenizer.model, [*grown.pieces, *scored])
    unused = -(len(grown.pieces) + len(scored)) % settings.multiple_of
    extended = SentencePieceTokenizer(
        with_unused(model, unused) if unused else model, tokenizer.text_rules, analyser=tokenizer.analyser
    )
    extended.model_max_length = tokenizer.model_max_length
    first = len(facts.pieces)
    occurrences = np.bincount(extended.encode_batch(texts).ids, minlength=extended.vocab_size)
    frequencies = np.maximum(occurrences[first:], 0.5) / max(occurrences.sum(), 1)
    return Extension(extended, first, len(characters), len(given), len(found), unused, left_out, frequencies)


def _missing_characters(lines: Sequence[str], there: set[str], coverage: float) -> list[str]:
    """Return characters that are no tokens, the most frequent first, among those that the coverage takes."""
    counts = Counter(character for line in lines for character in line if character != " ")
    missing: list[str] = []
    covered = 0
    for character, count in counts.most_common():
        if covered >= coverage * counts.total():
            break
        covered += count
        if character not in there:
            missing.append(character)
    return missing


def _given(
    tokenizer: SentencePieceTokenizer, words: Sequence[str], there: set[str]
) -> tuple[list[str], dict[str, list[str]]]:
    """Return tokens for words, at the start of a word, and which words can be none."""
    pieces: dict[str, None] = {}
    left_out: dict[str, list[str]] = {}
    for word in words:
        piece = tokenizer.normalized(word)
        bare = piece.removeprefix(SPACE)
        if not bare:
            reason = "empty"
        elif SPACE in bare:
            reason = "several words"
        elif len(bare) > _LONGEST_WORD:
            reason = "too long"
        elif rules.is_google(tokenizer.text_rules) and ends_in_digit_comma(piece):
            reason = "ends in a digit and a comma, which Google's rules take apart"
        elif piece in there or piece in pieces:
            reason = "already a token"
        else:
            pieces[piece] = None
            continue
        left_out.setdefault(reason, []).append(word)
    return list(pieces), left_out


def _chosen(
    counts: Counter[str], pieces: UnigramPieces, taken: set[str], old: set[str], min_count: int, room: int
) -> list[str]:
    """Choose the tokens that save most, occurrences times tokens fewer at each; none that has only `old` characters."""
    savings = []
    for piece, count in counts.items():
        bare = piece.removeprefix(SPACE)
        if piece in taken or count < min_count or (old and all(c in old for c in bare)):
            continue
        savings.append((-count * (len(pieces.best(piece)[1]) - 1), piece))
    return [piece for _, piece in sorted(savings)[:room]]


def _score(piece: str, counts: Counter[str], pieces: UnigramPieces) -> float:
    share = math.log(counts[piece] / counts.total()) if counts[piece] else -math.inf
    return min(max(share, pieces.lowest, pieces.best(piece)[0] + _JUST_ABOVE), -_JUST_ABOVE)


def piece_candidates(
    lines: Iterable[str], alphabet: set[str], number: int, min_count: int, analyser: Analyser | None
) -> Counter[str]:
    """Return tokens of several characters, and how often each occurs in the lines when all are used.

    At most `number`, single characters counted; none holds a character outside the alphabet, comes of a pair that occurs less
    often than `min_count`, or crosses from one morpheme to the next. The lines are text as the model's normaliser leaves it,
    with plain spaces.
    """
    from tokenizers import Tokenizer, models, trainers

    runs: Counter[str] = Counter()
    for line in lines:
        runs.update(_runs(line, alphabet, set(analyser.boundaries(line)) if analyser else set()))
    merges = Tokenizer(models.BPE())  # without a pre-tokenizer: a run is a word
    trainer = trainers.BpeTrainer(
        vocab_size=number, min_frequency=min_count, max_token_length=_LONGEST_CANDIDATE, show_progress=False
    )
    merges.train_from_iterator((run for run, count in runs.items() for _ in range(count)), trainer)
    counts: Counter[str] = Counter()
    for encoded, count in zip(merges.encode_batch(list(runs)), runs.values(), strict=True):
        for piece in encoded.tokens:
            counts[piece] += count
    return counts


def _runs(line: str, alphabet: set[str], boundaries: set[int]) -> Iterator[str]:
    """Cut a line into stretches of letters or digits of one script, within words and morphemes; mark those that begin a word."""
    start = 0
    for place in range(1, len(line) + 1):
        if place < len(line) and place not in boundaries and _go_on(line[place - 1], line[place], alphabet):
            continue
        if _script(line[start]) and line[start] in alphabet:
            yield (SPACE if start == 0 or line[start - 1] == " " else "") + line[start:place]
        start = place


def _go_on(before: str, character: str, alphabet: set[str]) -> bool:
    if before not in alphabet or character not in alphabet or not _script(before):
        return False
    return _script(character) in (_script(before), "mark")


@cache
def _script(character: str) -> str:
    """Return the script of a letter, "number", "mark", or nothing for a sign."""
    category = unicodedata.category(character)[0]
    if category not in "LMN":
        return ""
    if category == "N":
        return "number"
    script = unicodedata.name(character, "?").split()[0]
    if script == "COMBINING":
        return "mark"
    return "CJK" if script in _TOGETHER else script
