"""Which frames of a clip the model sees. Saved with a captioner and used again, because it moves scores (SwinBERT, issue 12)."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np

from albertkit.errors import ConfigError

Rounding = Literal["floor", "round", "middle"]


@dataclass(frozen=True, kw_only=True)
class FrameSampling:
    """How frames are taken from a clip.

    Attributes:
        num_frames: Frames of a clip (T).
        size: Height and width of a frame in pixels (S): the shorter side is scaled to it, the middle is cut out.
        rounding: floor or round of evenly spaced places from the first to the last frame (SwinBERT decoding videos, and
            SwinBERT reading frame files), or middle: the middles of equal parts, which never lie at a cut.
    """

    num_frames: int = 8
    size: int = 224
    rounding: Rounding = "middle"

    def __post_init__(self) -> None:
        found = [
            f"{name} is {value!r}, it must be a whole number from {least} to {most:,}"
            for name, value, least, most in (("num_frames", self.num_frames, 1, 4096), ("size", self.size, 8, 4096))
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most
        ]
        if self.rounding not in get_args(Rounding):
            found.append(f"rounding is {self.rounding!r}, known: {', '.join(get_args(Rounding))}")
        if found:
            raise ConfigError("bad-settings", "; ".join(found), "change these settings")

    def places(self, available: int) -> np.ndarray:
        """Numbers of the frames to take.

        Args:
            available: Frames of the clip, at least 1. With fewer than `num_frames` some are taken more than once.

        Returns:
            int64 [T], rising, from 0 to available - 1.
        """
        if self.rounding == "middle":
            return ((np.arange(self.num_frames) + 0.5) * available / self.num_frames).astype(np.int64)
        even = np.linspace(0, available - 1, self.num_frames)
        return (np.floor(even) if self.rounding == "floor" else np.round(even)).astype(np.int64)

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON holds them."""
        return asdict(self)
