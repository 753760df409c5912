"""`get_albert_model(args)`: what SwinBERT's scripts call in place of `get_bert_model`."""

import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from albertkit.captioning.model import CaptionConfig
from albertkit.captioning.swinbert.arguments import ModelArguments
from albertkit.captioning.swinbert.classes import AlbertConfig, AlbertForImageCaptioning, filled, told
from albertkit.captioning.swinbert.evaluation import RECORDED, EvaluatedRun
from albertkit.captioning.swinbert.tokenizer import SwinBertTokenizer
from albertkit.errors import CheckpointError, ConfigError
from albertkit.files import load
from albertkit.model.folder import OLD_WEIGHTS, WEIGHTS, read_tensors
from albertkit.model.keywords import make_config
from albertkit.model_folder import local_folder


def get_albert_model(args: Any) -> tuple[AlbertForImageCaptioning, AlbertConfig, SwinBertTokenizer]:
    """Make the text model that SwinBERT's arguments ask for, with pretrained weights where there are any.

    What was loaded and what was not is printed on stderr. `args.initialised_from` becomes the folder or "scratch", and
    `args.albert_folder` the folder, so that SwinBERT's log/args.json records them. Where the arguments evaluate a run, its
    own tokenizer is used, and its checkpoint must hold every parameter of the model.

    Args:
        args: Namespace, EasyDict or dictionary; see `ModelArguments` for what is read and its defaults.

    Returns:
        The model on the CPU in evaluation mode, its configuration, and its tokenizer with the methods of SwinBERT's.

    Raises:
        ConfigError: bad-value, wrong-model; weights-mismatch for a width, or a number of heads, that the
            weights do not have.
        CheckpointError: wrong-tokenizer, missing-file, corrupt, weights-mismatch, no-tokenizer. DataError: not-found,
            bad-file. MachineError: unreachable.
    """
    given = ModelArguments.of(args)
    folder = local_folder(given.model_name_or_path)
    tensors = _weights(folder, given)
    stored, notes = _stored_config(given, folder)
    config = _config(stored, given, folder if tensors else None)
    tokenizer = SwinBertTokenizer.from_pretrained(local_folder(given.tokenizer_name or folder), given.do_lower_case)
    run = EvaluatedRun.of(args)
    if run is not None:
        tokenizer = run.tokenizer(tokenizer, given.do_lower_case)
    if tokenizer.vocab_size != config.vocab_size:
        raise CheckpointError(
            "wrong-tokenizer",
            f"the tokenizer in `{given.tokenizer_name or folder}` has {tokenizer.vocab_size:,} tokens, the configuration "
            f"{config.vocab_size:,}",
            "use the tokenizer that the weights were trained with; without weights, correct vocab_size in config.json",
        )
    if tensors:
        model, fresh, left_out = filled(config, tensors, str(folder))
        source = str(folder)
    else:
        model, fresh, left_out, source = AlbertForImageCaptioning(config).eval(), [], [], "scratch"
    if run is not None:
        run.check(model)
    _record(args, source, given.model_name_or_path)
    for line in (*notes, *told(model, source, folder, fresh, left_out)):
        print(line, file=sys.stderr)
    return model, config, tokenizer


def _weights(folder: Path, given: ModelArguments) -> Mapping[str, Tensor]:
    """Return the tensors to start from, empty for none."""
    there = any((folder / f"{name}{end}").exists() for name in (WEIGHTS, OLD_WEIGHTS) for end in ("", ".index.json"))
    if given.init == "scratch" or (given.init == "auto" and not there):
        return {}
    return read_tensors(folder)


def _stored_config(given: ModelArguments, folder: Path) -> tuple[AlbertConfig, list[str]]:
    named = Path(given.config_name) if given.config_name else folder
    file = named if named.is_file() else local_folder(named) / "config.json"
    config, notes = make_config(load(file, dict[str, Any], "model configuration"), file)
    return AlbertConfig.of(config), notes


def _config(stored: AlbertConfig, given: ModelArguments, weights: Path | None) -> AlbertConfig:
    """Return the configuration of the folder with what the arguments ask for."""
    changes = {name: value for name, value in given.structure.items() if value != getattr(stored, name)}
    # Any number of layers can be made of one layer; with more groups each layer has weights of its own.
    fixed = {name for name in changes if name != "num_hidden_layers" or stored.num_hidden_groups > 1}
    if weights and fixed:
        asked = ", ".join(f"{name} {changes[name]}" for name in sorted(fixed))
        there = ", ".join(f"{name} {getattr(stored, name)}" for name in sorted(fixed))
        raise ConfigError(
            "weights-mismatch",
            f"the arguments ask for {asked}; the weights in `{weights}` have {there}",
            'leave them at -1; or begin without these weights: "init": "scratch" in the file given as --config',
        )
    caption = CaptionConfig.of(stored).to_dict() | {
        "video_attention": "full",  # VideoTransformer gives a mask, the learned one included
        "num_visual_tokens": 0,
        "backbone_dim": 0,  # VideoTransformer has its own `fc`
        "hard_gate": False,
        "tie_weights": given.tie_weights,
        "freeze_embedding": given.freeze_embedding,
        "label_smoothing": given.label_smoothing,
        "drop_worst_ratio": given.drop_worst_ratio,
        "drop_worst_after": given.drop_worst_after,
    }
    if given.img_feature_dim > 0:
        caption["img_feature_dim"] = given.img_feature_dim
    changed = stored.replace(**changes, hidden_dropout_prob=given.drop_out)
    return cast(AlbertConfig, CaptionConfig(**caption).put_into(changed))


def _record(args: Any, source: str, folder: str) -> None:
    """Note in SwinBERT's arguments, which its training keeps, where the model began and which folder it is of."""
    for name, value in (("initialised_from", source), (RECORDED, folder)):
        if isinstance(args, MutableMapping):
            args[name] = value
        elif not isinstance(args, Mapping):
            setattr(args, name, value)
