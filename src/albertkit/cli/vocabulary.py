"""`albertkit tokenizer extend` and `repair`: vocabularies that change together with their models."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter


def extend(
    tokenizer: Path,
    files: Annotated[list[str], Parameter(consume_multiple=True)],
    /,
    *,
    out: Path,
    model: Path | None = None,
    max_new: int = 8000,
    min_count: int = 5,
    words: Path | None = None,
    coverage: float = 0.9995,
    analyser: Literal["mecab", "kiwi"] | None = None,
    recut: bool = False,
    multiple_of: int = 1,
    rows: Literal["subword-mean", "mean", "normal", "zero"] = "subword-mean",
    rows_from: Path | None = None,
    max_lines: int = 100_000,
    seed: int = 0,
    format: str | None = None,
    field: str = "text",
    errors: str = "strict",
    json: bool = False,
) -> None:
    """Add pieces to a tokenizer for text it does not know, and rows for them to its model. Old ids and rows stay.

    Parameters
    ----------
    tokenizer
        Folder that holds one `*.model`; or a run, whose model has one.
    files
        Text that needs the pieces, as for `tokenizer train`.
    out
        Folder to write: the tokenizer, a list of its tokens (`spiece.vocab`), and with `--model` the whole checkpoint. Not an
        existing one.
    model
        Checkpoint that was trained with the tokenizer; often the same folder.
    max_new
        Tokens to add at most: missing characters, the words of `--words`, then as many found ones as there is room for.
        Those that fill up to `--multiple-of` are not counted.
    min_count
        How often a piece must occur in the text.
    words
        File of words to add in any case, one a line.
    coverage
        Share of the text's characters that shall have a piece; missing ones are added first.
    analyser
        No piece that is found crosses from one Korean morpheme to the next. Default: any may, which makes texts shorter.
    recut
        Also add pieces whose characters the tokenizer knows all, as for a field of its own language. They change how texts
        are cut that it knew already.
    multiple_of
        Fill the vocabulary up to a multiple of this with unused pieces, 8 for fast matrix products.
    rows
        What new rows are: the mean of the rows of the pieces that the old tokenizer made of it, of all old pieces, random as at
        the start of a training, or zero.
    rows_from
        Checkpoint that was trained on from this one: pieces that it has take over its rows.
    max_lines
        Lines to find pieces in; of more, a sample.
    seed
        Of the samples and of random rows.
    format
        `text`, `jsonl`, `parquet` or `wiki`; found out for each file if not given.
    field
        JSONL field or Parquet column that holds the text; `a.b`, or `a[].b` of every item of a list (JSONL).
    errors
        Bytes that are not UTF-8: `strict` stops and says where, `replace` goes on.
    json
        Print one JSON object.
    """
    from albertkit.cli.printing import print_result
    from albertkit.vocabulary.extend import extend_vocabulary, read_words
    from albertkit.vocabulary.lines import TextFiles

    report = extend_vocabulary(
        tokenizer, TextFiles(files, format, field, errors), out, model, rows=rows, rows_from=rows_from,
        max_lines=max_lines, seed=seed, max_new=max_new, min_count=min_count, words=read_words(words) if words else (),
        coverage=coverage, analyser=analyser, recut=recut, multiple_of=multiple_of,
    )  # fmt: skip
    if json:
        print_result(report.to_dict(), json)
        return
    from albertkit.cli.showing_tokenizers import show_extension

    show_extension(report)


def repair(model: Path, /, *, out: Path, json: bool = False) -> None:
    """Renumber a model whose special ids are not ALBERT's (0 to 4), with its rows; what it computes stays the same.

    Parameters
    ----------
    model
        Checkpoint folder with a `*.model`, or the folder of a tokenizer alone. `tokenizer_config.json` says what its special
        pieces are called.
    out
        Folder to write. Not an existing one.
    json
        Print one JSON object.
    """
    from albertkit.cli.printing import print_result
    from albertkit.vocabulary.repair import repair_vocabulary

    report = repair_vocabulary(model, out)
    if json:
        print_result(report.to_dict(), json)
        return
    from albertkit.cli.showing_tokenizers import show_repair

    show_repair(report)
