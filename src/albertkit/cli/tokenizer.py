"""`albertkit tokenizer`: train, encode, check, convert."""

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter


def train(
    files: Annotated[list[str], Parameter(consume_multiple=True)],
    /,
    *,
    out: Path,
    vocab_size: int = 30000,
    text_rules: str = "google",
    coverage: float = 0.99995,
    morphemes: Literal["none", "boundary", "spaces"] = "none",
    analyser: Literal["mecab", "kiwi"] = "mecab",
    byte_fallback: bool = False,
    split_digits: bool = False,
    reserve: int = 0,
    special_pieces: tuple[str, str, str, str, str] = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    user_defined_symbols: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    max_sentences: int = 10_000_000,
    seed: int = 0,
    format: str | None = None,
    field: str = "text",
    errors: str = "strict",
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """Train a SentencePiece unigram model with ALBERT's special ids, and measure it on lines held out.

    Parameters
    ----------
    files
        Files, globs, folders or URLs, as for `corpus build`: plain text (a sentence or paragraph a line), JSONL, Parquet,
        WikiExtractor's output, also `.gz`, `.xz` and `.zst`. One line in a hundred, at most 2,000, is kept to measure on.
    out
        Folder to write: `spiece.model`, `tokenizer.json`, `tokenizer_config.json`, and `spiece.vocab`, a list of the tokens
        and their scores.
    vocab_size
        Number of pieces, the special ones counted. 20,000 to 32,000 are usual.
    text_rules
        `google` (lower case, no accents), `google-cased`, `google-accents`, `google-cased-accents` (keep what they name),
        `multilingual` (keeps both; composes Hangul), `korean` (the same in lower case) or `none`.
    coverage
        Share of the characters that get a piece. 0.9995 for Korean, Chinese and Japanese.
    morphemes
        `boundary`: no piece crosses from one Korean morpheme to the next (the one for Korean); `spaces`: morphemes are
        separated by spaces, in every later encoding too. Both need the extra `korean`.
    analyser
        Who finds morphemes.
    byte_fallback
        Characters without a piece become the bytes of their UTF-8, not unknown.
    split_digits
        No piece holds more than one digit.
    reserve
        Unused pieces at the end, for later.
    special_pieces
        Five names, for the ids 0 to 4: padding, unknown, start, separation, mask.
    user_defined_symbols
        Tokens that are always cut out of a text as they are, for the ids from 5 on; they replace Google's
        `( ) " - . – £ €`. One that begins with a hyphen: `--user-defined-symbols=-`.
    max_sentences
        Lines to train on; of more, a sample.
    seed
        Of the samples.
    format
        `text`, `jsonl`, `parquet` or `wiki`; found out for each file if not given.
    field
        JSONL field or Parquet column that holds the text; `a.b`, or `a[].b` of every item of a list (JSONL).
    errors
        Bytes that are not UTF-8: `strict` stops and says where, `replace` goes on.
    overwrite
        Replace a tokenizer that lies in the folder.
    json
        Print one JSON object.
    """
    from albertkit.tokenizer.train import GOOGLE_SYMBOLS
    from albertkit.vocabulary.lines import TextFiles
    from albertkit.vocabulary.train import train_vocabulary

    report = train_vocabulary(
        TextFiles(files, format, field, errors), out, seed, morphemes, vocab_size=vocab_size, text_rules=text_rules,
        coverage=coverage, analyser=analyser, byte_fallback=byte_fallback, split_digits=split_digits, reserve=reserve,
        special_pieces=special_pieces, max_sentences=max_sentences, overwrite=overwrite,
        user_defined_symbols=GOOGLE_SYMBOLS if user_defined_symbols is None else user_defined_symbols, progress=not json,
    )  # fmt: skip
    if json:
        print(_dumps(report.to_dict()))
        return
    from albertkit.cli.showing_tokenizers import show_training

    show_training(report)
    for warning in report.warnings:
        print(f"warning: {warning}", file=sys.stderr)


def encode(
    file: Annotated[Path, Parameter(allow_leading_hyphen=True)] = Path("-"),
    /,
    *,
    tokenizer: Path,
    text_rules: str | None = None,
    json: bool = False,
) -> None:
    """Show the pieces and ids of each line of a text.

    Parameters
    ----------
    file
        Plain text, UTF-8, `.gz` accepted. Default: the standard input.
    tokenizer
        Folder that holds one `*.model`, a `vocab.txt`, or a `tokenizer.json`; a model's folder or a run, too.
    text_rules
        Rules other than those of a SentencePiece tokenizer: `google`, `multilingual`, `none`, …
    json
        Print a JSON object a line: `ids` and `pieces`.
    """
    from albertkit.tokenizer import AlbertTokenizer
    from albertkit.tokenizer.text_files import read_lines

    albert_tokenizer = AlbertTokenizer.from_pretrained(tokenizer, text_rules)
    for line in read_lines(file):
        ids, pieces = albert_tokenizer.encode(line), albert_tokenizer.pieces(line)
        if json:
            print(_dumps({"ids": ids, "pieces": pieces}))
        else:
            print("  ".join(f"{piece} {number}" for piece, number in zip(pieces, ids, strict=True)))
    sys.stdout.flush()


def convert(folder: Path, out: Path, /, *, text_rules: str | None = None) -> None:
    """Write a tokenizer as albertkit and transformers read it, with a `tokenizer.json` that gives the same ids.

    Parameters
    ----------
    folder
        Folder that holds one `*.model`, a `vocab.txt`, or a `tokenizer.json`; a model's folder or a run, too.
    out
        Folder to write; other files in it are left alone.
    text_rules
        Rules to give a SentencePiece tokenizer: `google`, `multilingual`, `none`, … Default: those it has.
    """
    from albertkit.tokenizer import AlbertTokenizer

    tokenizer = AlbertTokenizer.from_pretrained(folder, text_rules)
    tokenizer.save_pretrained(out)
    print(f"{tokenizer.vocab_size:,} pieces in {out} (rules: {tokenizer.text_rules})")


def check(folder: Path, /, *, json: bool = False) -> int:
    """Compare everything that reads a tokenizer's folder on hard sentences, and say what differs, why, and what to do.

    Exit status 1 if albertkit's own readings or files differ; 0 if only transformers' do.

    Parameters
    ----------
    folder
        A tokenizer's or a model's folder.
    json
        Print one JSON object.
    """
    from albertkit.tokenizer import check_tokenizer

    report = check_tokenizer(folder)
    if json:
        print(_dumps(report.to_dict()))
    else:
        from albertkit.cli.showing_tokenizers import show_check

        show_check(report)
    return 0 if report.ok else 1


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
