"""Our configuration, captioner and tokenizers with the methods, arguments and outputs of SwinBERT's BERT classes."""

import dataclasses
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from albertkit import config as core
from albertkit.captioning import model as captioning
from albertkit.captioning.generate import generate
from albertkit.captioning.layers import CaptionConfig, attention_bias_of_mask, encode_context
from albertkit.captioning.settings import CaptionIds, GenerationSettings
from albertkit.config import make_config_with_notes
from albertkit.errors import ConfigError
from albertkit.files import StrPath, read_typed
from albertkit.model.files import StateDict, read_tensors
from albertkit.model.pretrained import REFUSED, config_changes_among, on_meta_device
from albertkit.model_paths import WEIGHTS_FILE, local_folder
from albertkit.printable import Notes, print_note
from albertkit.tokenizer import files as tokenizer_files
from albertkit.tokenizer.tokenizer import AlbertTokenizer

CONFIG_NAME, WEIGHTS_NAME = "config.json", WEIGHTS_FILE
_PROJECTION = "albert.img_embedding."
_DECODER = "predictions.decoder.weight"
_WORDS = "embeddings.word_embeddings.weight"
# What a pretrained ALBERT may lack; without these it is none.
_MAY_BE_FRESH = (_PROJECTION, "albert.pooler.", "albert.video_gate", "predictions.")
_FIELDS = frozenset(field.name for field in dataclasses.fields(core.AlbertConfig))
_CAPTION = frozenset(field.name for field in dataclasses.fields(CaptionConfig)) - core.FOREIGN_KEYS


class AlbertConfig(core.AlbertConfig):
    """A configuration whose values may be set, as SwinBERT's loader sets BERT's.

    The settings of `CaptionConfig` are attributes, too. What ALBERT does not read, such as
    `loss_type`, is kept as it is.
    """

    @classmethod
    def of(cls, config: core.AlbertConfig) -> "AlbertConfig":
        """Return a configuration of this class with the same values."""
        values = {name: getattr(config, name) for name in _FIELDS}
        return cls(**values | {"foreign": dict(config.foreign)})

    @classmethod
    def from_pretrained(cls, folder: str | Path, **changes: Any) -> "AlbertConfig":
        """Read the `config.json` of a folder, or such a file, and set some values."""
        config, _ = read_config_with_notes(folder)
        for name, value in changes.items():
            setattr(config, name, value)
        return config

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _CAPTION:
            caption = CaptionConfig(**CaptionConfig.of(self).to_dict() | {name: value})
            self.foreign["captioning"] = caption.to_dict()
        elif name in _FIELDS and name in self.__dict__:
            self.replace(**{name: value})  # raises for what is impossible
            self.__dict__[name] = value
        elif name in _FIELDS or name in core.FOREIGN_KEYS:
            super().__setattr__(name, value)
        else:
            self.__dict__[name] = value

    def __getattr__(self, name: str) -> Any:
        if name in _CAPTION and "foreign" in self.__dict__:
            return getattr(CaptionConfig.of(self), name)
        return super().__getattr__(name)


def read_config_with_notes(folder: str | Path) -> tuple[AlbertConfig, Notes]:
    """Read the `config.json` of a folder, or such a file; see `make_config_with_notes`."""
    path = Path(folder)
    file = path if path.is_file() else local_folder(folder) / "config.json"
    values = read_typed(file, dict[str, Any], "model configuration")
    config, notes = make_config_with_notes(values, file)
    return AlbertConfig.of(config), notes


