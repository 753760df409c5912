"""Read and rewrite SentencePiece model files: special ids, types and scores of the pieces, the normaliser."""

import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from albertkit.errors import CheckpointError

SPECIAL_PIECES = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
# Ids of special pieces by their common names. Other names are free, these must be at their ids.
_ROLES = {"pad": 0, "unk": 1, "cls": 2, "s": 2, "bos": 2, "sep": 3, "/s": 3, "eos": 3, "mask": 4}

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_FLT_MIN = 2.0**-126
UNIGRAM, BPE, WORD, CHAR = 1, 2, 3, 4  # model types


Piece = tuple[str, float, int]  # text, score, type


@dataclass(frozen=True)  # shared by all that read one model
class ModelFacts:
    """The parts of a model file that albertkit uses (sentencepiece_model.proto).

    Attributes:
        pieces: Text, score and type of each piece.
        model_type: UNIGRAM, BPE, WORD or CHAR.
        whitespace_as_suffix: A space belongs to the piece before it.
        charsmap: The compiled rules of the normaliser; empty for `identity`.
        dummy_prefix: A space is put before the text.
        one_space: Runs of spaces become one, spaces at the ends go.
        escape_spaces: A space is written U+2581.
    """

    pieces: tuple[Piece, ...] = ()
    model_type: int = UNIGRAM
    whitespace_as_suffix: bool = False
    charsmap: bytes = b""
    dummy_prefix: bool = True
    one_space: bool = True
    escape_spaces: bool = True

    def pieces_of_type(self, *types: int) -> list[str]:
        """Return the texts of the pieces of some types, in the order of their ids."""
        return [piece for piece, _, kind in self.pieces if kind in types]


# 0.1 s for 30,000 pieces; loading a tokenizer reads its model two to four times.
@lru_cache(maxsize=1)
def read_facts(model: bytes) -> ModelFacts:
    """Read a model file. It must be one that SentencePiece has accepted; nothing is checked again."""
    pieces: list[Piece] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for number, value, _ in read_wire_fields(model):
        if not isinstance(value, bytes):
            continue
        if number == 1:
            pieces.append(_read_piece(value))
        elif number == 2:
            trainer = _read_fields(value, {3: int, 24: int})
        elif number == 3:
            normalizer = _read_fields(value, {2: bytes, 3: int, 4: int, 5: int})
    return ModelFacts(
        tuple(pieces),
        model_type=trainer.get(3, UNIGRAM),
        whitespace_as_suffix=bool(trainer.get(24, 0)),
        charsmap=normalizer.get(2, b""),
        dummy_prefix=bool(normalizer.get(3, 1)),
        one_space=bool(normalizer.get(4, 1)),
        escape_spaces=bool(normalizer.get(5, 1)),
    )


def _read_piece(message: bytes) -> Piece:
    """Return text, score and type."""
    # The three fields in SentencePiece's own order are read three times as fast so.
    end = 2 + message[1] if len(message) > 1 else 0
    if (
        message[:1] == b"\n"
        and end < 0x82
        and message[end : end + 1] == b"\x15"
        and len(message) in (end + 5, end + 7)
    ):
        (score,) = struct.unpack_from("<f", message, end + 1)
        if len(message) == end + 5:
            return message[2:end].decode(), score, NORMAL
        if message[end + 5] == 0x18 and message[end + 6] < 0x80:
            return message[2:end].decode(), score, message[end + 6]
    piece = _read_fields(message, {1: bytes, 2: float, 3: int})
    return piece.get(1, b"").decode(), piece.get(2, 0.0), piece.get(3, NORMAL)


def _read_fields(message: bytes, kinds: dict[int, type]) -> dict[int, Any]:
    """Return the fields that have their type; one of another is unknown to a protocol buffer, and passed over."""
    return {
        number: value
        for number, value, _ in read_wire_fields(message)
        if isinstance(value, kinds.get(number, ()))
    }


