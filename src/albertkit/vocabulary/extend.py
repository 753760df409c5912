"""`albertkit tokenizer extend`: more pieces for a tokenizer, and in the same step the rows that its model needs for them."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from albertkit.checkpoints.folder import NEW_ROWS_FROM, PROVENANCE
from albertkit.errors import CheckpointError, ConfigError, near_miss
from albertkit.files import read_json, write_json
from albertkit.model_folder import local_folder
from albertkit.tokenizer import AlbertTokenizer
from albertkit.tokenizer.extend import Extension, extend_tokenizer
from albertkit.tokenizer.loading import find_model
from albertkit.tokenizer.report import TextFit, measure_fit
from albertkit.tokenizer.sampling import even_sample
from albertkit.tokenizer.segmentation import UnigramPieces
from albertkit.tokenizer.sentencepiece_model import read_facts
from albertkit.tokenizer.sentencepiece_tokenizer import SentencePieceTokenizer
from albertkit.vocabulary.agreement import check_agreement
from albertkit.vocabulary.lines import HoldingOut, TextFiles
from albertkit.vocabulary.model import VocabularyModel, new_folder, open_model
from albertkit.vocabulary.rows import ROWS, RowMaker, new_biases


@dataclass(frozen=True)
class ExtensionReport:
    """An extended tokenizer, and its model if there is one.

    Attributes:
        out: The folder.
        old_size, vocab_size: Pieces before and after.
        characters, words, found, unused, left_out: See `Extension`.
        fingerprint: Of the new tokenizer.
        before, after: How the two fit lines that no piece was made of; None if the text was too short to hold any out.
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
    fingerprint: str
    before: TextFit | None
    after: TextFit | None
    compared: int
    differing: int
    model_class: str | None
    rows: str | None
    taken_over: int

    def to_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
        return asdict(self)


def extend_vocabulary(
    source: str | os.PathLike[str],
    files: TextFiles,
    out: str | os.PathLike[str],
    model: str | os.PathLike[str] | None = None,
    *,
    rows: str = "subword-mean",
    rows_from: str | os.PathLike[str] | None = None,
    max_lines: int = 100_000,
    seed: int = 0,
    **settings: Any,
) -> ExtensionReport:
    """Add pieces to a tokenizer, grow its model with it, and write both as one folder that everybody loads.

    Old pieces keep their ids, old rows their bits.

    Args:
        source: Folder of the tokenizer, with a SentencePiece model.
        files: Text that needs more pieces.
        out: Folder to write; it must not exist, or be empty.
        model: A checkpoint with that tokenizer, of any kind that `convert` reads. Default: the tokenizer alone.
        rows: How the rows of new pieces are made, one of `albertkit.vocabulary.rows.ROWS`.
        rows_from: A checkpoint with a tokenizer whose rows are taken over for pieces that both have. Sensible if it was trained
            on from the same weights: rows of unrelated models mean nothing to each other.
        max_lines: Lines to find pieces in; of more, a sample.
        seed: Of that sample, of the lines held out and of what is random in the rows.
        **settings: Of `extend_tokenizer`: `max_new`, `min_count`, `words`, …

    Returns:
        The report.

    Raises:
        CheckpointError: unsupported-tokenizer, wrong-tokenizer, folder-not-empty, vocab-mismatch, and what opening a checkpoint
        raises.
        ConfigError: bad-argument, vocab-too-small. DataError: empty-input, and what reading the files raises.
        MachineError: verification-failed.
    """
    if rows not in ROWS:
        raise ConfigError("bad-argument", f"there are no rows `{rows}`", near_miss(rows, ROWS))
    tokenizer = sentencepiece_tokenizer(source)
    if model is not None and Path(model).is_dir():
        model = local_folder(model)
    if model is not None:
        _check_own_tokenizer(Path(model), tokenizer)
    reading = HoldingOut(files.lines(), seed)
    with new_folder(Path(out)) as folder:
        sample = even_sample(reading, max_lines, seed)
        extension = extend_tokenizer(tokenizer, sample, **settings)
        extended, lines = extension.tokenizer, reading.held_out
        model_class, taken = None, 0
        if model is None:
            extended.save_pretrained(folder)
        else:
            with open_model(Path(model)) as grown:
                taken = _grow(grown, tokenizer, extension, rows, rows_from, seed)
                model_class = grown.model_class.__name__
                grown.write(folder, Path(out).name, extended, _change(extension, rows))
            origin = Path(model) / PROVENANCE
            before = read_json(origin) if origin.exists() else {}
            write_json(folder / PROVENANCE, before | {NEW_ROWS_FROM: extension.first_id})
        extended.write_listing(folder)
        compared, differing = check_agreement(folder, extended, lines or sample[:1000])
    return ExtensionReport(
        out=str(out), old_size=tokenizer.vocab_size, vocab_size=extended.vocab_size, characters=extension.characters,
        words=extension.words, found=extension.found, unused=extension.unused, left_out=extension.left_out,
        fingerprint=extended.fingerprint, before=measure_fit(tokenizer, lines) if lines else None,
        after=measure_fit(extended, lines) if lines else None, compared=compared, differing=differing,
        model_class=model_class, rows=rows if model_class else None, taken_over=taken,
    )  # fmt: skip


