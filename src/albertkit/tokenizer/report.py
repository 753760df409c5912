"""How well a vocabulary fits a text: what is unknown, how many pieces a word takes, whether the way back leads back."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from albertkit.tokenizer import rules
from albertkit.tokenizer.digit_comma import SPACE
from albertkit.tokenizer.sentencepiece_model import NORMAL, read_facts
from albertkit.tokenizer.sentencepiece_tokenizer import SentencePieceTokenizer


@dataclass(frozen=True)
class TextFit:
    """Of a vocabulary on some lines of text.

    Attributes:
        lines, words, pieces: Numbers; a word ends at a space of the text. Spaces that an analyser puts between morphemes end
            none, so that vocabularies with and without them can be compared.
        unknown_rate: Share of the pieces that are the unknown piece.
        unknown_words: Share of the words that have an unknown character.
        pieces_a_word: Pieces per word.
        character_coverage: Share of the characters, spaces left out, that have a piece.
        unknown_characters: The most frequent characters without a piece.
        round_trip: Share of the lines whose ids decode to the line as the rules and the model's normaliser leave it.
    """

    lines: int
    words: int
    pieces: int
    unknown_rate: float
    unknown_words: float
    pieces_a_word: float
    character_coverage: float
    unknown_characters: list[str]
    round_trip: float

    def to_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
        return asdict(self)


def measure_fit(tokenizer: SentencePieceTokenizer, lines: Sequence[str]) -> TextFit:
    """Encode lines and count.

    Args:
        tokenizer: Any with a SentencePiece model.
        lines: Text that the vocabulary was not made of.
    """
    encoded = tokenizer.encode_batch(lines)
    normalized = [tokenizer.normalized(line) for line in lines]
    words = [word for line in normalized for word in line.split(SPACE) if word]
    characters = Counter(character for word in words for character in word)
    unknown = {c: n for c, n in characters.items() if tokenizer.piece_to_id(c) == tokenizer.unk_id}
    back = sum(
        tokenizer.decode(ids.tolist()) == line.replace(SPACE, " ").strip()
        for ids, line in zip(encoded.texts(), normalized, strict=True)
    )
    pieces = len(encoded.ids)
    number = (
        sum(len(rules.apply(tokenizer.text_rules, line).split()) for line in lines)
        if tokenizer.analyser
        else len(words)
    )
    return TextFit(
        lines=len(lines),
        words=number,
        pieces=pieces,
        unknown_rate=int(np.count_nonzero(encoded.ids == tokenizer.unk_id)) / max(pieces, 1),
        unknown_words=sum(not unknown.keys().isdisjoint(word) for word in words) / max(len(words), 1),
        pieces_a_word=pieces / max(number, 1),
        character_coverage=1 - sum(unknown.values()) / max(characters.total(), 1),
        unknown_characters=sorted(unknown, key=unknown.__getitem__, reverse=True)[:20],
        round_trip=back / max(len(lines), 1),
    )


def longest_pieces(tokenizer: SentencePieceTokenizer, number: int = 10) -> list[str]:
    """The longest pieces of a vocabulary, by characters; a look at them shows what does not belong there."""
    pieces = (piece for piece, _, kind in read_facts(tokenizer.model).pieces if kind == NORMAL)
    return sorted(pieces, key=len, reverse=True)[:number]
