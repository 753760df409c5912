"""More pieces for a SentencePiece model: those that a text in another language or of another field needs.

First the characters that the model lacks, the most frequent first, until nothing but rare ones is unknown; then pieces of
several characters (`candidates.py`), those first that make the text shortest. Everything is looked for in the text as the
model's own rules and normaliser leave it.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from albertkit.errors import ConfigError, DataError
from albertkit.tokenizer.candidates import piece_candidates
from albertkit.tokenizer.digit_comma import SPACE
from albertkit.tokenizer.model_file import rebuilt_model, with_unused
from albertkit.tokenizer.morphemes import find_analyser
from albertkit.tokenizer.segmentation import UnigramPieces
from albertkit.tokenizer.sentencepiece_model import NORMAL, ModelFacts, read_facts
from albertkit.tokenizer.sentencepiece_tokenizer import SentencePieceTokenizer

_LONGEST_WORD = 32  # characters of a word that is given; SentencePiece finds none above 16
_JUST_ABOVE = 0.1  # SentencePiece adds scores in single precision: less would drown in a text of some thousand pieces
# For each piece wanted: some are in the vocabulary already, and some go on into longer ones and are left with few occurrences.
_CANDIDATES = 1.25


@dataclass(frozen=True)
class Extension:
    """A vocabulary with more pieces.

    Attributes:
        tokenizer: With it; not yet saved.
        first_id: Id of the first new piece: the size of the old vocabulary.
        characters: New pieces that are one character.
        words: New pieces that were given.
        found: New pieces that were found in the text.
        unused: Pieces at the end that fill the vocabulary up to a multiple.
        left_out: Why words that were given are no pieces; reason to words.
        frequencies: float64 [new pieces]. Share of each among all pieces of the text; one that does not occur counts half.
    """

    tokenizer: SentencePieceTokenizer
    first_id: int
    characters: int
    words: int
    found: int
    unused: int
    left_out: dict[str, list[str]]
    frequencies: np.ndarray


def extend_tokenizer(
    tokenizer: SentencePieceTokenizer,
    texts: Sequence[str],
    max_new: int = 8000,
    min_count: int = 5,
    words: Sequence[str] = (),
    *,
    coverage: float = 0.9995,
    analyser: str | None = None,
    recut: bool = False,
    multiple_of: int = 1,
) -> Extension:
    """Add pieces to a vocabulary. Old pieces keep ids and scores; new ones have the ids after them.

    A new piece's score is the logarithm of its share of the text, but not below the lowest score of the model, and above
    that of the best segmentation it had, so that it is used. A character's is the lowest of the model. (With scores of 0 new
    pieces beat nearly every other way to cut a word.)

    Args:
        tokenizer: The old vocabulary.
        texts: What the new pieces are for; lines. A hundred thousand are plenty.
        max_new: Tokens to add at most: missing characters and given words, then as many found ones as there is room for. Those
            that fill up to `multiple_of` are not counted.
        min_count: How often a piece must occur in the texts. Words that are given need not.
        words: Words to add whatever the texts say.
        coverage: Share of the texts' characters that shall have a piece.
        analyser: "mecab" or "kiwi": no piece that is found crosses from one Korean morpheme to the next. None: any may.
        recut: Also add pieces made of characters that the vocabulary has, as for a field of its own language. They change
            how texts are cut that had no unknown piece.
        multiple_of: Fill the vocabulary up to a multiple of this with unused pieces.

    Returns:
        The extension.

    Raises:
        ConfigError: bad-argument, vocab-too-small. DataError: empty-input. MissingExtraError: missing-extra.
    """
    if max_new < 1 or min_count < 1 or multiple_of < 1 or not 0 < coverage <= 1:
        raise ConfigError(
            "bad-argument",
            f"max_new {max_new}, min_count {min_count}, multiple_of {multiple_of}, coverage {coverage}",
            "the first three are 1 or more, the coverage is above 0 and at most 1",
        )
    facts = read_facts(tokenizer.model)
    lines = [line for text in texts if (line := tokenizer.normalized(text).replace(SPACE, " ").strip())]
    there = {piece for piece, _, _ in facts.pieces}
    characters = _missing_characters(lines, there, coverage)
    given, left_out = _given(tokenizer, words, there)
    characters += sorted({c for piece in given for c in piece} - there - set(characters))
    if (least := len(characters) + len(given)) > max_new:
        words_too = f", and {len(given):,} words were given" if given else ""
        raise ConfigError(
            "vocab-too-small",
            f"max_new is {max_new:,}, but {coverage:.2%} of the text's characters need {len(characters):,} new ones{words_too}",
            f"use --max-new {least} (max_new={least}) or more, fewer words, or a lower --coverage",
        )
    lowest = UnigramPieces(facts, tokenizer.unk_id).lowest
    grown = ModelFacts([*facts.pieces, *((c, lowest, NORMAL) for c in characters)])
    pieces = UnigramPieces(grown, tokenizer.unk_id)
    room = max_new - len(characters) - len(given)
    alphabet = {c for c in there.union(characters) if len(c) == 1}
    counts = piece_candidates(
        lines,
        alphabet,
        len(alphabet) + int(_CANDIDATES * max(room, 0)),
        min_count,
        find_analyser(analyser) if analyser else None,
    )
    found = _chosen(counts, pieces, there.union(characters, given), set() if recut else there, min_count, room)
    if not (characters or given or found):
        raise DataError(
            "empty-input",
            f"the vocabulary lacks nothing that {len(lines):,} lines of text need",
            "give more text, or name pieces with --words"
            + ("" if recut else ", or use --recut for a field of its own"),
        )
    scored = [(piece, _score(piece, counts, pieces), NORMAL) for piece in [*given, *found]]
    model = rebuilt_model(tokenizer.model, [*grown.pieces, *scored])
    unused = -(len(grown.pieces) + len(scored)) % multiple_of
    extended = SentencePieceTokenizer(
        with_unused(model, unused) if unused else model, tokenizer.text_rules, analyser=tokenizer.analyser
    )
    extended.model_max_length = tokenizer.model_max_length
    first = len(facts.pieces)
    occurrences = np.bincount(extended.encode_batch(texts).ids, minlength=extended.vocab_size)[first:]
    return Extension(
        extended, first, len(characters), len(given), len(found), unused, left_out,
        np.maximum(occurrences, 0.5) / max(occurrences.sum(), 1),
    )  # fmt: skip


def _missing_characters(lines: Sequence[str], there: set[str], coverage: float) -> list[str]:
    """Characters that are no pieces, the most frequent first, among those that the coverage takes."""
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
    """Pieces for words, at the start of a word, and which words can be none."""
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
        elif piece in there or piece in pieces:
            reason = "already a piece"
        else:
            pieces[piece] = None
            continue
        left_out.setdefault(reason, []).append(word)
    return list(pieces), left_out


def _chosen(
    counts: Counter[str], pieces: UnigramPieces, taken: set[str], old: set[str], min_count: int, room: int
) -> list[str]:
    """The pieces that save most, occurrences times pieces fewer at each; none that has only `old` characters."""
    savings = []
    for piece, count in counts.items():
        bare = piece.removeprefix(SPACE)
        if piece in taken or count < min_count or (old and all(c in old for c in bare)):
            continue
        savings.append((-count * (len(pieces.best(piece)[1]) - 1), piece))
    return [piece for _, piece in sorted(savings)[: max(room, 0)]]


def _score(piece: str, counts: Counter[str], pieces: UnigramPieces) -> float:
    share = math.log(counts[piece] / counts.total()) if counts[piece] else -math.inf
    return min(max(share, pieces.lowest, pieces.best(piece)[0] + _JUST_ABOVE), -_JUST_ABOVE)
