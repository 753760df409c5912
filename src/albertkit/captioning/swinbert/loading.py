"""`get_albert_model(args)`: what SwinBERT's scripts call in place of `get_bert_model`."""

import sys
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from albertkit.captioning.model import AlbertForImageCaptioning, CaptionConfig
from albertkit.captioning.swinbert.arguments import ModelArguments
from albertkit.captioning.swinbert.tokenizer import SwinBertTokenizer
from albertkit.checkpoints.configurations import make_config, read_values
from albertkit.checkpoints.folder import OLD_WEIGHTS, WEIGHTS, fill, read_tensors
from albertkit.config import AlbertConfig
from albertkit.errors import CheckpointError, ConfigError
from albertkit.model_folder import local_folder

_PROJECTION = "albert.img_embedding."
_DECODER = "predictions.decoder.weight"
_WORDS = "embeddings.word_embeddings.weight"
# What a pretrained ALBERT may lack; without these it is none.
_MAY_BE_FRESH = (_PROJECTION, "albert.pooler.", "albert.video_gate", "predictions.")


def get_albert_model(args: Any) -> tuple[AlbertForImageCaptioning, AlbertConfig, SwinBertTokenizer]:
    """Make the text model that SwinBERT's arguments ask for, with pretrained weights where there are any.

    What was loaded and what was not is printed on stderr. `args.initialised_from` becomes the folder or "scratch", so that
    SwinBERT's log/args.json records it.

    Args:
        args: Namespace, EasyDict or dictionary; see `ModelArguments` for what is read and its defaults.

    Returns:
        The model on the CPU in evaluation mode, its configuration, and its tokenizer with the methods of SwinBERT's.

    Raises:
        ConfigError: bad-argument, bad-config, wrong-model; structure-changed for a width, or a number of heads, that the
            weights do not have.
        CheckpointError: vocab-mismatch, no-weights, broken-weights, weights-mismatch, no-tokenizer. DataError: not-found,
            broken-json. MachineError: hub-unreachable.
    """
    given = ModelArguments.of(args)
    folder = local_folder(given.model_name_or_path)
    tensors = _weights(folder, given)
    stored, notes = _stored_config(given, folder)
    config = _config(stored, given, folder if tensors else None)
    tokenizer = SwinBertTokenizer.from_pretrained(local_folder(given.tokenizer_name or folder), given.do_lower_case)
    if tokenizer.vocab_size != config.vocab_size:
        raise CheckpointError(
            "vocab-mismatch",
            f"the tokenizer in `{given.tokenizer_name or folder}` has {tokenizer.vocab_size:,} pieces, the configuration "
            f"{config.vocab_size:,}",
            "use the tokenizer that the weights were trained with; without weights, correct vocab_size in config.json",
        )
    if tensors:
        model, fresh, left_out = _filled(config, tensors, str(folder))
        source = str(folder)
    else:
        model, fresh, left_out, source = AlbertForImageCaptioning(config).eval(), [], [], "scratch"
    _record(args, source)
    for line in (*notes, *_said(model, source, folder, fresh, left_out)):
        print(line, file=sys.stderr)
    return model, config, tokenizer


def _weights(folder: Path, given: ModelArguments) -> Mapping[str, Tensor]:
    """The tensors to start from, empty for none."""
    there = any((folder / f"{name}{end}").exists() for name in (WEIGHTS, OLD_WEIGHTS) for end in ("", ".index.json"))
    if given.init == "scratch" or (given.init == "auto" and not there):
        return {}
    return read_tensors(folder)


def _stored_config(given: ModelArguments, folder: Path) -> tuple[AlbertConfig, list[str]]:
    named = Path(given.config_name) if given.config_name else folder
    file = named if named.is_file() else local_folder(named) / "config.json"
    return make_config(read_values(file), file)


def _config(stored: AlbertConfig, given: ModelArguments, weights: Path | None) -> AlbertConfig:
    """The configuration of the folder with what the arguments ask for."""
    changes = {name: value for name, value in given.structure.items() if value != getattr(stored, name)}
    # Any number of passes can be made of one layer; with more groups each layer has weights of its own.
    fixed = {name for name in changes if name != "num_hidden_layers" or stored.num_hidden_groups > 1}
    if weights and fixed:
        asked = ", ".join(f"{name} {changes[name]}" for name in sorted(fixed))
        there = ", ".join(f"{name} {getattr(stored, name)}" for name in sorted(fixed))
        raise ConfigError(
            "structure-changed", f"the arguments ask for {asked}; the weights in `{weights}` have {there}",
            'leave them at -1; or begin without these weights: "init": "scratch" in the file given as --config',
        )  # fmt: skip
    caption = CaptionConfig.of(stored).to_dict() | {
        "video_attention": "full",  # VideoTransformer gives a mask, the learned one included
        "num_visual_tokens": 0,
        "hard_gate": False,
        "tie_weights": given.tie_weights,
        "freeze_embedding": given.freeze_embedding,
        "label_smoothing": given.label_smoothing,
        "drop_worst_ratio": given.drop_worst_ratio,
        "drop_worst_after": given.drop_worst_after,
    }
    if given.img_feature_dim > 0:
        caption["img_feature_dim"] = given.img_feature_dim
    return CaptionConfig(**caption).put_into(stored.replace(**changes, hidden_dropout_prob=given.drop_out))


def _filled(
    config: AlbertConfig, stored: Mapping[str, Tensor], source: str
) -> tuple[AlbertForImageCaptioning, list[str], list[str]]:
    """The model with the weights; what began afresh, and what the weights have beyond it."""
    tensors = dict(stored)
    projection = tensors.get(f"{_PROJECTION}projection.weight")
    other_width = projection is not None and projection.shape[1] != CaptionConfig.of(config).img_feature_dim
    dropped = [
        name for name in tensors if name == "albert.video_gate" or (other_width and name.startswith(_PROJECTION))
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
    may_be_fresh = [name for name in names if name.startswith(_MAY_BE_FRESH)]
    model, matched = fill(AlbertForImageCaptioning, config, tensors, may_be_fresh, source)
    return model, matched.fresh, [*dropped, *matched.left_out]


def _record(args: Any, source: str) -> None:
    if isinstance(args, MutableMapping):
        args["initialised_from"] = source
    elif not isinstance(args, Mapping):
        args.initialised_from = source


def _said(
    model: AlbertForImageCaptioning, source: str, folder: Path, fresh: list[str], left_out: list[str]
) -> Iterator[str]:
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
