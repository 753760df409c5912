"""Read the tokenizer that lies beside a model, and make sure that it is the model's own."""

import logging
from pathlib import Path

from albertkit.config import AlbertConfig
from albertkit.errors import CheckpointError
from albertkit.files import changed_files
from albertkit.tokenizer import AlbertTokenizer

# Rows beyond the tokenizer's tokens: vocabularies are filled up to a multiple of 8, 64 or 128 for speed.
_SPARE = 127
_VOCABULARIES = ("*.model", "vocab*.txt", "tokenizer.json")

logger = logging.getLogger("albertkit")


def check_vocabulary(tokens: int, rows: int, folder: str | Path = "") -> None:
    """Refuse a tokenizer with more tokens than its model has rows; `folder` is the folder that messages name."""
    if tokens > rows:
        fact = f"the tokenizer{f' in `{folder}`' if folder else ''} has {tokens:,} tokens, the model {rows:,}"
        hint = "use the tokenizer that the model was trained with: its folder should hold it"
        raise CheckpointError("wrong-tokenizer", fact, hint)


def own_tokenizer(folder: Path, config: AlbertConfig, source: str | Path | None = None) -> AlbertTokenizer:
    """Read the tokenizer of a model's folder; `source` is what the user named, for messages."""
    tokenizer = AlbertTokenizer.from_pretrained(folder)
    check_own(tokenizer, folder, config, source)
    return tokenizer


def check_own(tokenizer: AlbertTokenizer, folder: Path, config: AlbertConfig, source: str | Path | None = None) -> None:
    """Make sure that a folder's tokenizer is its model's own; many spare rows are logged as a warning."""
    tokens = tokenizer.vocab_size
    rows = config.vocab_size
    name = source or folder
    check_vocabulary(tokens, rows, name)
    if changed := changed_files(folder, _VOCABULARIES):
        fact = f"`{folder / changed[0]}` is not the file that was saved with the weights: its sha256 is not that in SHA256SUMS"
        hint = f"put the model's own {changed[0]} back; or, if it was replaced on purpose: rm {folder / 'SHA256SUMS'}"
        raise CheckpointError("wrong-tokenizer", fact, hint)
    if rows - tokens > _SPARE:
        fact = f"the tokenizer in `{name}` has {tokens:,} tokens, the model rows for {rows:,}"
        logger.warning("%s: is it the one that the model was trained with?", fact)