def sentencepiece_tokenizer(folder: str | os.PathLike[str]) -> SentencePieceTokenizer:
    """The tokenizer of a folder, if it is a SentencePiece model.

    Raises:
        CheckpointError: unsupported-tokenizer, and what `AlbertTokenizer.from_pretrained` raises.
    """
    tokenizer = AlbertTokenizer.from_pretrained(folder)
    if not isinstance(tokenizer, SentencePieceTokenizer):
        raise CheckpointError(
            "unsupported-tokenizer",
            f"`{folder}` holds a {type(tokenizer).__name__}; only SentencePiece models can get more pieces",
            "use a folder with a spiece.model",
        )
    return tokenizer


def _check_own_tokenizer(model: Path, tokenizer: SentencePieceTokenizer) -> None:
    """A model that brings another vocabulary would get rows that mean other pieces."""
    file = find_model(model)
    if file is not None and read_facts(file.read_bytes()).pieces != read_facts(tokenizer.model).pieces:
        raise CheckpointError(
            "wrong-tokenizer",
            f"the model in `{model}` lies beside other pieces, in `{file.name}`, than those to extend",
            f"extend its own: `albertkit tokenizer extend {model} TEXT --model {model} --out DIR`",
        )


def _grow(
    model: VocabularyModel,
    old: SentencePieceTokenizer,
    extension: Extension,
    rows: str,
    rows_from: str | os.PathLike[str] | None,
    seed: int,
) -> int:
    """Put rows for the new pieces after the old ones. Returns how many came from another model."""
    words_VE, bias_V = model.words_VE, model.bias_V
    size = old.vocab_size
    if len(words_VE) < size:
        raise CheckpointError(
            "vocab-mismatch",
            f"the tokenizer has {size:,} pieces, the model rows for {len(words_VE):,}",
            "use the tokenizer that the model was trained with",
        )
    maker = RowMaker(words_VE, old, extension.tokenizer, torch.Generator().manual_seed(seed))
    new = maker.make(rows, model.found.config.initializer_range)
    taken = 0
    if rows_from is not None:
        with open_model(Path(rows_from)) as donor:
            taken = maker.taken_over(
                new, _as_wide(donor.words_VE, words_VE, rows_from), sentencepiece_tokenizer(rows_from)
            )
    if bias_V is not None:
        facts = read_facts(old.model)
        ordinary = list(UnigramPieces(facts, old.unk_id).ids.values())
        added = new_biases(bias_V, [score for _, score, _ in facts.pieces], ordinary, extension.frequencies)
        bias_V = torch.cat([bias_V[:size], added])
    # Rows that the model has beyond its tokenizer's pieces were never used; new pieces take their places.
    model.replace(torch.cat([words_VE[:size], new]), bias_V)
    return taken


def _as_wide(donor_VE: torch.Tensor, words_VE: torch.Tensor, folder: str | os.PathLike[str]) -> torch.Tensor:
    if donor_VE.shape[1] != words_VE.shape[1]:
        raise CheckpointError(
            "vocab-mismatch",
            f"rows in `{folder}` are {donor_VE.shape[1]} wide, the model's {words_VE.shape[1]}",
            "take rows from a model of the same embedding_size",
        )
    return donor_VE


def _change(extension: Extension, rows: str) -> str:
    added = extension.tokenizer.vocab_size - extension.first_id
    return (
        f"{added:,} pieces were added to {extension.first_id:,} by `albertkit tokenizer extend` (rows: {rows}); those before "
        "keep their ids and rows. The new rows must be trained."
    )


def read_words(file: Path) -> Sequence[str]:
    """Words of a file, one a line; blank lines are passed over.

    Raises:
        DataError: not-found, bad-encoding, binary-file.
    """
    from albertkit.tokenizer.text_files import read_lines

    return [line.strip() for line in read_lines(file) if line.strip()]
