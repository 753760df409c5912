"""`AlbertTokenizer`: text to ids and back, over a SentencePiece model with ALBERT's special ids."""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from albertkit.errors import CheckpointError
from albertkit.files import atomic_file, read_json, sha256_bytes, write_json
from albertkit.tokenizer import rules
from albertkit.tokenizer.batch import BatchEncoder
from albertkit.tokenizer.digit_comma import SPACE, digit_comma_rule
from albertkit.tokenizer.ragged import RaggedIds
from albertkit.tokenizer.sentencepiece_model import SPECIAL_PIECES, load_processor
from albertkit.tokenizer.word_starts import word_starts

CONFIG_NAME = "tokenizer_config.json"
MODEL_NAME = "spiece.model"
_DEFAULT_RULES = "google"


class AlbertTokenizer:
    """SentencePiece with ALBERT's ids and a choice of text rules. Make one with `from_pretrained`.

    It can be pickled, and one tokenizer may be used by several threads.

    Attributes:
        text_rules: "google", "multilingual" or "none"; see `albertkit.tokenizer.rules`.
        vocab_size: Number of pieces.
        fingerprint: SHA-256 of the model file and the text rules; equal fingerprints give equal ids.
    """

    pad_id, unk_id, cls_id, sep_id, mask_id = range(5)

    def __init__(
        self, model: bytes, text_rules: str = _DEFAULT_RULES, source: str | os.PathLike[str] = "the model"
    ) -> None:
        """Use `from_pretrained` unless the model file is in memory.

        Args:
            model: Content of a SentencePiece model file.
            text_rules: Name of the text rules.
            source: Where the model came from, for messages.

        Raises:
            CheckpointError: broken-tokenizer, special-ids.
            ConfigError: bad-text-rules.
        """
        self.text_rules = rules.check(text_rules)
        self._model = model
        self._processor = load_processor(model, Path(source))
        self.vocab_size: int = self._processor.get_piece_size()
        self.fingerprint = sha256_bytes(model + b"\0" + text_rules.encode())
        self._digit_comma = digit_comma_rule(self._processor) if text_rules == "google" else None
        self._batch = BatchEncoder(self._processor, model, text_rules, self._digit_comma)

    # --- files --------------------------------------------------------------------------------------------------------

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], text_rules: str | None = None) -> "AlbertTokenizer":
        """Read a tokenizer from a folder that holds exactly one `*.model` file.

        Args:
            folder: A checkpoint or tokenizer folder.
            text_rules: Name of the text rules. By default those in `tokenizer_config.json`, else "google".

        Raises:
            CheckpointError: no-tokenizer, several-tokenizers, broken-tokenizer, special-ids.
            ConfigError: bad-text-rules.
            DataError: broken-json.
        """
        path = Path(folder)
        models = sorted(path.glob("*.model"))
        if not models:
            raise CheckpointError(
                "no-tokenizer",
                f"no SentencePiece model (*.model) in `{path}`" + ("" if path.is_dir() else ", which is no folder"),
                "train one: `albertkit tokenizer train FILES --out DIR`",
            )  # fmt: skip
        if len(models) > 1:
            raise CheckpointError(
                "several-tokenizers", f"`{path}` holds {len(models)} models: {', '.join(m.name for m in models)}",
                "name a folder that holds the one you mean",
            )  # fmt: skip
        if text_rules is None:
            config = path / CONFIG_NAME
            settings = read_json(config, "tokenizer configuration") if config.exists() else {}
            text_rules = settings.get("text_rules", _DEFAULT_RULES) if isinstance(settings, dict) else _DEFAULT_RULES
        return cls(models[0].read_bytes(), text_rules, source=models[0])

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write `spiece.model`, `tokenizer.json` and `tokenizer_config.json`, each whole or not at all.

        transformers' `AutoTokenizer` reads the folder and gives the same ids; `albertkit.tokenizer.fast` says how far.

        Args:
            folder: Made if missing; other files in it are left alone.

        Raises:
            CheckpointError: several-tokenizers if the folder holds a model of another name.
        """
        from albertkit.tokenizer.fast import fast_tokenizer_json, tokenizer_config

        path = Path(folder)
        others = [m.name for m in sorted(path.glob("*.model")) if m.name != MODEL_NAME]
        if others:
            raise CheckpointError(
                "several-tokenizers",
                f"`{path}` already holds {', '.join(others)}; with `{MODEL_NAME}` it would hold several",
                "choose another folder",
            )  # fmt: skip
        fast = fast_tokenizer_json(self._model, self.text_rules)
        with atomic_file(path / MODEL_NAME) as stream:
            stream.write(self._model)
        with atomic_file(path / "tokenizer.json", "w") as stream:
            stream.write(fast)
        write_json(path / CONFIG_NAME, tokenizer_config(self._special_names(), self.text_rules))

    def __reduce__(self) -> tuple:
        return type(self), (self._model, self.text_rules)

    # --- encoding -----------------------------------------------------------------------------------------------------

    def encode(
        self, text: str, pair: str | None = None, special_tokens: bool = False, mask_literal: bool = False
    ) -> list[int]:
        """Ids of a text or of a pair of texts.

        Args:
            text: First text.
            pair: Second text. A pair always gets its special tokens, which are what holds it together.
            special_tokens: Put `[CLS]` before and `[SEP]` after: `[CLS] A [SEP]`, `[CLS] A [SEP] B [SEP]`.
            mask_literal: Make each literal `[MASK]` one mask id; it swallows the white space before it.

        Returns:
            The ids.
        """
        first = self._encode_masked(text) if mask_literal else self._encode_plain(text)
        if pair is None:
            return [self.cls_id, *first, self.sep_id] if special_tokens else first
        second = self._encode_masked(pair) if mask_literal else self._encode_plain(pair)
        return [self.cls_id, *first, self.sep_id, *second, self.sep_id]

    def token_type_ids(self, ids: Sequence[int]) -> list[int]:
        """Segment of each id of `encode(text, pair)`: 0 up to and including the first `[SEP]`, 1 after it.

        Args:
            ids: Ids with special tokens.
        """
        first = ids.index(self.sep_id) + 1 if self.sep_id in ids else len(ids)
        return [0] * first + [1] * (len(ids) - first)

    def encode_batch(self, texts: Sequence[str], num_threads: int = 0) -> RaggedIds:
        """Ids of many texts, without special tokens; the same ids as `encode` gives.

        Args:
            texts: N texts.
            num_threads: Threads to use; 0 for one a core.

        Returns:
            ids int32 [T] and offsets int64 [N+1].
        """
        return self._batch.encode(texts, num_threads)

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids, and the characters of the original text that each of them stands for.

        The span of a word's first piece includes the white space before it, as in SentencePiece and transformers. A
        character that becomes several pieces (a ligature) is in the span of each of them.

        Args:
            text: Any text.

        Returns:
            The ids of `encode(text)` and as many spans (start, end), counted in characters of `text`.
        """
        aligned = rules.align(self.text_rules, text)
        if not aligned.text:
            return [], []
        encoded = self._processor.encode(aligned.text, return_type="offset_mapping")
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        for piece_id, piece, (start, end) in zip(encoded["ids"], encoded["pieces"], encoded["offsets"], strict=True):
            new_ids, widths = self._split_digit_comma(piece_id, piece)
            last = end
            ends = [max(start, end - sum(widths[n + 1 :])) for n in range(len(widths))]
            for new_id, first, last in zip(new_ids, [start, *ends[:-1]], ends, strict=True):
                ids.append(new_id)
                spans.append(
                    (aligned.starts[first], aligned.ends[last - 1]) if last > first else self._point(aligned, first)
                )
        return ids, spans

    def pieces(self, text: str) -> list[str]:
        """Pieces of a text, as in the vocabulary; unknown characters are shown as they are.

        Args:
            text: Any text.
        """
        shown: list[str] = []
        for piece in self._processor.encode(rules.apply(self.text_rules, text), out_type=str):
            ids, _ = self._split_digit_comma(self._processor.piece_to_id(piece), piece)
            shown.extend([piece] if len(ids) == 1 else [self.id_to_piece(i) for i in ids])
        return shown

    # --- decoding and the vocabulary ----------------------------------------------------------------------------------

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Text of ids, the inverse of SentencePiece's encoding. What text rules removed stays removed.

        Args:
            ids: Any ids below `vocab_size`.
            skip_special_tokens: Leave control and unknown pieces out rather than write their names.

        Raises:
            CheckpointError: id-out-of-range.
        """
        parts: list[str] = []
        special = set(self.special_ids())
        for is_special, run in itertools.groupby(self._checked(ids), key=special.__contains__):
            members = list(run)
            if not is_special:  # SentencePiece drops the space before the first piece of what it is given
                space = " " if parts and self.id_to_piece(members[0]).startswith(SPACE) else ""
                parts.append(space + self._processor.decode(members))
            elif not skip_special_tokens:
                parts.extend(self.id_to_piece(i) for i in members)
        return "".join(parts)

    def id_to_piece(self, piece_id: int) -> str:
        """Text of a piece.

        Raises:
            CheckpointError: id-out-of-range.
        """
        return self._processor.id_to_piece(self._checked([piece_id])[0])

    def special_ids(self) -> list[int]:
        """Ids of control and unknown pieces, ascending."""
        # Asking 30,000 pieces takes 5 ms; `decode` asks every time.
        if not hasattr(self, "_special_ids"):
            is_control, is_unknown = self._processor.is_control, self._processor.is_unknown
            self._special_ids = [i for i in range(self.vocab_size) if is_control(i) or is_unknown(i)]
        return list(self._special_ids)

    def word_starts(self) -> np.ndarray:
        """Whether a piece starts a word for whole-word masking, bool [vocab_size].

        The rule of google-research/albert's create_pretraining_data.py; see `albertkit.tokenizer.word_starts`.
        """
        starts = np.array(word_starts([self._processor.id_to_piece(i) for i in range(self.vocab_size)]))
        starts[self.special_ids()] = True
        return starts

    # --- inside -------------------------------------------------------------------------------------------------------

    def _encode_plain(self, text: str) -> list[int]:
        text = rules.apply(self.text_rules, text)
        ids: list[int] = self._processor.encode(text)
        if self._digit_comma is None or "," not in text:
            return ids
        return [new for old in ids for new in self._split_digit_comma(old, "")[0]]

    def _encode_masked(self, text: str) -> list[int]:
        mask = SPECIAL_PIECES[self.mask_id]
        parts = text.split(mask)
        ids = self._encode_plain(parts[0])
        for part in parts[1:]:
            ids += [self.mask_id, *self._encode_plain(part)]
        return ids

    def _split_digit_comma(self, piece_id: int, piece: str) -> tuple[list[int], list[int]]:
        """Ids that a piece becomes under the digit-comma rule, and their widths in characters."""
        table = self._digit_comma
        if table is None or table.counts[piece_id] == 1:
            return [piece_id], [len(piece.removeprefix(SPACE))]
        row = slice(table.starts[piece_id], table.starts[piece_id] + table.counts[piece_id])
        return table.ids[row].tolist(), table.widths[row].tolist()

    @staticmethod
    def _point(aligned: rules.AlignedText, position: int) -> tuple[int, int]:
        """An empty span, for a piece that stands for nothing in the text (the space put before it)."""
        place = aligned.starts[position] if position < len(aligned.starts) else aligned.ends[-1]
        return place, place

    def _special_names(self) -> list[str]:
        return [self.id_to_piece(i) for i in range(len(SPECIAL_PIECES))]

    def _checked(self, ids: Sequence[int]) -> list[int]:
        plain = [int(i) for i in ids]
        for number in plain:
            if not 0 <= number < self.vocab_size:
                raise CheckpointError(
                    "id-out-of-range", f"id {number} is no piece: the tokenizer has {self.vocab_size:,} pieces",
                    "use the tokenizer the ids were made with",
                )  # fmt: skip
        return plain
