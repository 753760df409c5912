"""`albertkit tokenizer repair`: special ids that are not ALBERT's are put right, in the tokenizer and in its model at once."""

import base64
import re
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from albertkit.command import takes
from albertkit.conversion.classes import check_vocabulary
from albertkit.errors import CheckpointError, ConfigError, MachineError, format_list
from albertkit.files import new_folder, read_json
from albertkit.folder_facts import FolderFacts
from albertkit.model_paths import local_folder
from albertkit.output.sections import Paragraph, Result, Section, TableSection
from albertkit.printable import join_lines
from albertkit.tokenizer import rules
from albertkit.tokenizer.files import (
    JSON_NAME,
    SPECIAL_ROLES,
    added_tokens,
    find_sentencepiece_model,
    read_settings,
    special_names,
)
from albertkit.tokenizer.options import RepairOptions
from albertkit.tokenizer.readings import HARD_SENTENCES
from albertkit.tokenizer.sentencepiece import SentencePieceTokenizer
from albertkit.tokenizer.sentencepiece_model import (
    CONTROL,
    NORMAL,
    SPECIAL_PIECES,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Piece,
    empty_model_with_charsmap,
    order_as_xlm_r,
    read_facts,
    rebuild_model,
    special_id_of_piece,
)
from albertkit.vocabulary.extend import open_vocabulary_model

_USUAL_NAMES = (
    ("[PAD]", "<pad>"),
    (),
    ("[CLS]", "<cls>"),
    ("[SEP]", "<sep>"),
    ("[MASK]", "<mask>"),
)
_PAIRS_OF_XLM_R = "pairs have one separator between their texts and segments of their own; XLM-R's have two and none"


@dataclass(frozen=True)
class NumberedPieces:
    """The pieces of a folder's tokenizer in the order of its ids.

    Attributes:
        pieces: Text, score and type of each.
        model: A SentencePiece model that has the normaliser.
        encode: Gives a prepared text the ids, by another program.
        is_exact: That program is SentencePiece. `tokenizers` differs from it in white space, marks
            and ties of scores.
    """

    pieces: list[Piece]
    model: bytes
    encode: Callable[[str], list[int]]
    is_exact: bool

    @classmethod
    def from_model(cls, file: Path, is_xlm_r: bool) -> "NumberedPieces":
        """Read a SentencePiece model, whose pieces the classes of XLM-R number otherwise."""
        from sentencepiece import SentencePieceProcessor

        model = file.read_bytes()
        pieces: list[Piece] = []  # an empty file has none, and is no error of SentencePiece
        with suppress(RuntimeError):
            processor = SentencePieceProcessor(model_proto=model)
            pieces = list(read_facts(model).pieces)
        if not pieces:
            fact = f"`{file}` is not a SentencePiece model"
            raise CheckpointError("bad-file", fact, "fetch it again")
        if not is_xlm_r:
            return cls(pieces, model, processor.encode, is_exact=True)
        pieces = order_as_xlm_r(pieces, file)
        ids_by_piece = {piece: number for number, (piece, _, _) in enumerate(pieces)}

        def encode(text: str) -> list[int]:
            return [ids_by_piece[processor.id_to_piece(i)] for i in processor.encode(text)]

        return cls(pieces, model, encode, is_exact=True)

    @classmethod
    def from_json(cls, file: Path) -> "NumberedPieces":
        """Read the `tokenizer.json` of a class of XLM-R, the only file of it that transformers 5 saves."""
        from tokenizers import Tokenizer

        content = read_json(file, "tokenizer")
        try:
            tokenizer = Tokenizer.from_file(str(file))
            # Beside it, transformers 4 has SentencePiece's rule for several spaces.
            steps = content["normalizer"].get("normalizers", [content["normalizer"]])
            [step] = [step for step in steps if step["type"] == "Precompiled"]
            charsmap = base64.b64decode(step["precompiled_charsmap"])
            kinds = {token["id"]: CONTROL for token in content["added_tokens"] if token["special"]}
            matched = [
                token["content"] for token in content["added_tokens"] if not token["special"]
            ]
            kinds[int(content["model"]["unk_id"])] = UNKNOWN
            pieces = [
                (piece, score, kinds.get(number, NORMAL))
                for number, (piece, score) in enumerate(content["model"]["vocab"])
            ]
        except Exception as error:  # `tokenizers` raises no other
            raise CheckpointError(
                "unsupported",
                f"`{file}` is not a Unigram model with SentencePiece's normaliser ({error})",
                "put the SentencePiece model that it was made from beside it",
            ) from None
        if matched:
            raise CheckpointError(
                "wrong-tokenizer",
                f"`{file}` adds tokens that are cut out of every text: {format_list(matched, 5)}",
                "load it with transformers, which matches such tokens itself",
            )

        def encode(text: str) -> list[int]:
            return tokenizer.encode(text, add_special_tokens=False).ids

        return cls(pieces, empty_model_with_charsmap(charsmap), encode, is_exact=False)