class AlbertForImageCaptioning(captioning.AlbertForImageCaptioning):
    """The captioning model with the arguments and outputs of SwinBERT's `BertForImageCaptioning`.

    `from_pretrained` takes any ALBERT, and what it lacks begins afresh.
    """

    @property
    def bert(self) -> captioning.AlbertImgModel:
        """Return the encoder under the name that SwinBERT's VideoTransformer uses."""
        return self.albert

    def forward(self, *inputs: Any, is_decode: bool = False, **keywords: Any) -> tuple[Tensor, ...]:
        """Return the loss or the logits; with `is_decode` captions, as `generate_like_swinbert`."""
        if is_decode:
            keywords.pop("is_training", None)
            return generate_like_swinbert(self, *inputs, **keywords)
        return super().forward(*inputs, **keywords)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path | None = None,
        allow_missing: Collection[str] = (),
        revision: str | None = None,
        *,
        pretrained_model_name_or_path: str | Path | None = None,
        config: core.AlbertConfig | None = None,
        from_tf: bool = False,
        use_safetensors: bool | None = None,
        **changes: Any,
    ) -> "AlbertForImageCaptioning":
        """Load the weights of a folder; what was loaded and what was not is printed on stderr."""
        folder = pretrained_model_name_or_path if folder is None else folder
        if from_tf:
            raise ConfigError(
                "bad-value",
                f"`{folder}`: from_tf=True",
                f"albertkit convert {folder} ALBERT",
            )
        config_changes_among({name: value for name, value in changes.items() if name in REFUSED})
        path = local_folder(folder, revision, use_safetensors=use_safetensors)  # type: ignore[arg-type]  # says what None is
        built = AlbertConfig.from_pretrained(path) if config is None else AlbertConfig.of(config)
        for name, value in changes.items():
            setattr(built, name, value)
        model, fresh, left_out = load_weights(
            built,
            read_tensors(path, use_safetensors),
            str(path),
            allow_missing,
        )
        for line in describe_loading(model, str(path), path, fresh, left_out):
            print_note(line)
        return model


def cached_path(source: str | Path) -> str:
    """Return the path of a file or folder that exists, or of the local copy of a model of the hub."""
    return str(source) if Path(source).exists() else str(local_folder(source))


class LoadedCaptioner(NamedTuple):
    """Model, and the names of weights that were initialised afresh, and of those that were left out."""

    model: "AlbertForImageCaptioning"
    fresh: list[str]
    left_out: list[str]


def load_weights(
    config: core.AlbertConfig,
    stored: StateDict,
    source: str,
    allow_missing: Collection[str] = (),
) -> LoadedCaptioner:
    caption = CaptionConfig.of(config)
    projection = stored.get(f"{_PROJECTION}projection.weight")
    unfit = ["albert.video_gate", f"{_PROJECTION}fc."]
    if caption.tie_weights:
        unfit.append(_DECODER)
    # Another width of visual tokens costs the projection alone: the fork of 2024 then began with
    # random weights throughout.
    if projection is not None and projection.shape[1] != caption.img_feature_dim:
        unfit.append(_PROJECTION)
    dropped = [name for name in stored if name.startswith(tuple(unfit))]
    second_copy = "predictions.decoder.bias"  # of predictions.bias, in old files
    tensors = {name: stored[name] for name in stored if name not in dropped and name != second_copy}
    words = tensors.get(f"albert.{_WORDS}", tensors.get(_WORDS))
    if not caption.tie_weights and words is not None:
        # An output matrix of its own begins as a copy of what it was tied to
        tensors.setdefault(_DECODER, words)
    with on_meta_device():
        names = AlbertForImageCaptioning(config).state_dict()
    may_be_fresh = [name for name in names if name.startswith((*_MAY_BE_FRESH, *allow_missing))]
    model, matched = AlbertForImageCaptioning.from_tensors(config, tensors, may_be_fresh, source)
    return LoadedCaptioner(model, matched.fresh, [*dropped, *matched.left_out])


def describe_loading(
    model: AlbertForImageCaptioning,
    source: str,
    folder: Path,
    fresh: list[str],
    left_out: list[str],
) -> Iterator[str]:
    """Yield lines that name the source of a model's weights."""
    if source == "scratch":
        yield (
            f"warning: initialised_from: scratch; no weights are taken from `{folder}`, the model has learned nothing "
            "unless a checkpoint is loaded into it"
        )
    else:
        yield f"initialised_from: {source}"
        yield f"missing there, initialised afresh: {', '.join(fresh) or 'nothing'}"
        yield f"there, but not in the model: {', '.join(left_out) or 'nothing'}"
    trainable = model.num_parameters(only_trainable=True)
    yield f"{type(model).__name__}: {model.num_parameters():,} parameters, {trainable:,} of them trainable"


# SwinBERT's arguments of a search, with its defaults; those with one possible value; and those that
# its evaluation gives and that have no effect: constrained search is dead code there (`utils_cbs`
# is missing).
_SEARCH = {
    "max_length": 20,
    "num_beams": 1,
    "num_keep_best": 1,
    "length_penalty": 1.0,  # a whole number there, as the next one: its parser takes no other
    "repetition_penalty": 1.0,
    "do_sample": False,
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
}
_FIXED_ARGUMENTS = {"use_cbs": False, "decoding_constraint_flag": False, "num_return_sequences": 1}
_WITHOUT_EFFECT = {
    "masked_pos",
    "use_hypo",
    "fsm",
    "num_constraints",
    "min_constraints_to_satisfy",
    "head_mask",
}


