"""Find and read the tokenizer files of a folder, and warn where `tokenizer.json` reads a hard sentence otherwise.

For the warning only the tokens that can match the sentence are loaded: 10 ms, where all 30,000 take
60 to 90.
"""

import itertools
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from albertkit.errors import CheckpointError, ConfigError
from albertkit.files import read_json
from albertkit.folder_facts import ALBERT_CLASSES, BERT_CLASSES, FolderFacts
from albertkit.tokenizer import rules
from albertkit.tokenizer.readings import Vocabulary, compare_reader

CONFIG_NAME = "tokenizer_config.json"
MODEL_NAME = "spiece.model"
LISTING_NAME = "spiece.vocab"
VOCAB_NAME = "vocab.txt"
JSON_NAME = "tokenizer.json"
ADDED_FILES = ("special_tokens_map.json", "added_tokens.json")
# Of tokenizer_config.json: who puts spaces between morphemes before encoding
ANALYSER_KEY = "morpheme_spaces"
TOKENIZER_FILES = ("*.model", "*.vocab", "vocab*.txt", JSON_NAME, CONFIG_NAME, *ADDED_FILES)
SPECIAL_ROLES = ("pad", "unk", "cls", "sep", "mask")
NO_LIMIT = 10**6  # transformers writes 10^30 for "none"


