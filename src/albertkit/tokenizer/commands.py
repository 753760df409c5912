"""`albertkit tokenizer encode` and `convert`."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from albertkit.frame.command import takes
from albertkit.frame.result import Result
from albertkit.frame.section import Section, Text
from albertkit.tokenizer.check import CheckReport, check_tokenizer
from albertkit.tokenizer.options import CheckOptions, ConvertTokenizerOptions, EncodeLinesOptions
from albertkit.tokenizer.text_files import read_lines
from albertkit.tokenizer.tokenizer import AlbertTokenizer


@dataclass(frozen=True)
class ConvertedTokenizer(Result):
    """A tokenizer that was written in albertkit's form."""

    out: Path
    vocab_size: int
    text_rules: str

    def sections(self) -> list[Section]:
        """Return one line on the tokenizer."""
        return [Text(f"{self.vocab_size:,} tokens in {self.out} (rules: {self.text_rules})")]


@takes(EncodeLinesOptions)
def encode_lines(options: EncodeLinesOptions) -> None:
    """Print tokens and ids of each line of a text as soon as it is read."""
    tokenizer = AlbertTokenizer.from_pretrained(options.tokenizer, options.text_rules)
    for line in read_lines(options.file):
        ids, pieces = tokenizer.encode(line), tokenizer.pieces(line)
        if options.json:
            print(json.dumps({"ids": ids, "pieces": pieces}, ensure_ascii=False))
        else:
            print("  ".join(f"{piece} {number}" for piece, number in zip(pieces, ids, strict=True)))
    sys.stdout.flush()


@takes(ConvertTokenizerOptions)
def convert_tokenizer(options: ConvertTokenizerOptions) -> ConvertedTokenizer:
    """Write a tokenizer as albertkit and transformers read it."""
    tokenizer = AlbertTokenizer.from_pretrained(options.folder, options.text_rules)
    tokenizer.save_pretrained(options.target)
    return ConvertedTokenizer(options.target, tokenizer.vocab_size, tokenizer.text_rules)


@takes(CheckOptions)
def check(options: CheckOptions) -> CheckReport:
    """Compare the readers of a tokenizer's folder."""
    return check_tokenizer(options.folder)
