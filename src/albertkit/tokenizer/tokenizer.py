"""`AlbertTokenizer`: text to ids and back, with every kind of tokenizer that a folder can hold."""

import functools
import json
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from albertkit.errors import CheckpointError, ConfigError, format_list
from albertkit.files import StrPath, write_file, write_json
from albertkit.folder_facts import AddedToken, FolderFacts
from albertkit.model_paths import CONFIG_FILE, inner_model_hint, local_folder
from albertkit.tokenizer.files import (
    CONFIG_NAME,
    JSON_NAME,
    NO_LIMIT,
    SPECIAL_ROLES,
    VOCAB_NAME,
    check_no_other_tokenizer,
    settings_with_flags,
    special_names,
    tokenizer_config,
    warn_if_json_reads_otherwise,
)
from albertkit.tokenizer.inputs import (
    InputSettings,
    TokenizedTexts,
    model_inputs,
    pad_inputs,
    split_text,
)
from albertkit.tokenizer.ragged import RaggedIds
from albertkit.tokenizer.rules import replace_lone_surrogates
from albertkit.tokenizer.sentencepiece_model import SPACE

logger = logging.getLogger("albertkit")
_PUNCTUATION = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
_INSIDE_WORDS = _PUNCTUATION.union("abcdefghijklmnopqrstuvwxyz")


