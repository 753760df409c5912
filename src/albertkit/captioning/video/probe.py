"""Facts about a file of video, from its header and its first packets."""

import os
from dataclasses import dataclass
from itertools import islice

import numpy as np

from albertkit.captioning.video.file import VideoFile
from albertkit.captioning.video.sampling import rotation
from albertkit.captioning.video.timeline import Bounds, no_frame
from albertkit.frame.result import Result

_LOOKED_AT = 1000  # packets whose times are compared
_JITTER = 0.002  # seconds: Matroska counts milliseconds, so that frames of one rate lie 33 and 34 apart


@dataclass(frozen=True)
class VideoInfo(Result):
    """A file of video.

    Attributes:
        width: Pixels across, as it is shown (after rotation).
        height: Pixels down.
        rotation: Degrees by which the stored frames are turned counterclockwise to be shown: 0, 90, 180 or 270.
        frames: Number of frames, by its header; None if that does not say.
        duration: Length of the pictures in seconds; None if unknown.
        frames_per_second: Average rate; None if unknown.
        variable_frame_rate: Whether its frames (the first 1,000) lie unevenly in time.
        codec: Codec of the pictures, in FFmpeg's words.
        audio: Whether it has sound.
    """

    width: int
    height: int
    rotation: int
    frames: int | None
    duration: float | None
    frames_per_second: float | None
    variable_frame_rate: bool
    codec: str
    audio: bool


def probe(path: str | os.PathLike[str]) -> VideoInfo:
    """Look at a file of video: its header, its first frame, and the times of its first 1,000 packets."""
    with VideoFile(path) as video:
        times = [
            packet.pts
            for packet in islice(video.packets(), _LOOKED_AT)
            if packet is not None and packet.size and packet.pts is not None and not packet.is_discard
        ]
        steps = np.diff(np.sort(times)) * float(video.tick)
    with VideoFile(path) as video:
        frame = next(video.frames(), None)
        if frame is None:
            raise no_frame(video, Bounds(), 0.0)
        turned, stream, whole = rotation(frame), video.stream, video.container.duration
        duration = video.declared_end or (whole / 1_000_000 if whole else None)
        return VideoInfo(
            width=frame.height if turned in (90, 270) else frame.width,
            height=frame.width if turned in (90, 270) else frame.height,
            rotation=turned,
            frames=stream.frames or None,
            duration=duration,
            frames_per_second=float(stream.average_rate) if stream.average_rate else None,
            variable_frame_rate=len(steps) > 0 and bool(np.ptp(steps) > max(_JITTER, float(video.tick)) + 1e-9),
            codec=video.codec,
            audio=any(stream.type == "audio" for stream in video.container.streams),
        )
