"""SentencePiece model files with other pieces than they came with.

What is no piece is carried over field by field as it is, but for what training leaves in the trainer's section: the
paths of the text and of the model, which are private.
"""

import itertools
import struct
from collections.abc import Mapping, Sequence

from albertkit.tokenizer.sentencepiece_model import NORMAL, UNUSED, fields, read_facts

Piece = tuple[str, float, int]  # text, score, type

# Fields of ModelProto and TrainerSpec (sentencepiece_model.proto).
_PIECES, _TRAINER = 1, 2
_INPUT, _MODEL_PREFIX, _VOCAB_SIZE, _SEED_FILE = 1, 2, 4, 54
_UNK_ID, _BOS_ID, _EOS_ID, _PAD_ID = 40, 41, 42, 43
_UNK_PIECE, _PAD_PIECE = 45, 48


def rebuilt_model(model: bytes, pieces: Sequence[Piece]) -> bytes:
    """Return a model file with these pieces in place of its own; the first two are ALBERT's padding and unknown piece."""
    settings: dict[int, int | str] = {
        _VOCAB_SIZE: len(pieces),
        _UNK_ID: 1,
        _BOS_ID: -1,
        _EOS_ID: -1,
        _PAD_ID: 0,
        _UNK_PIECE: pieces[1][0],
        _PAD_PIECE: pieces[0][0],
    }
    parts = [_field(_PIECES, _piece(piece)) for piece in pieces]
    for number, content, span in fields(model):
        if number == _TRAINER:
            parts.append(_field(_TRAINER, _with_settings(content, settings)))
        elif number != _PIECES:
            parts.append(model[span])
    return b"".join(parts)


def rounded_score(score: float) -> float:
    """Round the score of a new piece so that sums are exact in single precision up to 65,536, which is thousands of tokens.

    Then "0" before "00" and "00" before "0" have one score, and the order of the search, which is the same in every reader,
    decides between them; rounding would decide otherwise in each.
    """
    return round(score * 256) / 256


def with_unused(model: bytes, number: int) -> bytes:
    """Return the model with so many more pieces at its end that no text matches."""
    pieces = read_facts(model).pieces
    vocabulary = {piece for piece, _, _ in pieces}
    names = (name for name in map("[unused{}]".format, itertools.count()) if name not in vocabulary)
    return rebuilt_model(model, [*pieces, *((name, 0.0, UNUSED) for name in itertools.islice(names, number))])


def _with_settings(trainer: bytes, settings: Mapping[int, int | str]) -> bytes:
    """Return the trainer's section with other settings, and without paths."""
    removed = {_INPUT, _MODEL_PREFIX, _SEED_FILE, *settings}
    parts = [trainer[span] for number, _, span in fields(trainer) if number not in removed]
    return b"".join([*parts, *(_setting(number, value) for number, value in settings.items())])


def _piece(piece: Piece) -> bytes:
    text, score, kind = piece
    content = _field(1, text.encode()) + b"\x15" + struct.pack("<f", score)
    return content if kind == NORMAL else content + _setting(3, kind)


def _setting(number: int, value: int | str) -> bytes:
    if isinstance(value, str):
        return _field(number, value.encode())
    return _varint(number << 3) + _varint(value & 0xFFFFFFFFFFFFFFFF)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
