"""`albertkit tokenizer train`: a tokenizer from files of any format, and what it is worth on lines it has not seen."""

import os
from dataclasses import asdict, dataclass
from typing import Any

from albertkit.tokenizer.report import TextFit, longest_pieces, measure_fit
from albertkit.tokenizer.train import train_tokenizer
from albertkit.vocabulary.lines import HoldingOut, TextFiles
from albertkit.vocabulary.progress import TrainingProgress

_SPACES = (
    "the model expects spaces between morphemes: albertkit puts them there by {0}, which must be installed wherever a text is "
    "encoded; transformers and SentencePiece do not, and give other ids. --morphemes boundary needs nothing"
)


@dataclass(frozen=True)
class TrainingReport:
    """A trained tokenizer.

    Attributes:
        out: Its folder.
        vocab_size, text_rules, fingerprint: See `AlbertTokenizer`.
        morphemes: "none", "boundary" or "spaces".
        longest_pieces: The longest pieces.
        held_out: How it fits lines that were held out; None if the text was too short to hold any out.
        warnings: What to mind.
    """

    out: str
    vocab_size: int
    text_rules: str
    fingerprint: str
    morphemes: str
    longest_pieces: list[str]
    held_out: TextFit | None
    warnings: list[str]

    def to_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
        return asdict(self)


def train_vocabulary(
    files: TextFiles,
    out: str | os.PathLike[str],
    seed: int = 0,
    morphemes: str = "none",
    progress: bool = False,
    **settings: Any,
) -> TrainingReport:
    """Train a tokenizer on all lines of some files but one in a hundred, and measure it on those.

    Args:
        files: The text.
        out: Folder to write.
        seed: Of the sample that is trained on, and of the lines that are held out.
        morphemes: See `train_tokenizer`.
        progress: Show it on stderr.
        **settings: Others of `train_tokenizer`: `vocab_size`, `text_rules`, …

    Returns:
        The report.

    Raises:
        AlbertKitError: What `train_tokenizer` and `TextFiles.lines` raise.
    """
    with TrainingProgress(progress) as display:
        lines = HoldingOut(display.reading(files.lines()), seed)
        tokenizer = train_tokenizer(lines, out, seed=seed, morphemes=morphemes, **settings)
    return TrainingReport(
        out=str(out),
        vocab_size=tokenizer.vocab_size,
        text_rules=tokenizer.text_rules,
        fingerprint=tokenizer.fingerprint,
        morphemes=morphemes,
        longest_pieces=longest_pieces(tokenizer),
        held_out=measure_fit(tokenizer, lines.held_out) if lines.held_out else None,
        warnings=[_SPACES.format(tokenizer.analyser)] if tokenizer.analyser else [],
    )
