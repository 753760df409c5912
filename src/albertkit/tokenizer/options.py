"""Options of the commands `albertkit tokenizer …`, and of their functions."""

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal

from albertkit.command import SEVERAL
from albertkit.tokenizer.sentencepiece_model import SPECIAL_PIECES
from albertkit.validation import NotNegative, Positive, Range

# Google's list for 30k-clean. No string, since SentencePiece reads a string as CSV, in which the
# quotation mark opens a field and the rest becomes one token (0.2.3).
GOOGLE_SYMBOLS = ("(", ")", '"', "-", ".", "–", "£", "€")


@dataclass(frozen=True)
class TokenizerSettings:
    """Settings of a new tokenizer, other than text and size.

    Attributes:
        text_rules: Text normalisation: `google` (lower case, no accents), `google-cased`,
            `google-accents`, `google-cased-accents` (keep what they name), `multilingual` (keeps
            both; composes Hangul), `korean` (same in lower case) or `none`.
        coverage: Share of the text's characters that get a token, 0.98 to 1. Use 0.9995 for Korean,
            Chinese and Japanese.
        morphemes: Korean morphemes: `boundary`: no token crosses a morpheme boundary (recommended
            for Korean; encoding needs no analyser); `spaces`: insert spaces between morphemes, also
            in every later encoding, which transformers does not do. Both need the extra `korean`.
        analyser: Morphological analyser.
        byte_fallback: Encode characters without a token as UTF-8 bytes (256 tokens) instead of
            unknown.
        split_digits: Split numbers into single digits.
        reserve: Number of unused tokens to add at the end, for later use.
        special_pieces: Five words, the special tokens for the ids 0 to 4: padding, unknown, start,
            separation, mask. For example `--special-pieces [PAD] [UNK] [CLS] [SEP] [MASK]`.
        user_defined_symbols: Tokens that are never split, for the ids from 5 on; they replace
            Google's `( ) " - . – £ €`. For one that begins with a hyphen:
            `--user-defined-symbols=-`.
        max_sentences: Maximum lines to train on; larger texts are sampled uniformly.
        seed: Random seed for samples.
        num_threads: Number of threads; 0: one per core.
        overwrite: Replace a tokenizer in the folder.
    """

    _: KW_ONLY
    text_rules: str = "google"
    coverage: Annotated[float, Range(0.98, 1)] = 0.99995  # SentencePiece takes no other
    morphemes: Literal["none", "boundary", "spaces"] = "none"
    analyser: Literal["mecab", "kiwi"] = "mecab"
    byte_fallback: bool = False
    split_digits: bool = False
    reserve: NotNegative = 0
    special_pieces: tuple[str, str, str, str, str] = SPECIAL_PIECES
    user_defined_symbols: Annotated[Sequence[str], SEVERAL] = GOOGLE_SYMBOLS
    max_sentences: Positive = 10_000_000
    seed: int = 0
    num_threads: int = 0
    overwrite: bool = False


@dataclass(frozen=True)
class TrainTokenizerOptions(TokenizerSettings):
    """Train a tokenizer on texts and write its folder.

    Attributes:
        texts: Texts, or paths of text files (UTF-8, a sentence or paragraph per line, `.gz`
            accepted).
        out: Folder to write. Nothing is written if training fails.
        vocab_size: Vocabulary size, including special tokens and symbols.
    """

    texts: Iterable[str | Path]
    out: str | Path
    vocab_size: int = 30000


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """Options of reading text files.

    Attributes:
        format: Input format: `text`, `jsonl`, `csv`, `tsv`, `parquet` or `wiki`. Default: detected
            for each file; name `csv` and `tsv`, which are refused otherwise.
        field: JSON field, or column of a table, with the text. `a.b` for nested fields, `a[].b` for
            every item of a list (JSON).
        errors: How to treat bytes that are not UTF-8: `strict` stops and reports the position,
            `replace` replaces them.
    """

    format: Literal["text", "jsonl", "csv", "tsv", "parquet", "wiki"] | None = None
    field: str = "text"
    errors: Literal["strict", "replace"] = "strict"


@dataclass(frozen=True)
class TrainVocabularyOptions(ReadingOptions, TokenizerSettings):
    """Train a SentencePiece unigram model with ALBERT's special ids, and evaluate it on held-out lines.

    Attributes:
        files: Files, globs, folders or URLs, as for `corpus build`: plain text (a sentence or
            paragraph per line), JSONL, Parquet, WikiExtractor output; also `.gz`, `.xz` and `.zst`.
            One line in a hundred, at most 2,000, is held out.
        out: Folder to write: `spiece.model`, `tokenizer.json`, `tokenizer_config.json` and
            `spiece.vocab` (tokens with scores).
        vocab_size: Vocabulary size, including special tokens. 20,000 to 32,000 are usual.
        progress: Show progress on stderr.
    """

    files: Annotated[Sequence[str | Path], SEVERAL]
    out: str | Path
    _: KW_ONLY
    vocab_size: int = 30000
    progress: bool = False


