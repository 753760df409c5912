"""Backbones by name; `conv3d`, the one for machines without any weights and for tests; models of transformers as backbones.

These come from a folder or the hub, whole and never with code from there.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from albertkit.captioning.backbone import (
    Backbone,
    Extent,
    PixelValues,
    TokenGrid,
    VisionKind,
    check_model_unchanged,
    find_vision_kind,
    hash_weights,
    read_pixel_values_and_size,
    refuse_unfit_parts,
)
from albertkit.errors import CheckpointError, ConfigError, first_line, requires_package
from albertkit.files import read_json
from albertkit.model.files import StateDict
from albertkit.model_paths import WEIGHTS_FILES, find_weights, local_folder
from albertkit.output.progress import quiet_transformers


class Conv3dBackbone(Backbone):
    """Four convolutions over time, height and width, each of which halves the size; the frames come out halved in number.

    The first reads colours, edges and how they move, where a step of one pixel still shows. Each
    spans 3 frames, so a token knows of 13 frames around its own.

    Args:
        width: Width of a visual token, a multiple of 64; the layers before have an eighth, a
            quarter and a half of it.
    """

    trained_from_scratch = True
    frame_size = 64

    def __init__(self, width: int = 192) -> None:
        super().__init__()
        if width < 64 or width % 64:
            raise ConfigError(
                "bad-value",
                f"width is {width}, it must be a multiple of 64",
                "use 128, 192 or 256",
            )
        self.name = "conv3d"
        self.out_dim = width
        first = width // 8
        second = width // 4
        third = width // 2
        # A first convolution over one frame does not see slow motion; three with a stride of 4 tell
        # shapes apart as slowly as four with 2.
        self.layers = nn.Sequential(
            nn.Conv3d(3, first, (3, 5, 5), (1, 2, 2), (1, 2, 2)),
            nn.GroupNorm(4, first),
            nn.GELU(),
            nn.Conv3d(first, second, 3, 2, 1),
            nn.GroupNorm(8, second),
            nn.GELU(),
            nn.Conv3d(second, third, 3, (1, 2, 2), 1),
            nn.GroupNorm(8, third),
            nn.GELU(),
            nn.Conv3d(third, width, 3, (1, 2, 2), 1),
        )

    def grid(self, num_frames: int, size: int) -> TokenGrid:
        """Return frames halved, rounded up; a place is 16 pixels wide."""
        side = -(-size // 16)
        return TokenGrid(-(-num_frames // 2), side, side)

    def forward(self, frames: Tensor) -> Tensor:
        """Map uint8 [B, T, S, S, 3] to [B, M, D]."""
        values = frames.permute(0, 4, 1, 2, 3).float() / 127.5 - 1
        return self.layers(values).flatten(2).transpose(1, 2)

    def settings(self) -> dict[str, Any]:
        """Return the width."""
        return {"width": self.out_dim}


MakeBackbone = Callable[..., Backbone]
# And what `register_backbone` added
_REGISTERED: dict[str, MakeBackbone] = {"conv3d": Conv3dBackbone}


def register_backbone(name: str, make: MakeBackbone) -> None:
    """Add a backbone, to be named with `--backbone` and in the folders of captioners.

    Args:
        name: Not `conv3d`, and without a colon; the backbone's `name`, too.
        make: The class, or a function: keywords as its `settings()` gives them, to a backbone.

    Raises:
        ConfigError: bad-value for a name that is taken.
    """
    if ":" in name or _REGISTERED.get(name, make) is not make:
        raise ConfigError(
            "bad-value",
            f"there is a backbone `{name}` already, or it holds a colon",
            "choose another name",
        )
    _REGISTERED[name] = make


def load_backbone(
    name: str,
    settings: Mapping[str, Any] | None = None,
    weights: StateDict | None = None,
) -> Backbone:
    """Make or load a backbone.

    Args:
        name: `conv3d`, a small network of our own without weights; `hf:` and a folder or `org/name`
            of the hub: a video or image model of transformers, frozen; `video-swin:` and a file or
            folder of a checkpoint, frozen; or one that was registered. The name of what lies on
            this machine becomes that of its absolute path.
        settings: As a backbone's `settings()` gave them. Default: of conv3d its defaults, of a
            model those of its folder.
        weights: As a backbone's `state_dict()` gave them. Default: of conv3d random ones, of a
            model those of its folder.
    """
    kind, _, location = name.partition(":")
    if weights is None and location and Path(location).exists():
        # A captioner is used from other folders than it is made in
        name = f"{kind}:{Path(location).resolve()}"
    if name in _REGISTERED:
        make = _REGISTERED[name]
        with refuse_unfit_parts(name):
            backbone = make(**(settings or {}))
            if weights is not None:
                backbone.load_state_dict(dict(weights))
        return backbone
    if name.startswith("hf:") and len(name) > len("hf:"):
        return load_transformers_backbone(name, settings, weights)
    if name.startswith("video-swin:") and (location or weights is not None):
        from albertkit.captioning.video_swin import load_video_swin

        return load_video_swin(name, settings, weights)
    hint = "`conv3d`, `hf:` and a folder or `org/name`, or `video-swin:` and a file"
    if "/" in name or Path(name).is_dir():
        hint = f"`hf:{name}`"
    raise ConfigError("unknown-name", f"there is no backbone `{name}`", f"write {hint}")


# --- a model of transformers ----------------------------------------------------------------------

# Pixels of all frames in one forward: 32 frames or 2 clips of VideoMAE
_PIXELS_PER_BATCH = 32 * 224 * 224
# What a configuration says that changes no number.
_IRRELEVANT_KEYS = {
    "_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "id2label", "label2id", "num_labels",
    "problem_type", "transformers_version", "output_attentions", "output_hidden_states", "return_dict",
}  # fmt: skip


@dataclass
class _BackboneSettings:
    """The `settings` of a `TransformersBackbone`."""

    config: dict[str, Any]
    pixels: PixelValues
    frame_size: int | None


class TransformersBackbone(Backbone):
    """One of `backbone.KINDS`. Visual tokens are the last states of the patches; class and register tokens are dropped.

    Frozen and in eval mode until `requires_grad_()`; while frozen, `train()` leaves it in eval
    mode, because dropout in it would only be noise.
    """

    def __init__(
        self,
        name: str,
        model: Any,
        kind: VisionKind,
        pixels: PixelValues,
        frame_size: int | None,
    ) -> None:
        super().__init__()
        self.name = name
        self.model = model
        self.kind = kind
        self.pixels = pixels
        self.config = model.config
        self.extent = Extent.of(self.config, kind, name)
        self.out_dim = int(self.config.hidden_size)
        self.frame_size = frame_size if frame_size and self._fits(frame_size) else self.extent.size
        self._hashed: tuple[int, str] | None = None
        for path in kind.unused:
            parent_path, _, leaf = path.rpartition(".")
            parent = model.get_submodule(parent_path)
            is_parameter = isinstance(getattr(parent, leaf), nn.Parameter | None)
            setattr(parent, leaf, None if is_parameter else nn.Identity())
        self.requires_grad_(False).eval()

    def grid(self, num_frames: int, size: int) -> TokenGrid:
        """Return how the tokens lie."""
        extent = self.extent
        subject = f"`{self.name}` ({self.config.model_type})"
        fixed = self.kind.fixed_frames and num_frames != extent.num_frames
        if num_frames < 1 or num_frames % extent.tubelet or fixed:
            accepted = (
                f"a multiple of {extent.tubelet} frames"
                if extent.tubelet > 1
                else "at least 1 frame"
            )
            raise ConfigError(
                "bad-value",
                f"{subject} cannot take {num_frames} frames a clip",
                f"give it {extent.num_frames} frames"
                if self.kind.fixed_frames
                else f"give it {accepted}",
            )
        if not self._fits(size):
            also = "" if self.kind.fixed_size else f", or a multiple of {extent.patch}"
            raise ConfigError(
                "bad-value",
                f"{subject} cannot take frames of {size} pixels",
                f"give it {extent.size}{also}",
            )
        return TokenGrid(num_frames // extent.tubelet, size // extent.patch, size // extent.patch)

    def forward(self, frames: Tensor) -> Tensor:
        """Map uint8 [B, T, S, S, 3], RGB, to fp32 [B, M, D], as many at once as memory bears."""
        square = frames.ndim == 5 and frames.shape[2] == frames.shape[3] and frames.shape[4] == 3
        if not square or frames.dtype != torch.uint8:
            raise ConfigError(
                "bad-value",
                f"frames are {frames.dtype} {list(frames.shape)}",
                "give uint8 [clips, frames, S, S, 3]",
            )
        batch, num_frames, size = frames.shape[:3]
        grid = self.grid(num_frames, size)
        inputs = frames if self.kind.video else frames.flatten(0, 1)
        # As many at once as memory bears; a video model needs all frames of a clip together.
        at_once = _PIXELS_PER_BATCH // (size * size * (num_frames if self.kind.video else 1))
        tokens = []
        for part in inputs.split(max(1, at_once)):
            output = self.model(self.pixels.apply(part), **self.kind.call)
            hidden = output.last_hidden_state[:, self.extent.leading :]
            # TimeSformer: time is the inner order.
            if getattr(self.config, "attention_type", "space_only") != "space_only":
                hidden = hidden.unflatten(1, (-1, part.shape[1])).transpose(1, 2).flatten(1, 2)
            tokens.append(hidden)
        return torch.cat(tokens).reshape(batch, grid.num_tokens, self.out_dim)

    def _fits(self, size: int) -> bool:
        multiple = size >= self.extent.patch and size % self.extent.patch == 0
        return size == self.extent.size or (not self.kind.fixed_size and multiple)

    def settings(self) -> dict[str, Any]:
        """Return `config`, where it differs from transformers' defaults, `pixels` and `frame_size`."""
        config = {
            name: value
            for name, value in self.config.to_diff_dict().items()
            if name not in _IRRELEVANT_KEYS
        }
        model_type = {"model_type": self.config.model_type}
        settings = {
            "config": {**config, **model_type},
            "pixels": asdict(self.pixels),
            "frame_size": self.frame_size,
        }
        return json.loads(json.dumps(settings))  # lists for tuples: as they come back from a file

    def fingerprint(self) -> str:
        """Return Sha256 over settings and weights, not over their place; computed again only if weights were written since."""
        state = self.model.state_dict(keep_vars=True)
        version = sum(0 if tensor.is_inference() else tensor._version for tensor in state.values())
        if self._hashed is None or self._hashed[0] != version:
            self._hashed = version, hash_weights(json.dumps(self.settings(), sort_keys=True), state)
        return self._hashed[1]


