"""Models of transformers from a folder or the hub, whole and never with code from there."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from albertkit.captioning.backbones.kinds import VisionKind, find_kind
from albertkit.captioning.backbones.pixels import PixelValues, read_preprocessing
from albertkit.captioning.backbones.transformers_backbone import TransformersBackbone
from albertkit.checkpoints.hub import local_folder
from albertkit.errors import CheckpointError, ConfigError, MissingExtraError
from albertkit.files import read_json

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def load_transformers_backbone(
    name: str, settings: Mapping[str, Any] | None = None, weights: Mapping[str, Tensor] | None = None
) -> TransformersBackbone:
    """Load from a folder or the hub, or make again from settings and weights, which needs neither.

    Args:
        name: `hf:` and a folder or `org/name`.
        settings: As `TransformersBackbone.settings` gave them. Default: the folder's. Without weights they only say how pixels
            are scaled; the folder must hold the same configuration.
        weights: As its `state_dict` gave them. Default: the folder's.

    Raises:
        MissingExtraError: missing-extra. DataError: not-found, broken-json. MachineError: hub-unreachable.
        CheckpointError: not-a-vision-model, no-config, no-weights, broken-weights, other-backbone. ConfigError: bad-config,
            bad-settings.
    """
    try:
        import transformers
    except ImportError:
        raise MissingExtraError.of("transformers", "caption", f"the backbone `{name}`") from None
    if weights is not None:
        if settings is None or not {"config", "pixels", "frame_size"} <= set(settings):
            raise ConfigError("bad-settings", f"`{name}`: weights without settings", "give the settings beside them")
        kind = find_kind(settings["config"].get("model_type"), name)
        config_class = getattr(transformers, kind.model_class).config_class
        config = _made("bad-config", name, config_class.from_dict, dict(settings["config"]))
        state = {key.removeprefix("model."): tensor for key, tensor in weights.items()}
        model = _model(name, kind, config, None, state)
        return TransformersBackbone(
            name, model, kind, PixelValues.from_dict(settings["pixels"]), settings["frame_size"]
        )
    folder = local_folder(name.removeprefix("hf:"))
    if not (folder / "config.json").exists():
        raise CheckpointError("no-config", f"`{folder}` holds no config.json", "name a folder that transformers wrote")
    kind = find_kind(_model_type(folder / "config.json"), name)
    if not any((folder / file).exists() for file in _WEIGHTS):
        raise CheckpointError(
            "no-weights", f"`{folder}` holds none of {', '.join(_WEIGHTS)}", "copy or download the whole model"
        )
    config_class = getattr(transformers, kind.model_class).config_class
    config = _made("bad-config", name, config_class.from_pretrained, folder, local_files_only=True)
    for key, value in kind.config.items():
        setattr(config, key, value)
    wanted = read_preprocessing(folder, kind.published)
    backbone = TransformersBackbone(name, _model(name, kind, config, folder, None), kind, wanted.values, wanted.size)
    if settings is not None and dict(settings) != backbone.settings():
        own = backbone.settings()
        differing = sorted(key for key in {*settings, *own} if settings.get(key) != own.get(key))
        raise CheckpointError(
            "other-backbone", f"`{name}` is not the model that was used before (differing: {', '.join(differing)})",
            "name the model that the captioner was made with, or prepare and train anew",
        )  # fmt: skip
    return backbone


def _model(
    name: str, kind: VisionKind, config: Any, folder: Path | None, state: Mapping[str, Tensor] | None
) -> nn.Module:
    """transformers' model with every weight that the tokens need.

    Raises:
        CheckpointError: broken-weights.
    """
    import transformers

    load = getattr(transformers, kind.model_class).from_pretrained
    how = {"dtype": torch.float32, "local_files_only": True, "weights_only": True, "output_loading_info": True}
    with _quiet():
        model, found = _made("broken-weights", name, load, folder, config=config, state_dict=state, **how, **kind.init)
    missing = sorted(key for key in found["missing_keys"] if not key.startswith(kind.unused or ("\0",)))
    if missing:
        raise CheckpointError(
            "broken-weights", f"`{name}` lacks {len(missing)} of its weights, the first is `{missing[0]}`",
            "copy or download the whole model",
        )  # fmt: skip
    return model


def _model_type(file: Path) -> Any:
    config = read_json(file)
    return config.get("model_type") if isinstance(config, dict) else None


def _made(slug: str, name: str, make: Any, *arguments: Any, **named: Any) -> Any:
    """Call transformers; what it raises shares no base class.

    Raises:
        CheckpointError: of that slug.
    """
    try:
        return make(*arguments, **named)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            slug, f"transformers cannot load `{name}`: {reason}", "check its files, or copy or download them again"
        ) from None  # fmt: skip


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bar of a second and no table of heads that are left out on purpose."""
    from transformers.utils import logging

    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
