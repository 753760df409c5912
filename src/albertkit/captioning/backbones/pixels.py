"""What a model's pixels are: frames of bytes scaled and normalised, by the model's own preprocessor_config.json."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from albertkit.errors import ConfigError
from albertkit.files import read_json


@dataclass(frozen=True)
class PixelValues:
    """Bytes to a model's numbers: (byte · rescale_factor + rescale_offset - mean) / std.

    Attributes:
        mean: Of red, green and blue, after rescaling.
        std: Likewise.
        rescale_factor: What bytes are multiplied with.
        rescale_offset: -1 where bytes become -1 to 1 (ViViT's `offset`).
    """

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    rescale_factor: float = 1 / 255
    rescale_offset: float = 0.0

    def apply(self, frames: Tensor) -> Tensor:
        """uint8 [..., S, S, 3] to fp32 [..., 3, S, S]."""
        std = torch.tensor(self.std, device=frames.device)
        shift = (self.rescale_offset - torch.tensor(self.mean, device=frames.device)) / std
        return torch.addcmul(shift, frames.to(torch.float32), self.rescale_factor / std).movedim(-1, -3).contiguous()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "PixelValues":
        """Return the inverse of `to_dict`."""
        three = {name: tuple(values[name]) for name in ("mean", "std")}
        return cls(**three, rescale_factor=values["rescale_factor"], rescale_offset=values["rescale_offset"])


IMAGENET = PixelValues((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class Preprocessing:
    """What a model folder says of its input.

    Attributes:
        values: Of the pixels.
        size: Height and width in pixels; None where the folder does not say.
    """

    values: PixelValues
    size: int | None


def read_preprocessing(folder: Path, published: PixelValues) -> Preprocessing:
    """Read the settings of transformers' image or video processor.

    How a frame comes to its size is not read: the decoder scales the shorter side to S and cuts out the middle.
    """
    file, found = _found(folder)
    try:
        return _read(found, published)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            "bad-value", f"`{file}` is no image processor that is understood: {error}", "copy or download it again"
        ) from None


def _read(found: Mapping[str, Any], published: PixelValues) -> Preprocessing:
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
    return Preprocessing(values, _side(cut if cut is not None else found.get("size")))


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