@dataclass(frozen=True)
class Renumbering:
    """A tokenizer with ALBERT's ids, and where its pieces come from.

    Attributes:
        tokenizer: With the new ids.
        old_ids: For each new id the old one.
        old: The tokenizer before.
        notes: What else is another than before.
    """

    tokenizer: SentencePieceTokenizer
    old_ids: list[int]
    old: NumberedPieces
    notes: tuple[str, ...]

    @property
    def moved(self) -> dict[str, tuple[int, int]]:
        """Return the special tokens: name to old and new id."""
        return {
            self.tokenizer.id_to_piece(new): (self.old_ids[new], new)
            for new in range(len(SPECIAL_PIECES))
        }


def renumber_specials(folder: Path) -> Renumbering:
    """Put the special tokens of a folder's model at 0 to 4, and all others after them in their order.

    The unknown token is the one SentencePiece gives for unknown text, whatever else is called
    [UNK]. The names of the special tokens are read from `tokenizer_config.json`; where it says
    nothing, they have their usual names. The classes of XLM-R number the pieces of a model
    otherwise than the model: see `order_as_xlm_r`.
    """
    file = find_sentencepiece_model(folder)
    settings = read_settings(folder)
    is_xlm_r = FolderFacts.from_folder(folder).is_xlm_r
    if file is not None:
        old = NumberedPieces.from_model(file, is_xlm_r)
        if is_xlm_r and (folder / JSON_NAME).exists():
            vocabulary = NumberedPieces.from_json(folder / JSON_NAME).pieces
            # transformers 5 reads that file.
            if [piece for piece, _, _ in vocabulary] != [piece for piece, _, _ in old.pieces]:
                raise CheckpointError(
                    "wrong-tokenizer",
                    f"`{file.name}` and `{JSON_NAME}` in `{folder}` number their tokens differently",
                    "remove the one that the model was not trained with",
                )
    elif is_xlm_r and (folder / JSON_NAME).exists():
        file = folder / JSON_NAME
        old = NumberedPieces.from_json(file)
    else:
        raise CheckpointError(
            "no-tokenizer",
            f"no *.model in `{folder}`",
            "only SentencePiece models can be renumbered",
        )
    num_pieces = len(old.pieces)
    ids = added_tokens(folder)
    tokens = [token for token in sorted(ids, key=ids.__getitem__) if ids[token] >= num_pieces]
    # Ids are rows of the model: in a gap there would be rows that belong to no token.
    without_gap = [ids[token] for token in tokens] == list(
        range(num_pieces, num_pieces + len(tokens))
    )
    if not without_gap or any(special_id_of_piece(token) is None for token in tokens):
        raise CheckpointError(
            "wrong-tokenizer",
            f"`{folder}` adds {len(tokens)} tokens to {num_pieces:,} others ({format_list(tokens, 5)}); only "
            "special tokens that follow the last one without a gap can become part of it",
            "load it with transformers, which matches such tokens itself",
        )
    pieces = [*old.pieces, *((token, 0.0, CONTROL) for token in tokens)]
    special_ids = _find_special_ids(pieces, special_names(settings), file)
    old_ids = [
        *special_ids,
        *(piece_id for piece_id in range(len(pieces)) if piece_id not in set(special_ids)),
    ]
    special_kinds = dict.fromkeys(special_ids, CONTROL) | {special_ids[1]: UNKNOWN}
    renumbered_pieces = []
    for piece_id in old_ids:
        piece, score, kind = pieces[piece_id]
        if kind == USER_DEFINED and special_id_of_piece(piece) is not None:
            kind = UNUSED  # it matches no text
        renumbered_pieces.append((piece, score, special_kinds.get(piece_id, kind)))
    new_model = rebuild_model(old.model, renumbered_pieces)
    # XLM-R's text rules are the model's own normaliser alone.
    text_rules = "none" if is_xlm_r else rules.read_rules_name(settings)
    tokenizer = SentencePieceTokenizer(new_model, text_rules, source=file)
    notes = (_PAIRS_OF_XLM_R,) if is_xlm_r else ()
    return Renumbering(tokenizer, old_ids, old, notes)


