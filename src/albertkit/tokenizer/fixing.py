"""`fix_tokenizer`: a tokenizer of transformers that gives an ALBERT the ids it was trained on."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from albertkit.errors import CheckpointError, MissingExtraError
from albertkit.model_folder import local_folder
from albertkit.tokenizer.folder_files import find_model, read_settings
from albertkit.tokenizer.tokenizer import AlbertTokenizer

_KEPT = ("model_max_length", "padding_side", "truncation_side")  # of the tokenizer that is replaced
_DEFAULT_FLAGS = {"do_lower_case": True, "keep_accents": False}  # transformers' `AlbertTokenizer`


def fix_tokenizer(given: Any) -> Any:
    """Return transformers' tokenizer of an ALBERT with the ids, segments and offsets of the original.

    What transformers 5 reads from `spiece.model` alone, or by its class `AlbertTokenizer`, takes Hangul apart, forgets the rule
    for a digit before a comma, and gives a pair no segment ids; `albertkit tokenizer check FOLDER` shows an example.

    Args:
        given: A folder or `org/name` of the hub that holds `spiece.model`, or a tokenizer that transformers loaded from one;
            that one is left as it is.

    Returns:
        A `PreTrainedTokenizerFast`; `save_pretrained` writes a folder that `AutoTokenizer` reads with the same ids.

    Raises:
        CheckpointError: missing-file if the SentencePiece model is unknown, not-expressible if transformers cannot read as it
            does, and what reading it raises.
        MissingExtraError: not-installed.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise MissingExtraError.of("transformers", "embed", "a tokenizer of transformers") from None
    folder = _folder_of(given)
    with TemporaryDirectory() as place:
        tokenizer = AlbertTokenizer.from_pretrained(folder, **_other_flags(given, folder))
        tokenizer.tokenizer_json()  # or an error that says why there can be none
        tokenizer.save_pretrained(place)
        fixed = AutoTokenizer.from_pretrained(place)
    fixed.name_or_path = str(folder)
    _add_tokens_of(given, fixed)
    for name in _KEPT:
        setattr(fixed, name, getattr(given, name, getattr(fixed, name)))
    return fixed


def _other_flags(given: Any, folder: Path) -> dict[str, Any]:
    """Return the flags of the text rules that a tokenizer was loaded with, where they are not the folder's."""
    settings, flags = read_settings(folder), getattr(given, "init_kwargs", {})
    usual = {flag: settings.get(flag, default) for flag, default in _DEFAULT_FLAGS.items()}
    return {flag: flags[flag] for flag, value in usual.items() if flags.get(flag) not in (None, value)}


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
