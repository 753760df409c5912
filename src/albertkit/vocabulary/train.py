"""`albertkit tokenizer train`: train a tokenizer on files of any format, and measure it on lines it has not seen."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from albertkit.command import takes
from albertkit.corpus.documents import read_documents
from albertkit.output.progress import ProgressBar
from albertkit.output.sections import Paragraph, Result, Section
from albertkit.tokenizer.check import compare_json
from albertkit.tokenizer.options import ReadingOptions, TrainVocabularyOptions
from albertkit.tokenizer.readings import HARD_SENTENCES
from albertkit.tokenizer.train import (
    TextFit,
    check_and_train_tokenizer,
    fit_sections,
    longest_pieces,
    measure_tokenizer_fit,
    tokenizer_json_section,
)

_HELD_OUT_SHARE = 0.01
_MAX_HELD_OUT = 2000
_UPDATE_LINES = 1000
_SPACES = (
    "the model expects spaces between morphemes: albertkit puts them there by {0}, which must be installed wherever a text is "
    "encoded; transformers and SentencePiece do not, and give other ids. --morphemes boundary needs nothing"
)


@dataclass(frozen=True)
class TrainingReport(Result):
    """Result of `train_vocabulary`.

    Attributes:
        out: Its folder.
        vocab_size, text_rules, fingerprint: See `AlbertTokenizer`.
        morphemes: "none", "boundary" or "spaces".
        longest_pieces: The longest tokens.
        held_out: How it fits lines that were held out; None if the text was too short to hold any
            out.
        compared, differing: How many hard lines and held-out lines were compared with
            `tokenizer.json`, and how many differ.
        warnings: Limits of its use.
    """

    out: str
    vocab_size: int
    text_rules: str
    fingerprint: str
    morphemes: str
    longest_pieces: list[str]
    held_out: TextFit | None
    compared: int
    differing: int
    warnings: tuple[str, ...]

    def sections(self) -> list[Section]:
        """Return the size, the longest tokens, and the fit to held-out lines."""
        return [
            Paragraph(f"{self.vocab_size:,} tokens in {self.out} (text rules: {self.text_rules})"),
            Paragraph(f"longest: {' '.join(self.longest_pieces)}"),
            *fit_sections({"held out": self.held_out}),
            tokenizer_json_section(self.compared, self.differing),
        ]


@takes(TrainVocabularyOptions)
def train_vocabulary(options: TrainVocabularyOptions) -> TrainingReport:
    """Train a tokenizer on all lines of some files but one in a hundred, and measure it on those; see `TrainVocabularyOptions`.

    Raises:
        AlbertKitError: What `train_tokenizer` and `corpus.read_documents` raise.
    """
    with ProgressBar("reading text", 0, "lines", options.progress) as progress:
        texts = read_text_lines(options.files, options)
        lines = HoldingOut(_count_lines(texts, progress), options.seed)
        tokenizer = check_and_train_tokenizer(lines, Path(options.out), options.vocab_size, options)
    comparison = compare_json(
        Path(options.out),
        tokenizer,
        [*HARD_SENTENCES, *lines.held_out],
    )
    warnings = [_SPACES.format(tokenizer.analyser)] if tokenizer.analyser else []
    if comparison.first is not None:
        warnings.append(
            f"transformers reads other ids from tokenizer.json on {comparison.differing:,} of "
            f"{comparison.compared:,} lines, such as {comparison.first.text[:60]!r}; "
            f"`albertkit tokenizer check {options.out}` shows where"
        )
    return TrainingReport(
        out=str(options.out),
        vocab_size=tokenizer.vocab_size,
        text_rules=tokenizer.text_rules,
        fingerprint=tokenizer.fingerprint,
        morphemes=options.morphemes,
        longest_pieces=longest_pieces(tokenizer),
        held_out=measure_tokenizer_fit(tokenizer, lines.held_out),
        compared=comparison.compared,
        differing=comparison.differing,
        warnings=tuple(warnings),
    )


def read_text_lines(files: Sequence[str | Path], options: ReadingOptions) -> Iterator[str]:
    """Return every line of some files that is not blank; see `corpus.documents.read_documents`."""
    for document in read_documents(files, options.format, options.field, options.errors):
        yield from filter(str.strip, document.text.split("\n"))


class HoldingOut:
    """Passes lines on, but for one in a hundred, of which it keeps a sample, complete when the others have been read."""

    def __init__(self, lines: Iterator[str], seed: int) -> None:
        self.held_out: list[str] = []
        self._lines = lines
        self._seed = seed

    def __iter__(self) -> Iterator[str]:
        # Another sequence than that of `draw_texts`, which begins with the same seed.
        draw = random.Random(f"held out {self._seed}")
        number = 0
        for line in self._lines:
            if draw.random() >= _HELD_OUT_SHARE:
                yield line
                continue
            number += 1
            if len(self.held_out) < _MAX_HELD_OUT:
                self.held_out.append(line)
            else:
                # Reservoir sampling: each line that is held out is equally likely to stay.
                index = draw.randrange(number)
                if index < _MAX_HELD_OUT:
                    self.held_out[index] = line


def _count_lines(lines: Iterator[str], progress: ProgressBar) -> Iterator[str]:
    """Pass lines on and count them; the training begins when they end."""
    number = size = 0
    for number, line in enumerate(lines, 1):
        size += len(line)
        if number % _UPDATE_LINES == 0:
            progress.update(number)
        yield line
    progress.say(f"read {number:,} lines, {size:,} characters; training")
    progress.title = "training"
    progress.update(number, f"{number:,} lines")
