"""`SentencePieceTokenizer`: a SentencePiece model with ALBERT's special ids and a choice of text rules."""

import itertools
import os
import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.errors import CheckpointError
from albertkit.files import atomic_file, plain_file, sha256_bytes
from albertkit.folder_facts import AddedToken
from albertkit.tokenizer import rules
from albertkit.tokenizer.alignment import AlignedText, with_spaces
from albertkit.tokenizer.batch import BatchEncoder
from albertkit.tokenizer.comparison import ReaderComparison, compare_reader
from albertkit.tokenizer.digit_comma import SPACE, digit_comma_rule
from albertkit.tokenizer.folder_files import (
    ANALYSER_KEY,
    CONFIG_NAME,
    JSON_NAME,
    LISTING_NAME,
    MODEL_NAME,
    find_model,
)
from albertkit.tokenizer.morphemes import ANALYSERS, find_analyser
from albertkit.tokenizer.ragged import RaggedIds
from albertkit.tokenizer.sentencepiece_model import BYTE, USER_DEFINED, load_processor, read_facts
from albertkit.tokenizer.tokenizer import AlbertTokenizer


class SentencePieceTokenizer(AlbertTokenizer):
    """SentencePiece with ALBERT's ids. Make one with `AlbertTokenizer.from_pretrained`."""

    pad_id, unk_id, cls_id, sep_id, mask_id = range(5)
    longer_half = "first"  # as the Python class of transformers 4

    def __init__(
        self,
        model: bytes,
        text_rules: str = "google",
        source: str | os.PathLike[str] = "the model",
        analyser: str | None = None,
    ) -> None:
        """Use `from_pretrained` unless the model file is in memory.

        Args:
            model: Content of a SentencePiece model file.
            text_rules: Name of the text rules, one of `albertkit.tokenizer.rules.NAMES`.
            source: Where the model came from, for messages.
            analyser: For a model trained with spaces between morphemes, whose they were; see
                `albertkit.tokenizer.morphemes`. It is asked before every encoding.
        """
        self.text_rules = rules.check(text_rules)
        self.analyser = analyser
        self._model = model
        self._processor = load_processor(model, Path(source))
        self.vocab_size = self._processor.get_piece_size()
        spaces = f"\0{analyser}" if analyser else ""
        self.fingerprint = sha256_bytes(model + b"\0" + (text_rules + spaces).encode())
        self._digit_comma = digit_comma_rule(self._processor) if rules.is_google(text_rules) else None
        table = self._digit_comma
        self._with_digit_comma = set() if table is None else set(np.flatnonzero(table.counts > 1).tolist())
        self._batch = BatchEncoder(self._processor, model, text_rules, self._digit_comma)

    def matches_added(self, token: AddedToken) -> bool:
        """See `AlbertTokenizer.matches_added`. transformers 5 lists user-defined pieces, which SentencePiece matches."""
        pieces = read_facts(self._model).pieces
        piece_id = self.piece_to_id(token.content)
        return super().matches_added(token) or (
            pieces[piece_id][0] == token.content and pieces[piece_id][2] in (USER_DEFINED, BYTE)
        )

    def _arguments(self) -> tuple:
        return (self._model, self.text_rules, "the model", self.analyser)

    @classmethod
    def from_files(
        cls, folder: Path, settings: dict[str, Any], text_rules: str | None, only_json: bool
    ) -> "SentencePieceTokenizer | None":
        """Read a `*.model`. See `AlbertTokenizer.from_files`."""
        model = None if only_json else find_model(folder)
        if model is None:
            return None
        chosen = text_rules if text_rules is not None else rules.named_by(settings)
        analyser = settings.get(ANALYSER_KEY)
        if analyser is not None and analyser not in ANALYSERS:
            raise CheckpointError(
                "bad-file",
                f"`{ANALYSER_KEY}` of {CONFIG_NAME} in `{folder}` is {analyser!r}",
                f"known: {', '.join(ANALYSERS)}",
            )
        return cls(plain_file(model).read_bytes(), chosen, source=model, analyser=analyser)

    def _saved(self) -> tuple[dict[str, bytes], dict[str, Any]]:
        """Return `spiece.model`, and `tokenizer.json` if it can say the same; warn of what it says otherwise."""
        from albertkit.tokenizer.fast import class_flags

        settings: dict[str, Any] = class_flags(self.text_rules, read_facts(self._model))
        if self.analyser:
            settings[ANALYSER_KEY] = self.analyser
        try:
            content = self.tokenizer_json()
        except CheckpointError as error:
            if error.slug != "not-expressible":
                raise
            fact = f"transformers cannot open the folder, which has no tokenizer.json: {error.message}"
            warnings.warn(fact, stacklevel=3)
            return {MODEL_NAME: self._model}, settings
        comparison = self._json_comparison
        if comparison.first is not None:
            warnings.warn(
                "transformers reads other ids from tokenizer.json, which cannot express all of this vocabulary, on "
                f"{comparison.differing:,} hard lines, the first of them {comparison.first.text!r}; see: albertkit "
                "tokenizer check FOLDER",
                stacklevel=3,
            )
        return {MODEL_NAME: self._model, JSON_NAME: content.encode()}, settings

    def tokenizer_json(self) -> str:
        """See `AlbertTokenizer.tokenizer_json`. It has the same ids; `albertkit.tokenizer.fast` lists exceptions."""
        return self._json

    @cached_property
    def _json(self) -> str:
        from albertkit.tokenizer.fast import fast_tokenizer_json

        return fast_tokenizer_json(self._model, self.text_rules)

    @cached_property
    def _json_comparison(self) -> ReaderComparison:
        """Compare `tokenizer.json` on hard lines, without the spaces between morphemes."""
        from tokenizers import Tokenizer

        reader = Tokenizer.from_str(self._json)
        return compare_reader(
            JSON_NAME,
            self,
            self.hard_lines(),
            lambda line: self._cut(rules.apply(self.text_rules, line)),
            lambda line: reader.encode(line, add_special_tokens=False).ids,
            own=True,
        )

    def hard_lines(self) -> list[str]:
        """Return texts on which `tokenizer.json` may differ from the model: general ones, then the vocabulary's own."""
        from albertkit.tokenizer.fast import hard_lines

        return hard_lines(self._model, self.text_rules)

    def write_listing(self, folder: str | os.PathLike[str]) -> None:
        """Write `spiece.vocab`: a token and its score a line, as SentencePiece's trainer writes it. Nothing reads it."""
        with atomic_file(Path(folder) / LISTING_NAME, "w") as stream:
            stream.writelines(f"{piece}\t{score:g}\n" for piece, score, _ in read_facts(self._model).pieces)

    # --- encoding -----------------------------------------------------------------------------------------------------

    def encode_batch(self, texts: Sequence[str], num_threads: int = 0) -> RaggedIds:
        """See `AlbertTokenizer.encode_batch`."""
        return self._batch.encode([self.prepared(text) for text in texts] if self.analyser else texts, num_threads)

    @property
    def model(self) -> bytes:
        """Return the content of the model file."""
        return self._model

    def prepared(self, text: str) -> str:
        """Return the text as SentencePiece sees it: after the text rules, and with spaces between morphemes if it wants them."""
        text = rules.apply(self.text_rules, text)
        return find_analyser(self.analyser).separated(text, " ") if self.analyser else text

    def normalized(self, text: str) -> str:
        """Return the text that SentencePiece cuts: prepared, by the model's normaliser, spaces as U+2581."""
        return self._processor.normalize(self.prepared(text))

    def piece_to_id(self, piece: str) -> int:
        """Return the id of a token; that of the unknown token if there is none."""
        return self._processor.piece_to_id(piece)

    def start_engine(self) -> bool:
        """See `AlbertTokenizer.start_engine`; by itself after 10 MB. False if the model is not one for it."""
        return self._batch.start_engine()

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """See `AlbertTokenizer.encode_with_offsets`.

        The span of a word's first piece includes the white space before it, as in SentencePiece and transformers. A
        character that becomes several pieces (a ligature) is in the span of each of them.
        """
        aligned = rules.align(self.text_rules, text)
        if self.analyser:
            aligned = with_spaces(aligned, find_analyser(self.analyser).boundaries(aligned.text))
        if not aligned.text:
            return [], []
        encoded = self._processor.encode(aligned.text, return_type="offset_mapping")
        ids, places = encoded["ids"], encoded["offsets"]
        if not self._with_digit_comma.isdisjoint(ids):
            ids, places = self._split_places(ids, encoded["pieces"], places)
        starts, ends = aligned.starts, aligned.ends
        spans = [(starts[a], ends[b - 1]) if b > a else self._point(aligned, a) for a, b in places]
        return list(ids), spans

    def pieces(self, text: str) -> list[str]:
        """See `AlbertTokenizer.pieces`."""
        shown: list[str] = []
        for piece in self._processor.encode(self.prepared(text), out_type=str):
            ids, _ = self._split_digit_comma(self._processor.piece_to_id(piece), piece)
            shown.extend([piece] if len(ids) == 1 else [self._piece(i) for i in ids])
        return shown

    # --- the vocabulary -----------------------------------------------------------------------------------------------

    def special_ids(self) -> list[int]:
        """Return the ids of control and unknown tokens, ascending."""
        # Asking 30,000 pieces takes 5 ms; `decode` asks every time.
        if not hasattr(self, "_special_ids"):
            is_control, is_unknown = self._processor.is_control, self._processor.is_unknown
            self._special_ids = [i for i in range(self.vocab_size) if is_control(i) or is_unknown(i)]
        return list(self._special_ids)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _encode_plain(self, text: str) -> list[int]:
        return self._cut(self.prepared(text))

    def _cut(self, prepared: str) -> list[int]:
        """Return the ids of a prepared text."""
        ids: list[int] = self._processor.encode(prepared)
        if self._with_digit_comma.isdisjoint(ids):
            return ids
        return [new for old in ids for new in self._split_digit_comma(old, "")[0]]

    def _decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        """Return the inverse of SentencePiece's encoding."""
        parts: list[str] = []
        special = set(self.special_ids())
        for is_special, run in itertools.groupby(ids, key=special.__contains__):
            members = list(run)
            if not is_special:  # SentencePiece drops the space before the first piece of what it is given
                space = " " if parts and self._piece(members[0]).startswith(SPACE) else ""
                parts.append(space + self._processor.decode(members))
            elif not skip_special_tokens:
                parts.extend(self._piece(i) for i in members)
        return "".join(parts)

    def _piece(self, piece_id: int) -> str:
        return self._processor.id_to_piece(piece_id)

    def _split_digit_comma(self, piece_id: int, piece: str) -> tuple[list[int], list[int]]:
        """Return the ids that a piece becomes under the digit-comma rule, and their widths in characters."""
        table = self._digit_comma
        if table is None or table.counts[piece_id] == 1:
            return [piece_id], [len(piece.removeprefix(SPACE))]
        row = slice(table.starts[piece_id], table.starts[piece_id] + table.counts[piece_id])
        return table.ids[row].tolist(), table.widths[row].tolist()

    def _split_places(
        self, ids: Sequence[int], pieces: Sequence[str], places: Sequence[tuple[int, int]]
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Return ids and their places under the digit-comma rule."""
        new_ids: list[int] = []
        new_places: list[tuple[int, int]] = []
        for piece_id, piece, (start, end) in zip(ids, pieces, places, strict=True):
            if piece_id not in self._with_digit_comma:
                new_ids.append(piece_id)
                new_places.append((start, end))
                continue
            row, widths = self._split_digit_comma(piece_id, piece)
            ends = [max(start, end - sum(widths[n + 1 :])) for n in range(len(widths))]
            new_ids += row
            new_places += zip([start, *ends[:-1]], ends, strict=True)
        return new_ids, new_places

    @staticmethod
    def _point(aligned: AlignedText, position: int) -> tuple[int, int]:
        """Return an empty span, for a piece that stands for nothing in the text (the space put before it)."""
        place = aligned.starts[position] if position < len(aligned.starts) else aligned.ends[-1]
        return place, place
