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
from albertkit.errors import CheckpointError, ConfigError, MissingExtraError
from albertkit.files import read_json
from albertkit.model_folder import local_folder

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def load_transformers_backbone(
    name: str, settings: Mapping[str, Any] | None = None, weights: Mapping[str, Tensor] | None = None
) -> TransformersBackbone:
    """Load from a folder or the hub, or make again from settings and weights, which needs neither.

    Args:
        name: `hf:` and a folder or `org/name`.
        settings: As `TransformersBackbone.settings` gave them. Default: the folder's. Without weights the folder must agree.
        weights: As its `state_dict` gave them. Default: the folder's.

    Raises:
        MissingExtraError: missing-extra. DataError: not-found, broken-json. MachineError: hub-unreachable.
        CheckpointError: not-a-vision-model, no-config, bad-config, no-weights, broken-weights, other-backbone. ConfigError:
            bad-config, bad-settings.
    """
    try:
        import transformers  # noqa: F401
    except ImportError:
        raise MissingExtraError.of("transformers", "caption", f"the backbone `{name}`") from None
    if weights is not None:
        return _made_again(name, settings or {}, weights)
    folder = local_folder(name.removeprefix("hf:"))
    if not (folder / "config.json").exists():
        raise CheckpointError("no-config", f"`{folder}` holds no config.json", "name a folder that transformers wrote")
    kind = find_kind(_model_type(folder / "config.json"), name)
    if not any((folder / file).exists() for file in _WEIGHTS):
        raise CheckpointError(
            "no-weights", f"`{folder}` holds none of {', '.join(_WEIGHTS)}", "copy or download the whole model"
        )
    read = _model_class(kind, name).config_class.from_pretrained
    config = _made("bad-config", name, read, folder, local_files_only=True)
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


def _made_again(name: str, settings: Mapping[str, Any], weights: Mapping[str, Tensor]) -> TransformersBackbone:
    try:
        values, pixels = dict(settings["config"]), PixelValues.from_dict(settings["pixels"])
        frame_size = settings["frame_size"]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            "bad-settings", f"`{name}`: settings of no backbone beside the weights: {error!r}",
            "give what `settings()` gave with the weights",
        ) from None  # fmt: skip
    kind = find_kind(values.get("model_type"), name)
    config = _made("bad-config", name, _model_class(kind, name).config_class.from_dict, values)
    state = {key.removeprefix("model."): tensor for key, tensor in weights.items()}
    return TransformersBackbone(name, _model(name, kind, config, None, state), kind, pixels, frame_size)


def _model_class(kind: VisionKind, name: str) -> Any:
    import transformers

    if not hasattr(transformers, kind.model_class):  # VideoPrism is younger than the oldest version that is allowed
        raise CheckpointError(
            "not-a-vision-model", f"`{name}` needs {kind.model_class}, which transformers {transformers.__version__} lacks",
            "pip install -U -c constraints.txt 'albertkit[caption]'",
        )  # fmt: skip
    return getattr(transformers, kind.model_class)


def _model(
    name: str, kind: VisionKind, config: Any, folder: Path | None, state: Mapping[str, Tensor] | None
) -> nn.Module:
    """transformers' model with every weight that the tokens need.

    Raises:
        CheckpointError: broken-weights.
    """
    load = _model_class(kind, name).from_pretrained
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
