"""Measure how well a vocabulary fits a text: unknown tokens, tokens a word, lines that decode to themselves."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from albertkit.frame.section import Section, Table, Text
from albertkit.tokenizer import rules
from albertkit.tokenizer.digit_comma import SPACE
from albertkit.tokenizer.sentencepiece_model import NORMAL, read_facts
from albertkit.tokenizer.sentencepiece_tokenizer import SentencePieceTokenizer


@dataclass(frozen=True)
class TextFit:
    """Fit of a vocabulary to some lines of text.

    Attributes:
        lines, words, pieces: Numbers; a word ends at a space of the text. Spaces that an analyser puts between morphemes end
            none, so that vocabularies with and without them can be compared.
        unknown_rate: Share of the tokens that are the unknown token.
        unknown_words: Share of the words that have an unknown character.
        pieces_a_word: Tokens per word.
        character_coverage: Share of the characters, spaces left out, that have a token.
        unknown_characters: The most frequent characters without a token.
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
        """Return all fields, for JSON."""
        return asdict(self)


def fit_sections(fits: Mapping[str, TextFit | None]) -> list[Section]:
    """Return how vocabularies fit lines of text, a column each."""
    known = {name: fit for name, fit in fits.items() if fit is not None}
    if not known:
        return [Text("the text is too short to hold lines out and measure on them")]
    shown: dict[str, Callable[[TextFit], str]] = {
        "lines": lambda fit: f"{fit.lines:,}",
        "tokens a word": lambda fit: f"{fit.pieces_a_word:.3f}",
        "unknown tokens": lambda fit: f"{fit.unknown_rate:.3%}",
        "words with an unknown character": lambda fit: f"{fit.unknown_words:.3%}",
        "characters with a token": lambda fit: f"{fit.character_coverage:.3%}",
        "unknown characters": lambda fit: "".join(fit.unknown_characters[:10]),
        "lines that decode to themselves": lambda fit: f"{fit.round_trip:.2%}",
    }
    return [Table(["", *known], [[name, *map(text, known.values())] for name, text in shown.items()])]


def reading_section(compared: int, differing: int) -> Section:
    """Return how many lines `tokenizer.json` reads as its tokenizer does."""
    if not compared:
        return Text("there is no tokenizer.json: transformers cannot open the folder")
    differ = f"{differing:,} differ" if differing else "none differs"
    return Text(f"tokenizer.json, as transformers loads it: {compared:,} lines compared, {differ}")


def measure_fit(tokenizer: SentencePieceTokenizer, lines: Sequence[str]) -> TextFit:
    """Encode lines that the vocabulary was not trained on, and count."""
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
    """Return the longest tokens of a vocabulary, by characters; a look at them shows what does not belong there."""
    pieces = (piece for piece, _, kind in read_facts(tokenizer.model).pieces if kind == NORMAL)
    return sorted(pieces, key=len, reverse=True)[:number]