def load_transformers_backbone(
    name: str, settings: Mapping[str, Any] | None, weights: StateDict | None
) -> TransformersBackbone:
    """Load from a folder or the hub, or make again from settings and weights, which needs neither."""
    with requires_package("transformers", "caption", f"the backbone `{name}`"):
        import transformers  # noqa: F401
    if weights is not None:
        return _restore_backbone(name, settings or {}, weights)
    folder = local_folder(name.removeprefix("hf:"))
    if not (folder / "config.json").exists():
        raise CheckpointError(
            "missing-file",
            f"`{folder}` holds no config.json",
            "name a folder that transformers wrote",
        )
    values = read_json(folder / "config.json")
    kind = find_vision_kind(values.get("model_type") if isinstance(values, dict) else None, name)
    if find_weights(folder) is None:
        raise CheckpointError(
            "missing-file",
            f"`{folder}` holds none of {', '.join(WEIGHTS_FILES)}",
            "copy or download the whole model",
        )
    config_class = _model_class(kind, name).config_class
    config = _call_transformers(
        "bad-value",
        name,
        config_class.from_pretrained,
        folder,
        local_files_only=True,
    )
    for key, value in kind.config.items():
        setattr(config, key, value)
    pixels, size = read_pixel_values_and_size(folder, kind.published)
    backbone = TransformersBackbone(
        name,
        _load_model(name, kind, config, folder, None),
        kind,
        pixels,
        size,
    )
    if settings is not None:
        check_model_unchanged(name, settings, backbone.settings())
    return backbone


