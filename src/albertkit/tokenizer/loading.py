"""Which tokenizer a folder holds, and what the files beside it say about it.

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
from albertkit.files import plain_file, read_json
from albertkit.tokenizer import rules
from albertkit.tokenizer.morphemes import ANALYSERS
from albertkit.tokenizer.tokenizer import AlbertTokenizer

CONFIG_NAME = "tokenizer_config.json"
MODEL_NAME = "spiece.model"
LISTING_NAME = "spiece.vocab"
VOCAB_NAME = "vocab.txt"
JSON_NAME = "tokenizer.json"
ANALYSER_KEY = "morpheme_spaces"  # of tokenizer_config.json: who puts spaces between morphemes before encoding
TOKENIZER_FILES = (
    "*.model", "*.vocab", "vocab*.txt", JSON_NAME, CONFIG_NAME, "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip
SPECIAL_ROLES = ("pad", "unk", "cls", "sep", "mask")
_NO_LIMIT = 10**6  # transformers writes 10^30 for "none"


def load_tokenizer(
    folder: Path,
    text_rules: str | None,
    names: Mapping[str, str] | None = None,
    flags: Mapping[str, bool] | None = None,
) -> AlbertTokenizer:
    """See `AlbertTokenizer.from_pretrained`; `names` by role, `flags` are `do_lower_case` and `keep_accents`."""
    settings = read_settings(folder)
    settings.update({f"{role}_token": name for role, name in (names or {}).items()})
    if flags:
        settings.update(_with_flags(folder, settings, text_rules, flags))
    tokenizer = _load(folder, settings, text_rules)
    for role, name in (names or {}).items():
        own = tokenizer.id_to_piece(getattr(tokenizer, f"{role}_id"))
        if own != name:
            raise ConfigError(
                "bad-argument", f"{role}_token is `{name}`, but the tokenizer in `{folder}` calls it `{own}`",
                f"leave {role}_token out, or use {role}_token={own!r}",
            )  # fmt: skip
    beyond = [token for token, number in added_tokens(folder, settings).items() if number >= tokenizer.vocab_size]
    if beyond:
        if not (folder / JSON_NAME).exists() or text_rules is not None:
            raise CheckpointError(
                "added-tokens",
                f"`{folder}` adds {len(beyond)} tokens to its vocabulary of {tokenizer.vocab_size:,} "
                f"({' '.join(beyond[:5])}{' …' * (len(beyond) > 5)}); only a {JSON_NAME} says where they match",
                f"write one with transformers: AutoTokenizer.from_pretrained('{folder}').save_pretrained('{folder}')",
            )  # fmt: skip
        tokenizer = _from_json(folder, settings)
    limit = settings.get("model_max_length")
    if isinstance(limit, int) and 2 < limit < _NO_LIMIT:
        tokenizer.model_max_length = limit
    return tokenizer


def _with_flags(
    folder: Path, settings: Mapping[str, Any], text_rules: str | None, flags: Mapping[str, bool]
) -> dict[str, Any]:
    """The settings of a folder that its rules depend on, with other flags."""
    if text_rules is not None:
        raise ConfigError("bad-argument", f"text_rules and {' and '.join(flags)} were both given", "give one of them")
    if find_model(folder) is not None:
        return {"text_rules": rules.with_flags(rules.named_by(settings), **flags)}
    if _vocabularies(folder) and "keep_accents" not in flags:
        return dict(flags)
    raise ConfigError(
        "bad-argument", f"{' and '.join(flags)} cannot be changed: the tokenizer in `{folder}` brings its own rules",
        "leave it out",
    )  # fmt: skip


def read_settings(folder: Path) -> dict[str, Any]:
    """Content of `tokenizer_config.json`, with the names of `special_tokens_map.json`; empty if there are none.

    Raises:
        DataError: broken-json.
    """
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", CONFIG_NAME):
        content = read_json(folder / name, "tokenizer configuration") if (folder / name).exists() else {}
        settings.update(content if isinstance(content, dict) else {})
    return settings


def special_names(settings: dict[str, Any]) -> dict[str, str]:
    """What a folder calls its special tokens: role to name, for the roles that it names."""
    names = {}
    for role in SPECIAL_ROLES:
        token = settings.get(f"{role}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            names[role] = token
    return names


def make_room(folder: Path, own: str) -> None:
    """Make sure that a tokenizer saved in a folder as `own` would be the one that is read from it.

    Raises:
        CheckpointError: several-tokenizers.
    """
    others = [path.name for path in sorted(folder.glob("*.model")) if path.name != own]
    if own == JSON_NAME:
        others += [path.name for path in _vocabularies(folder)]
    if others:
        raise CheckpointError(
            "several-tokenizers",
            f"`{folder}` already holds {', '.join(others)}; with `{own}` it would hold several",
            "choose another folder",
        )


def find_model(folder: Path) -> Path | None:
    """The SentencePiece model of a folder.

    Raises:
        CheckpointError: several-tokenizers.
    """
    models = sorted(folder.glob("*.model"))
    if len(models) > 1:
        raise CheckpointError(
            "several-tokenizers", f"`{folder}` holds {len(models)} models: {', '.join(m.name for m in models)}",
            "name a folder that holds the one you mean",
        )  # fmt: skip
    return models[0] if models else None


def _load(folder: Path, settings: dict[str, Any], text_rules: str | None) -> AlbertTokenizer:
    model = find_model(folder)
    if model is not None:
        from albertkit.tokenizer.sentencepiece_tokenizer import SentencePieceTokenizer

        chosen = text_rules if text_rules is not None else rules.named_by(settings)
        analyser = settings.get(ANALYSER_KEY)
        if analyser is not None and analyser not in ANALYSERS:
            raise CheckpointError(
                "broken-tokenizer", f"`{ANALYSER_KEY}` of {CONFIG_NAME} in `{folder}` is {analyser!r}",
                f"known: {', '.join(ANALYSERS)}",
            )  # fmt: skip
        return SentencePieceTokenizer(plain_file(model).read_bytes(), chosen, source=model, analyser=analyser)
    vocabularies = _vocabularies(folder)
    if not vocabularies and not (folder / JSON_NAME).exists():
        raise CheckpointError(
            "no-tokenizer",
            f"none of *.model, {VOCAB_NAME}, {JSON_NAME} in `{folder}`",
            "train one: `albertkit tokenizer train FILES --out DIR`",
        )  # fmt: skip
    if text_rules is not None:
        raise ConfigError(
            "bad-text-rules",
            f"text rules `{text_rules}` are for SentencePiece models; the tokenizer in `{folder}` brings its own",
            "leave them out",
        )
    if not vocabularies:
        return _from_json(folder, settings)
    from albertkit.tokenizer.wordpiece import WordPieceTokenizer, bert_rules, read_vocabulary

    vocabulary = read_vocabulary(vocabularies[0])
    return WordPieceTokenizer(vocabulary, bert_rules(settings), special_names(settings), source=vocabularies[0])


def _vocabularies(folder: Path) -> list[Path]:
    """`vocab.txt`, or the one file of another such name."""
    exact = folder / VOCAB_NAME
    others = sorted(folder.glob("vocab*.txt"))
    return [exact] if exact.exists() else others if len(others) == 1 else []


def _from_json(folder: Path, settings: dict[str, Any]) -> AlbertTokenizer:
    from albertkit.tokenizer.json_tokenizer import JsonTokenizer
    from albertkit.tokenizer.wordpiece import WordPieceTokenizer, bert_vocabulary

    file = folder / JSON_NAME
    content, names = read_json(file, "tokenizer"), special_names(settings)
    bert = bert_vocabulary(content)
    if bert:
        return WordPieceTokenizer(*bert, names, source=file)
    return JsonTokenizer(file.read_text(encoding="utf-8"), names, source=file)


def added_tokens(folder: Path, settings: dict[str, Any]) -> dict[str, int]:
    """Tokens that `added_tokens.json` and `tokenizer_config.json` list, and their ids.

    Raises:
        CheckpointError: broken-tokenizer, if they are no lists of tokens.
    """
    file = folder / "added_tokens.json"
    listed = read_json(file, "list of added tokens") if file.exists() else {}
    decoder = settings.get("added_tokens_decoder") or {}
    try:
        found = {**listed, **{token["content"]: int(number) for number, token in decoder.items()}}
    except (TypeError, ValueError, KeyError, AttributeError):
        found = {"": None}
    if not all(isinstance(token, str) and isinstance(number, int) for token, number in found.items()):
        raise CheckpointError(
            "broken-tokenizer", f"the lists of added tokens in `{folder}` are not names with numbers",
            f"mend added_tokens.json and `added_tokens_decoder` of {CONFIG_NAME}, or fetch them again",
        )  # fmt: skip
    return found
