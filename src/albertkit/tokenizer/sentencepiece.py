"""`SentencePieceTokenizer`: a SentencePiece model with ALBERT's special ids and a choice of text rules."""

import itertools
import os
import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from albertkit.errors import CheckpointError
from albertkit.files import StrPath, atomic_file, check_regular_file, sha256_bytes
from albertkit.folder_facts import AddedToken
from albertkit.tokenizer import rules
from albertkit.tokenizer.files import (
    ANALYSER_KEY,
    CONFIG_NAME,
    JSON_NAME,
    LISTING_NAME,
    MODEL_NAME,
    find_sentencepiece_model,
)
from albertkit.tokenizer.morphemes import ANALYSERS, find_analyser
from albertkit.tokenizer.ragged import (
    RaggedIds,
    concatenate_ids,
    encode_in_chunks,
    encode_refused_texts,
)
from albertkit.tokenizer.readings import ReaderComparison, compare_reader
from albertkit.tokenizer.rules import with_spaces
from albertkit.tokenizer.sentencepiece_model import (
    BYTE,
    NORMAL,
    SPACE,
    UNIGRAM,
    UNUSED,
    USER_DEFINED,
    DigitCommaRule,
    digit_comma_rule,
    load_processor,
    read_facts,
    rebuild_model,
)
from albertkit.tokenizer.tokenizer import AlbertTokenizer

if TYPE_CHECKING:
    from albertkit.tokenizer.unigram_engine import WordEngine

# Loading the compiled engine takes 0.7 s (half of it numba's own start; several seconds the first
# time on a machine), which it saves within 13 MB: it takes 0.03 s for one, SentencePiece 0.08. It
# is loaded once a tokenizer has been given this many characters.
CHARACTERS_BEFORE_ENGINE = 10_000_000
# 2 ms of work, for which no thread is started: two for a sentence took 0.3 ms, and 1 ms on a busy
# machine; encoding it, 0.01.
_FEW_CHARACTERS = 20_000
# Texts the engine refuses are work done twice. After a chunk with more than this share of them
# (Korean under the rules `google`, which take Hangul apart: all), so many chunks go to
# SentencePiece before the engine is tried again.
_REFUSED_SHARE = 0.5
_CHUNKS_WITHOUT_ENGINE = 30


