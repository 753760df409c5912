"""A tokenizer's folder as transformers and sentence-transformers read it, compared with `encode`."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from albertkit.files import read_json
from albertkit.frame.quiet import quiet_transformers
from albertkit.tokenizer.comparison import Comparison, compare, with_names
from albertkit.tokenizer.folder_files import CONFIG_NAME, JSON_NAME, MODEL_NAME
from albertkit.tokenizer.sentencepiece_tokenizer import SentencePieceTokenizer
from albertkit.tokenizer.tokenizer import AlbertTokenizer
from albertkit.tokenizer.wordpiece import WordPieceTokenizer

CLASSES = ("AutoTokenizer", "AlbertTokenizer", "AlbertTokenizerFast")
CLASS_READERS = tuple(f"transformers.{name}" for name in CLASSES[1:])
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
_WORDPIECE = "the class cannot read a WordPiece vocabulary; use AutoTokenizer or BertTokenizer"


def read_by_others(folder: Path, tokenizer: AlbertTokenizer, texts: Sequence[str]) -> list[Comparison]:
    """Open the folder in every way that users of transformers and sentence-transformers do.

    Returns two comparisons for each class: ids, and offsets where the class has them.
    """
    try:
        import transformers
    except ImportError:
        return [Comparison("transformers", False, skipped="transformers is not installed")]
    with quiet_transformers():
        found = []
        for name in CLASSES:
            label = f"transformers.{name}"
            if name != CLASSES[0] and isinstance(tokenizer, WordPieceTokenizer):
                found.append(Comparison(label, False, skipped=_WORDPIECE))
            elif name == CLASSES[2] and getattr(transformers, name) is transformers.AlbertTokenizer:
                found.append(Comparison(label, False, skipped="the same class as AlbertTokenizer"))
            else:
                readings = _reading(label, partial(_open, name, folder), tokenizer, texts)
                if name == CLASSES[0] and not _names_its_class(folder):
                    for difference in readings[0].differences:
                        difference.causes = ["no-configuration"]
                found += readings
        if isinstance(tokenizer, SentencePieceTokenizer):
            with tempfile.TemporaryDirectory() as copy:
                model = next(folder.glob("*.model"))
                (Path(copy) / MODEL_NAME).write_bytes(model.read_bytes())
                (Path(copy) / "config.json").write_text('{"model_type": "albert"}')
                alone = "transformers.AutoTokenizer, model alone"
                found += _reading(alone, partial(_open, CLASSES[0], Path(copy)), tokenizer, texts)
        found += _by_sentence_transformers(folder, tokenizer, texts)
    return found


def library_versions() -> dict[str, str]:
    """Return the installed versions of the libraries whose readings are compared."""
    found = {}
    for name in ("transformers", "tokenizers", "sentence-transformers"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _names_its_class(folder: Path) -> bool:
    """Return True if a file of the folder tells `AutoTokenizer` what class to load."""
    return (folder / JSON_NAME).exists() or any(
        key in read_json(folder / name)
        for name, key in ((CONFIG_NAME, "tokenizer_class"), ("config.json", "model_type"))
        if (folder / name).exists()
    )


def _open(name: str, folder: Path) -> Any:
    import transformers

    return getattr(transformers, name).from_pretrained(str(folder), local_files_only=True)


def _by_sentence_transformers(folder: Path, tokenizer: AlbertTokenizer, texts: Sequence[str]) -> list[Comparison]:
    """Compare the tokenizer of `SentenceTransformer(folder)`, which needs a model."""
    name = "sentence-transformers"
    if not any(any(folder.rglob(pattern)) for pattern in _WEIGHTS):
        return [Comparison(name, False, skipped="the folder holds no model")]
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        return [Comparison(name, False, skipped="sentence-transformers is not installed")]
    opened = partial(SentenceTransformer, str(folder), device="cpu", local_files_only=True)
    return _reading(name, lambda: opened().tokenizer, tokenizer, texts)


def _reading(
    name: str, opened: Callable[[], Any], tokenizer: AlbertTokenizer, texts: Sequence[str]
) -> list[Comparison]:
    try:
        theirs = opened()
    except Exception as error:  # whatever stops it is the finding
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        comparison = Comparison(name, False, 1)
        comparison.add("reading the folder", [], [reason], "unreadable")
        return [comparison]
    named = with_names(tokenizer)

    def ours(text: str) -> list[int]:
        return [tokenizer.cls_id, *named(text), tokenizer.sep_id]

    comparison = compare(name, False, tokenizer, texts, lambda text: theirs(text)["input_ids"], ours)
    if isinstance(tokenizer, SentencePieceTokenizer) and tokenizer.analyser:
        for difference in comparison.differences:
            if theirs(tokenizer.prepared(difference.text))["input_ids"] == ours(difference.text):
                difference.causes = ["morpheme-spaces"]
    comparison.compared += 1
    pair = theirs("one text", "another")
    types = tokenizer("one text", "another")["token_type_ids"]
    if pair.get("token_type_ids") != types:
        comparison.add("segments of a pair", types, pair.get("token_type_ids", ["none"]), "no-segments")
    specials = {tokenizer.id_to_piece(i) for i in tokenizer.special_ids()}
    return [comparison, _offsets(f"{name}, offsets", theirs, comparison, texts, specials)]


def _offsets(name: str, theirs: Any, ids: Comparison, texts: Sequence[str], specials: set[str]) -> Comparison:
    """Find offsets of words that begin with white space, in texts whose ids agree.

    The mask takes the space before it along in every reader.
    """
    if not getattr(theirs, "is_fast", False):
        return Comparison(name, False, skipped="a class in Python has no offsets")
    differing = {difference.text for difference in ids.differences}
    comparison = Comparison(name, False)
    for text in texts:
        if text in differing:
            continue
        comparison.compared += 1
        words = [text[a:b] for a, b in theirs(text, return_offsets_mapping=True)["offset_mapping"]]
        wrong = [word for word in words if word[:1].isspace() and word.strip() not in {"", *specials}]
        if wrong:
            comparison.add(text, map(str.strip, wrong), map(repr, wrong), "space-in-offsets")
    if not comparison.compared:
        comparison.skipped = "no text has the same ids"
    return comparison
