"""Read what a SentencePiece model file says about itself: special ids, types and scores of its pieces, its normaliser.

The file is a protocol buffer. The few fields needed are read here rather than with `protobuf`: sentencepiece does not
bring that package, and its `sentencepiece_model_pb2` cannot live in one process with the copy in transformers
("duplicate file name sentencepiece_model.proto", 5.23).
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from albertkit.errors import CheckpointError

SPECIAL_PIECES = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
# What a special piece is for, by what it is often called. Other names are free, these must be at their places.
_ROLES = {"pad": 0, "unk": 1, "cls": 2, "s": 2, "bos": 2, "sep": 3, "/s": 3, "eos": 3, "mask": 4}

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_FLT_MIN = 2.0**-126
UNIGRAM, BPE, WORD, CHAR = 1, 2, 3, 4  # model types


@dataclass
class ModelFacts:
    """The parts of a model file that albertkit looks at (sentencepiece_model.proto). Shared: never changed.

        Attributes:
            pieces: Text, score and type of each piece.
            model_type: _FLT_MIN = 2.0**-126
    UNIGRAM, BPE, WORD or CHAR.
            whitespace_as_suffix: A space belongs to the piece before it.
            charsmap: The compiled rules of the normaliser; empty for `identity`.
            dummy_prefix: A space is put before the text.
            one_space: Runs of spaces become one, spaces at the ends go.
            escape_spaces: A space is written U+2581.
    """

    pieces: list[tuple[str, float, int]] = field(default_factory=list)
    model_type: int = UNIGRAM
    whitespace_as_suffix: bool = False
    charsmap: bytes = b""
    dummy_prefix: bool = True
    one_space: bool = True
    escape_spaces: bool = True


@lru_cache(maxsize=1)  # 0.1 s for 30,000 pieces; whoever loads a tokenizer reads its model two to four times
def read_facts(model: bytes) -> ModelFacts:
    """Read a model file. It must be one that SentencePiece has accepted; nothing is checked again."""
    facts = ModelFacts()
    for number, value, _ in fields(model):
        if not isinstance(value, bytes):
            continue
        if number == 1:
            facts.pieces.append(_read_piece(value))
        elif number == 2:
            trainer = _known(value, {3: int, 24: int})
            facts.model_type = trainer.get(3, UNIGRAM)
            facts.whitespace_as_suffix = bool(trainer.get(24, 0))
        elif number == 3:
            normalizer = _known(value, {2: bytes, 3: int, 4: int, 5: int})
            facts.charsmap = normalizer.get(2, b"")
            facts.dummy_prefix, facts.one_space, facts.escape_spaces = (bool(normalizer.get(n, 1)) for n in (3, 4, 5))
    return facts


def _read_piece(message: bytes) -> tuple[str, float, int]:
    """Return text, score and type. As SentencePiece writes them, in three fields, they are read three times as fast."""
    end = 2 + message[1] if len(message) > 1 else 0
    if message[:1] == b"\n" and end < 0x82 and message[end : end + 1] == b"\x15" and len(message) in (end + 5, end + 7):
        (score,) = struct.unpack_from("<f", message, end + 1)
        if len(message) == end + 5:
            return message[2:end].decode(), score, NORMAL
        if message[end + 5] == 0x18 and message[end + 6] < 0x80:
            return message[2:end].decode(), score, message[end + 6]
    piece: dict[int, Any] = {1: b"", 2: 0.0, 3: NORMAL, **_known(message, {1: bytes, 2: float, 3: int})}
    return piece[1].decode(), piece[2], piece[3]


def _known(message: bytes, kinds: dict[int, type]) -> dict[int, Any]:
    """Return the fields that have their type; one of another is unknown to a protocol buffer, and passed over."""
    return {number: value for number, value, _ in fields(message) if isinstance(value, kinds.get(number, ()))}


def fields(message: bytes) -> Iterator[tuple[int, Any, slice]]:
    """Yield number, value (int for varints, float for fixed sizes, bytes for the rest) and place of each field of a message."""
    position = 0
    while position < len(message):
        start = position
        tag, position = _read_varint(message, position)
        kind = tag & 7
        value: Any
        if kind == 0:
            value, position = _read_varint(message, position)
        elif kind == 5:
            (value,) = struct.unpack_from("<f", message, position)
            position += 4
        elif kind == 1:
            (value,) = struct.unpack_from("<d", message, position)
            position += 8
        else:
            length, position = _read_varint(message, position)
            value = message[position : position + length]
            position += length
        yield tag >> 3, value, slice(start, position)


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    """Return a number of variable length, and where it ends."""
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def symbol_score(piece: str, best: float) -> float:
    """Return the score of a user-defined piece in a unigram model whose best ordinary piece scores `best`.

    unigram_model.cc begins its maximum at FLT_MIN, so scores below zero, which all trained ones are, do not count.
    """
    return len(piece.encode()) * max(best, _FLT_MIN) - 0.1


def load_processor(model: bytes, source: Path) -> Any:
    """Return a SentencePiece processor whose special ids are ALBERT's; `source` is for messages."""
    import sentencepiece

    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        size = processor.get_piece_size()
        facts = read_facts(model)
    except (RuntimeError, TypeError, ValueError, IndexError, struct.error):
        size = 0
    if not size:
        what = f"`{source}` ({len(model):,} bytes) is not a SentencePiece model"
        raise CheckpointError(
            "bad-file", what, "fetch it again, or train one: `albertkit tokenizer train FILES --out DIR`"
        )
    found = [processor.id_to_piece(i) for i in range(min(size, len(SPECIAL_PIECES)))]
    if not (
        len(found) == len(SPECIAL_PIECES) and processor.unk_id() == 1 and all(map(_in_place, facts.pieces, range(5)))
    ):
        raise CheckpointError(
            "wrong-tokenizer",
            f"`{source}` has {' '.join(f'{p}={i}' for i, p in enumerate(found))} and its unknown token at "
            f"{processor.unk_id()}; ALBERT needs {' '.join(f'{p}={i}' for i, p in enumerate(SPECIAL_PIECES))}",
            f"renumber it, and the model it belongs to: `albertkit tokenizer repair {source.parent} --out DIR`",
        )
    return processor


def role_of(piece: str) -> int | None:
    """Return the id that ALBERT has for a special piece of this name; None if the name says nothing."""
    return _ROLES.get(piece.strip("<>[]").lower()) if piece[:1] + piece[-1:] in ("<>", "[]") else None


def _in_place(piece: tuple[str, float, int], place: int) -> bool:
    """Return True for ALBERT's special piece of this id: called so, or a control piece whose name says nothing."""
    name, _, kind = piece
    return role_of(name) == place or (role_of(name) is None and kind == (UNKNOWN if place == 1 else CONTROL))