class BatchEncoder:
    """Encodes many texts, by the word-by-word engine (`unigram_engine`) where it is faster, else by SentencePiece."""

    def __init__(
        self,
        processor: Any,
        model: bytes,
        text_rules: str,
        digit_comma: DigitCommaRule | None,
    ) -> None:
        self._processor = processor
        self._model = model
        self._rules = text_rules
        self._digit_comma = digit_comma
        self._characters = 0
        self._engine: WordEngine | None = None
        self._has_tried_engine = False
        self._chunks_without_engine = 0  # remaining ones

    def encode(self, texts: Sequence[str], num_threads: int) -> RaggedIds:
        """See `AlbertTokenizer.encode_batch`."""
        characters = sum(map(len, texts))
        threads = min(num_threads or available_cores(), 1 + characters // _FEW_CHARACTERS)
        self._characters += characters
        if self._characters >= CHARACTERS_BEFORE_ENGINE:
            self.start_engine()
        if self._engine is None:
            return self._encode_with_sentencepiece(texts, threads)
        return encode_in_chunks(self._encode_chunk, texts, threads)

    def start_engine(self) -> bool:
        """Load the engine now, and return False if the model is not one for it."""
        if self._has_tried_engine:
            return self._engine is not None
        from albertkit.tokenizer.unigram_engine import (
            WordEngine,
            is_supported_by_engine,
            unigram_tables,
        )

        facts = read_facts(self._model)
        if is_supported_by_engine(facts):
            blanks = (
                b"\t\n\v\f\r\x1c\x1d\x1e\x1f "
                if rules.COLLAPSE in rules.STEPS[self._rules]
                else b" "
            )
            tables = unigram_tables(facts, self._processor.unk_id(), self._digit_comma)
            engine = WordEngine(tables, facts.charsmap, blanks)
            # Its loops are loaded, or compiled for 6 s, before other threads see it: until then
            # they encode by SentencePiece.
            engine.encode(["a"], rules.do_rules_lower_case(self._rules))
            self._engine = engine
        self._has_tried_engine = True
        return self._engine is not None

    def _encode_chunk(self, texts: Sequence[str]) -> RaggedIds:
        if self._chunks_without_engine > 0:
            self._chunks_without_engine -= 1
            return self._encode_with_sentencepiece(texts, 1)
        assert self._engine is not None
        # The engine handles white space and case of ASCII; Python handles all other characters.
        prepared = list(texts)
        ascii_only = np.fromiter(map(str.isascii, texts), np.bool_, len(texts))
        non_ascii = np.flatnonzero(~ascii_only).tolist()
        # One call for all of them, since a call for each takes five times as long. No step looks
        # across END: it is neither blank nor cased, and composes with nothing.
        joined = rules.END.join(texts[index] for index in non_ascii)
        changed_texts = rules.apply_without_collapsing(self._rules, joined).split(rules.END)
        if len(changed_texts) != len(non_ascii):  # a text holds END, or there is none
            changed_texts = [
                rules.apply_without_collapsing(self._rules, texts[index]) for index in non_ascii
            ]
        for index, text in zip(non_ascii, changed_texts, strict=True):
            prepared[index] = text
        encoded, refused = self._engine.encode(prepared, rules.do_rules_lower_case(self._rules))
        if np.count_nonzero(refused) > _REFUSED_SHARE * len(texts):
            self._chunks_without_engine = _CHUNKS_WITHOUT_ENGINE
        return encode_refused_texts(
            encoded,
            refused,
            texts,
            lambda refused_texts: self._encode_with_sentencepiece(refused_texts, 1),
        )

    def _encode_with_sentencepiece(self, texts: Sequence[str], num_threads: int) -> RaggedIds:
        """Use SentencePiece's own batch encoding."""
        # It runs without the interpreter's lock.
        prepared = [rules.apply(self._rules, text) for text in texts]
        if num_threads == 1 and sum(map(len, prepared)) < _FEW_CHARACTERS:
            rows = [self._processor.encode(text, return_type="numpy") for text in prepared]
        else:
            rows = self._processor.encode(prepared, num_threads=num_threads, return_type="numpy")
        encoded = concatenate_ids(rows)
        if self._digit_comma is None:
            return encoded
        return RaggedIds(*self._digit_comma.rewrite_ids(*encoded))


def available_cores() -> int:
    """Return the number of cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class SentencePieceTokenizer(AlbertTokenizer):
    """SentencePiece with ALBERT's ids. Make one with `AlbertTokenizer.from_pretrained`."""

    pad_id, unk_id, cls_id, sep_id, mask_id = range(5)
    longer_half = "first"  # as the Python class of transformers 4

    def __init__(
        self,
        model: bytes,
        text_rules: str = "google",
        source: StrPath = "the model",
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
        self.text_rules = rules.check_rules_name(text_rules)
        self.analyser = analyser
        self._model = model
        self._source = Path(source)
        self._processor = load_processor(model, self._source)
        self.vocab_size = self._processor.get_piece_size()
        spaces = f"\0{analyser}" if analyser else ""
        self.fingerprint = sha256_bytes(model + b"\0" + (text_rules + spaces).encode())
        self._digit_comma = (
            digit_comma_rule(self._processor) if rules.has_google_rules(text_rules) else None
        )
        self._with_digit_comma: set[int] = set()
        if self._digit_comma is not None:
            self._with_digit_comma.update(np.flatnonzero(self._digit_comma.counts > 1).tolist())
        self._batch = BatchEncoder(self._processor, model, text_rules, self._digit_comma)

    def matches_added(self, token: AddedToken) -> bool:
        """See `AlbertTokenizer.matches_added`. transformers 5 lists user-defined pieces, which SentencePiece matches."""
        piece, _, kind = read_facts(self._model).pieces[self.piece_to_id(token.content)]
        is_matched = piece == token.content and kind in (USER_DEFINED, BYTE)
        return is_matched or super().matches_added(token)

    def _constructor_arguments(self) -> tuple:
        return (self._model, self.text_rules, "the model", self.analyser)

    @classmethod
    def from_files(
        cls,
        folder: Path,
        settings: dict[str, Any],
        text_rules: str | None,
        only_json: bool,
    ) -> "SentencePieceTokenizer | None":
        """Read a `*.model`. See `AlbertTokenizer.from_files`."""
        model = None if only_json else find_sentencepiece_model(folder)
        if model is None:
            return None
        if text_rules is None:
            text_rules = rules.read_rules_name(settings)
        analyser = settings.get(ANALYSER_KEY)
        if analyser is not None and analyser not in ANALYSERS:
            raise CheckpointError(
                "bad-file",
                f"`{ANALYSER_KEY}` of {CONFIG_NAME} in `{folder}` is {analyser!r}",
                f"known: {', '.join(ANALYSERS)}",
            )
        return cls(
            check_regular_file(model).read_bytes(),
            text_rules,
            source=model,
            analyser=analyser,
        )

    def _files_and_settings_to_save(self) -> tuple[dict[str, bytes], dict[str, Any]]:
        """Return `spiece.model`, and `tokenizer.json` if it can express the model; warn where it gives other ids."""
        from albertkit.tokenizer.tokenizer_json import transformers_class_flags

        settings: dict[str, Any] = transformers_class_flags(
            self.text_rules, read_facts(self._model)
        )
        if self.analyser:
            settings[ANALYSER_KEY] = self.analyser
        try:
            content = self.tokenizer_json()
        except CheckpointError as error:
            if error.slug != "not-expressible":
                raise
            fact = (
                f"transformers cannot open the folder, which has no tokenizer.json: {error.message}"
            )
            warnings.warn(fact, stacklevel=3)
            return {MODEL_NAME: self._model}, settings
        source_json = self._source.with_name(JSON_NAME)
        # Whoever wrote the same file was warned: Google's own vocabulary differs in runs such as
        # `!!!!`, in every training.
        was_reported = source_json.is_file() and source_json.read_bytes() == content.encode()
        comparison = self._json_comparison
        if comparison.first is not None and not was_reported:
            warnings.warn(
                "transformers reads other ids from tokenizer.json, which cannot express all of this vocabulary, on "
                f"{comparison.differing:,} hard lines, the first of them {comparison.first.text!r}; see: albertkit "
                "tokenizer check FOLDER",
                stacklevel=3,
            )
        return {MODEL_NAME: self._model, JSON_NAME: content.encode()}, settings

    def tokenizer_json(self) -> str:
        """See `AlbertTokenizer.tokenizer_json`. It has the same ids; `albertkit.tokenizer.tokenizer_json` lists exceptions."""
        return self._with_mask_flags(self._tokenizer_json_before_mask_flags)

    @cached_property
    def _tokenizer_json_before_mask_flags(self) -> str:
        from albertkit.tokenizer.tokenizer_json import fast_tokenizer_json

        return fast_tokenizer_json(self._model, self.text_rules)

    @cached_property
    def _json_comparison(self) -> ReaderComparison:
        """Compare `tokenizer.json` on hard lines, without the spaces between morphemes."""
        from tokenizers import Tokenizer

        reader = Tokenizer.from_str(self._tokenizer_json_before_mask_flags)
        return compare_reader(
            JSON_NAME,
            self,
            [*self.lines_that_json_may_misread(), *self.runs_that_json_may_cut_otherwise()],
            lambda line: self._ids_of_prepared_text(rules.apply(self.text_rules, line)),
            lambda line: reader.encode(line, add_special_tokens=False).ids,
            is_own=True,
        )

    def lines_that_json_may_misread(self) -> list[str]:
        """Return texts on which `tokenizer.json` may differ from the model: general ones, then the vocabulary's own."""
        from albertkit.tokenizer.tokenizer_json import lines_that_json_may_misread

        return lines_that_json_may_misread(self._model, self.text_rules)

    def runs_that_json_may_cut_otherwise(self) -> list[str]:
        """Return runs of one character that `tokenizer.json` may cut in another order: see `tokenizer_json`."""
        from albertkit.tokenizer.tokenizer_json import runs_that_json_may_cut_otherwise

        return runs_that_json_may_cut_otherwise(self._model)

    def write_piece_listing(self, folder: StrPath) -> None:
        """Write `spiece.vocab`: a token and its score a line, as SentencePiece's trainer writes it. Nothing reads it."""
        with atomic_file(Path(folder) / LISTING_NAME, "w") as stream:
            stream.writelines(
                f"{piece}\t{score:g}\n" for piece, score, _ in read_facts(self._model).pieces
            )

    # --- encoding ---------------------------------------------------------------------------------

    def encode_batch(self, texts: Sequence[str], num_threads: int = 0) -> RaggedIds:
        """See `AlbertTokenizer.encode_batch`."""
        if self.analyser:
            texts = [self.prepared(text) for text in texts]
        return self._batch.encode(texts, num_threads)

    @property
    def model(self) -> bytes:
        """Return the content of the model file."""
        return self._model

    def prepared(self, text: str) -> str:
        """Return the input of SentencePiece: the text after its rules, with spaces between morphemes if there is an analyser."""
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

        The span of a word's first piece includes the white space before it, as in SentencePiece and
        transformers. A character that becomes several pieces (a ligature) is in the span of each of
        them.
        """
        aligned = rules.align(self.text_rules, text)
        if self.analyser:
            aligned = with_spaces(aligned, find_analyser(self.analyser).boundaries(aligned.text))
        if not aligned.text:
            return [], []
        encoded = self._processor.encode(aligned.text, return_type="offset_mapping")
        ids = encoded["ids"]
        offsets = encoded["offsets"]
        if not self._with_digit_comma.isdisjoint(ids):
            new_ids: list[int] = []
            new_offsets: list[tuple[int, int]] = []
            for piece_id, piece, (start, end) in zip(ids, encoded["pieces"], offsets, strict=True):
                if piece_id not in self._with_digit_comma:
                    new_ids.append(piece_id)
                    new_offsets.append((start, end))
                    continue
                row, widths = self._split_digit_comma_into_ids_and_widths(piece_id, piece)
                piece_ends = [max(start, end - sum(widths[n + 1 :])) for n in range(len(widths))]
                new_ids += row
                new_offsets += zip([start, *piece_ends[:-1]], piece_ends, strict=True)
            ids = new_ids
            offsets = new_offsets
        starts = aligned.starts
        ends = aligned.ends
        spans = []
        for first, last in offsets:
            if last > first:
                spans.append((starts[first], ends[last - 1]))
            else:  # a piece that stands for nothing in the text: the space before it
                position = starts[first] if first < len(starts) else ends[-1]
                spans.append((position, position))
        return list(ids), spans

    def pieces(self, text: str) -> list[str]:
        """See `AlbertTokenizer.pieces`."""
        tokens: list[str] = []
        for piece in self._processor.encode(self.prepared(text), out_type=str):
            ids, _ = self._split_digit_comma_into_ids_and_widths(
                self._processor.piece_to_id(piece), piece
            )
            tokens.extend([piece] if len(ids) == 1 else [self._piece(i) for i in ids])
        return tokens

    # --- the vocabulary ---------------------------------------------------------------------------

    def special_ids(self) -> list[int]:
        """Return the ids of control and unknown tokens, ascending."""
        # Asking 30,000 pieces takes 5 ms; `decode` asks every time.
        if not hasattr(self, "_special_ids"):
            is_control = self._processor.is_control
            is_unknown = self._processor.is_unknown
            self._special_ids = [
                i for i in range(self.vocab_size) if is_control(i) or is_unknown(i)
            ]
        return list(self._special_ids)

    def required_ids(self) -> list[int]:
        """See `AlbertTokenizer.required_ids`."""
        # The token of the lowest score is one of them: unknown characters score 10 less than it.
        facts = read_facts(self._model)
        if facts.model_type != UNIGRAM:
            raise self._not_divisible_error()
        scores = {
            token_id: score
            for token_id, (_, score, kind) in enumerate(facts.pieces)
            if kind == NORMAL
        }
        characters = {
            piece for piece in facts.pieces_of_type(NORMAL, USER_DEFINED) if len(piece) == 1
        }
        required = {min(scores, key=scores.__getitem__)}
        for token_id, (piece, _, kind) in enumerate(facts.pieces):
            if kind == UNUSED or (
                kind == NORMAL and len(piece) > 1 and characters.issuperset(piece)
            ):
                continue
            required.add(token_id)
        return sorted(required)

    def used_ids(self, texts: Sequence[str]) -> np.ndarray:
        """See `AlbertTokenizer.used_ids`. Tokens that the rule of digit and comma takes apart were chosen before it."""
        ids = super().used_ids(texts)
        if self._digit_comma is None:
            return ids
        before_rule = BatchEncoder(self._processor, self._model, self.text_rules, None)
        if self.analyser:
            texts = [self.prepared(text) for text in texts]
        return np.concatenate([ids, before_rule.encode(texts, 0).ids])

    def with_tokens(self, ids: Sequence[int]) -> "SentencePieceTokenizer":
        """See `AlbertTokenizer.with_tokens`."""
        facts = read_facts(self._model)
        if facts.model_type != UNIGRAM:
            raise self._not_divisible_error()
        model = rebuild_model(self._model, [facts.pieces[token_id] for token_id in ids])
        return SentencePieceTokenizer(model, self.text_rules, analyser=self.analyser)

    # --- inside -----------------------------------------------------------------------------------

    def _encode_plain(self, text: str) -> list[int]:
        return self._ids_of_prepared_text(self.prepared(text))

    def _ids_of_prepared_text(self, prepared: str) -> list[int]:
        """Return the ids of a prepared text."""
        ids: list[int] = self._processor.encode(prepared)
        if self._with_digit_comma.isdisjoint(ids):
            return ids
        return [
            new for old in ids for new in self._split_digit_comma_into_ids_and_widths(old, "")[0]
        ]

    def _decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        """Return the inverse of SentencePiece's encoding."""
        parts: list[str] = []
        special = set(self.special_ids())
        for is_special, run in itertools.groupby(ids, key=special.__contains__):
            members = list(run)
            # SentencePiece drops the space before the first piece of what it is given
            if not is_special:
                space = " " if parts and self._piece(members[0]).startswith(SPACE) else ""
                parts.append(space + self._processor.decode(members))
            elif not skip_special_tokens:
                parts.extend(self._piece(i) for i in members)
        return "".join(parts)

    def _piece(self, piece_id: int) -> str:
        return self._processor.id_to_piece(piece_id)

    def _split_digit_comma_into_ids_and_widths(
        self, piece_id: int, piece: str
    ) -> tuple[list[int], list[int]]:
        """Return the ids that a piece becomes under the digit-comma rule, and their widths in characters."""
        table = self._digit_comma
        if table is None or table.counts[piece_id] == 1:
            return [piece_id], [len(piece.removeprefix(SPACE))]
        row = slice(table.starts[piece_id], table.starts[piece_id] + table.counts[piece_id])
        return table.ids[row].tolist(), table.widths[row].tolist()