def settings_with_flags(
    folder: Path,
    settings: Mapping[str, Any],
    text_rules: str | None,
    flags: Mapping[str, bool],
) -> dict[str, Any]:
    """Return the settings of a folder that its rules depend on, with other flags."""
    if text_rules is not None:
        raise ConfigError(
            "bad-value",
            f"text_rules and {' and '.join(flags)} were both given",
            "give one of them",
        )
    if find_sentencepiece_model(folder) is not None:
        return {"text_rules": rules.rules_with_flags(rules.read_rules_name(settings), **flags)}
    if find_vocabularies(folder) and "keep_accents" not in flags:
        return dict(flags)
    fact = (
        f"{' and '.join(flags)} cannot be changed: the tokenizer in `{folder}` brings its own rules"
    )
    raise ConfigError("bad-value", fact, "leave it out")


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the content of `tokenizer_config.json`, with the names of `special_tokens_map.json`; empty if there are none."""
    return FolderFacts.from_folder(folder).tokenizer


def special_names(settings: dict[str, Any], roles: Sequence[str] = SPECIAL_ROLES) -> dict[str, str]:
    """Read the names of a folder's special tokens: role to name, for the roles that it names."""
    names = {}
    for role in roles:
        token = settings.get(f"{role}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            names[role] = token
    return names


def read_tokenizer_json(folder: Path) -> str:
    """Return a folder's `tokenizer.json`, with the flags of BERT's class, which transformers takes whatever the file says."""
    file = folder / JSON_NAME
    content = read_json(file, "tokenizer")  # names the line of what is no JSON
    text = file.read_text(encoding="utf-8")
    facts = FolderFacts.from_folder(folder)
    settings, name = facts.tokenizer, facts.tokenizer_class
    normalizer = content.get("normalizer") if isinstance(content, dict) else None
    if name not in (*ALBERT_CLASSES, *BERT_CLASSES) or not isinstance(normalizer, dict):
        return text
    has_flags = normalizer.get("type") == "BertNormalizer"
    if name in ALBERT_CLASSES:
        steps = json.dumps(normalizer)
        lower, strip = settings.get("do_lower_case", True), not settings.get("keep_accents", False)
        has_flags = ('"Lowercase"' in steps, '"StripAccents"' in steps) == (lower, strip)
    if not has_flags:
        fact = "`%s`: the class %s of transformers 5 has a normalizer of its own, here that of the file is used"
        logger.warning(fact, file, name)
    if not has_flags or name in ALBERT_CLASSES:
        return text
    flags = {
        "lowercase": bool(settings.get("do_lower_case", True)),
        "strip_accents": settings.get("strip_accents"),
        "handle_chinese_chars": bool(settings.get("tokenize_chinese_chars", True)),
    }
    if flags.items() <= normalizer.items():
        return text
    return json.dumps({**content, "normalizer": {**normalizer, **flags}})


def tokenizer_config(
    names: Mapping[str, str],
    text_rules: str,
    model_max_length: int,
) -> dict[str, Any]:
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


def check_no_other_tokenizer(folder: Path, file_name: str) -> None:
    """Refuse a folder from which another tokenizer would be read than the one saved in it as `file_name`."""
    other_files = [path.name for path in sorted(folder.glob("*.model")) if path.name != file_name]
    if file_name == JSON_NAME:
        other_files += [path.name for path in find_vocabularies(folder)]
    if other_files:
        raise CheckpointError(
            "ambiguous",
            f"`{folder}` already holds {', '.join(other_files)}; with `{file_name}` it would hold several",
            "choose another folder",
        )


def find_sentencepiece_model(folder: Path) -> Path | None:
    """Return the SentencePiece model of a folder."""
    models = sorted(folder.glob("*.model"))
    if len(models) > 1:
        fact = f"`{folder}` holds {len(models)} models: {', '.join(m.name for m in models)}"
        raise CheckpointError("ambiguous", fact, "name a folder that holds the one you mean")
    return models[0] if models else None


def refuse_text_rules(folder: Path, text_rules: str | None) -> None:
    """Refuse text rules for a tokenizer that is no SentencePiece model."""
    if text_rules is not None:
        raise ConfigError(
            "unknown-name",
            f"text rules `{text_rules}` are for SentencePiece models; the tokenizer in `{folder}` brings its own",
            "leave them out",
        )


def find_vocabularies(folder: Path) -> list[Path]:
    """Return `vocab.txt`, or the one file of another such name."""
    exact = folder / VOCAB_NAME
    candidates = sorted(folder.glob("vocab*.txt"))
    if exact.exists():
        return [exact]
    return candidates if len(candidates) == 1 else []


def added_tokens(folder: Path) -> dict[str, int]:
    """Return the tokens that a folder adds, with the ids that its files give them."""
    tokens = FolderFacts.from_folder(folder).added_tokens()
    return {name: token.id for name, token in tokens.items() if token.id is not None}


# Capitals, accents, quotes, a digit before a comma, Hangul, Chinese, full-width letters: where
# readers part.
HARD_SENTENCE = "McDonald's naïve “café” paid 1,234,500, in (Zürich) 2010, 대한민국의 수도 日本 Ａ."

logger = logging.getLogger("albertkit")


class _TextEncoder(Vocabulary, Protocol):
    """Methods of an `AlbertTokenizer` that are used here."""

    def encode(self, text: str) -> list[int]: ...


class _Model(msgspec.Struct):
    type: str
    vocab: dict[str, int] | list[tuple[str, float]]
    unk_id: int | None = None
    byte_fallback: bool = False
    unk_token: str = "[UNK]"
    max_input_chars_per_word: int = 100


class _Content(msgspec.Struct):
    model: _Model
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None


def warn_if_json_reads_otherwise(folder: Path, tokenizer: _TextEncoder) -> None:
    """Log a warning if the folder's `tokenizer.json` reads a hard sentence otherwise than the tokenizer that was chosen."""
    file = folder / JSON_NAME
    if not file.exists():
        return
    try:
        content = msgspec.json.decode(file.read_bytes(), type=_Content)
        comparison = compare_reader(
            JSON_NAME,
            tokenizer,
            [HARD_SENTENCE],
            tokenizer.encode,
            lambda text: _encode_with_json(content, text),
        )
    except (msgspec.MsgspecError, ValueError, KeyError) as error:
        logger.warning(
            "`%s` cannot be compared with the folder's other tokenizer file: %s",
            file,
            error,
        )
        return
    if comparison.first is None:
        return
    ours, theirs = comparison.first.differing_excerpts()
    logger.warning(
        "`%s` reads a text otherwise than the folder's other tokenizer files, which are used here: `%s` in place of `%s`; "
        "see: albertkit tokenizer check %s",
        file,
        theirs,
        ours,
        folder,
    )


def _encode_with_json(content: _Content, text: str) -> list[int]:
    """Return the ids of a text by a `tokenizer.json`, without its added tokens."""
    from tokenizers import Tokenizer, models

    parts: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": content.normalizer,
        "pre_tokenizer": content.pre_tokenizer,
        # An empty one, until the candidates are known
        "model": {"type": "WordLevel", "vocab": {"": 0}, "unk_token": ""},
    }
    tokenizer = Tokenizer.from_str(json.dumps(parts))
    normalizer = tokenizer.normalizer
    pre_tokenizer = tokenizer.pre_tokenizer
    model = content.model
    normal = normalizer.normalize_str(text) if normalizer is not None else text
    words = (
        [word for word, _ in pre_tokenizer.pre_tokenize_str(normal)]
        if pre_tokenizer is not None
        else [normal]
    )
    # Only tokens that can match: 11 ms for 30,000 tokens, where reading all takes 55 to 85, and a
    # test for every token 30.
    candidates: set[str] = set()
    for word in words:
        for start, end in itertools.combinations(range(len(word) + 1), 2):
            candidates.add(word[start:end])
    if isinstance(model.vocab, dict):
        candidates |= {model.unk_token, *(f"##{candidate}" for candidate in candidates)}
        tokenizer.model = models.WordPiece(
            {token: model.vocab[token] for token in candidates & model.vocab.keys()},
            unk_token=model.unk_token,
            max_input_chars_per_word=model.max_input_chars_per_word,
        )
        return tokenizer.encode(text, add_special_tokens=False).ids
    scores = [score for _, score in model.vocab]
    # An unknown character scores 10 less than the worst token.
    numbers = {scores.index(min(scores)), model.unk_id or 0}
    for number, (piece, _) in enumerate(model.vocab):
        if piece in candidates or (model.byte_fallback and piece.startswith("<0x")):
            numbers.add(number)
    ordered = sorted(numbers)
    tokenizer.model = models.Unigram(
        [model.vocab[n] for n in ordered],
        unk_id=ordered.index(model.unk_id or 0),
        byte_fallback=model.byte_fallback,
    )
    return [ordered[n] for n in tokenizer.encode(text, add_special_tokens=False).ids]