def read_wire_fields(message: bytes) -> Iterator[tuple[int, Any, slice]]:
    """Yield number, value (int for varints, float for fixed sizes, bytes for the rest) and place of each field of a message."""
    # Not by `protobuf`: sentencepiece does not bring that package, and its
    # `sentencepiece_model_pb2` cannot live in one process with the copy in transformers ("duplicate
    # file name sentencepiece_model.proto", 5.23).
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
    """Return a number of variable length, and the position after it."""
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def user_symbol_score(piece: str, best: float) -> float:
    """Return the score of a user-defined piece in a unigram model whose best ordinary piece scores `best`."""
    # unigram_model.cc begins its maximum at FLT_MIN, so scores below zero, which all trained ones
    # are, do not count. With them `the` was cut out of "southeastern": 123 of 2,600 lines with
    # eight such symbols.
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
        fact = f"`{source}` ({len(model):,} bytes) is not a SentencePiece model"
        raise CheckpointError(
            "bad-file",
            fact,
            "fetch it again, or train one: `albertkit tokenizer train FILES --out DIR`",
        )
    special_pieces = [processor.id_to_piece(i) for i in range(min(size, len(SPECIAL_PIECES)))]
    in_place = len(special_pieces) == len(SPECIAL_PIECES) and processor.unk_id() == 1
    for role, (name, _, kind) in enumerate(facts.pieces[: len(SPECIAL_PIECES)]):
        # Called as ALBERT's, or a control piece whose name says nothing.
        is_unnamed = special_id_of_piece(name) is None and kind == (
            UNKNOWN if role == 1 else CONTROL
        )
        in_place = in_place and (special_id_of_piece(name) == role or is_unnamed)
    if not in_place:
        raise CheckpointError(
            "wrong-tokenizer",
            f"`{source}` has {' '.join(f'{p}={i}' for i, p in enumerate(special_pieces))} and its unknown token at "
            f"{processor.unk_id()}; ALBERT needs {' '.join(f'{p}={i}' for i, p in enumerate(SPECIAL_PIECES))}",
            f"renumber it, and the model it belongs to: `albertkit tokenizer repair {source.parent} --out DIR`",
        )
    return processor


def special_id_of_piece(piece: str) -> int | None:
    """Return the id that ALBERT has for a special piece of this name; None if the name says nothing."""
    if piece[:1] + piece[-1:] in ("<>", "[]"):
        return _ROLES.get(piece.strip("<>[]").lower())
    return None


def order_as_xlm_r(pieces: Sequence[Piece], source: Path) -> list[Piece]:
    """Return the pieces of a model in the order of XLM-R's ids; `source` is for messages.

    fairseq put <s>, <pad>, </s> and <unk> before the pieces of a model that begins with <unk>, <s>
    and </s>, and <mask> after them (`XLMRobertaTokenizer` of transformers 4.57).
    """
    unknown = pieces[0]
    names = [name for name, _, _ in pieces[1:3]]
    if unknown[2] != UNKNOWN or names != ["<s>", "</s>"]:
        raise CheckpointError(
            "wrong-tokenizer",
            f"`{source}` begins with {', '.join([unknown[0], *names])}, a model of XLM-R with <unk>, <s>, </s>",
            "name the class that its tokenizer has in the tokenizer_config.json of the same folder",
        )
    ordered = [pieces[1], ("<pad>", 0.0, CONTROL), pieces[2], unknown]
    return [*ordered, *pieces[3:], ("<mask>", 0.0, CONTROL)]


# Fields of ModelProto, TrainerSpec and NormalizerSpec (sentencepiece_model.proto).
_PIECES, _TRAINER = 1, 2
_NORMALIZER, _CHARSMAP = 3, 2
_INPUT, _MODEL_PREFIX, _VOCAB_SIZE, _SEED_FILE = 1, 2, 4, 54
_UNK_ID, _BOS_ID, _EOS_ID, _PAD_ID = 40, 41, 42, 43
_UNK_PIECE, _PAD_PIECE = 45, 48


def empty_model_with_charsmap(charsmap: bytes) -> bytes:
    """Return a unigram model without pieces, for `rebuild_model`, with the compiled rules of a normaliser."""
    return _encode_field(_TRAINER, b"") + _encode_field(
        _NORMALIZER, _encode_field(_CHARSMAP, charsmap)
    )


def rebuild_model(model: bytes, pieces: Sequence[Piece]) -> bytes:
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
    parts = []
    for text, score, kind in pieces:
        piece = _encode_field(1, text.encode()) + b"\x15" + struct.pack("<f", score)
        if kind != NORMAL:
            piece += _encode_setting(3, kind)
        parts.append(_encode_field(_PIECES, piece))
    # Paths of the training, and the settings that change
    removed = {_INPUT, _MODEL_PREFIX, _SEED_FILE, *settings}
    for number, content, span in read_wire_fields(model):
        if number == _TRAINER:
            trainer = [
                content[field_span]
                for setting, _, field_span in read_wire_fields(content)
                if setting not in removed
            ]
            trainer += [_encode_setting(setting, value) for setting, value in settings.items()]
            parts.append(_encode_field(_TRAINER, b"".join(trainer)))
        elif number != _PIECES:
            parts.append(model[span])
    return b"".join(parts)


