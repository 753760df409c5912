"""Read the tokenizer that lies beside a model, and make sure that it is the model's own."""

import logging
from pathlib import Path

from albertkit.config import AlbertConfig
from albertkit.errors import CheckpointError
from albertkit.files import changed_files
from albertkit.tokenizer import AlbertTokenizer

# Rows beyond the tokenizer's pieces: vocabularies are filled up to a multiple of 8, 64 or 128 for speed.
_SPARE = 127
_VOCABULARIES = ("*.model", "vocab*.txt", "tokenizer.json")

logger = logging.getLogger("albertkit")


def own_tokenizer(folder: Path, config: AlbertConfig, source: str | Path | None = None) -> AlbertTokenizer:
    """Read the tokenizer of a model's folder.

    Args:
        folder: The checkpoint folder.
        config: Of the model.
        source: What the user named, for messages. Default: the folder.

    Raises:
        CheckpointError: vocab-mismatch if the tokenizer has more pieces than the model has rows; wrong-tokenizer if its file
        is another one than was saved with the weights, by SHA256SUMS; and what `AlbertTokenizer.from_pretrained` raises.
    """
    tokenizer = AlbertTokenizer.from_pretrained(folder)
    check_own(tokenizer, folder, config, source)
    return tokenizer


def check_own(tokenizer: AlbertTokenizer, folder: Path, config: AlbertConfig, source: str | Path | None = None) -> None:
    """Make sure that a folder's tokenizer is its model's own; many spare rows are logged as a warning.

    Args:
        tokenizer: Read from the folder.
        folder, config, source: As `own_tokenizer`.

    Raises:
        CheckpointError: vocab-mismatch, wrong-tokenizer.
    """
    pieces, rows, name = tokenizer.vocab_size, config.vocab_size, source or folder
    if pieces > rows:
        raise CheckpointError(
            "vocab-mismatch", f"the tokenizer in `{name}` has {pieces:,} pieces, the model {rows:,}",
            "put the tokenizer that the model was trained with into its folder",
        )  # fmt: skip
    if changed := changed_files(folder, _VOCABULARIES):
        raise CheckpointError(
            "wrong-tokenizer",
            f"`{folder / changed[0]}` is not the file that was saved with the weights: its sha256 is not that in SHA256SUMS",
            f"put the model's own {changed[0]} back; or, if it was replaced on purpose: rm {folder / 'SHA256SUMS'}",
        )
    if rows - pieces > _SPARE:
        logger.warning(
            "the tokenizer in `%s` has %s pieces, the model rows for %s: is it the one that the model was trained with?",
            name, f"{pieces:,}", f"{rows:,}",
        )  # fmt: skip
