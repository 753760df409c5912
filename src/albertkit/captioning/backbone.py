"""The base of backbones: frames to visual tokens on a grid of time and space, which can be pooled."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool3d

from albertkit.errors import CheckpointError, ConfigError
from albertkit.files import read_json
from albertkit.model.files import StateDict


class TokenGrid(NamedTuple):
    """Grid of the M = frames x height x width visual tokens of a clip, stored in this order."""

    frames: int
    height: int
    width: int

    @property
    def num_tokens(self) -> int:
        """Return M."""
        return self.frames * self.height * self.width


class Backbone(nn.Module, ABC):
    """Base of the backbones.

    Attributes:
        name: As it is written on the command line and in a captioner's folder, for example `conv3d`
            or `hf:FOLDER`.
        out_dim: Width of a visual token (D).
        frame_size: Height and width in pixels that it wants by itself.
        trained_from_scratch: Whether it has no weights of its own and must be trained with the
            captioner.
        saves_weights: Whether its weights are saved with the captioner also while it is frozen.
    """

    name: str
    out_dim: int
    frame_size: int
    trained_from_scratch: bool = False
    saves_weights: bool = False

    @abstractmethod
    def grid(self, num_frames: int, size: int) -> TokenGrid:
        """Return how the tokens of `num_frames` frames of `size` pixels lie."""

    @abstractmethod
    def forward(self, frames: Tensor) -> Tensor:
        """Map uint8 [B, T, S, S, 3], RGB, to [B, M, D]. Scaling and normalising of values is done here."""

    def train(self, mode: bool = True) -> Self:
        """Set training mode, unless frozen: dropout would only be noise then."""
        super().train(mode and any(parameter.requires_grad for parameter in self.parameters()))
        return self

    def settings(self) -> dict[str, Any]:
        """Return the arguments that make the backbone again, with `name`; nothing by default."""
        return {}

    def fingerprint(self) -> str:
        """Return Sha256 over name, settings and weights, 64 hex digits: features made by another backbone are not the same.

        The weights of one that is trained from scratch do not count: the frames that are prepared
        for it do not depend on them.
        """
        state = {} if self.trained_from_scratch else self.state_dict()
        return hash_weights(f"{self.name} {self.settings()}", state)


def hash_weights(description: str, state: StateDict) -> str:
    """Return Sha256 over a text and the names, types, shapes and numbers of tensors."""
    digest = sha256(description.encode())
    for key, tensor in sorted(state.items()):
        # Names and shapes count, too: the same bytes under other names are another model.
        digest.update(f"{key} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


@contextmanager
def refuse_unfit_parts(name: str) -> Iterator[None]:
    """Refuse settings and weights that are not those of a backbone, where it is made of them in the block."""
    try:
        yield
    except TypeError as error:
        hint = "its settings are those it was saved with: copy the whole captioner again"
        raise ConfigError("bad-value", f"`{name}`: {error}", hint) from None
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise CheckpointError(
            "corrupt",
            f"the weights are not those of `{name}`: {reason}",
            "copy the whole captioner, or download the checkpoint, again",
        ) from None


def check_model_unchanged(
    name: str, expected: Mapping[str, Any], actual: Mapping[str, Any]
) -> None:
    """Refuse a model with other settings than the captioner was made with."""
    if differing := sorted(
        key for key in {*expected, *actual} if expected.get(key) != actual.get(key)
    ):
        raise CheckpointError(
            "changed",
            f"`{name}` is not the model that was used before (differing: {', '.join(differing)})",
            "name the model that the captioner was made with, or prepare and train again",
        )


def grid_after_pooling(grid: TokenGrid, max_tokens: int) -> TokenGrid:
    """Return the grid that `pool_grid` makes of a grid.

    Space is reduced first, because frames matter (SwinBERT's paper: CIDEr on MSRVTT is 47.6 with 8
    frames, 52.3 with 32): the longer of height and width loses one, the height where they are
    equal, until the tokens fit. Only when one token is left of a frame are there fewer frames.
    """
    if max_tokens < 1:
        raise ConfigError(
            "bad-value",
            f"max_tokens is {max_tokens}, it must be at least 1",
            "196 is a good number",
        )
    frames, height, width = grid
    while frames * height * width > max_tokens and height * width > 1:
        if height >= width:
            height -= 1
        else:
            width -= 1
    return TokenGrid(min(frames, max_tokens) if height * width == 1 else frames, height, width)


def pool_grid(features: Tensor, grid: TokenGrid, max_tokens: int) -> tuple[Tensor, TokenGrid]:
    """Average visual tokens that lie near each other until a clip has at most `max_tokens`.

    Token i of n along a side is the mean of the places from floor(i·N/n) to ceil((i+1)·N/n) of N,
    as torch's adaptive pooling has it; where N is no multiple of n, neighbours share a place.

    Args:
        features: fp [B, M, D], M tokens in the order frames, height, width.
        grid: How they lie; its M is theirs.
        max_tokens: Tokens a clip may have, at least 1. At M or more nothing is changed.

    Returns:
        fp [B, m, D] with m <= max_tokens, and their grid (`grid_after_pooling`).
    """
    target = grid_after_pooling(grid, max_tokens)
    if features.ndim != 3 or features.shape[1] != grid.num_tokens:
        raise ConfigError(
            "bad-value",
            f"features are {list(features.shape)}, the grid {tuple(grid)} has {grid.num_tokens:,} tokens",
            "give features [clips, tokens, width] and the grid that they lie on",
        )
    if target == grid:
        return features, grid
    pooled = adaptive_avg_pool3d(features.transpose(1, 2).unflatten(2, grid), target)
    return pooled.flatten(2).transpose(1, 2), target


@dataclass(frozen=True)
class PixelValues:
    """Bytes to a model's numbers: (byte · rescale_factor + rescale_offset - mean) / std."""

    mean: tuple[float, float, float]  # of red, green and blue, after rescaling
    std: tuple[float, float, float]
    rescale_factor: float = 1 / 255
    rescale_offset: float = 0.0  # -1 where bytes become -1 to 1 (ViViT's `offset`)

    def apply(self, frames: Tensor) -> Tensor:
        """Map uint8 [..., S, S, 3] to fp32 [..., 3, S, S]."""
        # One multiplication and one addition a pixel, whatever scaling and normalising a model
        # wants.
        std = torch.tensor(self.std, device=frames.device)
        shift = (self.rescale_offset - torch.tensor(self.mean, device=frames.device)) / std
        return (
            torch.addcmul(shift, frames.to(torch.float32), self.rescale_factor / std)
            .movedim(-1, -3)
            .contiguous()
        )


