"""AlbertConfig and AlbertForImageCaptioning as SwinBERT's loader treats BERT's: set after reading, loaded from any ALBERT."""

import dataclasses
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from albertkit import config as core
from albertkit.captioning import model as captioning
from albertkit.captioning.model import CaptionConfig
from albertkit.captioning.swinbert.generation import generate_like_swinbert
from albertkit.errors import ConfigError
from albertkit.files import load
from albertkit.model.folder import WEIGHTS, read_tensors
from albertkit.model.keywords import make_config
from albertkit.model_folder import local_folder

CONFIG_NAME, WEIGHTS_NAME = "config.json", WEIGHTS
_PROJECTION = "albert.img_embedding."
_DECODER = "predictions.decoder.weight"
_WORDS = "embeddings.word_embeddings.weight"
# What a pretrained ALBERT may lack; without these it is none.
_MAY_BE_FRESH = (_PROJECTION, "albert.pooler.", "albert.video_gate", "predictions.")
_FIELDS = frozenset(field.name for field in dataclasses.fields(core.AlbertConfig))
_CAPTION = frozenset(field.name for field in dataclasses.fields(CaptionConfig)) - core.FOREIGN_KEYS


class AlbertConfig(core.AlbertConfig):
    """A configuration whose values may be set, as SwinBERT's loader sets BERT's.

    The settings of `CaptionConfig` are attributes, too. What ALBERT does not read, such as `loss_type`, is kept as it is.
    """

    @classmethod
    def of(cls, config: core.AlbertConfig) -> "AlbertConfig":
        """Return a configuration of this class with the same values."""
        values = {name: getattr(config, name) for name in _FIELDS}
        return cls(**values | {"foreign": dict(config.foreign)})

    @classmethod
    def from_pretrained(cls, folder: str | Path, **changes: Any) -> "AlbertConfig":
        """Read the `config.json` of a folder, or such a file, and set some values."""
        path = Path(folder)
        file = path if path.is_file() else local_folder(folder) / "config.json"
        config = cls.of(make_config(load(file, dict[str, Any], "model configuration"), file)[0])
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


class AlbertForImageCaptioning(captioning.AlbertForImageCaptioning):
    """The captioning model with the arguments and outputs of SwinBERT's `BertForImageCaptioning`.

    `from_pretrained` takes any ALBERT, and what it lacks begins afresh.
    """

    @property
    def bert(self) -> captioning.AlbertImgModel:
        """Return the encoder under the name that SwinBERT's VideoTransformer uses."""
        return self.albert

    def forward(self, *inputs: Any, is_decode: bool = False, **named: Any) -> tuple[Tensor, ...]:
        """Return the loss or the logits; with `is_decode` captions, as `generate_like_swinbert`."""
        if is_decode:
            named.pop("is_training", None)
            return generate_like_swinbert(self, *inputs, **named)
        return super().forward(*inputs, **named)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        allow_missing: Collection[str] = (),
        revision: str | None = None,
        *,
        config: core.AlbertConfig | None = None,
        from_tf: bool = False,
        **changes: Any,
    ) -> "AlbertForImageCaptioning":
        """Load the weights of a folder; what was loaded and what was not is printed on stderr."""
        if from_tf:
            raise ConfigError("bad-value", f"`{folder}`: from_tf=True", f"albertkit convert {folder} ALBERT")
        path = local_folder(folder, revision)
        built = AlbertConfig.from_pretrained(path) if config is None else AlbertConfig.of(config)
        for name, value in changes.items():
            setattr(built, name, value)
        model, fresh, left_out = filled(built, read_tensors(path), str(path), allow_missing)
        for line in told(model, str(path), path, fresh, left_out):
            print(line, file=sys.stderr)
        return model


def cached_path(source: str | Path) -> str:
    """Return the path of a file or folder that exists, or of the local copy of a model of the hub."""
    return str(source) if Path(source).exists() else str(local_folder(source))


def filled(
    config: core.AlbertConfig, stored: Mapping[str, Tensor], source: str, allow_missing: Collection[str] = ()
) -> tuple[AlbertForImageCaptioning, list[str], list[str]]:
    """Return the model with the weights; what began afresh, and what the weights have beyond it."""
    tensors = dict(stored)
    projection = tensors.get(f"{_PROJECTION}projection.weight")
    other_width = projection is not None and projection.shape[1] != CaptionConfig.of(config).img_feature_dim
    dropped = [
        name
        for name in tensors
        if name.startswith(("albert.video_gate", f"{_PROJECTION}fc.")) or (other_width and name.startswith(_PROJECTION))
    ]
    for name in dropped:
        del tensors[name]
    tied = CaptionConfig.of(config).tie_weights
    words = tensors.get(f"albert.{_WORDS}", tensors.get(_WORDS))
    if not tied and words is not None:
        tensors.setdefault(_DECODER, words)  # an output matrix of its own begins as a copy of what it was tied to
    if tied and _DECODER in tensors:
        dropped.append(_DECODER)
        del tensors[_DECODER]
    tensors.pop("predictions.decoder.bias", None)  # old files' second copy of predictions.bias
    with torch.device("meta"):
        names = AlbertForImageCaptioning(config).state_dict()
    may_be_fresh = [name for name in names if name.startswith((*_MAY_BE_FRESH, *allow_missing))]
    model, matched = AlbertForImageCaptioning.from_tensors(config, tensors, may_be_fresh, source)
    return model, matched.fresh, [*dropped, *matched.left_out]


def told(
    model: AlbertForImageCaptioning, source: str, folder: Path, fresh: list[str], left_out: list[str]
) -> Iterator[str]:
    """Yield lines that say where a model's weights are from."""
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
