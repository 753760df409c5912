"""Presentation times of a clip's frames, by its packets, and checks that a file holds what its header says."""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np

from albertkit.captioning.video.file import MOST_PIXELS, VideoFile
from albertkit.errors import DataError

_SAME = Fraction(1, 1_000_000)  # seconds: a bound written as 0.1 means the frame at 3003/30000


@dataclass(frozen=True)
class Bounds:
    """Place of a clip in its file, in seconds from the file's start; None: from the beginning, to the end."""

    start: float | None = None
    end: float | None = None

    @classmethod
    def of(cls, path: str | os.PathLike[str], start: float | None, end: float | None) -> "Bounds":
        """Return the bounds, if they are possible."""
        given = [bound for bound in (start, end) if bound is not None]
        last = math.inf if end is None else end
        if not all(math.isfinite(bound) for bound in given) or not 0 <= (start or 0.0) < last:
            raise DataError(
                "bad-row",
                f"a clip from {start} to {end} s of `{path}`; it must start at 0 or later and end after that",
                "correct its start and end, in seconds",
            )
        return cls(start, end)

    def ticks(self, video: VideoFile) -> tuple[float, float]:
        """Return the first and the last presentation time that lies in the clip."""
        low: float = -math.inf
        high: float = math.inf
        if self.start:
            low = math.ceil((Fraction(self.start) + video.zero - _SAME) / video.tick)
        if self.end is not None:
            high = math.floor((Fraction(self.end) + video.zero + _SAME) / video.tick)
        return low, high


@dataclass(frozen=True)
class Timeline:
    """The packets of a clip."""

    pts: np.ndarray | None  # presentation times of the frames, int64, rising; None where packets have none
    packets: int  # of the clip, or of the whole file where packets have no times
    keys: tuple[
        tuple[int, int], ...
    ]  # presentation and decoding times of keyframes, in the clip and shortly before, or all
    until: float | None  # end of the last frame seen, in seconds
    broken_off: bool  # reading ended in an error

    @property
    def unambiguous(self) -> bool:
        """Return whether a presentation time names one frame."""
        return self.pts is not None and bool((np.diff(self.pts) > 0).all())


def read_timeline(path: str | os.PathLike[str], bounds: Bounds) -> Timeline:
    """Read the packets of a clip; of a file that can be sought, only those near it."""
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


_ENOUGH = 0.5  # of a clip
_SLACK = 0.02  # of a clip, or two frames: bounds and headers are rounded


def check_length(video: VideoFile, bounds: Bounds, until: float | None, broken_off: bool) -> tuple[str, ...]:
    """Compare the end of the frames with the one in the header; return notes, refuse less than half."""
    if until is None:
        return ()
    begin, declared = bounds.start or 0.0, video.declared_end
    file_end = until if declared is None else declared
    stop = file_end if bounds.end is None else min(bounds.end, file_end)
    slack = max(2 / float(video.rate), _SLACK * (stop - begin))
    notes = []
    if bounds.end is not None and bounds.end > file_end + slack:
        if file_end - begin < _ENOUGH * (bounds.end - begin):
            raise outside(video, bounds, file_end)
        notes.append(f"the clip should end at {bounds.end:.2f} s, the file ends at {file_end:.2f} s")
    if until < stop - slack:
        if until - begin < _ENOUGH * (stop - begin):
            raise truncated(video, until, file_end)
        notes.append(f"the file ends early: at {until:.2f} s of {file_end:.2f} s")
    elif broken_off:
        notes.append(f"the file cannot be read beyond {until:.2f} s")
    return tuple(notes)


def check_decoded(video: VideoFile, decoded: int, packets: int) -> tuple[str, ...]:
    """Compare the number of frames decoded with that of packets; return notes, refuse less than half."""
    if not video.undecoded or decoded >= packets:
        return ()
    if decoded < _ENOUGH * packets:
        raise video.undecodable(f"only {decoded:,} of {packets:,} frames can be decoded")
    return (f"{packets - decoded:,} of {packets:,} frames cannot be decoded",)


def no_frame(video: VideoFile, bounds: Bounds, until: float) -> DataError:
    """Return the error for a clip of no frames."""
    if not until and (video.undecoded or video.broken_off):
        limit = "" if video.stream.codec_context.width else f" (none of more than {2 * MOST_PIXELS:,} pixels is)"
        return video.undecodable(f"none of its frames can be decoded{limit}")
    declared = video.declared_end
    if declared is not None and until <= (bounds.start or 0.0) < declared:
        return truncated(video, until, declared)
    if until:
        return outside(video, bounds, until)
    return DataError("bad-file", f"`{video.path}` holds no frame", "copy or download it again")


def outside(video: VideoFile, bounds: Bounds, file_end: float) -> DataError:
    """Return the error for a clip that is not in its file."""
    end = "the end" if bounds.end is None else f"{bounds.end:g} s"
    return DataError(
        "bad-row",
        f"a clip from {bounds.start or 0:g} s to {end} of `{video.path}`, which ends at {file_end:.2f} s",
        "correct its start and end, in seconds",
    )


def truncated(video: VideoFile, until: float, file_end: float) -> DataError:
    """Return the error for a file of which too little is there."""
    return DataError(
        "corrupt",
        f"`{video.path}` breaks off at {until:.2f} s of {file_end:.2f} s",
        "copy or download it again",
    )
