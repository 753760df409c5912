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
    file = find_model(folder)
    if file is None:
        raise CheckpointError(
            "no-tokenizer", f"no *.model in `{folder}`", "only SentencePiece models can be renumbered"
        )
    model, settings = file.read_bytes(), read_settings(folder)
    facts = _facts(model, file)
    pieces = [*facts, *_added(folder, len(facts))]
    places = {piece: number for number, (piece, _, _) in reversed(list(enumerate(pieces)))}
    special = _find_special(pieces, places, special_names(settings), file)
    order = [*special, *(number for number in range(len(pieces)) if number not in set(special))]
    kinds = dict.fromkeys(special, CONTROL) | {special[1]: UNKNOWN}
    moved = []
    for number in order:
        piece, score, kind = pieces[number]
        stray = number not in kinds and kind == USER_DEFINED and role_of(piece) is not None
        moved.append((piece, score, kinds.get(number, UNUSED if stray else kind)))
    tokenizer = SentencePieceTokenizer(rebuilt_model(model, moved), rules.named_by(settings), source=file)
    return Renumbering(tokenizer, order, model)


def _facts(model: bytes, file: Path) -> list[Piece]:
    import sentencepiece

    try:
        sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError:
        raise CheckpointError("bad-file", f"`{file}` is not a SentencePiece model", "fetch it again") from None
    return read_facts(model).pieces


def _added(folder: Path, size: int) -> list[Piece]:
    """Return the tokens behind the last piece, in the order of their ids."""
    beyond = sorted((n, token) for token, n in added_tokens(folder, read_settings(folder)).items() if n >= size)
    others = [token for _, token in beyond if role_of(token) is None]
    if others or [number for number, _ in beyond] != list(range(size, size + len(beyond))):
        raise CheckpointError(
            "wrong-tokenizer",
            f"`{folder}` adds {len(beyond)} tokens to {size:,} others ({listed([token for _, token in beyond], 5)}); only "
            "special tokens that follow the last one without a gap can become part of it",
            "load it with transformers, which matches such tokens itself",
        )
    return [(token, 0.0, CONTROL) for _, token in beyond]


def _find_special(pieces: list[Piece], places: dict[str, int], named: dict[str, str], file: Path) -> list[int]:
    """Return the old ids of padding, unknown, start, separation and mask."""
    found: list[int] = []
    for role, usual in zip(SPECIAL_ROLES, _USUAL_NAMES, strict=True):
        if role == "unk":
            found.append(next(number for number, (_, _, kind) in enumerate(pieces) if kind == UNKNOWN))
            continue
        names = [name for name in (named.get(role), *usual) if name in places]
        if not names:
            raise CheckpointError(
                "wrong-tokenizer",
                f"`{file}` has no token for {role}: none is called {' or '.join(filter(None, (named.get(role), *usual)))}",
                f"name it as `{role}_token` in the tokenizer_config.json of the same folder",
            )
        found.append(places[names[0]])
    if len(set(found)) < len(found):
        raise CheckpointError(
            "wrong-tokenizer",
            f"one token of `{file}` has two roles: {', '.join(pieces[number][0] for number in found)}",
            "give each role a token of its own in the tokenizer_config.json of the same folder",
        )
    return found
