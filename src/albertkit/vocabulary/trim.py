"""`albertkit tokenizer trim`: the part of a vocabulary that some text uses, with the rows of its model."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from albertkit.command import takes
from albertkit.conversion.classes import check_vocabulary
from albertkit.errors import ConfigError, DataError
from albertkit.files import new_folder
from albertkit.folder_facts import FolderFacts
from albertkit.model_paths import CONFIG_FILE, local_folder
from albertkit.output.sections import Paragraph, Result, Section
from albertkit.printable import join_lines
from albertkit.tokenizer import AlbertTokenizer
from albertkit.tokenizer.check import compare_json
from albertkit.tokenizer.options import TrimOptions
from albertkit.tokenizer.readings import HARD_SENTENCES
from albertkit.tokenizer.train import tokenizer_json_section
from albertkit.vocabulary.extend import open_vocabulary_model
from albertkit.vocabulary.repair import renumber_specials
from albertkit.vocabulary.train import read_text_lines

_LINES_AT_ONCE = 10_000
_OPENED = ("albert", "bert")  # model types whose rows are cut


@dataclass
class TextChange:
    """Count what a smaller vocabulary changes in the text.

    Attributes:
        lines: Lines that are not blank.
        changed_lines: Lines that get other tokens than before.
        tokens: Tokens before.
        changed_tokens: Those among them that were left out of the vocabulary.
        unknown_before, unknown_after: Unknown tokens.
    """

    lines: int = 0
    changed_lines: int = 0
    tokens: int = 0
    changed_tokens: int = 0
    unknown_before: int = 0
    unknown_after: int = 0

    def add(
        self,
        tokenizer: AlbertTokenizer,
        trimmed: AlbertTokenizer,
        old_ids: np.ndarray,
        lines: list[str],
    ) -> None:
        """Encode lines with both, and compare the tokens of each; `old_ids` are those of the new ones."""
        before = tokenizer.encode_batch(lines)
        after = trimmed.encode_batch(lines)
        for ids, new_ids in zip(before.texts(), after.texts(), strict=True):
            self.changed_lines += not np.array_equal(ids, old_ids[new_ids])
        self.lines += len(lines)
        self.tokens += len(before.ids)
        self.changed_tokens += int(np.count_nonzero(~np.isin(before.ids, old_ids)))
        self.unknown_before += int(np.count_nonzero(before.ids == tokenizer.unk_id))
        self.unknown_after += int(np.count_nonzero(after.ids == trimmed.unk_id))


@dataclass(frozen=True)
class TrimReport(Result):
    """Result of `trim_vocabulary`.

    Attributes:
        out: The folder.
        old_size, vocab_size: Tokens before and after.
        used: Tokens of the new vocabulary that occur in the text.
        fingerprint: Of the new tokenizer.
        text: How the text is read by both.
        compared, differing: Hard sentences that were compared with `tokenizer.json`, and how many
            differ.
        model_class: The class of the model whose rows were cut; None where there was none.
        notes: What else there is to say.
    """

    out: str
    old_size: int
    vocab_size: int
    used: int
    fingerprint: str
    text: TextChange
    compared: int
    differing: int
    model_class: str | None
    notes: tuple[str, ...]

    def sections(self) -> list[Section]:
        """Return the size, how the text is read now, and the rows of the model."""
        text = self.text
        lines = [
            f"{self.vocab_size:,} tokens in {self.out}, of {self.old_size:,}; {self.used:,} occur in the text, the others are "
            "special tokens and single characters",
            f"with other tokens than before: {text.changed_lines:,} of {text.lines:,} lines "
            f"({text.changed_lines / text.lines:.2%}); {text.changed_tokens:,} of {text.tokens:,} tokens were left out "
            f"({text.changed_tokens / text.tokens:.3%})",
            f"unknown tokens in the text: {text.unknown_before:,} before, {text.unknown_after:,} now",
        ]
        if self.model_class:
            lines.append(
                f"{self.model_class}: its rows are those of the tokens before, bit for bit"
            )
        return [
            Paragraph(join_lines([*lines, *self.notes]), form="code"),
            tokenizer_json_section(self.compared, self.differing),
        ]


@takes(TrimOptions)
def trim_vocabulary(options: TrimOptions) -> TrimReport:
    """Reduce a tokenizer to the tokens that some text uses, and its model's rows with it; see `TrimOptions`.

    Raises:
        CheckpointError: unsupported, wrong-tokenizer, exists, and what opening a checkpoint raises.
        ConfigError: bad-value if `vocab_size` is too small. DataError: empty, and what reading the
            files raises.
    """
    folder = local_folder(options.tokenizer)
    out = Path(options.out)
    facts = FolderFacts.from_folder(folder)
    tokenizer: AlbertTokenizer
    notes: list[str] = []
    if facts.is_xlm_r:
        renumbering = renumber_specials(folder)
        tokenizer = renumbering.tokenizer
        rows = np.array(renumbering.old_ids)
        notes += renumbering.notes
    else:
        tokenizer = AlbertTokenizer.from_pretrained(folder)
        rows = np.arange(tokenizer.vocab_size)
    required_ids = tokenizer.required_ids()
    with new_folder(out) as target:
        # How often each token decides how the text is cut: Google's rule takes tokens apart after
        # they were chosen.
        counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
        for lines in _read_batches(options):
            counts += np.bincount(tokenizer.used_ids(lines), minlength=len(counts))
        if not counts.any():
            raise DataError(
                "empty",
                "the text has no token",
                "give files with text in the languages to keep",
            )
        old_ids = _choose_tokens(counts, required_ids, options)
        trimmed = tokenizer.with_tokens(old_ids.tolist())
        for name in ("model_max_length", "truncation_side", "padding_side", "mask_flags"):
            setattr(trimmed, name, getattr(tokenizer, name))
        # The text is read again: which tokens stay is known only when all of it was counted.
        change = TextChange()
        for lines in _read_batches(options):
            change.add(tokenizer, trimmed, old_ids, lines)
        model_class = None
        model_type = facts.model.get("model_type", "albert")
        if not (folder / CONFIG_FILE).exists():
            trimmed.save_pretrained(target)
        elif model_type not in _OPENED:
            trimmed.save_pretrained(target)
            notes.append(f"the tokenizer alone: a model of the type {model_type} is not cut")
        else:
            with open_vocabulary_model(folder) as model:
                check_vocabulary(tokenizer.vocab_size, len(model.words_VE), folder)
                # Every row goes where its token goes: the model computes for a text what it
                # computed before, if its tokens are all there.
                model.select_rows(torch.from_numpy(rows[old_ids]))
                sizes = f"from {tokenizer.vocab_size:,} tokens to {len(old_ids):,}"
                model.write(
                    target,
                    out.name,
                    trimmed,
                    f"Reduced by `albertkit tokenizer trim` {sizes}.",
                )
                model_class = model.model_class.__name__
                if model.checkpoint.kind == "BERT folder":
                    notes.append(
                        "a BERT is written as the ALBERT that computes the same, with a group for every layer"
                    )
        comparison = compare_json(target, trimmed, HARD_SENTENCES)
    return TrimReport(
        out=str(out),
        old_size=tokenizer.vocab_size,
        vocab_size=len(old_ids),
        used=int(np.count_nonzero(counts[old_ids])),
        fingerprint=trimmed.fingerprint,
        text=change,
        compared=comparison.compared,
        differing=comparison.differing,
        model_class=model_class,
        notes=tuple(notes),
    )


def _choose_tokens(counts: np.ndarray, required_ids: list[int], options: TrimOptions) -> np.ndarray:
    """Return the ids to keep, ascending: the required ones, then the most frequent ones."""
    size = len(counts) if options.vocab_size is None else options.vocab_size
    min_size = len(required_ids)
    if size < min_size:
        raise ConfigError(
            "bad-value",
            f"vocab_size is {size:,}, but special tokens and single characters alone are {min_size:,}",
            f"use --vocab-size {min_size} (vocab_size={min_size}) or more",
        )
    # The required ones come first, however rare they are; of equally frequent ones those with the
    # lower ids, which have the higher scores.
    ranks = counts.copy()
    ranks[required_ids] = counts.max() + 1
    ids = np.argsort(-ranks, kind="stable")[:size]
    return np.sort(ids[ranks[ids] >= options.min_count])


def _read_batches(options: TrimOptions) -> Iterator[list[str]]:
    lines = read_text_lines(options.files, options)
    return iter(lambda: list(islice(lines, _LINES_AT_ONCE)), [])
