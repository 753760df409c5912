"""`fix_tokenizer`: a tokenizer of transformers that gives an ALBERT the ids it was trained on."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from albertkit.errors import CheckpointError, MissingExtraError
from albertkit.model_folder import local_folder
from albertkit.tokenizer.folder_files import find_model, read_settings
from albertkit.tokenizer.tokenizer import AlbertTokenizer

_COPIED_SETTINGS = ("model_max_length", "padding_side", "truncation_side")  # of the tokenizer that is replaced
_DEFAULT_FLAGS = {"do_lower_case": True, "keep_accents": False}  # transformers' `AlbertTokenizer`


def fix_tokenizer(source: Any) -> Any:
    """Return transformers' tokenizer of an ALBERT with the ids, segments and offsets of the original.

    What transformers 5 reads from `spiece.model` alone, or by its class `AlbertTokenizer`, takes Hangul apart, forgets the rule
    for a digit before a comma, and gives a pair no segment ids; `albertkit tokenizer check FOLDER` shows an example.

    Args:
        source: A folder or `org/name` of the hub that holds `spiece.model`, or a tokenizer that transformers loaded from one;
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
    folder = _model_folder(source)
    # Flags of the text rules that the tokenizer was loaded with, where they are not the folder's.
    settings, loaded_flags = read_settings(folder), getattr(source, "init_kwargs", {})
    flags = {
        flag: loaded_flags[flag]
        for flag, default in _DEFAULT_FLAGS.items()
        if loaded_flags.get(flag) not in (None, settings.get(flag, default))
    }
    with TemporaryDirectory() as new_folder:
        tokenizer = AlbertTokenizer.from_pretrained(folder, **flags)
        tokenizer.tokenizer_json()  # or an error that says why there can be none
        tokenizer.save_pretrained(new_folder)
        fixed = AutoTokenizer.from_pretrained(new_folder)
    fixed.name_or_path = str(folder)
    _copy_added_tokens(source, fixed)
    for name in _COPIED_SETTINGS:
        setattr(fixed, name, getattr(source, name, getattr(fixed, name)))
    return fixed


def _model_folder(source: Any) -> Path:
    """Return the folder that holds the SentencePiece model of a folder's name or a tokenizer."""
    if isinstance(source, str | Path):
        return local_folder(source, weights=False)
    file = getattr(source, "vocab_file", None)
    if file and Path(file).is_file():
        return Path(file).parent
    name = getattr(source, "name_or_path", "")
    if name:
        folder = local_folder(name, weights=False)
        if find_model(folder) is not None:
            return folder
    raise CheckpointError(
        "missing-file",
        f"this {type(source).__name__} does not say where its spiece.model is",
        "give the folder that holds it: fix_tokenizer('FOLDER')",
    )


def _copy_added_tokens(source: Any, fixed: Any) -> None:
    """Give a tokenizer the tokens that its user added to another, with the same ids."""
    ids = getattr(source, "added_tokens_decoder", {})
    missing_tokens = {token_id: token for token_id, token in sorted(ids.items()) if token_id >= len(fixed)}
    for token in missing_tokens.values():
        fixed.add_tokens([token], special_tokens=token.special)
    if any(fixed.convert_tokens_to_ids(str(token)) != token_id for token_id, token in missing_tokens.items()):
        names = ", ".join(map(str, missing_tokens.values()))[:80]
        fact = f"the {len(missing_tokens)} added tokens would get other ids: {names}"
        raise CheckpointError("wrong-model", fact, "give the folder, then add them again: fix_tokenizer('FOLDER')")
