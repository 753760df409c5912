"""The files of a tokenizer's folder: their names, settings, special and added tokens.

Evidence for the kinds (public folders of ALBERT models, 2019 to 2026):

- `30k-clean.model` or `spiece.model`: Google's English models and everything fine-tuned from them with transformers 4.
- `vocab_chinese.txt`: Google's Chinese archives; `vocab.txt`: their transformers folders (voidful, uer: `do_lower_case`
  true, `strip_accents` null), ckiplab (`do_lower_case` false), and Korean ones: kykim (`do_lower_case` true,
  `strip_accents` false, no `tokenizer_class`) and lots-o (`do_lower_case` false, `strip_accents` false).
- `tokenizer.json` alone: whatever transformers 5 has saved.
- Korean SentencePiece models with `[PAD]` and `[UNK]` and transformers' `keep_accents` true (bongsoo).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from albertkit.errors import CheckpointError, ConfigError
from albertkit.folder_facts import FolderFacts
from albertkit.tokenizer import rules

CONFIG_NAME = "tokenizer_config.json"
MODEL_NAME = "spiece.model"
LISTING_NAME = "spiece.vocab"
VOCAB_NAME = "vocab.txt"
JSON_NAME = "tokenizer.json"
ADDED_FILES = ("special_tokens_map.json", "added_tokens.json")
ANALYSER_KEY = "morpheme_spaces"  # of tokenizer_config.json: who puts spaces between morphemes before encoding
TOKENIZER_FILES = ("*.model", "*.vocab", "vocab*.txt", JSON_NAME, CONFIG_NAME, *ADDED_FILES)
SPECIAL_ROLES = ("pad", "unk", "cls", "sep", "mask")
NO_LIMIT = 10**6  # transformers writes 10^30 for "none"


def with_flags(
    folder: Path, settings: Mapping[str, Any], text_rules: str | None, flags: Mapping[str, bool]
) -> dict[str, Any]:
    """Return the settings of a folder that its rules depend on, with other flags."""
    if text_rules is not None:
        raise ConfigError("bad-value", f"text_rules and {' and '.join(flags)} were both given", "give one of them")
    if find_model(folder) is not None:
        return {"text_rules": rules.with_flags(rules.named_by(settings), **flags)}
    if vocabularies(folder) and "keep_accents" not in flags:
        return dict(flags)
    fact = f"{' and '.join(flags)} cannot be changed: the tokenizer in `{folder}` brings its own rules"
    raise ConfigError("bad-value", fact, "leave it out")


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the content of `tokenizer_config.json`, with the names of `special_tokens_map.json`; empty if there are none."""
    return FolderFacts.read(folder).tokenizer


def special_names(settings: dict[str, Any]) -> dict[str, str]:
    """Read the names of a folder's special tokens: role to name, for the roles that it names."""
    names = {}
    for role in SPECIAL_ROLES:
        token = settings.get(f"{role}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            names[role] = token
    return names


def tokenizer_config(names: Mapping[str, str], text_rules: str, model_max_length: int) -> dict[str, Any]:
    """Return the content of `tokenizer_config.json`, by the names of the special tokens."""
    return {
        # `AlbertTokenizer` would build its own normaliser in place of ours.
        "tokenizer_class": "PreTrainedTokenizerFast",
        # Without this list transformers 5 gives a pair no segment ids.
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": model_max_length,
        "padding_side": "right",
        "truncation_side": "right",
        **{f"{role}_token": names[role] for role in ("cls", "sep", "pad", "unk", "mask")},
        "text_rules": text_rules,
    }


def make_room(folder: Path, own: str) -> None:
    """Make sure that a tokenizer saved in a folder as `own` would be the one that is read from it."""
    others = [path.name for path in sorted(folder.glob("*.model")) if path.name != own]
    if own == JSON_NAME:
        others += [path.name for path in vocabularies(folder)]
    if others:
        raise CheckpointError(
            "ambiguous",
            f"`{folder}` already holds {', '.join(others)}; with `{own}` it would hold several",
            "choose another folder",
        )


def find_model(folder: Path) -> Path | None:
    """Return the SentencePiece model of a folder."""
    models = sorted(folder.glob("*.model"))
    if len(models) > 1:
        fact = f"`{folder}` holds {len(models)} models: {', '.join(m.name for m in models)}"
        raise CheckpointError("ambiguous", fact, "name a folder that holds the one you mean")
    return models[0] if models else None


def check_no_rules(folder: Path, text_rules: str | None) -> None:
    """Refuse text rules for a tokenizer that is no SentencePiece model."""
    if text_rules is not None:
        raise ConfigError(
            "unknown-name",
            f"text rules `{text_rules}` are for SentencePiece models; the tokenizer in `{folder}` brings its own",
            "leave them out",
        )


def vocabularies(folder: Path) -> list[Path]:
    """Return `vocab.txt`, or the one file of another such name."""
    exact = folder / VOCAB_NAME
    others = sorted(folder.glob("vocab*.txt"))
    return [exact] if exact.exists() else others if len(others) == 1 else []


def added_tokens(folder: Path, settings: dict[str, Any]) -> dict[str, int]:
    """Return the tokens that a folder adds, with the ids that its files give them."""
    return {name: token.id for name, token in FolderFacts.read(folder).added_tokens().items() if token.id is not None}
