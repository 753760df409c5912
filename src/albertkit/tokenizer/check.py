"""`tokenizer check`: compare albertkit's ids with those of `tokenizer.json` and AutoTokenizer. `tokenizer convert`, `encode`."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeGuard

from albertkit.command import takes
from albertkit.errors import CheckpointError, first_line, requires_package
from albertkit.files import StrPath, check_folder_name
from albertkit.model_paths import local_folder
from albertkit.output.progress import quiet_transformers
from albertkit.output.sections import Cell, Paragraph, Result, Section, TableSection
from albertkit.printable import escape_json, escape_line
from albertkit.tokenizer.files import JSON_NAME, find_sentencepiece_model, read_settings
from albertkit.tokenizer.options import CheckOptions, ConvertTokenizerOptions, EncodeLinesOptions
from albertkit.tokenizer.readings import (
    HARD_SENTENCES,
    FirstDifference,
    ReaderComparison,
    compare_reader,
)
from albertkit.tokenizer.sentencepiece import SentencePieceTokenizer
from albertkit.tokenizer.texts import read_lines
from albertkit.tokenizer.tokenizer import AlbertTokenizer

# Of the tokenizer that is replaced
_COPIED_SETTINGS = ("model_max_length", "padding_side", "truncation_side")
_DEFAULT_FLAGS = {"do_lower_case": True, "keep_accents": False}  # transformers' `AlbertTokenizer`


def fix_tokenizer(source: Any) -> Any:
    """Return transformers' tokenizer of an ALBERT with the ids, segments and offsets of the original.

    What transformers 5 reads from `spiece.model` alone, or by its class `AlbertTokenizer`, takes
    Hangul apart, forgets the rule for a digit before a comma, and gives a pair no segment ids;
    `albertkit tokenizer check FOLDER` shows an example.

    Args:
        source: A folder or `org/name` of the hub that holds `spiece.model`, or a tokenizer that
            transformers loaded from one; that one is left as it is.

    Returns:
        A `PreTrainedTokenizerFast`; `save_pretrained` writes a folder that `AutoTokenizer` reads
        with the same ids.

    Raises:
        CheckpointError: missing-file if the SentencePiece model is unknown, not-expressible if
            transformers cannot read as it does, and what reading it raises.
        MissingExtraError: not-installed.
    """
    with requires_package("transformers", "embed", "a tokenizer of transformers"):
        from transformers import AutoTokenizer
    file = getattr(source, "vocab_file", None)
    name = getattr(source, "name_or_path", "")
    folder = None
    if isinstance(source, str | Path):
        folder = local_folder(source, weights=False)
    elif file and Path(file).is_file():
        folder = Path(file).parent
    elif name:
        folder = local_folder(name, weights=False)
        folder = folder if find_sentencepiece_model(folder) is not None else None
    if folder is None:
        raise CheckpointError(
            "missing-file",
            f"this {type(source).__name__} does not say where its spiece.model is",
            "give the folder that holds it: fix_tokenizer('FOLDER')",
        )
    # Flags of the text rules that the tokenizer was loaded with, where they are not the folder's.
    settings = read_settings(folder)
    loaded_flags = getattr(source, "init_kwargs", {})
    flags = {}
    for flag, default in _DEFAULT_FLAGS.items():
        if loaded_flags.get(flag) not in (None, settings.get(flag, default)):
            flags[flag] = loaded_flags[flag]
    with TemporaryDirectory() as new_folder:
        tokenizer = AlbertTokenizer.from_pretrained(folder, **flags)
        tokenizer.tokenizer_json()  # or an error that says why there can be none
        tokenizer.save_pretrained(new_folder)
        fixed = AutoTokenizer.from_pretrained(new_folder)
    fixed.name_or_path = str(folder)
    # Tokens that the user added keep their ids.
    ids = getattr(source, "added_tokens_decoder", {})
    missing_tokens = {
        token_id: token for token_id, token in sorted(ids.items()) if token_id >= len(fixed)
    }
    for token in missing_tokens.values():
        fixed.add_tokens([token], special_tokens=token.special)
    if any(
        fixed.convert_tokens_to_ids(str(token)) != token_id
        for token_id, token in missing_tokens.items()
    ):
        names = ", ".join(map(str, missing_tokens.values()))[:80]
        fact = f"the {len(missing_tokens)} added tokens would get other ids: {names}"
        raise CheckpointError(
            "wrong-model",
            fact,
            "give the folder, then add them again: fix_tokenizer('FOLDER')",
        )
    for name in _COPIED_SETTINGS:
        setattr(fixed, name, getattr(source, name, getattr(fixed, name)))
    return fixed


AUTO_NAME = "transformers.AutoTokenizer"
_ADVICE = (
    "open a folder that albertkit wrote (albertkit tokenizer convert {folder} NEW) with transformers.AutoTokenizer; "
    "encode with albertkit what differs there, too: tokenizer.json cannot express it"
)
_MORPHEME_ADVICE = (
    "the vocabulary needs spaces between morphemes, which only albertkit inserts: encode with albertkit, "
    "or train a tokenizer with --morphemes boundary"
)


@dataclass
class TokenizerCheckReport(Result):
    """Report of `check_tokenizer`.

    Attributes:
        folder: The folder that was checked.
        kind: Class of the tokenizer.
        text_rules, vocab_size, fingerprint: See `AlbertTokenizer`.
        comparisons: One for each reader.
        versions: Installed versions of the libraries that were compared.
        advice: Advice where a reader gives other ids; empty if none does.
    """

    folder: str
    kind: str
    text_rules: str
    vocab_size: int
    fingerprint: str
    comparisons: list[ReaderComparison]
    versions: dict[str, str]
    advice: str

    @property
    def ok(self) -> bool:
        """Return True if the files that albertkit wrote give its ids."""
        return not any(comparison.own and comparison.differing for comparison in self.comparisons)

    @property
    def exit_status(self) -> int:
        """Return 1 if a file that albertkit wrote gives other ids."""
        return 0 if self.ok else 1

    def to_dict(self) -> dict[str, Any]:
        """Return all fields and `ok`, for JSON."""
        return {"ok": self.ok, **asdict(self)}

    def sections(self) -> list[Section]:
        """Return the readers that were compared, the first text that each reads differently, and the advice."""
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        title = f"{self.folder}  {self.kind}, rules {self.text_rules}, {self.vocab_size:,} tokens, {self.fingerprint[:12]}"
        rows = []
        for comparison in self.comparisons:
            count = f"{comparison.compared - comparison.differing} of {comparison.compared}"
            cell = Cell(count, "good")
            if comparison.skipped:
                cell = Cell(f"not compared: {comparison.skipped}", "muted")
            elif comparison.differing:
                cell = Cell(count, "bad" if comparison.own else "warning")
            rows.append([comparison.name, cell])
        sections: list[Section] = [
            Paragraph(versions, title, "muted"),
            TableSection(["reader", "the same"], rows),
        ]
        for comparison in self.comparisons:
            if comparison.first is not None:
                ours, theirs = comparison.first.differing_excerpts()
                text = repr(comparison.first.text)[:76]
                row = [text, Cell(ours[:90], "good"), Cell(theirs[:90], "warning")]
                note = f"the first of {comparison.differing:,} texts that differ"
                sections.append(
                    TableSection(["text", "ours", "theirs"], [row], comparison.name, note)
                )
        if self.advice:
            sections.append(Paragraph(f"hint: {self.advice}"))
        verdict = Paragraph("what albertkit wrote gives the same ids")
        if not self.ok:
            verdict = Paragraph("what albertkit wrote gives other ids", tone="bad")
        return [*sections, verdict]


def check_tokenizer(
    folder: StrPath, sentences: Sequence[str] | None = None
) -> TokenizerCheckReport:
    """Compare albertkit's ids with those of `tokenizer.json` and of transformers' AutoTokenizer.

    Args:
        folder: A checkpoint or tokenizer folder.
        sentences: Texts. Default: hard sentences, and those that a save of the tokenizer compares.
    """
    path = local_folder(folder, weights=False)
    tokenizer = AlbertTokenizer.from_pretrained(path)
    texts = list(HARD_SENTENCES if sentences is None else sentences)
    runs: list[str] = []
    if sentences is None and isinstance(tokenizer, SentencePieceTokenizer):
        texts = list(dict.fromkeys([*texts, *tokenizer.lines_that_json_may_misread()]))
        runs = tokenizer.runs_that_json_may_cut_otherwise()
    comparisons = [
        compare_json(path, tokenizer, texts),
        *compare_auto_tokenizer(path, tokenizer, texts),
    ]
    # No fault of the file, which cannot round as SentencePiece does
    if runs and (path / JSON_NAME).exists():
        comparisons.append(
            replace(
                compare_json(path, tokenizer, runs),
                name=f"{JSON_NAME}, runs of a character",
                own=False,
            )
        )
    advice = ""
    if any(comparison.differing for comparison in comparisons):
        advice = (
            _MORPHEME_ADVICE if _has_morpheme_analyser(tokenizer) else _ADVICE.format(folder=folder)
        )
    versions = {}
    for name in ("transformers", "tokenizers"):
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return TokenizerCheckReport(
        folder=str(path),
        kind=type(tokenizer).__name__,
        text_rules=tokenizer.text_rules,
        vocab_size=tokenizer.vocab_size,
        fingerprint=tokenizer.fingerprint,
        comparisons=comparisons,
        versions=versions,
        advice=advice,
    )


def compare_json(
    folder: Path,
    tokenizer: AlbertTokenizer,
    texts: Sequence[str],
) -> ReaderComparison:
    """Compare a folder's `tokenizer.json`, as the library under transformers reads it, with its tokenizer."""
    is_own = "text_rules" in read_settings(folder)
    name = JSON_NAME if is_own else f"{JSON_NAME}, not written by albertkit"
    if not (folder / JSON_NAME).exists():
        try:
            tokenizer.tokenizer_json()
            reason = "there is none; `save_pretrained` writes one"
        except CheckpointError as error:
            reason = f"there is none: {error.message}"
        return ReaderComparison(name, is_own, skipped=reason)
    from tokenizers import Tokenizer

    try:
        reader = Tokenizer.from_file(str(folder / JSON_NAME))
    except Exception as error:  # the library raises nothing more particular
        return _unreadable_comparison(name, is_own, error)
    reader.no_padding()
    reader.no_truncation()

    def encode_as_json(text: str) -> list[int]:
        if _has_morpheme_analyser(tokenizer):  # the library knows none
            text = tokenizer.prepared(text)
        return reader.encode(text, add_special_tokens=False).ids

    return compare_reader(
        name,
        tokenizer,
        texts,
        _encode_with_names(tokenizer),
        encode_as_json,
        is_own,
    )


