"""Options of `albertkit tokenizer extend` and `repair`."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from albertkit.frame.command import SEVERAL
from albertkit.tokenizer.options import SearchSettings


@dataclass(frozen=True)
class ExtendOptions(SearchSettings):
    """Add tokens to a tokenizer for text it does not know, and rows for them to its model. Old ids and rows stay.

    Attributes:
        tokenizer: Folder that holds one `*.model`; or a run, whose model has one.
        files: Text that needs the tokens, as for `tokenizer train`.
        out: Folder to write: the tokenizer, a list of its tokens (`spiece.vocab`), and with `--model` the whole checkpoint.
            Not an existing one.
        model: Checkpoint that was trained with the tokenizer; often the same folder.
        words: File of words to add in any case, one a line. In Python also the words.
        rows: How to initialise new embedding rows. subword-mean: mean of the rows of the old tokens that made up the new one;
            mean: mean of all old rows; normal: random; zero; cooccurrence: from co-occurrences in the text, rotated to match
            the old rows.
        rows_from: Checkpoint that was trained on from this one: tokens that it has take over its rows. Rows of unrelated
            models mean nothing to each other.
        max_lines: Lines to find tokens in; of more, a sample.
        seed: Draws the samples and random rows.
        format: `text`, `jsonl`, `parquet` or `wiki`; found out for each file if not given.
        field: JSONL field or Parquet column that holds the text; `a.b`, or `a[].b` of every item of a list (JSONL).
        errors: Bytes that are not UTF-8: `strict` stops and says where, `replace` goes on.
    """

    tokenizer: str | Path
    files: Annotated[Sequence[str | Path], SEVERAL]
    out: str | Path
    model: str | Path | None = None
    _: KW_ONLY
    words: Any = None
    rows: Literal["subword-mean", "mean", "normal", "zero", "cooccurrence"] = "subword-mean"
    rows_from: str | Path | None = None
    max_lines: int = 100_000
    seed: int = 0
    format: str | None = None
    field: str = "text"
    errors: str = "strict"


@dataclass(frozen=True)
class RepairOptions:
    """Renumber a model whose special ids are not ALBERT's (0 to 4), with its rows; what it computes stays the same.

    Attributes:
        model: Checkpoint folder with a `*.model`, or the folder of a tokenizer alone. `tokenizer_config.json` says what its
            special tokens are called.
        out: Folder to write. Not an existing one.
    """

    model: str | Path
    out: str | Path
