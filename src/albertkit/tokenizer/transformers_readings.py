"""A tokenizer's folder as transformers reads it, beside what it means."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from albertkit.tokenizer.comparison import Comparison, Difference, compare, with_names
from albertkit.tokenizer.loading import MODEL_NAME
from albertkit.tokenizer.sentencepiece_tokenizer import SentencePieceTokenizer
from albertkit.tokenizer.tokenizer import AlbertTokenizer


def read_by_transformers(folder: Path, tokenizer: AlbertTokenizer, texts: Sequence[str]) -> list[Comparison]:
    """Compare what transformers makes of the folder, and of its SentencePiece model alone, with what it means.

    Args:
        folder: The folder.
        tokenizer: Read from it.
        texts: On which.
    """
    names = [f"transformers, {folder.name or folder}"]
    if isinstance(tokenizer, SentencePieceTokenizer):
        names.append("transformers, of the model file alone")
    try:
        import transformers
    except ImportError:
        return [Comparison(name, False, skipped="transformers is not installed") for name in names]
    shown = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # sentences longer than 512 pieces are no news
    try:
        found = [_reading(names[0], folder, tokenizer, texts)]
        if len(names) > 1:
            with tempfile.TemporaryDirectory() as alone:
                model = next(folder.glob("*.model"))
                (Path(alone) / MODEL_NAME).write_bytes(model.read_bytes())
                (Path(alone) / "config.json").write_text('{"model_type": "albert"}')
                found.append(_reading(names[1], Path(alone), tokenizer, texts))
    finally:
        transformers.logging.set_verbosity(shown)
    return found


def _reading(name: str, folder: Path, tokenizer: AlbertTokenizer, texts: Sequence[str]) -> Comparison:
    from transformers import AutoTokenizer

    try:
        theirs = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # whatever stops it is the finding
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return Comparison(name, False, 1, [Difference("reading the folder", [], [reason], ["unreadable"])])
    named = with_names(tokenizer)
    comparison = compare(
        name, False, tokenizer, texts, lambda text: theirs(text)["input_ids"],
        lambda text: [tokenizer.cls_id, *named(text), tokenizer.sep_id],
    )  # fmt: skip
    pair = theirs("one text", "another")
    ours = tokenizer("one text", "another")["token_type_ids"]
    if pair.get("token_type_ids") != ours:
        found = [str(i) for i in pair.get("token_type_ids", ["none"])]
        comparison.differences.append(Difference("segments of a pair", [str(i) for i in ours], found, ["no-segments"]))
    return comparison
