"""SentencePiece models whose special ids are not ALBERT's: which token is what, and the order that puts it right.

SentencePiece's own defaults put `<unk>` at 0, `<s>` at 1 and `</s>` at 2, and whoever asks for [PAD], [UNK], [CLS], [SEP] and
[MASK] as user-defined symbols gets them from 3 on: then unknown text has the id 0 while `unk_token_id` is 4, and a literal
"[MASK]" in a text is the mask. Others have added `<pad>` behind the last token of a model that pads with 0.
"""

from dataclasses import dataclass
from pathlib import Path

from albertkit.errors import CheckpointError, listed
from albertkit.tokenizer import rules
from albertkit.tokenizer.folder_files import SPECIAL_ROLES, added_tokens, find_model, read_settings, special_names
from albertkit.tokenizer.model_file import Piece, rebuilt_model
from albertkit.tokenizer.sentencepiece_model import (
    CONTROL,
    SPECIAL_PIECES,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    read_facts,
    role_of,
)
from albertkit.tokenizer.sentencepiece_tokenizer import SentencePieceTokenizer

_USUAL_NAMES = (("[PAD]", "<pad>"), (), ("[CLS]", "<cls>"), ("[SEP]", "<sep>"), ("[MASK]", "<mask>"))


@dataclass(frozen=True)
class Renumbering:
    """A tokenizer with ALBERT's ids, and where its pieces come from.

    Attributes:
        tokenizer: With the new ids.
        old_ids: For each new id the old one.
        old_model: Content of the old model file.
    """

    tokenizer: SentencePieceTokenizer
    old_ids: list[int]
    old_model: bytes

    @property
    def moved(self) -> dict[str, tuple[int, int]]:
        """Return the special tokens: name to old and new id."""
        return {self.tokenizer.id_to_piece(new): (self.old_ids[new], new) for new in range(len(SPECIAL_PIECES))}


def renumbered(folder: Path) -> Renumbering:
    """Put the special tokens of a folder's model at 0 to 4, and all others after them in their order.

    The unknown token is the one SentencePiece gives for unknown text, whatever else is called [UNK]: the row that the model
    learned for unknown text is that token's. Other tokens with such names match no text afterwards. The names of the special
    tokens are read from `tokenizer_config.json`; where it says nothing, they have their usual names.
    """
    from sentencepiece import SentencePieceProcessor

    file = find_model(folder)
    if file is None:
        raise CheckpointError(
            "no-tokenizer", f"no *.model in `{folder}`", "only SentencePiece models can be renumbered"
        )
    model, settings = file.read_bytes(), read_settings(folder)
    try:
        SentencePieceProcessor(model_proto=model)
    except RuntimeError:
        raise CheckpointError("bad-file", f"`{file}` is not a SentencePiece model", "fetch it again") from None
    pieces = read_facts(model).pieces
    pieces = [*pieces, *_pieces_of_added_tokens(folder, len(pieces))]
    special_ids = _find_special_ids(pieces, special_names(settings), file)
    old_ids = [*special_ids, *(piece_id for piece_id in range(len(pieces)) if piece_id not in set(special_ids))]
    special_kinds = dict.fromkeys(special_ids, CONTROL) | {special_ids[1]: UNKNOWN}
    renumbered_pieces = []
    for piece_id in old_ids:
        piece, score, kind = pieces[piece_id]
        if kind == USER_DEFINED and role_of(piece) is not None:
            kind = UNUSED
        renumbered_pieces.append((piece, score, special_kinds.get(piece_id, kind)))
    new_model = rebuilt_model(model, renumbered_pieces)
    tokenizer = SentencePieceTokenizer(new_model, rules.named_by(settings), source=file)
    return Renumbering(tokenizer, old_ids, model)


def _pieces_of_added_tokens(folder: Path, size: int) -> list[Piece]:
    """Return the tokens behind the last piece, in the order of their ids."""
    ids = added_tokens(folder, read_settings(folder))
    tokens = sorted((token for token, token_id in ids.items() if token_id >= size), key=ids.__getitem__)
    without_gap = [ids[token] for token in tokens] == list(range(size, size + len(tokens)))
    if not without_gap or any(role_of(token) is None for token in tokens):
        raise CheckpointError(
            "wrong-tokenizer",
            f"`{folder}` adds {len(tokens)} tokens to {size:,} others ({listed(tokens, 5)}); only "
            "special tokens that follow the last one without a gap can become part of it",
            "load it with transformers, which matches such tokens itself",
        )
    return [(token, 0.0, CONTROL) for token in tokens]


def _find_special_ids(pieces: list[Piece], configured_names: dict[str, str], file: Path) -> list[int]:
    """Return the old ids of padding, unknown, start, separation and mask."""
    # Of a piece that occurs twice, the first counts.
    ids = {piece: piece_id for piece_id, (piece, _, _) in reversed(list(enumerate(pieces)))}
    special_ids: list[int] = []
    for role, usual_names in zip(SPECIAL_ROLES, _USUAL_NAMES, strict=True):
        if role == "unk":
            special_ids.append(next(piece_id for piece_id, (_, _, kind) in enumerate(pieces) if kind == UNKNOWN))
            continue
        names = [*usual_names]
        if role in configured_names:
            names.insert(0, configured_names[role])
        name = next((name for name in names if name in ids), None)
        if name is None:
            raise CheckpointError(
                "wrong-tokenizer",
                f"`{file}` has no token for {role}: none is called {' or '.join(names)}",
                f"name it as `{role}_token` in the tokenizer_config.json of the same folder",
            )
        special_ids.append(ids[name])
    if len(set(special_ids)) < len(special_ids):
        raise CheckpointError(
            "wrong-tokenizer",
            f"one token of `{file}` has two roles: {', '.join(pieces[piece_id][0] for piece_id in special_ids)}",
            "give each role a token of its own in the tokenizer_config.json of the same folder",
        )
    return special_ids
