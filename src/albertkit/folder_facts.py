"""Read what a folder says of itself: classes, added tokens, adapters, quantization, activation; refuse what is not computed.

Files of transformers and sentence-transformers since 2019. A fact stands in several files, by era;
it is looked up here and nowhere else.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from albertkit.errors import CheckpointError
from albertkit.files import check_regular_file, read_json

TOKENIZER_CONFIG = "tokenizer_config.json"
TOKENIZER_JSON = "tokenizer.json"
# Key of a tokenizer_config.json that albertkit wrote; transformers keeps it
OUR_RULES = "text_rules"
ALBERT_CLASSES = ("AlbertTokenizer", "AlbertTokenizerFast")
# ElectraTokenizer and DistilBertTokenizer are BertTokenizer under another name.
BERT_CLASSES = tuple(
    f"{name}Tokenizer{fast}"
    for name in ("Bert", "Electra", "DistilBert", "MobileBert")
    for fast in ("", "Fast")
)
_XLM_R_CLASSES = ("XLMRobertaTokenizer", "XLMRobertaTokenizerFast")
# Whatever their tokenizer.json says
_JSON_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
_SPECIAL_LISTS = (
    "additional_special_tokens",
    "extra_special_tokens",
    "model_specific_special_tokens",
)
_NAMED_TOKENS = tuple(f"{role}_token" for role in ("unk", "sep", "pad", "cls", "mask"))
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_MODULES = "modules.json"
_SENTENCE_SETTINGS = "config_sentence_transformers.json"
_SENTENCE_FILES = (_MODULES, _SENTENCE_SETTINGS, "sentence_bert_config.json")
_MERGE = (
    'python -c "from peft import AutoPeftModel; '
    "AutoPeftModel.from_pretrained('{folder}').merge_and_unload().save_pretrained('MERGED')\""
)


@dataclass(frozen=True)
class AddedToken:
    """A token that a folder adds to its tokenizer's rules.

    Attributes:
        content: Its name in a text.
        id: None where the folder does not say.
        flags: `single_word`, `lstrip`, `rstrip`, `normalized` and `special`, as the `tokenizers`
            library has them.
    """

    content: str
    id: int | None
    flags: Mapping[str, bool]


class _JsonFacts(msgspec.Struct):
    """The facts of a tokenizer.json without its vocabulary: 2 ms for 30,000 tokens, where all of it takes 30."""

    added_tokens: list[dict[str, Any]] | None = None


@dataclass(frozen=True)
class FolderFacts:
    """Facts of one folder, from the JSON files at hand.

    Attributes:
        folder: The folder.
        model: Content of `config.json`.
        tokenizer: Content of `special_tokens_map.json` and `tokenizer_config.json`.
        sentences: Content of `config_sentence_transformers.json`.
    """

    folder: Path
    model: dict[str, Any]
    tokenizer: dict[str, Any]
    sentences: dict[str, Any]

    @classmethod
    def from_folder(cls, folder: Path) -> "FolderFacts":
        """Read the facts of a folder; a missing file says nothing."""
        tokenizer = _read_json_object(folder / TOKENIZER_CONFIG)
        if "added_tokens_decoder" not in tokenizer:  # else transformers does not read it
            tokenizer |= _read_json_object(folder / "special_tokens_map.json")
        return cls(
            folder,
            _read_json_object(folder / "config.json"),
            tokenizer,
            _read_json_object(folder / _SENTENCE_SETTINGS),
        )

    # --- the tokenizer ----------------------------------------------------------------------------

    @property
    def tokenizer_class(self) -> str | None:
        """Return the class that `tokenizer_config.json` names, or else `config.json`."""
        return self.tokenizer.get("tokenizer_class") or self.model.get("tokenizer_class")

    def check_tokenizer_settings(self) -> None:
        """Refuse a tokenizer whose words are not divided as ALBERT's and BERT's classes divide them.

        Raises:
            CheckpointError: unsupported.
        """
        name = self.tokenizer_class
        if name is not None and name not in (*ALBERT_CLASSES, *BERT_CLASSES, *_JSON_CLASSES):
            raise self._unread_tokenizer_error(f"of the class `{name}`")
        remote = self.tokenizer.get("auto_map")
        if remote:
            raise self._unread_tokenizer_error(f"of a class of its own, `auto_map` {remote}")
        # Settings of these classes that cut words otherwise, and the values that do not
        splits: dict[str, tuple[Any, ...]] = {
            "word_tokenizer_type": ("basic", None),
            "subword_tokenizer_type": ("wordpiece", None),
            "do_basic_tokenize": (True, None),
            "never_split": (None, []),
            "add_prefix_space": (True, None),
        }
        for key in ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "keep_accents"):
            if (flag := self.tokenizer.get(key)) not in (True, False, None):
                raise CheckpointError(
                    "bad-file",
                    f"`{key}` in `{self.folder / TOKENIZER_CONFIG}` is {flag!r}",
                    "write true or false, without quotes",
                )
        for key, usual in splits.items():
            if (value := self.tokenizer.get(key)) not in usual:
                raise self._unread_tokenizer_error(f"with `{key}` {value!r}")

    @property
    def is_xlm_r(self) -> bool:
        """Return whether the tokenizer's class numbers the pieces of its model as XLM-R's does."""
        return self.tokenizer_class in _XLM_R_CLASSES

    def _unread_tokenizer_error(self, kind: str) -> CheckpointError:
        fact = f"`{self.folder}` has a tokenizer {kind}, which is not read here"
        if self.is_xlm_r:
            return CheckpointError(
                "unsupported",
                fact,
                f"make an ALBERT's of it: `albertkit tokenizer trim {self.folder} TEXT --out DIR`",
            )
        classes = ", ".join((*ALBERT_CLASSES, *BERT_CLASSES, *_JSON_CLASSES))
        return CheckpointError(
            "unsupported",
            fact,
            f"encode with that class and give its ids to the model; known here: {classes}",
        )

    @property
    def reads_json_first(self) -> bool:
        """Return whether transformers reads `tokenizer.json` and no other file, as for a class that has no other."""
        is_own = OUR_RULES not in self.tokenizer
        return (
            is_own
            and self.tokenizer_class in _JSON_CLASSES
            and (self.folder / TOKENIZER_JSON).exists()
        )

    @property
    def is_ours(self) -> bool:
        """Return whether albertkit wrote the tokenizer."""
        return OUR_RULES in self.tokenizer

    def added_tokens(self) -> dict[str, AddedToken]:
        """Return all tokens that the folder's files add, the special ones among them, by name.

        Later files win, in transformers' order: `added_tokens.json`, names of special tokens,
        `tokenizer.json`, `added_tokens_decoder`.

        Raises:
            CheckpointError: bad-file.
        """
        try:
            # Of the further special tokens that are listed by name
            names: dict[str, dict[str, Any]] = {}
            model_specific = [
                value
                for key, value in self.tokenizer.items()
                if key.endswith("_token")
                and key not in _NAMED_TOKENS
                and isinstance(value, str | Mapping)
            ]
            lists = [self.tokenizer.get(key) or [] for key in _SPECIAL_LISTS]
            for values in (*lists, model_specific):
                for value in values.values() if isinstance(values, Mapping) else values:
                    token = {"content": value} if isinstance(value, str) else dict(value)
                    names[token["content"]] = {**token, "special": True}
            tokens = []
            for content, number in _read_json_object(self.folder / "added_tokens.json").items():
                tokens.append(
                    _parse_added_token(
                        {"content": content, "special": content in names}, _check_int(number)
                    )
                )
            numbered_names = {added.content for added in tokens}
            tokens += [
                _parse_added_token(token, None)
                for name, token in names.items()
                if name not in numbered_names
            ]
            facts = _JsonFacts()
            if (file := self.folder / TOKENIZER_JSON).exists():
                json_content = check_regular_file(file, "tokenizer").read_bytes()
                with suppress(msgspec.MsgspecError):  # its reader says what is wrong
                    facts = msgspec.json.decode(json_content, type=_JsonFacts)
            for token in facts.added_tokens or []:
                tokens.append(_parse_added_token(token, _check_int(token["id"])))
            for number, token in (self.tokenizer.get("added_tokens_decoder") or {}).items():
                tokens.append(_parse_added_token(token, int(number)))
            return {token.content: token for token in tokens if token.content}
        except (TypeError, ValueError, KeyError, AttributeError):
            raise CheckpointError(
                "bad-file",
                f"the lists of added tokens in `{self.folder}` are not names with numbers",
                f"mend added_tokens.json, and `added_tokens_decoder` of {TOKENIZER_CONFIG}, or fetch them again",
            ) from None

    def flags_set_for_mask(self, name: str) -> tuple[str, ...]:
        """Return which of `single_word` and `normalized` are set for the mask, by its name.

        transformers 5 reads those of `mask_token` for a `vocab.txt` alone.
        """
        token = self.added_tokens().get(name)
        stated = self.tokenizer.get("mask_token")
        has_vocabulary = (
            any(self.folder.glob("vocab*.txt")) and not (self.folder / TOKENIZER_JSON).exists()
        )
        if token is None and isinstance(stated, Mapping) and has_vocabulary:
            token = _parse_added_token({**stated, "special": True}, None)
        return tuple(
            flag
            for flag in ("single_word", "normalized")
            if token is not None and token.flags[flag]
        )

    # --- the model --------------------------------------------------------------------------------

    def check_model(self) -> None:
        """Refuse weights that need another library: adapters, quantized weights.

        Raises:
            CheckpointError: unsupported.
        """
        if (self.folder / "adapter_config.json").exists():
            adapter = _read_json_object(self.folder / "adapter_config.json")
            base = adapter.get("base_model_name_or_path") or adapter.get("model_name")
            fact = f"`{self.folder}` is a {adapter.get('peft_type', 'transformers')} adapter of `{base}`, not a whole model"
            hint = f"merge it first: {_MERGE.format(folder=self.folder)}"
            if "peft_type" not in adapter:
                hint = "merge it into its model with the package `adapters`, and save that"
            raise CheckpointError("unsupported", fact, hint)
        # Its tensors have other names, and its heads are files of their own.
        if (self.folder / "language_model.bin").exists():
            hint = "save it with FARM: AdaptiveModel.load('{}', 'cpu').convert_to_transformers()[0].save_pretrained('NEW')"
            raise CheckpointError(
                "unsupported",
                f"`{self.folder}` is a model of FARM",
                hint.format(self.folder),
            )
        if quantization := self.model.get("quantization_config"):
            method = (
                quantization.get("quant_method") if isinstance(quantization, dict) else quantization
            )
            raise CheckpointError(
                "unsupported",
                f"the weights in `{self.folder}` are quantized (`quantization_config`: {method})",
                "save them unquantized: model.dequantize() of transformers",
            )

    # --- sentence-transformers --------------------------------------------------------------------

    @property
    def reads_special_names_as_tokens(self) -> bool:
        """Return whether the name of a special token in a text is that token, as SentenceTransformer reads its folders."""
        return not self.is_ours and not self.tokenizer.get("split_special_tokens")

    def module_types(self) -> list[str]:
        """Return the classes that `modules.json` lists, without their packages; empty if there is none."""
        return [str(module.get("type")).rpartition(".")[2] for module in self._sentence_modules()]

    def module_paths(self) -> list[str]:
        """Return the folders below that `modules.json` lists, "" for this one; empty if there is none."""
        return [str(module.get("path")) for module in self._sentence_modules()]

    def sentence_encoder_files(self) -> list[Path]:
        """Return the files and folders that make a vector of the encoder's states; empty if there are none."""
        paths = self.module_paths()
        # The encoder itself in a folder below, or what leads out of the folder
        if "" not in paths or any(Path(path).name != path for path in paths):
            return []
        files = [self.folder / name for name in (*_SENTENCE_FILES, *filter(None, paths))]
        return [file for file in files if file.exists()]

    def _sentence_modules(self) -> list[dict[str, Any]]:
        file = self.folder / _MODULES
        modules = read_json(file, "list of modules") if file.exists() else []
        listed = modules if isinstance(modules, list) else []
        return [module for module in listed if isinstance(module, dict)]

    @property
    def is_cross_encoder(self) -> bool:
        """Return whether sentence-transformers wrote the folder as a `CrossEncoder`, in any of its eras, or may have."""
        kind = self.sentences.get("model_type")
        if kind is not None and (self.folder / _MODULES).exists():
            return kind == "CrossEncoder"
        return self._is_classifier and (self._has_cross_encoder_mark or self.has_unexplained_output)

    @property
    def has_unexplained_output(self) -> bool:
        """Return whether a classifier has one output, and nothing says what it is.

        Such folders are most CrossEncoders before version 4, and regressions of transformers before
        4.6; both libraries put a sigmoid on that output today.
        """
        is_named = self._has_cross_encoder_mark or self.model.get("problem_type") is not None
        return self._is_classifier and self._num_outputs == 1 and not is_named

    @property
    def _is_classifier(self) -> bool:
        heads = self.model.get("architectures") or []
        return any(str(name).endswith("ForSequenceClassification") for name in heads)

    @property
    def _has_cross_encoder_mark(self) -> bool:
        has_settings = isinstance(self.model.get("sentence_transformers"), dict)
        return (
            has_settings
            or self._saved_cross_encoder_activation is not None
            or self.module_types() == ["Transformer"]
        )

    @property
    def _num_outputs(self) -> int:
        # transformers writes neither where there are two.
        return self.model.get("num_labels") or len(self.model.get("id2label") or "ab")

    def check_cross_encoder(self) -> None:
        """Refuse a CrossEncoder of other modules than one model with its head.

        Raises:
            CheckpointError: unsupported.
        """
        modules = self.module_types()
        if self.is_cross_encoder and modules not in ([], ["Transformer"]):
            raise CheckpointError(
                "unsupported",
                f"`{self.folder}` is a CrossEncoder of the modules {', '.join(modules)}",
                "only one Transformer is computed here; use sentence-transformers",
            )

    @property
    def _saved_cross_encoder_activation(self) -> str | None:
        version_4 = self.model.get("sentence_transformers")
        stated = [
            self.sentences.get("activation_fn") if self.module_types() else None,
            version_4.get("activation_fn") if isinstance(version_4, dict) else None,
            self.model.get("sbert_ce_default_activation_function"),
        ]
        return next((name for name in stated if name is not None), None)

    def cross_encoder_activation(self) -> str:
        """Return what a CrossEncoder does with its outputs: "identity" or "sigmoid".

        Raises:
            CheckpointError: unsupported for any other function.
        """
        if self.sentences.get("default_prompt_name") is not None:
            raise CheckpointError(
                "unsupported",
                f"the CrossEncoder in `{self.folder}` puts a prompt before every text",
                "set default_prompt_name to null, and put it before the texts yourself",
            )
        if self._saved_cross_encoder_activation is None:
            return "sigmoid" if self._num_outputs == 1 and self.is_cross_encoder else "identity"
        match = re.fullmatch(
            r"torch\.nn\.(?:modules\.(?:linear|activation)\.)?(Identity|Sigmoid)",
            self._saved_cross_encoder_activation,
        )
        if match is None:
            raise CheckpointError(
                "unsupported",
                f"`{self.folder}` has the activation `{self._saved_cross_encoder_activation}`",
                "only torch's Identity and Sigmoid are computed here",
            )
        return match[1].lower()


def _read_json_object(file: Path) -> dict[str, Any]:
    content = read_json(file, "configuration") if file.exists() else {}
    return content if isinstance(content, dict) else {}


def _check_int(value: Any) -> int:
    # true is an int, too.
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(value)
    return value


def _parse_added_token(token: Mapping[str, Any], token_id: int | None) -> AddedToken:
    if not isinstance(token["content"], str):
        raise TypeError(token)
    special = bool(token.get("special", False))
    usual = {"normalized": not special}
    return AddedToken(
        token["content"],
        token_id,
        {flag: bool(token.get(flag, usual.get(flag, False))) for flag in _FLAGS},
    )