@dataclass(frozen=True)
class EncodeLinesOptions:
    """Print the tokens and ids of each line of a text.

    Attributes:
        file: Plain text, UTF-8, `.gz` accepted. Default: standard input.
        tokenizer: Folder with one `*.model`, a `vocab.txt` or a `tokenizer.json`; also a model
            folder or a run.
        text_rules: Text normalisation in place of a SentencePiece tokenizer's own: `google`,
            `multilingual`, `none`, …
        json: Print one JSON object per line: `ids` and `pieces`.
    """

    file: Path = Path("-")
    _: KW_ONLY
    tokenizer: Path
    text_rules: str | None = None
    json: bool = False


@dataclass(frozen=True)
class ConvertTokenizerOptions:
    """Convert a tokenizer for albertkit and transformers, with a `tokenizer.json` that gives the same ids.

    Attributes:
        folder: Folder with one `*.model`, a `vocab.txt` or a `tokenizer.json`; also a model folder
            or a run.
        target: Folder to write; other files in it are kept.
        text_rules: Text normalisation of the SentencePiece output: `google`, `multilingual`,
            `none`, … Default: unchanged.
    """

    folder: Path
    target: Path
    _: KW_ONLY
    text_rules: str | None = None


@dataclass(frozen=True)
class CheckOptions:
    """Compare token ids of albertkit, `tokenizer.json` and transformers' AutoTokenizer on hard sentences.

    The exit status is 1 if a `tokenizer.json` that albertkit wrote gives other ids, 0 if only
    foreign files do.

    Attributes:
        folder: Folder of a tokenizer or model.
    """

    folder: Path


@dataclass(frozen=True)
class SearchSettings:
    """Options that decide which tokens to add to a vocabulary for new text.

    Attributes:
        max_new: Maximum tokens to add: missing characters first, then given words, then tokens
            found in the text. Tokens that fill up to a multiple do not count.
        min_count: Minimum occurrences in the text of a token to add.
        coverage: Share of the text's characters that must have a token; missing ones are added
            first.
        analyser: Korean morphological analyser: no added token crosses a morpheme boundary.
            Default: none, which makes encoded texts shorter.
        recut: Also add tokens of characters that the tokenizer knows, for example for a domain in
            the same language. Known texts may be tokenized differently.
        multiple_of: Fill the vocabulary with unused tokens to a multiple of this; 8 for fast matrix
            products.
    """

    _: KW_ONLY
    max_new: Positive = 8000
    min_count: Positive = 5
    coverage: Annotated[float, Range(above=0, maximum=1)] = 0.9995
    analyser: Literal["mecab", "kiwi"] | None = None
    recut: bool = False
    multiple_of: Positive = 1


@dataclass(frozen=True)
class ExtendOptions(ReadingOptions, SearchSettings):
    """Add tokens to a tokenizer for new text, and embedding rows to its model. Old ids and rows stay unchanged.

    Attributes:
        tokenizer: Folder with one `*.model`, or a run whose model has one.
        files: Text that needs new tokens; formats as for `tokenizer train`.
        out: New folder for the tokenizer, a list of its tokens (`spiece.vocab`), and with `--model`
            the whole checkpoint.
        model: Checkpoint trained with the tokenizer; often the same folder.
        words: Words to add in any case, separated by spaces or commas, or existing files of words,
            one per line.
        rows: How to initialise new embedding rows. subword-mean: mean of the rows of the old tokens
            that the new one replaces; mean: mean of all old rows; normal: random; zero;
            cooccurrence: from co-occurrences in the text, rotated to match the old rows.
        rows_from: Checkpoint trained further from this model: new tokens that it has get its rows.
            Rows of unrelated models do not fit.
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
        model: Checkpoint folder with a `*.model`, or a tokenizer folder. Its
            `tokenizer_config.json` names the special tokens.
        out: New folder to write.
    """

    model: str | Path
    out: str | Path


@dataclass(frozen=True)
class TrimOptions(ReadingOptions):
    """Reduce a tokenizer to the tokens that some text uses, and its model's rows with it: smaller, with the same outputs.

    Attributes:
        tokenizer: Checkpoint folder of an ALBERT or a BERT, a run, org/name of the hub, or the
            folder of a tokenizer: unigram SentencePiece, also by XLM-R's ids, or WordPiece.
        files: Text in the languages to keep; formats as for `tokenizer train`. It is read twice.
        out: New folder for the tokenizer and, if there is one, the model.
        vocab_size: Maximum vocabulary size: the most frequent tokens are kept. Default: all that
            occur.
        min_count: Minimum occurrences in the text of a token to keep. Special tokens and single
            characters are kept in any case, so that no known text becomes unknown.
    """

    tokenizer: str | Path
    files: Annotated[Sequence[str | Path], SEVERAL]
    out: str | Path
    _: KW_ONLY
    vocab_size: Positive | None = None
    min_count: Positive = 1