class AlbertTokenizer(ABC):
    """Base of all tokenizers of ALBERTs. `from_pretrained` returns the kind that a folder holds:

    - `SentencePieceTokenizer` of a `*.model` file: Google's English models, and all that albertkit trains;
    - `WordPieceTokenizer` of a `vocab.txt`: Google's Chinese models and some Korean ones;
    - `JsonTokenizer` of a `tokenizer.json` alone, which is all that transformers 5 saves.

    It can be pickled, and one tokenizer may be used by several threads.

    Attributes:
        text_rules: What happens to a text before it is cut into tokens; see
            `albertkit.tokenizer.rules`. "bert…" for WordPiece, "tokenizer.json" for the rules in
            such a file.
        vocab_size: Number of tokens.
        fingerprint: SHA-256 of the vocabulary and the rules; equal fingerprints give equal ids.
        pad_id, unk_id, cls_id, sep_id, mask_id: 0 to 4 in SentencePiece models; anywhere in the
            others.
        model_max_length: Longest sequence, from `tokenizer_config.json`; else 512.
        mask_flags: Which of `single_word` and `normalized`, as the `tokenizers` library has them,
            the folder sets for the name of the mask in a text.
        truncation_side, padding_side: Where texts are cut and `self(texts)` pads, "right" or
            "left"; from the same file.
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
    truncation_side: str = "right"
    padding_side: str = "right"
    mask_flags: tuple[str, ...] = ()
    # Of two texts cut to halves of an odd room, the one that keeps one id more if it is not the
    # shorter: as in `tokenizers`.
    longer_half: ClassVar[str] = "second"
    # Listed by `albertkit.tokenizer`, in the order of trial
    kinds: ClassVar[tuple[type["AlbertTokenizer"], ...]] = ()

    # --- files ------------------------------------------------------------------------------------

    @classmethod
    def from_pretrained(
        cls,
        folder: StrPath,
        text_rules: str | None = None,
        *,
        do_lower_case: bool | None = None,
        keep_accents: bool | None = None,
        model_max_length: int | None = None,
        max_len: int | None = None,
        pad_token: str | None = None,
        unk_token: str | None = None,
        cls_token: str | None = None,
        sep_token: str | None = None,
        mask_token: str | None = None,
    ) -> "AlbertTokenizer":
        """Read the tokenizer of a folder: of `*.model`, else of `vocab.txt`, else of `tokenizer.json`.

        Args:
            folder: A checkpoint or tokenizer folder, a run, or `org/name` of the hub.
            text_rules: Name of the text rules of a SentencePiece model. By default those in
                `tokenizer_config.json` (also under transformers' names `do_lower_case` and
                `keep_accents`), else "google".
            do_lower_case: transformers' argument: rules that differ from the folder's in this, and
                with them other ids. A model that was trained with the folder's rules needs those.
            keep_accents: The same for accents.
            model_max_length: Longest sequence, in place of the folder's.
            max_len: Its older name.
            pad_token: Name of the padding token. A SentencePiece model has its names in itself, and
                others are refused.
            unk_token: The same for the unknown token.
            cls_token: The same for the token that starts a sequence.
            sep_token: The same for the token that ends a text.
            mask_token: The same for the mask.

        Raises:
            CheckpointError: no-tokenizer, ambiguous, bad-file, wrong-tokenizer.
            ConfigError: unknown-name, bad-value.
            DataError: bad-file, bad-encoding.
        """
        names = {
            "pad": pad_token,
            "unk": unk_token,
            "cls": cls_token,
            "sep": sep_token,
            "mask": mask_token,
        }
        flags = {"do_lower_case": do_lower_case, "keep_accents": keep_accents}
        tokenizer = cls._read_folder(
            local_folder(folder, weights=False),
            text_rules,
            {role: name for role, name in names.items() if name is not None},
            {flag: on for flag, on in flags.items() if on is not None},
        )
        limit = model_max_length if model_max_length is not None else max_len
        if limit is not None:
            if limit < 3:
                raise ConfigError(
                    "bad-value",
                    f"model_max_length is {limit}",
                    "use 3 or more, usually 512",
                )
            tokenizer.model_max_length = limit
        return tokenizer

    @classmethod
    def _read_folder(
        cls,
        folder: Path,
        text_rules: str | None,
        names: Mapping[str, str],
        flags: Mapping[str, bool],
    ) -> "AlbertTokenizer":
        """Read a folder, with other names of special tokens by role, or other flags of its rules."""
        facts = FolderFacts.from_folder(folder)
        facts.check_tokenizer_settings()
        settings = {**facts.tokenizer, "tokenizer_class": facts.tokenizer_class}
        settings.update({f"{role}_token": name for role, name in names.items()})
        if flags:
            settings.update(settings_with_flags(folder, settings, text_rules, flags))
        only_json = facts.reads_json_first and text_rules is None and not flags
        for kind in AlbertTokenizer.kinds:
            tokenizer = kind.from_files(folder, settings, text_rules, only_json)
            if tokenizer is not None:
                break
        else:
            hint = inner_model_hint(folder)
            if (folder / CONFIG_FILE).exists():
                hint = "copy the tokenizer's files there that the model was trained with"
            raise CheckpointError(
                "no-tokenizer",
                f"none of *.model, {VOCAB_NAME}, {JSON_NAME} in `{folder}`",
                hint or "train one: `albertkit tokenizer train FILES --out DIR`",
            )
        for role, name in names.items():
            actual_name = tokenizer.role_names()[role]
            if actual_name != name:
                raise ConfigError(
                    "bad-value",
                    f"{role}_token is `{name}`, but the tokenizer in `{folder}` calls it `{actual_name}`",
                    f"leave {role}_token out, or use {role}_token={actual_name!r}",
                )
        added = [
            token for token in facts.added_tokens().values() if not tokenizer.matches_added(token)
        ]
        # transformers gives these, where the vocabulary lacks them, ids that the model lacks, too
        ends = special_names(settings, ("bos", "eos")).values()
        vocabulary = tokenizer.get_vocab() if added else {}
        added = [
            token for token in added if token.content in vocabulary or token.content not in ends
        ]
        if added:
            added_names = [token.content for token in added]
            if text_rules is not None or flags:
                fact = f"`{folder}` adds {len(added)} tokens to its rules ({format_list(added_names, 5)})"
                raise CheckpointError(
                    "wrong-tokenizer",
                    fact,
                    "other rules cannot be chosen for it: leave them out",
                )
            # The other three stay: the template has the old [CLS] and [SEP], the model the old
            # unknown token.
            role_names = special_names(settings)
            roles = {
                role: role_names[role]
                for role in ("pad", "mask")
                if role_names.get(role) in added_names
            }
            tokenizer = cls.with_added(folder, tokenizer, added, roles)
        elif not only_json:
            warn_if_json_reads_otherwise(folder, tokenizer)
        if "token_type_ids" not in (settings.get("model_input_names") or "token_type_ids"):
            fact = "gives no token_type_ids (model_input_names): there the second text of a pair has 0, here 1"
            logger.warning("the tokenizer in `%s` %s", folder, fact)
        tokenizer.mask_flags = facts.flags_set_for_mask(tokenizer.mask_token)
        limit = settings.get("model_max_length", settings.get("max_len"))
        if isinstance(limit, int) and 2 < limit < NO_LIMIT:
            tokenizer.model_max_length = limit
        for side in ("truncation_side", "padding_side"):
            value = settings.get(side, "right")
            if value not in ("left", "right"):
                fact = f"`{side}` in `{folder}` is {value!r}"
                raise CheckpointError("bad-file", fact, f"use left or right in {CONFIG_NAME}")
            setattr(tokenizer, side, value)
        return tokenizer

    @classmethod
    def with_added(
        cls,
        folder: Path,
        tokenizer: "AlbertTokenizer",
        added: Sequence[AddedToken],
        roles: Mapping[str, str],
    ) -> "AlbertTokenizer":
        """Return the tokenizer of `tokenizer.json`, the folder's or that of its other files, with added tokens.

        Only the last of `kinds` reads such a file. `roles` names those that take the place of a
        special token.
        """
        # Not by a splitter of ours: five flags of a token decide about normalised text,
        # neighbouring spaces and whole words.
        return cls.kinds[-1].with_added(folder, tokenizer, added, roles)

    @classmethod
    @abstractmethod
    def from_files(
        cls,
        folder: Path,
        settings: dict[str, Any],
        text_rules: str | None,
        only_json: bool,
    ) -> "AlbertTokenizer | None":
        """Read this kind of tokenizer, if the folder has its files.

        Args:
            folder: The folder.
            settings: Of its `tokenizer_config.json`.
            text_rules: Rules to use in place of the folder's.
            only_json: Look at `tokenizer.json` alone.
        """

    def save_pretrained(self, folder: StrPath) -> None:
        """Write the files that `from_pretrained` and transformers' `AutoTokenizer` read, each whole or not at all.

        A `tokenizer.json` that gives other ids is reported by a warning. Where none can give the
        same, none is written.

        Args:
            folder: Made if missing; other files in it are left alone.

        Raises:
            CheckpointError: ambiguous if the folder holds one that would be read instead.
        """
        path = Path(folder)
        files, settings = self._files_and_settings_to_save()
        check_no_other_tokenizer(path, next(iter(files)))
        if JSON_NAME in files:
            files[JSON_NAME] = self._with_mask_flags(files[JSON_NAME].decode()).encode()
        else:
            (path / JSON_NAME).unlink(missing_ok=True)  # of another tokenizer
        for name, content in files.items():
            write_file(path / name, content)
        config = tokenizer_config(self.role_names(), self.text_rules, self.model_max_length)
        sides = {"padding_side": self.padding_side, "truncation_side": self.truncation_side}
        write_json(path / CONFIG_NAME, config | sides | settings)

    def tokenizer_json(self) -> str:
        """Return the content of `tokenizer.json`, with which the `tokenizers` library gives the same ids.

        Raises:
            CheckpointError: not-expressible, for some kinds of SentencePiece models.
        """
        return self._with_mask_flags(self._files_and_settings_to_save()[0][JSON_NAME].decode())

    # --- encoding ---------------------------------------------------------------------------------

    def __call__(
        self,
        text: str | Sequence[Any],
        text_pair: str | Sequence[Any] | None = None,
        *,
        padding: bool | str | None = None,
        truncation: bool | str = False,
        max_length: int | None = None,
        stride: int = 0,
        is_split_into_words: bool = False,
        add_special_tokens: bool = True,
        pad_to_multiple_of: int | None = None,
        return_tensors: str | None = None,
        return_token_type_ids: bool = True,
        return_attention_mask: bool = True,
        return_overflowing_tokens: bool = False,
        return_special_tokens_mask: bool = False,
        return_offsets_mapping: bool = False,
        return_length: bool = False,
    ) -> TokenizedTexts:
        """Return the model's inputs, as transformers' tokenizers do: `model(**tokenizer(texts, return_tensors="pt"))`.

        A literal `[MASK]` is the mask; names of other special tokens are plain text.

        Args:
            text: A text or N texts; with `is_split_into_words` a list of words or N such lists.
            text_pair: As many second texts.
            padding: False, True (to the longest) or "max_length". Default: only if there are to be
                tensors.
            truncation: False, True or "longest_first", "only_first", "only_second".
            max_length: Ids of a sequence at most, the special tokens counted. Default
                `model_max_length`.
            stride: Tokens that a window shares with the one before it, with
                `return_overflowing_tokens`.
            is_split_into_words: The texts are lists of words, each encoded by itself.
            add_special_tokens: Put `[CLS]` and `[SEP]` around the texts.
            pad_to_multiple_of: Pad to a multiple of this.
            return_tensors: "pt" for torch's, "np" for numpy's, None for lists.
            return_token_type_ids, return_attention_mask: Whether to return these.
            return_overflowing_tokens: Return what truncation cuts off as further sequences;
                `overflow_to_sample_mapping` says of which text each is. Of a pair, only one text
                can be cut.
            return_special_tokens_mask: Return 1 for special tokens and padding.
            return_offsets_mapping: Return the characters of each token (start, end), without the
                space before a word; (0, 0) for special tokens.
            return_length: Return the lengths.

        Returns:
            `input_ids`, `token_type_ids`, `attention_mask` and what else was asked for, by key or
            as attributes: int64 [N, length], or lists; of one text without tensors, lists of
            integers.

        Raises:
            ConfigError: bad-value.
            DataError: too-large, if the text that may be shortened is too short for that.
        """
        settings = InputSettings(
            padding,
            truncation,
            max_length,
            stride,
            is_split_into_words,
            add_special_tokens,
            pad_to_multiple_of,
            return_tensors,
            return_token_type_ids,
            return_attention_mask,
            return_overflowing_tokens,
            return_special_tokens_mask,
            return_offsets_mapping,
            return_length,
        )
        return model_inputs(self, text, text_pair, settings)

    def encode(
        self,
        text: str,
        pair: str | None = None,
        special_tokens: bool = False,
        mask_literal: bool = False,
        *,
        add_special_tokens: bool | None = None,
    ) -> list[int]:
        """Return the ids of a text or of a pair of texts.

        Without `add_special_tokens` a text gets no special tokens and `[MASK]` is plain text,
        unlike transformers' `encode`, whose default is `add_special_tokens=True`.

        Args:
            text: First text.
            pair: Second text. A pair always gets its special tokens, which are what holds it
                together.
            special_tokens: Put `[CLS]` before and `[SEP]` after: `[CLS] A [SEP]`, `[CLS] A [SEP] B
                [SEP]`.
            mask_literal: Make each literal `[MASK]` one mask id; it swallows the white space before
                it.
            add_special_tokens: transformers' argument: if given, this is `self(text, pair,
                add_special_tokens=…).input_ids`, in which a literal `[MASK]` is the mask.

        Returns:
            The ids.
        """
        if add_special_tokens is not None:
            return self(text, pair, add_special_tokens=add_special_tokens).input_ids

        def encode(text: str) -> list[int]:
            start, *parts = split_text(text, self.mask_spans(text) if mask_literal else [])
            ids = list(self._encode_plain(start))
            for part in parts:
                ids += [self.mask_id, *self._encode_plain(part)]
            return ids

        first = encode(text)
        if pair is None:
            return [self.cls_id, *first, self.sep_id] if special_tokens else first
        return [self.cls_id, *first, self.sep_id, *encode(pair), self.sep_id]

    def token_type_ids(self, ids: Sequence[int]) -> list[int]:
        """Return the segment of each id of `encode(text, pair)`: 0 up to and including the first `[SEP]`, 1 after it.

        Args:
            ids: Ids with special tokens.
        """
        first = ids.index(self.sep_id) + 1 if self.sep_id in ids else len(ids)
        return [0] * first + [1] * (len(ids) - first)

    @abstractmethod
    def encode_batch(self, texts: Sequence[str], num_threads: int = 0) -> RaggedIds:
        """Return the ids of many texts, without special tokens; the same ids as `encode` gives.

        Args:
            texts: N texts.
            num_threads: Threads to use; 0 for one a core.

        Returns:
            ids int32 [T] and offsets int64 [N+1].
        """

    def start_engine(self) -> bool:
        """Load the compiled engine of `encode_batch` now, not after much text; return False if this tokenizer has none."""
        return False

    @abstractmethod
    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids, and the characters of the original text that each of them stands for.

        Args:
            text: Any text.

        Returns:
            The ids of `encode(text)` and as many spans (start, end), counted in characters of
            `text`.
        """

    def tokenize(self, text: str, pair: str | None = None) -> list[str]:
        """Return the tokens of a text, as transformers' `tokenize`: those of `self(text)` without special tokens.

        Unlike in `pieces`, a literal `[MASK]` is one token.

        Args:
            text: Any text.
            pair: A second text, whose tokens follow.
        """
        first, *parts = split_text(text, self.mask_spans(text))
        tokens = self.pieces(first)
        for part in parts:
            tokens += [self.mask_token, *self.pieces(part)]
        return tokens if pair is None else [*tokens, *self.tokenize(pair)]

    @abstractmethod
    def pieces(self, text: str) -> list[str]:
        """Return the tokens of `encode(text)` as in the vocabulary, unknown ones as in the text. See `tokenize`.

        Args:
            text: Any text.
        """

    def mask_spans(self, text: str) -> list[tuple[int, int]]:
        """Return start and end of each literal mask in a text, as the `tokenizers` library finds it by `mask_flags`."""
        if not self.mask_flags:
            return [match.span() for match in re.finditer(re.escape(self.mask_token), text)]
        encoded = self._mask_finder.encode(replace_lone_surrogates(text), add_special_tokens=False)
        return [
            span for token_id, span in zip(encoded.ids, encoded.offsets, strict=True) if token_id
        ]

    @functools.cached_property
    def _mask_finder(self) -> Any:
        """A tokenizer that has no token but the mask, which is not 0."""
        from tokenizers import AddedToken as TheirToken
        from tokenizers import Tokenizer, models

        finder = Tokenizer(models.WordLevel({"": 0}, unk_token=""))
        if "normalized" in self.mask_flags:
            normalizer = Tokenizer.from_str(self.tokenizer_json()).normalizer
            if normalizer is not None:
                finder.normalizer = normalizer
        flags = {flag: flag in self.mask_flags for flag in ("single_word", "normalized")}
        finder.add_special_tokens([TheirToken(self.mask_token, special=True, **flags)])
        return finder

    # --- decoding and the vocabulary --------------------------------------------------------------

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text of ids. What text rules removed stays removed.

        Args:
            ids: Any ids below `vocab_size`.
            skip_special_tokens: Leave special tokens out rather than write their names.

        Raises:
            CheckpointError: wrong-tokenizer.
        """
        return self._decode(self._check_ids(ids), skip_special_tokens)

    def pad(
        self,
        encoded_inputs: Any,
        padding: bool | str = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        return_tensors: str | None = None,
        verbose: bool = True,
    ) -> TokenizedTexts:
        """Pad sequences that were tokenized one by one, as transformers' data collators ask.

        Args:
            encoded_inputs: N mappings with `input_ids`, or one mapping of lists. `input_ids`,
                `token_type_ids`, `attention_mask` and `special_tokens_mask` are padded, other
                values, such as labels, are collected.
            padding: True (to the longest), "max_length" or False.
            max_length: As in a call.
            pad_to_multiple_of: As in a call.
            return_tensors: As in a call.
            verbose: Changes nothing: no warning is given here.
        """
        return pad_inputs(
            self,
            encoded_inputs,
            InputSettings(
                padding=padding,
                max_length=max_length,
                pad_to_multiple_of=pad_to_multiple_of,
                return_tensors=return_tensors,
            ),
        )

    def batch_decode(self, sequences: Any, skip_special_tokens: bool = False) -> list[str]:
        """Return the text of each sequence of ids; lists, arrays or tensors."""
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """Return the token of an id, or of each of several ids.

        Raises:
            CheckpointError: wrong-tokenizer.
        """
        if np.ndim(ids) == 0:
            return self.id_to_piece(int(ids))
        special = set(self.special_ids()) if skip_special_tokens else set()
        return [self._piece(number) for number in self._check_ids(ids) if number not in special]

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """Return the id of a token, or of each of several; unknown ones get that of the unknown token."""
        if isinstance(tokens, str):
            return self._ids_of_tokens.get(tokens, self.unk_id)
        return [self._ids_of_tokens.get(token, self.unk_id) for token in tokens]

    def get_vocab(self) -> dict[str, int]:
        """Return all tokens and their ids."""
        return dict(self._ids_of_tokens)

    @functools.cached_property
    def _ids_of_tokens(self) -> dict[str, int]:
        return {self._piece(number): number for number in range(self.vocab_size)}

    def __len__(self) -> int:
        """Return the number of tokens, as transformers does: `model.resize_token_embeddings(len(tokenizer))`."""
        return self.vocab_size

    def __bool__(self) -> bool:
        return True

    pad_token_id = property(lambda self: self.pad_id, doc="Id of the padding token.")
    unk_token_id = property(lambda self: self.unk_id, doc="Id of the unknown token.")
    cls_token_id = property(lambda self: self.cls_id, doc="Id of the token that starts a sequence.")
    sep_token_id = property(lambda self: self.sep_id, doc="Id of the token that ends a text.")
    mask_token_id = property(lambda self: self.mask_id, doc="Id of the mask.")
    pad_token = property(lambda self: self._piece(self.pad_id), doc="Name of the padding token.")
    unk_token = property(lambda self: self._piece(self.unk_id), doc="Name of the unknown token.")
    cls_token = property(
        lambda self: self._piece(self.cls_id), doc="Name of the token that starts a sequence."
    )
    sep_token = property(
        lambda self: self._piece(self.sep_id), doc="Name of the token that ends a text."
    )
    mask_token = property(lambda self: self._piece(self.mask_id), doc="Name of the mask.")

    @property
    def all_special_ids(self) -> list[int]:
        """Return the ids of the special tokens, ascending; `special_ids` under transformers' name."""
        return self.special_ids()

    @property
    def all_special_tokens(self) -> list[str]:
        """Return the names of the special tokens, in the order of their ids."""
        return [self._piece(number) for number in self.special_ids()]

    def id_to_piece(self, piece_id: int) -> str:
        """Return the name of a token.

        Raises:
            CheckpointError: wrong-tokenizer.
        """
        return self._piece(self._check_ids([piece_id])[0])

    def role_names(self) -> dict[str, str]:
        """Return the names of the five special tokens by role: "pad", "unk", "cls", "sep", "mask"."""
        return {role: self._piece(getattr(self, f"{role}_id")) for role in SPECIAL_ROLES}

    @abstractmethod
    def special_ids(self) -> list[int]:
        """Return the ids of special and unknown tokens, ascending."""

    def required_ids(self) -> list[int]:
        """Return the ids of tokens that a part of the vocabulary must have, so that no known text becomes unknown.

        Raises:
            CheckpointError: unsupported where the rest of the vocabulary depends on every token.
        """
        raise self._not_divisible_error()

    def used_ids(self, texts: Sequence[str]) -> np.ndarray:
        """Return the ids that decide how texts are cut, int32: those of `encode_batch`, in any order."""
        return self.encode_batch(texts).ids

    def with_tokens(self, ids: Sequence[int]) -> "AlbertTokenizer":
        """Return the tokenizer of a part of the vocabulary, numbered in the order of these ids.

        Raises:
            CheckpointError: unsupported, as `required_ids`.
        """
        raise self._not_divisible_error()

    def word_starts(self) -> np.ndarray:
        """Return a mask of the tokens that start a word, for whole-word masking, bool [vocab_size].

        The rule is google-research/albert's (`create_pretraining_data.py`, `_is_start_piece_sp`). A
        token continues the word before it if it is made of English letters and the punctuation
        listed there, does not begin with the mark of a space or `<`, and is not a single
        punctuation mark. So "ing" and ".com" continue; "▁the", ".", "'", "7", "é" and "한" start. In
        WordPiece vocabularies, tokens that begin with `##` continue.
        """
        starts = np.ones(self.vocab_size, bool)
        for number in range(self.vocab_size):
            piece = self._piece(number)
            has_mark = piece.startswith((SPACE, "<")) or piece in _PUNCTUATION
            starts[number] = has_mark or not _INSIDE_WORDS.issuperset(piece.lower())
        starts[self.special_ids()] = True
        return starts

    # --- inside -----------------------------------------------------------------------------------

    def __reduce__(self) -> tuple:
        names = ("model_max_length", "truncation_side", "padding_side", "mask_flags")
        return (
            type(self),
            self._constructor_arguments(),
            {name: getattr(self, name) for name in names},
        )

    def matches_added(self, token: AddedToken) -> bool:
        """Return True if a token that a folder adds is one of the five special tokens, or is matched without it."""
        return token.content in self.role_names().values()

    def _not_divisible_error(self) -> CheckpointError:
        return CheckpointError(
            "unsupported",
            f"the vocabulary of this {type(self).__name__} cannot be divided: only unigram models in a *.model and WordPiece in "
            "a vocab.txt can",
            "train one: `albertkit tokenizer train FILES --out DIR`",
        )

    @abstractmethod
    def _constructor_arguments(self) -> tuple:
        """Return the arguments of the constructor."""

    @abstractmethod
    def _files_and_settings_to_save(self) -> tuple[dict[str, bytes], dict[str, Any]]:
        """Return the files of a folder, that which names the kind first, and further settings of `tokenizer_config.json`."""

    def _with_mask_flags(self, content: str) -> str:
        """Return the content of a `tokenizer.json` with the flags of the mask."""
        if not self.mask_flags:
            return content
        parts = json.loads(content)
        for token in parts["added_tokens"]:
            if token["content"] == self.mask_token:
                token.update(dict.fromkeys(self.mask_flags, True))
        return json.dumps(parts, ensure_ascii=False)

    @abstractmethod
    def _encode_plain(self, text: str) -> list[int]: ...

    @abstractmethod
    def _decode(self, ids: list[int], skip_special_tokens: bool) -> str: ...

    @abstractmethod
    def _piece(self, piece_id: int) -> str: ...

    def _check_ids(self, ids: Sequence[int]) -> list[int]:
        numbers = [int(i) for i in ids]
        for number in numbers:
            if not 0 <= number < self.vocab_size:
                fact = f"id {number} is not a token: the tokenizer has {self.vocab_size:,} tokens"
                raise CheckpointError(
                    "wrong-tokenizer",
                    fact,
                    "use the tokenizer that encoded them",
                )
        return numbers
