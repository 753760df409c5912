"""The models of transformers that give visual tokens, as data: how each is loaded, what it takes and gives, its pixels."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from albertkit.errors import CheckpointError, ConfigError
from albertkit.files import read_json


@dataclass(frozen=True)
class PixelValues:
    """Bytes to a model's numbers: (byte · rescale_factor + rescale_offset - mean) / std."""

    mean: tuple[float, float, float]  # of red, green and blue, after rescaling
    std: tuple[float, float, float]
    rescale_factor: float = 1 / 255
    rescale_offset: float = 0.0  # -1 where bytes become -1 to 1 (ViViT's `offset`)

    def apply(self, frames: Tensor) -> Tensor:
        """Map uint8 [..., S, S, 3] to fp32 [..., 3, S, S]."""
        std = torch.tensor(self.std, device=frames.device)
        shift = (self.rescale_offset - torch.tensor(self.mean, device=frames.device)) / std
        return torch.addcmul(shift, frames.to(torch.float32), self.rescale_factor / std).movedim(-1, -3).contiguous()


IMAGENET = PixelValues((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_STANDARD = PixelValues((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_CLIP = PixelValues((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_INTERPOLATE = {"interpolate_pos_encoding": True}


@dataclass(frozen=True, kw_only=True)
class VisionKind:
    """One type of model of transformers."""

    model_class: str
    video: bool = False  # sees a clip at once; else each frame by itself
    # Whether a clip must have the configuration's number of frames, because transformers does not stretch the positions in time
    # (else any multiple of a tubelet); whether a frame must have the configuration's size (else also any multiple of a patch).
    fixed_frames: bool = False
    fixed_size: bool = False
    class_tokens: int = 0  # before the patches, without the registers that the configuration counts; they are dropped
    published: PixelValues = IMAGENET  # of the published models, for folders that do not say
    init: Mapping[str, Any] = field(default_factory=dict)  # arguments of the class
    call: Mapping[str, Any] = field(default_factory=dict)  # arguments of its forward
    config: Mapping[str, Any] = field(default_factory=dict)  # values in place of the configuration's: no head is made
    unused: tuple[str, ...] = ()  # parts without effect on the tokens; dropped, so that every parameter has a gradient


_NO_POOLER = {"add_pooling_layer": False}
_SIGLIP = VisionKind(
    model_class="SiglipVisionModel", published=_STANDARD, call=_INTERPOLATE, config={"vision_use_head": False}
)
_CLIP_VISION = VisionKind(
    model_class="CLIPVisionModel", class_tokens=1, published=_CLIP, call=_INTERPOLATE, unused=("post_layernorm",)
)
_MASK_TOKEN = ("embeddings.mask_token",)

KINDS = {
    "videomae": VisionKind(model_class="VideoMAEModel", video=True, fixed_frames=True, fixed_size=True),
    "timesformer": VisionKind(
        model_class="TimesformerModel", video=True, class_tokens=1, published=PixelValues((0.45,) * 3, (0.225,) * 3)
    ),
    "vivit": VisionKind(
        model_class="VivitModel", video=True, fixed_frames=True, fixed_size=True, class_tokens=1, init=_NO_POOLER,
        published=PixelValues((0.5,) * 3, (0.5,) * 3, 1 / 127.5, -1.0),
    ),
    # its rotary positions are counted on the grid of `crop_size`: another size would be another place, silently
    "vjepa2": VisionKind(
        model_class="VJEPA2Model", video=True, fixed_size=True, call={"skip_predictor": True},
        unused=("predictor",),
    ),
    "videoprism_vision_model": VisionKind(
        model_class="VideoPrismVisionModel", video=True, call=_INTERPOLATE,
        published=PixelValues((0.0,) * 3, (1.0,) * 3),
    ),
    "siglip": _SIGLIP,
    "siglip_vision_model": _SIGLIP,
    "clip": _CLIP_VISION,
    "clip_vision_model": _CLIP_VISION,
    "dinov2": VisionKind(model_class="Dinov2Model", class_tokens=1, unused=_MASK_TOKEN),
    "dinov2_with_registers": VisionKind(model_class="Dinov2WithRegistersModel", class_tokens=1, unused=_MASK_TOKEN),
    "dinov3_vit": VisionKind(model_class="DINOv3ViTModel", class_tokens=1, unused=_MASK_TOKEN),
    "swin": VisionKind(model_class="SwinModel", init=_NO_POOLER, call=_INTERPOLATE),
    "vit": VisionKind(model_class="ViTModel", class_tokens=1, published=_STANDARD, init=_NO_POOLER, call=_INTERPOLATE),
    "beit": VisionKind(
        model_class="BeitModel", class_tokens=1, published=_STANDARD, init=_NO_POOLER, call=_INTERPOLATE,
        unused=_MASK_TOKEN,
    ),
}  # fmt: skip


def find_kind(model_type: Any, name: str) -> VisionKind:
    """Return the kind of a configuration's `model_type`."""
    if model_type in KINDS:
        return KINDS[model_type]
    known = ", ".join(kind for kind in KINDS if not kind.startswith(("siglip_", "clip_")))
    raise CheckpointError(
        "wrong-model",
        f"`{name}` is a model of type {model_type!r}, which gives no visual tokens here",
        f"name a model of one of these types: {known}",
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
        merged = 2 ** (len(config.depths) - 1) if hasattr(config, "depths") else 1  # Swin merges patches between stages
        leading = kind.class_tokens + getattr(config, "num_register_tokens", 0)
        return cls(_square(size, name), _square(patch, name) * merged, frames, tubelet, leading)


def _square(value: Any, name: str) -> int:
    sides = [value] if isinstance(value, int) else list(value)
    if len(set(sides)) != 1:
        raise ConfigError(
            "bad-value", f"`{name}` takes frames or patches of {sides} pixels", "use a model of square ones"
        )
    return int(sides[0])


def read_preprocessing(folder: Path, published: PixelValues) -> tuple[PixelValues, int | None]:
    """Read pixels and size (None where there is none) from the settings of transformers' image or video processor.

    How a frame comes to its size is not read: the decoder scales the shorter side to S and cuts out the middle.
    """
    file, found = _found(folder)
    try:
        return _read(found, published)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            "bad-value", f"`{file}` is not a supported image processor: {error}", "copy or download it again"
        ) from None


def _read(found: Mapping[str, Any], published: PixelValues) -> tuple[PixelValues, int | None]:
    values = PixelValues(
        _three(found.get("image_mean", published.mean)),
        _three(found.get("image_std", published.std)),
        float(found.get("rescale_factor", published.rescale_factor)),
        (-1.0 if found["offset"] else 0.0) if "offset" in found else published.rescale_offset,
    )
    if not found.get("do_rescale", True):
        values = PixelValues(values.mean, values.std, 1.0, 0.0)
    if not found.get("do_normalize", True):
        values = PixelValues((0.0,) * 3, (1.0,) * 3, values.rescale_factor, values.rescale_offset)
    cut = found.get("crop_size") if found.get("do_center_crop", "crop_size" in found) else None
    if min(values.std) <= 0:
        raise ValueError(f"image_std is {list(values.std)}")
    return values, _side(cut if cut is not None else found.get("size"))


def _found(folder: Path) -> tuple[Path, Mapping[str, Any]]:
    """Return the settings: a file of their own, or a part of a processor's."""
    for name in ("video_preprocessor_config.json", "preprocessor_config.json"):
        if (file := folder / name).exists():
            return file, read_json(file)
    if (file := folder / "processor_config.json").exists():
        parts = read_json(file)
        return file, parts.get("video_processor") or parts.get("image_processor") or {}
    return folder, {}


def _three(value: Any) -> tuple[float, float, float]:
    red, green, blue = [value] * 3 if isinstance(value, int | float) else value
    return float(red), float(green), float(blue)


def _side(size: Any) -> int | None:
    if isinstance(size, Mapping):
        sides = {size[name] for name in ("height", "width", "shortest_edge") if size.get(name)}
        if len(sides) > 1:
            raise ValueError(f"frames of {dict(size)} are not square")
        size = sides.pop() if sides else None
    return size if size is None else int(size)