def round_score(score: float) -> float:
    """Round the score of a new piece so that sums are exact in single precision up to 65,536, which is thousands of tokens."""
    # Then "0" before "00" and "00" before "0" have one score, and the order of the search, which is
    # the same in every reader, decides between them. SentencePiece adds in single precision,
    # `tokenizers` in double: rounding would decide otherwise.
    return round(score * 256) / 256


def add_unused_pieces(model: bytes, num_pieces: int) -> bytes:
    """Append unused pieces, which match no text, to the end of a model."""
    pieces = read_facts(model).pieces
    vocabulary = {piece for piece, _, _ in pieces}
    names = (name for name in map("[unused{}]".format, itertools.count()) if name not in vocabulary)
    unused = [(name, 0.0, UNUSED) for name in itertools.islice(names, num_pieces)]
    return rebuild_model(model, [*pieces, *unused])


def _encode_setting(number: int, value: int | str) -> bytes:
    if isinstance(value, str):
        return _encode_field(number, value.encode())
    return _encode_varint(number << 3) + _encode_varint(value & 0xFFFFFFFFFFFFFFFF)


def _encode_field(number: int, content: bytes) -> bytes:
    return _encode_varint(number << 3 | 2) + _encode_varint(len(content)) + content


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


SPACE = "\u2581"  # how SentencePiece writes the space before a word


class DigitCommaRule(NamedTuple):
    """Table of the rule: row `id` of the flat arrays `ids` and `widths` is at `starts[id]`, `counts[id]` long.

    Attributes:
        counts: int64 [V]. Number of ids that a piece becomes; 1 for all pieces that the rule leaves
            alone.
        starts: int64 [V]. Row of a piece.
        ids: int32 [sum of counts]. The ids.
        widths: int64 [sum of counts]. Their characters, the mark of the space not counted.
    """

    counts: np.ndarray
    starts: np.ndarray
    ids: np.ndarray
    widths: np.ndarray

    def rewrite_ids(self, ids: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Apply the rule to the ids of many texts, int32 [T], and where each text begins among them, int64 [N+1]."""
        counts = self.counts[ids]
        if int(counts.sum()) == len(ids):
            return ids, offsets
        ends = np.cumsum(counts)
        row_positions = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
        new_ids = self.ids[np.repeat(self.starts[ids], counts) + row_positions]
        return new_ids, np.concatenate(([0], ends))[offsets]


def digit_comma_rule(processor: Any) -> DigitCommaRule | None:
    """Return the table for a SentencePiece processor; None if no token ends in a digit and a comma."""
    pieces = [processor.id_to_piece(number) for number in range(processor.get_piece_size())]
    rewritten = {
        number: split_digit_comma(processor, piece)
        for number, piece in enumerate(pieces)
        if ends_in_digit_comma(piece)
    }
    if not rewritten:
        return None
    counts = np.ones(len(pieces), dtype=np.int64)
    counts[list(rewritten)] = [len(row) for row in rewritten.values()]
    starts = np.cumsum(counts) - counts
    ids = np.repeat(np.arange(len(pieces), dtype=np.int32), counts)
    widths = np.zeros(len(ids), dtype=np.int64)
    for number, row in rewritten.items():
        rows = slice(starts[number], starts[number] + counts[number])
        ids[rows], widths[rows] = zip(*row, strict=True)
    return DigitCommaRule(counts, starts, ids, widths)


def ends_in_digit_comma(piece: str) -> bool:
    """Return True for the pieces that the rule splits."""
    return piece.endswith(",") and piece[-2:-1].isdigit()


def split_digit_comma(processor: Any, piece: str) -> list[tuple[int, int]]:
    """Return (id, characters) of the pieces that such a piece becomes. The rule looks at each piece once only."""
    pieces = processor.encode(piece[:-1].replace(SPACE, ""), out_type=str)
    if piece[0] != SPACE and pieces[0][0] == SPACE:
        # The encoder put a space before the number; there was none.
        pieces = pieces[1:] if pieces[0] == SPACE else [pieces[0][1:], *pieces[1:]]
    return [(processor.piece_to_id(p), len(p.removeprefix(SPACE))) for p in [*pieces, ","]]
