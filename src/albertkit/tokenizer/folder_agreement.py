"""Compare the reading of `tokenizer.json` with that of the other tokenizer file of a folder, on one hard sentence.

Of a vocabulary of 30,000 tokens only those that can match the sentence are loaded: 10 ms, where the whole takes 60 to 90.
"""

import json
import logging
from pathlib import Path
from typing import Any, Protocol

import msgspec

from albertkit.tokenizer.comparison import Vocabulary, compare_reader
from albertkit.tokenizer.folder_files import JSON_NAME

# Capitals, accents, quotes, a digit before a comma, Hangul, Chinese, full-width letters: where readers part.
HARD_SENTENCE = "McDonald's naïve “café” paid 1,234,500, in (Zürich) 2010, 대한민국의 수도 日本 Ａ."

logger = logging.getLogger("albertkit")


class Encoder(Vocabulary, Protocol):
    """Methods of an `AlbertTokenizer` that are used here."""

    def encode(self, text: str) -> list[int]: ...


class _Model(msgspec.Struct):
    type: str
    vocab: dict[str, int] | list[tuple[str, float]]
    unk_id: int | None = None
    byte_fallback: bool = False
    unk_token: str = "[UNK]"
    max_input_chars_per_word: int = 100


class _Content(msgspec.Struct):
    model: _Model
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None


def warn_of_other_reading(folder: Path, tokenizer: Encoder) -> None:
    """Log a warning if the folder's `tokenizer.json` reads a hard sentence otherwise than the tokenizer that was chosen."""
    file = folder / JSON_NAME
    if not file.exists():
        return
    try:
        content = msgspec.json.decode(file.read_bytes(), type=_Content)
        comparison = compare_reader(
            JSON_NAME, tokenizer, [HARD_SENTENCE], tokenizer.encode, lambda text: _ids(content, text)
        )
    except (msgspec.MsgspecError, ValueError, KeyError) as error:
        logger.warning("`%s` cannot be compared with the folder's other tokenizer file: %s", file, error)
        return
    if comparison.first is None:
        return
    ours, theirs = comparison.first.excerpts()
    logger.warning(
        "`%s` reads a text otherwise than the folder's other tokenizer file, which is used here: `%s` in place of `%s`; "
        "see: albertkit tokenizer check %s",
        file,
        theirs,
        ours,
        folder,
    )


def _ids(content: _Content, text: str) -> list[int]:
    """Return the ids of a text by a `tokenizer.json`, without its added tokens."""
    from tokenizers import Tokenizer, models

    steps = {"normalizer": content.normalizer, "pre_tokenizer": content.pre_tokenizer}
    empty = {"type": "WordLevel", "vocab": {"": 0}, "unk_token": ""}
    tokenizer = Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], **steps, "model": empty}))
    normalizer, pre_tokenizer, model = tokenizer.normalizer, tokenizer.pre_tokenizer, content.model
    normal = normalizer.normalize_str(text) if normalizer is not None else text
    words = [word for word, _ in pre_tokenizer.pre_tokenize_str(normal)] if pre_tokenizer is not None else [normal]
    candidates = {word[a:b] for word in words for a in range(len(word)) for b in range(a + 1, len(word) + 1)}
    if isinstance(model.vocab, dict):
        candidates |= {model.unk_token, *(f"##{candidate}" for candidate in candidates)}
        tokenizer.model = models.WordPiece(
            {token: model.vocab[token] for token in candidates & model.vocab.keys()},
            unk_token=model.unk_token,
            max_input_chars_per_word=model.max_input_chars_per_word,
        )
        return tokenizer.encode(text, add_special_tokens=False).ids
    scores = [score for _, score in model.vocab]
    numbers = {n for n, (piece, _) in enumerate(model.vocab) if piece in candidates}
    numbers |= {
        scores.index(min(scores)),
        model.unk_id or 0,
    }  # an unknown character scores 10 less than the worst token
    if model.byte_fallback:
        numbers |= {n for n, (piece, _) in enumerate(model.vocab) if piece.startswith("<0x")}
    ordered = sorted(numbers)
    tokenizer.model = models.Unigram(
        [model.vocab[n] for n in ordered], unk_id=ordered.index(model.unk_id or 0), byte_fallback=model.byte_fallback
    )
    return [ordered[n] for n in tokenizer.encode(text, add_special_tokens=False).ids]