def search_settings(arguments: Mapping[str, Any]) -> GenerationSettings:
    """Return the settings of a search from SwinBERT's arguments, in which other names may stand, too."""
    search = {name: arguments.get(name, default) for name, default in _SEARCH.items()}
    same_names = ("max_length", "num_beams", "temperature", "top_k", "top_p")
    return GenerationSettings(
        **{name: search[name] for name in same_names},
        num_captions=search["num_keep_best"],
        # SwinBERT penalises lengths in its search alone.
        length_penalty=float(search["length_penalty"]) if search["num_beams"] > 1 else 1.0,
        repetition_penalty=float(search["repetition_penalty"]),
        sample=bool(search["do_sample"]),
        swinbert=True,  # ends a caption in place of its last word
    )


def generate_like_swinbert(
    model: "AlbertForImageCaptioning",
    input_ids: Tensor,
    img_feats: Tensor,
    attention_mask: Tensor,
    *,
    bos_token_id: int,
    eos_token_ids: int | list[int],
    pad_token_id: int,
    mask_token_id: int,
    token_type_ids: Tensor | None = None,
    add_od_labels: bool = False,
    od_labels_start_posid: int | None = None,
    bad_ending_ids: list[int] | None = None,
    **arguments: Any,
) -> tuple[Tensor, Tensor]:
    """Write captions with the arguments of SwinBERT's `generate`, computed with cached states.

    Args:
        model: The model.
        input_ids: int64 [B, max_length + S]; only the second text in it, of S places, is read, if
            `add_od_labels`.
        img_feats: [B, M, D].
        attention_mask: [B, N, N], N = max_length + S + M. What the second text and the video see is
            taken from it.
        bos_token_id, eos_token_ids, pad_token_id, mask_token_id: [CLS], [SEP] (one token), [PAD]
            and [MASK].
        token_type_ids: int64 [B, max_length + S].
        add_od_labels: Whether there is a second text.
        od_labels_start_posid: Where its positions begin, but not before max_length.
        bad_ending_ids: Tokens after which no caption ends. SwinBERT takes them and does nothing
            with them.
        **arguments: max_length counts [CLS] and [SEP]; num_keep_best is K, the captions returned,
            and the finished ones that a search keeps; the others as in `GenerationSettings`. The
            caption's positions are 0, 1, …: `position_ids` must be None.

    Returns:
        ids int64 [B, K, max_length]; scores [B, K]: mean log-probability, of a search over length
        to the length penalty.
    """
    ends = [eos_token_ids] if isinstance(eos_token_ids, int) else list(eos_token_ids)
    wrong = [
        name
        for name, only in _FIXED_ARGUMENTS.items()
        if (arguments.pop(name, only) or only) != only
    ]
    if len(ends) != 1:
        wrong.append("eos_token_ids")
    arguments = {
        name: value
        for name, value in arguments.items()
        if name != "position_ids" or value is not None
    }
    wrong += sorted(arguments.keys() - _SEARCH.keys() - _WITHOUT_EFFECT)
    if wrong:
        raise ConfigError(
            "bad-value",
            f"{', '.join(wrong)}: not possible in this generation",
            "leave it out; `albertkit.captioning.generate.generate` has more kinds of search",
        )
    settings = search_settings(arguments)
    albert = model.albert
    max_length = settings.longest
    if attention_mask.dim() == 2:
        attention_mask = attention_mask[:, None].expand(-1, attention_mask.shape[1], -1)
    second = attention_mask.shape[1] - max_length - img_feats.shape[1]
    hidden = albert.project(img_feats)
    if add_od_labels:
        text = input_ids[:, max_length:]
        start = max(od_labels_start_posid or 0, max_length)
        positions = torch.arange(start, start + second, device=text.device)
        types = None if token_type_ids is None else token_type_ids[:, max_length:]
        hidden = torch.cat([albert.embed(text, positions, types), hidden], 1)
    visual_bias = attention_bias_of_mask(attention_mask[:, max_length:, max_length:], hidden.dtype)
    # Every row of a caption sees the same of the second text and the video: the row of [CLS] says
    # what.
    caption_bias = attention_bias_of_mask(attention_mask[:, 0, max_length:], hidden.dtype)
    context = encode_context(albert.encoder, hidden, visual_bias, False, caption_bias)
    bad = torch.tensor(bad_ending_ids, device=img_feats.device) if bad_ending_ids else None
    ids = CaptionIds(bos_token_id, ends[0], mask_token_id, pad_token_id)
    generated = generate(model, context, settings, ids, bad)
    return generated.ids, generated.scores