def _restore_backbone(
    name: str,
    settings: Mapping[str, Any],
    weights: StateDict,
) -> TransformersBackbone:
    try:
        restored = msgspec.convert(settings, _BackboneSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(
            "bad-value",
            f"`{name}`: the settings with the weights are those of no backbone: {error}",
            "give what `settings()` gave with the weights",
        ) from None
    kind = find_vision_kind(restored.config.get("model_type"), name)
    config = _call_transformers(
        "bad-value",
        name,
        _model_class(kind, name).config_class.from_dict,
        restored.config,
    )
    state = {key.removeprefix("model."): tensor for key, tensor in weights.items()}
    return TransformersBackbone(
        name,
        _load_model(name, kind, config, None, state),
        kind,
        restored.pixels,
        restored.frame_size,
    )


def _model_class(kind: VisionKind, name: str) -> Any:
    import transformers

    # VideoPrism is younger than the oldest version that is allowed
    if not hasattr(transformers, kind.model_class):
        raise CheckpointError(
            "wrong-model",
            f"`{name}` needs {kind.model_class}, which transformers {transformers.__version__} lacks",
            "pip install -U -c constraints.txt 'albertkit[caption]'",
        )
    return getattr(transformers, kind.model_class)


def _load_model(
    name: str,
    kind: VisionKind,
    config: Any,
    folder: Path | None,
    state: StateDict | None,
) -> nn.Module:
    """Load transformers' model with every weight that the tokens need."""
    load = _model_class(kind, name).from_pretrained
    # bf16 would be 1.4 to 2.0 times as fast, with an error of 0.4 to 1.1 %.
    how = {
        "dtype": torch.float32,
        "local_files_only": True,
        "weights_only": True,
        "output_loading_info": True,
    }
    with quiet_transformers():
        model, loading_info = _call_transformers(
            "corrupt", name, load, folder, config=config, state_dict=state, **how, **kind.init
        )
    missing = sorted(
        key for key in loading_info["missing_keys"] if not key.startswith(kind.unused or ("\0",))
    )
    if missing:
        raise CheckpointError(
            "corrupt",
            f"`{name}` lacks {len(missing)} of its weights, the first is `{missing[0]}`",
            "copy or download the whole model",
        )
    return model


def _call_transformers(slug: str, name: str, make: Any, *arguments: Any, **keywords: Any) -> Any:
    """Call transformers; what it raises shares no base class."""
    try:
        return make(*arguments, **keywords)
    except Exception as error:
        reason = first_line(error)
        raise CheckpointError(
            slug,
            f"transformers cannot load `{name}`: {reason}",
            "check its files, or copy or download them again",
        ) from None
