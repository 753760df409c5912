"""`fix_tokenizer`: a tokenizer of transformers that gives an ALBERT the ids it was trained on."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from albertkit.errors import CheckpointError, MissingExtraError
from albertkit.model_folder import local_folder
from albertkit.tokenizer.folder_files import find_model, read_settings
from albertkit.tokenizer.tokenizer import AlbertTokenizer

_KEPT = ("model_max_length", "padding_side", "truncation_side")  # of the tokenizer that is replaced


def fix_tokenizer(given: Any) -> Any:
    """Return transformers' tokenizer of an ALBERT with the ids, segments and offsets of the original.

    What transformers 5 reads from `spiece.model` alone, or by its class `AlbertTokenizer`, takes Hangul apart, forgets the rule
    for a digit before a comma, and gives a pair no segment ids; `albertkit tokenizer check FOLDER` shows each on your text.

    Args:
        given: A folder or `org/name` of the hub that holds `spiece.model`, or a tokenizer that transformers loaded from one;
            that one is left as it is.

    Returns:
        A `PreTrainedTokenizerFast`; `save_pretrained` writes a folder that `AutoTokenizer` reads with the same ids.

    Raises:
        CheckpointError: missing-file if the SentencePiece model is unknown, and what reading it raises.
        MissingExtraError: not-installed.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise MissingExtraError.of("transformers", "embed", "a tokenizer of transformers") from None
    folder = _folder_of(given)
    with TemporaryDirectory() as place:
        AlbertTokenizer.from_pretrained(folder, do_lower_case=_other_case(given, folder)).save_pretrained(place)
        fixed = AutoTokenizer.from_pretrained(place)
    fixed.name_or_path = str(folder)
    _add_tokens_of(given, fixed)
    for name in _KEPT:
        setattr(fixed, name, getattr(given, name, getattr(fixed, name)))
    return fixed


def _other_case(given: Any, folder: Path) -> bool | None:
    """Return the `do_lower_case` that a tokenizer was loaded with, where it is not the folder's."""
    asked = getattr(given, "init_kwargs", {}).get("do_lower_case")
    return None if asked == read_settings(folder).get("do_lower_case", True) else asked


def _add_tokens_of(given: Any, fixed: Any) -> None:
    """Give a tokenizer the tokens that its user added to another, with the same ids."""
    added = getattr(given, "added_tokens_decoder", {})
    missing = {number: token for number, token in sorted(added.items()) if number >= len(fixed)}
    for token in missing.values():
        fixed.add_tokens([token], special_tokens=token.special)
    if any(fixed.convert_tokens_to_ids(str(token)) != number for number, token in missing.items()):
        fact = f"the {len(missing)} added tokens would get other ids: {', '.join(map(str, missing.values()))[:80]}"
        raise CheckpointError("wrong-model", fact, "give the folder, then add them again: fix_tokenizer('FOLDER')")


def _folder_of(given: Any) -> Path:
    """Return the folder that holds the SentencePiece model of what was given."""
    if isinstance(given, str | Path):
        return local_folder(given, weights=False)
    if (file := getattr(given, "vocab_file", None)) and Path(file).is_file():
        return Path(file).parent
    name = getattr(given, "name_or_path", "")
    if name and find_model(folder := local_folder(name, weights=False)) is not None:
        return folder
    raise CheckpointError(
        "missing-file",
        f"this {type(given).__name__} does not say where its spiece.model is",
        "give the folder that holds it: fix_tokenizer('FOLDER')",
    )
