"""`albertkit tokenizer extend`: more tokens for a tokenizer, and in the same step the rows that its model needs for them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from albertkit.conversion.own_tokenizer import check_vocabulary
from albertkit.errors import CheckpointError, listed
from albertkit.files import read_json, write_json
from albertkit.frame.command import takes
from albertkit.frame.result import Result
from albertkit.frame.section import Section, Text
from albertkit.model.folder import NEW_ROWS_FROM, PROVENANCE
from albertkit.model_folder import local_folder
from albertkit.tokenizer import AlbertTokenizer
from albertkit.tokenizer.check import compare_json
from albertkit.tokenizer.extend import Extension, UnigramPieces, extend_tokenizer
from albertkit.tokenizer.folder_files import find_model
from albertkit.tokenizer.report import TextFit, fit_sections, measure_fit, reading_section
from albertkit.tokenizer.sentencepiece_model import read_facts
from albertkit.tokenizer.sentencepiece_tokenizer import SentencePieceTokenizer
from albertkit.tokenizer.text_files import even_sample, read_lines
from albertkit.vocabulary.model import VocabularyModel, new_folder, open_model
from albertkit.vocabulary.options import ExtendOptions
from albertkit.vocabulary.rows import RowMaker, new_biases
from albertkit.vocabulary.train import HoldingOut, read_text


@dataclass(frozen=True)
class ExtensionReport(Result):
    """Result of `extend_vocabulary`.

    Attributes:
        out: The folder.
        old_size, vocab_size: Tokens before and after.
        characters, words, found, unused, left_out: See `Extension`.
        requested_words: Words that were given, those of files included.
        fingerprint: Of the new tokenizer.
        before, after: How the two fit held-out lines; None if the text was too short to hold any out.
        compared, differing: Of those lines (of others, if there are none), how many were compared with `tokenizer.json`, and
            how many differ.
        model_class: The class of the model; None without one.
        rows: How its new rows were made.
        taken_over: How many of them came from another model.
    """

    out: str
    old_size: int
    vocab_size: int
    characters: int
    words: int
    found: int
    unused: int
    left_out: dict[str, list[str]]
    requested_words: list[str]
    fingerprint: str
    before: TextFit | None
    after: TextFit | None
    compared: int
    differing: int
    model_class: str | None
    rows: str | None
    taken_over: int

    def sections(self) -> list[Section]:
        """Return what is new, what was left out, the rows of the model, and how both vocabularies fit the text."""
        counts = f"{self.characters:,} characters, {self.words:,} given, {self.found:,} found, {self.unused:,} unused"
        lines = [f"{self.vocab_size:,} tokens in {self.out}, {self.old_size:,} of them as before", f"new: {counts}"]
        if self.requested_words:
            lines.append(f"given: {listed(self.requested_words)}")
        lines += [f"left out, {reason}: {' '.join(words)}" for reason, words in self.left_out.items()]
        if self.model_class:
            other = f", {self.taken_over:,} from another model" if self.taken_over else ""
            lines.append(
                f"{self.model_class} with rows for them ({self.rows}{other}); old rows are the same bit for bit"
            )
        return [
            Text("\n".join(lines)),
            *fit_sections({"before": self.before, "after": self.after}),
            reading_section(self.compared, self.differing),
        ]


@takes(ExtendOptions)
def extend_vocabulary(options: ExtendOptions) -> ExtensionReport:
    """Add tokens to a tokenizer, grow its model with it, and write both as one folder; see `ExtendOptions`.

    Old tokens keep their ids, old rows their bits.

    Raises:
        CheckpointError: unsupported, wrong-tokenizer, exists, corrupt, and what opening a checkpoint raises.
        ConfigError: bad-value, unknown-name. DataError: empty, and what reading the files raises.
        MachineError: internal-error.
    """
    tokenizer, out = sentencepiece_tokenizer(options.tokenizer), Path(options.out)
    model = None if options.model is None else Path(options.model)
    if model is not None:
        model = local_folder(model) if model.is_dir() else model
        _check_own_tokenizer(model, tokenizer)
    words = _read_words(options.words)
    reading = HoldingOut(read_text(options.files, options.format, options.field, options.errors), options.seed)
    with new_folder(out) as folder:
        sample = even_sample(reading, options.max_lines, options.seed)
        extension = extend_tokenizer(tokenizer, sample, options, words)
        extended, lines = extension.tokenizer, reading.held_out
        model_class, taken = None, 0
        if model is None:
            extended.save_pretrained(folder)
        else:
            with open_model(model) as grown:
                taken = _grow(grown, tokenizer, extension, options, sample)
                model_class = grown.model_class.__name__
                grown.write(folder, out.name, extended, _change(extension, options.rows))
            origin = model / PROVENANCE
            before = read_json(origin) if origin.exists() else {}
            write_json(folder / PROVENANCE, before | {NEW_ROWS_FROM: extension.first_id})
        extended.write_listing(folder)
        comparison = compare_json(folder, extended, lines or sample[:1000])
    return ExtensionReport(
        out=str(out),
        old_size=tokenizer.vocab_size,
        vocab_size=extended.vocab_size,
        characters=extension.characters,
        words=extension.words,
        found=extension.found,
        unused=extension.unused,
        left_out=extension.left_out,
        requested_words=words,
        fingerprint=extended.fingerprint,
        before=measure_fit(tokenizer, lines) if lines else None,
        after=measure_fit(extended, lines) if lines else None,
        compared=comparison.compared,
        differing=comparison.differing,
        model_class=model_class,
        rows=options.rows if model_class else None,
        taken_over=taken,
    )


def sentencepiece_tokenizer(folder: str | os.PathLike[str]) -> SentencePieceTokenizer:
    """Return the tokenizer of a folder, if it is a SentencePiece model."""
    tokenizer = AlbertTokenizer.from_pretrained(folder)
    if not isinstance(tokenizer, SentencePieceTokenizer):
        raise CheckpointError(
            "unsupported",
            f"`{folder}` holds a {type(tokenizer).__name__}; only SentencePiece models can get more tokens",
            "use a folder with a spiece.model",
        )
    return tokenizer


def _check_own_tokenizer(model: Path, tokenizer: SentencePieceTokenizer) -> None:
    """Refuse a model with another vocabulary: its rows mean other tokens."""
    file = find_model(model)
    if file is not None and read_facts(file.read_bytes()).pieces != read_facts(tokenizer.model).pieces:
        raise CheckpointError(
            "wrong-tokenizer",
            f"the model in `{model}` has other tokens, in `{file.name}`, than those to extend",
            f"extend its own: `albertkit tokenizer extend {model} TEXT --model {model} --out DIR`",
        )


def _grow(
    model: VocabularyModel,
    old: SentencePieceTokenizer,
    extension: Extension,
    options: ExtendOptions,
    texts: Sequence[str],
) -> int:
    """Put rows for the new tokens after the old ones. Returns how many came from another model."""
    words_VE, bias_V = model.words_VE, model.bias_V
    size = old.vocab_size
    check_vocabulary(size, len(words_VE))
    if not words_VE.isfinite().all():
        raise CheckpointError(
            "corrupt", "the model's word embeddings are not finite", "its weights are broken: copy them again"
        )
    maker = RowMaker(words_VE, old, extension.tokenizer, torch.Generator().manual_seed(options.seed))
    new = maker.make(options.rows, model.found.config.initializer_range, texts)
    taken = 0
    if options.rows_from is not None:
        with open_model(Path(options.rows_from)) as donor:
            if donor.words_VE.shape[1] != words_VE.shape[1]:
                raise CheckpointError(
                    "wrong-tokenizer",
                    f"rows in `{options.rows_from}` are {donor.words_VE.shape[1]} wide, the model's {words_VE.shape[1]}",
                    "take rows from a model of the same embedding_size",
                )
            taken = maker.taken_over(new, donor.words_VE, sentencepiece_tokenizer(options.rows_from))
    if bias_V is not None:
        facts = read_facts(old.model)
        ordinary = list(UnigramPieces(facts, old.unk_id).ids.values())
        added = new_biases(bias_V, [score for _, score, _ in facts.pieces], ordinary, extension.frequencies)
        bias_V = torch.cat([bias_V[:size], added])
    # Rows that the model has beyond its tokenizer's tokens were never used; new tokens take their places.
    model.replace(torch.cat([words_VE[:size], new]), bias_V)
    return taken


def _change(extension: Extension, rows: str) -> str:
    added = extension.tokenizer.vocab_size - extension.first_id
    return (
        f"{added:,} tokens were added to {extension.first_id:,} by `albertkit tokenizer extend` (rows: {rows}); those before "
        "keep their ids and rows. The new rows must be trained."
    )


def _read_words(words: str | Path | Sequence[str | Path] | None) -> list[str]:
    """Return the words of a list, in which a file stands for its lines and a comma separates words.

    A file is one that exists, a `Path`, an address, or a name in a folder that exists: misspelt, it is no word.
    """
    read: list[str] = []
    for word in [words] if isinstance(words, str | Path) else words or ():
        folder = os.path.dirname(word)
        in_a_folder = bool(folder) and os.path.isdir(folder)
        if isinstance(word, Path) or os.path.isfile(word) or in_a_folder or "://" in word:
            read += [line.strip() for line in read_lines(Path(word)) if line.strip()]
        else:
            read += map(str.strip, str(word).split(",")) if word else [""]
    return read
