"""`albertkit tokenizer`: train and encode."""

import json
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def train(
    files: Annotated[list[Path], Parameter(consume_multiple=True)],
    /,
    *,
    out: Path,
    vocab_size: int = 30000,
    text_rules: str = "google",
    coverage: float = 0.99995,
    max_sentences: int = 10_000_000,
    seed: int = 0,
    json: bool = False,
) -> None:
    """Train a SentencePiece unigram model with ALBERT's special ids.

    Parameters
    ----------
    files
        Plain text, UTF-8, a sentence or paragraph a line; `.gz` accepted.
    out
        Folder to write: `spiece.model`, `tokenizer.json`, `tokenizer_config.json`.
    vocab_size
        Number of pieces, the special ones counted.
    text_rules
        `google` (lower case, no accents), `multilingual` (keeps both) or `none`.
    coverage
        Share of the characters that get a piece.
    max_sentences
        Lines to train on; of more, a sample.
    seed
        Of the sample.
    json
        Print one JSON object.
    """
    from albertkit.tokenizer import train_tokenizer

    tokenizer = train_tokenizer(files, out, vocab_size, coverage, max_sentences, seed, text_rules=text_rules)
    report = {
        "out": str(out),
        "vocab_size": tokenizer.vocab_size,
        "text_rules": text_rules,
        "fingerprint": tokenizer.fingerprint,
    }
    print(_dumps(report) if json else f"{tokenizer.vocab_size:,} pieces in {out} (text rules: {text_rules})")


def encode(
    file: Path = Path("-"),
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
        Folder that holds one `*.model`.
    text_rules
        Rules other than those of the tokenizer: `google`, `multilingual` or `none`.
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


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
