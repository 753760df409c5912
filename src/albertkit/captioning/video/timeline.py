"""When the frames of a clip are shown, by what a file says of them, without decoding."""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np

from albertkit.captioning.video.file import VideoFile
from albertkit.errors import DataError

_SAME = Fraction(1, 1_000_000)  # seconds: a bound written as 0.1 means the frame at 3003/30000


@dataclass(frozen=True)
class Bounds:
    """Where a clip lies in its file.

    Attributes:
        start: Its first moment, in seconds from the start of the file. None: at the beginning.
        end: Its last moment. None: at the end.
    """

    start: float | None = None
    end: float | None = None

    @classmethod
    def of(cls, path: str | os.PathLike[str], start: float | None, end: float | None) -> "Bounds":
        """Bounds that can be.

        Raises:
            DataError: bad-clip.
        """
        given = [bound for bound in (start, end) if bound is not None]
        last = math.inf if end is None else end
        if not all(math.isfinite(bound) for bound in given) or not 0 <= (start or 0.0) < last:
            raise DataError(
                "bad-clip",
                f"a clip from {start} to {end} s of `{path}`; it must start at 0 or later and end after that",
                "correct its start and end, in seconds",
            )
        return cls(start, end)

    def ticks(self, video: VideoFile) -> tuple[float, float]:
        """The first and the last presentation time that lies in the clip."""
        low: float = -math.inf
        high: float = math.inf
        if self.start:
            low = math.ceil((Fraction(self.start) + video.zero - _SAME) / video.tick)
        if self.end is not None:
            high = math.floor((Fraction(self.end) + video.zero + _SAME) / video.tick)
        return low, high


@dataclass(frozen=True)
class Timeline:
    """What the packets of a clip say.

    Attributes:
        pts: Presentation times of its frames, int64, rising; None where packets do not tell.
        packets: Packets of the clip, or of the whole file where they tell no times.
        keys: Presentation and decoding times of the packets that stand alone, in the clip and shortly before or all.
        until: When the last frame seen ends, in seconds; None if nothing tells.
        broken_off: Whether reading ended in an error.
    """

    pts: np.ndarray | None
    packets: int
    keys: tuple[tuple[int, int], ...]
    until: float | None
    broken_off: bool

    @property
    def timed(self) -> bool:
        """Whether every packet tells when its frame is shown."""
        return self.pts is not None

    @property
    def unambiguous(self) -> bool:
        """Whether a presentation time names one frame."""
        return self.pts is not None and bool((np.diff(self.pts) > 0).all())


def read_timeline(path: str | os.PathLike[str], bounds: Bounds) -> Timeline:
    """Read the packets of a clip; of a file that can be sought, only those near it.

    Args:
        path: The file.
        bounds: Of the clip.

    Raises:
        DataError: As `VideoFile`.
    """
    with VideoFile(path) as video:
        low, high = bounds.ticks(video)
        if not math.isfinite(low):
            return _read(video, video.packets(), low, high)
        if video.seek(int(low)):
            packets = video.packets()
            first = next(packets)
            if first is not None and first.is_keyframe and first.pts is not None and first.pts <= low:
                return _read(video, chain([first], packets), low, high)
    with VideoFile(path) as video:
        return _read(video, video.packets(), low, high)


def _read(video: VideoFile, packets: Iterable[Any], low: float, high: float) -> Timeline:
    shown: list[int] = []
    keys: list[tuple[int, int]] = []
    count, until, timed = 0, None, True
    for packet in packets:
        if packet is None or not packet.size or packet.is_discard:
            continue
        count += 1
        timed = timed and packet.pts is not None
        if not timed:
            continue
        if packet.is_keyframe:
            keys.append((packet.pts, packet.pts if packet.dts is None else packet.dts))
        if low <= packet.pts <= high:
            shown.append(packet.pts)
        until = max(until or 0.0, video.end_of(packet))
        if packet.dts is not None and packet.dts > high:
            break  # what follows is shown even later
    if not timed:
        return Timeline(None, count, (), None, video.broken_off)
    return Timeline(np.sort(np.array(shown, dtype=np.int64)), len(shown), tuple(sorted(keys)), until, video.broken_off)
