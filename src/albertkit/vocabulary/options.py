"""Options of `albertkit tokenizer extend` and `repair`."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal

from albertkit.command import SEVERAL
from albertkit.tokenizer.options import ReadingOptions, SearchSettings


@dataclass(frozen=True)
class ExtendOptions(ReadingOptions, SearchSettings):
    """Add tokens to a tokenizer for new text, and embedding rows to its model. Old ids and rows stay unchanged.

    Attributes:
        tokenizer: Folder with one `*.model`, or a run whose model has one.
        files: Text that needs new tokens; formats as for `tokenizer train`.
        out: New folder for the tokenizer, a list of its tokens (`spiece.vocab`), and with `--model` the whole checkpoint.
        model: Checkpoint trained with the tokenizer; often the same folder.
        words: Words to add in any case, separated by spaces or commas, or existing files of words, one per line.
        rows: How to initialise new embedding rows. subword-mean: mean of the rows of the old tokens that the new one replaces;
            mean: mean of all old rows; normal: random; zero; cooccurrence: from co-occurrences in the text, rotated to match the
            old rows.
        rows_from: Checkpoint trained further from this model: new tokens that it has get its rows. Rows of unrelated models do
            not fit.
        max_lines: Maximum lines to search for tokens; longer text is sampled.
        seed: Random seed for samples and random rows.
    """

    tokenizer: str | Path
    files: Annotated[Sequence[str | Path], SEVERAL]
    out: str | Path
    model: str | Path | None = None
    _: KW_ONLY
    words: Annotated[Sequence[str | Path], SEVERAL] = ()
    rows: Literal["subword-mean", "mean", "normal", "zero", "cooccurrence"] = "subword-mean"
    rows_from: str | Path | None = None
    max_lines: int = 100_000
    seed: int = 0


@dataclass(frozen=True)
class RepairOptions:
    """Renumber a model's special tokens to ALBERT's ids (0 to 4), with their embedding rows. Outputs stay the same.

    Attributes:
        model: Checkpoint folder with a `*.model`, or a tokenizer folder. Its `tokenizer_config.json` names the special tokens.
        out: New folder to write.
    """

    model: str | Path
    out: str | Path