# --- the tokenizer --------------------------------------------------------------------------------


class SwinBertTokenizer:
    """An `AlbertTokenizer` in the place of SwinBERT's `BertTokenizer`.

    Unlike in BERT's, the name of a special token within a caption is plain text.

    What is not here, such as `encode`, `vocab_size`, `mask_token_id` or `save_pretrained`, is the
    tokenizer's own.

    Attributes:
        tokenizer: The tokenizer.
        tokens: All tokens, by id.
        vocab: Ids of all tokens.
        all_special_ids, all_special_tokens: Padding, unknown, start, separation and mask.
    """

    def __init__(self, tokenizer: AlbertTokenizer) -> None:
        self.tokenizer = tokenizer
        self.tokens = [tokenizer.id_to_piece(number) for number in range(tokenizer.vocab_size)]
        self.vocab = {token: number for number, token in enumerate(self.tokens)}
        self.all_special_ids = [
            getattr(tokenizer, f"{role}_id") for role in tokenizer_files.SPECIAL_ROLES
        ]
        self.all_special_tokens = [self.tokens[number] for number in self.all_special_ids]

    def __getattr__(self, name: str) -> Any:
        if name == "tokenizer":  # asked while a worker unpickles it
            raise AttributeError(name)
        return getattr(self.tokenizer, name)

    @classmethod
    def from_pretrained(
        cls, folder: StrPath, do_lower_case: bool | None = None
    ) -> "SwinBertTokenizer":
        """Read the tokenizer of a folder; `do_lower_case` as in `AlbertTokenizer.from_pretrained`."""
        return cls(AlbertTokenizer.from_pretrained(folder, do_lower_case=do_lower_case))

    @classmethod
    def of_run(cls, folder: Path, do_lower_case: bool) -> "SwinBertTokenizer":
        """Read the tokenizer of a training, whose arguments speak of the case of a `vocab.txt` without settings alone."""
        names = (tokenizer_files.CONFIG_NAME, tokenizer_files.JSON_NAME)
        has_rules = any((folder / name).exists() for name in names) or any(folder.glob("*.model"))
        is_bare = (folder / tokenizer_files.VOCAB_NAME).exists() and not has_rules
        return cls.from_pretrained(folder, do_lower_case if is_bare else None)

    def __len__(self) -> int:
        return self.vocab_size

    def tokenize(self, text: str) -> list[str]:
        """Return tokens of a text; unknown ones under the name of the unknown token."""
        return [self.tokens[number] for number in self.tokenizer.encode(text)]

    def convert_ids_to_tokens(
        self, ids: int | Sequence[int], skip_special_tokens: bool = False
    ) -> str | list[str]:
        """Return token of an id, or tokens of ids."""
        if isinstance(ids, int):
            return self.tokens[ids]
        return [
            self.tokens[number]
            for number in ids
            if not (skip_special_tokens and number in self.all_special_ids)
        ]

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        """Return text of tokens."""
        return self.decode([self.vocab.get(token, self.unk_token_id) for token in tokens])

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> int | list[int]:
        """Return id of a token, or ids of tokens; that of the unknown token for what is none."""
        unknown = self.tokenizer.unk_id
        if isinstance(tokens, str):
            return self.vocab.get(tokens, unknown)
        return [self.vocab.get(token, unknown) for token in tokens]

    def get_random_token(self) -> str:
        """Draw any token with Python's generator, which SwinBERT seeds."""
        # BERT's sometimes draws one past the last.
        return self.tokens[random.randrange(self.vocab_size)]

    def decode(
        self,
        ids: Sequence[int],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool = True,
    ) -> str:
        """Return text of ids. The spaces are always those of the tokenizer's own text; the last argument changes nothing."""
        return self.tokenizer.decode(ids, skip_special_tokens)


def clean_up_tokenization(text: str) -> str:
    """Return text without the spaces that BERT's tokens leave before punctuation and within contractions."""
    # In the order of SwinBERT's tokenizer, which writes "do not" as "don't".
    for spaced in (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " do not", " 's", " 've", " 're"):
        text = text.replace(spaced, " don't" if spaced == " do not" else spaced.strip())
    return text
