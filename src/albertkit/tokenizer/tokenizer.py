"""`AlbertTokenizer`: text to ids and back, whatever the kind of tokenizer a folder holds."""

import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from albertkit.errors import CheckpointError
from albertkit.model_folder import local_folder
from albertkit.tokenizer.ragged import RaggedIds


class AlbertTokenizer(ABC):
    """What every tokenizer of an ALBERT can do. `from_pretrained` gives the kind that a folder holds:

    - `SentencePieceTokenizer` of a `*.model` file: Google's English models, and all that albertkit trains;
    - `WordPieceTokenizer` of a `vocab.txt`: Google's Chinese models and some Korean ones;
    - `JsonTokenizer` of a `tokenizer.json` alone, which is all that transformers 5 saves.

    It can be pickled, and one tokenizer may be used by several threads.

    Attributes:
        text_rules: What happens to a text before it is cut into pieces; see `albertkit.tokenizer.rules`. "bert…" for
            WordPiece, "tokenizer.json" for the rules in such a file.
        vocab_size: Number of pieces.
        fingerprint: SHA-256 of the vocabulary and the rules; equal fingerprints give equal ids.
        pad_id, unk_id, cls_id, sep_id, mask_id: 0 to 4 in SentencePiece models; anywhere in the others.
        model_max_length: What `tokenizer_config.json` says; else 512.
    """

    text_rules: str
    vocab_size: int
    fingerprint: str
    pad_id: int
    unk_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    model_max_length: int = 512

    # --- files --------------------------------------------------------------------------------------------------------

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], text_rules: str | None = None) -> "AlbertTokenizer":
        """Read the tokenizer of a folder: of `*.model`, else of `vocab.txt`, else of `tokenizer.json`.

        Args:
            folder: A checkpoint or tokenizer folder, a run, or `org/name` of the hub.
            text_rules: Name of the text rules of a SentencePiece model. By default those in `tokenizer_config.json`
                (also under transformers' names `do_lower_case` and `keep_accents`), else "google".

        Raises:
            CheckpointError: no-tokenizer, several-tokenizers, broken-tokenizer, special-ids, added-tokens.
            ConfigError: bad-text-rules.
            DataError: broken-json.
        """
        from albertkit.tokenizer.loading import load_tokenizer

        return load_tokenizer(local_folder(folder, weights=False), text_rules)

    @abstractmethod
    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write what `from_pretrained` and transformers' `AutoTokenizer` read, each file whole or not at all.

        Args:
            folder: Made if missing; other files in it are left alone.

        Raises:
            CheckpointError: several-tokenizers if the folder holds one that would be read instead.
        """

    # --- encoding -----------------------------------------------------------------------------------------------------

    def __call__(
        self,
        text: str | Sequence[str],
        text_pair: str | Sequence[str] | None = None,
        *,
        padding: bool | str | None = None,
        truncation: bool | str = False,
        max_length: int | None = None,
        return_tensors: str | None = None,
    ) -> dict[str, Any]:
        """The model's inputs, as transformers' tokenizers give them: `model(**tokenizer(texts, return_tensors="pt"))`.

        A literal `[MASK]` is the mask; names of other special tokens are plain text.

        Args:
            text: A text or N texts.
            text_pair: As many second texts.
            padding: False, True (to the longest) or "max_length". Default: only if there are to be tensors.
            truncation: False, True or "longest_first", "only_first", "only_second".
            max_length: Ids of a sequence at most, the special tokens counted. Default `model_max_length`.
            return_tensors: "pt" for torch's, "np" for numpy's, None for lists.

        Returns:
            `input_ids`, `token_type_ids`, `attention_mask`: int64 [N, length], or lists; of one text without tensors,
            lists of integers.

        Raises:
            ConfigError: bad-argument.
            DataError: cannot-truncate, if the text that may be shortened is too short for that.
        """
        from albertkit.tokenizer.model_inputs import model_inputs

        return model_inputs(self, text, text_pair, padding, truncation, max_length, return_tensors)

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

    @abstractmethod
    def encode_batch(self, texts: Sequence[str], num_threads: int = 0) -> RaggedIds:
        """Ids of many texts, without special tokens; the same ids as `encode` gives.

        Args:
            texts: N texts.
            num_threads: Threads to use; 0 for one a core.

        Returns:
            ids int32 [T] and offsets int64 [N+1].
        """

    @abstractmethod
    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids, and the characters of the original text that each of them stands for.

        Args:
            text: Any text.

        Returns:
            The ids of `encode(text)` and as many spans (start, end), counted in characters of `text`.
        """

    @abstractmethod
    def pieces(self, text: str) -> list[str]:
        """Pieces of a text, as in the vocabulary; unknown ones are shown as they are in the text.

        Args:
            text: Any text.
        """

    # --- decoding and the vocabulary ----------------------------------------------------------------------------------

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Text of ids. What text rules removed stays removed.

        Args:
            ids: Any ids below `vocab_size`.
            skip_special_tokens: Leave special pieces out rather than write their names.

        Raises:
            CheckpointError: id-out-of-range.
        """
        return self._decode(self._checked(ids), skip_special_tokens)

    def id_to_piece(self, piece_id: int) -> str:
        """Text of a piece.

        Raises:
            CheckpointError: id-out-of-range.
        """
        return self._piece(self._checked([piece_id])[0])

    @abstractmethod
    def special_ids(self) -> list[int]:
        """Ids of special and unknown pieces, ascending."""

    @abstractmethod
    def word_starts(self) -> np.ndarray:
        """Whether a piece starts a word for whole-word masking, bool [vocab_size]."""

    # --- inside -------------------------------------------------------------------------------------------------------

    def __reduce__(self) -> tuple:
        return type(self), self._arguments(), {"model_max_length": self.model_max_length}

    @abstractmethod
    def _arguments(self) -> tuple:
        """What the constructor made it of."""

    @abstractmethod
    def _encode_plain(self, text: str) -> list[int]: ...

    @abstractmethod
    def _decode(self, ids: list[int], skip_special_tokens: bool) -> str: ...

    @abstractmethod
    def _piece(self, piece_id: int) -> str: ...

    def _encode_masked(self, text: str) -> list[int]:
        parts = [self._encode_plain(part) for part in text.split(self._piece(self.mask_id))]
        return [*parts[0], *itertools.chain.from_iterable([self.mask_id, *part] for part in parts[1:])]

    def _checked(self, ids: Sequence[int]) -> list[int]:
        plain = [int(i) for i in ids]
        for number in plain:
            if not 0 <= number < self.vocab_size:
                raise CheckpointError(
                    "id-out-of-range", f"id {number} is no piece: the tokenizer has {self.vocab_size:,} pieces",
                    "use the tokenizer the ids were made with",
                )  # fmt: skip
        return plain