def compare_auto_tokenizer(
    folder: Path,
    tokenizer: AlbertTokenizer,
    texts: Sequence[str],
) -> list[ReaderComparison]:
    """Compare ids of texts and segment ids of a pair with transformers' AutoTokenizer."""
    try:
        from transformers import AutoTokenizer
    except ImportError:
        return [ReaderComparison(AUTO_NAME, skipped="transformers is not installed")]
    encode = _encode_with_names(tokenizer)
    with quiet_transformers():
        try:
            reader = AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # any failure of transformers is a result of the check
            return [_unreadable_comparison(AUTO_NAME, False, error)]
        ids = compare_reader(
            AUTO_NAME,
            tokenizer,
            texts,
            lambda text: [tokenizer.cls_id, *encode(text), tokenizer.sep_id],
            lambda text: reader(text)["input_ids"],
        )
        pair = ("one text", "another")
        our_segments = list(map(str, tokenizer(*pair)["token_type_ids"]))
        their_segments = list(map(str, reader(*pair).get("token_type_ids", [])))
    segments = ReaderComparison(f"{AUTO_NAME}, segments of a pair", compared=1)
    if our_segments != their_segments:
        segments.differing = 1
        segments.first = FirstDifference(" | ".join(pair), our_segments, their_segments or ["none"])
    return [ids, segments]


