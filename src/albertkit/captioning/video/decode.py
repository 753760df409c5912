"""The frames of a clip that a model sees, out of a file of any length."""

import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from albertkit.captioning.video.file import VideoFile
from albertkit.captioning.video.sampling import FrameSampling, Squares
from albertkit.captioning.video.timeline import Bounds, Timeline, check_decoded, check_length, no_frame, read_timeline

# Codecs of which every packet is one frame and what is called a keyframe needs nothing before it. Not so GIF and APNG, whose
# frames are painted over each other, and VP8, which has packets that are never shown.
_SOUGHT = frozenset("h264 hevc vp9 av1 mpeg4 mpeg2video mpeg1video mjpeg ffv1 prores".split())

_ASTRAY = 0.1  # of the frames of a damaged file may be shown at times that cannot be; beyond that, none is believed


@dataclass(frozen=True)
class Frames:
    """Frames of a clip.

    Attributes:
        pixels: uint8 [T, S, S, 3], RGB.
        times: float64 [T], presentation times, in seconds from the start of the file.
        notes: Differences from what the file says, in words: frames that cannot be decoded, an early end.
    """

    pixels: np.ndarray
    times: np.ndarray
    notes: tuple[str, ...] = ()


def sample_frames(
    path: str | os.PathLike[str], sampling: FrameSampling, start: float | None = None, end: float | None = None
) -> Frames:
    """Decode the frames of a clip that `sampling` names.

    Its places are counted over the frames whose presentation time lies in [start, end], as SwinBERT counts the frames it
    decoded. They are found by the times of the packets, and only the frames from a keyframe to them are decoded. Where that does
    not work out to the frame (times are missing, a frame cannot be decoded, the codec has no such keyframes), everything is
    decoded, twice where the packets are miscounted, and the places are counted over the frames that could be decoded.

    Memory: the T frames [T, S, S, 3], one decoded frame with its scaled copy, the decoder's reference frames (at most 17), and
    8 bytes a frame of the file.

    Args:
        path: A file of video, or of pictures that move, in one of the usual formats.
        sampling: Number, places and size of frames. A clip of fewer frames repeats some.
        start: First moment of the clip, in seconds from the start of the file. Default: the beginning.
        end: Its last. Default: the end of the file.
    """
    bounds = Bounds.of(path, start, end)
    timeline = read_timeline(path, bounds)
    with VideoFile(path) as video:
        sought = video.codec in _SOUGHT and video.kind != "avi" and timeline.unambiguous
        frames = _by_time(video, timeline, sampling) if sought else None
        if frames is not None:
            return Frames(*frames, check_length(video, bounds, timeline.until, timeline.broken_off))
    return _by_number(path, timeline, bounds, sampling)


def _by_time(video: VideoFile, timeline: Timeline, sampling: FrameSampling) -> tuple[np.ndarray, np.ndarray] | None:
    """Return frames and times; None where the frames decoded are not those that the packets announced."""
    pts, keys = timeline.pts, timeline.keys
    if pts is None or not len(pts) or not keys:
        return None
    places = sampling.places(len(pts))
    pixels, squares = _canvas(sampling), Squares(sampling.size, video.path)
    frames: Iterator[Any] | None = None
    expected = -1  # the number of the frame that must come next
    for place in np.unique(places):
        shown, decoded = keys[max(bisect_right(keys, pts[place], key=lambda key: key[0]) - 1, 0)]
        leads_from = int(np.searchsorted(pts, shown))
        if leads_from > expected:
            frames, expected = video.frames_from(shown, decoded), leads_from
        for frame in frames or ():
            if frame.pts is not None and frame.pts < pts[expected]:
                continue  # it is shown before the keyframe, and may refer to what was not decoded
            if frame.pts != pts[expected]:
                return None
            expected += 1
            if expected > place:
                pixels[places == place] = squares.of(frame)
                break
        else:
            return None
    return pixels, np.array([video.seconds(int(time)) for time in pts[places]])


def _by_number(path: str | os.PathLike[str], timeline: Timeline, bounds: Bounds, sampling: FrameSampling) -> Frames:
    """Return frames by decoding everything, once more where there are not as many as packets."""
    count, timed = timeline.packets, timeline.pts is not None
    while True:
        with VideoFile(path) as video:
            found = _numbered(video, timed, bounds, sampling, max(count, 1))
            if found.astray > _ASTRAY * found.decoded:  # AVI with B-frames has the times of decoding
                timed = False
                continue
            if not found.in_clip:
                raise no_frame(video, bounds, found.until)
            if found.in_clip != count:
                count = found.in_clip
                continue
            notes = check_decoded(video, found.in_clip if timed else found.decoded, timeline.packets)
            if timed:
                notes += check_length(video, bounds, found.until, video.broken_off)
            else:
                rate = f"{float(video.rate):g} frames a second"
                notes += (f"the file has no presentation times: frames are counted at {rate}",)
            return Frames(found.pixels, found.times, notes)


class _Found(NamedTuple):
    pixels: np.ndarray
    times: np.ndarray
    in_clip: int  # frames
    decoded: int
    until: float  # seconds
    astray: int  # frames without a time, or with one before the last frame's


def _numbered(video: VideoFile, timed: bool, bounds: Bounds, sampling: FrameSampling, count: int) -> _Found:
    """Return the frames at the places of `count` frames, and how many there are."""
    places, (low, high) = sampling.places(count), bounds.ticks(video)
    pixels, times, squares = _canvas(sampling), np.zeros(sampling.num_frames), Squares(sampling.size, video.path)
    wanted = set(places.tolist())
    in_clip, decoded, until, before, astray = 0, 0, 0.0, 0, 0
    for frame in video.frames():
        if not timed:
            frame.pts = round((video.zero + decoded / video.rate) / video.tick)
        if frame.pts is None or (decoded and frame.pts < before):
            frame.pts, astray = before if frame.pts is None else frame.pts, astray + 1
        before, decoded, until = frame.pts, decoded + 1, max(until, video.end_of(frame))
        if low <= frame.pts <= high:
            if in_clip in wanted:
                pixels[places == in_clip] = squares.of(frame)
                times[places == in_clip] = video.seconds(frame.pts)
            in_clip += 1
    return _Found(pixels, times, in_clip, decoded, until, astray)


def _canvas(sampling: FrameSampling) -> np.ndarray:
    return np.empty((sampling.num_frames, sampling.size, sampling.size, 3), dtype=np.uint8)
