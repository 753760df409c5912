"""Does the `tokenizer.json` that transformers loads give the ids of the model file beside it?"""

from collections.abc import Sequence
from pathlib import Path

from albertkit.errors import MachineError
from albertkit.tokenizer.check import compare_json
from albertkit.tokenizer.sentencepiece_tokenizer import SentencePieceTokenizer

# SentencePiece adds scores in single precision, the other library in double: a line in thousands may break a tie otherwise.
_TIES = 0.001


def check_agreement(folder: Path, tokenizer: SentencePieceTokenizer, lines: Sequence[str]) -> tuple[int, int]:
    """Compare both files of a folder.

    Args:
        folder: Just written.
        tokenizer: What was written.
        lines: On which to compare.

    Returns:
        Lines compared, and how many of them differ.

    Raises:
        MachineError: verification-failed for more than one line in a thousand.
    """
    found = compare_json(folder, tokenizer, lines)
    if len(found.differences) > _TIES * len(lines):
        example = found.differences[0]
        raise MachineError(
            "verification-failed",
            f"spiece.model and tokenizer.json differ on {len(found.differences):,} of {len(lines):,} lines, first on "
            f"{example.text[:60]!r}",
            "please report this with the text",
        )
    return len(lines), len(found.differences)