def _unreadable_comparison(name: str, is_own: bool, error: Exception) -> ReaderComparison:
    difference = FirstDifference("reading the folder", [], [first_line(error)])
    return ReaderComparison(name, is_own, 1, 1, difference)


def _has_morpheme_analyser(tokenizer: AlbertTokenizer) -> TypeGuard[SentencePieceTokenizer]:
    return isinstance(tokenizer, SentencePieceTokenizer) and tokenizer.analyser is not None


def _encode_with_names(tokenizer: AlbertTokenizer) -> Callable[[str], list[int]]:
    """Return an `encode` that reads names of special tokens as their ids, as every reader but albertkit's does."""
    special_ids = {
        tokenizer.id_to_piece(token_id): token_id for token_id in tokenizer.special_ids()
    }
    names = re.compile("(" + "|".join(map(re.escape, special_ids)) + ")")

    def encode(text: str) -> list[int]:
        ids: list[int] = []
        for part in names.split(text):
            ids += [special_ids[part]] if part in special_ids else tokenizer.encode(part)
        return ids

    return encode


@dataclass(frozen=True)
class ConvertedTokenizer(Result):
    """A tokenizer that was written in albertkit's form."""

    out: Path
    vocab_size: int
    text_rules: str

    def sections(self) -> list[Section]:
        """Return one line on the tokenizer."""
        return [Paragraph(f"{self.vocab_size:,} tokens in {self.out} (rules: {self.text_rules})")]


@takes(EncodeLinesOptions)
def encode_lines(options: EncodeLinesOptions) -> None:
    """Print tokens and ids of each line of a text as soon as it is read."""
    tokenizer = AlbertTokenizer.from_pretrained(options.tokenizer, options.text_rules)
    for line in read_lines(options.file):
        ids = tokenizer.encode(line)
        pieces = tokenizer.pieces(line)
        if options.json:
            print(escape_json(json.dumps({"ids": ids, "pieces": pieces}, ensure_ascii=False)))
        else:
            tokens = [f"{piece} {number}" for piece, number in zip(pieces, ids, strict=True)]
            print(escape_line("  ".join(tokens)))
    sys.stdout.flush()


@takes(ConvertTokenizerOptions)
def convert_tokenizer(options: ConvertTokenizerOptions) -> ConvertedTokenizer:
    """Write a tokenizer as albertkit and transformers read it."""
    check_folder_name(options.target)
    tokenizer = AlbertTokenizer.from_pretrained(options.folder, options.text_rules)
    tokenizer.save_pretrained(options.target)
    return ConvertedTokenizer(options.target, tokenizer.vocab_size, tokenizer.text_rules)


@takes(CheckOptions)
def run_tokenizer_check(options: CheckOptions) -> TokenizerCheckReport:
    """Compare the readers of a tokenizer's folder."""
    return check_tokenizer(options.folder)