def _find_special_ids(
    pieces: list[Piece],
    configured_names: dict[str, str],
    file: Path,
) -> list[int]:
    """Return the old ids of padding, unknown, start, separation and mask."""
    strings = [piece for piece, _, _ in pieces]
    kinds = [kind for _, _, kind in pieces]
    special_ids: list[int] = []
    for role, usual_names in zip(SPECIAL_ROLES, _USUAL_NAMES, strict=True):
        if role == "unk":
            # The row that the model learned for unknown text is that of the token SentencePiece
            # gives for it, whatever the names.
            special_ids.append(kinds.index(UNKNOWN))
            continue
        names = [*usual_names]
        if role in configured_names:
            names.insert(0, configured_names[role])
        name = next((name for name in names if name in strings), None)
        if name is None:
            raise CheckpointError(
                "wrong-tokenizer",
                f"`{file}` has no token for {role}: none is called {' or '.join(names)}",
                f"name it as `{role}_token` in the tokenizer_config.json of the same folder",
            )
        special_ids.append(strings.index(name))
    if len(set(special_ids)) < len(special_ids):
        raise CheckpointError(
            "wrong-tokenizer",
            f"one token of `{file}` has two roles: {', '.join(strings[piece_id] for piece_id in special_ids)}",
            "give each role a token of its own in the tokenizer_config.json of the same folder",
        )
    return special_ids


# Text that the two tokenizers treat differently on purpose: names of special tokens, and numbers
# before a comma.
_ON_PURPOSE = re.compile(r"\d[,，٫]|\[\w+\]|<\w+>")


@dataclass(frozen=True)
class RepairReport(Result):
    """Result of `repair_vocabulary`.

    Attributes:
        out: Its folder.
        moved: Special tokens: name to old and new id.
        vocab_size: Tokens.
        model_class: The class of the model; None where there was a tokenizer alone.
        compared: Texts whose ids were compared, up to the renumbering.
        differing: Those among them that a `tokenizer.json` read otherwise than SentencePiece does;
            0 where there was a SentencePiece model.
        notes: What else is another than before.
    """

    out: str
    moved: dict[str, tuple[int, int]]
    vocab_size: int
    model_class: str | None
    compared: int
    differing: int
    notes: tuple[str, ...]

    def sections(self) -> list[Section]:
        """Return the ids that moved, and the number of texts that were compared."""
        moved = [[name, f"{old:,}", new] for name, (old, new) in self.moved.items()]
        lines = [
            f"ids of {self.compared - self.differing} of {self.compared} texts are the same up to the renumbering"
        ]
        if self.differing:
            lines.append(
                "the others are cut by SentencePiece now, which `tokenizers` does not quite follow"
            )
        if self.model_class:
            lines.append(f"{self.model_class}: its rows moved with their tokens")
        title = f"{self.vocab_size:,} tokens in {self.out}"
        return [
            TableSection(["token", "old id", "new id"], moved, title),
            Paragraph(join_lines([*lines, *self.notes]), form="code"),
        ]


@takes(RepairOptions)
def repair_vocabulary(options: RepairOptions) -> RepairReport:
    """Renumber a model to ALBERT's ids: padding 0, unknown 1, start 2, separation 3, mask 4; see `RepairOptions`.

    Raises:
        ConfigError: bad-value if nothing is wrong. CheckpointError: exists, wrong-tokenizer, and
            what `renumber_specials` and opening a checkpoint raise. MachineError: internal-error.
    """
    folder = local_folder(options.model)
    out = Path(options.out)
    change = renumber_specials(folder)
    tokenizer = change.tokenizer
    is_needed = change.old_ids != sorted(change.old_ids)
    model = None
    with ExitStack() as stack:
        if (folder / "config.json").exists():
            model = stack.enter_context(open_vocabulary_model(folder))
            is_needed = is_needed or model.checkpoint.config.pad_token_id != tokenizer.pad_id
        if not is_needed:
            raise ConfigError(
                "bad-value",
                f"the special ids in `{folder}` are ALBERT's already",
                "use it as it is",
            )
        target = stack.enter_context(new_folder(out))
        if model is None:
            tokenizer.save_pretrained(target)
        else:
            num_rows = len(model.words_VE)
            # Every row goes where its token goes, so the model computes for a text what it computed
            # before. Rows beyond the tokens stay where they are.
            check_vocabulary(len(change.old_ids), num_rows, folder)
            model.select_rows(
                torch.tensor([*change.old_ids, *range(len(change.old_ids), num_rows)])
            )
            moves = ", ".join(f"{name} {old} to {new}" for name, (old, new) in change.moved.items())
            model.write(
                target,
                out.name,
                tokenizer,
                f"Renumbered to ALBERT's special ids: {moves}.",
            )
        # The ids of both tokenizers are compared before the folder gets its name.
        texts = [text for text in HARD_SENTENCES if text and not _ON_PURPOSE.search(text)]
        differing = 0
        for text in texts:
            ids = [change.old_ids[i] for i in tokenizer.encode(text)]
            if ids == change.old.encode(tokenizer.prepared(text)):
                continue
            if change.old.is_exact:
                fact = f"the renumbered tokenizer reads {text[:60]!r} otherwise"
                raise MachineError("internal-error", fact, "please report this")
            differing += 1
    model_class = model.model_class.__name__ if model else None
    return RepairReport(
        out=str(out),
        moved=change.moved,
        vocab_size=tokenizer.vocab_size,
        model_class=model_class,
        compared=len(texts),
        differing=differing,
        notes=change.notes,
    )
