"""Options of `albertkit tokenizer train`, `encode`, `convert` and `check`, and of their functions."""

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal

from albertkit.frame.command import SEVERAL
from albertkit.tokenizer.sentencepiece_model import SPECIAL_PIECES

# Google's list for 30k-clean. No string, since SentencePiece reads a string as CSV, in which the quotation mark opens a
# field and the rest becomes one token (0.2.3).
GOOGLE_SYMBOLS = ("(", ")", '"', "-", ".", "–", "£", "€")


@dataclass(frozen=True)
class TokenizerSettings:
    """Settings of a new tokenizer, besides the text and the size.

    Attributes:
        text_rules: `google` (lower case, no accents), `google-cased`, `google-accents`, `google-cased-accents` (keep what they
            name), `multilingual` (keeps both; composes Hangul), `korean` (the same in lower case) or `none`.
        coverage: Share of the characters that get a token, 0.98 to 1. 0.9995 for Korean, Chinese and Japanese.
        morphemes: `boundary`: no token crosses from one Korean morpheme to the next (the one for Korean: encoding needs no
            analyser); `spaces`: morphemes are separated by spaces, in every later encoding too, which transformers does not
            do. Both need the extra `korean`.
        analyser: Finds the morphemes.
        byte_fallback: Encode characters without a token as the bytes of their UTF-8 (256 tokens), not as unknown.
        split_digits: No token holds more than one digit.
        reserve: Unused tokens at the end, for later.
        special_pieces: Five names, for the ids 0 to 4: padding, unknown, start, separation, mask.
        user_defined_symbols: Tokens that are always cut out of a text as they are, for the ids from 5 on; they replace
            Google's `( ) " - . – £ €`. One that begins with a hyphen: `--user-defined-symbols=-`.
        max_sentences: Lines to train on; of more, a sample drawn evenly.
        seed: Draws the samples.
        num_threads: Threads to use; 0: one a core.
        overwrite: Replace a tokenizer that lies in the folder.
    """

    _: KW_ONLY
    text_rules: str = "google"
    coverage: float = 0.99995
    morphemes: Literal["none", "boundary", "spaces"] = "none"
    analyser: Literal["mecab", "kiwi"] = "mecab"
    byte_fallback: bool = False
    split_digits: bool = False
    reserve: int = 0
    special_pieces: tuple[str, str, str, str, str] = SPECIAL_PIECES
    user_defined_symbols: Annotated[Sequence[str], SEVERAL] = GOOGLE_SYMBOLS
    max_sentences: int = 10_000_000
    seed: int = 0
    num_threads: int = 0
    overwrite: bool = False


@dataclass(frozen=True)
class TrainTokenizerOptions(TokenizerSettings):
    """Train a tokenizer on texts and write its folder.

    Attributes:
        texts: Texts, or paths of text files (UTF-8, a sentence or paragraph a line, `.gz` accepted).
        out: Folder to write. Nothing is written unless training succeeds.
        vocab_size: Number of tokens, the special ones and the symbols counted.
    """

    texts: Iterable[str | Path]
    out: str | Path
    vocab_size: int = 30000


@dataclass(frozen=True)
class TrainVocabularyOptions(TokenizerSettings):
    """Train a SentencePiece unigram model with ALBERT's special ids, and measure it on lines held out.

    Attributes:
        files: Files, globs, folders or URLs, as for `corpus build`: plain text (a sentence or paragraph a line), JSONL, Parquet,
            WikiExtractor's output, also `.gz`, `.xz` and `.zst`. One line in a hundred, at most 2,000, is kept to measure on.
        out: Folder to write: `spiece.model`, `tokenizer.json`, `tokenizer_config.json`, and `spiece.vocab`, a list of the
            tokens and their scores.
        vocab_size: Number of tokens, the special ones counted. 20,000 to 32,000 are usual.
        format: `text`, `jsonl`, `parquet` or `wiki`; found out for each file if not given.
        field: JSONL field or Parquet column that holds the text; `a.b`, or `a[].b` of every item of a list (JSONL).
        errors: Bytes that are not UTF-8: `strict` stops and says where, `replace` goes on.
        progress: Show it on stderr.
    """

    files: Annotated[Sequence[str | Path], SEVERAL]
    out: str | Path
    _: KW_ONLY
    vocab_size: int = 30000
    format: str | None = None
    field: str = "text"
    errors: str = "strict"
    progress: bool = False


@dataclass(frozen=True)
class EncodeLinesOptions:
    """Show the tokens and ids of each line of a text.

    Attributes:
        file: Plain text, UTF-8, `.gz` accepted. Default: the standard input.
        tokenizer: Folder that holds one `*.model`, a `vocab.txt`, or a `tokenizer.json`; a model's folder or a run, too.
        text_rules: Rules other than those of a SentencePiece tokenizer: `google`, `multilingual`, `none`, …
        json: Print a JSON object a line: `ids` and `pieces`.
    """

    file: Path = Path("-")
    _: KW_ONLY
    tokenizer: Path
    text_rules: str | None = None
    json: bool = False


@dataclass(frozen=True)
class ConvertTokenizerOptions:
    """Write a tokenizer as albertkit and transformers read it, with a `tokenizer.json` that gives the same ids.

    Attributes:
        folder: Folder that holds one `*.model`, a `vocab.txt`, or a `tokenizer.json`; a model's folder or a run, too.
        target: Folder to write; other files in it are left alone.
        text_rules: Rules to give a SentencePiece tokenizer: `google`, `multilingual`, `none`, … Default: those it has.
    """

    folder: Path
    target: Path
    _: KW_ONLY
    text_rules: str | None = None


@dataclass(frozen=True)
class CheckOptions:
    """Compare everything that reads a tokenizer's folder on hard sentences, and say what differs, why, and what to do.

    Exit status 1 if albertkit's own readings or files differ; 0 if only transformers' do.

    Attributes:
        folder: A tokenizer's or a model's folder.
    """

    folder: Path


@dataclass(frozen=True)
class SearchSettings:
    """Options that decide which tokens a vocabulary gets for text that it does not know.

    Attributes:
        max_new: Tokens to add at most: missing characters, given words, then as many found ones as there is room for. Those
            that fill up to a multiple are not counted.
        min_count: Occurrences in the text that a found token needs.
        coverage: Share of the text's characters that shall have a token; missing ones are added first.
        analyser: No token that is found crosses from one Korean morpheme to the next. Default: any may, which makes texts
            shorter.
        recut: Also add tokens whose characters the tokenizer knows all, as for a field of its own language. They change how
            texts are cut that it knew already.
        multiple_of: Fill the vocabulary up to a multiple of this with unused tokens, 8 for fast matrix products.
    """

    _: KW_ONLY
    max_new: int = 8000
    min_count: int = 5
    coverage: float = 0.9995
    analyser: Literal["mecab", "kiwi"] | None = None
    recut: bool = False
    multiple_of: int = 1
