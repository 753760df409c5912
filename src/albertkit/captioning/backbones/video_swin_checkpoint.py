"""Video Swin from and to files: the published `.pth` of Kinetics, SwinBERT's `model.bin`, a captioner's folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from albertkit.captioning.backbones.backbone import check_unchanged
from albertkit.captioning.backbones.video_swin import VideoSwinBackbone, relative_position_index
from albertkit.errors import CheckpointError, ConfigError, DataError
from albertkit.files import load
from albertkit.model.folder import read_tensor_file

PREFIX = "swin.backbone."  # in a checkpoint of SwinBERT
KIND = "video-swin:"
_FIRST = "patch_embed.proj.weight"
_TABLE, _INDEX = ".attn.relative_position_bias_table", ".attn.relative_position_index"
_FILES = ("backbone.safetensors", "model.bin", "model.safetensors", "*.pth")
_HEADS = ("cls_head.", "head.")  # of classifiers, where nothing stands before the backbone's names


def load_video_swin(
    name: str, settings: Mapping[str, Any] | None = None, weights: Mapping[str, Tensor] | None = None
) -> VideoSwinBackbone:
    """Load from a file, or make again from settings and weights, which needs no file. Frozen until `requires_grad_()`."""
    if weights is not None:
        return _filled(dict(settings or {}), weights, name, name)
    file = find_file(Path(name.removeprefix(KIND)))
    tensors = read_tensor_file(file, within="state_dict")
    found = _settings_of_captioner(file)
    if found is None:
        found, tensors = sort_video_swin(tensors, file)
    if settings is not None:
        check_unchanged(name, settings, found | {"drop_path_rate": settings.get("drop_path_rate")})
        found = dict(settings)
    return _filled(found, tensors, name, str(file)).requires_grad_(False)


def read_video_swin(state: Mapping[str, Tensor], file: Path, name: str) -> VideoSwinBackbone:
    """Make the Video Swin of a state dict, frozen; arguments and errors as `sort_video_swin`."""
    settings, tensors = sort_video_swin(state, file)
    return _filled(settings, tensors, name, str(file)).requires_grad_(False)


def find_file(path: Path) -> Path:
    """Return the file itself, or that of a folder."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise DataError("not-found", f"no Video Swin checkpoint at `{path}`", "name its file or its folder")
    for pattern in _FILES:
        files = sorted(path.glob(pattern))
        if len(files) == 1:
            return files[0]
    raise CheckpointError(
        "missing-file", f"`{path}` holds none of {', '.join(_FILES[:-1])}, and not one .pth", "name the file itself"
    )


def sort_video_swin(state: Mapping[str, Tensor], file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the settings that the shapes of a state dict say, and the backbone's tensors under our names, in float32."""
    starts = [key.removesuffix(_FIRST) for key in state if key.endswith(_FIRST)]
    if len(starts) != 1 or state[starts[0] + _FIRST].dim() != 5:
        found = f"has {len(starts)} tensors" if len(starts) != 1 else "is a Swin for images: it has no 3-D"
        raise CheckpointError(
            "weights-mismatch",
            f"`{file}` {found} `{_FIRST}`",
            "name a Video Swin checkpoint, for example swin_base_patch244_window877_kinetics600_22k.pth",
        )
    start = starts[0]
    own = {key.removeprefix(start): tensor for key, tensor in state.items() if key.startswith(start)}
    if not start:
        own = {key: tensor for key, tensor in own.items() if not key.startswith(_HEADS)}
    indices = {key: own.pop(key) for key in [*own] if key.endswith(_INDEX)}
    try:
        settings = _settings(own, indices)
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise CheckpointError(
            "weights-mismatch", f"`{file}` holds no whole Video Swin: {error!r}", "copy or download it again"
        ) from None
    time, height, width = settings["window_size"]
    index = relative_position_index((time, height, width))
    if wrong := [key for key, found in indices.items() if not torch.equal(found.long(), index)]:
        raise CheckpointError(
            "weights-mismatch",
            f"`{wrong[0]}` in `{file}` is not that of windows of {settings['window_size']}",
            "copy or download it again",
        )
    return settings, {key: tensor.float() for key, tensor in own.items()}


@dataclass
class _SavedBackbone:
    settings: dict[str, Any]


@dataclass
class _Saved:
    """Backbone of a captioner, as `captioner.json` has it."""

    backbone: _SavedBackbone


def _settings_of_captioner(file: Path) -> dict[str, Any] | None:
    """Read the settings of the backbone that a captioner keeps; None for any other file."""
    captioner = file.parent / "captioner.json"
    if file.name != _FILES[0] or not captioner.is_file():
        return None
    return load(captioner, _Saved, "captioner", "copy the folder again").backbone.settings


def _settings(own: Mapping[str, Tensor], indices: Mapping[str, Tensor]) -> dict[str, Any]:
    first = own[_FIRST]
    places = [key.split(".") for key in own if key.endswith(_TABLE)]
    blocks = sorted((int(stage), int(block)) for _, stage, _, block, *_ in places)
    depths = [0] * (blocks[-1][0] + 1)
    for stage, _ in blocks:
        depths[stage] += 1
    heads = [own[f"layers.{stage}.blocks.0{_TABLE}"].shape[1] for stage in range(len(depths))]
    return {
        "embed_dim": first.shape[0],
        "depths": depths,
        "num_heads": heads,
        "window_size": _window(own[f"layers.0.blocks.0{_TABLE}"], indices[f"layers.0.blocks.0{_INDEX}"]),
        "patch_size": list(first.shape[2:]),
        "patch_norm": "patch_embed.norm.weight" in own,
        "drop_path_rate": 0.2,
    }


def _window(table: Tensor, index: Tensor) -> list[int]:
    """Return the sides whose product is the number of tokens, and whose offsets are as many as the table's rows."""
    tokens, rows = len(index), len(table)
    sides = [side for side in range(1, tokens + 1) if tokens % side == 0]
    for height, width in product(sides, sides):
        time = tokens // (height * width)
        fits = time * height * width == tokens and (2 * time - 1) * (2 * height - 1) * (2 * width - 1) == rows
        if fits and torch.equal(relative_position_index((time, height, width)), index.long()):
            return [time, height, width]
    raise ValueError(f"no window has {tokens} tokens and {rows} offsets in this order")


def _filled(settings: dict[str, Any], tensors: Mapping[str, Tensor], name: str, source: str) -> VideoSwinBackbone:
    """Make a backbone without memory and give it the tensors: sizes that only the settings name reserve nothing."""
    try:
        with torch.device("meta"):
            backbone = VideoSwinBackbone(**settings, name=name)
        backbone.load_state_dict(
            {key: tensor.to(torch.float32, copy=True) for key, tensor in tensors.items()}, assign=True
        )
    except TypeError as error:
        raise ConfigError("bad-value", f"`{name}`: {error}", "copy the whole captioner again") from None
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise CheckpointError(
            "corrupt",
            f"the weights in `{source}` are not those of its Video Swin: {reason}",
            "copy or download it again",
        ) from None
    return backbone.eval()