IMAGENET = PixelValues((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_STANDARD = PixelValues((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_CLIP = PixelValues((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_INTERPOLATE = {"interpolate_pos_encoding": True}


@dataclass(frozen=True, kw_only=True)
class VisionKind:
    """One type of model of transformers."""

    model_class: str
    video: bool = False  # sees a clip at once; else each frame by itself
    # Whether a clip must have the configuration's number of frames, because transformers does not
    # stretch the positions in time (else any multiple of a tubelet); whether a frame must have the
    # configuration's size (else also any multiple of a patch).
    fixed_frames: bool = False
    fixed_size: bool = False
    # Before the patches, without the registers that the configuration counts; they are dropped
    class_tokens: int = 0
    published: PixelValues = IMAGENET  # of the published models, for folders that do not say
    init: Mapping[str, Any] = field(default_factory=dict)  # arguments of the class
    call: Mapping[str, Any] = field(default_factory=dict)  # arguments of its forward
    # Values in place of the configuration's: no head is made
    config: Mapping[str, Any] = field(default_factory=dict)
    # Parts without effect on the tokens; dropped, so that every parameter has a gradient
    unused: tuple[str, ...] = ()


_NO_POOLER = {"add_pooling_layer": False}
_SIGLIP = VisionKind(
    model_class="SiglipVisionModel",
    published=_STANDARD,
    call=_INTERPOLATE,
    config={"vision_use_head": False},
)
_CLIP_VISION = VisionKind(
    model_class="CLIPVisionModel",
    class_tokens=1,
    published=_CLIP,
    call=_INTERPOLATE,
    unused=("post_layernorm",),
)
_MASK_TOKEN = ("embeddings.mask_token",)

KINDS = {
    "videomae": VisionKind(
        model_class="VideoMAEModel", video=True, fixed_frames=True, fixed_size=True
    ),
    "timesformer": VisionKind(
        model_class="TimesformerModel",
        video=True,
        class_tokens=1,
        published=PixelValues((0.45,) * 3, (0.225,) * 3),
    ),
    "vivit": VisionKind(
        model_class="VivitModel",
        video=True,
        fixed_frames=True,
        fixed_size=True,
        class_tokens=1,
        init=_NO_POOLER,
        published=PixelValues((0.5,) * 3, (0.5,) * 3, 1 / 127.5, -1.0),
    ),
    # its rotary positions are counted on the grid of `crop_size`: another size would be another
    # place, silently
    "vjepa2": VisionKind(
        model_class="VJEPA2Model",
        video=True,
        fixed_size=True,
        call={"skip_predictor": True},
        unused=("predictor",),
    ),
    "videoprism_vision_model": VisionKind(
        model_class="VideoPrismVisionModel",
        video=True,
        call=_INTERPOLATE,
        published=PixelValues((0.0,) * 3, (1.0,) * 3),
    ),
    "siglip": _SIGLIP,
    "siglip_vision_model": _SIGLIP,
    "clip": _CLIP_VISION,
    "clip_vision_model": _CLIP_VISION,
    "dinov2": VisionKind(model_class="Dinov2Model", class_tokens=1, unused=_MASK_TOKEN),
    "dinov2_with_registers": VisionKind(
        model_class="Dinov2WithRegistersModel", class_tokens=1, unused=_MASK_TOKEN
    ),
    "dinov3_vit": VisionKind(model_class="DINOv3ViTModel", class_tokens=1, unused=_MASK_TOKEN),
    "swin": VisionKind(model_class="SwinModel", init=_NO_POOLER, call=_INTERPOLATE),
    "vit": VisionKind(
        model_class="ViTModel",
        class_tokens=1,
        published=_STANDARD,
        init=_NO_POOLER,
        call=_INTERPOLATE,
    ),
    "beit": VisionKind(
        model_class="BeitModel",
        class_tokens=1,
        published=_STANDARD,
        init=_NO_POOLER,
        call=_INTERPOLATE,
        unused=_MASK_TOKEN,
    ),
}


def find_vision_kind(model_type: Any, model_name: str) -> VisionKind:
    """Return the kind of a configuration's `model_type`."""
    if model_type in KINDS:
        return KINDS[model_type]
    supported_types = ", ".join(kind for kind in KINDS if not kind.startswith(("siglip_", "clip_")))
    raise CheckpointError(
        "wrong-model",
        f"`{model_name}` is a model of type {model_type!r}, which gives no visual tokens here",
        f"name a model of one of these types: {supported_types}",
    )


@dataclass(frozen=True)
class Extent:
    """The clip that a configuration names, and the pixels and frames of a token."""

    size: int  # height and width of a frame in pixels
    patch: int  # height and width of a token in pixels
    num_frames: int  # 1 where the configuration names none
    tubelet: int  # frames of a token
    leading: int  # class and register tokens before the patches

    @classmethod
    def of(cls, config: Any, kind: VisionKind, name: str) -> "Extent":
        """Read from transformers' configuration."""
        tubelet = getattr(config, "tubelet_size", 1)
        if not isinstance(tubelet, int):  # frames, height, width
            tubelet, *patch = tubelet
        else:
            patch = config.patch_size
        size = config.crop_size if hasattr(config, "crop_size") else config.image_size
        frames = getattr(config, "num_frames", getattr(config, "frames_per_clip", 1))
        # Swin merges patches between stages
        merged = 2 ** (len(config.depths) - 1) if hasattr(config, "depths") else 1
        leading = kind.class_tokens + getattr(config, "num_register_tokens", 0)
        return cls(
            _square_side(size, name),
            _square_side(patch, name) * merged,
            frames,
            tubelet,
            leading,
        )


def _square_side(value: Any, setting_name: str) -> int:
    sides = [value] if isinstance(value, int) else list(value)
    if len(set(sides)) != 1:
        raise ConfigError(
            "bad-value",
            f"`{setting_name}` takes frames or patches of {sides} pixels",
            "use a model of square ones",
        )
    return int(sides[0])


def read_pixel_values_and_size(
    folder: Path, published: PixelValues
) -> tuple[PixelValues, int | None]:
    """Read pixels and size (None where there is none) from the settings of transformers' image or video processor.

    How a frame comes to its size is not read: the decoder scales the shorter side to S and cuts out
    the middle.
    """
    file = folder
    processor: Mapping[str, Any] = {}
    for name in (
        "video_preprocessor_config.json",
        "preprocessor_config.json",
        "processor_config.json",
    ):
        if (folder / name).exists():
            file = folder / name
            processor = read_json(file)
            break
    try:
        if file.name == "processor_config.json":  # where it is a part
            processor = processor.get("video_processor") or processor.get("image_processor") or {}
        offset = published.rescale_offset
        if "offset" in processor:
            offset = -1.0 if processor["offset"] else 0.0
        values = PixelValues(
            _channel_values(processor.get("image_mean", published.mean)),
            _channel_values(processor.get("image_std", published.std)),
            float(processor.get("rescale_factor", published.rescale_factor)),
            offset,
        )
        if not processor.get("do_rescale", True):
            values = replace(values, rescale_factor=1.0, rescale_offset=0.0)
        if not processor.get("do_normalize", True):
            values = replace(values, mean=(0.0,) * 3, std=(1.0,) * 3)
        # A division by 0 would make every visual token infinite, without a word.
        if min(values.std) <= 0:
            raise ValueError(f"image_std is {list(values.std)}")
        size = processor.get("size")
        is_cut = processor.get("do_center_crop", "crop_size" in processor)
        if is_cut and processor.get("crop_size") is not None:
            size = processor["crop_size"]
        if isinstance(size, Mapping):
            sides = {size[name] for name in ("height", "width", "shortest_edge") if size.get(name)}
            if len(sides) > 1:
                raise ValueError(f"frames of {dict(size)} are not square")
            size = next(iter(sides), None)
        return values, None if size is None else int(size)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            "bad-value",
            f"`{file}` is not a supported image processor: {error}",
            "copy or download it again",
        ) from None


def _channel_values(value: Any) -> tuple[float, float, float]:
    red, green, blue = (value, value, value) if isinstance(value, int | float) else value
    return float(red), float(green), float(blue)
